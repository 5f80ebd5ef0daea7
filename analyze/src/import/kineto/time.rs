//! Decimal microseconds to integer nanoseconds, exactly.
//!
//! Kineto writes times as decimal text: `1623142623460111` (2021), `1365627862757.064` (2024). A double holds 53 bits
//! and would lose the nanoseconds of the first, so the digits are read as digits.

/// A time read from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time {
    /// The time.
    pub(super) ns: i64,
    /// Whether the text had digits finer than a nanosecond, which are cut off.
    pub(super) cut: bool,
}

/// Reads a JSON number of microseconds. `None` if it is no number or does not fit.
///
/// An exponent (Python writes durations below 0.1 ns so) moves the decimal point and costs no digit.
pub(super) fn parse_microseconds(text: &str) -> Option<Time> {
    if let Some(ns) = parse_plain(text.as_bytes()) {
        return Some(Time { ns, cut: false });
    }
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], digits[at + 1..].parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() {
        return None;
    }
    // How many of the digits stand before the decimal point once the unit is the nanosecond.
    let kept = i64::try_from(whole.len()).ok()? + i64::from(exponent) + 3;
    let mut ns: i64 = 0;
    let mut cut = false;
    let mut read = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(digit - b'0');
        if read < kept {
            // Subtracted, so that the smallest number, which has no positive twin, fits too.
            ns = ns.checked_mul(10)?.checked_sub(digit)?;
        } else {
            cut |= digit != 0;
        }
        read += 1;
    }
    if ns != 0 {
        for _ in read..kept {
            ns = ns.checked_mul(10)?;
        }
    }
    let ns = if negative { ns } else { ns.checked_neg()? };
    Some(Time { ns, cut })
}

/// What nearly all times are: three digits behind the point or no point, and so few before it that nothing can
/// overflow. `None` for others.
fn parse_plain(text: &[u8]) -> Option<i64> {
    let (whole, fraction) = match text.len().checked_sub(4) {
        Some(point) if text[point] == b'.' => (&text[..point], &text[point + 1..]),
        _ => (text, &b"000"[..]),
    };
    // Times since 1970 have 16 digits, of which the first is a 1.
    if !matches!((whole.len(), whole.first()), (1..=15, _) | (16, Some(b'0'..=b'8'))) {
        return None;
    }
    whole.iter().chain(fraction).try_fold(0_i64, |ns, digit| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 10).then_some(ns * 10 + i64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(text: &str) -> Option<i64> {
        parse_microseconds(text).filter(|time| !time.cut).map(|time| time.ns)
    }

    #[test]
    fn as_kineto_writes_them() {
        assert_eq!(exact("1365627862757.064"), Some(1_365_627_862_757_064));
        assert_eq!(exact("1623142623460111"), Some(1_623_142_623_460_111_000));
        assert_eq!(exact("2.08"), Some(2_080));
        assert_eq!(exact("0"), Some(0));
        assert_eq!(exact("-1.234"), Some(-1_234));
    }

    #[test]
    fn as_long_as_they_can_be() {
        assert_eq!(exact("8999999999999999.999"), Some(8_999_999_999_999_999_999));
        assert_eq!(exact("9223372036854775.807"), Some(i64::MAX));
        assert_eq!(exact("-9223372036854775.808"), Some(i64::MIN));
        assert_eq!(exact("9223372036854775.808"), None);
        assert_eq!(exact("9999999999999999"), None);
        assert_eq!(exact(".125"), None);
    }

    #[test]
    fn exponents_move_the_point() {
        assert_eq!(exact("1.365627862757064e+12"), Some(1_365_627_862_757_064));
        assert_eq!(exact("1E3"), Some(1_000_000));
        assert_eq!(exact("5e-3"), Some(5));
        assert_eq!(exact("0e400000000"), Some(0));
    }

    #[test]
    fn finer_than_a_nanosecond_is_said() {
        assert_eq!(parse_microseconds("1.23456"), Some(Time { ns: 1_234, cut: true }));
        assert_eq!(parse_microseconds("5e-9"), Some(Time { ns: 0, cut: true }));
        assert_eq!(parse_microseconds("1.234000"), Some(Time { ns: 1_234, cut: false }));
    }

    #[test]
    fn no_number_or_too_large() {
        // Kineto's own formatter once printed a negative time as `-1.-234`.
        for text in ["", "-", ".5", "abc", "1.-234", "\"1\"", "1e", "null", "9223372036854775.808", "1e300"] {
            assert_eq!(parse_microseconds(text), None, "{text}");
        }
        assert_eq!(exact("9223372036854775.807"), Some(i64::MAX));
        assert_eq!(exact("-9223372036854775.808"), Some(i64::MIN));
    }

    proptest! {
        #[test]
        fn every_nanosecond_survives(ns in any::<i64>()) {
            let sign = if ns < 0 { "-" } else { "" };
            let text = format!("{sign}{}.{:03}", ns.unsigned_abs() / 1000, ns.unsigned_abs() % 1000);
            prop_assert_eq!(exact(&text), Some(ns));
        }

        #[test]
        fn any_text_is_survived(text in "\\PC*") {
            let _ = parse_microseconds(&text);
        }
    }
}
