//! A sampler that looks at irregular instants, played many times.
//!
//! Irregular sampling cannot be in step with anything. There are too many outcomes to compute them all, so profiles are
//! drawn: run `r` uses the stream of random numbers that `seed` and `r` name, whichever thread plays it.

use rayon::prelude::*;
use serde::Serialize;

use super::tally::{KeyTally, Tally};
use super::windows::Windows;
use super::work::{Interval, Work};
use super::{Error, rank::Ranking};

/// How the instants are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// One instant in every period, anywhere in it
    Uniform,
    /// Exponential gaps with the period as their mean, as py-spy draws them
    Exponential,
}

/// About a minute of one core.
const MOST_SAMPLES: u128 = 2_000_000_000;
/// Runs whose ranks are kept for quantiles, at most.
const MOST_RANKS: u64 = 1 << 24;
/// Runs that are played before their results are gathered: bounds the memory.
const BATCH: u64 = 256;

/// Plays `runs` profiles in each window.
pub fn play(
    work: &Work,
    windows: Windows,
    period_ns: u64,
    top: usize,
    jitter: Jitter,
    seed: u64,
    runs: u32,
) -> Result<Tally, Error> {
    let profiles = windows.count * u64::from(runs);
    let samples = u128::from(windows.length_ns.div_ceil(period_ns)) * u128::from(profiles);
    if samples > MOST_SAMPLES {
        return Err(Error::TooManySamples { samples });
    }
    let lanes = Lanes::new(work, windows);
    let exact_ns = work.exact_ns() as f64;
    let checks = (MOST_RANKS / work.keys.len() as u64).clamp(64, profiles.max(64)).min(profiles);
    let mut tally = Tally::new(work.keys.len());
    tally.weight = u128::from(profiles);
    tally.checks = checks;
    for batch in (0..profiles).step_by(BATCH as usize) {
        let found: Vec<Vec<(u32, u64)>> = (batch..profiles.min(batch + BATCH))
            .into_par_iter()
            .map(|profile| {
                let opens_ns = profile % windows.count * windows.length_ns;
                let instants = Instants::new(jitter, period_ns, windows.length_ns, seed, profile);
                lanes.look(instants.map(|instant_ns| opens_ns + instant_ns))
            })
            .collect();
        for (profile, found) in (batch..).zip(found) {
            // Every k-th profile, so that the checks are spread over all windows.
            let is_check = profile * checks / profiles != (profile + 1) * checks / profiles;
            tally.count(&found, top, is_check, |key| work.keys[key as usize].exact_ns as f64 / exact_ns);
        }
    }
    tally.seal();
    Ok(tally)
}

/// The instants of one profile, from its window's start.
struct Instants {
    jitter: Jitter,
    period_ns: u64,
    length_ns: u64,
    random: SplitMix64,
    next_ns: u64,
}

impl Instants {
    fn new(jitter: Jitter, period_ns: u64, length_ns: u64, seed: u64, profile: u64) -> Instants {
        // The generator's own output separates the profiles' streams.
        let mut streams = SplitMix64(seed ^ profile.wrapping_mul(0xd134_2543_de82_ef95));
        let random = SplitMix64(streams.next());
        Instants { jitter, period_ns, length_ns, random, next_ns: 0 }
    }
}

impl Iterator for Instants {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.next_ns >= self.length_ns {
            return None;
        }
        let instant_ns = match self.jitter {
            Jitter::Uniform => {
                let instant_ns = self.next_ns + self.random.below(self.period_ns);
                self.next_ns += self.period_ns;
                instant_ns
            }
            Jitter::Exponential => {
                // Memoryless: the first gap, from the start, is like the others.
                let gap_ns = -(1.0 - self.random.unit()).ln() * self.period_ns as f64;
                self.next_ns = self.next_ns.saturating_add(gap_ns as u64);
                self.next_ns
            }
        };
        // The last, incomplete period may be missed.
        (instant_ns < self.length_ns).then_some(instant_ns)
    }
}

/// Steele, Lea and Flood's SplitMix64 (2014): 64 bits of state, and any seed is good.
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..bound. The multiplication's bias is below bound/2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The work as lanes of intervals that do not overlap, so that what runs at an instant is one search in each.
struct Lanes {
    lanes: Vec<Vec<(u64, u64, u32)>>,
}

impl Lanes {
    fn new(work: &Work, windows: Windows) -> Lanes {
        let mut by_start: Vec<&Interval> = work.intervals.iter().collect();
        by_start
            .par_sort_unstable_by_key(|interval| (interval.start_ns, interval.end_ns, interval.key, interval.track));
        let mut lanes: Vec<Vec<(u64, u64, u32)>> = Vec::new();
        // The lane that is free first.
        let mut free = std::collections::BinaryHeap::new();
        for interval in by_start {
            let start_ns = interval.start_ns.abs_diff(windows.origin_ns);
            let end_ns = interval.end_ns.abs_diff(windows.origin_ns);
            let lane = match free.peek() {
                Some(&(std::cmp::Reverse(free_ns), lane)) if free_ns <= start_ns => {
                    free.pop();
                    lane
                }
                _ => {
                    lanes.push(Vec::new());
                    lanes.len() - 1
                }
            };
            lanes[lane].push((start_ns, end_ns, interval.key));
            free.push((std::cmp::Reverse(end_ns), lane));
        }
        Lanes { lanes }
    }

    /// The keys found at these ascending instants and how often, by key.
    fn look(&self, instants: impl Iterator<Item = u64>) -> Vec<(u32, u64)> {
        let mut at: Vec<&[(u64, u64, u32)]> = self.lanes.iter().map(|lane| &lane[..]).collect();
        let mut hits = Vec::new();
        for instant in instants {
            for lane in &mut at {
                *lane = &lane[skip_ended(lane, instant)..];
                hits.extend(lane.first().filter(|first| first.0 <= instant).map(|first| first.2));
            }
        }
        hits.sort_unstable();
        hits.chunk_by(|a, b| a == b).map(|hits| (hits[0], hits.len() as u64)).collect()
    }
}

/// How many intervals at the front end by `instant`: steps that double, then a search within the last.
fn skip_ended(lane: &[(u64, u64, u32)], instant: u64) -> usize {
    let mut reach = 1;
    while reach < lane.len() && lane[reach - 1].1 <= instant {
        reach *= 2;
    }
    let from = reach / 2;
    let to = reach.min(lane.len());
    from + lane[from..to].partition_point(|interval| interval.1 <= instant)
}

impl Tally {
    /// Adds one profile, of weight 1.
    fn count(&mut self, found: &[(u32, u64)], top: usize, is_check: bool, share: impl Fn(u32) -> f64) {
        let samples: Vec<u64> = found.iter().map(|&(_, samples)| samples).collect();
        let total: u64 = samples.iter().sum();
        let ranking = Ranking::new(&samples, top);
        let ranks: Vec<Option<u32>> = (0..found.len()).map(|key| ranking.rank(key)).collect();
        let mut common = 0.0;
        for (((key, samples), sums), rank) in found.iter().zip(ranking.finish(1)).zip(ranks) {
            let tally: &mut KeyTally = &mut self.keys[*key as usize];
            *tally.samples.entry(*samples).or_default() += 1;
            tally.rank_weight += sums.rank;
            tally.top10_weight += sums.top10;
            tally.top_weight += sums.top;
            tally.ranks.extend(rank.filter(|_| is_check));
            common += share(*key).min(*samples as f64 / total as f64);
        }
        if is_check {
            self.share_errors.push((1.0 - common).max(0.0));
        }
    }
}
