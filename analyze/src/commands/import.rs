//! `analyze import`.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_format::{Options, TapeWriter, Written};

use super::counts::{write_counts, write_not_kept};
use super::output::{self, Output};
use super::{Outcome, progress, write_json};
use crate::human::{HumanBytes, HumanCount};
use crate::import::{self, ImportError, Progress, Summary};

/// The options of `analyze import`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Times become integer nanoseconds exactly. What is in the file but has no place on the tape is counted and listed once.

Examples:
  analyze import trace.json.gz                    writes trace.ktape beside it
  analyze import rank3.json -o out/rank3.ktape
  analyze import report.sqlite                    what `nsys export --type sqlite report.nsys-rep` wrote")]
pub struct Args {
    /// The trace: JSON of the PyTorch profiler (`prof.export_chrome_trace`), 2021 or later, gzipped or not; or a report
    /// of Nsight Systems, 2022 or later (`nsys export --type sqlite`)
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where to write the tape [default: SRC with the ending .ktape]
    #[arg(short, long, value_name = "OUT.ktape")]
    output: Option<PathBuf>,
    /// Leave out what cannot be right in the trace, and count it, instead of stopping there
    #[arg(long)]
    lenient: bool,
    /// Overwrite the output if it exists
    #[arg(long)]
    force: bool,
    /// Print what was read, kept and not kept as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `analyze import`.
pub fn run(args: &Args) -> Result<Outcome> {
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.source));
    let began = Instant::now();
    output::ensure_free(&output, &args.source, args.force)?;
    let file = Output::create(&output, args.force)?;
    let name = || format!("cannot write {}", output.display());
    let options = Options::batch(concat!("ktape analyze ", env!("CARGO_PKG_VERSION")));
    let mut tape = TapeWriter::new(file.file().try_clone().with_context(name)?, &options).with_context(name)?;
    let bar = progress::bar("reading");
    let options = import::Options { lenient: args.lenient };
    let outcome = import::import(&args.source, &mut tape, options, |Progress { done_bytes, total_bytes }| {
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
    });
    bar.finish_and_clear();
    let summary = outcome.map_err(|error| match error {
        // The user has to make room where the tape goes, not where the trace is.
        ImportError::Sink { source, .. } => anyhow::Error::from_boxed(source).context(name()),
        error => error.into(),
    })?;
    let written = tape.finish().with_context(name)?;
    file.commit()?;
    if args.json {
        print_json(&summary, &output, &written)?;
    } else {
        print_summary(&args.source, &output, &summary, &written, began.elapsed())?;
    }
    Ok(Outcome::Done)
}

/// The source's path with `.ktape` for `.json`, `.json.gz` or `.sqlite`.
fn default_output(source: &Path) -> PathBuf {
    let mut plain = source.to_owned();
    for ending in ["gz", "json", "sqlite"] {
        if plain.extension() == Some(OsStr::new(ending)) {
            plain.set_extension("");
        }
    }
    plain.add_extension("ktape");
    plain
}

fn print_json(summary: &Summary, output: &Path, written: &Written) -> io::Result<()> {
    let json = &serde_json::json!({
        "output": output.display().to_string(),
        "file_bytes": written.file_bytes,
        "events": written.events,
        "read": summary.read,
        "kept": summary.kept,
        "not_kept": summary.not_kept,
        "not_kept_parts": summary.not_kept_parts,
        "repaired": summary.repaired,
        "matched": summary.matched,
        "unmatched": summary.unmatched,
    });
    write_json(io::stdout().lock(), json)
}

fn print_summary(source: &Path, output: &Path, summary: &Summary, written: &Written, took: Duration) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (name, events, bytes) = (output.display(), HumanCount(written.events), HumanBytes(written.file_bytes));
    // A pipe has no length.
    let of_source = match std::fs::metadata(source) {
        Ok(metadata) if metadata.is_file() => format!(" from {} of source", HumanBytes(metadata.len())),
        _ => String::new(),
    };
    writeln!(out, "{name}: {events} events, {bytes}{of_source}, in {:.2} s", took.as_secs_f64())?;
    let (all, unmatched) = (HumanCount(summary.matched + summary.unmatched), HumanCount(summary.unmatched));
    match (summary.matched, summary.unmatched) {
        (0, 0) => writeln!(out, "  no device work")?,
        (_, 0) => writeln!(out, "  device work: {all}, each with the call that launched it")?,
        _ => writeln!(out, "  device work: {all}, {unmatched} of it launched before the recording began")?,
    }
    write_counts(&mut out, "  ", "kept", summary.kept.iter().map(|(kind, count)| (*kind, *count)))?;
    write_counts(&mut out, "  ", "put right", summary.repaired.iter().map(|(what, count)| (*what, *count)))?;
    write_not_kept(&mut out, "  ", &summary.all_not_kept())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tape_lies_beside_its_source() {
        for (source, tape) in [
            ("a/trace.json.gz", "a/trace.ktape"),
            ("trace.json", "trace.ktape"),
            ("run.pt.trace.json", "run.pt.trace.ktape"),
            ("report.sqlite", "report.ktape"),
            ("odd", "odd.ktape"),
        ] {
            assert_eq!(default_output(Path::new(source)), Path::new(tape));
        }
    }
}
