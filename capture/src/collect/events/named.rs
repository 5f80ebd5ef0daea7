//! Ranges and marks that the program names by NVTX: what they refer to, looked up.

use std::rc::Rc;
use std::sync::Arc;

use ktape_ebpf::inside::{RangeTold, range};
use ktape_ebpf::wire::{Plain as _, RangeStack, STACK_LEFT_OUT, STACK_TOO_EARLY, STACK_UNREADABLE};
use ktape_format::{Sink, definition};

use super::super::inside::ranges::{Books, RangeCounts, Said};
use super::gaps::count_stackless;
use super::thread::Thread;
use super::{Collector, Notice, books, lower, stacks, upper};

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
        let begins = matches!(told.what, range::PUSH | range::START | range::MARK);
        let stack = if begins && !self.range_stacks { self.stack(pid, told.stack, sink)? } else { 0 };
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(None) };
        let text = |id| text(id).map_or_else(|| Rc::from(""), |text| Rc::from(&*text));
        let said = Said { told, thread, domain: text(told.domain), name: text(told.name), stack };
        if self.range_stacks {
            process.ranges.wait(said);
            self.go_on_with_ranges(pid, Some(told.time_ns), sink)?;
        } else {
            process.ranges.take(said, &mut books!(self), sink)?;
        }
        Ok(None)
    }

    /// Takes words about ranges of a process that waited for their stacks, as far as these have come or are overdue by now.
    pub(super) fn go_on_with_ranges<S: Sink>(
        &mut self,
        pid: u32,
        now_ns: Option<u64>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        if let Some(process) = self.processes.get_mut(&pid) {
            self.gaps.unknown_stacks += process.ranges.go_on(now_ns, &mut books!(self), sink)?;
        }
        Ok(())
    }

    /// Takes the stack of a range or mark of which a word is to come.
    pub(super) fn range_stack<S: Sink>(&mut self, told: &RangeStack, sink: &mut S) -> Result<(), S::Error> {
        let pid = upper(told.pid_tid);
        let stack = self.stack(pid, told.stack, sink)?;
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ranges.expect(lower(told.pid_tid), told.time_ns, stack);
        }
        self.go_on_with_ranges(pid, Some(told.time_ns), sink)
    }

    /// The definition of a stack that a process has told; 0, and counted, where it has none.
    fn stack<S: Sink>(&mut self, pid: u32, hash: u64, sink: &mut S) -> Result<u32, S::Error> {
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(0) };
        Ok(match hash {
            0 | STACK_TOO_EARLY => {
                count_stackless(hash, &process.stacks, &mut process.stackless, &mut self.gaps);
                0
            }
            STACK_UNREADABLE => {
                self.unreadable_stacks += 1;
                0
            }
            STACK_LEFT_OUT => {
                self.gaps.stacks_left_out += 1;
                stacks::left_out(&mut self.stack_left_out, sink)?
            }
            hash => process.stacks.id(hash).unwrap_or_else(|| {
                self.gaps.unknown_stacks += 1;
                0
            }),
        })
    }

    /// A thread has ended, and all of its words about ranges came.
    pub fn end_ranges_of<S: Sink>(&mut self, pid: u32, tid: u32, sink: &mut S) -> Result<(), S::Error> {
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
        // Those of a thread that has ended in everything else have the same definition.
        let thread = sink.define(definition::Thread { process: process.id, tid: i64::from(tid) })?;
        if self.range_stacks {
            process.ranges.wait_to_end(thread);
            return self.go_on_with_ranges(pid, Some(0), sink);
        }
        process.ranges.end_thread(thread, &mut books!(self), sink)
    }
}
