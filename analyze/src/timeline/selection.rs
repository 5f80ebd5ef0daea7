//! Which part of a tape a command looks at: the options that all commands share.

use anyhow::{Context as _, Result, bail};

/// The part of a tape that a command looks at.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Selection")]
pub struct Selection {
    /// Leave out what ended before this time, counted from the first event: 1.5s, 20ms, 300us, 4000 (ns)
    #[arg(long, value_name = "TIME", value_parser = parse_time_ns)]
    pub from: Option<i64>,
    /// Leave out what began at or after this time, counted from the first event
    #[arg(long, value_name = "TIME", value_parser = parse_time_ns)]
    pub to: Option<i64>,
    /// Only events of these kinds: launch, kernel, memcpy, slice, … (comma-separated; `analyze info` lists them)
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<String>,
    /// Only events of these processes (comma-separated)
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub pid: Vec<i64>,
}

/// Reads a time or duration: a decimal number with a unit of ns, us, ms, s or m; nanoseconds without one.
///
/// The digits are parsed as integers, so no nanosecond is lost.
pub fn parse_time_ns(text: &str) -> Result<i64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic() || c == 'µ').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let decimals = match unit {
        "" | "ns" => 0,
        "us" | "µs" => 3,
        "ms" => 6,
        "s" | "m" => 9,
        _ => bail!("unknown unit `{unit}`; use ns, us, ms, s or m"),
    };
    let (negative, number) = number.strip_prefix('-').map_or((false, number), |rest| (true, rest));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > decimals && fraction[decimals..].bytes().any(|digit| digit != b'0') {
        bail!("`{text}` is finer than a nanosecond");
    }
    let fraction = &fraction[..fraction.len().min(decimals)];
    if whole.is_empty() && fraction.is_empty() {
        bail!("expected a number, as in 1.5s or 20ms");
    }
    let digits = format!("{whole}{fraction:0<decimals$}");
    let value: i64 = digits.parse().context("expected a number, as in 1.5s or 20ms")?;
    let value = if unit == "m" { value.checked_mul(60).context("too long")? } else { value };
    Ok(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::parse_time_ns;

    #[test]
    fn units() {
        assert_eq!(parse_time_ns("1.5s").unwrap(), 1_500_000_000);
        assert_eq!(parse_time_ns("20ms").unwrap(), 20_000_000);
        assert_eq!(parse_time_ns("0.25us").unwrap(), 250);
        assert_eq!(parse_time_ns("42").unwrap(), 42);
        assert_eq!(parse_time_ns("2m").unwrap(), 120_000_000_000);
        assert_eq!(parse_time_ns("-1ms").unwrap(), -1_000_000);
        assert!(parse_time_ns("1.5").is_err());
        assert!(parse_time_ns("five").is_err());
        assert!(parse_time_ns("1h").is_err());
        assert!(parse_time_ns("").is_err());
        assert!(parse_time_ns("1µ5").is_err());
    }
}
