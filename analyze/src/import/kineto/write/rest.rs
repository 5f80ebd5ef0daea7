//! Allocations, ranges, marks, slices, counters, and the tape's properties.

use ktape_format::Sink;
use ktape_format::definition::{CounterName, subject};
use ktape_format::event::{Alloc, ClockPair, Free, Loss, allocator, clock_kind};
use ktape_format::table::DefinitionKind;

use super::super::error::Fault;
use super::super::records::Records;
use super::Writer;
use super::links::Links;
use crate::import::calls::Keep as _;

impl<S: Sink> Writer<'_, S> {
    pub(super) fn memory(&mut self, records: &Records, stacks: &[u32]) -> Result<(), Fault> {
        for (instant, stack) in records.memory.iter().zip(stacks) {
            let process = self.places.process_of_thread(records, instant.thread);
            let (device, allocator) = match instant.device {
                Some(index) => (self.places.device(self.sink, process, index)?, allocator::CACHING),
                None => (0, allocator::HOST),
            };
            let alloc = Alloc {
                start_ns: instant.start_ns + self.base_ns,
                thread: self.places.thread(instant.thread),
                device,
                address: instant.address,
                bytes: instant.bytes.unsigned_abs(),
                allocator,
                allocated_bytes: instant.allocated_bytes,
                reserved_bytes: instant.reserved_bytes,
                stack: *stack,
                ..Alloc::default()
            };
            if instant.bytes < 0 {
                let Alloc { start_ns, thread, device, address, bytes, allocated_bytes, reserved_bytes, stack, .. } =
                    alloc;
                let free = Free { start_ns, thread, device, address, bytes, allocator, ..Free::default() };
                self.event(Free { allocated_bytes, reserved_bytes, stack, ..free })?;
            } else {
                self.event(alloc)?;
            }
        }
        Ok(())
    }

    pub(super) fn ranges(&mut self, records: &Records, links: &Links, stacks: &[u32]) -> Result<(), Fault> {
        for (range, stack) in records.ranges.iter().zip(stacks) {
            let mut row = range.row;
            row.start_ns += self.base_ns;
            row.thread = self.places.thread(row.thread);
            row.stack = *stack;
            if let Some(place) = range.place {
                let process = links.process(records, &self.places, range.correlation);
                row.stream = self.places.stream(self.sink, process, records.places.get(place))?;
            }
            self.event(row)?;
        }
        Ok(())
    }

    pub(super) fn marks(&mut self, records: &Records, stacks: &[u32]) -> Result<(), Fault> {
        for (mark, stack) in records.marks.iter().zip(stacks) {
            let mut row = *mark;
            row.start_ns += self.base_ns;
            row.thread = self.places.thread(row.thread);
            row.stack = *stack;
            self.event(row)?;
        }
        Ok(())
    }

    pub(super) fn slices(&mut self, records: &Records) -> Result<(), Fault> {
        for slice in &records.slices {
            let mut row = slice.row;
            row.start_ns += self.base_ns;
            row.thread = self.places.thread(row.thread);
            self.event(row)?;
        }
        Ok(())
    }

    pub(super) fn counters(&mut self, records: &Records) -> Result<(), Fault> {
        for counter in &records.counters {
            let process = counter.pid.and_then(|pid| self.places.process_of(pid)).unwrap_or(0);
            let device = match counter.device {
                Some(index) => self.places.device(self.sink, self.places.main_process, index)?,
                None => 0,
            };
            let mut row = counter.row;
            row.start_ns += self.base_ns;
            row.counter = self.sink.define(CounterName { name: counter.name, unit: 0, process, device })?;
            // Not through `event`: one entry of the file has a value for each of its series, and was counted as one.
            self.sink.event(row)?;
        }
        Ok(())
    }

    pub(super) fn properties(&mut self, records: &Records) -> Result<(), Fault> {
        self.places.name(self.sink, records, &mut self.summary)?;
        self.summary.rank = self.places.rank(self.sink, records.distributed_info.as_deref())?;
        let (subject, id) = match self.of_many {
            true => (DefinitionKind::Process as u16, self.places.main_process),
            false => (subject::TAPE, 0),
        };
        for (key, value) in &records.properties {
            self.sink.property(subject, id, key, value)?;
        }
        Ok(())
    }

    /// Kineto's times count from 1970-01-01, with `baseTimeNanoseconds` or, before 2024, without. A made-up or
    /// rewritten file whose times are of the last century begins at an instant of its own.
    pub(super) fn clock(&mut self, records: &Records) -> Result<(), Fault> {
        const YEAR_2000_NS: i64 = 946_684_800_000_000_000;
        let first_ns = records.starts.least_ns.saturating_add(self.base_ns);
        if records.starts.least_ns <= records.starts.greatest_ns && first_ns >= YEAR_2000_NS {
            // Not through `event`, as it is no entry of the file.
            let (start_ns, value_ns) = (first_ns, first_ns);
            self.sink.event(ClockPair { start_ns, clock: clock_kind::UNIX, value_ns, ..ClockPair::default() })?;
        }
        Ok(())
    }

    /// What of a broken file is not on the tape is a loss like any other.
    pub(super) fn losses(&mut self, records: &Records) -> Result<(), Fault> {
        let starts = &records.starts;
        if starts.least_ns <= starts.greatest_ns {
            self.summary.see_span(starts.least_ns + self.base_ns, starts.greatest_ns + self.base_ns);
        }
        let (first_ns, last_ns) = self.summary.span_ns.unwrap_or_default();
        let process = self.places.main_process;
        let left_out = self.summary.broken.left_out;
        if left_out > 0 {
            let cause = self.sink.string("broken in the file that was imported, and left out")?;
            let duration_ns = last_ns.abs_diff(first_ns);
            // Not through `event`, as it is no entry of the file.
            self.sink.event(Loss { start_ns: first_ns, duration_ns, process, count: left_out, kind: 0, cause })?;
        }
        if let Some(why) = &self.summary.broken.cut {
            let cause = self.sink.string(&format!("the file that was imported is not whole: {why}"))?;
            self.sink.event(Loss { start_ns: last_ns, process, cause, ..Loss::default() })?;
        }
        Ok(())
    }
}
