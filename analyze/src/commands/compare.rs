//! `analyze compare`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use super::load::{Losses, load};
use super::{Outcome, note_losses, output, write_json};
use crate::human::columns;
use crate::sampling::jitter::Jitter;
use crate::sampling::{self, By, Comparison, Options, Sampler, Schedule, plot, report};
use crate::symbols::Symbols;
use crate::timeline::Selection;
use crate::timeline::selection::parse_time_ns;

/// The options of `analyze compare`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A tape, a recording (a directory of segments), a PyTorch profiler trace, or a report that Nsight Systems exported to SQLite
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// What the simulated profiler looks at [default: gpu if the trace has device work with times, else cpu]
    #[arg(long, value_enum)]
    sampler: Option<Sampler>,
    /// What a row is [default: kernel for gpu, function for cpu]
    #[arg(long, value_enum)]
    by: Option<By>,
    /// Samples a second; several, comma-separated, give one comparison each
    #[arg(long, value_name = "HZ", value_delimiter = ',', default_value = "100",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    hz: Vec<u32>,
    /// How long a profile is taken: 500ms, 10s, 1m; several give one comparison each [default: the whole trace]
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = window_ns)]
    windows: Vec<u64>,
    /// Sample at random instants instead of with a fixed period, of which all phases are computed
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "uniform", require_equals = true)]
    jitter: Option<Jitter>,
    /// Where the random numbers of --jitter start
    #[arg(long, default_value_t = 1, requires = "jitter")]
    seed: u64,
    /// How many random profiles --jitter plays, in each window
    #[arg(long, default_value_t = 1000, requires = "jitter", value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// How many rows a reader of the profile looks at: the table's length, and whose top is compared
    #[arg(long, value_name = "ROWS", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    top: u32,
    /// Print JSON with all rows instead of a table: an object, or an array of them for several --hz or --windows
    #[arg(long)]
    json: bool,
    /// Also draw exact against sampled times, as an SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Replace the SVG if it exists
    #[arg(long, requires = "svg")]
    force: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
}

const EXAMPLES: &str = "\
Examples:
  analyze compare run.ktape                            100 Hz, over the whole trace
  analyze compare run.ktape --hz 49,99,100,1000        which frequency would do?
  analyze compare run.ktape --windows 1s,10s,60s       how long must I look?
  analyze compare run.ktape --sampler cpu --jitter=exponential      as py-spy samples Python

docs/compare.md defines every figure.";

fn window_ns(text: &str) -> Result<u64> {
    u64::try_from(parse_time_ns(text)?).ok().filter(|&ns| ns > 0).context("must be longer than 0")
}

/// What `--json` prints: losses first, like every report.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    losses: &'a Losses,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Runs `analyze compare`.
pub fn run(args: &Args) -> Result<Outcome> {
    if let Some(svg) = &args.svg {
        output::ensure_free(svg, &args.trace, args.force)?;
    }
    let loaded = load(&args.trace, &args.selection, &args.symbols)?;
    let schedule = match args.jitter {
        None => Schedule::Fixed,
        Some(jitter) => Schedule::Random { jitter, seed: args.seed, runs: args.runs },
    };
    // What is missing may be why there is nothing to compare.
    let note = || note_losses(&mut io::stderr(), &loaded);
    if loaded.timeline.span_ns().is_none() {
        let _ = note();
        let of = if args.selection.is_everything() { "trace" } else { "selection" };
        bail!("{}: the {of} has no events; `analyze info` says what there is", loaded.path.display());
    }
    let options = Options {
        sampler: args.sampler,
        by: args.by,
        hz: args.hz.clone(),
        windows_ns: args.windows.clone(),
        schedule,
        top: args.top as usize,
    };
    let comparisons = sampling::compare(&loaded.timeline, &options)
        .inspect_err(|_| drop(note()))
        .with_context(|| loaded.path.display().to_string())?;
    if let Some(svg) = &args.svg {
        output::write(svg, args.force, |out| out.write_all(plot::draw(&comparisons).as_bytes()))?;
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    if args.json {
        let losses = &loaded.losses();
        let reports: Vec<Report<'_>> = comparisons.iter().map(|comparison| Report { losses, comparison }).collect();
        match &reports[..] {
            // By what was asked for, not by how many windows the trace is long enough for.
            [only] if args.hz.len() == 1 && args.windows.len() <= 1 => write_json(&mut out, only)?,
            several => write_json(&mut out, &several)?,
        }
    } else {
        note_losses(&mut out, &loaded)?;
        report::write(&mut out, &comparisons, columns())?;
    }
    out.flush()?;
    Ok(loaded.outcome())
}
