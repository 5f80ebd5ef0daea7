//! What synchronisation and event records tell of the host call with their correlation. They are no events of their
//! own: their times are the call's, but for what CUPTI needs to notice it.

use ktape_format::Sink;
use ktape_format::event::sync_kind;
use rustc_hash::FxHashMap;

use super::database::Columns;
use super::error::Fault;
use super::places::Place;
use super::{CallKey, Importer};
use crate::import::{CallName, Progress};

/// A synchronisation record. What it says is there only where it says it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncRecord {
    /// `syncType`.
    kind: i64,
    pub(super) stream: u32,
    pub(super) event: u64,
    /// Which record of that event it waited for; 0 for not known.
    record: u64,
    has_event: bool,
}

/// Where an event was recorded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EventDetail {
    pub(super) stream: u32,
    pub(super) event: u64,
}

/// Who called to allocate or free memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Caller {
    pub(super) thread: u32,
    pub(super) stack: u32,
    pub(super) function: u32,
    pub(super) result: i32,
    /// Whether the call takes from a pool, in the order of a stream.
    pub(super) is_pool: bool,
}

/// What is told of host calls, and asked of them, by correlation.
#[derive(Default)]
pub(super) struct Details {
    pub(super) syncs: FxHashMap<CallKey, SyncRecord>,
    pub(super) events: FxHashMap<CallKey, EventDetail>,
    /// The correlation of the call that made a record, by process and the record's number.
    recorded_by: FxHashMap<(u32, u64), u64>,
    pub(super) callers: FxHashMap<CallKey, Caller>,
    /// How many rows found their call.
    pub(super) found_syncs: u64,
    pub(super) found_events: u64,
}

/// What a synchronisation waited for, or made a stream wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// With the `sync_kind` code.
    Host(u8),
    Stream,
}

impl SyncRecord {
    /// What kind of call this describes. The call's name says it where it can. `syncType` alone does not: it follows
    /// CUPTI's numbers (1 event, 2 stream waits, 3 stream, 4 context) in some versions, and is 2 for
    /// `cudaStreamSynchronize` or 1 for `cudaDeviceSynchronize` in others; so a type is believed only where the record
    /// has what it speaks of.
    pub(super) fn waited(&self, name: CallName) -> Waited {
        match name {
            CallName::Synchronize(kind) => return Waited::Host(kind),
            CallName::EventWait => return Waited::Stream,
            _ => {}
        }
        match (self.kind, self.has_event, self.stream != 0) {
            (2, true, _) => Waited::Stream,
            (_, true, _) => Waited::Host(sync_kind::EVENT),
            (1..=4, false, true) => Waited::Host(sync_kind::STREAM),
            (1..=4, false, false) => Waited::Host(sync_kind::CONTEXT),
            _ => Waited::Host(sync_kind::UNKNOWN),
        }
    }
}

impl Details {
    /// The call that made the record which a synchronisation waited for; 0 for not known.
    pub(super) fn recorded_by(&self, process: u32, sync: &SyncRecord) -> u64 {
        self.recorded_by.get(&(process, sync.record)).copied().unwrap_or(0)
    }
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Reads the records that describe calls.
    pub(super) fn details(&mut self) -> Result<Details, Fault> {
        let mut details = Details::default();
        let known = &[
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "eventId",
            "eventSyncId",
            "syncType",
            "deprecatedSyncType",
        ];
        let columns = Columns { known, dropped: &["start", "end", "greenContextId"] };
        self.each("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns, "", |me, row| {
            let (device, context, stream) = (row.need_u32(0)?, row.int(1)?.unwrap_or(0) as u64, row.id(2)?);
            let (correlation, process) = (row.id(3)?.unwrap_or(0), me.process_key(row.int(4)?));
            let (event, record) = (row.id(5)?, row.id(6)?.unwrap_or(0));
            let kind = row.int(7)?.or(row.int(8)?).unwrap_or(0);
            let key = (me.process(process)?, correlation);
            let stream = match stream {
                Some(stream) => me.stream(Place { process, device, context, stream })?,
                None => 0,
            };
            let (event, has_event) = (event.unwrap_or(0), event.is_some());
            details.syncs.insert(key, SyncRecord { kind, stream, event, record, has_event });
            Ok(())
        })?;
        let known = &["deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId"];
        let columns = Columns { known, dropped: &["timestamp", "greenContextId"] };
        self.each("CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns, "", |me, row| {
            let (device, context, stream) = (row.need_u32(0)?, row.int(1)?.unwrap_or(0) as u64, row.need(2)? as u64);
            let (correlation, process) = (row.id(3)?.unwrap_or(0), me.process_key(row.int(4)?));
            let (event, record) = (row.id(5)?.unwrap_or(0), row.id(6)?.unwrap_or(0));
            let key = (me.process(process)?, correlation);
            let stream = me.stream(Place { process, device, context, stream })?;
            if record != 0 {
                details.recorded_by.insert((key.0, record), correlation);
            }
            details.events.insert(key, EventDetail { stream, event });
            Ok(())
        })?;
        // 0 is no correlation.
        details.syncs.retain(|(_, correlation), _| *correlation != 0);
        details.events.retain(|(_, correlation), _| *correlation != 0);
        Ok(details)
    }

    /// Counts the records that no call was found for.
    pub(super) fn count_details(&mut self, details: &Details) {
        for (table, found) in [
            ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", details.found_syncs),
            ("CUPTI_ACTIVITY_KIND_CUDA_EVENT", details.found_events),
        ] {
            // Of two calls with one correlation each found the same record.
            let rows = self.good_rows(table);
            self.kept("detail of a call", found.min(rows));
            self.not_kept("record without its call,", table, rows.saturating_sub(found));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for() {
        let record = |kind, has_event, stream| SyncRecord { kind, has_event, stream, ..SyncRecord::default() };
        let query = CallName::of("cudaEventQuery");
        assert_eq!(record(1, true, 0).waited(query), Waited::Host(sync_kind::EVENT));
        assert_eq!(record(2, true, 7).waited(query), Waited::Stream);
        assert_eq!(record(3, false, 7).waited(query), Waited::Host(sync_kind::STREAM));
        assert_eq!(record(4, false, 0).waited(query), Waited::Host(sync_kind::CONTEXT));
        assert_eq!(record(0, false, 0).waited(query), Waited::Host(sync_kind::UNKNOWN));
        // 2024.5, schema 3.13, and 2025.1, schema 3.17.
        let device = CallName::of("cudaDeviceSynchronize");
        assert_eq!(record(1, false, 0).waited(device), Waited::Host(sync_kind::CONTEXT));
        let stream = CallName::of("cudaStreamSynchronize");
        assert_eq!(record(2, false, 7).waited(stream), Waited::Host(sync_kind::STREAM));
    }
}
