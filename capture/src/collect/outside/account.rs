//! What became of the calls and samples whose records came: the collector's side of the proof that nothing is missing.
//!
//! Each is settled once, when it becomes a row, under the processor, kind and interval that the eBPF program counted it under:
//! its record says the first, its function the second, its own time the third. `record/tally.rs` puts both sides together.

use ktape_ebpf::wire::tally;
use ktape_format::Sink;
use ktape_format::event::Event;
use rustc_hash::FxHashMap;

/// Under what something is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// What happened at a time, on a processor, of a kind: the number of a table, 0 for no event.
    pub fn new(time_ns: u64, cpu: u16, kind: u16) -> Key {
        Key(tally::interval(time_ns) << 32 | u64::from(cpu) << 16 | u64::from(kind))
    }

    /// The interval's number: see [`tally::interval`].
    pub fn interval(self) -> u64 {
        self.0 >> 32
    }

    /// The processor.
    pub fn cpu(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// The table.
    pub fn kind(self) -> u16 {
        self.0 as u16
    }

    fn of_kind(self, kind: u16) -> Key {
        Key(self.0 & !0xffff | u64::from(kind))
    }
}

/// What became of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is no event.
    NoEvent,
    /// Its row is on the tape, in this table.
    Written(u16),
    /// The tape had no room for its row in this table, and has a loss row for it, or will have.
    Lost(u16),
    /// It was not to be recorded.
    LeftOut,
}

impl Fate {
    /// The better of two rows' fates.
    pub(super) fn or(self, other: Fate) -> Fate {
        if matches!(self, Fate::Written(_)) { self } else { other }
    }
}

/// Gives a row to the sink, and says what became of it.
pub(super) fn give<E: Event, S: Sink>(row: E, sink: &mut S) -> Result<Fate, S::Error> {
    let lost = sink.lost_events();
    sink.event(row)?;
    Ok(if sink.lost_events() == lost { Fate::Written(E::KIND) } else { Fate::Lost(E::KIND) })
}

/// How many had which fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// See [`Fate::Written`].
    pub written: u64,
    /// See [`Fate::Lost`].
    pub lost: u64,
    /// See [`Fate::LeftOut`].
    pub left_out: u64,
    /// Seen as another kind, and a row of this one: a launch into a stream that is captured is a call and no launch. Negative for the
    /// kind that they were seen as.
    pub came: i64,
}

/// What was settled since it was looked at last.
#[derive(Debug, Default)]
pub(super) struct Account {
    settled: FxHashMap<Key, Settled>,
}

impl Account {
    /// Settles one call. Returns 1 if it is an event.
    pub(super) fn settle(&mut self, key: Key, fate: Fate) -> u64 {
        if fate == Fate::NoEvent {
            return 0;
        }
        let key = match fate {
            Fate::Written(kind) | Fate::Lost(kind) if kind != key.kind() => {
                self.settled.entry(key).or_default().came -= 1;
                let key = key.of_kind(kind);
                self.settled.entry(key).or_default().came += 1;
                key
            }
            _ => key,
        };
        let settled = self.settled.entry(key).or_default();
        match fate {
            Fate::NoEvent => {}
            Fate::Written(_) => settled.written += 1,
            Fate::Lost(_) => settled.lost += 1,
            Fate::LeftOut => settled.left_out += 1,
        }
        u64::from(fate != Fate::LeftOut)
    }

    pub(super) fn take(&mut self) -> impl Iterator<Item = (Key, Settled)> {
        self.settled.drain()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_what_it_is_made_of() {
        let key = Key::new(5 << tally::INTERVAL_SHIFT | 77, 8191, 15);
        assert_eq!((key.interval(), key.cpu(), key.kind()), (5, 8191, 15));
    }

    #[test]
    fn each_is_settled_once() {
        let (a, b) = (Key::new(0, 0, 1), Key::new(0, 1, 1));
        let mut account = Account::default();
        let fates = [Fate::Written(1), Fate::Lost(1), Fate::NoEvent, Fate::LeftOut, Fate::Written(1)];
        assert_eq!(fates.map(|fate| account.settle(a, fate)), [1, 1, 0, 0, 1]);
        account.settle(b, Fate::Lost(1));
        let mut taken: Vec<_> = account.take().collect();
        taken.sort_by_key(|(key, _)| *key);
        let settled = |written, lost, left_out| Settled { written, lost, left_out, came: 0 };
        assert_eq!(taken, [(a, settled(2, 1, 1)), (b, settled(0, 1, 0))]);
        assert_eq!(account.take().count(), 0);
    }

    #[test]
    fn a_call_whose_row_is_in_another_table_is_seen_there() {
        let mut account = Account::default();
        let fates = [Fate::Written(1), Fate::Written(3), Fate::Lost(3)];
        assert_eq!(fates.map(|fate| account.settle(Key::new(0, 2, 1), fate)), [1, 1, 1]);
        let mut taken: Vec<_> = account.take().collect();
        taken.sort_by_key(|(key, _)| *key);
        let launches = Settled { written: 1, came: -2, ..Settled::default() };
        let calls = Settled { written: 1, lost: 1, came: 2, ..Settled::default() };
        assert_eq!(taken, [(Key::new(0, 2, 1), launches), (Key::new(0, 2, 3), calls)]);
    }
}
