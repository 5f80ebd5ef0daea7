//! Counts by name as `import` and `info` list them: each list in as many lines as the terminal needs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};

use textwrap::{Options, WordSeparator};

use crate::human::{HumanCount, columns};
use crate::import::Reason;
use crate::timeline::names::printable;

/// Writes `what: name count, name count`, the largest first; nothing if there are none.
pub fn write_counts<K: Display + Ord>(
    out: &mut impl Write,
    indent: &str,
    what: &str,
    counts: impl IntoIterator<Item = (K, u64)>,
) -> io::Result<()> {
    let mut counts: Vec<(K, u64)> = counts.into_iter().collect();
    if counts.is_empty() {
        return Ok(());
    }
    counts.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then_with(|| a.cmp(b)));
    // A line ends between two of them, never within one.
    let glued = |(name, count): &(K, u64)| format!("{name} {}", HumanCount(*count)).replace(' ', "\u{a0}");
    let counts: Vec<String> = counts.iter().map(glued).collect();
    let text = format!("{what}: {}", counts.join(", "));
    let further = format!("{indent}    ");
    let options = Options::new(columns())
        .initial_indent(indent)
        .subsequent_indent(&further)
        .word_separator(WordSeparator::AsciiSpace)
        .break_words(false);
    writeln!(out, "{}", plain_lines(&textwrap::fill(&text, options)))
}

/// Lists what an importer did not keep, by the reason why that is no loss. What has none comes first.
pub fn write_not_kept(out: &mut impl Write, indent: &str, not_kept: &BTreeMap<String, u64>) -> io::Result<()> {
    if not_kept.is_empty() {
        return Ok(());
    }
    writeln!(out, "{indent}not kept from the source:")?;
    let mut by_reason = BTreeMap::<Reason, Vec<(&str, u64)>>::new();
    for (description, count) in not_kept {
        let (reason, name) = Reason::of(description);
        by_reason.entry(reason).or_default().push((name, *count));
    }
    let indent = format!("{indent}  ");
    by_reason.into_iter().try_for_each(|(reason, counts)| write_counts(out, &indent, reason.text(), counts))
}

/// The names are a stranger's.
fn plain_lines(text: &str) -> String {
    text.lines().map(|line| printable(line).replace('\u{a0}', " ")).collect::<Vec<_>>().join("\n")
}
