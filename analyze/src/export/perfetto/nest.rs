//! Laying slices out so that those of one track strictly nest.
//!
//! Perfetto draws a track as a stack of slices: one may lie inside another or beside it, not half across. Slices of
//! real traces do cross, so those that do not fit a track go to a sibling track, the first on which they fit.
//! Nothing is cut or left out. The whole takes n log n steps, however many siblings a strange trace needs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A slice's begin or end on a track: the slice's index, and which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edge(u32);

impl Edge {
    fn begin(slice: usize) -> Edge {
        Edge((slice as u32) << 1)
    }

    fn end(slice: usize) -> Edge {
        Edge((slice as u32) << 1 | 1)
    }

    /// The slice's index.
    pub(super) fn slice(self) -> usize {
        (self.0 >> 1) as usize
    }

    /// Whether it is the slice's end.
    pub(super) fn is_end(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The most slices that one call of [`lay_out`] takes.
pub(super) const MAX_SLICES: usize = (u32::MAX >> 1) as usize;

/// Distributes slices over as many tracks as they need; returns each track's edges in the order in which they must
/// be written: by time, a slice's end before the next one's begin, an outer begin before an inner one, an inner end
/// before an outer one.
///
/// `spans` are starts and ends, sorted by start and, among equal starts, outer before inner (so by falling end).
pub(super) fn lay_out(spans: &[(i64, i64)]) -> Vec<Vec<Edge>> {
    assert!(spans.len() <= MAX_SLICES);
    let mut lanes: Vec<Lane> = Vec::new();
    let mut room = Room::default();
    // The open slices of all lanes by end. Those of one lane end from the innermost out, so each pop closes a top.
    let mut open: BinaryHeap<Reverse<(i64, Reverse<usize>, usize)>> = BinaryHeap::new();
    for (slice, &(start, end)) in spans.iter().enumerate() {
        while let Some(&Reverse((ended, _, lane))) = open.peek()
            && ended <= start
        {
            open.pop();
            lanes[lane].close();
            room.set(lane, lanes[lane].free_until(spans));
        }
        let lane = room.first_with(end).unwrap_or(lanes.len());
        if lane == lanes.len() {
            lanes.push(Lane::default());
        }
        lanes[lane].open(slice);
        room.set(lane, end);
        open.push(Reverse((end, Reverse(slice), lane)));
    }
    lanes.into_iter().map(Lane::finish).collect()
}

/// One track: what was written on it, and which slices are open.
#[derive(Default)]
struct Lane {
    edges: Vec<Edge>,
    open: Vec<u32>,
}

impl Lane {
    fn open(&mut self, slice: usize) {
        self.edges.push(Edge::begin(slice));
        self.open.push(slice as u32);
    }

    fn close(&mut self) {
        let slice = self.open.pop().expect("an end in the heap has its slice open");
        self.edges.push(Edge::end(slice as usize));
    }

    /// The latest end of a slice that could be opened now.
    fn free_until(&self, spans: &[(i64, i64)]) -> i64 {
        self.open.last().map_or(i64::MAX, |&slice| spans[slice as usize].1)
    }

    fn finish(mut self) -> Vec<Edge> {
        while !self.open.is_empty() {
            self.close();
        }
        self.edges
    }
}

/// Until when each lane has room, as a tree of maxima, so that the first lane with enough is found in log n steps.
#[derive(Default)]
struct Room {
    lanes: usize,
    /// Node 1 is the root, the children of `n` are `2n` and `2n + 1`, the second half are the lanes.
    maxima: Vec<i64>,
}

impl Room {
    fn set(&mut self, lane: usize, until: i64) {
        if lane >= self.lanes {
            self.grow(lane + 1);
        }
        let mut node = self.maxima.len() / 2 + lane;
        self.maxima[node] = until;
        while node > 1 {
            node /= 2;
            self.maxima[node] = self.maxima[2 * node].max(self.maxima[2 * node + 1]);
        }
    }

    fn grow(&mut self, lanes: usize) {
        let half = lanes.next_power_of_two();
        if self.maxima.len() < 2 * half {
            let old = self.maxima.split_off(self.maxima.len() / 2);
            self.maxima = vec![i64::MIN; 2 * half];
            self.maxima[half..half + old.len()].copy_from_slice(&old);
            for node in (1..half).rev() {
                self.maxima[node] = self.maxima[2 * node].max(self.maxima[2 * node + 1]);
            }
        }
        self.lanes = lanes;
    }

    fn first_with(&self, until: i64) -> Option<usize> {
        // A lane that was never used holds the least value, which no end may be taken for.
        if self.lanes == 0 || self.maxima[1] < until.max(i64::MIN + 1) {
            return None;
        }
        let mut node = 1;
        while node < self.maxima.len() / 2 {
            node = if self.maxima[2 * node] >= until.max(i64::MIN + 1) { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.maxima.len() / 2)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sorted(mut spans: Vec<(i64, i64)>) -> Vec<(i64, i64)> {
        spans.sort_by_key(|&(start, end)| (start, Reverse(end)));
        spans
    }

    /// `(` and `)` with the slice's letter, lane by lane.
    fn drawn(spans: &[(i64, i64)]) -> Vec<String> {
        let letter = |edge: &Edge| (b'a' + edge.slice() as u8) as char;
        let draw = |edge: &Edge| format!("{}{}", if edge.is_end() { ")" } else { "(" }, letter(edge));
        lay_out(spans).iter().map(|lane| lane.iter().map(draw).collect()).collect()
    }

    #[test]
    fn nested_and_neighbouring_slices_share_a_track() {
        assert_eq!(drawn(&[(0, 10), (2, 5), (5, 8), (10, 12)]), ["(a(b)b(c)c)a(d)d"]);
    }

    #[test]
    fn a_slice_that_crosses_goes_to_the_sibling_track() {
        assert_eq!(drawn(&[(0, 10), (5, 15), (6, 7), (12, 20)]), ["(a(c)c)a(d)d", "(b)b"]);
    }

    #[test]
    fn identical_and_empty_slices_are_all_kept() {
        assert_eq!(drawn(&[(0, 10), (0, 10)]), ["(a(b)b)a"]);
        assert_eq!(drawn(&[(0, 10), (10, 10), (10, 10)]), ["(a)a(b)b(c)c"]);
        assert_eq!(drawn(&[(5, 9), (5, 5), (9, 9), (9, 12), (9, 9)].map(|s| s)), ["(a(b)b)a(c)c(d(e)e)d"]);
    }

    proptest! {
        #[test]
        fn every_track_nests_and_nothing_is_lost(spans in prop::collection::vec((0..60_i64, 0..20_i64), 0..80)) {
            let spans = sorted(spans.into_iter().map(|(start, duration)| (start, start + duration)).collect());
            let mut seen = vec![0; spans.len()];
            for lane in lay_out(&spans) {
                let mut open: Vec<usize> = Vec::new();
                let mut now = i64::MIN;
                for edge in lane {
                    let (start, end) = spans[edge.slice()];
                    let time = if edge.is_end() { end } else { start };
                    prop_assert!(time >= now, "edges are in order of time");
                    now = time;
                    if edge.is_end() {
                        prop_assert_eq!(open.pop(), Some(edge.slice()), "the innermost ends first");
                    } else {
                        if let Some(&outer) = open.last() {
                            prop_assert!(spans[outer].1 >= end, "an inner slice ends first");
                            prop_assert!(spans[outer].1 > start || start == end, "an ended slice is not open");
                        }
                        open.push(edge.slice());
                        seen[edge.slice()] += 1;
                    }
                }
                prop_assert!(open.is_empty());
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }

    #[test]
    fn a_staircase_of_crossing_slices_is_not_quadratic() {
        let spans: Vec<(i64, i64)> = (0..200_000).map(|step| (step, step + 1_000_000)).collect();
        assert_eq!(lay_out(&spans).len(), 200_000);
    }
}
