//! Whether what a thread was in nests, as calls do.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How many of a thread's intervals (start, end) cross an earlier one: they begin within it and end after it.
///
/// Each counts once, however many it crosses. The intervals may come in any order and are sorted.
pub(super) fn crossings(intervals: &mut [(i64, i64)]) -> u64 {
    // Of those that start together the longer contains the shorter.
    intervals.sort_unstable_by_key(|&(start, end)| (start, Reverse(end)));
    let mut open = BinaryHeap::new();
    let mut count = 0;
    for &(start, end) in &*intervals {
        while open.peek().is_some_and(|&Reverse(earlier)| earlier <= start) {
            open.pop();
        }
        count += u64::from(open.peek().is_some_and(|&Reverse(earlier)| earlier < end));
        open.push(Reverse(end));
    }
    count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_nests_or_follows_does_not_cross() {
        assert_eq!(crossings(&mut [(0, 10), (0, 10), (0, 3), (3, 10), (4, 4), (10, 12), (i64::MIN, i64::MAX)]), 0);
    }

    #[test]
    fn what_outlasts_an_interval_that_it_began_in_crosses_it() {
        assert_eq!(crossings(&mut [(5, 15), (0, 10), (8, 30), (9, 9)]), 2);
    }

    proptest! {
        #[test]
        fn as_all_against_all(mut intervals in prop::collection::vec((0_i64..40, 0_i64..20), 0..40)) {
            intervals.iter_mut().for_each(|(start, length)| *length += *start);
            let crosses = |b: &&(i64, i64)| intervals.iter().any(|a| a.0 < b.0 && b.0 < a.1 && a.1 < b.1);
            let expected = intervals.iter().filter(crosses).count() as u64;
            prop_assert_eq!(crossings(&mut intervals), expected);
        }
    }
}
