//! When recorded threads do not run: why they left their processor, for how long, and how much of that they waited for one.
//!
//! `switched` runs at every context switch of the machine, `woken` whenever a thread is put on a run queue. A thread that leaves
//! is put down in `OFF_CPU`; when it can run, that is noted; when it does, the whole becomes one record. For threads that are not
//! recorded this has to cost little: a look-up for the one that leaves, a read and a look-up for the one that comes, and the
//! same for one that wakes.
//!
//! All this is under the lock of a run queue, which orders it: a thread cannot wake before it is put down as having left.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use aya_ebpf::macros::{map, raw_tracepoint};
use aya_ebpf::maps::{HashMap, PerCpuArray};
use aya_ebpf::programs::RawTracePointContext;
use ktape_ebpf::wire::tally::OFF_CPU as TABLE;
use ktape_ebpf::wire::{MOST_OFF, Off, OffCounters, OffCpu, kind, off};

use crate::maps::{RECORDER, TARGETS, TASK_PID, TASK_TGID, count, send, setting};
use crate::{tally, task_word};

/// The recorded threads that are off their processors, by number. None of them ends there, so none stays.
#[map]
static OFF_CPU: HashMap<u32, Off> = HashMap::with_max_entries(MOST_OFF, 0);

/// What was seen and what was lost of them.
#[map]
static OFF_COUNTERS: PerCpuArray<OffCounters> = PerCpuArray::with_max_entries(1, 0);

/// Where `flags` and the state are in a `task_struct`, and whether `sched_switch` says the latter itself, as it does since
/// Linux 5.18. The loader sets them, from BTF.
#[unsafe(no_mangle)]
static TASK_FLAGS: u64 = 0;
#[unsafe(no_mangle)]
static TASK_STATE: u64 = 0;
#[unsafe(no_mangle)]
static SWITCH_TELLS_STATE: u64 = 0;

/// `PF_EXITING`: it leaves for good, and its number may soon be another's.
const EXITING: u32 = 4;

/// One thread leaves a processor, another comes: `sched_switch(preempt, prev, next, prev_state)`.
#[raw_tracepoint(tracepoint = "sched_switch")]
fn switched(ctx: RawTracePointContext) -> i32 {
    // The one that leaves is still the current one. Number 0 is the idle loop.
    let leaving = bpf_get_current_pid_tgid();
    if leaving != 0 && is_recorded((leaving >> 32) as u32) {
        leave(&ctx, leaving);
    }
    let next: u64 = ctx.arg(2);
    let (pid, tid) = numbers(next);
    if pid != 0 && is_recorded(pid) {
        come(next, pid, tid);
    }
    0
}

/// A thread was put on a run queue: `sched_wakeup(task)` and `sched_wakeup_new(task)`.
#[raw_tracepoint(tracepoint = "sched_wakeup")]
fn woken(ctx: RawTracePointContext) -> i32 {
    let task: u64 = ctx.arg(0);
    let tid = task_word(task, setting(&TASK_PID));
    if let Some(off) = OFF_CPU.get_ptr_mut(tid) {
        // SAFETY: a map's value; a helper without arguments.
        unsafe {
            if (*off).runnable_since_ns == 0 {
                (*off).runnable_since_ns = bpf_ktime_get_ns();
            }
        }
    }
    0
}

/// A thread is put on a run queue for the first time: `sched_wakeup_new(task)`.
#[raw_tracepoint(tracepoint = "sched_wakeup_new")]
fn begun(ctx: RawTracePointContext) -> i32 {
    let (pid, tid) = numbers(ctx.arg(0));
    if is_recorded(pid) {
        // SAFETY: a helper without arguments.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        put_down(tid, &Off { left_ns: now_ns, runnable_since_ns: now_ns, pid, cpu: processor(), reason: off::NEW });
    }
    0
}

#[inline(always)]
fn leave(ctx: &RawTracePointContext, leaving: u64) {
    let (preempt, task): (u64, u64) = (ctx.arg(0), ctx.arg(1));
    if task_word(task, setting(&TASK_FLAGS)) & EXITING != 0 {
        return;
    }
    let state = match setting(&SWITCH_TELLS_STATE) {
        // It is 32 bits wide; what stands above is anything.
        1 => ctx.arg::<u64>(3) as u32,
        _ => task_word(task, setting(&TASK_STATE)),
    };
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    let reason = reason(preempt as u8 != 0, state);
    let runnable_since_ns = if reason == off::PREEMPTED { now_ns } else { 0 };
    let off = Off { left_ns: now_ns, runnable_since_ns, pid: (leaving >> 32) as u32, cpu: processor(), reason };
    put_down(leaving as u32, &off);
}

/// By the bits of `TASK_*` in the kernel's `sched.h`. One that is preempted on its way to sleep still is on its run queue.
#[inline(always)]
fn reason(preempt: bool, state: u32) -> u64 {
    const INTERRUPTIBLE: u32 = 0x1;
    const STOPPED_TRACED_OR_FROZEN: u32 = 0x4 | 0x8 | 0x8000;
    if preempt || state == 0 {
        off::PREEMPTED
    } else if state & STOPPED_TRACED_OR_FROZEN != 0 {
        off::STOPPED
    } else if state & INTERRUPTIBLE != 0 {
        off::SLEEP
    } else {
        off::UNINTERRUPTIBLE
    }
}

/// One that is there already is of a stretch whose end was not seen: a few switches are not told to programs, though
/// the kernel counts them. It is counted, as is one that there is no room for.
#[inline(always)]
fn put_down(tid: u32, off: &Off) {
    if OFF_CPU.insert(tid, off, u64::from(BPF_NOEXIST)).is_ok() {
        return;
    }
    if let Some(counters) = OFF_COUNTERS.get_ptr_mut(0)
        && let Some(slot) = tally::slot(off.left_ns)
    {
        tally::seen(slot, TABLE);
        tally::lost(slot, TABLE);
        // SAFETY: a map's value.
        unsafe {
            count(&raw mut (*counters).seen);
            count(&raw mut (*counters).lost);
        }
    }
    let _ = OFF_CPU.insert(tid, off, 0);
}

#[inline(always)]
fn come(task: u64, pid: u32, tid: u32) {
    let Some(counters) = OFF_COUNTERS.get_ptr_mut(0) else { return };
    let Some(off) = OFF_CPU.get_ptr(tid) else {
        if task_word(task, setting(&TASK_FLAGS)) & EXITING == 0 {
            // SAFETY: a map's value.
            count(unsafe { &raw mut (*counters).unbegun });
        }
        return;
    };
    // SAFETY: a map's value, of a thread that nobody else makes run just now.
    let off = unsafe { *off };
    let _ = OFF_CPU.remove(tid);
    if off.pid != pid {
        // Left by another thread that had the number.
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counters).unbegun });
        return;
    }
    // SAFETY: a helper without arguments.
    let now_ns = unsafe { bpf_ktime_get_ns() };
    // One that was not woken has been on its run queue all the time: a signal came while it went to sleep.
    let since_ns = if off.runnable_since_ns == 0 { off.left_ns } else { off.runnable_since_ns };
    let Some(slot) = tally::slot(now_ns) else { return };
    tally::seen(slot, TABLE);
    // SAFETY: a map's value.
    count(unsafe { &raw mut (*counters).seen });
    let sent = send(&OffCpu {
        kind: kind::OFF_CPU,
        cpu: off.cpu,
        time_ns: off.left_ns,
        pid_tid: u64::from(pid) << 32 | u64::from(tid),
        duration_ns: now_ns.wrapping_sub(off.left_ns),
        runnable_ns: now_ns.wrapping_sub(since_ns),
        reason: off.reason as u32,
        end_cpu: processor(),
    });
    if !sent {
        tally::lost(slot, TABLE);
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).lost });
    }
}

#[inline(always)]
fn is_recorded(pid: u32) -> bool {
    TARGETS.get_ptr(pid).is_some() && u64::from(pid) != setting(&RECORDER)
}

/// A task's process and number: two words one behind the other, in every kernel so far.
#[inline(always)]
fn numbers(task: u64) -> (u32, u32) {
    let (pid, tgid) = (setting(&TASK_PID), setting(&TASK_TGID));
    if tgid != pid + 4 {
        return (task_word(task, tgid), task_word(task, pid));
    }
    // SAFETY: the helper checks the address.
    let [tid, pid] = unsafe { bpf_probe_read_kernel((task + pid) as *const [u32; 2]) }.unwrap_or([0; 2]);
    (pid, tid)
}

#[inline(always)]
fn processor() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_smp_processor_id() }
}
