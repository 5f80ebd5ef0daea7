//! Ranges and marks that the program names by NVTX: what they refer to, looked up.

use std::rc::Rc;
use std::sync::Arc;

use ktape_ebpf::inside::{RangeTold, range};
use ktape_ebpf::wire::{Plain as _, STACK_TOO_EARLY, STACK_UNREADABLE};
use ktape_format::{Sink, definition};

use super::super::inside::ranges::{Books, RangeCounts, Said};
use super::gaps::count_stackless;
use super::thread::Thread;
use super::{Collector, Notice, books, lower, upper};

impl Collector {
    /// What became of ranges and marks.
    pub fn ranges(&self) -> RangeCounts {
        self.ranges
    }

    /// Takes a word about a range; `text` is that of an id of its ring. As [`Collector::take`].
    pub fn take_range<S: Sink>(
        &mut self,
        record: &[u8],
        text: impl Fn(u32) -> Option<Arc<str>>,
        sink: &mut S,
    ) -> Result<Option<Notice>, S::Error> {
        let Some(told) = RangeTold::read(record) else { return Ok(None) };
        let pid = upper(told.pid_tid);
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(Some(Notice::Unknown(pid))) };
        let tid = lower(told.pid_tid);
        let thread = Thread::of(&mut process.threads, (process.id, process.pid), tid, sink)?.id;
        let stack = match told.stack {
            0 | STACK_TOO_EARLY => {
                if matches!(told.what, range::PUSH | range::START | range::MARK) {
                    count_stackless(told.stack, &process.stacks, &mut process.stackless, &mut self.gaps);
                }
                0
            }
            // Counted where it could not be read.
            STACK_UNREADABLE => 0,
            hash => process.stacks.id(hash).unwrap_or_else(|| {
                self.gaps.unknown_stacks += 1;
                0
            }),
        };
        let text = |id| text(id).map_or_else(|| Rc::from(""), |text| Rc::from(&*text));
        let said = Said { told, thread, domain: text(told.domain), name: text(told.name), stack };
        process.ranges.take(said, &mut books!(self), sink)?;
        Ok(None)
    }

    /// A thread has ended, and all of its words about ranges came.
    pub fn end_ranges_of<S: Sink>(&mut self, pid: u32, tid: u32, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
        // Those of a thread that has ended in everything else have the same definition.
        let thread = sink.define(definition::Thread { process: process.id, tid: i64::from(tid) })?;
        process.ranges.end_thread(thread, &mut books!(self), sink)
    }
}
