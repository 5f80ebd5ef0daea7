//! What the host did: calls of CUDA and of the operating system's libraries, within the ranges of their threads.
//!
//! As with Kineto, what a call did decides before its name: a call with kernels is a launch whatever it is called.

use ktape_format::Sink;
use ktape_format::definition::{Function, api_domain};
use ktape_format::event::{Mark, Range, phase};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;
use serde_json::Map;

use super::Importer;
use super::database::Columns;
use super::details::{Caller, Details, Waited};
use super::device::{Submitted, SubmittedBy};
use super::error::Fault;
use super::nvtx::NamedRange;
use crate::import::Progress;
use crate::import::calls::{CallKind, CallName, HostCall, Keep as _};
use crate::import::stacks::{self, Query, Rank, Span};

/// A call, until it is known in which ranges it was made.
struct Call {
    start_ns: i64,
    duration_ns: u64,
    correlation: u64,
    chain: Option<i64>,
    process: u32,
    thread: u32,
    function: u32,
    result: i32,
    args: u32,
    name: CallName,
    /// Of the operating system's libraries, not of CUDA.
    is_system: bool,
    is_pool: bool,
}

/// A function, and what its name says it does.
#[derive(Clone, Copy)]
struct Called {
    function: u32,
    name: CallName,
    is_pool: bool,
}

/// The stacks of all that happened on threads.
struct Stacks {
    ranges: Vec<u32>,
    marks: Vec<u32>,
    calls: Vec<u32>,
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Writes calls, ranges and marks. `ranges` are those on streams.
    pub(super) fn host(
        &mut self,
        submitted: SubmittedBy,
        ranges: Vec<Range>,
        details: &mut Details,
    ) -> Result<(), Fault> {
        let (mut named, mut marks) = self.nvtx()?;
        named.extend(ranges.into_iter().map(|row| NamedRange { row, frame: 0 }));
        named.sort_by_key(|range| range.row.start_ns);
        marks.sort_by_key(|mark| mark.start_ns);
        let mut calls = Vec::new();
        self.read_calls("CUPTI_ACTIVITY_KIND_RUNTIME", &mut calls)?;
        self.read_calls("OSRT_API", &mut calls)?;
        calls.sort_by_key(|call| call.start_ns);
        let stacks = self.stacks(&named, &marks, &calls)?;
        for (range, stack) in named.into_iter().zip(stacks.ranges) {
            self.event(Range { stack, ..range.row })?;
        }
        for (mark, stack) in marks.into_iter().zip(stacks.marks) {
            self.event(Mark { stack, ..mark })?;
        }
        self.calls(calls, stacks.calls, submitted, details)
    }

    fn read_calls(&mut self, table: &'static str, calls: &mut Vec<Call>) -> Result<(), Fault> {
        let is_system = table == "OSRT_API";
        let known = &["start", "end", "globalTid", "correlationId", "nameId", "name", "returnValue", "callchainId"];
        let columns = Columns { known, dropped: &["eventClass"] };
        let mut functions: FxHashMap<i64, Called> = FxHashMap::default();
        self.each(table, columns, "", |me, row| {
            let (global, correlation) = (row.int(2)?, row.id(3)?.unwrap_or(0));
            let (number, name) = (row.int(4)?, row.plain(5)?);
            let (value, chain) = (row.int(6)?.unwrap_or(0), row.int(7)?);
            let (start_ns, duration_ns) = me.interval(row, 0, 1)?;
            let (thread, process) = me.thread(global)?;
            let known = number.and_then(|number| functions.get(&number).copied());
            let called = match (known, number) {
                (Some(called), _) => called,
                (None, Some(number)) => {
                    if me.strings.text(number).is_none() {
                        me.summary.repair("number of a string that is not in the file, left empty");
                    }
                    let text = me.strings.text(number).unwrap_or("").to_owned();
                    let called = me.function(&text, is_system)?;
                    functions.insert(number, called);
                    called
                }
                (None, None) => me.function(&name.unwrap_or_default(), is_system)?,
            };
            let mut args = Map::new();
            let result = i32::try_from(value).unwrap_or_else(|_| {
                // An address or a size, which `mmap` and `read` return.
                args.insert("returnValue".to_owned(), value.into());
                0
            });
            let args = me.args(row, args)?;
            let Called { function, name, is_pool } = called;
            calls.push(Call {
                start_ns,
                duration_ns,
                correlation,
                chain,
                process,
                thread,
                function,
                result,
                args,
                name,
                is_system,
                is_pool,
            });
            Ok(())
        })
    }

    /// A function by the name that the report has, which ends in the version of CUDA that it is of.
    fn function(&mut self, text: &str, is_system: bool) -> Result<Called, Fault> {
        let plain = if is_system { text } else { without_version(text) };
        let domain = match plain {
            _ if is_system => api_domain::UNKNOWN,
            _ if plain.starts_with("cuda") => api_domain::RUNTIME,
            _ if plain.starts_with("cu") => api_domain::DRIVER,
            _ => api_domain::UNKNOWN,
        };
        let name = self.sink.string(plain)?;
        let function = self.sink.define(Function { name, domain, callback_id: 0 })?;
        if plain != text {
            self.sink.property(DefinitionKind::Function as u16, function, "versioned_name", text)?;
        }
        let name = if is_system { CallName::Other } else { CallName::of(plain) };
        let is_pool = ["MallocAsync", "MallocFromPool", "MemAllocAsync", "MemAllocFromPool", "FreeAsync"];
        Ok(Called { function, name, is_pool: is_pool.iter().any(|part| plain.contains(part)) })
    }

    fn stacks(&mut self, ranges: &[NamedRange], marks: &[Mark], calls: &[Call]) -> Result<Stacks, Fault> {
        let mut spans = Vec::new();
        let mut queries = Vec::with_capacity(marks.len() + calls.len());
        let mut ask = |slot: usize, thread: u32, at_ns: i64| {
            if thread != 0 {
                queries.push(Query { thread, at_ns, slot: slot as u32 });
            }
        };
        for (slot, NamedRange { row, frame }) in ranges.iter().enumerate() {
            let &Range { start_ns, thread, .. } = row;
            if *frame == 0 {
                ask(slot, thread, start_ns);
                continue;
            }
            // What was not closed lasts to the end.
            let end_ns =
                if row.phase == phase::PUSH { i64::MAX } else { start_ns.saturating_add_unsigned(row.duration_ns) };
            let (rank, frame, slot) = (Rank::Annotation, *frame, Some(slot as u32));
            spans.push(Span { thread, start_ns, end_ns, rank, frame, call_stack: 0, slot });
        }
        let (first_mark, first_call) = (ranges.len(), ranges.len() + marks.len());
        marks.iter().enumerate().for_each(|(at, mark)| ask(first_mark + at, mark.thread, mark.start_ns));
        calls.iter().enumerate().for_each(|(at, call)| ask(first_call + at, call.thread, call.start_ns));
        let stacks = stacks::resolve(self.sink, spans, queries, first_call + calls.len())?;
        self.summary.stacks(&stacks);
        let mut all = stacks.by_slot;
        let calls = all.split_off(first_call);
        let marks = all.split_off(first_mark);
        Ok(Stacks { ranges: all, marks, calls })
    }

    fn calls(
        &mut self,
        calls: Vec<Call>,
        stacks: Vec<u32>,
        mut submitted: SubmittedBy,
        details: &mut Details,
    ) -> Result<(), Fault> {
        let mut cuda_chains = self.chains("CUDA_CALLCHAINS")?;
        let mut system_chains = self.chains("OSRT_CALLCHAINS")?;
        for (call, base) in calls.iter().zip(stacks) {
            let chains = if call.is_system { &mut system_chains } else { &mut cuda_chains };
            let stack = self.stack_on(chains, base, call.chain)?;
            let key = (call.process, call.correlation);
            let work = if call.is_system { None } else { submitted.get_mut(&key) };
            if let Some(work) = &work {
                self.summary.matched += u64::from(work.operations);
                self.summary.unmatched -= u64::from(work.operations);
            }
            let work = work.map(|work| Submitted { operations: std::mem::take(&mut work.operations), ..*work });
            if let Some(caller) = details.callers.get_mut(&key).filter(|_| !call.is_system) {
                let &Call { thread, function, result, is_pool, .. } = call;
                *caller = Caller { thread, stack, function, result, is_pool };
            }
            self.call(call, work, details, stack)?;
        }
        self.count_details(details);
        Ok(())
    }

    fn call(&mut self, call: &Call, work: Option<Submitted>, details: &mut Details, stack: u32) -> Result<(), Fault> {
        let &Call { start_ns, duration_ns, correlation, thread, function, result, args, .. } = call;
        let key = (call.process, correlation);
        let on_device = !call.is_system && correlation != 0;
        let sync = details.syncs.get(&key).filter(|_| on_device).copied();
        let recorded = details.events.get(&key).filter(|_| on_device).copied();
        details.found_syncs += u64::from(sync.is_some());
        details.found_events += u64::from(recorded.is_some());
        let kind = match (call.name, &work) {
            _ if call.is_system => CallKind::Api,
            (CallName::GraphLaunch, _) => CallKind::GraphLaunch,
            (_, Some(work)) if work.in_graph => CallKind::GraphLaunch,
            (_, Some(work)) if work.shape != 0 => CallKind::Launch,
            (CallName::Launch, _) => CallKind::Launch,
            (_, Some(_)) => CallKind::Api,
            (name, None) => match (sync.map(|sync| sync.waited(name)), name) {
                (Some(Waited::Host(kind)), _) | (None, CallName::Synchronize(kind)) => CallKind::Sync(kind),
                (Some(Waited::Stream), _) | (None, CallName::EventWait) => CallKind::EventWait,
                (None, CallName::EventRecord) => CallKind::EventRecord,
                (None, _) if recorded.is_some() => CallKind::EventRecord,
                (None, _) => CallKind::Api,
            },
        };
        let Submitted { stream, shape, graph, .. } = work.unwrap_or_default();
        let (sync, recorded) = (sync.unwrap_or_default(), recorded.unwrap_or_default());
        let (stream, event) = match kind {
            CallKind::Launch | CallKind::GraphLaunch | CallKind::Api => (stream, 0),
            CallKind::Sync(_) | CallKind::EventWait => (sync.stream, sync.event),
            CallKind::EventRecord => (recorded.stream, recorded.event),
        };
        let recorded_by = details.recorded_by(call.process, &sync);
        let host_call = HostCall {
            start_ns,
            duration_ns,
            correlation,
            thread,
            stack,
            function,
            result,
            args,
            stream,
            shape,
            graph,
            event,
            recorded_by,
        };
        host_call.write(kind, self)
    }
}

/// `cudaLaunchKernel` of `cudaLaunchKernel_v7000`. The `_v2` of a driver's function is a part of its name.
fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((plain, version))
            if !plain.is_empty() && version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            plain
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_functions_name_has_no_version() {
        for (name, plain) in [
            ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
            ("cudaGetDeviceProperties_v2_v12000", "cudaGetDeviceProperties_v2"),
            ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel_ptsz"),
            ("cuMemAlloc_v2", "cuMemAlloc_v2"),
            ("_v7000", "_v7000"),
            ("", ""),
        ] {
            assert_eq!(without_version(name), plain);
        }
    }
}
