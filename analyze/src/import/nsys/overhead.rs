//! What the profiler itself took of the threads' time, and what CUDA did because it was the first time.

use ktape_format::Sink;
use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::Slice;
use serde_json::Map;

use super::Importer;
use super::database::Columns;
use super::error::Fault;
use crate::import::Progress;

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Writes both tables of overhead.
    pub(super) fn overhead(&mut self) -> Result<(), Fault> {
        let mut slices: Vec<Slice> = Vec::new();
        let columns =
            Columns { known: &["start", "end", "globalTid", "nameId"], dropped: &["eventClass", "correlationId"] };
        for table in ["CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD"] {
            self.each(table, columns, "", |me, row| {
                let (global, name) = (row.int(2)?, row.need(3)?);
                let (start_ns, duration_ns) = me.interval(row, 0, 1)?;
                let (thread, _) = me.thread(global)?;
                let (kind, name) = (frame_kind::OVERHEAD, me.string(name)?);
                let frame = me.sink.define(Frame { kind, name, file: 0, line: 0 })?;
                let args = me.args(row, Map::new())?;
                slices.push(Slice { start_ns, duration_ns, thread, frame, sequence: -1, args });
                Ok(())
            })?;
        }
        slices.sort_by_key(|slice| slice.start_ns);
        slices.into_iter().try_for_each(|slice| self.event(slice))
    }
}
