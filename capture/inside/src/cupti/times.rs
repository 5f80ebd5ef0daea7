//! CUPTI's times in the tape's clock.
//!
//! CUPTI takes a client's clock (`cuptiActivityRegisterTimestampCallback`, since CUDA 11.6): its records then have the tape's times.
//! Where it does not, the library before 11.6 or beside other clients, records have CUPTI's own clock, `CLOCK_REALTIME`, which is set
//! and slewed. Then how far apart the two are is measured each time before records are asked for, so that what a record's time is
//! off by is what the clocks drift apart in one period; the recorder is told both readings.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use ktape_ebpf::inside::{Clocks, kind};
use ktape_ebpf::wire::Plain as _;

use super::library::Library;
use crate::{clock, rings};

/// Clocks that are this close are the same one.
const SAME_NS: u64 = 1_000_000;
/// Of so many readings the closest is taken: others were interrupted.
const READINGS: usize = 5;

/// What CUPTI's clock is ahead of ours by.
static OFFSET_NS: AtomicI64 = AtomicI64::new(0);
/// Whether CUPTI has taken ours.
static IS_OURS: AtomicBool = AtomicBool::new(false);

extern "C" fn ours() -> u64 {
    clock::monotonic_ns()
}

/// Gives CUPTI our clock. Before anything is enabled.
pub(super) fn begin(library: &Library) {
    let is_taken = library.take_timestamps_from(ours).is_ok();
    // One that says so and does otherwise is found out.
    let is_same = read(library).is_none_or(|clocks| clocks.other_ns.abs_diff(clocks.monotonic_ns) < SAME_NS);
    IS_OURS.store(is_taken && is_same, Ordering::Relaxed);
    compare(library);
}

/// Measures how far apart the clocks are, where they are not the same.
pub(super) fn compare(library: &Library) {
    if !IS_OURS.load(Ordering::Relaxed)
        && let Some(clocks) = read(library)
    {
        OFFSET_NS.store(clocks.other_ns.wrapping_sub(clocks.monotonic_ns) as i64, Ordering::Relaxed);
    }
}

/// Tells both clocks.
pub(super) fn tell(library: &Library) {
    if let Some(clocks) = read(library) {
        rings::with_writer(0, 0, |writer| writer.put(Clocks { pid_tid: writer.pid_tid(), ..clocks }.as_bytes(), &[]));
    }
}

/// A time of CUPTI's in ours. 0, which stands for none, stays 0.
#[inline]
pub(super) fn to_ours(time_ns: u64) -> u64 {
    if time_ns == 0 { 0 } else { time_ns.wrapping_sub(OFFSET_NS.load(Ordering::Relaxed) as u64) }
}

fn read(library: &Library) -> Option<Clocks> {
    (0..READINGS).filter_map(|_| read_once(library)).min_by_key(|clocks| clocks.uncertainty_ns)
}

fn read_once(library: &Library) -> Option<Clocks> {
    let before = clock::monotonic_ns();
    let other_ns = library.timestamp()?;
    let uncertainty_ns = clock::monotonic_ns() - before;
    let monotonic_ns = before + uncertainty_ns / 2;
    Some(Clocks { kind: kind::CLOCKS, device: 0, pid_tid: 0, monotonic_ns, other_ns, uncertainty_ns })
}
