//! What a thread runs between its calls: looks at it from a timer's interrupt.
//!
//! `sampled` runs on each processor whenever its clock has gone on by one period, in whatever thread runs there: so a thread's
//! samples are in proportion to the time that it ran. It may interrupt a probe of the same thread, hence a walk: that one keeps
//! its work space, and this one takes the next. Nothing can be paged in from here; a stack that would need it is counted as
//! not read, and the sample is one all the same.

use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns};
use aya_ebpf::macros::{map, perf_event};
use aya_ebpf::maps::PerCpuArray;
use aya_ebpf::programs::PerfEventContext;
use ktape_ebpf::wire::tally::CPU_SAMPLE;
use ktape_ebpf::wire::{Counters, Sample, kind};

use crate::maps::{RECORDER, TARGETS, count, send, setting};
use crate::stack::{self, Seen};
use crate::tally;

/// What was seen and what was lost of samples, as of a function's calls.
#[map]
static SAMPLES: PerCpuArray<Counters> = PerCpuArray::with_max_entries(1, 0);

/// At each tick of a processor's clock.
#[perf_event]
fn sampled(ctx: PerfEventContext) -> u32 {
    look(&ctx).unwrap_or(0)
}

/// `Option` only for `?`: where a map has no entry there is nothing to record.
#[inline(always)]
fn look(ctx: &PerfEventContext) -> Option<u32> {
    let pid_tid = bpf_get_current_pid_tgid();
    let pid = (pid_tid >> 32) as u32;
    let target = TARGETS.get_ptr_mut(pid)?;
    if u64::from(pid) == setting(&RECORDER) {
        return None;
    }
    // SAFETY: a helper without arguments.
    let time_ns = unsafe { bpf_ktime_get_ns() };
    let counters = SAMPLES.get_ptr_mut(0)?;
    let slot = tally::slot(time_ns)?;
    tally::seen(slot, CPU_SAMPLE);
    // SAFETY: a map's value.
    count(unsafe { &raw mut (*counters).calls });
    let stack = stack::record(Seen::Running(ctx.as_ptr()), target, pid_tid, counters);
    // SAFETY: a helper without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    if !send(&Sample { kind: kind::SAMPLE, cpu, time_ns, pid_tid, stack }) {
        tally::lost(slot, CPU_SAMPLE);
        // SAFETY: as above.
        count(unsafe { &raw mut (*counters).calls_lost });
    }
    Some(0)
}
