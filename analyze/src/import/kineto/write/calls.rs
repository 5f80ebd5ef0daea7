//! Host calls become launches, graph launches, synchronisations, event calls, or plain API calls.
//!
//! What a call did decides before its name: a call with kernels is a launch whatever it is called (CUPTI names calls
//! that it does not know `INVALID`), a call with a synchronisation record waited.

use ktape_format::Sink;
use ktape_format::event::{Api, EventRecord, EventWait, GraphLaunch, Launch, Sync, sync_kind};

use super::super::category::CallName;
use super::super::error::Fault;
use super::super::records::{Call, Records, SyncRecord, Work};
use super::{Located, Submitted, SubmittedBy, Writer};

/// What a call is written as.
enum Kind {
    Launch,
    GraphLaunch,
    Api,
    /// With the `sync_kind` code.
    Sync(u8),
    EventWait,
    EventRecord,
}

/// Decides by the call's device work, then its synchronisation record, then its name.
fn kind_of(call: &Call, work: Option<&Submitted>, sync: Option<&SyncRecord>) -> Kind {
    match (call.name, work) {
        (CallName::GraphLaunch, _) => return Kind::GraphLaunch,
        (_, Some(work)) if work.in_graph => return Kind::GraphLaunch,
        (_, Some(work)) if work.kernel.is_some() => return Kind::Launch,
        // Without a kernel: while a graph is captured, or where the kernel's record was lost.
        (CallName::Launch, _) => return Kind::Launch,
        (_, Some(_)) => return Kind::Api,
        (_, None) => {}
    }
    match (sync, call.name) {
        (Some(SyncRecord { kind: Some(kind), .. }), _) => Kind::Sync(*kind),
        (Some(SyncRecord { kind: None, .. }), _) | (None, CallName::EventWait) => Kind::EventWait,
        (None, CallName::Synchronize(kind)) => Kind::Sync(kind),
        (None, CallName::EventRecord) => Kind::EventRecord,
        (None, _) => Kind::Api,
    }
}

impl<S: Sink> Writer<'_, S> {
    pub(super) fn calls(
        &mut self,
        records: &Records,
        submitted: &SubmittedBy,
        located: &[Located],
        stacks: &[u32],
    ) -> Result<(), Fault> {
        for (call, stack) in records.calls.iter().zip(stacks) {
            let process = self.process_of_thread(records, call.thread);
            let work = submitted.get(&(process, call.correlation));
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
        kind: Kind,
        sync: Option<&SyncRecord>,
        (process, on, first): (u32, Located, Option<u32>),
        stack: u32,
    ) -> Result<(), Fault> {
        let start_ns = call.start_ns + self.base_ns;
        let &Call { duration_ns, correlation, function, args, .. } = call;
        let (thread, result) = (self.places.thread(call.thread), 0);
        let Located { stream, graph } = on;
        let waited_on = match sync {
            Some(sync) => self.places.stream(self.sink, process, records.places.get(sync.place))?,
            None => 0,
        };
        let (event, recorded_by) = sync.map_or((0, 0), |sync| (sync.event, sync.recorded_by));
        match kind {
            Kind::Launch => {
                let kernel = first.map(|number| &records.device_ops[number as usize].work);
                let shape = match (call.shape, kernel) {
                    (Some(shape), _) | (None, Some(&Work::Kernel(shape))) => {
                        self.sink.define(records.shapes.get(shape))?
                    }
                    (None, _) => 0,
                };
                let launch = Launch { start_ns, duration_ns, correlation, thread, stream, shape, ..Launch::default() };
                self.event(Launch { stack, function, result, args, ..launch })
            }
            Kind::GraphLaunch => {
                let launch =
                    GraphLaunch { start_ns, duration_ns, correlation, thread, stream, graph, ..Default::default() };
                self.event(GraphLaunch { stack, function, result, args, ..launch })
            }
            Kind::Api => self.event(Api { start_ns, duration_ns, correlation, thread, stack, function, result, args }),
            Kind::Sync(kind) => {
                let stream = if kind == sync_kind::CONTEXT { 0 } else { waited_on };
                let sync = Sync { start_ns, duration_ns, correlation, thread, kind, stream, ..Sync::default() };
                self.event(Sync { event, recorded_by, stack, function, result, args, ..sync })
            }
            Kind::EventWait => {
                let wait =
                    EventWait { start_ns, duration_ns, correlation, thread, stream: waited_on, ..Default::default() };
                self.event(EventWait { event, recorded_by, stack, function, result, args, ..wait })
            }
            Kind::EventRecord => {
                let record = EventRecord { start_ns, duration_ns, correlation, thread, ..EventRecord::default() };
                self.event(EventRecord { stack, function, result, args, ..record })
            }
        }
    }
}
