//! A comparison in sentences: what a profile tells, what it does not see, and where it misleads.

use super::report::shown;
use super::words::{NAME_COLUMNS, average, clip, duration_exact, labels, noun, sparkline};
use super::{Comparison, Row};
use crate::human::{HumanCount, percent};

/// What a person should take from it, a sentence or two a line.
pub(super) fn verdict(comparison: &Comparison) -> Vec<String> {
    let names = Names::new(comparison);
    let mut lines = vec![told(comparison), unseen(comparison, &names), misled(comparison, &names)];
    lines.extend(comparison.lock_steps.iter().take(3).map(|lock_step| {
        let of_exact = |ns: u64| percent(ns as f64 / lock_step.exact_ns as f64);
        let repeats = lock_step.loop_period_ns.map_or_else(
            || format!("comes at the same phase in {} periods", HumanCount(lock_step.periods as u64)),
            |period| format!("repeats every {}", duration_exact(period)),
        );
        format!(
            "Lock-step: {} {repeats} and beats with the {} of {} Hz. Depending on the phase alone a profile reports \
             {} to {} of its true time: {} ({:.0} times the variance of work that is not in step).",
            names.of(&lock_step.key, &lock_step.label),
            duration_exact(comparison.period_ns),
            HumanCount(u64::from(comparison.hz)),
            of_exact(lock_step.sampled_ns_min),
            of_exact(lock_step.sampled_ns_max),
            sparkline(&lock_step.sampled_ns_by_phase),
            lock_step.variance_ratio,
        )
    }));
    if comparison.lock_steps.len() > 3 {
        lines.push(format!("{} more are in lock-step; --json has them.", comparison.lock_steps.len() - 3));
    }
    lines
}

/// Names within sentences: those of the table where the row is in it, so that they can be found there.
struct Names<'a> {
    comparison: &'a Comparison,
    rows: Vec<&'a Row>,
    labels: Vec<String>,
}

impl<'a> Names<'a> {
    fn new(comparison: &'a Comparison) -> Names<'a> {
        let rows = shown(comparison);
        let labels = labels(comparison, &rows, NAME_COLUMNS);
        Names { comparison, rows, labels }
    }

    fn of(&self, key: &str, label: &str) -> String {
        match self.rows.iter().position(|row| row.key == key) {
            Some(row) => self.labels[row].clone(),
            None => clip(self.comparison, label, NAME_COLUMNS),
        }
    }
}

fn told(comparison: &Comparison) -> String {
    let rows = comparison.rows.len() as u64;
    let named = (1.0 - comparison.unseen_mean) * rows as f64;
    // The limits are ours. Up to 2 % nobody would decide otherwise; beyond 10 % the order of the list is in doubt.
    let trust = match comparison.share_error_mean {
        ..0.02 => "It tells faithfully where the time goes",
        ..0.10 => "It tells roughly where the time goes",
        _ => "It does not tell reliably where the time goes",
    };
    let nouns = noun(comparison.by, 2);
    format!(
        "Told: on average, a profile has {} samples that find work, and in them {} of the {} {nouns}. {trust}: {} of it \
         is credited to the wrong {nouns} (in 19 of 20 profiles at most {}). That is chance, not bias: {} right for \
         each.",
        average(comparison.samples_mean),
        average(named),
        HumanCount(rows),
        percent(comparison.share_error_mean),
        percent(comparison.share_error_p95),
        if comparison.runs.is_some() { "the mean of all runs is about" } else { "the mean of all phases is" },
    )
}

/// That a profile is made of times, not of calls.
fn unseen(comparison: &Comparison, names: &Names<'_>) -> String {
    let (calls, seen) = (HumanCount(comparison.calls), comparison.p_call_seen_mean);
    if seen >= 1.0 {
        return format!("Unseen: nothing; each of the {calls} calls gets a sample.");
    }
    let missed: Vec<String> = names
        .rows
        .iter()
        .filter(|row| row.p_call_seen < 1.0)
        .take(3)
        .map(|row| {
            format!("{} of #{} {}", percent(1.0 - row.p_call_seen), row.exact_rank, names.of(&row.key, &row.label))
        })
        .collect();
    let missed = if missed.is_empty() { String::new() } else { format!(" ({})", missed.join(", ")) };
    format!(
        "Unseen: {} of the {calls} calls get no sample{missed}. A slow one among them goes unnoticed.",
        percent(1.0 - seen)
    )
}

fn misled(comparison: &Comparison, names: &Names<'_>) -> String {
    let top = comparison.top.min(comparison.rows.len());
    let blind: Vec<&Row> = comparison.rows.iter().filter(|row| row.is_blind_spot(comparison.top)).collect();
    let listed: f64 = comparison.rows.iter().take(top).map(|row| row.p_top).sum();
    let mut text =
        format!("Misled: among its first {top} {} are {listed:.1} of the true top {top}", noun(comparison.by, 2));
    if comparison.strangers_mean >= 0.05 {
        text += &format!(" and {:.1} that do not belong there", comparison.strangers_mean);
    }
    text.push('.');
    let Some(worst) = blind.first() else {
        text += " None of the true top is a blind spot (absent from the top of most profiles).";
        return text;
    };
    let time_ns: u64 = blind.iter().map(|row| row.exact_ns).sum();
    let (name, share) = (names.of(&worst.key, &worst.label), percent(worst.exact_share));
    text + &format!(
        " Blind spots, absent from the top of most profiles: {}, with {} of the time. The largest is #{} {name} with \
         {share}; {} of the profiles do not have it at all.",
        blind.len(),
        percent(time_ns as f64 / comparison.exact_ns as f64),
        worst.exact_rank,
        percent(worst.p_missed)
    )
}
