//! What recording costs: the recorder's own processor time, and what the probes take of the recorded threads.
//!
//! The second is an estimate: calls times their price. A price is that of the trap, measured on a function of our own when the
//! recording begins, and that of the program, which times one call of 256 where it happens, stack and all.

use std::time::Duration;

use ktape_ebpf::wire::{Counters, Spent};
use ktape_format::definition::CounterName;
use ktape_format::event::Counter;
use ktape_format::{Sink, TapeError};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::kernel::traps::Traps;
use crate::probes;

/// What was spent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spending {
    /// Processor time of the recorder, all its threads together.
    pub recorder_cpu_ns: u64,
    /// What the probes took of the recorded threads, all together: an estimate.
    pub probes_ns: u64,
    /// The probes that were hit: calls and returns.
    pub hits: u64,
    /// The largest share of a second that the probes took of one thread, as parts of 1.
    pub busiest_thread_share: f64,
}

/// What the probes took since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Look {
    /// The recorder's processor time, as a share of one processor.
    pub(super) recorder_share: f64,
    /// Of all threads together, as a share of one processor.
    pub(super) probes_share: f64,
    /// Of the thread that called most often.
    pub(super) busiest_share: f64,
    /// The mean price of a call, with its return.
    pub(super) call_ns: f64,
}

/// Keeps account.
pub(super) struct Cost {
    traps: Traps,
    /// What is under each function's probe; of several libraries the dearest.
    places: Vec<probes::Cost>,
    last: Vec<(Counters, Spent)>,
    last_cpu: Duration,
    began_cpu: Duration,
    spending: Spending,
}

impl Cost {
    pub(super) fn new(traps: Traps, functions: usize) -> Cost {
        let now = own_cpu();
        Cost {
            traps,
            places: vec![probes::Cost::Optimised; functions],
            last: vec![(Counters::default(), Spent::default()); functions],
            last_cpu: now,
            began_cpu: now,
            spending: Spending::default(),
        }
    }

    /// A function has a probe on such an instruction.
    pub(super) fn has_probe(&mut self, function: usize, place: probes::Cost) {
        self.places[function] = self.places[function].max(place);
    }

    /// What was spent in the time since the last look; `busiest_calls` is how many calls the thread that called most often had.
    pub(super) fn look(
        &mut self,
        counters: &[Counters],
        spent: &[Spent],
        busiest_calls: u64,
        elapsed: Duration,
    ) -> Look {
        let now: Vec<(Counters, Spent)> = counters.iter().copied().zip(spent.iter().copied()).collect();
        let whole = now.iter().fold(Spent::default(), |mut sum, (_, spent)| {
            sum.add(spent);
            sum
        });
        let mut calls = 0;
        let mut probes_ns = 0.0;
        for (((counters, spent), (last, last_spent)), place) in now.iter().zip(&self.last).zip(&self.places) {
            let (entered, returned) = (counters.calls - last.calls, counters.returns - last.returns);
            calls += entered;
            self.spending.hits += entered + returned;
            // Of this function since the last look, or ever, or of all.
            let timed = [since(*spent, *last_spent), *spent, whole];
            let mean = |of: fn(Spent) -> (u64, u64)| {
                timed
                    .map(of)
                    .into_iter()
                    .find(|(count, _)| *count > 0)
                    .map_or(0.0, |(count, ns)| ns as f64 / count as f64)
            };
            probes_ns += entered as f64 * (self.traps.enter_ns(*place) + mean(|spent| (spent.calls, spent.calls_ns)));
            probes_ns += returned as f64 * (self.traps.leave_ns + mean(|spent| (spent.returns, spent.returns_ns)));
        }
        self.last = now;
        let cpu = own_cpu();
        let elapsed_ns = (elapsed.as_nanos() as f64).max(1.0);
        let call_ns = if calls > 0 { probes_ns / calls as f64 } else { 0.0 };
        let look = Look {
            recorder_share: (cpu - self.last_cpu).as_nanos() as f64 / elapsed_ns,
            probes_share: probes_ns / elapsed_ns,
            busiest_share: busiest_calls as f64 * call_ns / elapsed_ns,
            call_ns,
        };
        self.last_cpu = cpu;
        self.spending.recorder_cpu_ns = (cpu - self.began_cpu).as_nanos() as u64;
        self.spending.probes_ns += probes_ns as u64;
        self.spending.busiest_thread_share = self.spending.busiest_thread_share.max(look.busiest_share);
        look
    }

    /// Writes a look onto the tape, as counters; nothing of a second in which nothing was called.
    pub(super) fn tell(
        &mut self,
        look: &Look,
        now_ns: i64,
        tape: &mut impl Sink<Error = TapeError>,
    ) -> Result<(), TapeError> {
        if look.probes_share == 0.0 {
            return Ok(());
        }
        for (name, share) in [
            ("recorder: processor time", look.recorder_share),
            ("probes: time of all threads (estimate)", look.probes_share),
            ("probes: time of the busiest thread (estimate)", look.busiest_share),
        ] {
            let (name, unit) = (tape.string(name)?, tape.string("%")?);
            let counter = tape.define(CounterName { name, unit, process: 0, device: 0 })?;
            tape.event(Counter { start_ns: now_ns, counter, value: 100.0 * share })?;
        }
        Ok(())
    }

    /// What was spent up to the last look.
    pub(super) fn spending(&self) -> Spending {
        self.spending
    }
}

fn since(now: Spent, before: Spent) -> Spent {
    Spent {
        calls: now.calls - before.calls,
        calls_ns: now.calls_ns - before.calls_ns,
        returns: now.returns - before.returns,
        returns_ns: now.returns_ns - before.returns_ns,
    }
}

/// Processor time of this process.
fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(calls: u64, returns: u64) -> Counters {
        Counters { calls, returns, ..Counters::default() }
    }

    #[test]
    fn calls_are_priced_by_their_own_function_of_late() {
        let traps = Traps::of([1000.0, 300.0, 20_000.0], 500.0);
        let mut cost = Cost::new(traps, 3);
        cost.has_probe(0, probes::Cost::Emulated);
        cost.has_probe(0, probes::Cost::Optimised);
        cost.has_probe(1, probes::Cost::Stepped);
        let timed = |calls, calls_ns| Spent { calls, calls_ns, ..Spent::default() };
        let second = Duration::from_secs(1);
        let look = cost.look(
            &[counters(1000, 0), counters(10, 0), counters(0, 0)],
            &[timed(4, 4000), timed(0, 0), timed(0, 0)],
            500,
            second,
        );
        // 1000 of a trap and 1000 ns each; 10 stepped ones, of which none was timed: as all.
        let expected_ns = 1000.0 * 2000.0 + 10.0 * 21_000.0;
        assert!((look.probes_share - expected_ns / 1e9).abs() < 1e-9, "{look:?}");
        assert!((look.busiest_share - 500.0 * look.call_ns / 1e9).abs() < 1e-9, "{look:?}");
        // Of late, they take twice as long, and return.
        let spent = Spent { returns: 1, returns_ns: 100, ..timed(5, 6000) };
        let look = cost.look(
            &[counters(1100, 100), counters(10, 0), counters(0, 0)],
            &[spent, timed(0, 0), timed(0, 0)],
            0,
            second,
        );
        let expected_ns = 100.0 * 3000.0 + 100.0 * 600.0;
        assert!((look.probes_share - expected_ns / 1e9).abs() < 1e-9, "{look:?}");
        assert_eq!(cost.spending().hits, 1210);
    }
}
