//! Which rows are calls: said once, by their columns; and which processes made some.

use std::convert::Infallible;

use ktape_format::event::{CpuSample, Event, KindVisitor, Lifecycle, OffCpu, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers};
use ktape_format::{Row as _, Table as _};
use rustc_hash::FxHashSet;

use super::Timeline;

impl Timeline {
    /// The ids of the processes that called an API, or that a device worked for.
    pub fn processes_with_calls(&self) -> FxHashSet<u32> {
        const NO_CALLS: [u16; 3] = [CpuSample::KIND, Lifecycle::KIND, OffCpu::KIND];
        let mut processes = FxHashSet::default();
        self.visit_calls(|_, thread, _| {
            processes.insert(self.definitions.process_of_thread(thread));
        });
        processes.extend(self.device_ops().iter().map(|op| self.definitions.process_of_stream(op.stream)));
        let totals = self.events.rollup.rows().filter(|row| !NO_CALLS.contains(&row.kind));
        processes.extend(totals.map(|row| row.process));
        processes
    }

    /// Visits every call with its table, its thread, and its begin and end: those of one table by their beginning. A call is what
    /// has a thread and a function of the API.
    pub(super) fn visit_calls(&self, visit: impl FnMut(u16, u32, (i64, i64))) {
        struct Calls<'a, V>(&'a Timeline, V);
        impl<V: FnMut(u16, u32, (i64, i64))> KindVisitor for Calls<'_, V> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                let column_of = |kind| E::COLUMNS.iter().position(|column| column.refers == Refers::To(kind));
                let (Some(thread), Some(_)) = (column_of(DefinitionKind::Thread), column_of(DefinitionKind::Function))
                else {
                    return Ok(());
                };
                for row in E::table(&self.0.events).rows() {
                    // Ids have 32 bits.
                    (self.1)(E::KIND, row.get(thread) as u32, (row.start_ns(), row.end_ns()));
                }
                Ok(())
            }
        }
        let Ok(()) = visit_kinds(&mut Calls(self, visit));
    }
}
