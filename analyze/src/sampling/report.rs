//! A comparison as text: what was sampled, the table, and what it means in sentences.

use std::io::{self, Write};

use comfy_table::{Cell, Color, Table};
use textwrap::{Options, WordSeparator};

use super::verdict::verdict;
use super::words::{NAME_COLUMNS, average, clip, counted, duration_exact, labels, noun};
use super::work::Sampler;
use super::{Agreement, Comparison, Row};
use crate::human::{self, HumanCount, duration, percent};

/// Writes comparisons of one trace: a summary if there are several, then each, then what the columns mean. Sentences
/// are broken after `columns` characters; tables are as wide as they are.
pub fn write(out: &mut impl Write, comparisons: &[Comparison], columns: usize) -> io::Result<()> {
    let Some(first) = comparisons.first() else { return Ok(()) };
    writeln!(out, "{}", wrapped(&what_was_sampled(first), columns))?;
    for note in &first.notes {
        writeln!(out, "{}", wrapped(&format!("Note: {note}."), columns))?;
    }
    if comparisons.len() > 1 {
        writeln!(out, "\n{}", summary(comparisons).trim_fmt())?;
    }
    for comparison in comparisons {
        writeln!(out, "\n{}", wrapped(&heading(comparison), columns))?;
        writeln!(out, "{}\n", table(comparison).trim_fmt())?;
        for sentence in verdict(comparison) {
            writeln!(out, "{}", wrapped(&sentence, columns))?;
        }
        if let Some(agreement) = &comparison.agreement {
            write_agreement(out, comparison, agreement, columns)?;
        }
    }
    writeln!(out)?;
    legend(first.top).into_iter().try_for_each(|(column, means)| writeln!(out, "{column:<12}  {means}"))
}

/// Breaks a paragraph at words. A figure keeps its unit.
fn wrapped(paragraph: &str, columns: usize) -> String {
    const UNITS: [&str; 6] = ["%", "ns", "µs", "ms", "s", "Hz"];
    let mut glued = String::with_capacity(paragraph.len());
    for word in paragraph.split(' ') {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')']));
        let space = if is_unit { "\u{a0}" } else { " " };
        glued += if glued.is_empty() { "" } else { space };
        glued += word;
    }
    let options =
        Options::new(columns).subsequent_indent("  ").word_separator(WordSeparator::AsciiSpace).break_words(false);
    textwrap::fill(&glued, options).replace('\u{a0}', " ")
}

/// What the columns of the tables mean, so that nobody has to look it up.
fn legend(top: usize) -> [(String, String); 7] {
    [
        ("Seen".to_owned(), "chance that one call gets a sample".to_owned()),
        ("Profiles say".to_owned(), "what 90 % of the profiles report: 5 % report less, 5 % more".to_owned()),
        ("Missed".to_owned(), "profiles without any sample of it".to_owned()),
        (format!("Top {top}"), format!("profiles that have it among their first {top}")),
        ("Rank".to_owned(), "its place in 90 % of the profiles; – is none".to_owned()),
        ("!".to_owned(), format!("blind spot: in the true top {top}, but not in that of most profiles")),
        ("?".to_owned(), format!("false friend: not in the true top {top}, but in that of most profiles")),
    ]
}

fn what_was_sampled(comparison: &Comparison) -> String {
    let times = &comparison.times;
    let (exact, tracks) = (duration(comparison.exact_ns as f64), comparison.tracks);
    match comparison.sampler {
        Sampler::Gpu => {
            let mut text = format!(
                "Exact: {exact} of device work on {}, {} operations timed on the device",
                counted(u64::from(tracks), "stream"),
                HumanCount(times.measured)
            );
            if times.bounded > 0 {
                text += &format!("; {} known only by bounds and taken at their widest", HumanCount(times.bounded));
            }
            if times.absent > 0 {
                text += &format!("; {} without device times, which are left out", HumanCount(times.absent));
            }
            text + "."
        }
        Sampler::Cpu if let Some(waits) = comparison.calls_only => format!(
            "Exact: {exact} of host time in {} calls of the API on {}. Where a thread is between calls was not recorded. {} calls \
             that wait for the device ({}) are left out, as a thread that waits does not run{}{}.",
            HumanCount(times.measured),
            counted(u64::from(tracks), "thread"),
            HumanCount(waits.calls),
            duration(waits.waited_ns as f64),
            match waits.not_running_ns {
                None => String::new(),
                Some(off_ns) =>
                    format!("; so are {} of the other calls in which it was off its processor", duration(off_ns as f64)),
            },
            match times.absent {
                0 => String::new(),
                absent => format!("; so are {} of which it is not known how long they took", HumanCount(absent)),
            }
        ),
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
                HumanCount(times.measured)
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
            "{} of {}{}{}",
            counted(windows, "profile"),
            duration(comparison.window_ns as f64),
            if windows == 1 { "" } else { " each" },
            match comparison.uncovered_ns {
                0 => String::new(),
                rest => format!(" (the last {} are in none)", duration(rest as f64)),
            }
        ),
    };
    let how = match comparison.runs {
        None => format!("all phases of the {} period, exactly", duration(comparison.period_ns as f64)),
        Some(runs) => {
            format!("{} random runs, seed {}", HumanCount(u64::from(runs)), comparison.seed.unwrap_or_default())
        }
    };
    format!("{sampler} sampler at {} Hz over {window}; {how}", HumanCount(u64::from(comparison.hz)))
}

fn table(comparison: &Comparison) -> Table {
    let rows = shown(comparison);
    let labels = labels(comparison, &rows, NAME_COLUMNS);
    let head = [
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
    ];
    let mut table = human::text_table(head, &[1]);
    for (row, label) in rows.iter().zip(labels) {
        let colour = match row.p_missed {
            _ if row.is_blind_spot(comparison.top) => Color::Red,
            0.05.. => Color::Yellow,
            _ => Color::Reset,
        };
        let mut cells = vec![
            Cell::new(row.exact_rank),
            Cell::new(label).fg(colour),
            Cell::new(HumanCount(row.calls)),
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
    table
}

/// The exact top, and the false friends.
pub(super) fn shown(comparison: &Comparison) -> Vec<&Row> {
    let top = comparison.top;
    comparison.rows.iter().filter(|row| row.exact_rank <= top || row.is_false_friend(top)).take(2 * top).collect()
}

/// What a real profiler found in the same recording.
fn write_agreement(
    out: &mut impl Write,
    comparison: &Comparison,
    agreement: &Agreement,
    columns: usize,
) -> io::Result<()> {
    let Agreement { period_ns, samples, in_calls, without_stack, same_row, rows } = agreement;
    let ran_ns = in_calls.saturating_mul(*period_ns);
    let mut sentence = format!(
        "Real sampler: {} CPU samples of {} each, {} of them in these calls: threads were found running for {} of the exact {}.",
        HumanCount(*samples),
        duration_exact(*period_ns),
        HumanCount(*in_calls),
        duration(ran_ns as f64),
        duration(comparison.exact_ns as f64),
    );
    // A tenth may be chance, and the interrupts of a machine.
    let is_known = comparison.calls_only.is_some_and(|waits| waits.not_running_ns.is_some());
    if !is_known && *in_calls > 0 && (ran_ns as f64) < 0.8 * comparison.exact_ns as f64 {
        sentence += " For the rest they had to wait for a processor, which the exact time has in it and the samples have not, so \
                     shares may differ by more than the intervals say.";
    }
    let told = in_calls - without_stack;
    if told == 0 {
        sentence += " There is nothing to compare shares by.";
        return writeln!(out, "{}", wrapped(&sentence, columns));
    }
    let what = noun(comparison.by, 1).to_lowercase();
    sentence += &format!(" The {what} of {} of {} is that of the call", HumanCount(*same_row), HumanCount(told));
    if *without_stack > 0 {
        sentence += &format!("; {} more have none", HumanCount(*without_stack));
    }
    let agreeing = rows.iter().filter(|row| row.agrees).count();
    sentence += &format!(
        ". The two samplers agree on {agreeing} of {} {}: their intervals have a share in common.",
        HumanCount(rows.len() as u64),
        noun(comparison.by, 2),
    );
    writeln!(out, "{}", wrapped(&sentence, columns))?;
    let mut table =
        human::text_table(["#", noun(comparison.by, 1), "Exact", "Simulated", "Real", "Samples", "Agree"], &[1]);
    for (rank, row) in (1..).zip(rows).take(comparison.top) {
        table.add_row([
            Cell::new(rank),
            Cell::new(clip(comparison, &row.label, NAME_COLUMNS)),
            Cell::new(percent(row.exact_share)),
            Cell::new(format!("{} – {}", percent(row.simulated_share_p05), percent(row.simulated_share_p95))),
            Cell::new(format!("{} – {}", percent(row.share_low), percent(row.share_high))),
            Cell::new(HumanCount(row.samples)),
            if row.agrees { Cell::new("yes") } else { Cell::new("no").fg(Color::Red) },
        ]);
    }
    writeln!(out, "\n{}", table.trim_fmt())
}

fn summary(comparisons: &[Comparison]) -> Table {
    let mut table = human::text_table(
        ["Hz", "Profile", "Samples", "Shares wrong by", "Rows unseen", "Blind spots", "In lock-step"],
        &[],
    );
    for comparison in comparisons {
        table.add_row([
            HumanCount(u64::from(comparison.hz)).to_string(),
            duration(comparison.window_ns as f64),
            average(comparison.samples_mean),
            percent(comparison.share_error_mean),
            percent(comparison.unseen_mean),
            format!("{} of {}", comparison.blind_spots.len(), comparison.top.min(comparison.rows.len())),
            comparison.lock_steps.len().to_string(),
        ]);
    }
    table
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_break_at_words() {
        let text = wrapped(&["word"; 30].join(" "), 116);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0].len()), (2, 23 * 5 - 1));
        assert!(lines[1].starts_with("  word"));
        assert_eq!(wrapped("some 10 % of it", 7), "some\n  10 %\n  of it", "a figure keeps its unit");
    }
}
