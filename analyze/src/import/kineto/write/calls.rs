//! Host calls become launches, graph launches, synchronisations, event calls, or plain API calls.
//!
//! What a call did decides before its name: a call with kernels is a launch whatever it is called (CUPTI names calls
//! that it does not know `INVALID`), a call with a synchronisation record waited.

use ktape_format::Sink;

use super::super::error::Fault;
use super::super::records::{Call, Records, SyncRecord, Work};
use crate::import::calls::{CallKind, CallName, HostCall};

use super::links::{Links, Submitted};
use super::{Located, Writer};

/// Decides by the call's device work, then its synchronisation record, then its name.
fn kind_of(call: &Call, work: Option<&Submitted>, sync: Option<&SyncRecord>) -> CallKind {
    match (call.name, work) {
        (CallName::GraphLaunch, _) => return CallKind::GraphLaunch,
        (_, Some(work)) if work.in_graph => return CallKind::GraphLaunch,
        (_, Some(work)) if work.kernel.is_some() => return CallKind::Launch,
        // Without a kernel: while a graph is captured, or where the kernel's record was lost.
        (CallName::Launch, _) => return CallKind::Launch,
        (_, Some(_)) => return CallKind::Api,
        (_, None) => {}
    }
    match (sync, call.name) {
        (Some(SyncRecord { kind: Some(kind), .. }), _) => CallKind::Sync(*kind),
        (Some(SyncRecord { kind: None, .. }), _) | (None, CallName::EventWait) => CallKind::EventWait,
        (None, CallName::Synchronize(kind)) => CallKind::Sync(kind),
        (None, CallName::EventRecord) => CallKind::EventRecord,
        (None, _) => CallKind::Api,
    }
}

impl<S: Sink> Writer<'_, S> {
    pub(super) fn calls(
        &mut self,
        records: &Records,
        links: &Links,
        located: &[Located],
        stacks: &[u32],
    ) -> Result<(), Fault> {
        for ((call, work), stack) in records.calls.iter().zip(&links.work_of_call).zip(stacks) {
            let process = self.places.process_of_thread(records, call.thread);
            let work = work.as_ref();
            let sync = records.syncs.get(&call.correlation).filter(|_| call.correlation != 0);
            let first = work.map(|work| work.kernel.unwrap_or(work.first));
            let on = first.map_or(Located::default(), |number| located[number as usize]);
            self.call(records, call, kind_of(call, work, sync), sync, (process, on, first), *stack)?;
        }
        Ok(())
    }

    fn call(
        &mut self,
        records: &Records,
        call: &Call,
        kind: CallKind,
        sync: Option<&SyncRecord>,
        (process, on, first): (u32, Located, Option<u32>),
        stack: u32,
    ) -> Result<(), Fault> {
        let waited_on = match sync {
            Some(sync) => self.places.stream(self.sink, process, records.places.get(sync.place))?,
            None => 0,
        };
        let (event, recorded_by) = sync.map_or((0, 0), |sync| (sync.event, sync.recorded_by));
        let shape = match (kind, call.shape, first.map(|number| &records.device_ops[number as usize].work)) {
            (CallKind::Launch, Some(shape), _) | (CallKind::Launch, None, Some(&Work::Kernel(shape))) => {
                self.sink.define(records.shapes.get(shape))?
            }
            _ => 0,
        };
        let stream = match kind {
            CallKind::Launch | CallKind::GraphLaunch => on.stream,
            CallKind::Sync(_) | CallKind::EventWait => waited_on,
            CallKind::Api | CallKind::EventRecord => 0,
        };
        let event = if kind == CallKind::EventRecord { 0 } else { event };
        let &Call { duration_ns, correlation, function, args, .. } = call;
        let host_call = HostCall {
            start_ns: call.start_ns + self.base_ns,
            duration_ns,
            correlation,
            thread: self.places.thread(call.thread),
            stack,
            function,
            result: 0,
            args,
            stream,
            shape,
            graph: on.graph,
            event,
            recorded_by,
        };
        host_call.write(kind, self)
    }
}
