//! A fixed-period sampler, all its phases at once, exactly.
//!
//! With period T and phase φ, 0 ≤ φ < T, the sampler looks at φ, φ + T, φ + 2T, … An interval [s, e) is hit
//!
//! ```text
//! hits(φ) = ⌊e/T⌋ − ⌊s/T⌋ + [φ < e mod T] − [φ < s mod T]
//! ```
//!
//! times, so as φ grows it gains one at `s mod T`, loses one at `e mod T` and never changes between. All intervals'
//! changes, sorted, are a sweep over all phases in O(n log n). Each key's samples are known in every phase, and the
//! phases for which they hold are its weight. Phases are whole nanoseconds, like all times: nothing happens between.

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::rank::Ranking;
use super::tally::{KeyTally, Tally};
use super::windows::{Piece, Windows};
use super::work::Work;

/// Share errors and quantiles of ranks are taken at this many phases, evenly spread over windows and phases …
const MOST_CHECKS: u64 = 1024;
/// … or at as many as keep this many ranks in memory.
const MOST_RANKS: u64 = 1 << 24;

/// Plays a fixed-period sampler in every window and with every phase.
pub fn sweep(work: &Work, windows: Windows, period_ns: u64, top: usize) -> Tally {
    let mut pieces: Vec<Piece> = work.intervals.iter().flat_map(|interval| windows.cut(interval)).collect();
    pieces.par_sort_unstable_by_key(|piece| (piece.window, piece.key, piece.start_ns, piece.end_ns));
    let checks = (MOST_RANKS / work.keys.len() as u64).clamp(64, MOST_CHECKS).div_ceil(windows.count).max(1);
    let exact_ns = work.exact_ns() as f64;
    let groups: Vec<&[Piece]> = pieces.chunk_by(|a, b| a.window == b.window).collect();
    let swept: Vec<Window> = groups
        .par_iter()
        .map(|pieces| {
            let shares = |key: u32| work.keys[key as usize].exact_ns as f64 / exact_ns;
            sweep_window(pieces, period_ns, top, &check_phases(pieces[0].window, checks, period_ns), shares)
        })
        .collect();
    let mut tally = Tally::new(work.keys.len());
    tally.weight = u128::from(period_ns) * u128::from(windows.count);
    tally.checks = checks * windows.count;
    for window in swept {
        tally.add(window);
    }
    // Windows without any work found nothing.
    tally.share_errors.resize(tally.checks as usize, 1.0);
    tally.seal();
    tally
}

/// The phases of a window's checks: even strata, shifted from window to window by the golden ratio, so that the
/// windows together cover the phases evenly too.
fn check_phases(window: u64, checks: u64, period_ns: u64) -> Vec<u64> {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let shift = u128::from(window.wrapping_mul(GOLDEN).wrapping_add(1 << 63));
    let phase = |check: u64| ((u128::from(check) << 64) + shift) * u128::from(period_ns) / u128::from(checks);
    (0..checks).map(|check| (phase(check) >> 64) as u64).collect()
}

/// What the profiles of one window said, by key.
struct Window {
    keys: Vec<(u32, KeyTally)>,
    share_errors: Vec<f64>,
}

/// A key gains or loses a sample from this phase on. Sorted, so losses come before gains.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Change {
    phase: u64,
    key: u32,
    gains: bool,
}

fn sweep_window(pieces: &[Piece], period_ns: u64, top: usize, checks: &[u64], share: impl Fn(u32) -> f64) -> Window {
    let mut global: Vec<u32> = pieces.iter().map(|piece| piece.key).collect();
    global.dedup();
    let local: FxHashMap<u32, u32> = global.iter().zip(0..).map(|(&key, local)| (key, local)).collect();
    let (first, changes) = changes(pieces, period_ns, global.len(), |key| local[&key]);

    let mut keys = vec![KeyTally::default(); global.len()];
    let mut since = vec![0; global.len()];
    let mut ranking = Ranking::new(&first, top);
    let mut share_errors = Vec::with_capacity(checks.len());
    let mut checks = checks.iter().peekable();
    for change in &changes {
        while checks.next_if(|&&phase| phase < change.phase).is_some() {
            share_errors.push(check(&ranking, &mut keys, |key| share(global[key])));
        }
        let key = change.key as usize;
        settle(&mut keys[key], ranking.samples(key), change.phase - since[key]);
        since[key] = change.phase;
        ranking.step(change.phase, key, change.gains);
    }
    for _ in checks {
        share_errors.push(check(&ranking, &mut keys, |key| share(global[key])));
    }
    for (key, tally) in keys.iter_mut().enumerate() {
        settle(tally, ranking.samples(key), period_ns - since[key]);
    }
    for (tally, sums) in keys.iter_mut().zip(ranking.finish(period_ns)) {
        (tally.rank_weight, tally.top10_weight, tally.top_weight) = (sums.rank, sums.top10, sums.top);
    }
    Window { keys: global.into_iter().zip(keys).collect(), share_errors }
}

/// Each key's samples at phase 0, and all later changes in order.
fn changes(pieces: &[Piece], period_ns: u64, keys: usize, key_of: impl Fn(u32) -> u32) -> (Vec<u64>, Vec<Change>) {
    let mut first = vec![0; keys];
    let mut changes = Vec::with_capacity(pieces.len() * 2);
    for piece in pieces {
        let key = key_of(piece.key);
        let (gained, lost) = (piece.start_ns % period_ns, piece.end_ns % period_ns);
        // ⌈e/T⌉ − ⌈s/T⌉, the formula of the module's head at φ = 0.
        first[key as usize] += piece.end_ns.div_ceil(period_ns) - piece.start_ns.div_ceil(period_ns);
        if gained != lost {
            changes.extend((gained > 0).then_some(Change { phase: gained, key, gains: true }));
            changes.extend((lost > 0).then_some(Change { phase: lost, key, gains: false }));
        }
    }
    changes.par_sort_unstable();
    (first, changes)
}

fn settle(tally: &mut KeyTally, samples: u64, phases_ns: u64) {
    if phases_ns > 0 {
        *tally.samples.entry(samples).or_default() += u128::from(phases_ns);
    }
}

/// Notes all ranks at the present phase and returns the error of the shares: Σ|pₖ − qₖ|/2 = 1 − Σ min(pₖ, qₖ).
fn check(ranking: &Ranking, keys: &mut [KeyTally], share: impl Fn(usize) -> f64) -> f64 {
    let samples: u64 = (0..keys.len()).map(|key| ranking.samples(key)).sum();
    let mut common = 0.0;
    for (key, tally) in keys.iter_mut().enumerate() {
        if let Some(rank) = ranking.rank(key) {
            tally.ranks.push(rank);
            common += share(key).min(ranking.samples(key) as f64 / samples as f64);
        }
    }
    (1.0 - common).max(0.0)
}

impl Tally {
    fn add(&mut self, window: Window) {
        for (key, mut from) in window.keys {
            let to = &mut self.keys[key as usize];
            for (samples, weight) in from.samples {
                *to.samples.entry(samples).or_default() += weight;
            }
            to.rank_weight += from.rank_weight;
            to.top10_weight += from.top10_weight;
            to.top_weight += from.top_weight;
            to.ranks.append(&mut from.ranks);
        }
        self.share_errors.extend(window.share_errors);
    }
}
