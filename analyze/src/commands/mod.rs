//! One subcommand, one file. This one holds what they share: the list, how losses and JSON are written, the exit code.

mod audit;
mod blind_spots;
pub mod compare;
pub mod counts;
mod cpu_side;
pub mod dump;
pub mod flamegraph;
mod host_side;
pub mod import;
pub mod info;
mod inside_cost;
mod layout;
pub mod load;
mod off_cpu;
pub mod open;
pub mod output;
pub mod perfetto;
pub mod progress;
pub mod recording;
pub mod verify;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use ktape_format::Table as _;
use serde::Serialize;

use crate::human::HumanCount;
use crate::sampling;
use crate::timeline::names::printable;
use crate::timeline::selection;

/// Reads GPU traces: what ran when, who launched it, and what a sampling profiler would have told you instead.
#[derive(Parser)]
#[command(name = "analyze", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  analyze import trace.json.gz -o run.ktape       a PyTorch profiler trace becomes a tape
  analyze info run.ktape                          what is on it
  analyze perfetto run.ktape -o run.pftrace       for ui.perfetto.dev (or: analyze open run.ktape)
  analyze flamegraph run.ktape -o run.svg         exact GPU time by stack
  analyze compare run.ktape --hz 100              what a 100 Hz profiler would have said
  analyze verify run.ktape                        is every byte of it as it was written?

Exit codes: 0 done, 1 the input is bad or something failed, 2 the command line is wrong, 3 done, but events were lost.";

#[derive(Subcommand)]
enum Command {
    /// Turns a trace of PyTorch's profiler or Nsight Systems into a tape
    Import(import::Args),
    /// Says what is on a tape
    Info(info::Args),
    /// Prints events as JSON lines
    Dump(dump::Args),
    /// Writes a trace for ui.perfetto.dev
    Perfetto(perfetto::Args),
    /// Serves a trace to ui.perfetto.dev and opens it
    Open(open::Args),
    /// Draws a flamegraph of exact GPU time by stack
    Flamegraph(flamegraph::Args),
    /// Holds simulated sampling profilers against the exact record
    Compare(compare::Args),
    /// Checks every part of a tape, and keeps what is sound of a damaged one
    Verify(verify::Args),
}

/// How a command ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it.
    Done,
    /// Done, but events were lost before or while it ran; the report says which.
    Losses,
    /// The answer that was asked for is that the input is bad.
    Damaged,
}

/// Says what was lost, and what of stacks could not be named, as the first thing of every report. Says nothing if nothing was.
pub fn note_losses(out: &mut impl Write, loaded: &load::Loaded) -> io::Result<()> {
    /// A badly damaged tape could fill the screen with where.
    const MOST_LINES: usize = 10;
    let more = |all: usize| all.checked_sub(MOST_LINES).filter(|&more| more > 0);
    let losses = &loaded.timeline.events.loss;
    if loaded.lost > 0 {
        writeln!(out, "{}: {} events were lost", loaded.path.display(), HumanCount(loaded.lost))?;
    }
    for row in losses.rows().take(MOST_LINES) {
        let cause = loaded.timeline.definitions.string(row.cause);
        let after_s = (row.start_ns.saturating_sub(loaded.first_ns)) as f64 / 1e9;
        match row.count {
            0 => writeln!(out, "  a number not known at {after_s:.6} s: {cause}")?,
            count => writeln!(out, "  {count} at {after_s:.6} s: {cause}")?,
        }
    }
    if let Some(more) = more(losses.len()) {
        writeln!(out, "  and {more} more losses: `analyze dump --kind loss` lists them")?;
    }
    for damage in loaded.damage.iter().take(MOST_LINES) {
        writeln!(out, "{}: {damage}", loaded.path.display())?;
    }
    if let Some(more) = more(loaded.damage.len()) {
        writeln!(out, "  and {more} more damaged places: `analyze info --json` lists them")?;
    }
    for unread in loaded.unread.iter().take(MOST_LINES) {
        writeln!(out, "{}", printable(&unread.to_string()))?;
    }
    if let Some(more) = more(loaded.unread.len()) {
        writeln!(out, "  and {more} more files: `analyze verify` lists them")?;
    }
    if !loaded.only_totals.is_empty() {
        let (shown, more) = (loaded.only_totals.len().min(MOST_LINES), more(loaded.only_totals.len()));
        let more = more.map_or_else(String::new, |more| format!(" and {more} more"));
        writeln!(
            out,
            "{}: only totals are left of {}{more}: their events are not in this",
            loaded.path.display(),
            loaded.only_totals[..shown].join(", ")
        )?;
    }
    if loaded.unnamed.frames > 0 {
        writeln!(out, "{}: {}", loaded.path.display(), printable(&loaded.unnamed.to_string()))?;
    }
    Ok(())
}

/// Says that a trace has launches without kernels, as every report that could be taken for one of device times does.
pub fn note_host_only(out: &mut impl Write, loaded: &load::Loaded) -> io::Result<()> {
    if loaded.timeline.host_only {
        writeln!(
            out,
            "{}: launches without device times: when and how long the GPU worked is not on it",
            loaded.path.display()
        )?;
    }
    Ok(())
}

/// Writes an answer for a program. The error is of I/O, so that a reader that went away is known for what it is.
pub fn write_json(mut out: impl Write, answer: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut out, answer)?;
    writeln!(out)
}

/// Parses the command line, runs the command, prints its error if it fails, and decides the exit code: the only
/// place that does.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Losses) => ExitCode::from(3),
        Ok(Outcome::Damaged) => ExitCode::FAILURE,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // A file's errors carry its name; without one it was standard output.
            let unnamed = error.chain().count() == 1 && error.is::<io::Error>();
            let place = if unnamed { "cannot write standard output: " } else { "" };
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr(), "error: {place}{}", printable(&format!("{error:#}")));
            if is_usage(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

/// Whether the command line was wrong, in a way that its parser cannot see.
fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<selection::Error>()
        || error.is::<output::Refused>()
        || matches!(error.downcast_ref(), Some(sampling::Error::KernelsOnCpu))
}

fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Import(args) => import::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Perfetto(args) => perfetto::run(&args),
        Command::Open(args) => open::run(&args),
        Command::Flamegraph(args) => flamegraph::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Verify(args) => verify::run(&args),
    }
}

/// Whether the reader of our output went away (`analyze dump X | head`), which is no fault.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
