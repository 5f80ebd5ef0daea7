//! Which part of a tape a command looks at: the options that all commands share.

use anyhow::{Context as _, Result, bail};
use ktape_format::event::{Event, KindVisitor, visit_kinds};
use ktape_format::{Definitions, Table, Wanted};

/// The part of a tape that a command looks at.
#[derive(clap::Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "Selection")]
pub struct Selection {
    /// Leave out what ended before this time, counted from the first event: 1.5s, 20ms, 300us, 2h, 4000 (ns)
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

/// A selection that no trace can answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A kind that does not exist.
    #[error("there is no event kind `{kind}`; the kinds are {kinds}")]
    UnknownKind {
        /// What was asked for.
        kind: String,
        /// What there is.
        kinds: String,
    },
    /// The end is not after the start.
    #[error("--to ({to_ns} ns) is not after --from ({from_ns} ns), so nothing can be selected")]
    Backwards {
        /// The start.
        from_ns: i64,
        /// The end.
        to_ns: i64,
    },
}

impl Selection {
    /// Whether everything is selected.
    pub fn is_everything(&self) -> bool {
        self.from.is_none() && self.to.is_none() && self.kind.is_empty() && self.pid.is_empty()
    }

    /// What to read of a trace whose first event began at `first_ns`, of all processes.
    pub fn wanted(&self, first_ns: i64) -> Result<Wanted, Error> {
        if let (Some(from_ns), Some(to_ns)) = (self.from, self.to)
            && from_ns >= to_ns
        {
            return Err(Error::Backwards { from_ns, to_ns });
        }
        let known = kinds();
        let kind = |name: &String| match known.iter().find(|(_, known)| known == name) {
            Some((number, _)) => Ok(*number),
            None => {
                let kinds: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
                Err(Error::UnknownKind { kind: name.clone(), kinds: kinds.join(", ") })
            }
        };
        Ok(Wanted {
            from_ns: self.from.map(|from| first_ns.saturating_add(from)),
            to_ns: self.to.map(|to| first_ns.saturating_add(to)),
            kinds: self.kind.iter().map(kind).collect::<Result<_, Error>>()?,
            ..Wanted::default()
        })
    }

    /// Whether device work may be selected without the call that launched it.
    pub fn leaves_out_callers(&self) -> bool {
        self.from.is_some() || !self.kind.is_empty()
    }

    /// The ids of the processes asked for; none if all are. Fails if there is no such process.
    pub fn processes(&self, definitions: &Definitions) -> Result<Vec<u32>> {
        if self.pid.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<u32> = (1..)
            .zip(definitions.processes.rows())
            .filter(|(_, process)| self.pid.contains(&process.pid))
            .map(|(id, _)| id)
            .collect();
        if ids.is_empty() {
            let pids: Vec<String> = definitions.processes.rows().map(|process| process.pid.to_string()).collect();
            bail!("no process with pid {:?}; the trace has {}", self.pid, pids.join(", "));
        }
        Ok(ids)
    }
}

/// The number and name of each event kind.
fn kinds() -> Vec<(u16, &'static str)> {
    struct Kinds(Vec<(u16, &'static str)>);
    impl KindVisitor for Kinds {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            self.0.push((E::KIND, E::NAME));
            Ok(())
        }
    }
    let mut kinds = Kinds(Vec::new());
    let Ok(()) = visit_kinds(&mut kinds);
    kinds.0
}

/// Reads a time or duration: a decimal number with a unit of ns, us, ms, s, m, h or d; nanoseconds without one.
///
/// The digits are parsed as integers, so no nanosecond is lost.
pub fn parse_time_ns(text: &str) -> Result<i64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic() || c == 'µ').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let (decimals, factor) = match unit {
        "" | "ns" => (0, 1),
        "us" | "µs" => (3, 1),
        "ms" => (6, 1),
        "s" => (9, 1),
        "m" => (9, 60),
        "h" => (9, 3600),
        "d" => (9, 24 * 3600),
        _ => bail!("unknown unit `{unit}`; use ns, us, ms, s, m, h or d"),
    };
    let (negative, number) = number.strip_prefix('-').map_or((false, number), |rest| (true, rest));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > decimals && fraction[decimals..].bytes().any(|digit| digit != b'0') {
        bail!("`{text}` is finer than a nanosecond");
    }
    let fraction = &fraction[..fraction.len().min(decimals)];
    if !whole.bytes().chain(fraction.bytes()).all(|digit| digit.is_ascii_digit()) {
        bail!("expected a number, as in 1.5s or 20ms");
    }
    if whole.is_empty() && fraction.is_empty() {
        bail!("expected a number, as in 1.5s or 20ms");
    }
    let digits = format!("{whole}{fraction:0<decimals$}");
    let value: i64 = digits.parse().context("too long")?;
    let value = value.checked_mul(factor).context("too long")?;
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
        assert_eq!(parse_time_ns("2.1h").unwrap(), 7_560_000_000_000);
        assert_eq!(parse_time_ns("3d").unwrap(), 259_200_000_000_000);
        assert_eq!(parse_time_ns("-1ms").unwrap(), -1_000_000);
        assert!(parse_time_ns("1.5").is_err());
        assert!(parse_time_ns("--5").is_err());
        assert!(parse_time_ns("five").is_err());
        assert!(parse_time_ns("1w").is_err());
        assert!(parse_time_ns("106752d").is_err());
        assert!(parse_time_ns("").is_err());
        assert!(parse_time_ns("1µ5").is_err());
    }
}
