//! What of a tape is wanted: sections that hold nothing of it are not decoded, blocks without such sections not read.

use crate::block::SectionInfo;
use crate::event::{Event, Events, KindVisitor, Loss, visit_kinds};
use crate::owners::{Owners, mask_of};
use crate::table::{DefinitionKind, Refers, Row, Table};

/// What of a tape is wanted. The default is everything.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Leave out events that end at or before this time, instants before it.
    pub from_ns: Option<i64>,
    /// Leave out events that begin at or after this time.
    pub to_ns: Option<i64>,
    /// Only these tables ([`crate::Row::KIND`]); all if empty. Losses always come.
    pub kinds: Vec<u16>,
    /// Only events of these processes (their ids); all if empty. Losses always come.
    pub processes: Vec<u32>,
    /// Only these columns of events, by name; all if empty. The others are 0, or what they are where they had to be
    /// read for these or for what else is wanted. Losses always come whole.
    pub columns: Vec<&'static str>,
}

impl Wanted {
    /// Drops the events that are not wanted. `owners` are needed where only some processes are.
    pub fn keep(&self, owners: &Owners, events: &mut Events) {
        struct Keep<'a>(&'a mut Events, &'a Wanted, &'a Owners);
        impl KindVisitor for Keep<'_> {
            type Error = std::convert::Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
                let (table, wanted) = (E::table_mut(self.0), self.1);
                if !wanted.kind::<E>() {
                    *table = E::Table::default();
                    return Ok(());
                }
                let some_times = wanted.some_times();
                let owners = if wanted.some_processes::<E>() { self.2.of_rows(table) } else { Vec::new() };
                if !some_times && owners.is_empty() {
                    return Ok(());
                }
                let overlaps = |row: E| wanted.overlaps(row.start_ns(), row.end_ns());
                let is_kept = |&index: &u32| {
                    let index = index as usize;
                    owners.get(index).is_none_or(|owner| wanted.processes.contains(owner))
                        && (!some_times || overlaps(table.row(index)))
                };
                let rows: Vec<u32> = (0..table.len() as u32).filter(is_kept).collect();
                if rows.len() < table.len() {
                    table.gather(&rows);
                }
                Ok(())
            }
        }
        if self.some_rows() {
            let Ok(()) = visit_kinds(&mut Keep(events, self, owners));
        }
    }

    /// Whether only some rows are wanted.
    pub(crate) fn some_rows(&self) -> bool {
        self.some_times() || !self.kinds.is_empty() || !self.processes.is_empty()
    }

    fn some_times(&self) -> bool {
        self.from_ns.is_some() || self.to_ns.is_some()
    }

    fn some_processes<E: Event>(&self) -> bool {
        !self.processes.is_empty() && E::KIND != Loss::KIND
    }

    /// Whether rows of a kind are wanted.
    pub(crate) fn kind<E: Event>(&self) -> bool {
        self.wants_table(E::KIND)
    }

    fn wants_table(&self, table: u16) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&table) || table == Loss::KIND
    }

    fn overlaps(&self, start_ns: i64, end_ns: i64) -> bool {
        self.from_ns.is_none_or(|from| end_ns > from || start_ns >= from) && self.to_ns.is_none_or(|to| start_ns < to)
    }

    /// Whether a row of an event section can be wanted. One that ends exactly at `from` may be an instant, which is.
    pub(crate) fn may_be_in(&self, section: &SectionInfo) -> bool {
        // Rows of nobody (0) have no bit: they may be in any section.
        let mask = |process| if process == 0 { u64::MAX } else { mask_of(process) };
        let processes = self.processes.iter().fold(0, |all, &process| all | mask(process));
        self.wants_table(section.table)
            && self.from_ns.is_none_or(|from| section.last_ns >= from)
            && self.to_ns.is_none_or(|to| section.first_ns < to)
            && (self.processes.is_empty()
                || section.table == Loss::KIND
                || section.processes == 0
                || section.processes & processes != 0)
    }

    /// Whether a column must be decoded: it is wanted, or decides which rows are.
    pub(crate) fn column<E: Event>(&self, column: usize) -> bool {
        let spec = &E::COLUMNS[column];
        let decides_process = || {
            use DefinitionKind::{Counter, Process, Stream, Thread};
            matches!(spec.refers, Refers::To(Process | Thread | Stream | Counter))
        };
        self.columns.is_empty()
            || E::KIND == Loss::KIND
            || self.columns.contains(&spec.name)
            || self.some_times() && ["start_ns", "duration_ns"].contains(&spec.name)
            || self.some_processes::<E>() && decides_process()
    }
}
