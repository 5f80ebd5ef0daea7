//! Which ids are defined, which were lost, and which never were.
//!
//! Ids are positions, so those of definitions in a lost block are a gap. Where the next definition shows the gap, its
//! ids are known to be lost. Where none follows, an id beyond the last is taken for one of a lost definition as long as
//! the bytes that were lost could hold so many; a repaired tape defines all of these as empty, and so no id changes.

use std::collections::BTreeMap;
use std::ops::Range;

use ktape_format::block::MAX_ROWS_PER_BYTE;

/// What an id refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Defined,
    Lost,
    Nothing,
}

/// The ids of all definition tables, by number of the table.
#[derive(Debug, Default)]
pub(super) struct AllIds {
    tables: BTreeMap<u16, Ids>,
    /// How many more definitions can have been in what was lost.
    spare: u64,
}

/// The ids of one definition table.
#[derive(Debug, Default)]
struct Ids {
    /// All ids up to this are defined or lost.
    taken: u64,
    lost: Vec<Range<u64>>,
    new: NewIds,
}

/// What the part being checked does to the ids of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NewIds {
    /// The id of its first definition.
    pub(super) first: u64,
    /// How many lost ones come before its own.
    pub(super) lost_before: u64,
    /// How many of its own have ids that an earlier part's ids took for lost.
    pub(super) too_late: u64,
    /// How many lost ones behind its own its rows refer to.
    pub(super) lost_behind: u64,
}

impl AllIds {
    /// So many bytes were lost before what is checked next.
    pub(super) fn lose(&mut self, bytes: u64) {
        self.spare = self.spare.saturating_add(bytes.saturating_mul(MAX_ROWS_PER_BYTE));
    }

    /// A part defines `new` rows, which are the last of `all` up to its end.
    pub(super) fn define(&mut self, table: u16, all: usize, new: usize) {
        let ids = self.tables.entry(table).or_default();
        let (all, new) = (all as u64, new as u64);
        let before = all.saturating_sub(new);
        let lost_before = before.saturating_sub(ids.taken);
        if lost_before > 0 {
            ids.lost.push(ids.taken + 1..before + 1);
            self.spare = self.spare.saturating_sub(lost_before);
        }
        let too_late = ids.taken.saturating_sub(before).min(new);
        ids.new = NewIds { first: before + 1, lost_before, too_late, lost_behind: 0 };
        ids.taken = ids.taken.max(all);
    }

    /// What an id other than 0 refers to.
    pub(super) fn find(&mut self, table: u16, id: u64) -> Found {
        let ids = self.tables.entry(table).or_default();
        if let Some(more) = id.checked_sub(ids.taken).filter(|&more| more > 0) {
            if more > self.spare {
                return Found::Nothing;
            }
            self.spare -= more;
            ids.lost.push(ids.taken + 1..id + 1);
            ids.new.lost_behind += more;
            ids.taken = id;
            return Found::Lost;
        }
        let at = ids.lost.partition_point(|lost| lost.end <= id);
        match ids.lost.get(at) {
            Some(lost) if lost.start <= id => Found::Lost,
            _ => Found::Defined,
        }
    }

    /// What the part being checked did to a table so far.
    pub(super) fn new_of(&self, table: u16) -> NewIds {
        self.tables.get(&table).map(|ids| ids.new).unwrap_or_default()
    }

    /// How many ids of a table are taken.
    pub(super) fn taken(&self, table: u16) -> u64 {
        self.tables.get(&table).map_or(0, |ids| ids.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: u16 = 0x102;

    #[test]
    fn a_gap_before_definitions_is_lost_and_what_is_beyond_all_is_nothing() {
        let mut ids = AllIds::default();
        ids.define(TABLE, 3, 3);
        ids.define(TABLE, 8, 2);
        assert_eq!(ids.new_of(TABLE), NewIds { first: 7, lost_before: 3, too_late: 0, lost_behind: 0 });
        let found: Vec<Found> = (1..=9).map(|id| ids.find(TABLE, id)).collect();
        use Found::{Defined, Lost, Nothing};
        assert_eq!(found, [Defined, Defined, Defined, Lost, Lost, Lost, Defined, Defined, Nothing]);
        assert_eq!(ids.find(TABLE + 1, 1), Nothing, "of a table without definitions");
    }

    #[test]
    fn what_was_lost_can_have_held_eight_definitions_a_byte() {
        let mut ids = AllIds::default();
        ids.define(TABLE, 2, 2);
        ids.lose(1);
        assert_eq!(ids.find(TABLE, 11), Found::Nothing);
        assert_eq!(ids.find(TABLE, 6), Found::Lost);
        assert_eq!(ids.find(TABLE, 5), Found::Lost, "known from now on");
        assert_eq!((ids.new_of(TABLE).lost_behind, ids.taken(TABLE)), (4, 6));
        assert_eq!(ids.find(TABLE + 1, 5), Found::Nothing, "four are left for all tables");
        ids.define(TABLE, 5, 1);
        assert_eq!(ids.new_of(TABLE).too_late, 1, "its id was taken for one that was lost");
        assert_eq!(ids.taken(TABLE), 6);
    }
}
