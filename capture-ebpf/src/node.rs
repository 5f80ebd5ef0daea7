//! `capture node`: a process becomes a target by its first call.
//!
//! A probe fires in whatever process maps the file. Where the whole node is recorded, one that is no target yet is made one here,
//! if the scope has it; what the answer was for one that it has not is remembered, so that its calls cost no more than two look-ups.
//! A fork hands down only which Python it runs, and that quietly: of the hundreds of children that never call CUDA nobody hears.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_task, bpf_ktime_get_ns};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, LruHashMap, PerCpuArray};
use ktape_ebpf::python::Interpreter;
use ktape_ebpf::scope::{COMM_BYTES, Scope};
use ktape_ebpf::wire::{LeftOut, MOST_FUNCTIONS, OutOfScope, Target, Walked, life, unsaid};

use crate::maps::{INTERPRETERS, TARGETS, count, count_unsaid, setting};

/// Whether processes become targets by themselves. The loader sets it, and where the things are in a `task_struct` that are asked.
#[unsafe(no_mangle)]
static NODE: u64 = 0;
#[unsafe(no_mangle)]
static TASK_GROUP_LEADER: u64 = 0;
#[unsafe(no_mangle)]
static TASK_COMM: u64 = 0;

/// The scope: the one of the two that the last bit of `SCOPE_NUMBER` says, so that user space can write the other.
#[map]
static SCOPES: Array<Scope> = Array::with_max_entries(2, 0);

/// Raised with each change of the scope.
#[map]
static SCOPE_NUMBER: Array<u64> = Array::with_max_entries(1, 0);

/// Processes that are out of scope, by number, with the number of the scope that they were held against, plus one.
#[map]
static OUTSIDERS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(4096, 0);

/// The Python of processes that have not called yet, by number: of children of recorded ones, which run the same program, of
/// those that have mapped the driver, and of those whose Python's file is known.
#[map]
static INHERITED: LruHashMap<u32, Walked> = LruHashMap::with_max_entries(4096, 0);

/// What was left out by the scope, of each function.
#[map]
static OUT_OF_SCOPE: PerCpuArray<OutOfScope> = PerCpuArray::with_max_entries(MOST_FUNCTIONS, 0);

/// Whether launches are told apart by their stacks. The loader sets it.
#[unsafe(no_mangle)]
static STACKS_SCOPED: u64 = 0;

/// Stacks whose launches are left out.
#[map]
static LEFT_OUT: LruHashMap<LeftOut, u8> = LruHashMap::with_max_entries(1 << 16, 0);

/// Whether a launch is left out for its stack, and if so counts it.
#[inline(always)]
pub(crate) fn leaves_out(target: *const Target, stack: u64, function: u32) -> bool {
    if setting(&STACKS_SCOPED) == 0 || stack == 0 {
        return false;
    }
    // SAFETY: a map's value.
    let key = LeftOut { stack, generation: unsafe { (*target).generation } };
    if LEFT_OUT.get_ptr(key).is_none() {
        return false;
    }
    if let Some(counted) = OUT_OF_SCOPE.get_ptr_mut(function) {
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*counted).of_calls });
    }
    true
}

/// Whether the whole node is recorded.
#[inline(always)]
pub(crate) fn is_recorded() -> bool {
    setting(&NODE) != 0
}

/// Makes the process that calls a target, or counts the call: as out of scope, or as one more than there is room for.
#[inline(always)]
pub(crate) fn admit(pid_tid: u64, function: u32) -> Option<*mut Target> {
    if !is_recorded() {
        return None;
    }
    let pid = (pid_tid >> 32) as u32;
    let number = *SCOPE_NUMBER.get(0)?;
    // SAFETY: a map's value.
    let is_outsider = OUTSIDERS.get_ptr(pid).is_some_and(|known| unsafe { *known } == number + 1);
    let scope = SCOPES.get(number as u32 & 1)?;
    if is_outsider || has(scope, pid) == 0 {
        if !is_outsider {
            let _ = OUTSIDERS.insert(pid, number + 1, 0);
        }
        // SAFETY: a map's value.
        count(unsafe { &raw mut (*OUT_OF_SCOPE.get_ptr_mut(function)?).of_processes });
        return None;
    }
    // SAFETY: a helper without arguments.
    let generation = unsafe { bpf_ktime_get_ns() };
    if let Some(inherited) = INHERITED.get_ptr(pid) {
        // SAFETY: a map's value.
        let _ = INTERPRETERS.insert(pid, unsafe { &*inherited }, 0);
        if let Some(walked) = INTERPRETERS.get_ptr_mut(pid) {
            // SAFETY: a map's value.
            unsafe { (*walked).generation = generation };
        }
    }
    let target = Target { generation, follow: 0, native: scope.native, ..Target::default() };
    // Of two threads that come here at once one makes it.
    if TARGETS.insert(pid, target, u64::from(BPF_NOEXIST)).is_ok() {
        crate::tell(life::ADMITTED, generation, pid_tid, 0);
    }
    let target = TARGETS.get_ptr_mut(pid);
    if target.is_none() {
        let _ = INTERPRETERS.remove(pid);
        count_unsaid(unsaid::CALLS_NOT_ADMITTED);
    }
    target
}

/// 1 if a process is in the scope. A function of its own, as the verifier is to go through it once.
#[inline(never)]
fn has(scope: &Scope, pid: u32) -> u32 {
    u32::from(has_pid(scope, pid) && has_name(scope) && has_group(scope))
}

#[inline(always)]
fn has_pid(scope: &Scope, pid: u32) -> bool {
    let mut at = 0;
    while at < scope.pid.len() {
        if at as u32 >= scope.pids {
            break;
        }
        if scope.pid[at] == pid {
            return true;
        }
        at += 1;
    }
    scope.pids == 0
}

/// By the name of the process's first thread: the others have names of their own.
#[inline(always)]
fn has_name(scope: &Scope) -> bool {
    if scope.comms == 0 {
        return true;
    }
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    // SAFETY: the helper checks the address.
    let leader = unsafe { bpf_probe_read_kernel((task + setting(&TASK_GROUP_LEADER)) as *const u64) }.unwrap_or(0);
    // SAFETY: as above.
    let name = unsafe { bpf_probe_read_kernel((leader + setting(&TASK_COMM)) as *const [u8; COMM_BYTES]) };
    let Ok(name) = name else { return false };
    let mut at = 0;
    while at < scope.comm.len() {
        if at as u32 >= scope.comms {
            break;
        }
        if scope.comm[at].matches(&name) {
            return true;
        }
        at += 1;
    }
    false
}

/// By the control group that it is in, or any above that.
#[inline(always)]
fn has_group(scope: &Scope) -> bool {
    if scope.groups == 0 {
        return true;
    }
    let mut at = 0;
    while at < scope.group.len() {
        if at as u32 >= scope.groups {
            break;
        }
        let group = scope.group[at];
        // SAFETY: a helper.
        if unsafe { bpf_get_current_ancestor_cgroup_id(group.level as i32) } == group.id {
            return true;
        }
        at += 1;
    }
    false
}

/// A process forked: the child runs the same Python, should it ever call.
#[inline(always)]
pub(crate) fn hand_down(pid: u32, child: u32) {
    if !is_recorded() {
        return;
    }
    let of_target = TARGETS.get_ptr(pid).and_then(|target| {
        let walked = INTERPRETERS.get_ptr(pid)?;
        // SAFETY: maps' values.
        unsafe { ((*walked).generation == (*target).generation).then_some(walked) }
    });
    if let Some(walked) = of_target {
        // SAFETY: a map's value.
        let _ = INHERITED.insert(child, unsafe { &*walked }, 0);
    } else if let Some(walked) = INHERITED.get_ptr(pid) {
        // SAFETY: a map's value.
        let _ = INHERITED.insert(child, unsafe { &*walked }, 0);
    }
}

/// Whether a process that has not called yet may be recorded when it does, and its interpreter is not known.
#[inline(always)]
pub(crate) fn lacks_interpreter(pid: u32) -> bool {
    is_recorded() && INHERITED.get_ptr(pid).is_none()
}

/// Keeps the interpreter of a process that has not called yet.
#[inline(always)]
pub(crate) fn expect(pid: u32, interpreter: Interpreter) {
    let _ = INHERITED.insert(pid, &Walked { generation: 0, interpreter }, 0);
}

/// Nothing is true any more of the process of this number: it has ended, or runs another program.
#[inline(always)]
pub(crate) fn forget(pid: u32) {
    let _ = INHERITED.remove(pid);
    let _ = OUTSIDERS.remove(pid);
}
