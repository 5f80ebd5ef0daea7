//! What a library inside of processes took of them, as it says on the tape.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ktape_format::Table as _;
use ktape_format::definition::property;
use ktape_format::table::DefinitionKind;
use serde::{Deserialize, Serialize};

use crate::human::{HumanCount, duration, share};
use crate::timeline::Timeline;
use crate::timeline::names::printable;

/// What it took of one process: see `docs/device-time.md`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct InsideCost {
    /// The process.
    pid: i64,
    #[serde(flatten)]
    took: Took,
}

/// As the tape has it. What an older recorder did not say is 0.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Took {
    own_ns: u64,
    own_calls: u64,
    keeper_ns: u64,
    cupti_threads_ns: u64,
    process_ns: u64,
    cupti_says_ns: BTreeMap<String, u64>,
    driver_says_ns: BTreeMap<String, u64>,
}

/// Of all processes of which it is told. What cannot be read, of a newer version or a stranger, is none.
pub(super) fn of(timeline: &Timeline) -> Vec<InsideCost> {
    let kind = DefinitionKind::Process as u16;
    let processes = (1..).zip(timeline.definitions.processes.rows());
    let costs = processes.filter_map(|(id, process)| {
        let json = timeline.definitions.property(kind, id, property::INSIDE_COST)?;
        Some(InsideCost { pid: process.pid, took: serde_json::from_str(json).ok()? })
    });
    costs.collect()
}

/// Lists them.
pub(super) fn print(out: &mut impl Write, costs: &[InsideCost]) -> io::Result<()> {
    if !costs.is_empty() {
        writeln!(out, "what recording from inside took:")?;
    }
    for InsideCost { pid, took } in costs {
        let time = |ns: u64| duration(ns as f64);
        let a_call = took.own_ns as f64 / took.own_calls.max(1) as f64;
        writeln!(
            out,
            "  process {pid}: {} of its threads ({} of its CPU time; {} calls, {} each), {} of the library's own, {} of CUPTI's",
            time(took.own_ns),
            share(took.own_ns, took.process_ns),
            HumanCount(took.own_calls),
            duration(a_call),
            time(took.keeper_ns),
            time(took.cupti_threads_ns),
        )?;
        for (who, says) in [("CUPTI", &took.cupti_says_ns), ("the driver", &took.driver_says_ns)] {
            let parts: Vec<String> =
                says.iter().map(|(name, ns)| format!("{} {}", time(*ns), printable(name))).collect();
            if !parts.is_empty() {
                writeln!(out, "    by CUPTI\'s word {who} took {}", parts.join(", "))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recorder_wrote_is_read_and_shown_and_what_it_did_not_is_nothing() {
        let took: Took = serde_json::from_str(
            r#"{"own_ns": 1200000000, "own_calls": 9000000, "keeper_ns": 5000000, "cupti_threads_ns": 7000, "process_ns": 150000000000,
                "cupti_says_ns": {"buffer flush": 3000000}, "of_a_later_version": 1}"#,
        )
        .unwrap();
        let mut text = Vec::new();
        print(&mut text, &[InsideCost { pid: 41, took }]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "what recording from inside took:",
                "process 41: 1.2 s of its threads (0.8 % of its CPU time; 9,000,000 calls, 133 ns each), 5 ms of the library\'s own, 7 µs \
                 of CUPTI\'s",
                "by CUPTI\'s word CUPTI took 3 ms buffer flush",
            ]
        );
    }
}
