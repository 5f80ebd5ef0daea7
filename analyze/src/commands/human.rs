//! Figures as people read them: a unit that fits, three or four digits, thousands apart.

pub use indicatif::{HumanBytes, HumanCount};

/// A duration with the unit that leaves one to three digits before the point: `1.234 ms`.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.3} µs", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", value / 1e6),
        _ => format!("{:.3} s", value / 1e9),
    }
}

/// How wide text may be: as the terminal is, else as `COLUMNS` says, else as the reports' tables are. Beyond that lines
/// are tiring to read.
pub fn columns() -> usize {
    const WIDEST: usize = 116;
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    let told = || std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    terminal.or_else(told).unwrap_or(WIDEST).clamp(30, WIDEST)
}

/// "1 thread", "2 threads".
pub fn counted(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", HumanCount(number as u64), if number == 1 { "" } else { "s" })
}

/// A part of a whole in percent; `-` of nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.500 µs");
        assert_eq!(duration(566_759_000), "566.759 ms");
        assert_eq!(duration(61_000_000_000), "61.000 s");
    }
}
