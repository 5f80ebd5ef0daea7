//! Clocks: the tape's, and others that are read together with it.

use anyhow::Result;
use ktape_format::Sink as _;
use ktape_format::event::{ClockPair, clock_kind};
use rustix::time::{ClockId, clock_gettime};

use super::output::Output;

/// Reads the clocks together, and writes what they said.
pub(super) fn write_clocks(tape: &mut Output) -> Result<()> {
    for (clock, id) in [(clock_kind::UNIX, ClockId::Realtime), (clock_kind::BOOT, ClockId::Boottime)] {
        let before = monotonic_ns();
        let value_ns = clock_ns(id);
        let after = monotonic_ns();
        tape.event(ClockPair {
            start_ns: before + (after - before) / 2,
            clock,
            value_ns,
            uncertainty_ns: (after - before) as u64,
            device: 0,
        })?;
    }
    Ok(())
}

/// Now, on the tape's clock, which is that of the eBPF programs.
pub(super) fn monotonic_ns() -> i64 {
    clock_ns(ClockId::Monotonic)
}

fn clock_ns(id: ClockId) -> i64 {
    let time = clock_gettime(id);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
