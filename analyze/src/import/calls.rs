//! Host calls as the tape has them: launches, graph launches, synchronisations, event calls, or plain API calls.
//!
//! Which of them a call is, each importer decides by what its source knows; the call's name comes last.

use ktape_format::event::{Api, Event, EventRecord, EventWait, GraphLaunch, Launch, Sync, sync_kind};

/// What a host call does, as far as its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::import) enum CallName {
    /// Launches a kernel.
    Launch,
    /// Launches a graph.
    GraphLaunch,
    /// Waits; with the `sync_kind` code.
    Synchronize(u8),
    /// Makes a stream wait for an event.
    EventWait,
    /// Records an event.
    EventRecord,
    /// Anything else.
    Other,
}

impl CallName {
    /// What `cudaLaunchKernelExC`, `hipGraphLaunch`, `cuStreamSynchronize`, … do.
    pub(in crate::import) fn of(name: &str) -> CallName {
        let has = |part| name.contains(part);
        if has("GraphLaunch") {
            CallName::GraphLaunch
        } else if has("Launch") && has("Kernel") {
            CallName::Launch
        } else if has("StreamWaitEvent") {
            CallName::EventWait
        } else if has("EventRecord") {
            CallName::EventRecord
        } else if has("Synchronize") {
            CallName::Synchronize(if has("Stream") {
                sync_kind::STREAM
            } else if has("Event") {
                sync_kind::EVENT
            } else {
                sync_kind::CONTEXT
            })
        } else {
            CallName::Other
        }
    }
}

/// What a call is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    Launch,
    GraphLaunch,
    Api,
    /// With the `sync_kind` code.
    Sync(u8),
    EventWait,
    EventRecord,
}

/// All that may be known of a call; 0 for what is not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostCall {
    pub(super) start_ns: i64,
    pub(super) duration_ns: u64,
    pub(super) correlation: u64,
    pub(super) thread: u32,
    pub(super) stack: u32,
    pub(super) function: u32,
    pub(super) result: i32,
    pub(super) args: u32,
    /// The stream that it submitted to, waited for, made wait, or recorded on.
    pub(super) stream: u32,
    pub(super) shape: u32,
    pub(super) graph: u32,
    pub(super) event: u64,
    pub(super) recorded_by: u64,
}

/// Takes events of any kind: an importer, which counts them.
pub(super) trait Keep {
    type Error;
    fn event<E: Event>(&mut self, row: E) -> Result<(), Self::Error>;
}

impl HostCall {
    /// Writes the call as what it is.
    pub(super) fn write<K: Keep>(self, kind: CallKind, into: &mut K) -> Result<(), K::Error> {
        let HostCall { start_ns, duration_ns, correlation, thread, stack, function, result, args, stream, .. } = self;
        let HostCall { shape, graph, event, recorded_by, .. } = self;
        match kind {
            CallKind::Launch => {
                let launch = Launch { start_ns, duration_ns, correlation, thread, stream, shape, ..Launch::default() };
                into.event(Launch { stack, function, result, args, ..launch })
            }
            CallKind::GraphLaunch => {
                let launch = GraphLaunch { start_ns, duration_ns, correlation, thread, ..GraphLaunch::default() };
                into.event(GraphLaunch { stream, graph, stack, function, result, args, ..launch })
            }
            CallKind::Api => {
                into.event(Api { start_ns, duration_ns, correlation, thread, stack, function, result, args })
            }
            CallKind::Sync(kind) => {
                let stream = if kind == sync_kind::CONTEXT { 0 } else { stream };
                let sync = Sync { start_ns, duration_ns, correlation, thread, kind, stream, ..Sync::default() };
                into.event(Sync { event, recorded_by, stack, function, result, args, ..sync })
            }
            CallKind::EventWait => {
                let wait = EventWait { start_ns, duration_ns, correlation, thread, stream, ..EventWait::default() };
                into.event(EventWait { event, recorded_by, stack, function, result, args, ..wait })
            }
            CallKind::EventRecord => {
                let record = EventRecord { start_ns, duration_ns, correlation, thread, ..EventRecord::default() };
                into.event(EventRecord { stream, event, stack, function, result, args, ..record })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_by_name() {
        for name in ["cudaLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel", "cudaLaunchCooperativeKernel"]
        {
            assert_eq!(CallName::of(name), CallName::Launch, "{name}");
        }
        assert_eq!(CallName::of("hipGraphLaunch"), CallName::GraphLaunch);
        assert_eq!(CallName::of("cudaGraphKernelNodeGetParams"), CallName::Other);
        assert_eq!(CallName::of("cudaEventRecordWithFlags"), CallName::EventRecord);
        assert_eq!(CallName::of("cudaStreamWaitEvent"), CallName::EventWait);
        assert_eq!(CallName::of("cudaStreamSynchronize"), CallName::Synchronize(sync_kind::STREAM));
        assert_eq!(CallName::of("hipEventSynchronize"), CallName::Synchronize(sync_kind::EVENT));
        assert_eq!(CallName::of("cudaDeviceSynchronize"), CallName::Synchronize(sync_kind::CONTEXT));
        assert_eq!(CallName::of("cudaEventQuery"), CallName::Other);
    }
}
