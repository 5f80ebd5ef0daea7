//! A comparison in sentences: what a profile tells, what it does not see, and where it misleads.

use super::report::shown;
use super::words::{duration_exact, noun, short, sparkline};
use super::{Comparison, Row};
use crate::human::{HumanCount, percent};

/// What a person should take from it, a sentence or two a line.
pub(super) fn verdict(comparison: &Comparison) -> Vec<String> {
    let mut lines = vec![told(comparison), unseen(comparison), misled(comparison)];
    lines.extend(comparison.lock_steps.iter().take(3).map(|lock_step| {
        let of_exact = |ns: u64| percent(ns as f64 / lock_step.exact_ns as f64);
        let repeats = lock_step.loop_period_ns.map_or_else(
            || format!("comes at the same phase in {} periods", HumanCount(lock_step.periods as u64)),
            |period| format!("repeats every {}", duration_exact(period)),
        );
        format!(
            "Lock-step: {} {repeats} and beats with the {} of {} Hz. Depending on the phase alone a profile reports \
             {} to {} of its true time: {} ({:.0} times the variance of work that is not in step).",
            short(comparison, &lock_step.label),
            duration_exact(comparison.period_ns),
            comparison.hz,
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

fn told(comparison: &Comparison) -> String {
    let rows = comparison.rows.len() as u64;
    let named = (1.0 - comparison.unseen_mean) * rows as f64;
    // The limits are ours. Up to 2 % nobody would decide otherwise; beyond 10 % the order of the list is in doubt.
    let trust = match comparison.share_error_mean {
        ..0.02 => "Where the time goes it tells faithfully",
        ..0.10 => "Where the time goes it tells roughly",
        _ => "Where the time goes it does not tell reliably",
    };
    format!(
        "Told: such a profile has {:.1} samples that find work and names {named:.1} of {} {}. {trust}: {} of the time is \
         credited to the wrong ones, in 19 of 20 profiles at most {}. Averaged over all {} each time is right.",
        comparison.samples_mean,
        HumanCount(rows),
        noun(comparison.by, rows),
        percent(comparison.share_error_mean),
        percent(comparison.share_error_p95),
        if comparison.runs.is_some() { "runs" } else { "phases" },
    )
}

/// That a profile is made of times, not of calls.
fn unseen(comparison: &Comparison) -> String {
    let mut text = format!(
        "Unseen: {} of the {} calls get no sample",
        percent(1.0 - comparison.p_call_seen_mean),
        HumanCount(comparison.calls)
    );
    let rows: Vec<String> = shown(comparison)
        .iter()
        .filter(|row| row.p_call_seen < 1.0)
        .take(3)
        .map(|row| format!("of {} {}", short(comparison, &row.label), percent(1.0 - row.p_call_seen)))
        .collect();
    if !rows.is_empty() {
        text += &format!(" ({})", rows.join(", "));
    }
    text + ", so a slow or missing one is not noticed."
}

fn misled(comparison: &Comparison) -> String {
    let top = comparison.top.min(comparison.rows.len());
    let blind: Vec<&Row> = comparison.rows.iter().filter(|row| row.is_blind_spot(comparison.top)).collect();
    let listed: f64 = comparison.rows.iter().take(top).map(|row| row.p_top).sum();
    let mut text = format!("Misled: it lists {listed:.1} of the true top {top} in its own");
    if comparison.strangers_mean >= 0.05 {
        text += &format!(", among {:.1} that do not belong there", comparison.strangers_mean);
    }
    text.push('.');
    if blind.is_empty() {
        text += " None of the true top is a blind spot (missing from most profiles' top).";
        return text;
    }
    let time_ns: u64 = blind.iter().map(|row| row.exact_ns).sum();
    text += &format!(
        " Blind spots, missing from the top of most profiles: {}, {} of the time",
        blind.len(),
        percent(time_ns as f64 / comparison.exact_ns as f64)
    );
    let worst = blind[0];
    let (label, share) = (short(comparison, &worst.label), percent(worst.exact_share));
    text + &format!(
        "; the largest is #{} {label} ({share}), of which {} of profiles know nothing.",
        worst.exact_rank,
        percent(worst.p_missed)
    )
}
