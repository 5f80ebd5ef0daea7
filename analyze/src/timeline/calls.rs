//! Which rows are calls: said once, by their columns.

use std::convert::Infallible;

use ktape_format::Table as _;
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::table::{DefinitionKind, Refers};

use super::Timeline;

impl Timeline {
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
