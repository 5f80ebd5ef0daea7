//! How long a profile is taken: the trace cut into consecutive windows of one length, each an equally likely profile.

use super::Error;
use super::work::{Interval, Work};
use crate::human::duration;

/// Consecutive windows of one length from the trace's start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// When the first begins.
    pub origin_ns: i64,
    /// How long each is.
    pub length_ns: u64,
    /// How many whole ones fit; what remains at the end belongs to none.
    pub count: u64,
}

/// A piece of work in a window, its times counted from the window's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which window.
    pub window: u64,
    /// When it begins in the window.
    pub start_ns: u64,
    /// When it is over.
    pub end_ns: u64,
    /// What is found.
    pub key: u32,
    /// On which stream or thread.
    pub track: u32,
}

/// More windows than this (a day has 86,400 seconds) are a mistyped unit or a damaged time stamp.
const MOST_WINDOWS: u64 = 100_000;

/// The windows to simulate, and what to tell the user of those that the trace is too short for.
pub fn choose(work: &Work, lengths_ns: &[u64]) -> Result<(Vec<Windows>, Vec<String>), Error> {
    let (origin_ns, end_ns) = work.span_ns;
    let span_ns = end_ns.abs_diff(origin_ns);
    let whole = Windows { origin_ns, length_ns: span_ns.max(1), count: 1 };
    let (mut windows, mut notes) = (Vec::new(), Vec::new());
    for &length_ns in lengths_ns {
        let count = span_ns / length_ns.max(1);
        if count > MOST_WINDOWS {
            return Err(Error::TooManyWindows { window_ns: length_ns, windows: count, span_ns });
        }
        if count == 0 {
            let (window, span) = (duration(length_ns as f64), duration(span_ns as f64));
            notes.push(format!("a window of {window} is longer than this trace ({span}) and is left out"));
        } else {
            windows.push(Windows { origin_ns, length_ns, count });
        }
    }
    if windows.is_empty() {
        windows.push(whole);
    }
    Ok((windows, notes))
}

impl Windows {
    /// How much of the trace lies in no window.
    pub fn uncovered_ns(&self, work: &Work) -> u64 {
        work.span_ns.1.abs_diff(work.span_ns.0).saturating_sub(self.length_ns.saturating_mul(self.count))
    }

    /// The parts of an interval, by window.
    pub fn cut(self, interval: &Interval) -> impl Iterator<Item = Piece> {
        let (key, track) = (interval.key, interval.track);
        let covered_ns = self.length_ns.saturating_mul(self.count);
        let start = interval.start_ns.abs_diff(self.origin_ns).min(covered_ns);
        let end = interval.end_ns.abs_diff(self.origin_ns).min(covered_ns);
        let windows = if start < end { start / self.length_ns..(end - 1) / self.length_ns + 1 } else { 0..0 };
        windows.map(move |window| {
            let opens = window * self.length_ns;
            let start_ns = start.max(opens) - opens;
            let end_ns = end.min(opens + self.length_ns) - opens;
            Piece { window, start_ns, end_ns, key, track }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_cut_at_windows_and_the_rest_is_left_out() {
        let windows = Windows { origin_ns: 100, length_ns: 10, count: 2 };
        let pieces: Vec<_> = windows.cut(&Interval { start_ns: 105, end_ns: 125, key: 3, track: 1 }).collect();
        assert_eq!(
            pieces,
            [
                Piece { window: 0, start_ns: 5, end_ns: 10, key: 3, track: 1 },
                Piece { window: 1, start_ns: 0, end_ns: 10, key: 3, track: 1 },
            ]
        );
        assert_eq!(windows.cut(&Interval { start_ns: 120, end_ns: 130, key: 0, track: 0 }).count(), 0);
    }
}
