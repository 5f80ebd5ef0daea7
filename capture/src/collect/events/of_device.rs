//! What calls have the device do: the rows of calls, and of the device's own word for them where that is told.

use std::sync::Arc;

use ktape_ebpf::inside::{self, CopyRan, Correlated, KernelRan, Missing, Ran, SetRan};
use ktape_ebpf::wire::Plain as _;
use ktape_format::{Sink, event};

use super::super::inside::device::{Around, Device, DeviceCounts, Did, Work};
use super::super::inside::ranges::Books;
use super::account::{Account, Fate, Key};
use super::kernels::Kernels;
use super::objects::Objects;
use super::open::Open;
use super::thread::Pending;
use super::{Collector, Notice, books, lower, upper};

/// What writes the rows of calls and of what they have the device do.
pub(super) struct Teller<'a> {
    pub(super) process: u32,
    pub(super) kernels: &'a mut Kernels,
    pub(super) objects: &'a mut Objects,
    pub(super) account: &'a mut Account,
    pub(super) counts: &'a mut DeviceCounts,
    pub(super) work: &'a mut Vec<Work>,
    pub(super) copies_are_told_of: bool,
}

/// A process's [`Teller`]. A macro, as its threads may be borrowed meanwhile.
macro_rules! teller {
    ($collector:ident, $process:ident) => {
        Teller {
            process: $process.id,
            kernels: &mut $process.kernels,
            objects: &mut $process.objects,
            account: &mut $collector.account,
            counts: &mut $collector.device,
            work: &mut $collector.work,
            copies_are_told_of: $collector.device_times == $crate::collect::events::DeviceTimes::OfAll,
        }
    };
}
pub(super) use teller;

impl Teller<'_> {
    /// Writes a call that was not seen to return. Returns how many events it is, which is 1 or 0.
    pub(super) fn give_up<S: Sink>(&mut self, pending: Pending, sink: &mut S) -> Result<u64, S::Error> {
        self.tell(pending.key, pending.cupti, pending.open, sink)
    }

    /// Writes a call as it is; `cupti` is its number there.
    pub(super) fn tell<S: Sink>(&mut self, key: Key, cupti: u32, open: Open, sink: &mut S) -> Result<u64, S::Error> {
        let fate = open.emit(self.work, sink)?;
        self.settle(key, fate, cupti, sink)
    }

    /// Settles a call whose row is written, and writes what it has the device do, as far as the device does not tell of that.
    pub(super) fn settle<S: Sink>(&mut self, key: Key, fate: Fate, cupti: u32, sink: &mut S) -> Result<u64, S::Error> {
        let mut work = std::mem::take(self.work);
        for work in work.drain(..) {
            match work {
                work if self.copies_are_told_of => {
                    self.with_device(|device, around| device.work(cupti, work, around, sink))?
                }
                Work::Copy(row) => sink.event(row)?,
                Work::Set(row) => sink.event(row)?,
            }
        }
        *self.work = work;
        Ok(self.account.settle(key, fate))
    }

    pub(super) fn with_device<T>(&mut self, action: impl FnOnce(&mut Device, &mut Around<'_>) -> T) -> T {
        let Objects { device, context_of, graphs, .. } = &mut *self.objects;
        let mut around = Around {
            process: self.process,
            kernels: self.kernels,
            contexts: context_of,
            graphs,
            account: self.account,
            counts: self.counts,
        };
        action(device, &mut around)
    }
}

impl Collector {
    /// Takes what the device did; `name` is that of a kernel, and `now_ns` when it was read. As [`Collector::take`].
    pub fn take_device<S: Sink>(
        &mut self,
        record: &[u8],
        name: impl FnOnce(u32) -> Option<Arc<str>>,
        now_ns: u64,
        sink: &mut S,
    ) -> Result<Option<Notice>, S::Error> {
        let Some(ran) = Ran::read(record) else { return Ok(None) };
        let did = match ran.kind {
            inside::kind::KERNEL_RAN => KernelRan::read(record).map(|kernel| {
                let name = name(kernel.name).unwrap_or_default();
                Did::Kernel(kernel, name)
            }),
            inside::kind::COPY_RAN => CopyRan::read(record).map(Did::Copy),
            inside::kind::SET_RAN => SetRan::read(record).map(Did::Set),
            inside::kind::KERNEL_TIMED => Some(Did::Between(ran)),
            _ => None,
        };
        let pid = upper(ran.pid_tid);
        let (Some(did), Some(process)) = (did, self.processes.get_mut(&pid)) else {
            return Ok(Some(Notice::Unknown(pid)));
        };
        teller!(self, process).with_device(|device, around| device.did(did, now_ns, around, sink))?;
        Ok(None)
    }

    /// Ends the waiting of what the device did for a call that does not come, and of ranges for their stacks, and tells what is lost. To be
    /// called every second.
    pub fn sweep_device<S: Sink>(&mut self, now_ns: u64, sink: &mut S) -> Result<(), S::Error> {
        self.unknown.tell(sink)?;
        self.processes.values_mut().try_for_each(|process| {
            self.gaps.unknown_stacks += process.ranges.go_on(Some(now_ns), &mut books!(self), sink)?;
            teller!(self, process).with_device(|device, around| device.sweep(now_ns, around, sink))
        })
    }

    pub(super) fn correlated<S: Sink>(&mut self, correlated: &Correlated, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&upper(correlated.pid_tid)) else { return Ok(()) };
        let id = correlated.correlation;
        let thread = process.threads.get_mut(&lower(correlated.pid_tid));
        let called = thread.and_then(|thread| thread.correlated(id, correlated.time_ns));
        process.objects.device.announced(id);
        let Some(called) = called else { return Ok(()) };
        teller!(self, process).with_device(|device, around| device.called(id, called, around, sink))
    }

    /// Writes a loss row for what CUPTI has not handed out as it should.
    pub(super) fn missing<S: Sink>(&mut self, missing: &Missing, sink: &mut S) -> Result<(), S::Error> {
        let cause = match missing.why {
            inside::missing::DROPPED => "CUPTI dropped its records",
            inside::missing::BACKWARDS => "CUPTI's records end before they begin",
            inside::missing::UNKNOWN_KIND => "CUPTI's records are of a kind that is not known",
            inside::missing::UNREADABLE => "a buffer of CUPTI's could not be read to its end",
            inside::missing::NO_EVENT => "no CUDA event was free for the kernel's launch",
            inside::missing::EVENT_FAILED => "a CUDA event around the kernel's launch failed",
            inside::missing::CUT_OFF => "the kernel was not seen to end before its context or the recording did",
            _ => "CUPTI's records are missing",
        };
        self.device.missing = self.device.missing.saturating_add(missing.count);
        let cause = sink.string(cause)?;
        sink.event(event::Loss {
            start_ns: missing.since_ns as i64,
            duration_ns: missing.until_ns.saturating_sub(missing.since_ns),
            process: self.process_id(upper(missing.pid_tid)),
            count: missing.count,
            kind: 0,
            cause,
        })
    }
}
