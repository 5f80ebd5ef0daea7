//! A comparison as text: what was sampled, the table, and what it means in sentences.

use std::borrow::Cow;
use std::io::{self, Write};

use comfy_table::{Cell, CellAlignment, Color, Table, presets};
use indicatif::HumanCount;

use super::work::{By, Sampler};
use super::{Comparison, Row};
use crate::timeline::names::demangled;

/// A name gets as much room as makes the table 120 columns wide.
const NAME_COLUMNS: usize = 44;

/// Writes comparisons of one trace: a summary if there are several, then each.
pub fn write(out: &mut impl Write, comparisons: &[Comparison]) -> io::Result<()> {
    let Some(first) = comparisons.first() else { return Ok(()) };
    writeln!(out, "{}", what_was_sampled(first))?;
    for note in &first.notes {
        writeln!(out, "Note: {note}.")?;
    }
    if comparisons.len() > 1 {
        writeln!(out, "\n{}", summary(comparisons))?;
    }
    for comparison in comparisons {
        writeln!(out, "\n{}", heading(comparison))?;
        writeln!(out, "{}\n", table(comparison))?;
        for sentence in verdict(comparison) {
            writeln!(out, "{sentence}")?;
        }
    }
    Ok(())
}

fn what_was_sampled(comparison: &Comparison) -> String {
    let times = &comparison.times;
    let (exact, tracks) = (duration(comparison.exact_ns as f64), comparison.tracks);
    match comparison.sampler {
        Sampler::Gpu => {
            let mut text = format!(
                "Exact: {exact} of device work on {}, {} operations timed on the device",
                counted(u64::from(tracks), "stream"),
                grouped(times.measured)
            );
            if times.bounded > 0 {
                text += &format!("; {} known only by bounds and taken at their widest", grouped(times.bounded));
            }
            if times.absent > 0 {
                text += &format!("; {} without device times, which are left out", grouped(times.absent));
            }
            text + "."
        }
        Sampler::Cpu => {
            let seen = if comparison.operators_only {
                "operators (there are no Python functions)"
            } else {
                "Python functions"
            };
            format!(
                "Exact: {exact} of host time in {seen} on {}, {} calls. Times are the recording profiler's, whose own \
                 cost is in them.",
                counted(u64::from(tracks), "thread"),
                grouped(times.measured)
            )
        }
    }
}

fn heading(comparison: &Comparison) -> String {
    let sampler = match comparison.sampler {
        Sampler::Gpu => "GPU",
        Sampler::Cpu => "CPU",
    };
    let window = match comparison.windows {
        1 if comparison.window_ns == comparison.span_ns => {
            format!("the whole trace of {}", duration(comparison.span_ns as f64))
        }
        windows => format!(
            "{} of {} each{}",
            counted(windows, "profile"),
            duration(comparison.window_ns as f64),
            match comparison.uncovered_ns {
                0 => String::new(),
                rest => format!(" (the last {} are in none)", duration(rest as f64)),
            }
        ),
    };
    let how = match comparison.runs {
        None => format!("all phases of the {} period, exactly", duration(comparison.period_ns as f64)),
        Some(runs) => format!("{} random runs, seed {}", grouped(u64::from(runs)), comparison.seed.unwrap_or_default()),
    };
    format!("{sampler} sampler at {} Hz over {window}; {how}", comparison.hz)
}

fn table(comparison: &Comparison) -> Table {
    let rows = shown(comparison);
    let labels = labels(comparison, &rows, NAME_COLUMNS);
    let mut table = plain_table([
        "#".to_owned(),
        noun(comparison.by, 1).to_owned(),
        "Calls".to_owned(),
        if comparison.windows == 1 { "Exact" } else { "Exact mean" }.to_owned(),
        "Share".to_owned(),
        "A call".to_owned(),
        "Seen".to_owned(),
        "Profiles say".to_owned(),
        "Missed".to_owned(),
        format!("Top {}", comparison.top),
        "Rank".to_owned(),
    ]);
    for (row, label) in rows.iter().zip(labels) {
        let colour = match row.p_missed {
            _ if row.is_blind_spot(comparison.top) => Color::Red,
            0.05.. => Color::Yellow,
            _ => Color::Reset,
        };
        let mut cells = vec![
            Cell::new(row.exact_rank),
            Cell::new(label).fg(colour),
            Cell::new(grouped(row.calls)),
            Cell::new(duration(row.window_exact_ns_mean)),
            Cell::new(percent(row.exact_share)),
            Cell::new(duration(row.call_ns_mean)),
            Cell::new(percent(row.p_call_seen)),
            Cell::new(range(row)),
            Cell::new(percent(row.p_missed)).fg(colour),
            Cell::new(percent(row.p_top)),
            Cell::new(ranks(row)),
        ];
        if row.is_blind_spot(comparison.top) {
            cells[0] = Cell::new(format!("! {}", row.exact_rank)).fg(colour);
        } else if row.is_false_friend(comparison.top) {
            cells[0] = Cell::new(format!("? {}", row.exact_rank)).fg(Color::Yellow);
        }
        table.add_row(cells);
    }
    align_numbers(&mut table, &[1]);
    table
}

/// The exact top, and the false friends.
pub(super) fn shown(comparison: &Comparison) -> Vec<&Row> {
    let top = comparison.top;
    comparison.rows.iter().filter(|row| row.exact_rank <= top || row.is_false_friend(top)).take(2 * top).collect()
}

fn summary(comparisons: &[Comparison]) -> Table {
    let mut table = plain_table(
        ["Hz", "Profile", "Samples", "Shares wrong by", "Rows unseen", "Blind spots", "In lock-step"]
            .map(str::to_owned),
    );
    for comparison in comparisons {
        table.add_row([
            comparison.hz.to_string(),
            duration(comparison.window_ns as f64),
            format!("{:.1}", comparison.samples_mean),
            percent(comparison.share_error_mean),
            percent(comparison.unseen_mean),
            format!("{} of {}", comparison.blind_spots.len(), comparison.top.min(comparison.rows.len())),
            comparison.lock_steps.len().to_string(),
        ]);
    }
    align_numbers(&mut table, &[]);
    table
}

fn plain_table<const N: usize>(header: [String; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

fn align_numbers(table: &mut Table, text_columns: &[usize]) {
    for (index, column) in table.column_iter_mut().enumerate() {
        if !text_columns.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// What a person should take from it, a sentence or two a line.
pub fn verdict(comparison: &Comparison) -> Vec<String> {
    let mut lines = vec![told(comparison), unseen(comparison), misled(comparison)];
    lines.extend(comparison.lock_steps.iter().take(3).map(|lock_step| {
        let of_exact = |ns: u64| percent(ns as f64 / lock_step.exact_ns as f64);
        let repeats = lock_step.loop_period_ns.map_or_else(
            || format!("comes at the same phase in {} periods", grouped(lock_step.periods as u64)),
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
        grouped(rows),
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
        grouped(comparison.calls)
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

/// What a row is called.
pub(super) fn noun(by: By, count: u64) -> &'static str {
    match (by, count) {
        (By::Kernel, 1) => "Kernel",
        (By::Function, 1) => "Function",
        (By::Stack, 1) => "Stack",
        (By::Kernel, _) => "kernels",
        (By::Function, _) => "functions",
        (By::Stack, _) => "stacks",
    }
}

fn range(row: &Row) -> String {
    let (low, high) = (duration(row.sampled_ns_p05 as f64), duration(row.sampled_ns_p95 as f64));
    if low == high { low } else { format!("{low} – {high}") }
}

fn ranks(row: &Row) -> String {
    let rank = |rank: Option<u32>| rank.map_or_else(|| "–".to_owned(), |rank| rank.to_string());
    match (row.rank_p05, row.rank_p95) {
        (None, None) => "–".to_owned(),
        (low, high) if low == high => rank(low),
        (low, high) => format!("{} … {}", rank(low), rank(high)),
    }
}

/// Names in at most `columns` characters. Where a short name stands for several kernels, the part of the whole name
/// that tells them apart is added.
pub(super) fn labels(comparison: &Comparison, rows: &[&Row], columns: usize) -> Vec<String> {
    rows.iter()
        .map(|row| {
            let twins: Vec<Cow<'_, str>> = rows
                .iter()
                .filter(|other| other.label == row.label && other.key != row.key)
                .map(|other| demangled(&other.key))
                .collect();
            // Of stacks, the paths differ further out than any label reaches.
            if twins.is_empty() || comparison.by == By::Stack {
                return clip(comparison, &row.label, columns);
            }
            let name = demangled(&row.key);
            let same = twins.iter().map(|twin| common_prefix(&name, twin)).min().unwrap_or(0);
            let differs = clipped_end(&name[same..], columns / 2);
            format!("{} …{differs}", clipped(&row.label, columns - 2 - differs.chars().count()))
        })
        .collect()
}

/// How many bytes two names share, back to where a word begins.
fn common_prefix(a: &str, b: &str) -> usize {
    let same = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    let same = a.floor_char_boundary(same);
    a[..same]
        .rfind(|c: char| !c.is_alphanumeric())
        .map_or(0, |at| a[at..].chars().next().map_or(at, |c| at + c.len_utf8()))
}

/// A name within a sentence.
fn short(comparison: &Comparison, label: &str) -> String {
    clip(comparison, label, NAME_COLUMNS)
}

fn clip(comparison: &Comparison, label: &str, columns: usize) -> String {
    match comparison.by {
        By::Stack => clipped_start(label, columns),
        By::Kernel | By::Function => clipped(label, columns),
    }
}

/// Leaves out the middle of what is too long: names begin with where they are from and end with what they are.
pub(super) fn clipped(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    let tail = (columns - 1) / 2;
    let head = columns - 1 - tail;
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

/// Leaves out the beginning: of a stack the innermost function matters.
fn clipped_start(text: &str, columns: usize) -> String {
    let length = text.chars().count();
    if length <= columns {
        return text.to_owned();
    }
    std::iter::once('…').chain(text.chars().skip(length - columns + 1)).collect()
}

fn clipped_end(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    text.chars().take(columns - 1).chain(['…']).collect()
}

/// A duration in three digits.
pub(super) fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ..999.5 => (ns, "ns"),
        ..999.5e3 => (ns / 1e3, "µs"),
        ..999.5e6 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = match value {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    let number = format!("{value:.decimals$}");
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    if number == "0" { "0".to_owned() } else { format!("{number} {unit}") }
}

/// A period in milliseconds with all that matters of it.
fn duration_exact(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A part of 1 in two digits.
pub(super) fn percent(part: f64) -> String {
    let value = part * 100.0;
    match value {
        0.0 => "0 %".to_owned(),
        ..0.095 => "<0.1 %".to_owned(),
        ..9.95 => format!("{value:.1} %"),
        99.5..100.0 if part < 1.0 => format!("{:.1} %", value.min(99.9)),
        _ => format!("{value:.0} %"),
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

fn sparkline(values: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().max().unwrap_or(0).max(1);
    values.iter().map(|&value| BARS[(value as f64 / max as f64 * 7.0).round() as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_as_a_person_reads_them() {
        assert_eq!(
            [0.0, 999.0, 1_200_000.0, 10_101_010.0, 1.2116e9].map(duration),
            ["0", "999 ns", "1.2 ms", "10.1 ms", "1.21 s"]
        );
        assert_eq!(
            [0.0, 0.0001, 0.03, 0.123, 0.9999, 1.0].map(percent),
            ["0 %", "<0.1 %", "3.0 %", "12 %", "99.9 %", "100 %"]
        );
        assert_eq!(clipped("abcdefghij", 5), "ab…ij");
        assert_eq!(sparkline(&[0, 5, 10]), "▁▅█");
    }

    #[test]
    fn what_tells_two_names_apart_begins_at_a_word() {
        let (a, b) = ("k<4, at::CUDAFunctor_add<float>>", "k<4, at::CUDAFunctor_atan<float>>");
        assert_eq!(&a[common_prefix(a, b)..], "add<float>>");
    }
}
