//! CPU samples as events: where a thread was when a processor's clock ticked.

use ktape_ebpf::wire::{STACK_UNREADABLE, Sample};
use ktape_format::Sink;
use ktape_format::event::CpuSample;
use ktape_format::table::Row as _;
use serde::Serialize;

use super::account::{Key, give};
use super::thread::Thread;
use super::{Collector, lower, upper};

/// What was taken of CPU samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Samples {
    /// Samples that were given to the sink.
    pub written: u64,
    /// Those whose stack's body is not known.
    pub unknown_stacks: u64,
    /// Those of a Python process before its interpreter was found: without a stack.
    pub before_interpreter: u64,
}

impl Collector {
    /// Says how much time a sample stands for.
    pub fn set_sample_period(&mut self, period_ns: u64) {
        self.sample_period_ns = period_ns;
    }

    /// What was taken of CPU samples.
    pub fn samples(&self) -> Samples {
        self.samples
    }

    pub(super) fn sample<S: Sink>(&mut self, sample: &Sample, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&upper(sample.pid_tid)) else { return Ok(()) };
        let tid = lower(sample.pid_tid);
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), tid, sink)?.id;
        let stack = match sample.stack {
            0 => {
                process.stackless_samples += u64::from(!process.stacks.has_layout());
                0
            }
            // Counted where it could not be read.
            STACK_UNREADABLE => 0,
            hash => process.stacks.id(hash).unwrap_or_else(|| {
                self.samples.unknown_stacks += 1;
                0
            }),
        };
        let (start_ns, weight_ns) = (sample.time_ns as i64, self.sample_period_ns);
        let fate = give(CpuSample { start_ns, weight_ns, thread, stack, cpu: sample.cpu }, sink)?;
        self.account.settle(Key::new(sample.time_ns, sample.cpu as u16, CpuSample::KIND), fate);
        self.samples.written += 1;
        Ok(())
    }
}
