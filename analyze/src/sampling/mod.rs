//! What a sampling profiler would have said, held against what really happened.
//!
//! A recording holds every call with its start and end, so a profiler that looks only every 10 ms need not be
//! imagined: it can be replayed on the record. [`work`] turns the timeline into intervals with keys (what a sampler
//! can find: a kernel on a stream, a Python function on a thread). For a fixed period [`phases`] computes the outcome
//! of *every* phase exactly, as the counts change only where an interval begins or ends modulo the period; for
//! irregular periods [`jitter`] plays many seeded runs. Both fill a [`tally`]; [`comparison`] sets it beside the exact
//! record; [`agreement`] holds it against the samples of a real profiler, where the recording has some; [`lock_step`] finds what beats with the sampler; [`report`] prints, in tables and
//! sentences (`verdict`), and [`plot`] draws.
//!
//! `docs/compare.md` has the definitions and formulas.

pub mod agreement;
mod call_work;
pub mod comparison;
mod device_work;
pub mod jitter;
pub mod lock_step;
pub mod phases;
pub mod plot;
mod rank;
pub mod report;
pub mod tally;
#[cfg(test)]
mod tests;
mod thread_work;
mod verdict;
pub mod windows;
mod words;
pub mod work;

use rayon::prelude::*;

use crate::timeline::Timeline;
use crate::timeline::weights::Overflow;

pub use agreement::Agreement;
pub use comparison::{Comparison, Row};
pub use work::{By, Sampler, Work};

/// What to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is looked at; the GPU where there is device work with times, else the CPU.
    pub sampler: Option<Sampler>,
    /// What a row is; kernels for the GPU, functions for the CPU.
    pub by: Option<By>,
    /// Samples a second, one comparison each.
    pub hz: Vec<u32>,
    /// How long a profile is taken, one comparison each; the whole trace where this is empty.
    pub windows_ns: Vec<u64>,
    /// When the sampler looks.
    pub schedule: Schedule,
    /// How long the list is that a person would read.
    pub top: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { sampler: None, by: None, hz: vec![100], windows_ns: vec![], schedule: Schedule::Fixed, top: 10 }
    }
}

/// When the sampler looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Every period; all phases are computed.
    Fixed,
    /// At random instants; `runs` profiles are played, the first with `seed`.
    Random {
        /// How the instants are drawn.
        jitter: jitter::Jitter,
        /// Where the random numbers start.
        seed: u64,
        /// How many profiles are played.
        runs: u32,
    },
}

/// Why there is no comparison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GPU sampler finds no kernels.
    #[error(
        "no kernels, copies or memsets with device times: the gpu sampler has nothing to look at; try --sampler cpu"
    )]
    NoDeviceWork,
    /// A recording of launches has no durations that samples could be held against.
    #[error(
        "launches without device times, so a sampler has nothing to be held against: it needs to know how long things \
         ran; `capture run --launch-durations` records that of calls; `analyze info` and `analyze flamegraph` say what was \
         launched, and from where"
    )]
    HostOnly,
    /// The CPU sampler finds no slices.
    #[error(
        "no Python functions or operators on any thread: the cpu sampler has nothing to look at; record with Python \
         stacks (PyTorch: with_stack=True), or select more of the trace"
    )]
    NoHostSlices,
    /// What the CPU sampler needs of a recording of calls: which of them waited, and how long all took.
    #[error(
        "kernels with device times, and of threads only calls: which of these waited for a copy is told only where the device's \
         times are not, so the cpu sampler has nothing to look at; record with `--launch-durations` and without \
         `--device-time`, or try --sampler gpu"
    )]
    CallsBesideDevice,
    /// Threads run functions, not kernels.
    #[error("--by kernel needs --sampler gpu: a thread runs functions; use --by function or --by stack")]
    KernelsOnCpu,
    /// Durations of a damaged tape.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// A frequency that has no whole period.
    #[error("--hz {0} is outside of 1 to 100000000")]
    Hz(u32),
    /// More windows than anybody wants.
    #[error(
        "a window of {window_ns} ns makes {windows} windows of this trace ({span_ns} ns); choose a longer --windows, \
         or cut the trace with --from and --to"
    )]
    TooManyWindows {
        /// The length asked for.
        window_ns: u64,
        /// How many would fit.
        windows: u64,
        /// The trace's length.
        span_ns: u64,
    },
    /// More samples than anybody waits for.
    #[error("{samples} random samples are too many; lower --runs or --hz, or cut the trace with --from and --to")]
    TooManySamples {
        /// How many would be drawn.
        samples: u128,
    },
}

/// The length of a period: profilers set their timer to whole nanoseconds, so 99 Hz is every 10,101,010 ns.
pub fn period_ns(hz: u32) -> Result<u64, Error> {
    if !(1..=100_000_000).contains(&hz) {
        return Err(Error::Hz(hz));
    }
    let hz = u64::from(hz);
    Ok((1_000_000_000 + hz / 2) / hz)
}

/// Holds simulated samplers against the record: one comparison for each frequency and window, in that order.
pub fn compare(timeline: &Timeline, options: &Options) -> Result<Vec<Comparison>, Error> {
    let work = Work::collect(timeline, options.sampler, options.by)?;
    let (windows, notes) = windows::choose(&work, &options.windows_ns)?;
    let mut jobs = Vec::new();
    for &hz in &options.hz {
        let period_ns = period_ns(hz)?;
        jobs.extend(windows.iter().map(|&windows| (hz, period_ns, windows)));
    }
    jobs.into_par_iter()
        .map(|(hz, period_ns, windows)| {
            let tally = match options.schedule {
                Schedule::Fixed => phases::sweep(&work, windows, period_ns, options.top),
                Schedule::Random { jitter, seed, runs } => {
                    jitter::play(&work, windows, period_ns, options.top, jitter, seed, runs)?
                }
            };
            let lock_steps = match options.schedule {
                Schedule::Fixed => lock_step::find(&work, period_ns),
                // Irregular sampling is the cure for it.
                Schedule::Random { .. } => Vec::new(),
            };
            let mut built =
                comparison::build(&work, options, hz, period_ns, windows, &tally, lock_steps, notes.clone());
            built.agreement = agreement::find(timeline, &work, &built);
            Ok(built)
        })
        .collect()
}
