//! Interval sets. Device work overlaps (streams, programmatic dependent launches), so time is a union, never a sum.

/// The time covered by intervals sorted by start.
pub fn union_ns(sorted: impl IntoIterator<Item = (i64, i64)>) -> u64 {
    let mut covered = 0;
    let mut reach = i64::MIN;
    for (start, end) in sorted {
        if end > reach {
            covered += end.abs_diff(start.max(reach));
            reach = end;
        }
    }
    covered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_work_is_counted_once() {
        let work = [(0, 10), (5, 12), (6, 8), (20, 20), (30, 31)];
        assert_eq!(union_ns(work), 13);
    }

    #[test]
    fn nothing_covers_nothing() {
        assert_eq!(union_ns([]), 0);
    }
}
