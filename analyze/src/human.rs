//! Figures as people read them: two or three digits, a unit that fits, thousands apart. The exact ones are in the JSON.

use comfy_table::{CellAlignment, Table, presets};
pub use indicatif::{HumanBytes, HumanCount};

/// A duration in three digits.
pub fn duration(ns: f64) -> String {
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

/// A part of 1 in two digits.
pub fn percent(part: f64) -> String {
    let value = part * 100.0;
    match value {
        0.0 => "0 %".to_owned(),
        ..0.095 => "<0.1 %".to_owned(),
        ..9.95 => format!("{value:.1} %"),
        99.5..100.0 if part < 1.0 => format!("{:.1} %", value.min(99.9)),
        _ => format!("{value:.0} %"),
    }
}

/// A part of a whole in percent; `-` of nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { percent(part as f64 / whole as f64) }
}

/// "1 thread", "2 threads".
pub fn counted(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(number as u64), if number == 1 { "" } else { "s" })
}

/// How wide text may be: as the terminal is, else as `COLUMNS` says, else as the reports' tables are. Beyond that lines
/// are tiring to read.
pub fn columns() -> usize {
    const WIDEST: usize = 116;
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let told = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    terminal.or_else(told).unwrap_or(WIDEST).clamp(30, WIDEST)
}

/// A table without lines: the columns named hold text and begin at the left, figures end at the right.
pub fn text_table<H: Into<comfy_table::Row>>(head: H, text_columns: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(head);
    for (index, column) in table.column_iter_mut().enumerate() {
        if !text_columns.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // https://no-color.org: set and not empty.
    if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        table.force_no_tty();
    }
    table
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
        assert_eq!([share(1, 4), share(0, 0)], ["25 %", "-"]);
    }
}
