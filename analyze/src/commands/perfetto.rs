//! `analyze perfetto`: writes a trace for ui.perfetto.dev.

use std::fs;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use super::{Outcome, load};
use crate::export::perfetto::{self, Summary};
use crate::timeline::{Selection, Timeline};

/// The options of `analyze perfetto`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Open the result at https://ui.perfetto.dev, or let `analyze open` do that. The trace never leaves your machine.
See docs/perfetto.md for what is where in it.")]
pub struct Args {
    /// A tape, or a PyTorch profiler trace
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
}

/// Runs `analyze perfetto`.
pub fn run(args: &Args) -> Result<Outcome> {
    let to_stdout = args.output == Path::new("-");
    if to_stdout && io::stdout().is_terminal() {
        bail!("a trace is binary: name a file (-o out.pftrace), or send standard output somewhere else");
    }
    if !args.force && args.output.exists() && !to_stdout {
        bail!("{}: exists already; --force replaces it", args.output.display());
    }
    let loaded = load::load(&args.input, &args.selection)?;
    let began = Instant::now();
    let summary = if to_stdout {
        perfetto::write(&loaded.timeline, BufWriter::new(io::stdout()), args.gz).context("writing the trace")?
    } else {
        write_file(&loaded.timeline, &args.output, args.gz)?
    };
    // Standard output may be the trace.
    let mut out: Box<dyn Write> = if to_stdout { Box::new(io::stderr()) } else { Box::new(io::stdout()) };
    report(&mut out, args, &summary, loaded.lost, began.elapsed().as_secs_f64())?;
    Ok(if loaded.lost > 0 { Outcome::Losses } else { Outcome::Done })
}

/// Writes a timeline to a file, which appears under its name when it is whole.
pub(super) fn write_file(timeline: &Timeline, path: &Path, gz: bool) -> Result<Summary> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = || format!("{}: cannot write the trace", path.display());
    let beside = tempfile::Builder::new().prefix(".ktape-").tempfile_in(folder).with_context(failed)?;
    let summary = perfetto::write(timeline, BufWriter::new(beside.as_file()), gz).with_context(failed)?;
    beside.persist(path).map_err(|error| error.error).with_context(failed)?;
    readable_by_all(path).with_context(failed)?;
    Ok(summary)
}

/// A temporary file is its owner's alone; the result is an ordinary file.
fn readable_by_all(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))?;
    }
    fs::metadata(path).map(drop)
}

fn report(out: &mut dyn Write, args: &Args, summary: &Summary, lost: u64, seconds: f64) -> io::Result<()> {
    let output = args.output.display();
    if args.json {
        let Summary { events, packets, bytes, crossing_slices, open_ranges } = summary;
        let summary = serde_json::json!({
            "lost": lost,
            "events": events,
            "packets": packets,
            "bytes": bytes,
            "seconds": seconds,
            "crossing_slices": crossing_slices,
            "open_ranges": open_ranges,
            "output": output.to_string(),
        });
        return writeln!(out, "{summary:#}");
    }
    if lost > 0 {
        writeln!(out, "LOST: {lost} events are not on the tape; see the tracks \"Lost events\"")?;
    }
    let megabytes = summary.bytes as f64 / 1e6;
    writeln!(out, "{output}: {} events, {megabytes:.1} MB, {seconds:.2} s", summary.events)
}
