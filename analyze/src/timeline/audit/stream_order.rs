//! Whether the operations of each stream came one after the other, as a stream's do.
//!
//! It is fed one operation at a time, so that an importer can ask while it writes. Kept of a stream is only its *run*:
//! the operations since it was last idle, for what ended before an operation began has no part in that operation's
//! faults. Real runs are one or two operations long.
//!
//! In a run two things are looked for.
//!
//! - **Overlaps**: pairs of neighbours, by start, of which the later begins before the earlier ends. Those of one
//!   submission (one graph launch: they have one correlation id) are kept apart: its branches may run side by side. The
//!   others are dependent launches that begin early (programmatic dependent launch), or clocks that disagree.
//! - **Impossible durations**: an operation that ends more than [`SLACK_NS`] after the *end* of an operation of another
//!   submission that began later. A dependent launch may begin early, but what depends on an operation does not end
//!   before it. So the measurement is wrong, and since a wrong end is what profilers produce (a lost or late
//!   time stamp), the later operations are believed: the repaired duration is cut at the start of the next of them.

use rustc_hash::FxHashMap;

/// How far an operation may outlast a later one of its stream before it counts as impossible.
///
/// Ten times the coarsest clock of the traces that we know (1 µs, until 2023), and nearly three times the longest overlap
/// of two kernels in any of them (3.7 µs). Faulty durations exceed it by orders: they last milliseconds to seconds.
pub const SLACK_NS: u64 = 10_000;

/// Some findings of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Their time, added up; saturates, as a damaged tape may claim any.
    pub ns: u64,
    /// The worst (the first of several) as the number of its operation and its time.
    pub worst: Option<(usize, u64)>,
}

impl Tally {
    /// Takes a finding in.
    pub fn add(&mut self, operation: usize, ns: u64) {
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
        let is_worse = |(first, most): (usize, u64)| ns > most || (ns == most && operation < first);
        if self.worst.is_none_or(is_worse) {
            self.worst = Some((operation, ns));
        }
    }
}

/// An operation whose duration cannot be, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The operation, counted from 0 in the order in which they were seen.
    pub operation: usize,
    /// Its duration up to the start of its successor.
    pub repaired_ns: u64,
}

/// What was found. Operations are counted from 0 in the order in which they were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// Overlaps of neighbours of different submissions, each under its later operation. Those of which the earlier has
    /// an impossible duration are not among them.
    pub overlaps: Tally,
    /// Overlaps of neighbours of one submission.
    pub branches: Tally,
    /// The time that the cuts take off, under the operations that they are of.
    pub impossible: Tally,
    /// The impossible durations, by operation.
    pub cuts: Vec<Cut>,
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct StreamOrder {
    streams: FxHashMap<u32, Run>,
    seen: usize,
    found: Disorder,
}

/// The operations of a stream since it was last idle.
#[derive(Debug, Default)]
struct Run {
    operations: Vec<Operation>,
    reach_ns: i64,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    number: usize,
    start_ns: i64,
    end_ns: i64,
    submission: u64,
}

impl StreamOrder {
    /// Takes the next operation, all by start. `submission` is its correlation id, which the operations of one graph
    /// launch share; 0 for not known. Operations without a measured time ([`ktape_format::event::timing`]) are not to
    /// be shown.
    pub fn see(&mut self, stream: u32, start_ns: i64, duration_ns: u64, submission: u64) {
        let run = self.streams.entry(stream).or_default();
        if start_ns >= run.reach_ns {
            settle(&mut run.operations, &mut self.found);
        }
        let end_ns = start_ns.saturating_add_unsigned(duration_ns);
        run.reach_ns = if run.operations.is_empty() { end_ns } else { run.reach_ns.max(end_ns) };
        run.operations.push(Operation { number: self.seen, start_ns, end_ns, submission });
        self.seen += 1;
    }

    /// What was found in all of them.
    pub fn finish(mut self) -> Disorder {
        self.streams.values_mut().for_each(|run| settle(&mut run.operations, &mut self.found));
        self.found.cuts.sort_by_key(|cut| cut.operation);
        self.found
    }
}

fn is_one_submission(a: u64, b: u64) -> bool {
    a == b && a != 0
}

/// Looks at a run as a whole, and empties it.
fn settle(run: &mut Vec<Operation>, found: &mut Disorder) {
    if run.len() > 1 {
        // Of those that start together the longest is the neighbour of what follows.
        run.sort_by_key(|operation| (operation.start_ns, operation.end_ns, operation.number));
        let first_cut = found.cuts.len();
        find_impossible(run, found);
        let mut cuts: Vec<usize> = found.cuts[first_cut..].iter().map(|cut| cut.operation).collect();
        cuts.sort_unstable();
        for pair in run.windows(2) {
            let &[earlier, later] = pair else { continue };
            let shared_to_ns = earlier.end_ns.min(later.end_ns);
            if shared_to_ns > later.start_ns {
                let tally = match is_one_submission(earlier.submission, later.submission) {
                    true => &mut found.branches,
                    false if cuts.binary_search(&earlier.number).is_ok() => continue,
                    false => &mut found.overlaps,
                };
                tally.add(later.number, shared_to_ns.abs_diff(later.start_ns));
            }
        }
    }
    run.clear();
}

/// Walks a sorted run from its end, so that each operation meets the extremes of all later ones: the walk is linear
/// however many of them overlap.
fn find_impossible(run: &[Operation], found: &mut Disorder) {
    let (mut ends, mut starts) = (Least::default(), Least::default());
    for together in run.chunk_by(|a, b| a.start_ns == b.start_ns).rev() {
        for operation in together {
            let (Some(end_ns), Some(next_ns)) = (ends.of_others(operation), starts.of_others(operation)) else {
                continue;
            };
            if end_ns < operation.end_ns && operation.end_ns.abs_diff(end_ns) > SLACK_NS {
                let repaired_ns = next_ns.abs_diff(operation.start_ns);
                found.cuts.push(Cut { operation: operation.number, repaired_ns });
                found.impossible.add(operation.number, operation.end_ns.abs_diff(next_ns));
            }
        }
        // What starts together is in no order, so none of it is later than the other.
        for operation in together {
            ends.learn(operation.end_ns, operation.submission);
            starts.learn(operation.start_ns, operation.submission);
        }
    }
}

/// The least of some times, for whoever must leave those of one submission out: the least of all, and the least of the
/// other submissions.
#[derive(Default)]
struct Least {
    first: Option<(i64, u64)>,
    other: Option<(i64, u64)>,
}

impl Least {
    fn learn(&mut self, ns: i64, submission: u64) {
        let is_less = |than: Option<(i64, u64)>| than.is_none_or(|(least, _)| ns < least);
        match self.first {
            Some((least, of)) if is_one_submission(of, submission) => self.first = Some((least.min(ns), submission)),
            _ if is_less(self.first) => {
                self.other = self.first;
                self.first = Some((ns, submission));
            }
            _ if is_less(self.other) => self.other = Some((ns, submission)),
            _ => {}
        }
    }

    fn of_others(&self, operation: &Operation) -> Option<i64> {
        let is_own = |(_, of): &(i64, u64)| is_one_submission(*of, operation.submission);
        self.first.filter(|first| !is_own(first)).or(self.other).map(|(ns, _)| ns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Stream, start, duration, submission.
    type Seen = (u32, i64, u64, u64);

    fn found(operations: &[Seen]) -> Disorder {
        let mut order = StreamOrder::default();
        operations.iter().for_each(|&(stream, start_ns, duration_ns, submission)| {
            order.see(stream, start_ns, duration_ns, submission);
        });
        order.finish()
    }

    fn tally(count: u64, ns: u64, worst: (usize, u64)) -> Tally {
        Tally { count, ns, worst: Some(worst) }
    }

    #[test]
    fn a_stream_in_order_has_no_disorder() {
        assert_eq!(found(&[(1, 0, 10, 1), (1, 10, 5, 2), (1, 15, 0, 3), (1, 15, 7, 4)]), Disorder::default());
    }

    #[test]
    fn neighbours_that_overlap() {
        let disorder = found(&[(1, 0, 10, 1), (1, 7, 5, 2), (1, 11, 5, 3), (1, 40, 5, 4)]);
        assert_eq!(disorder.overlaps, tally(2, 3 + 1, (1, 3)));
        assert_eq!((disorder.branches.count, disorder.cuts.len()), (0, 0));
    }

    #[test]
    fn streams_do_not_disturb_each_other() {
        assert_eq!(found(&[(1, 0, 100_000, 1), (2, 7, 5, 2), (3, 8, 5, 3)]), Disorder::default());
    }

    #[test]
    fn branches_of_one_graph_launch_are_kept_apart() {
        let disorder = found(&[(1, 0, 90_000, 5), (1, 10, 5, 5), (1, 20, 5, 5), (1, 89_990, 50, 6)]);
        assert_eq!(disorder.branches, tally(1, 5, (1, 5)), "neighbours only");
        assert_eq!(disorder.overlaps, Tally::default());
        assert_eq!(disorder.cuts, [], "only the graph itself ends before its longest branch");
    }

    #[test]
    fn no_correlation_makes_no_submission() {
        assert_eq!(found(&[(1, 0, 10, 0), (1, 7, 5, 0)]).overlaps, tally(1, 3, (1, 3)));
    }

    #[test]
    fn what_outlasts_its_successor_is_cut_at_its_start() {
        let disorder = found(&[(1, 0, 1_000_000, 1), (1, 300, 50, 2), (1, 400, 50, 3)]);
        assert_eq!(disorder.cuts, [Cut { operation: 0, repaired_ns: 300 }]);
        assert_eq!(disorder.impossible, tally(1, 1_000_000 - 300, (0, 1_000_000 - 300)));
        assert_eq!(disorder.overlaps, Tally::default(), "one fault, one finding");
    }

    #[test]
    fn the_slack_is_the_edge() {
        let end_ns = 350;
        assert_eq!(found(&[(1, 0, end_ns + SLACK_NS, 1), (1, 300, 50, 2)]).cuts.len(), 0);
        assert_eq!(found(&[(1, 0, end_ns + SLACK_NS + 1, 1), (1, 300, 50, 2)]).cuts.len(), 1);
    }

    /// The successor's own end is wrong too; the operation behind it tells both.
    #[test]
    fn two_impossible_neighbours() {
        let disorder = found(&[(1, 0, 5_000_000, 1), (1, 1_000, 9_000_000, 2), (1, 2_000, 10, 3)]);
        let cut = |operation| Cut { operation, repaired_ns: 1_000 };
        assert_eq!(disorder.cuts, [cut(0), cut(1)]);
    }

    #[test]
    fn what_starts_together_is_in_no_order() {
        assert_eq!(found(&[(1, 0, 90_000, 1), (1, 0, 0, 2)]), Disorder::default());
        let [one, two] = [[(1, 0, 90, 1), (1, 0, 50, 2)], [(1, 0, 50, 2), (1, 0, 90, 1)]].map(|both| found(&both));
        assert_eq!((one.overlaps.count, one.overlaps.ns, two.overlaps.ns), (1, 50, 50));
    }

    #[test]
    fn the_ends_of_time() {
        let most = u64::MAX;
        let disorder =
            found(&[(1, i64::MIN, most, 1), (1, i64::MIN + 1, most, 2), (1, 0, 5, 3), (1, i64::MAX, most, 4)]);
        assert_eq!(disorder.cuts.len(), 2);
        assert_eq!(disorder.impossible.ns, u64::MAX, "saturated");
    }

    fn is_later(a: &Seen, b: &Seen) -> bool {
        a.0 == b.0 && a.1 < b.1 && (a.3 != b.3 || a.3 == 0)
    }

    /// By the words of the definition, each operation against each.
    fn reference(operations: &[Seen]) -> Disorder {
        let mut disorder = Disorder::default();
        let end = |seen: &Seen| seen.1 + seen.2 as i64;
        for (number, a) in operations.iter().enumerate() {
            let later: Vec<&Seen> = operations.iter().filter(|b| is_later(a, b)).collect();
            if later.iter().any(|b| end(a) > end(b) + SLACK_NS as i64) {
                let next_ns = later.iter().map(|b| b.1).min().unwrap();
                disorder.cuts.push(Cut { operation: number, repaired_ns: (next_ns - a.1) as u64 });
                disorder.impossible.add(number, (end(a) - next_ns) as u64);
            }
        }
        let key = |number: usize| (operations[number].1, end(&operations[number]), number);
        for (number, b) in operations.iter().enumerate() {
            let before = (0..operations.len()).filter(|a| operations[*a].0 == b.0 && key(*a) < key(number));
            let Some(before) = before.max_by_key(|a| key(*a)) else { continue };
            let a = &operations[before];
            let shared_ns = end(a).min(end(b)) - b.1;
            if shared_ns > 0 {
                if a.3 == b.3 && a.3 != 0 {
                    disorder.branches.add(number, shared_ns as u64);
                } else if disorder.cuts.iter().all(|cut| cut.operation != before) {
                    disorder.overlaps.add(number, shared_ns as u64);
                }
            }
        }
        disorder
    }

    proptest! {
        #[test]
        fn a_run_at_a_time_finds_what_all_against_all_finds(
            mut operations in prop::collection::vec(
                (0_u32..2, 0_i64..60, prop_oneof![4 => 0_u64..9, 1 => 0_u64..60], 0_u64..5), 0..40)
        ) {
            // In units in which the slack is 2.5, so that both sides of it are common.
            operations.iter_mut().for_each(|seen| (seen.1, seen.2) = (seen.1 * 4_000, seen.2 * 4_000));
            operations.sort_by_key(|seen| seen.1);
            prop_assert_eq!(found(&operations), reference(&operations));
        }
    }
}
