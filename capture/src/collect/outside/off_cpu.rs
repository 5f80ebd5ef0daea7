//! Time off the processor as events.

use ktape_ebpf::wire::{self, Off};
use ktape_format::Sink;
use ktape_format::event::OffCpu;

use super::thread::Thread;
use super::{Outside, lower, upper};

impl Outside {
    /// How many stretches off the processor were given to the sink.
    pub fn off_cpu_written(&self) -> u64 {
        self.off_cpu_written
    }

    pub(super) fn off_cpu<S: Sink>(&mut self, record: &wire::OffCpu, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&upper(record.pid_tid)) else { return Ok(()) };
        let tid = lower(record.pid_tid);
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), tid, sink)?.id;
        let &wire::OffCpu { cpu, duration_ns, runnable_ns, .. } = record;
        let (start_ns, reason) = (record.time_ns as i64, record.reason as u8);
        sink.event(OffCpu { start_ns, duration_ns, thread, runnable_ns, reason, cpu })?;
        self.off_cpu_written += 1;
        Ok(())
    }

    /// Takes a thread that still is off its processor when the recording ends: up to then. Returns whether it is an event.
    pub fn still_off<S: Sink>(&mut self, tid: u32, off: &Off, end_ns: u64, sink: &mut S) -> Result<bool, S::Error> {
        let before = self.off_cpu_written;
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
            reason: off.reason,
        };
        self.off_cpu(&record, sink)?;
        Ok(self.off_cpu_written > before)
    }
}
