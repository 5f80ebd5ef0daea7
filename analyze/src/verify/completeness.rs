//! Whether all that a recorder saw is on its tape: seen = written + lost, and what is written is there.
//!
//! The recorder's own account are the tape's `tally` rows: by processor, kind and interval how many calls its probes saw, how many
//! of them it wrote and how many it lost. Here these are added up, and the rows of the tape are counted without them: a call
//! belongs to the table of the row that names its function, and to the interval in which it began; a stretch off the processor, and what
//! a device did, to that in which it ended, as only then it can be told. So a row that went missing after it was written shows as well as a call
//! that never became one.
//!
//! What the device did is counted by the processes themselves, where a library in them collects, and held against its rows likewise.
//!
//! An account is closed by a row of kind 0. Of a tape that was cut off the last intervals have none: there, what is on the tape is
//! no less true, but nothing says that it is all.
//!
//! Intervals of rows that overlap (no recorder makes such) are taken for one.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use ktape_format::event::{
    Alloc, Api, CpuSample, Event, EventRecord, EventWait, Free, GraphLaunch, Kernel, KindVisitor, Launch, Memcpy,
    Memset, OffCpu, Rollup, Sync, Tally, visit_kinds,
};
use ktape_format::{Events, Row as _, Table as _, Tape, TapeError, Wanted};
use serde::Serialize;

use crate::tables::KnownTables;

/// Tables whose rows name a function: a recorder that counts at all counts these.
const CALLS: [u16; 8] = [
    Launch::KIND,
    GraphLaunch::KIND,
    Api::KIND,
    Sync::KIND,
    EventRecord::KIND,
    EventWait::KIND,
    Alloc::KIND,
    Free::KIND,
];

/// Tables whose rows belong to the interval in which they ended.
const TOLD_AT_THEIR_END: [u16; 4] = [OffCpu::KIND, Kernel::KIND, Memcpy::KIND, Memset::KIND];

/// What stands for the processor where processes have counted themselves.
const OWN_COUNT: u32 = 65_535;

/// What became of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// The probes saw so many.
    pub seen: u64,
    /// The recorder gave so many to the tape.
    pub written: u64,
    /// It counted so many as lost.
    pub lost: u64,
    /// So many were not to be recorded.
    pub left_out: u64,
}

impl Sums {
    fn add(&mut self, row: &Tally) {
        self.seen = self.seen.saturating_add(row.seen);
        self.written = self.written.saturating_add(row.written);
        self.lost = self.lost.saturating_add(row.lost);
        self.left_out = self.left_out.saturating_add(row.left_out);
    }

    /// How many were seen and are accounted for in no way; negative for more than were seen.
    fn unsettled(&self) -> i64 {
        let accounted = i128::from(self.written) + i128::from(self.lost) + i128::from(self.left_out);
        clamp(i128::from(self.seen) - accounted)
    }
}

fn clamp(difference: i128) -> i64 {
    difference.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// The account of a kind: of all of it, or of a processor or interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// The table's name.
    pub kind: String,
    /// The processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The interval: when it began, and how long it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_ns: Option<(i64, u64)>,
    /// What the recorder says.
    #[serde(flatten)]
    pub sums: Sums,
    /// How many are on the tape; rows do not say on which processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_tape: Option<u64>,
}

/// Something in an account that does not add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: u16,
    pub(super) what: String,
}

/// Whether all that was seen is on the tape or told as lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Completeness {
    /// Whether all accounts add up. A tape that was cut off can do so: see `proven_until_ns`.
    pub holds: bool,
    /// How many are missing: seen and neither written nor lost, or written and not there.
    pub missing: u64,
    /// How many are there that were not counted.
    pub surplus: u64,
    /// Whether the account of every interval is closed.
    pub closed: bool,
    /// Up to when every account is closed, on the tape's clock; null if not even the first is.
    pub proven_until_ns: Option<i64>,
    /// How many are on the tape in intervals whose account is not closed.
    pub unproven: u64,
    /// By kind.
    pub by_kind: Vec<Account>,
    /// By kind and processor.
    pub by_cpu: Vec<Account>,
    /// By kind and interval.
    pub by_interval: Vec<Account>,
    #[serde(skip)]
    pub(super) faults: Vec<Fault>,
}

/// Makes accounts of different times those of all the time that they are of: as rows that are only there added up do not say when
/// each was, these can only be held against all of them.
pub(crate) fn over_all_time(told: &mut [Tally]) {
    let start_ns = told.iter().map(|row| row.start_ns).min().unwrap_or(0);
    let end_ns = told.iter().map(Tally::end_ns).max().unwrap_or(0);
    told.iter_mut().for_each(|row| (row.start_ns, row.duration_ns) = (start_ns, start_ns.abs_diff(end_ns)));
}

/// The recorder's accounts, and what is on the tape, counted without them.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    /// Disjoint, in order: begin and end, and whether the account is closed.
    periods: Vec<(i64, i64, bool)>,
    by_period: BTreeMap<(u16, usize), Sums>,
    by_cpu: BTreeMap<(u16, usize, u32), Sums>,
    /// Rows by table and period; the last period is that of rows in none.
    rows: BTreeMap<u16, Vec<u64>>,
    /// The launch before: rows of one call on several devices count once.
    launch: Option<(u32, i64, u32)>,
    /// Whether some rows are only there added up: these don't say what was one call of several rows, nor when each was.
    has_rollups: bool,
    /// The period of their account: their own times, from the first event on, say nothing of when each was counted.
    of_rollups: usize,
    /// Rows that a repair has left out, by table; of table 0 those whose table it did not know.
    damaged: BTreeMap<u16, u64>,
}

impl Counting {
    /// Reads the accounts of a tape. Damage is left to those who look for it.
    pub(crate) fn of_tape(tape: &Tape) -> Counting {
        Counting::new(&Counting::told_by(tape))
    }

    /// The accounts of a tape: of a rollup one for all of its time, see [`over_all_time`].
    pub(crate) fn told_by(tape: &Tape) -> Vec<Tally> {
        let (mut told, mut is_rollup) = (Vec::new(), false);
        let wanted = Wanted { kinds: vec![Tally::KIND, Rollup::KIND], ..Wanted::default() };
        // What cannot be read here cannot in the check itself, which says so.
        let _ = tape.scan::<TapeError>(&wanted, |_, part| {
            told.extend(part.events.tally.rows());
            is_rollup |= !part.events.rollup.is_empty();
            Ok(())
        });
        if is_rollup {
            over_all_time(&mut told);
        }
        told
    }

    /// Counts the rows of a tape.
    pub(crate) fn count_tape(&mut self, tape: &Tape) {
        let kinds = self.rows.keys().copied().chain([Rollup::KIND, CpuSample::KIND]).collect();
        let wanted = Wanted { kinds, ..Wanted::default() };
        // As above.
        let _ = tape.scan::<TapeError>(&wanted, |_, part| {
            self.count(&part.events);
            Ok(())
        });
    }

    pub(crate) fn new(told: &[Tally]) -> Counting {
        let span = |row: &Tally| (row.start_ns, row.end_ns().max(row.start_ns.saturating_add(1)));
        let spans: BTreeSet<(i64, i64)> = told.iter().map(span).collect();
        let closing: BTreeSet<(i64, i64)> = told.iter().filter(|row| row.kind == 0).map(span).collect();
        // An account of a rollup is one of several intervals, which another tape may close one by one.
        let is_closed_by_parts = |start: i64, end: i64| {
            let mut closed_until = start;
            for &(part_start, part_end) in closing.range((start, i64::MIN)..).filter(|(_, part_end)| *part_end <= end) {
                if part_start > closed_until {
                    break;
                }
                closed_until = closed_until.max(part_end);
            }
            closed_until == end
        };
        let mut counting = Counting::default();
        for &(start, end) in &spans {
            let is_closed = is_closed_by_parts(start, end);
            match counting.periods.last_mut() {
                Some(last) if start < last.1 => *last = (last.0, last.1.max(end), last.2 && is_closed),
                _ => counting.periods.push((start, end, is_closed)),
            }
        }
        for row in told.iter().filter(|row| row.kind != 0) {
            let period = counting.period(row.start_ns);
            counting.by_period.entry((row.kind, period)).or_default().add(row);
            counting.by_cpu.entry((row.kind, period, row.cpu)).or_default().add(row);
        }
        let kinds = counting.by_period.keys().map(|&(kind, _)| kind).chain(CALLS);
        counting.rows = kinds.map(|kind| (kind, vec![0; counting.periods.len() + 1])).collect();
        counting
    }

    /// Says when the account of what is only there added up begins, where others stand beside it; `None` where it has none.
    pub(crate) fn with_rollups_from(mut self, start_ns: Option<i64>) -> Counting {
        self.of_rollups = start_ns.map_or(self.periods.len(), |start_ns| self.period(start_ns));
        self
    }

    /// The period of a time; one behind the last for none.
    fn period(&self, time_ns: i64) -> usize {
        let next = self.periods.partition_point(|&(start, ..)| start <= time_ns);
        match next.checked_sub(1) {
            // The last time there is belongs to what ends there.
            Some(period) if time_ns < self.periods[period].1 || time_ns == i64::MAX => period,
            _ => self.periods.len(),
        }
    }

    /// Counts rows. Those of one table come in the order that they were written in.
    pub(crate) fn count(&mut self, events: &Events) {
        if !self.periods.is_empty() {
            let Ok(()) = visit_kinds(&mut Count { counting: self, events, bits: Vec::new() });
            for row in events.rollup.rows() {
                self.has_rollups = true;
                if let Some(rows) = self.rows.get_mut(&row.kind) {
                    rows[self.of_rollups] = rows[self.of_rollups].saturating_add(row.count);
                }
            }
        }
    }

    /// Rows that a repair of the tape has left out.
    pub(crate) fn left_out_by_repair(&mut self, kind: u16, count: u64) {
        let damaged = self.damaged.entry(kind).or_default();
        *damaged = damaged.saturating_add(count);
    }

    /// The result; `None` for a tape without accounts. `is_cut_off` says whether more might have followed.
    pub(crate) fn finish(self, is_cut_off: bool) -> Option<Completeness> {
        if self.periods.is_empty() {
            return None;
        }
        let known = KnownTables::new();
        let behind = self.periods.len();
        // A recorder tells of every interval, also of one without calls: a gap is an account that is lost.
        let follows = |at: usize| at == 0 || self.periods[at - 1].1 == self.periods[at].0;
        let proven = (0..behind).take_while(|&at| self.periods[at].2 && follows(at)).count();
        let mut result = Completeness {
            holds: true,
            missing: 0,
            surplus: 0,
            closed: proven == behind,
            proven_until_ns: proven.checked_sub(1).map(|last| self.periods[last].1),
            unproven: 0,
            by_kind: Vec::new(),
            by_cpu: Vec::new(),
            by_interval: Vec::new(),
            faults: Vec::new(),
        };
        let mut cpus = BTreeMap::<(u16, u32), Sums>::new();
        let mut of_damage: u64 = self.damaged.get(&0).copied().unwrap_or(0);
        for (&(kind, period, cpu), sums) in &self.by_cpu {
            let all = cpus.entry((kind, cpu)).or_default();
            let Sums { seen, written, lost, left_out } = *sums;
            all.add(&Tally { seen, written, lost, left_out, ..Tally::default() });
            match sums.unsettled() {
                0 => {}
                unsettled => {
                    let from = self.periods[period].0;
                    let (what, sum) = match unsettled {
                        1.. => ("were seen, and neither written nor lost", &mut result.missing),
                        _ => ("more than were seen are told as written or lost", &mut result.surplus),
                    };
                    *sum = sum.saturating_add(unsettled.unsigned_abs());
                    let name = known.name(kind);
                    let place = match cpu {
                        OWN_COUNT => "by the processes' own count".to_owned(),
                        cpu => format!("on processor {cpu}"),
                    };
                    let what = format!("{name}: {} {what}, {place} from {from} ns on", unsettled.unsigned_abs());
                    result.faults.push(Fault { kind, what });
                }
            }
        }
        for (&kind, rows) in &self.rows {
            let mut all = Sums::default();
            let mut of_kind = self.damaged.get(&kind).copied().unwrap_or(0);
            for (period, &on_tape) in rows.iter().enumerate() {
                let sums = self.by_period.get(&(kind, period)).copied().unwrap_or_default();
                let Sums { seen, written, lost, left_out } = sums;
                all.add(&Tally { seen, written, lost, left_out, ..Tally::default() });
                let span = self.periods.get(period);
                if span.is_none_or(|span| !span.2) {
                    result.unproven = result.unproven.saturating_add(on_tape);
                }
                if let Some(&(start, end, _)) = span
                    && (sums != Sums::default() || on_tape > 0)
                {
                    result.by_interval.push(Account {
                        kind: known.name(kind),
                        cpu: None,
                        interval_ns: Some((start, start.abs_diff(end))),
                        sums,
                        on_tape: Some(on_tape),
                    });
                }
                let from = match span {
                    Some(&(start, ..)) => format!("from {start} ns on"),
                    None => "outside of all intervals".to_owned(),
                };
                let mut missing = written.saturating_sub(on_tape);
                for told in [&mut of_kind, &mut of_damage] {
                    let explained = missing.min(*told);
                    (missing, *told) = (missing - explained, *told - explained);
                }
                // Who was cut off may have written more than it had come to tell.
                let is_open = is_cut_off && (period == behind || span.is_some_and(|span| !span.2));
                let is_open = is_open || self.has_rollups;
                let surplus = if is_open { 0 } else { on_tape.saturating_sub(written) };
                for (count, what) in [(missing, "were written and are not there"), (surplus, "were not counted")] {
                    if count > 0 {
                        result
                            .faults
                            .push(Fault { kind, what: format!("{}: {count} {what}, {from}", known.name(kind)) });
                    }
                }
                result.missing = result.missing.saturating_add(missing);
                result.surplus = result.surplus.saturating_add(surplus);
            }
            let on_tape = rows.iter().sum();
            if all != Sums::default() || on_tape > 0 {
                let kind = known.name(kind);
                result.by_kind.push(Account { kind, cpu: None, interval_ns: None, sums: all, on_tape: Some(on_tape) });
            }
        }
        result.by_cpu = cpus
            .into_iter()
            .map(|((kind, cpu), sums)| Account {
                kind: known.name(kind),
                cpu: Some(cpu),
                interval_ns: None,
                sums,
                on_tape: None,
            })
            .collect();
        result.holds = result.faults.is_empty();
        Some(result)
    }
}

struct Count<'a> {
    counting: &'a mut Counting,
    events: &'a Events,
    bits: Vec<u64>,
}

impl KindVisitor for Count<'_> {
    type Error = Infallible;
    fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
        let table = E::table(self.events);
        let Some(mut rows) = self.counting.rows.remove(&E::KIND) else { return Ok(()) };
        if TOLD_AT_THEIR_END.contains(&E::KIND) {
            self.bits.clear();
            self.bits.extend(table.rows().map(|row| row.end_ns() as u64));
        } else {
            // Column 0 of an event is its start.
            table.column_bits(0, 0..table.len(), &mut self.bits);
        }
        let launches = (E::KIND == Launch::KIND).then_some(&self.events.launch);
        for (row, &start_ns) in self.bits.iter().enumerate() {
            let start_ns = start_ns as i64;
            if let Some(launches) = launches {
                let call = Some((launches.thread[row], start_ns, launches.function[row]));
                if std::mem::replace(&mut self.counting.launch, call) == call {
                    continue;
                }
            }
            rows[self.counting.period(start_ns)] += 1;
        }
        self.counting.rows.insert(E::KIND, rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 1000;

    fn tally(interval: i64, cpu: u32, kind: u16, counts: [u64; 3]) -> Tally {
        let [seen, written, lost] = counts;
        let start_ns = interval * LENGTH as i64;
        Tally { start_ns, duration_ns: LENGTH, cpu, kind, seen, written, lost, left_out: 0 }
    }

    fn launches(times: &[i64]) -> Events {
        let mut events = Events::default();
        times.iter().for_each(|&start_ns| events.launch.push(Launch { start_ns, ..Launch::default() }));
        events
    }

    fn whole() -> Vec<Tally> {
        vec![
            tally(1, 0, 1, [2, 2, 0]),
            tally(1, 1, 1, [3, 1, 2]),
            tally(1, 0, 0, [0; 3]),
            tally(2, 0, 1, [1, 1, 0]),
            tally(2, 0, 0, [0; 3]),
        ]
    }

    fn checked(told: &[Tally], events: &Events, is_cut_off: bool) -> Completeness {
        let mut counting = Counting::new(told);
        counting.count(events);
        counting.finish(is_cut_off).unwrap()
    }

    #[test]
    fn all_that_was_seen_is_there_or_lost() {
        let result = checked(&whole(), &launches(&[1000, 1500, 1999, 2000]), false);
        assert!(result.holds && result.closed, "{result:?}");
        assert_eq!((result.missing, result.surplus, result.proven_until_ns), (0, 0, Some(3000)));
        let sums = Sums { seen: 6, written: 4, lost: 2, left_out: 0 };
        assert_eq!((result.by_kind.len(), result.by_kind[0].sums, result.by_kind[0].on_tape), (1, sums, Some(4)));
        assert_eq!((result.by_cpu.len(), result.by_interval.len()), (2, 2));
    }

    #[test]
    fn a_missing_row_is_noticed_in_its_interval() {
        let result = checked(&whole(), &launches(&[1000, 1999, 2000]), false);
        assert_eq!((result.holds, result.missing), (false, 1));
        assert_eq!(result.faults[0].what, "launch: 1 were written and are not there, from 1000 ns on");
        // One too many elsewhere does not make up for it.
        let result = checked(&whole(), &launches(&[1000, 1999, 2000, 2001]), false);
        assert_eq!((result.holds, result.missing, result.surplus), (false, 1, 1));
        let result = checked(&whole(), &launches(&[1000, 1500, 1999, 2000, 5000]), false);
        assert_eq!((result.holds, result.surplus), (false, 1));
    }

    #[test]
    fn rows_that_are_only_there_added_up_count_as_what_they_were() {
        let rollup = |count| {
            let mut events = Events::default();
            events.rollup.push(Rollup { start_ns: 1000, kind: Launch::KIND, count, ..Rollup::default() });
            events
        };
        // As a rollup has them: the sums of all intervals.
        let told = [Tally {
            start_ns: 1000,
            duration_ns: 2000,
            kind: Launch::KIND,
            seen: 6,
            written: 4,
            lost: 2,
            ..Tally::default()
        }];
        assert!(checked(&told, &rollup(4), false).holds);
        let result = checked(&told, &rollup(3), false);
        assert_eq!((result.holds, result.missing), (false, 1));
        // An account of an old interval, and the row that closes a younger one.
        let mut told = [told[0], Tally { start_ns: 9000, duration_ns: 10, ..Tally::default() }];
        over_all_time(&mut told);
        let result = checked(&told, &rollup(4), false);
        assert_eq!((result.holds, result.closed, result.proven_until_ns), (true, true, Some(9010)));
    }

    #[test]
    fn rows_that_are_only_there_added_up_are_held_against_their_own_account_whenever_they_began() {
        let rollup = |start_ns, count| {
            let mut events = Events::default();
            events.rollup.push(Rollup { start_ns, kind: Launch::KIND, count, ..Rollup::default() });
            events
        };
        // What a device did began before the interval that it is counted in, and so does the rollup.
        let told = [tally(2, 0, 1, [3, 3, 0]), tally(2, 0, 0, [0; 3])];
        assert!(checked(&told, &rollup(1500, 3), false).holds);
        // Beside the events of an earlier segment.
        let beside = [&[tally(1, 0, 1, [1, 1, 0]), tally(1, 0, 0, [0; 3])], &told[..]].concat();
        for (count, missing) in [(3, 0), (2, 1)] {
            let mut counting = Counting::new(&beside).with_rollups_from(Some(2000));
            counting.count(&launches(&[1000]));
            counting.count(&rollup(1500, count));
            assert_eq!(counting.finish(false).unwrap().missing, missing);
        }
    }

    #[test]
    fn what_was_seen_and_never_settled_is_noticed_on_its_processor() {
        let mut told = whole();
        // In sum the two processors would make up for each other.
        (told[0].seen, told[1].seen) = (3, 2);
        let result = checked(&told, &launches(&[1000, 1500, 1999, 2000]), false);
        assert_eq!((result.holds, result.missing, result.surplus), (false, 1, 1));
    }

    #[test]
    fn what_the_device_did_is_counted_where_its_processes_have_counted_it() {
        let mut events = launches(&[1000, 1500]);
        [1600, 1700].into_iter().for_each(|start_ns| events.kernel.push(Kernel { start_ns, ..Kernel::default() }));
        let told = |seen, written, lost| {
            vec![
                tally(1, OWN_COUNT, 1, [2, 2, 0]),
                tally(1, OWN_COUNT, Kernel::KIND, [seen, written, lost]),
                tally(1, 0, 0, [0; 3]),
            ]
        };
        assert!(checked(&told(3, 2, 1), &events, false).holds);
        assert_eq!(checked(&told(3, 3, 0), &events, false).missing, 1);
        let result = checked(&told(3, 2, 0), &events, false);
        assert_eq!(
            result.faults[0].what,
            "kernel: 1 were seen, and neither written nor lost, by the processes' own count from 1000 ns on"
        );
        // Of a tape whose calls alone were counted nothing is said of them.
        assert!(checked(&told(0, 0, 0)[..1], &events, true).holds);
    }

    #[test]
    fn what_the_device_did_counts_where_it_ended_however_long_it_ran() {
        let mut events = Events::default();
        // For hours, and within one interval.
        for (start_ns, duration_ns) in [(-9_000_000, 9_002_500), (2100, 100)] {
            events.kernel.push(Kernel { start_ns, duration_ns, ..Kernel::default() });
            events.memcpy.push(Memcpy { start_ns, duration_ns, ..Memcpy::default() });
            events.memset.push(Memset { start_ns, duration_ns, ..Memset::default() });
        }
        let told = |interval| {
            let kinds =
                [Kernel::KIND, Memcpy::KIND, Memset::KIND].map(|kind| tally(interval, OWN_COUNT, kind, [2, 2, 0]));
            [&kinds[..], &[1, 2].map(|interval| tally(interval, 0, 0, [0; 3]))].concat()
        };
        assert!(checked(&told(2), &events, false).holds);
        assert_eq!((checked(&told(1), &events, false).missing, checked(&told(1), &events, false).surplus), (6, 6));
    }

    #[test]
    fn a_kind_whose_account_is_gone_is_noticed() {
        let told: Vec<Tally> = whole().into_iter().filter(|row| row.kind == 0).collect();
        assert_eq!(checked(&told, &launches(&[1000, 2000]), false).surplus, 2);
    }

    #[test]
    fn of_a_recording_that_was_cut_off_what_is_closed_is_proven() {
        let told = &whole()[..4];
        let events = launches(&[1000, 1500, 1999, 2000, 2001, 3500]);
        let result = checked(told, &events, true);
        assert_eq!((result.holds, result.closed, result.proven_until_ns), (true, false, Some(2000)), "{result:?}");
        assert_eq!(result.unproven, 3);
        assert_eq!(checked(told, &events, false).surplus, 2, "nothing was to follow");
        assert_eq!(
            checked(told, &launches(&[1000, 1500, 1999]), true).missing,
            1,
            "a row stands behind what it counts"
        );
    }

    #[test]
    fn an_account_over_several_intervals_is_closed_where_each_of_them_is() {
        let of_rollups = Tally { start_ns: 1000, duration_ns: 2000, ..tally(1, 0, 1, [4, 4, 0]) };
        let closes = |interval| tally(interval, 0, 0, [0; 3]);
        let events = launches(&[1000, 1500, 2000, 2500]);
        let is_closed = |told: &[Tally]| checked(told, &events, true).closed;
        assert!(is_closed(&[of_rollups, closes(1), closes(2)]));
        assert!(!is_closed(&[of_rollups, closes(1)]));
        assert!(!is_closed(&[of_rollups, closes(2)]));
        // What closes the account of the rollups says nothing of the interval that still goes on.
        let over_both = Tally { kind: 0, seen: 0, written: 0, ..of_rollups };
        assert!(!is_closed(&[of_rollups, over_both, tally(2, 0, 1, [1, 1, 0])]));
    }

    #[test]
    fn nothing_is_proven_behind_an_interval_without_an_account() {
        let mut told = whole();
        told.extend([tally(4, 0, 1, [1, 1, 0]), tally(4, 0, 0, [0; 3])]);
        let result = checked(&told, &launches(&[1000, 1500, 1999, 2000, 4000]), false);
        assert_eq!((result.holds, result.closed, result.proven_until_ns), (true, false, Some(3000)));
    }

    #[test]
    fn one_call_on_several_devices_counts_once() {
        let mut events = Events::default();
        for (thread, start_ns) in [(1, 1000), (1, 1000), (2, 1000), (2, 1001)] {
            events.launch.push(Launch { thread, start_ns, function: 7, ..Launch::default() });
        }
        let told = [tally(1, 0, 1, [3, 3, 0]), tally(1, 0, 0, [0; 3])];
        assert!(checked(&told, &events, false).holds);
        // Over the end of a block, too.
        let mut counting = Counting::new(&told);
        for rows in [0..1, 1..4] {
            let mut part = Events::default();
            rows.for_each(|row| part.launch.push(events.launch.row(row)));
            counting.count(&part);
        }
        assert!(counting.finish(false).unwrap().holds);
    }

    #[test]
    fn a_stretch_off_the_processor_counts_where_it_ended() {
        let mut events = Events::default();
        // Of another hour, and one that ends with the interval and so belongs to the next.
        for (start_ns, duration_ns) in [(-1_000_000, 1_001_500), (1000, 1000)] {
            events.off_cpu.push(OffCpu { start_ns, duration_ns, ..OffCpu::default() });
        }
        let kind = OffCpu::KIND;
        let told = |first, second| {
            [
                tally(1, 0, kind, [first; 3]),
                tally(1, 0, 0, [0; 3]),
                tally(2, 0, kind, [second, second, 0]),
                tally(2, 0, 0, [0; 3]),
            ]
            .map(|row| Tally { lost: 0, ..row })
        };
        assert!(checked(&told(1, 1), &events, false).holds);
        let result = checked(&told(2, 1), &events, false);
        assert_eq!((result.missing, result.surplus), (1, 0));
        assert_eq!(result.faults[0].what, "off_cpu: 1 were written and are not there, from 1000 ns on");
    }

    #[test]
    fn rows_that_a_repair_has_left_out_are_told() {
        let mut counting = Counting::new(&whole());
        counting.count(&launches(&[1000, 2000]));
        counting.left_out_by_repair(Launch::KIND, 1);
        counting.left_out_by_repair(0, 1);
        assert!(counting.finish(false).unwrap().holds);
    }

    #[test]
    fn hostile_accounts_do_no_harm() {
        let mut told = vec![tally(1, 0, 1, [u64::MAX, 0, 0]), tally(1, 0, 1, [u64::MAX, u64::MAX, u64::MAX])];
        told.push(Tally { start_ns: i64::MAX, duration_ns: u64::MAX, kind: u16::MAX, seen: 1, ..Tally::default() });
        told.push(Tally { start_ns: i64::MIN, duration_ns: u64::MAX, kind: 1, ..Tally::default() });
        let result = checked(&told, &launches(&[i64::MIN, 0, i64::MAX]), false);
        assert!(!result.holds);
        assert_eq!(Counting::new(&[]).finish(false), None);
    }
}
