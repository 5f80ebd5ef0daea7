//! How a comparison puts names and figures: short enough for a table, long enough to be told apart.

use std::borrow::Cow;

use super::work::By;
use super::{Comparison, Row};
use crate::human::HumanCount;
use crate::timeline::names::{demangled, printable};

/// A name gets as much room as makes the table 120 columns wide.
pub(super) const NAME_COLUMNS: usize = 44;

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
            let label = printable(&row.label);
            let name = demangled(&row.key);
            let same = twins.iter().map(|twin| common_prefix(&name, twin)).min().unwrap_or(0);
            let differs = clipped_end(&printable(&name[same..]), columns / 2);
            format!("{} …{differs}", clipped(&label, columns - 2 - differs.chars().count()))
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

/// A name in at most `columns` characters.
pub(super) fn clip(comparison: &Comparison, label: &str, columns: usize) -> String {
    let label = printable(label);
    match comparison.by {
        By::Stack => clipped_start(&label, columns),
        By::Kernel | By::Function => clipped(&label, columns),
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

/// A period in milliseconds with all that matters of it.
pub(super) fn duration_exact(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / 1e6)
}

/// A mean number of things: with a decimal as long as that matters.
pub(super) fn average(number: f64) -> String {
    match number {
        ..0.95 => format!("{number:.2}"),
        ..999.95 => format!("{number:.1}"),
        _ => HumanCount(number.round() as u64).to_string(),
    }
}

/// `1,234 streams`; `1 stream`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(number), if number == 1 { "" } else { "s" })
}

pub(super) fn sparkline(values: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().max().unwrap_or(0).max(1);
    values.iter().map(|&value| BARS[(value as f64 / max as f64 * 7.0).round() as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_clipped_and_bars() {
        assert_eq!([0.015, 56.7, 1490.4].map(average), ["0.01", "56.7", "1,490"]);
        assert_eq!(clipped("abcdefghij", 5), "ab…ij");
        assert_eq!(sparkline(&[0, 5, 10]), "▁▅█");
    }

    #[test]
    fn what_tells_two_names_apart_begins_at_a_word() {
        let (a, b) = ("k<4, at::CUDAFunctor_add<float>>", "k<4, at::CUDAFunctor_atan<float>>");
        assert_eq!(&a[common_prefix(a, b)..], "add<float>>");
    }
}
