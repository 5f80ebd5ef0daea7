//! `capture doctor`: what of the recorder works here.

use std::io::{self, Write};

use anyhow::{Context as _, Result};

use super::Outcome;
use super::print::{printable, text_table, verdict, write_json};
use crate::doctor::{Report, surroundings::Surroundings};

/// What `capture doctor` is asked.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// For a program instead of a person
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  capture doctor
  capture doctor --json | jq '.modes[] | select(.works | not)'

Exit codes: 0 recording works, 1 it does not.";

pub(super) fn run(args: &Args) -> Result<Outcome> {
    let folder = std::env::current_dir().context("the working directory")?;
    let report = Report::new(&folder);
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        write_json(&mut out, &report)?;
    } else {
        print(&mut out, &report)?;
    }
    out.flush()?;
    Ok(if report.records { Outcome::Done } else { Outcome::Unable })
}

fn print(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut table = text_table(["TRIED", "", "SEEN"]);
    for check in &report.checks {
        let word = match check.works {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        table.add_row([check.what.into(), verdict(word, check.works == Some(true)), check.seen.as_str().into()]);
    }
    if let Some(nops) = report.nops {
        let seen = format!("of 5 bytes {}, other long ones {}", nops.nop5.name(), nops.long_nop.name());
        table.add_row(["probes on a nop", "", &seen]);
    }
    writeln!(out, "{}\n", table.trim_fmt())?;
    print_surroundings(out, &report.surroundings)?;
    let mut table = text_table(["MODE", "WORKS", "WHAT TO DO"]);
    for mode in &report.modes {
        let word = if mode.works { "yes" } else { "no" };
        table.add_row([mode.mode.into(), verdict(word, mode.works), mode.fix.unwrap_or_default().into()]);
    }
    writeln!(out, "{}", table.trim_fmt())?;
    let useful = report.checks.iter().filter(|check| check.need == crate::doctor::Need::Speed);
    for check in useful.filter(|check| report.modes[0].works && check.works != Some(true)) {
        writeln!(out, "{}: {}", check.what, check.fix.unwrap_or_default())?;
    }
    Ok(())
}

fn print_surroundings(out: &mut impl Write, found: &Surroundings) -> io::Result<()> {
    let mut table = text_table(["FOUND", "WHERE"]);
    for library in &found.libraries {
        table.add_row(["library".to_owned(), printable(&library.path.to_string_lossy())]);
    }
    for cupti in &found.cupti {
        table.add_row(["CUPTI".to_owned(), printable(&cupti.to_string_lossy())]);
    }
    let inside = found.inside.as_ref().map(|path| path.to_string_lossy().into_owned());
    let inside = inside.or_else(|| found.no_inside.as_ref().map(|why| format!("none: {why}"))).unwrap_or_default();
    table.add_row(["library inside".to_owned(), printable(&inside)]);
    for process in &found.processes {
        table.add_row(["process".to_owned(), format!("{} {}", process.pid, printable(&process.name))]);
    }
    for python in &found.interpreters {
        let (major, minor, micro) = python.version;
        let stacks = if python.supported { "" } else { " (its stacks cannot be read)" };
        let name = printable(&python.implementation);
        let path = printable(&python.path.to_string_lossy());
        table.add_row(["interpreter".to_owned(), format!("{name} {major}.{minor}.{micro} {path}{stacks}")]);
    }
    if found.libraries.is_empty() && found.processes.is_empty() && found.interpreters.is_empty() {
        writeln!(out, "no CUDA library, no process that uses one, no Python on PATH")?;
    }
    writeln!(out, "{}\n", table.trim_fmt())
}
