//! Time off the processor as events.

use ktape_ebpf::wire::{self, Off};
use ktape_format::Sink;
use ktape_format::event::OffCpu;
use ktape_format::table::Row as _;

use super::account::{Fate, Key, give};
use super::thread::Thread;
use super::{Collector, lower, upper};

impl Collector {
    /// How many stretches off the processor were given to the sink.
    pub fn off_cpu_written(&self) -> u64 {
        self.off_cpu_written
    }

    pub(super) fn off_cpu<S: Sink>(&mut self, record: &wire::OffCpu, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&upper(record.pid_tid)) else {
            // The recorder tells it as lost when it ends; its interval does not wait for that.
            self.account.settle(key(record), Fate::Lost(OffCpu::KIND));
            return Ok(());
        };
        let tid = lower(record.pid_tid);
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), tid, sink)?.id;
        let &wire::OffCpu { cpu, duration_ns, runnable_ns, .. } = record;
        let (start_ns, reason) = (record.time_ns as i64, record.reason as u8);
        let fate = give(OffCpu { start_ns, duration_ns, thread, runnable_ns, reason, cpu }, sink)?;
        self.account.settle(key(record), fate);
        self.off_cpu_written += 1;
        Ok(())
    }

    /// Takes a thread that still is off its processor when the recording ends: up to then. Returns whether it is an event. No
    /// program has seen the end of it, so it is counted as seen here.
    pub fn still_off<S: Sink>(&mut self, tid: u32, off: &Off, end_ns: u64, sink: &mut S) -> Result<bool, S::Error> {
        if !self.processes.contains_key(&off.pid) {
            return Ok(false);
        }
        let runnable_ns = match off.runnable_since_ns {
            0 => 0,
            since_ns => end_ns.saturating_sub(since_ns),
        };
        let record = wire::OffCpu {
            kind: wire::kind::OFF_CPU,
            cpu: off.cpu,
            time_ns: off.left_ns,
            pid_tid: u64::from(off.pid) << 32 | u64::from(tid),
            duration_ns: end_ns.saturating_sub(off.left_ns),
            runnable_ns,
            reason: off.reason as u32,
            end_cpu: off.cpu,
        };
        self.off_cpu(&record, sink)?;
        self.account.saw(key(&record));
        Ok(true)
    }
}

/// What a stretch is counted under: by when and where it ended. See [`wire::tally::OFF_CPU`].
fn key(record: &wire::OffCpu) -> Key {
    Key::new(record.time_ns.wrapping_add(record.duration_ns), record.end_cpu as u16, OffCpu::KIND)
}
