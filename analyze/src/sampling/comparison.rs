//! The comparison: the exact record beside what profiles of it would have said.

use serde::Serialize;

use super::agreement::Agreement;
use super::jitter::Jitter;
use super::lock_step::LockStep;
use super::tally::Tally;
use super::windows::Windows;
use super::work::{By, Sampler, Times, Waits, Work};
use super::{Options, Schedule};

/// A frequency and window's verdict. Serialised, this is `analyze compare --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is looked at.
    pub sampler: Sampler,
    /// What a row is.
    pub by: By,
    /// Samples a second.
    pub hz: u32,
    /// Time between samples.
    pub period_ns: u64,
    /// How random instants are drawn; absent for a fixed period.
    pub jitter: Option<Jitter>,
    /// Where random numbers start.
    pub seed: Option<u64>,
    /// How many random profiles were played.
    pub runs: Option<u32>,
    /// How long the trace is.
    pub span_ns: u64,
    /// How long a profile is.
    pub window_ns: u64,
    /// How many windows fit into the trace.
    pub windows: u64,
    /// How much of the trace, at its end, lies in no window.
    pub uncovered_ns: u64,
    /// How good the exact times are.
    pub times: Times,
    /// How many streams or threads.
    pub tracks: u32,
    /// Whether threads are seen in operators, as the trace has no Python functions.
    pub operators_only: bool,
    /// Where threads are seen only while they are in a recorded call, what is left out as they waited in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_only: Option<Waits>,
    /// The time of all rows together.
    pub exact_ns: u64,
    /// The calls of all rows together.
    pub calls: u64,
    /// How many samples a profile has that find work.
    pub samples_mean: f64,
    /// The chance that a sample hits a given call, averaged over all calls.
    pub p_call_seen_mean: f64,
    /// How long the list is that a person would read.
    pub top: usize,
    /// The total-variation distance between the shares that a profile gives and the exact ones, mean.
    pub share_error_mean: f64,
    /// 95 % of the profiles do not exceed it.
    pub share_error_p95: f64,
    /// The part of the rows that a profile does not have at all, mean.
    pub unseen_mean: f64,
    /// How many of a profile's first `top` rows do not belong there, mean.
    pub strangers_mean: f64,
    /// How many profiles the share errors and the quantiles of ranks are from.
    pub checks: u64,
    /// What the user should know of how this was made.
    pub notes: Vec<String>,
    /// Rows that are in step with the sampler.
    pub lock_steps: Vec<LockStep>,
    /// Keys of the exact top that most profiles do not have in theirs.
    pub blind_spots: Vec<String>,
    /// Keys outside the exact top that most profiles have in theirs.
    pub false_friends: Vec<String>,
    /// How a real profiler's samples of the same recording agree.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// By exact rank.
    pub rows: Vec<Row>,
}

/// What is true of a key, and what profiles say.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The whole name of the kernel, function or stack (root first, separated by `;`).
    pub key: String,
    /// The name as a person reads it.
    pub label: String,
    /// How often it ran.
    pub calls: u64,
    /// For how long.
    pub exact_ns: u64,
    /// The part of all rows' time.
    pub exact_share: f64,
    /// Its place by exact time, from 1.
    pub exact_rank: usize,
    /// How long a call is, mean.
    pub call_ns_mean: f64,
    /// The chance that a sample hits a given call: min(1, duration / period), averaged over its calls.
    pub p_call_seen: f64,
    /// Its exact time in a window, mean.
    pub window_exact_ns_mean: f64,
    /// What a profile reports, mean.
    pub sampled_ns_mean: f64,
    /// 5 % of the profiles report this or less.
    pub sampled_ns_p05: u64,
    /// 95 % of the profiles report this or less.
    pub sampled_ns_p95: u64,
    /// The part of the profiles that do not have it.
    pub p_missed: f64,
    /// The part of the profiles that have it among the first ten.
    pub p_top10: f64,
    /// The part of the profiles that have it among the first `top`.
    pub p_top: f64,
    /// Its place in the profiles that have it, mean.
    pub rank_mean: Option<f64>,
    /// 5 % of the profiles have it at this place or higher up; absent if fewer have it.
    pub rank_p05: Option<u32>,
    /// 95 % of the profiles have it at this place or higher up; absent if fewer have it.
    pub rank_p95: Option<u32>,
}

impl Row {
    /// In the exact top, and not in that of most profiles.
    pub fn is_blind_spot(&self, top: usize) -> bool {
        self.exact_rank <= top && self.p_top < 0.5
    }

    /// Not in the exact top, and in that of most profiles.
    pub fn is_false_friend(&self, top: usize) -> bool {
        self.exact_rank > top && self.p_top >= 0.5
    }
}

/// Sets a tally beside the exact record.
#[expect(clippy::too_many_arguments, reason = "all of them are what the comparison says of itself")]
pub(super) fn build(
    work: &Work,
    options: &Options,
    hz: u32,
    period_ns: u64,
    windows: Windows,
    tally: &Tally,
    lock_steps: Vec<LockStep>,
    notes: Vec<String>,
) -> Comparison {
    let (jitter, seed, runs) = match options.schedule {
        Schedule::Fixed => (None, None, None),
        Schedule::Random { jitter, seed, runs } => (Some(jitter), Some(seed), Some(runs)),
    };
    let top = options.top;
    let rows = rows(work, period_ns, windows, tally);
    let keys_that = |holds: fn(&Row, usize) -> bool| {
        rows.iter().filter(|row| holds(row, top)).map(|row| row.key.clone()).collect::<Vec<_>>()
    };
    let calls = rows.iter().map(|row| row.calls).sum::<u64>();
    let calls_seen: f64 = rows.iter().map(|row| row.p_call_seen * row.calls as f64).sum();
    Comparison {
        sampler: work.sampler,
        by: work.by,
        hz,
        period_ns,
        jitter,
        seed,
        runs,
        span_ns: work.span_ns.1.abs_diff(work.span_ns.0),
        window_ns: windows.length_ns,
        windows: windows.count,
        uncovered_ns: windows.uncovered_ns(work),
        times: work.times,
        tracks: work.tracks,
        operators_only: work.operators_only,
        calls_only: work.calls_only,
        exact_ns: work.exact_ns(),
        calls,
        samples_mean: tally.samples_mean(),
        p_call_seen_mean: calls_seen / calls.max(1) as f64,
        top,
        share_error_mean: tally.share_error_mean(),
        share_error_p95: tally.share_error_p95(),
        unseen_mean: rows.iter().map(|row| row.p_missed).sum::<f64>() / rows.len() as f64,
        strangers_mean: rows.iter().skip(top).map(|row| row.p_top).sum(),
        checks: tally.checks,
        notes,
        lock_steps,
        blind_spots: keys_that(Row::is_blind_spot),
        false_friends: keys_that(Row::is_false_friend),
        agreement: None,
        rows,
    }
}

fn rows(work: &Work, period_ns: u64, windows: Windows, tally: &Tally) -> Vec<Row> {
    let total_ns = work.exact_ns() as f64;
    let mut window_ns = vec![0_u64; work.keys.len()];
    for piece in work.intervals.iter().flat_map(|interval| windows.cut(interval)) {
        let sum_ns = &mut window_ns[piece.key as usize];
        *sum_ns = sum_ns.saturating_add(piece.end_ns - piece.start_ns);
    }
    let mut hit_ns = vec![0_u64; work.keys.len()];
    for &(key, found_ns) in &work.calls {
        hit_ns[key as usize] += found_ns.min(period_ns);
    }
    let weight = tally.weight as f64;
    let part = |weight_of: f64| (weight_of / weight).clamp(0.0, 1.0);
    let row = |(index, key): (usize, &super::work::Key)| {
        let said = &tally.keys[index];
        let p_missed = said.missed(tally.weight);
        let seen_weight = tally.weight - said.samples.get(&0).copied().unwrap_or(0);
        Row {
            key: key.name.clone(),
            label: key.label.clone(),
            calls: key.calls,
            exact_ns: key.exact_ns,
            exact_share: if total_ns > 0.0 { key.exact_ns as f64 / total_ns } else { 0.0 },
            exact_rank: index + 1,
            call_ns_mean: key.exact_ns as f64 / key.calls.max(1) as f64,
            p_call_seen: hit_ns[index] as f64 / (key.calls.max(1) as f64 * period_ns as f64),
            window_exact_ns_mean: window_ns[index] as f64 / windows.count as f64,
            sampled_ns_mean: (said.sample_weight() * u128::from(period_ns)) as f64 / weight,
            sampled_ns_p05: said.quantile(5).saturating_mul(period_ns),
            sampled_ns_p95: said.quantile(95).saturating_mul(period_ns),
            p_missed,
            p_top10: part(said.top10_weight),
            p_top: part(said.top_weight),
            rank_mean: (seen_weight > 0).then(|| said.rank_weight as f64 / seen_weight as f64),
            rank_p05: said.rank_quantile(5, tally.checks),
            rank_p95: said.rank_quantile(95, tally.checks),
        }
    };
    work.keys.iter().enumerate().map(row).collect()
}
