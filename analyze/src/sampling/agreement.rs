//! A real profiler's samples against the simulated one's, on the same recording.
//!
//! Both see a thread in a recorded call: the simulated one as the call has a start and an end, the real one as it was there. So
//! of the real samples those count whose time lies in such a call of their thread. The real sampler's own word is the sample's
//! stack; that it is the stack of the call which the time says is counted too. Of each row, both give a share of the time, and
//! both an interval: 90 % of the simulated profiles, and 95 % for a share of so many samples (Wilson's). They agree if these
//! have a share in common.

use ktape_format::Table as _;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Comparison;
use super::device_work::stack_key;
use super::work::{Interval, Work};
use crate::timeline::Timeline;

/// How the samples of a real profiler agree with those of the simulated one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// The time that a real sample stands for.
    pub period_ns: u64,
    /// Real samples of the whole trace.
    pub samples: u64,
    /// Those in recorded calls that do not wait: all of the following are about them.
    pub in_calls: u64,
    /// Those whose stack could not be read.
    pub without_stack: u64,
    /// Those whose own stack says the same row as the call that they are in.
    pub same_row: u64,
    /// The comparison's rows, by exact rank.
    pub rows: Vec<AgreementRow>,
}

/// One row by both samplers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgreementRow {
    /// The row's key.
    pub key: String,
    /// The row's name as a person reads it.
    pub label: String,
    /// Its share of the exact time.
    pub exact_share: f64,
    /// 5 % of the simulated profiles give it this share or less.
    pub simulated_share_p05: f64,
    /// 95 % of the simulated profiles give it this share or less.
    pub simulated_share_p95: f64,
    /// Real samples with its stack.
    pub samples: u64,
    /// Their share of those with a stack.
    pub share: f64,
    /// The lower end of its 95 % interval.
    pub share_low: f64,
    /// The upper end of it.
    pub share_high: f64,
    /// Whether the two intervals have a share in common.
    pub agrees: bool,
}

/// Holds the real samples against a comparison of the whole trace; `None` where there are none, or where they see something
/// else than what was simulated.
pub(super) fn find(timeline: &Timeline, work: &Work, comparison: &Comparison) -> Option<Agreement> {
    let samples = &timeline.events.cpu_sample;
    let period_ns = samples.weight_ns.iter().copied().find(|&weight_ns| weight_ns > 0)?;
    if work.calls_only.is_none() || comparison.windows != 1 || comparison.window_ns != comparison.span_ns {
        return None;
    }
    let mut found = Agreement {
        period_ns,
        samples: samples.len() as u64,
        in_calls: 0,
        without_stack: 0,
        same_row: 0,
        rows: Vec::new(),
    };
    let mut counts: FxHashMap<String, u64> = FxHashMap::default();
    let mut keys: FxHashMap<u32, String> = FxHashMap::default();
    for row in samples.rows() {
        let Some(interval) = work.track_of.get(&row.thread).and_then(|&track| at(&work.intervals, track, row.start_ns))
        else {
            continue;
        };
        found.in_calls += 1;
        if row.stack == 0 {
            found.without_stack += 1;
            continue;
        }
        let key = keys.entry(row.stack).or_insert_with(|| stack_key(&timeline.definitions, row.stack, work.by).0);
        found.same_row += u64::from(work.keys[interval.key as usize].name == *key);
        match counts.get_mut(key) {
            Some(count) => *count += 1,
            None => _ = counts.insert(key.clone(), 1),
        }
    }
    let all = found.in_calls - found.without_stack;
    let exact_ns = comparison.exact_ns as f64;
    found.rows = comparison
        .rows
        .iter()
        .map(|row| {
            let samples = counts.get(&row.key).copied().unwrap_or(0);
            let (share_low, share_high) = wilson(samples, all);
            let (low, high) = (row.sampled_ns_p05 as f64 / exact_ns, row.sampled_ns_p95 as f64 / exact_ns);
            AgreementRow {
                key: row.key.clone(),
                label: row.label.clone(),
                exact_share: row.exact_share,
                simulated_share_p05: low,
                simulated_share_p95: high,
                samples,
                share: samples as f64 / all.max(1) as f64,
                share_low,
                share_high,
                agrees: share_low <= high && low <= share_high,
            }
        })
        .collect();
    Some(found)
}

/// The interval of a track that holds this instant. A track's intervals do not overlap, as a thread is in one place at a time.
fn at(intervals: &[Interval], track: u32, time_ns: i64) -> Option<&Interval> {
    let after = intervals.partition_point(|interval| (interval.track, interval.start_ns) <= (track, time_ns));
    intervals[..after].last().filter(|interval| interval.track == track && time_ns < interval.end_ns)
}

/// Wilson's 95 % interval of a share; all of it where there is nothing to tell by.
fn wilson(hits: u64, of: u64) -> (f64, f64) {
    const Z: f64 = 1.96;
    if of == 0 {
        return (0.0, 1.0);
    }
    let n = of as f64;
    let p = hits as f64 / n;
    let middle = p + Z * Z / (2.0 * n);
    let spread = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    // Of none and of all the one end is exact, and what is calculated is not.
    let low = if hits == 0 { 0.0 } else { (middle - spread) / scale };
    let high = if hits == of { 1.0 } else { (middle + spread) / scale };
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_few_samples_is_known_badly() {
        let rounded = |hits, of| {
            let (low, high) = wilson(hits, of);
            ((low * 1000.0).round(), (high * 1000.0).round())
        };
        // By R: binom.confint(x, n, methods = "wilson").
        assert_eq!(rounded(5, 10), (237.0, 763.0));
        assert_eq!(rounded(0, 10), (0.0, 278.0));
        assert_eq!(rounded(500, 1000), (469.0, 531.0));
        assert_eq!(rounded(0, 0), (0.0, 1000.0));
    }

    #[test]
    fn no_samples_agree_with_a_share_of_nothing() {
        for of in 1..1000 {
            assert_eq!((wilson(0, of).0, wilson(of, of).1), (0.0, 1.0), "{of}");
        }
    }

    #[test]
    fn an_instant_is_in_the_interval_of_its_own_track() {
        let interval = |track, start_ns, end_ns| Interval { start_ns, end_ns, key: 0, track };
        let intervals = [interval(0, 10, 20), interval(0, 30, 40), interval(1, 5, 50)];
        let found = |track, time_ns| at(&intervals, track, time_ns).map(|interval| interval.start_ns);
        assert_eq!([found(0, 9), found(0, 10), found(0, 19), found(0, 20)], [None, Some(10), Some(10), None]);
        assert_eq!([found(0, 39), found(0, 45), found(1, 4), found(1, 45)], [Some(30), None, None, Some(5)]);
    }
}
