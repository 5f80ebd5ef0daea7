//! Finding work that is in step with the sampler, so that the phase decides what a profile says.
//!
//! If a sample's luck in one period said nothing of its luck in the next, the variances of a key's samples would add up
//! over the periods. With pₖ the part of period k in which the key runs, they would be Σ pₖ(1 − pₖ). The true variance
//! over all phases is known exactly; work that comes at the same place in each of m periods makes it m times as large.
//! Bursts within one period, as in a trace of a single forward pass, do not count. Several tracks in one period are
//! taken as fully dependent, which can only hide a lock-step, never invent one.

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::work::{Interval, Work};

/// How many times the variance must exceed that of independent periods. By chance less than e⁻⁸ of keys do.
const LEAST_RATIO: f64 = 8.0;
/// In how many periods the key must come and go for that to mean anything.
const LEAST_PERIODS: usize = 8;
/// And the profiles must differ by this part of the exact time, or nobody cares.
const LEAST_SPREAD: f64 = 0.5;
/// At how many phases the bias is given.
const PHASES: u64 = 20;

/// A key that is in step with the sampler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockStep {
    /// Which.
    pub key: String,
    /// As a person reads it.
    pub label: String,
    /// How long it really ran.
    pub exact_ns: u64,
    /// The variance of its samples over that of independent periods.
    pub variance_ratio: f64,
    /// In how many periods it comes or goes.
    pub periods: usize,
    /// What the luckless phases report.
    pub sampled_ns_min: u64,
    /// What the other extreme reports.
    pub sampled_ns_max: u64,
    /// How often the work repeats, if its starts show it.
    pub loop_period_ns: Option<u64>,
    /// What is reported at the middle of each twentieth of the sampler's period.
    pub sampled_ns_by_phase: Vec<u64>,
}

/// All keys in lock-step, by exact rank.
pub fn find(work: &Work, period_ns: u64) -> Vec<LockStep> {
    let mut by_key = work.intervals.clone();
    by_key.par_sort_unstable_by_key(|interval| (interval.key, interval.track, interval.start_ns, interval.end_ns));
    let groups: Vec<&[Interval]> = by_key.chunk_by(|a, b| a.key == b.key).collect();
    groups.into_par_iter().filter_map(|intervals| examine(work, intervals, period_ns)).collect()
}

fn examine(work: &Work, intervals: &[Interval], period_ns: u64) -> Option<LockStep> {
    let origin_ns = work.span_ns.0;
    let times = || intervals.iter().map(|i| (i.start_ns.abs_diff(origin_ns), i.end_ns.abs_diff(origin_ns), i.track));
    if intervals.len() < LEAST_PERIODS {
        return None;
    }
    let (independent, periods) = independent_variance(times(), period_ns);
    if periods < LEAST_PERIODS {
        return None;
    }
    let spread = Spread::of(times(), period_ns);
    let variance_ratio = spread.variance / independent;
    let key = &work.keys[intervals[0].key as usize];
    let apart_ns = (spread.p95 - spread.p05) as f64 * period_ns as f64;
    if variance_ratio < LEAST_RATIO || apart_ns < LEAST_SPREAD * key.exact_ns as f64 {
        return None;
    }
    let middle = |i: u64| (2 * i + 1) * period_ns / (2 * PHASES);
    Some(LockStep {
        key: key.name.clone(),
        label: key.label.clone(),
        exact_ns: key.exact_ns,
        variance_ratio,
        periods,
        sampled_ns_min: spread.min.saturating_mul(period_ns),
        sampled_ns_max: spread.max.saturating_mul(period_ns),
        loop_period_ns: loop_period_ns(intervals, period_ns),
        sampled_ns_by_phase: (0..PHASES)
            .map(|i| samples_at(times(), period_ns, middle(i)).saturating_mul(period_ns))
            .collect(),
    })
}

/// Σ pₖ(1 − pₖ), and over how many periods. Periods that an interval fills are certain and add nothing.
fn independent_variance(times: impl Iterator<Item = (u64, u64, u32)>, period_ns: u64) -> (f64, usize) {
    let mut part_ns: FxHashMap<(u64, u32), u64> = FxHashMap::default();
    for (start, end, track) in times {
        let (first, last) = (start / period_ns, end / period_ns);
        if first == last {
            *part_ns.entry((first, track)).or_default() += end - start;
        } else {
            *part_ns.entry((first, track)).or_default() += period_ns - start % period_ns;
            *part_ns.entry((last, track)).or_default() += end % period_ns;
        }
    }
    let mut parts: Vec<_> = part_ns.into_iter().filter(|&(_, part_ns)| 0 < part_ns && part_ns < period_ns).collect();
    parts.sort_unstable();
    let (mut variance, mut periods) = (0.0, 0);
    for tracks in parts.chunk_by(|a, b| a.0.0 == b.0.0) {
        let deviation: f64 =
            tracks.iter().map(|&(_, part_ns)| part_ns as f64 / period_ns as f64).map(|p| (p * (1.0 - p)).sqrt()).sum();
        variance += deviation * deviation;
        periods += 1;
    }
    (variance, periods)
}

/// How one key's samples differ over all phases; see `phases` for the formula.
struct Spread {
    variance: f64,
    min: u64,
    max: u64,
    p05: u64,
    p95: u64,
}

impl Spread {
    fn of(times: impl Iterator<Item = (u64, u64, u32)>, period_ns: u64) -> Spread {
        let mut samples = 0_i64;
        let mut changes = Vec::new();
        for (start, end, _) in times {
            samples += (end.div_ceil(period_ns) - start.div_ceil(period_ns)) as i64;
            changes.push((start % period_ns, 1));
            changes.push((end % period_ns, -1));
        }
        changes.retain(|&(phase, _)| phase > 0);
        changes.sort_unstable();
        let mut held: Vec<(u64, u64)> = Vec::with_capacity(changes.len());
        let mut since = 0;
        for (phase, step) in changes.into_iter().chain([(period_ns, 0)]) {
            if phase > since {
                held.push((samples as u64, phase - since));
            }
            since = phase;
            samples += step;
        }
        held.sort_unstable();
        let mean = held.iter().map(|&(n, ns)| n as f64 * ns as f64).sum::<f64>() / period_ns as f64;
        let squares = held.iter().map(|&(n, ns)| (n as f64 - mean).powi(2) * ns as f64).sum::<f64>();
        let quantile = |part: f64| {
            let mut below = 0;
            let reaches = |&&(_, ns): &&(u64, u64)| {
                below += ns;
                below as f64 >= part * period_ns as f64
            };
            held.iter().find(reaches).map_or(0, |&(n, _)| n)
        };
        Spread {
            variance: squares / period_ns as f64,
            min: held.first().map_or(0, |&(n, _)| n),
            max: held.last().map_or(0, |&(n, _)| n),
            p05: quantile(0.05),
            p95: quantile(0.95),
        }
    }
}

fn samples_at(times: impl Iterator<Item = (u64, u64, u32)>, period_ns: u64, phase: u64) -> u64 {
    let below = |time: u64| time.saturating_sub(phase).div_ceil(period_ns);
    times.map(|(start, end, _)| below(end) - below(start)).sum()
}

/// How often the work repeats: the least number of calls after which it starts again at a steady distance that is a
/// multiple, or a whole fraction, of the sampler's period. (A kernel that runs once a layer repeats every 32 calls.)
fn loop_period_ns(intervals: &[Interval], period_ns: u64) -> Option<u64> {
    const CALLS: usize = 4096;
    const CALLS_A_LOOP: usize = 256;
    let track = intervals[0].track;
    let starts: Vec<i64> =
        intervals.iter().take_while(|interval| interval.track == track).take(CALLS).map(|i| i.start_ns).collect();
    (1..=CALLS_A_LOOP.min(starts.len() / 4)).find_map(|lag| {
        let mut gaps: Vec<u64> = starts.windows(lag + 1).map(|starts| starts[lag].abs_diff(starts[0])).collect();
        gaps.sort_unstable();
        let at = |per_cent: usize| gaps[(gaps.len() - 1) * per_cent / 100];
        let (low, median, high) = (at(2), at(50), at(98));
        let (short, long) = (median.min(period_ns).max(1), median.max(period_ns));
        let off = long.abs_diff((long + short / 2) / short * short);
        let is_steady = high - low <= median / 50;
        (is_steady && off <= short / 50 && long / short <= 16).then_some(median)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: u64 = 1000;

    fn spread(times: &[(u64, u64, u32)]) -> Spread {
        Spread::of(times.iter().copied(), PERIOD_NS)
    }

    #[test]
    fn work_at_the_same_place_of_each_period_has_as_many_times_the_variance_as_periods() {
        let times: Vec<_> = (0..50).map(|k| (k * PERIOD_NS + 200, k * PERIOD_NS + 300, 0)).collect();
        let (independent, periods) = independent_variance(times.iter().copied(), PERIOD_NS);
        let spread = spread(&times);
        assert_eq!((spread.min, spread.max, periods), (0, 50, 50));
        assert!((spread.variance / independent - 50.0).abs() < 1e-6);
    }

    #[test]
    fn work_that_drifts_through_the_period_is_not_in_step() {
        let times: Vec<_> = (0..50).map(|k| (k * 1020, k * 1020 + 100, 0)).collect();
        let (independent, _) = independent_variance(times.iter().copied(), PERIOD_NS);
        assert!(spread(&times).variance / independent < 1.0);
    }

    #[test]
    fn a_burst_within_one_period_is_one_period() {
        let times: Vec<_> = (0..50).map(|k| (k * 2, k * 2 + 1, 0)).collect();
        let (independent, periods) = independent_variance(times.iter().copied(), PERIOD_NS);
        assert_eq!(periods, 1);
        assert!(spread(&times).variance / independent < 1.5);
    }

    #[test]
    fn the_loop_is_found_by_its_starts() {
        // Three calls a loop of 2000 ns.
        let starts = (0..60).flat_map(|k| [0, 100, 300].map(|offset| k * 2000 + offset));
        let intervals: Vec<_> =
            starts.map(|start_ns| Interval { start_ns, end_ns: start_ns + 50, key: 0, track: 0 }).collect();
        assert_eq!(loop_period_ns(&intervals, PERIOD_NS), Some(2000));
    }
}
