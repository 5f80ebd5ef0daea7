//! The proof that nothing is missing: seen = written + lost, by processor, kind and interval.
//!
//! The eBPF programs count what they see (`capture-ebpf/src/tally.rs`), the collector what became of it
//! (`collect/events/account.rs`), both by the interval of the call's own time. Here the two are held against each other, and
//! what is settled goes onto the tape as [`Tally`] rows.
//!
//! The programs' counters only rise, and an interval's slot is another's nine minutes later. Every second the slots of the present
//! interval and of the last ones are read, and what a slot holds more than the last time belongs to its interval: so what a
//! program counts is told once, however late it does. A slot that is about to be another interval's is read once more before.
//! Only a recorder, or a program, that is held up for nine minutes puts calls down to another interval than their own; the sums
//! stay true, and the intervals do not add up, which `analyze verify` says.
//!
//! An interval is told when it has been over for one more, and all that was seen in it is settled: a call whose return is
//! awaited is not. Then comes a row of kind 0: the account of this interval is closed. So whatever the recorder's end, each
//! row on the tape is true, and what has no closing row is not proven.

use std::collections::BTreeMap;

use ktape_ebpf::wire::tally::{self, INTERVAL_SHIFT, SLOTS, Slot};
use ktape_format::TapeError;
use ktape_format::event::{CpuSample, Mark, OffCpu, Range, Tally};
use ktape_format::table::Row as _;

use super::inside::Inside;
use super::output::Output;
use crate::collect::events::{Key, Settled};
use crate::collect::inside::rings::Rings;
use crate::kernel::programs::{Kernel, KernelError};

const _: () = assert!(tally::CPU_SAMPLE == CpuSample::KIND as u32 && tally::OFF_CPU == OffCpu::KIND as u32);
const _: () = assert!(tally::RANGE == Range::KIND as u32 && tally::MARK == Mark::KIND as u32);

/// So many intervals before the present one are read at each look.
const READ_BACK: u64 = 4;
/// A slot is read a last time when its next interval is so near.
const READ_AHEAD: u64 = 2;

/// What is not on the tape yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    seen: u64,
    settled: Settled,
}

impl Counts {
    fn accounted(&self) -> u64 {
        self.settled.written + self.settled.lost + self.settled.left_out
    }
}

/// Who counts what is seen.
#[derive(Clone, Copy)]
pub(super) struct Counting<'a> {
    /// The eBPF programs, by processor.
    pub(super) kernel: Option<&'a Kernel>,
    /// Processes themselves, in their rings: all together stand for one processor, [`tally::NO_CPU`].
    pub(super) rings: Option<&'a Rings>,
}

impl<'a> Counting<'a> {
    pub(super) fn of(kernel: impl Into<Option<&'a Kernel>>, inside: Option<&'a Inside>) -> Counting<'a> {
        Counting { kernel: kernel.into(), rings: inside.map(|inside| &inside.rings) }
    }
}

/// Both sides of the account.
pub(super) struct Tallies {
    /// What the slots held when they were read last, by slot and processor.
    held: Vec<Vec<Slot>>,
    /// The same of the rings.
    held_of_rings: Vec<Slot>,
    untold: BTreeMap<u64, BTreeMap<Key, Counts>>,
    /// The interval of the last look.
    looked: u64,
}

impl Tallies {
    pub(super) fn new(now_ns: i64) -> Tallies {
        let now = tally::interval(now_ns as u64);
        let untold = BTreeMap::from([(now, BTreeMap::new())]);
        Tallies {
            held: vec![Vec::new(); SLOTS as usize],
            held_of_rings: vec![Slot::default(); SLOTS as usize],
            untold,
            looked: now,
        }
    }

    /// Reads the programs' counters and takes in what was settled. Everything that was taken from the ring buffer was counted
    /// before this reads, so no more is ever settled than seen.
    pub(super) fn look(
        &mut self,
        counting: Counting<'_>,
        settled: impl Iterator<Item = (Key, Settled)>,
        now_ns: i64,
    ) -> Result<(), KernelError> {
        self.look_back(READ_BACK, counting, settled, now_ns)
    }

    /// As [`Tallies::look`], for the last time: what was counted late is in any slot.
    pub(super) fn look_at_all(
        &mut self,
        counting: Counting<'_>,
        settled: impl Iterator<Item = (Key, Settled)>,
        now_ns: i64,
    ) -> Result<(), KernelError> {
        self.look_back(SLOTS.into(), counting, settled, now_ns)
    }

    fn look_back(
        &mut self,
        back: u64,
        counting: Counting<'_>,
        settled: impl Iterator<Item = (Key, Settled)>,
        now_ns: i64,
    ) -> Result<(), KernelError> {
        for interval in self.due(now_ns, back) {
            if let Some(kernel) = counting.kernel {
                self.read(interval, &kernel.tallies(interval)?);
            }
            if let Some(rings) = counting.rings {
                self.read_rings(interval, rings.slot(interval));
            }
        }
        self.settle(settled);
        Ok(())
    }

    /// The intervals whose slots are to be read, this one and so many before.
    fn due(&mut self, now_ns: i64, back: u64) -> Vec<u64> {
        let now = tally::interval(now_ns as u64).max(self.looked);
        (self.looked + 1..=now).for_each(|interval| {
            self.untold.entry(interval).or_default();
        });
        let first = self.looked.min(now.saturating_sub(back));
        let first = first.max((now + READ_AHEAD + 1).saturating_sub(u64::from(SLOTS)));
        self.looked = now;
        let ahead = (now + READ_AHEAD).checked_sub(u64::from(SLOTS));
        ahead.into_iter().chain(first..=now).collect()
    }

    fn read(&mut self, interval: u64, slots: &[Slot]) {
        let held = &mut self.held[(interval % u64::from(SLOTS)) as usize];
        held.resize(slots.len(), Slot::default());
        for ((cpu, slot), held) in slots.iter().enumerate().zip(held) {
            take_in(&mut self.untold, interval, cpu as u16, slot, held);
        }
    }

    fn read_rings(&mut self, interval: u64, slot: Slot) {
        let held = &mut self.held_of_rings[(interval % u64::from(SLOTS)) as usize];
        take_in(&mut self.untold, interval, tally::NO_CPU, &slot, held);
    }

    fn settle(&mut self, settled: impl Iterator<Item = (Key, Settled)>) {
        for (key, new) in settled {
            let counts = self.untold.entry(key.interval()).or_default().entry(key).or_default();
            counts.settled.written += new.written;
            counts.settled.lost += new.lost;
            counts.settled.left_out += new.left_out;
            counts.seen = counts.seen.saturating_add_signed(new.came);
        }
    }

    /// Writes the accounts of the intervals that are over and settled.
    pub(super) fn tell(&mut self, tape: &mut Output) -> Result<(), TapeError> {
        let is_over = |interval: u64| interval + 2 <= self.looked;
        let is_settled = |keys: &BTreeMap<Key, Counts>| keys.values().all(|counts| counts.seen == counts.accounted());
        let ready = self.untold.iter().filter(|(interval, keys)| is_over(**interval) && is_settled(keys));
        let ready: Vec<u64> = ready.map(|(&interval, _)| interval).collect();
        for interval in ready {
            if !self.tell_interval(interval, tape)? {
                // There is no room now: the next look tells it.
                break;
            }
        }
        Ok(())
    }

    /// Writes what is settled by now and closes no account: for a tape that ends before the recording does. What is told here
    /// is not told again; the rest, and the closing rows, are on the next tape.
    pub(super) fn tell_settled(&mut self, tape: &mut Output) -> Result<(), TapeError> {
        for (&interval, keys) in &mut self.untold {
            for (&key, counts) in keys {
                let settled = Counts { seen: counts.accounted().min(counts.seen), settled: counts.settled };
                if settled.accounted() > 0 && tape.offer(row(interval, key, &settled))? {
                    *counts = Counts { seen: counts.seen - settled.seen, settled: Settled::default() };
                }
            }
        }
        Ok(())
    }

    /// Writes and closes all accounts, as they are. What is not settled by the end had no process that it could be put down to: it
    /// is told as lost.
    pub(super) fn finish(&mut self, tape: &mut Output) -> Result<(), TapeError> {
        let intervals: Vec<u64> = self.untold.keys().copied().collect();
        for interval in intervals {
            for counts in self.untold.get_mut(&interval).into_iter().flat_map(BTreeMap::values_mut) {
                counts.settled.lost += counts.seen.saturating_sub(counts.accounted());
            }
            if !self.tell_interval(interval, tape)? {
                tape.seal()?;
                self.tell_interval(interval, tape)?;
            }
        }
        Ok(())
    }

    /// False if there was no room for all of it.
    fn tell_interval(&mut self, interval: u64, tape: &mut Output) -> Result<bool, TapeError> {
        let Some(keys) = self.untold.get_mut(&interval) else { return Ok(true) };
        while let Some(first) = keys.first_entry() {
            if *first.get() != Counts::default() && !tape.offer(row(interval, *first.key(), first.get()))? {
                return Ok(false);
            }
            first.remove();
        }
        if !tape.offer(row(interval, Key::default(), &Counts::default()))? {
            return Ok(false);
        }
        self.untold.remove(&interval);
        Ok(true)
    }
}

/// Puts down to an interval what its slot holds more than when it was read last.
fn take_in(untold: &mut BTreeMap<u64, BTreeMap<Key, Counts>>, interval: u64, cpu: u16, slot: &Slot, held: &mut Slot) {
    // What is of kind 0 is no event.
    for kind in 1..tally::KINDS {
        let (seen, lost) =
            (slot.seen[kind].saturating_sub(held.seen[kind]), slot.lost[kind].saturating_sub(held.lost[kind]));
        if seen > 0 || lost > 0 {
            let key = Key::new(interval << INTERVAL_SHIFT, cpu, kind as u16);
            let counts = untold.entry(interval).or_default().entry(key).or_default();
            counts.seen += seen;
            counts.settled.lost += lost;
        }
    }
    *held = *slot;
}

fn row(interval: u64, key: Key, counts: &Counts) -> Tally {
    let Counts { seen, settled: Settled { written, lost, left_out, .. } } = *counts;
    Tally {
        start_ns: (interval << INTERVAL_SHIFT) as i64,
        duration_ns: 1 << INTERVAL_SHIFT,
        cpu: key.cpu().into(),
        kind: key.kind(),
        seen,
        written,
        lost,
        left_out,
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::{Options, Tape, Wanted};

    use super::*;

    const LAUNCH: usize = 1;

    fn at(interval: u64) -> i64 {
        (interval << INTERVAL_SHIFT) as i64 + 5
    }

    fn slot(seen: u64, lost: u64) -> Slot {
        let mut slot = Slot::default();
        (slot.seen[LAUNCH], slot.lost[LAUNCH]) = (seen, lost);
        slot
    }

    fn written(interval: u64, cpu: u16, written: u64) -> (Key, Settled) {
        (Key::new(at(interval) as u64, cpu, LAUNCH as u16), Settled { written, ..Settled::default() })
    }

    /// The rows that `write` puts on a tape: interval, processor, kind, seen, written, lost.
    fn rows(write: impl FnOnce(&mut Output)) -> Vec<(u64, u32, u16, u64, u64, u64)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tape = Output::tape(file.path(), &Options::batch("test")).unwrap();
        write(&mut tape);
        assert_eq!(tape.finish().failure, None);
        let contents = Tape::open(file.path()).unwrap().read(&Wanted::default()).unwrap();
        use ktape_format::Table as _;
        let rows = contents.events.tally.rows();
        rows.map(|row| (tally::interval(row.start_ns as u64), row.cpu, row.kind, row.seen, row.written, row.lost))
            .collect()
    }

    #[test]
    fn an_interval_is_told_once_it_is_over_and_settled() {
        let mut tallies = Tallies::new(at(10));
        assert_eq!(rows(|tape| tallies.tell(tape).unwrap()), []);
        tallies.read(10, &[slot(5, 1), slot(2, 0)]);
        tallies.settle([written(10, 0, 4), written(10, 1, 1)].into_iter());
        tallies.due(at(12), READ_BACK);
        // One call of the second processor has not returned yet; the interval behind it does not wait for it.
        assert_eq!(rows(|tape| tallies.tell(tape).unwrap()), []);
        tallies.due(at(13), READ_BACK);
        assert_eq!(rows(|tape| tallies.tell(tape).unwrap()), [(11, 0, 0, 0, 0, 0)]);
        tallies.settle([written(10, 1, 1)].into_iter());
        let told = rows(|tape| tallies.tell(tape).unwrap());
        assert_eq!(told, [(10, 0, 1, 5, 4, 1), (10, 1, 1, 2, 2, 0), (10, 0, 0, 0, 0, 0)]);
        assert_eq!(rows(|tape| tallies.tell(tape).unwrap()), []);
    }

    #[test]
    fn what_is_counted_late_is_told_of_its_own_interval_and_nothing_twice() {
        let mut tallies = Tallies::new(at(10));
        tallies.read(10, &[slot(5, 0)]);
        tallies.settle([written(10, 0, 5)].into_iter());
        tallies.due(at(12), READ_BACK);
        assert_eq!(rows(|tape| tallies.tell(tape).unwrap()).len(), 2);
        // The slot is read a last time before it is interval 74's.
        assert_eq!(tallies.due(at(72), READ_BACK).first(), Some(&10));
        tallies.read(10, &[slot(6, 0)]);
        tallies.settle([written(10, 0, 1)].into_iter());
        let told = rows(|tape| tallies.tell(tape).unwrap());
        assert_eq!(told[..2], [(10, 0, 1, 1, 1, 0), (10, 0, 0, 0, 0, 0)]);
        tallies.read(74, &[slot(7, 0)]);
        tallies.settle([written(74, 0, 1)].into_iter());
        let told = rows(|tape| tallies.finish(tape).unwrap());
        assert!(told.contains(&(74, 0, 1, 1, 1, 0)), "{told:?}");
    }

    #[test]
    fn slots_are_read_without_a_gap_however_long_the_recorder_was_held_up() {
        let mut tallies = Tallies::new(at(100));
        assert_eq!(tallies.due(at(100), READ_BACK), [38, 96, 97, 98, 99, 100]);
        assert_eq!(tallies.due(at(110), READ_BACK)[1..], (100..=110).collect::<Vec<_>>());
        let mut slots: Vec<u64> =
            tallies.due(at(5000), READ_BACK).iter().map(|interval| interval % u64::from(SLOTS)).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), SLOTS as usize - 1, "all but that of the next interval");
    }

    #[test]
    fn the_last_look_is_at_every_slot() {
        let mut tallies = Tallies::new(at(100));
        let slots = |intervals: Vec<u64>| intervals.into_iter().map(|at| at % u64::from(SLOTS));
        let mut all: Vec<u64> = slots(tallies.due(at(100), SLOTS.into())).collect();
        all.sort_unstable();
        // That of the next interval holds what was read when this one began.
        assert_eq!(all, (0..u64::from(SLOTS)).filter(|&slot| slot != 101 % u64::from(SLOTS)).collect::<Vec<_>>());
    }

    #[test]
    fn a_tape_that_ends_before_the_recording_has_what_is_settled() {
        let mut tallies = Tallies::new(at(10));
        tallies.read(10, &[slot(5, 1)]);
        tallies.settle([written(10, 0, 3)].into_iter());
        assert_eq!(rows(|tape| tallies.tell_settled(tape).unwrap()), [(10, 0, 1, 4, 3, 1)]);
        assert_eq!(rows(|tape| tallies.tell_settled(tape).unwrap()), []);
        tallies.settle([written(10, 0, 1)].into_iter());
        assert_eq!(rows(|tape| tallies.finish(tape).unwrap()), [(10, 0, 1, 1, 1, 0), (10, 0, 0, 0, 0, 0)]);
    }

    #[test]
    fn what_is_not_settled_by_the_end_is_told_as_lost() {
        let mut tallies = Tallies::new(at(10));
        tallies.read(10, &[slot(5, 1)]);
        tallies.settle([written(10, 0, 3)].into_iter());
        assert_eq!(rows(|tape| tallies.finish(tape).unwrap()), [(10, 0, 1, 5, 3, 2), (10, 0, 0, 0, 0, 0)]);
    }
}
