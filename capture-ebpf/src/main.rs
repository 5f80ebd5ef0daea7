//! The eBPF programs: what runs inside a probe.
//!
//! `enter` and `leave` are at every probed function. They ask three things: is this process recorded (`TARGETS`), what is to
//! be kept of this function (`PLANS`, by the probe's cookie), who called (`stack.rs`). The answer goes into one ring buffer,
//! and the counters are raised before that is asked for room, so that what it cannot take is known.
//! `sampled` (`sample.rs`) looks at running threads, `switched` and `woken` (`offcpu.rs`) at those that do not run, where that was
//! asked for. Where the whole node is recorded, `node.rs` makes a process that calls a target.
//! `correlated` listens to a library inside a process, whose own calls of the driver are no call of the program's (`own.rs`), `ranged` (`range.rs`)
//! where that tells of a range. `forked`, `executed` and `exited` keep `TARGETS` true; `libraries` tells that a library came or went; `code_freed` sees to it
//! that what was said of a code object is not taken for true of the next one at its address, and that the interpreter of a process is known
//! before that calls; `empty` is for the bench.

#![no_std]
#![no_main]
// The target has atomic addition, but `core` offers it there by intrinsics only.
#![feature(core_intrinsics)]
#![expect(internal_features, reason = "see above")]

mod bodies;
mod maps;
mod node;
mod offcpu;
mod own;
mod range;
mod sample;
mod sent;
mod stack;
mod tally;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::generated::{
    bpf_get_attach_cookie, bpf_get_smp_processor_id, bpf_probe_read_user, bpf_probe_read_user_str,
};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel};
use aya_ebpf::macros::{raw_tracepoint, uprobe, uretprobe};
use aya_ebpf::programs::{ProbeContext, RawTracePointContext, RetProbeContext};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::wire::{
    Call, Correlated, LIST_BYTES, LISTS_BYTES, Lifecycle, ListsCall, MEMORY_BYTES, MemoryCall, NAME_BYTES, NamedCall,
    Plan, Return, STACK_WORDS, StackCall, Target, Walked, kind, life, stack_use, unsaid,
};

use crate::maps::{
    ANNOUNCED, COUNTERS, INTERPRETERS, LOST_CALLS, OUTS, OutKey, PLANS, PYTHONS, SPENT, STARTERS, Starter, TARGETS,
    TASK_EXIT_CODE, TASK_PID, TASK_TGID, count, send, setting,
};
use crate::stack::Seen;

/// At a function's entry, or the first instructions after it.
#[uprobe]
fn enter(ctx: ProbeContext) -> u32 {
    entered(&ctx).unwrap_or(0)
}

/// `Option` only for `?`: where a map has no entry there is nothing to record.
#[inline(always)]
fn entered(ctx: &ProbeContext) -> Option<u32> {
    let pid_tid = bpf_get_current_pid_tgid();
    // SAFETY: the context is this program's.
    let function = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let target = match TARGETS.get_ptr_mut((pid_tid >> 32) as u32) {
        Some(target) => target,
        None => node::admit(pid_tid, function)?,
    };
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    let plan = PLANS.get(function)?;
    // The library launches for the program only.
    if plan.stack & stack_use::LAUNCH == 0 && own::is_own(target, pid_tid) {
        return None;
    }
    let counters = COUNTERS.get_ptr_mut(function)?;
    // SAFETY: a map's value.
    count(unsafe { &raw mut (*counters).calls });
    // SAFETY: the context of a probe is its registers.
    let regs = unsafe { &*ctx.regs };
    let seen = Seen::Calling(ctx.as_ptr(), regs.rsp);
    let stack = if plan.stack != 0 { stack::record(seen, target, pid_tid, counters) } else { 0 };
    if plan.stack & stack_use::LAUNCH != 0 && node::leaves_out(target, stack, function) {
        return None;
    }
    // What is left out here is no part of the account.
    let slot = tally::slot(time_ns)?;
    tally::seen(slot, plan.tally);
    let call = Call {
        kind: plan.record as u16,
        // SAFETY: a helper without arguments.
        cpu: unsafe { bpf_get_smp_processor_id() } as u16,
        function,
        time_ns,
        pid_tid,
        stack,
        stack_pointer: regs.rsp,
        registers: [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9],
    };
    if plan.outs[0] != 0 {
        let pointers = [argument(&call, plan.outs[0] - 1), argument(&call, plan.outs[1].wrapping_sub(1))];
        // A full map loses the oldest call that never returned.
        let _ = OUTS.insert(OutKey { pid_tid, function: u64::from(function) }, pointers, 0);
    }
    let sent = match plan.record {
        kind::CALL => send(&call),
        kind::STACK_CALL => send_stack_call(call, regs),
        kind::MEMORY_CALL => send_memory_call(call, plan),
        kind::LISTS_CALL => send_lists_call(call, plan),
        _ => send_named_call(call, plan),
    };
    if !sent {
        tally::lost(slot, plan.tally);
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).calls_lost });
        if setting(&ANNOUNCED) != 0 {
            let _ = LOST_CALLS.insert(pid_tid, time_ns, 0);
        }
    }
    if let Some(took_ns) = maps::timed_ns(time_ns)
        && let Some(spent) = SPENT.get_ptr_mut(function)
    {
        // SAFETY: a map's value, of this processor; of two that add at once one may be lost, which changes no mean.
        unsafe {
            (*spent).calls += 1;
            (*spent).calls_ns += took_ns;
        }
    }
    Some(0)
}

/// Where the library inside a process says which number the call that this thread is in, or has just made, has: CUPTI's, or its own.
#[uprobe]
fn correlated(ctx: ProbeContext) -> u32 {
    let pid_tid = bpf_get_current_pid_tgid();
    if let Some(target) = TARGETS.get_ptr((pid_tid >> 32) as u32) {
        // SAFETY: the context of a probe is its registers.
        let correlation = unsafe { (*ctx.regs).rdi as u32 };
        if correlation == 0 {
            // SAFETY: as above.
            own::learn(target, pid_tid, unsafe { (*ctx.regs).rsi });
            return 0;
        }
        // SAFETY: a map's value. Times are no smaller than 0, and a thread's are all different.
        let time_ns = LOST_CALLS.get_ptr(pid_tid).map_or(0, |lost_ns| unsafe { *lost_ns } + 1);
        // One that finds no room leaves what the device does without its call, which is counted.
        send(&Correlated { kind: kind::CORRELATED, correlation, time_ns, pid_tid });
    }
    0
}

#[inline(always)]
fn send_stack_call(call: Call, regs: &pt_regs) -> bool {
    maps::with_room(|record: *mut StackCall| {
        // SAFETY: the record is reserved and as large as its type.
        unsafe {
            (&raw mut (*record).call).write(call);
            let words = (&raw mut (*record).words).cast();
            let bytes = (STACK_WORDS * 8) as u32;
            if bpf_probe_read_user(words, bytes, (regs.rsp + 8) as *const _) != 0 {
                (&raw mut (*record).call.kind).write(kind::CALL as u16);
            }
        }
        false
    })
}

#[inline(always)]
fn send_memory_call(call: Call, plan: &Plan) -> bool {
    maps::with_room(|record: *mut MemoryCall| {
        let bytes = plan.bytes.min(MEMORY_BYTES as u32);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*record).call).write(call);
            let memory = (&raw mut (*record).memory).cast();
            let read = bpf_probe_read_user(memory, bytes, argument(&call, plan.pointer) as *const _) == 0;
            (&raw mut (*record).bytes).write(if read { u64::from(bytes) } else { 0 });
        }
        false
    })
}

#[inline(always)]
fn send_lists_call(call: Call, plan: &Plan) -> bool {
    maps::with_room(|record: *mut ListsCall| {
        let share = if plan.lists == 1 { LISTS_BYTES } else { LIST_BYTES } as u64;
        // A count from outside: nothing above the share matters, and the product stays small.
        let bytes = argument(&call, plan.count).min(LISTS_BYTES as u64) * u64::from(plan.bytes & 0xff);
        let bytes = bytes.min(share) as u32;
        // SAFETY: as above.
        unsafe {
            (&raw mut (*record).call).write(call);
            let words = (&raw mut (*record).words).cast();
            bpf_probe_read_user(words, (STACK_WORDS * 8) as u32, (call.stack_pointer + 8) as *const _);
            let memory = (&raw mut (*record).memory).cast::<u8>();
            let mut failed = bpf_probe_read_user(memory.cast(), bytes, argument(&call, plan.pointer) as *const _) != 0;
            if plan.lists != 1 {
                let bytes = bytes.min(LIST_BYTES as u32);
                let (second, third) = (argument(&call, plan.pointer + 1), argument(&call, plan.pointer + 2));
                failed |= bpf_probe_read_user(memory.add(LIST_BYTES).cast(), bytes, second as *const _) != 0;
                failed |= bpf_probe_read_user(memory.add(2 * LIST_BYTES).cast(), bytes, third as *const _) != 0;
            }
            (&raw mut (*record).bytes).write(if failed { 0 } else { u64::from(bytes) });
        }
        false
    })
}

#[inline(always)]
fn send_named_call(call: Call, plan: &Plan) -> bool {
    maps::with_room(|record: *mut NamedCall| {
        // SAFETY: as above.
        unsafe {
            (&raw mut (*record).call).write(call);
            let name = (&raw mut (*record).name).cast();
            let bytes = bpf_probe_read_user_str(name, NAME_BYTES as u32, argument(&call, plan.pointer) as *const _);
            (&raw mut (*record).bytes).write(if bytes > 0 { bytes as u64 } else { 0 });
        }
        // The name is wanted while its process still is there to be asked for the rest of it.
        true
    })
}

/// One of the first six arguments. Of the record, as the verifier wants the context read at places that it knows; by an index
/// that is masked, as it does not see through the comparisons that the compiler makes of a `match`.
#[inline(always)]
fn argument(call: &Call, index: u32) -> u64 {
    let [a, b, c, d, e, f] = call.registers;
    [a, b, c, d, e, f, 0, 0][index as usize & 7]
}

/// When a function returned.
#[uretprobe]
fn leave(ctx: RetProbeContext) -> u32 {
    left(&ctx).unwrap_or(0)
}

#[inline(always)]
fn left(ctx: &RetProbeContext) -> Option<u32> {
    let pid_tid = bpf_get_current_pid_tgid();
    let target = TARGETS.get_ptr((pid_tid >> 32) as u32)?;
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    // SAFETY: the context is this program's.
    let function = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let plan = PLANS.get(function)?;
    if plan.stack & stack_use::LAUNCH == 0 && own::is_own(target, pid_tid) {
        return None;
    }
    let counters = COUNTERS.get_ptr_mut(function)?;
    // SAFETY: a map's value.
    count(unsafe { &raw mut (*counters).returns });
    let mut outs = [0u64; 2];
    if plan.outs[0] != 0 {
        let key = OutKey { pid_tid, function: u64::from(function) };
        if let Some(pointers) = OUTS.get_ptr(key) {
            // SAFETY: a map's value; the destinations are locals of that size, and zeroed where nothing can be read.
            unsafe {
                bpf_probe_read_user((&raw mut outs[0]).cast(), 8, (*pointers)[0] as *const _);
                if plan.outs[1] != 0 {
                    bpf_probe_read_user((&raw mut outs[1]).cast(), 8, (*pointers)[1] as *const _);
                }
            }
            let _ = OUTS.remove(key);
        }
    }
    // SAFETY: the context of a probe is its registers.
    let regs = unsafe { &*ctx.regs };
    let sent = send(&Return {
        kind: kind::RETURN,
        function,
        time_ns,
        pid_tid,
        stack_pointer: regs.rsp,
        result: regs.rax,
        outs,
    });
    if !sent {
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).returns_lost });
    }
    if let Some(took_ns) = maps::timed_ns(time_ns)
        && let Some(spent) = SPENT.get_ptr_mut(function)
    {
        // SAFETY: as in `entered`.
        unsafe {
            (*spent).returns += 1;
            (*spent).returns_ns += took_ns;
        }
    }
    Some(0)
}

/// Nothing: the floor that the cost of the others is compared with. Only the bench loads it.
#[uprobe]
fn empty(_: ProbeContext) -> u32 {
    0
}

/// A code object of Python's is about to be freed (`code_dealloc`).
#[uprobe]
fn code_freed(ctx: ProbeContext) -> u32 {
    let pid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if let Some(target) = TARGETS.get_ptr(pid) {
        // SAFETY: the context of a probe is its registers.
        sent::forget(target, pid, unsafe { (*ctx.regs).rdi });
        // SAFETY: a map's value.
        let generation = unsafe { (*target).generation };
        // SAFETY: a map's value. One that was refused has no generation.
        let is_known =
            |walked: *const Walked| unsafe { matches!((*walked).generation, 0) || (*walked).generation == generation };
        if !INTERPRETERS.get_ptr(pid).is_some_and(is_known)
            && let Some((file, interpreter)) = interpreter_by_file(&ctx)
            && INTERPRETERS.insert(pid, &Walked { generation, interpreter }, 0).is_ok()
        {
            // SAFETY: a helper without arguments.
            let time_ns = unsafe { bpf_ktime_get_ns() };
            tell(life::PYTHON, time_ns, bpf_get_current_pid_tgid(), life::python(file, interpreter.runtime));
        }
    } else if node::lacks_interpreter(pid)
        && let Some((_, interpreter)) = interpreter_by_file(&ctx)
    {
        node::expect(pid, interpreter);
    }
    0
}

/// The interpreter of this process, by the file that it is in, and that file's cookie. Whoever has begun Python has freed code objects, long before a
/// script of its runs, so no call comes before this is known.
#[inline(always)]
fn interpreter_by_file(ctx: &ProbeContext) -> Option<(u64, Interpreter)> {
    // SAFETY: a helper, with the program's context.
    let file = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    // SAFETY: a map's value, of which there is one for each cookie, and it does not change.
    let interpreter = unsafe { *PYTHONS.get_ptr(file)? };
    // SAFETY: the context of a probe is its registers; the instruction pointer is at the probe.
    let here = unsafe { (*ctx.regs).rip };
    Some((file, Interpreter { runtime: here.wrapping_add(interpreter.runtime), ..interpreter }))
}

/// The dynamic linker has mapped or unmapped something (`_dl_debug_state`, which debuggers stop at).
#[uprobe]
fn libraries(_: ProbeContext) -> u32 {
    let pid_tid = bpf_get_current_pid_tgid();
    let pid = (pid_tid >> 32) as u32;
    if let Some(target) = TARGETS.get_ptr(pid) {
        // SAFETY: a map's value.
        if unsafe { (*target).native } != 0 {
            sent::renew(pid);
        }
        // SAFETY: a helper without arguments.
        tell(life::LIBRARIES, unsafe { bpf_ktime_get_ns() }, pid_tid, 0);
    }
    0
}

/// A process or thread began: `sched_process_fork(parent, child)`.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn forked(ctx: RawTracePointContext) -> i32 {
    let pid_tid = bpf_get_current_pid_tgid();
    let pid = (pid_tid >> 32) as u32;
    let child: u64 = ctx.arg(1);
    let child_pid = task_word(child, setting(&TASK_TGID));
    if child_pid != pid {
        node::hand_down(pid, child_pid);
    }
    let Some(target) = TARGETS.get_ptr(pid) else { return 0 };
    let child_tid = task_word(child, setting(&TASK_PID));
    let child_pid_tid = u64::from(child_pid) << 32 | u64::from(child_tid);
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    if child_pid == pid {
        if let Some(thread_pointer) = stack::thread_pointer() {
            let starter = Starter { thread_pointer, tid: pid_tid & 0xffff_ffff };
            let _ = STARTERS.insert(child_pid_tid, &starter, 0);
        }
        tell(life::THREAD_START, time_ns, child_pid_tid, 0);
        return 0;
    }
    // SAFETY: a map's value.
    let parent = unsafe { *target };
    if parent.follow == 0 {
        return 0;
    }
    let generation = time_ns;
    // The same program, and the same stacks at the same places: but for user space it is a process to get to know.
    if let Some(walked) = INTERPRETERS.get_ptr(pid)
        // SAFETY: a map's value.
        && unsafe { (*walked).generation } == parent.generation
    {
        // SAFETY: a map's value.
        let _ = INTERPRETERS.insert(child_pid, &Walked { generation, ..unsafe { *walked } }, 0);
    }
    let follow = if parent.follow == u32::MAX { u32::MAX } else { parent.follow - 1 };
    if TARGETS.insert(child_pid, &Target { generation, follow, last_state: 0, ..parent }, 0).is_err() {
        let _ = INTERPRETERS.remove(child_pid);
        maps::count_unsaid(unsaid::CHILDREN);
        return 0;
    }
    tell(life::FORK, time_ns, pid_tid, child_pid_tid);
    0
}

/// A process began another program: `sched_process_exec(task, …)`.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn executed(_: RawTracePointContext) -> i32 {
    let pid_tid = bpf_get_current_pid_tgid();
    let pid = (pid_tid >> 32) as u32;
    if node::is_recorded() {
        node::forget(pid);
    }
    let Some(target) = TARGETS.get_ptr_mut(pid) else { return 0 };
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    if node::is_recorded() {
        // Its own first call makes the new program a target again, if it ever calls.
        let _ = TARGETS.remove(pid);
    } else {
        // SAFETY: a map's value.
        unsafe {
            (*target).last_state = 0;
            (*target).generation = time_ns;
        }
    }
    // What was refused says nothing of the next program. The interpreter of the one before is of another generation, and user space may yet
    // ask for it.
    // SAFETY: a map's value.
    if INTERPRETERS.get_ptr(pid).is_some_and(|walked| unsafe { (*walked).generation == 0 }) {
        let _ = INTERPRETERS.remove(pid);
    }
    tell(life::EXEC, time_ns, pid_tid, 0);
    0
}

/// A thread ended: `sched_process_exit(task, …)`.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn exited(ctx: RawTracePointContext) -> i32 {
    let pid_tid = bpf_get_current_pid_tgid();
    if node::is_recorded() && (pid_tid >> 32) as u32 == pid_tid as u32 {
        node::forget((pid_tid >> 32) as u32);
    }
    if let Some(target) = TARGETS.get_ptr_mut((pid_tid >> 32) as u32) {
        // SAFETY: a map's value.
        unsafe {
            if (*target).last_tid as u32 == pid_tid as u32 {
                (*target).last_state = 0;
            }
        }
        // Its stack, and so its thread pointer, may be another's from now on.
        let _ = STARTERS.insert(pid_tid, &Starter { thread_pointer: 0, tid: 0 }, 0);
        let task: u64 = ctx.arg(0);
        // SAFETY: a helper without arguments.
        let time_ns = unsafe { bpf_ktime_get_ns() };
        tell(life::THREAD_EXIT, time_ns, pid_tid, u64::from(task_word(task, setting(&TASK_EXIT_CODE))));
    }
    0
}

/// Four bytes of a `task_struct`.
#[inline(always)]
pub(crate) fn task_word(task: u64, offset: u64) -> u32 {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((task + offset) as *const u32) }.unwrap_or(0)
}

#[inline(always)]
fn tell(what: u32, time_ns: u64, pid_tid: u64, detail: u64) {
    if !maps::send_urgent(&Lifecycle { kind: kind::LIFECYCLE, what, time_ns, pid_tid, detail }) {
        maps::count_unsaid(unsaid::LIFECYCLES);
    }
}

/// Programs have no panic to handle, but the language wants to know.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Helpers that are not GPL-only need no licence; `bpf_probe_read_user` does.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
