//! Sizes and times as people write them, on a command line and in a file.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

/// A number of bytes, as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Bytes(pub(super) u64);

/// A length of time, as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Span(pub(super) Duration);

/// A whole number with one of these units behind it, times what the unit stands for.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, times) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*times).filter(|&product| product > 0)
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Bytes, String> {
        let units = [("", 1), ("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40)];
        with_unit(text, &units).map(Bytes).ok_or_else(|| format!("{text:?} is no number of bytes, as 256M is"))
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Span, String> {
        let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
        let span = with_unit(text, &units).map(|seconds| Span(Duration::from_secs(seconds)));
        span.ok_or_else(|| format!("{text:?} is no length of time, as 10m is"))
    }
}

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Bytes, String> {
        text.parse()
    }
}

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Span, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(("256M".parse(), "17".parse()), (Ok(Bytes(256 << 20)), Ok(Bytes(17))));
        let span = |seconds| Ok(Span(Duration::from_secs(seconds)));
        assert_eq!(("90s".parse(), "2d".parse()), (span(90), span(172_800)));
        for bad in ["", "M", "0", "-1", "99999999999T", "1.5G", "1x"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
        assert!("10".parse::<Span>().is_err());
    }
}
