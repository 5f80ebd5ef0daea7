//! The stacks of ranges and marks that a program names by NVTX.
//!
//! A library inside of the process tells of them, and says just before that it is about to. The stack is taken here, as those of calls
//! are: it is the same one, told once, and the library need not know the process's Python.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::{map, uprobe};
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::ProbeContext;
use ktape_ebpf::wire::{Counters, RangeStack, kind};

use crate::maps::{TARGETS, send};
use crate::stack::{self, Seen};

/// What `stack::record` counts. User space counts for itself what comes without a stack, or not at all.
#[map]
static RANGES: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// At `ktape_ranged(time_ns)` of the library.
#[uprobe]
fn ranged(ctx: ProbeContext) -> u32 {
    begun(&ctx).unwrap_or(0)
}

/// `Option` only for `?`: where a map has no entry there is nothing to record.
#[inline(always)]
fn begun(ctx: &ProbeContext) -> Option<u32> {
    let pid_tid = bpf_get_current_pid_tgid();
    let target = TARGETS.get_ptr_mut((pid_tid >> 32) as u32)?;
    let counters = RANGES.get_ptr_mut(0)?;
    // SAFETY: the context of a probe is its registers.
    let (time_ns, stack_pointer) = unsafe { ((*ctx.regs).rdi, (*ctx.regs).rsp) };
    let stack = stack::record(Seen::Calling(ctx.as_ptr(), stack_pointer), target, pid_tid, counters);
    // One that finds no room leaves its range without a stack, which is counted.
    send(&RangeStack { kind: kind::RANGE_STACK, padding: 0, time_ns, pid_tid, stack });
    Some(0)
}
