//! Whether work of one stream ran one after the other, as a stream has it: what ended after its successor had begun is counted.
//!
//! The device's records come about in the order of their ends, but not quite: CUPTI has a buffer for each thread that submits, and
//! hands them over one by one. So those of a stream wait here in the order of their starts, until others have come behind
//! them or some time is over; then a record is compared with the one that is next. One that comes later than that is compared with
//! the last that was settled only: if it ended after that one's start, it ran past its successor, whichever that is; if not, it is not
//! known, and it is not counted.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

/// So many records of a stream wait.
const MOST: usize = 4096;
/// More streams than this have all of theirs settled: a program may have a new stream for each request.
const MOST_STREAMS: usize = 4096;

/// When work began and ended.
type Interval = (u64, u64);

/// One stream's.
#[derive(Debug, Default)]
struct Stream {
    waiting: VecDeque<Interval>,
    /// When the last began that does not wait any more.
    settled_ns: u64,
}

impl Stream {
    /// Adds work. Returns how many are known now to have run past their successors.
    fn add(&mut self, interval: Interval) -> u64 {
        let (start_ns, end_ns) = interval;
        if start_ns < self.settled_ns {
            return u64::from(end_ns > self.settled_ns);
        }
        let is_last = self.waiting.back().is_none_or(|last| *last <= interval);
        let at = if is_last { self.waiting.len() } else { self.waiting.partition_point(|other| *other <= interval) };
        self.waiting.insert(at, interval);
        if self.waiting.len() > MOST { self.settle(|_| true, 1) } else { 0 }
    }

    /// Has the first ones not wait any longer, but for the very last: at most so many, and as long as each is to go.
    fn settle(&mut self, goes: impl Fn(Interval) -> bool, most: usize) -> u64 {
        let mut past = 0;
        for _ in 0..most {
            let (Some(&first), Some(&next)) = (self.waiting.front(), self.waiting.get(1)) else { break };
            if !goes(first) {
                break;
            }
            past += u64::from(first.1 > next.0);
            self.settled_ns = first.0;
            self.waiting.pop_front();
        }
        past
    }
}

/// All streams of a process, by CUPTI's numbers of context and stream.
#[derive(Debug, Default)]
pub(super) struct Order(FxHashMap<(u32, u32), Stream>);

impl Order {
    /// Adds work of a stream. Returns how many are known now to have run past their successors.
    pub(super) fn add(&mut self, stream: (u32, u32), interval: Interval) -> u64 {
        let all = if self.0.len() >= MOST_STREAMS && !self.0.contains_key(&stream) { self.finish() } else { 0 };
        all + self.0.entry(stream).or_default().add(interval)
    }

    /// Has those not wait any longer that ended before this. Streams that have been quiet since are forgotten.
    pub(super) fn settle(&mut self, before_ns: u64) -> u64 {
        let mut past = 0;
        self.0.retain(|_, stream| {
            past += stream.settle(|(_, end_ns)| end_ns < before_ns, usize::MAX);
            stream.waiting.len() > 1 || stream.waiting.back().is_some_and(|last| last.1 >= before_ns)
        });
        past
    }

    /// Has none wait any longer.
    pub(super) fn finish(&mut self) -> u64 {
        self.settle(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: (u32, u32) = (1, 7);

    #[test]
    fn what_ends_after_its_successor_has_begun_is_counted_once_in_its_stream() {
        let mut order = Order::default();
        for (stream, interval) in
            [(STREAM, (10, 20)), (STREAM, (20, 31)), (STREAM, (30, 40)), ((1, 8), (15, 90)), (STREAM, (50, 60))]
        {
            assert_eq!(order.add(stream, interval), 0, "others may come");
        }
        assert_eq!(order.finish(), 1);
        assert_eq!(order.finish(), 0);
    }

    #[test]
    fn records_in_any_order_are_told_as_they_are_in_order() {
        let mut order = Order::default();
        // The one in the middle comes last: the first ends before its start, though not before that of the third.
        for interval in [(10, 35), (30, 40), (50, 60), (35, 45), (20, 25)] {
            order.add(STREAM, interval);
        }
        // 10-35 past 20, 30-40 past 35.
        assert_eq!(order.finish(), 2);
    }

    #[test]
    fn what_is_late_is_counted_only_if_it_is_known() {
        let mut order = Order::default();
        for start_ns in [10, 20, 30] {
            order.add(STREAM, (start_ns, start_ns + 5));
        }
        assert_eq!(order.settle(26), 0);
        assert_eq!(order.add(STREAM, (12, 14)), 0, "whether it is past the one of 10 to 15 nobody knows any more");
        assert_eq!(order.add(STREAM, (12, 21)), 1, "whichever is next, it began at 20 at the latest");
        assert_eq!(order.add(STREAM, (27, 29)), 0);
        assert_eq!(order.finish(), 0);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut order = Order::default();
        let mut past = 0;
        for index in 0..3 * MOST as u64 {
            past += order.add(STREAM, (10 * index, 10 * index + 11));
        }
        assert!(order.0[&STREAM].waiting.len() <= MOST);
        assert_eq!(past + order.finish(), 3 * MOST as u64 - 1);
        for stream in 0..3 * MOST_STREAMS as u32 {
            order.add((1, stream), (0, 1));
        }
        assert!(order.0.len() <= MOST_STREAMS);
        order.settle(2);
        assert!(order.0.is_empty());
    }
}
