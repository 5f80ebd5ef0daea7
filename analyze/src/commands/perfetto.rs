//! `analyze perfetto`: writes a trace for ui.perfetto.dev.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use serde::Serialize;

use super::load::{Loaded, Losses, load};
use super::{Outcome, note_host_only, note_losses, output, write_json};
use crate::export::perfetto::{self, Summary};
use crate::human::{HumanBytes, HumanCount};
use crate::symbols::Symbols;
use crate::timeline::Selection;

/// The options of `analyze perfetto`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Open the result at https://ui.perfetto.dev, or let `analyze open` do that. The trace never leaves your machine.
See docs/perfetto.md for what is where in it.")]
pub struct Args {
    /// A tape, a recording (a directory of segments), a PyTorch profiler trace, or a report that Nsight Systems exported to SQLite
    #[arg(value_name = "TRACE")]
    input: PathBuf,
    /// Where to write the Perfetto trace; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Compress: about 5 times smaller, and Perfetto reads it as it is
    #[arg(long)]
    gz: bool,
    /// Replace the output file if there is one
    #[arg(long)]
    force: bool,
    /// Print the summary as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    losses: Losses,
    device_times: bool,
    output: String,
    seconds: f64,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// Runs `analyze perfetto`.
pub fn run(args: &Args) -> Result<Outcome> {
    let to_stdout = output::is_stdout(&args.output);
    if to_stdout && io::stdout().is_terminal() {
        let why = "a trace is binary: name a file (-o out.pftrace), or send standard output somewhere else";
        return Err(output::Refused(why.to_owned()).into());
    }
    if !to_stdout {
        output::ensure_free(&args.output, &args.input, args.force)?;
    }
    let loaded = load(&args.input, &args.selection, &args.symbols)?;
    let began = Instant::now();
    let summary = if to_stdout {
        perfetto::write(&loaded.timeline, BufWriter::new(io::stdout()), args.gz)?
    } else {
        output::write(&args.output, args.force, |out| perfetto::write(&loaded.timeline, out, args.gz))?
    };
    // Standard output may be the trace.
    let mut out: Box<dyn Write> = if to_stdout { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    report(&mut out, args, &summary, &loaded, began.elapsed().as_secs_f64())?;
    Ok(loaded.outcome())
}

fn report(mut out: &mut dyn Write, args: &Args, summary: &Summary, loaded: &Loaded, seconds: f64) -> io::Result<()> {
    let output = args.output.display();
    if args.json {
        let (losses, device_times) = (loaded.losses(), !loaded.timeline.host_only);
        return write_json(out, &Report { losses, device_times, output: output.to_string(), seconds, summary });
    }
    note_losses(&mut out, loaded)?;
    note_host_only(&mut out, loaded)?;
    let (events, bytes) = (HumanCount(summary.events), HumanBytes(summary.bytes));
    writeln!(out, "{output}: {events} events, {bytes}, in {seconds:.2} s; open it at https://ui.perfetto.dev")
}
