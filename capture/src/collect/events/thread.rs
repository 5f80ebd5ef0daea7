//! A thread, and its calls that are under way.
//!
//! A thread's calls nest as its stack does: a call within another has a smaller stack pointer. So a list, innermost last, is
//! enough; a call whose return was never seen (the ring buffer was full, `longjmp`, an exception) is found out by the next call
//! that can't lie within it.

use std::collections::hash_map::Entry;

use ktape_ebpf::wire::{Call, Return};
use ktape_format::Sink;
use ktape_format::definition::{self, property};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;

use super::super::inside::device::Called;
use super::account::Key;
use super::open::Open;

/// A call that has not returned yet.
pub(super) struct Pending {
    pub(super) function: u32,
    pub(super) stack_pointer: u64,
    pub(super) start_ns: i64,
    /// What it is counted under.
    pub(super) key: Key,
    /// CUPTI's number of the call; 0 where it was not told.
    pub(super) cupti: u32,
    pub(super) open: Open,
}

/// A thread.
pub(super) struct Thread {
    /// Its definition.
    pub(super) id: u32,
    pub(super) tid: u32,
    /// Calls since they were counted last.
    pub(super) calls: u64,
    pending: Vec<Pending>,
    /// The last call, if it may have the device do something and its CUPTI number was not told yet.
    pub(super) last: Option<Called>,
    /// The current context and those below it; empty where the thread has set none since the recording began.
    pub(super) contexts: Vec<u64>,
    /// The runtime's launch that it may be in: host stub or handle, and stack pointer.
    pub(super) runtime_launch: Option<(u64, u64)>,
}

impl Thread {
    /// A thread of the process with this id and number; it is defined when it is first met.
    pub(super) fn of<'a, S: Sink>(
        threads: &'a mut FxHashMap<u32, Thread>,
        (process, pid): (u32, u32),
        tid: u32,
        sink: &mut S,
    ) -> Result<&'a mut Thread, S::Error> {
        Ok(match threads.entry(tid) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(Thread::begin(process, pid, tid, sink)?),
        })
    }

    /// Defines a thread. Its name is what it is called by now.
    fn begin<S: Sink>(process: u32, pid: u32, tid: u32, sink: &mut S) -> Result<Thread, S::Error> {
        let id = sink.define(definition::Thread { process, tid: i64::from(tid) })?;
        if let Ok(name) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm")) {
            sink.property(DefinitionKind::Thread as u16, id, property::NAME, name.trim_end())?;
        }
        Ok(Thread { id, tid, calls: 0, pending: Vec::new(), last: None, contexts: Vec::new(), runtime_launch: None })
    }

    /// A launch that is out of scope: what comes of it is as well.
    pub(super) fn leave_out(&mut self, call: &Call, key: Key, has_return: bool) {
        self.last = Some(Called::left_out(call.time_ns));
        if has_return {
            let (function, stack_pointer, start_ns) = (call.function, call.stack_pointer, call.time_ns as i64);
            self.push(Pending { function, stack_pointer, start_ns, key, cupti: 0, open: Open::Nothing });
        }
    }

    pub(super) fn push(&mut self, pending: Pending) {
        self.pending.push(pending);
    }

    /// The innermost call, if one with this stack pointer can't lie within it.
    pub(super) fn take_abandoned(&mut self, stack_pointer: u64) -> Option<Pending> {
        self.pending.pop_if(|pending| pending.stack_pointer <= stack_pointer)
    }

    /// The call that has returned.
    pub(super) fn take_returned(&mut self, returned: &Return) -> Option<Pending> {
        let is_it = |pending: &mut Pending| {
            pending.function == returned.function && pending.stack_pointer.wrapping_add(8) == returned.stack_pointer
        };
        self.pending.pop_if(is_it)
    }

    /// Learns CUPTI's number of the last call, if that was not entered before this. Returns the call, if it may have the device do
    /// something.
    pub(super) fn correlated(&mut self, id: u32, not_before_ns: u64) -> Option<Called> {
        let called = self.last.take().filter(|called| called.start_ns as u64 >= not_before_ns)?;
        if let Some(pending) =
            self.pending.last_mut().filter(|pending| pending.open.correlation() == called.correlation)
        {
            pending.cupti = id;
        }
        Some(called)
    }

    /// The calls that have not returned, outermost first.
    pub(super) fn pending(&self) -> &[Pending] {
        &self.pending
    }

    /// Takes them.
    pub(super) fn take_all(&mut self) -> Vec<Pending> {
        std::mem::take(&mut self.pending)
    }
}
