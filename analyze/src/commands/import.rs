//! `analyze import`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ktape_format::{Options, TapeWriter, Written};

use super::counts::{write_counts, write_not_kept};
use super::output::{self, Output};
use super::{Outcome, progress, write_json};
use crate::human::{HumanBytes, HumanCount, duration};
use crate::import::{self, Broken, BrokenParts, FileSummary, ImportError, Progress, Reason, StreamDisorder, Summary};
use crate::timeline::names::printable;

/// The options of `analyze import`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Times become integer nanoseconds exactly. What is in the file but has no place on the tape is counted and listed once.

A folder is imported whole, each trace in it as a process with devices of its own; what in it is no trace is told and
left out. A broken file is refused with the byte, line and column. With --lenient its sound events are kept, and usual
mistakes put right; what could not be saved is listed, a loss on the tape, and the exit code is 3.

Examples:
  analyze import trace.json.gz                    writes trace.ktape beside it
  analyze import ranks/ -o job.ktape              every trace in a folder, each a process of its own
  analyze import --lenient cut.json.gz            what is sound of a broken one; exits with 3
  analyze import report.sqlite                    what `nsys export --type sqlite report.nsys-rep` wrote")]
pub struct Args {
    /// The trace: Chrome JSON of the PyTorch profiler (`prof.export_chrome_trace`), 2021 or later, or of JAX, TensorFlow,
    /// VizTracer, rocprof or nsys2json, gzipped or not; or a report of Nsight Systems, 2022 or later (`nsys export --type
    /// sqlite`); or a folder of such, one of each rank
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// Where to write the tape [default: SRC with the ending .ktape]
    #[arg(short, long, value_name = "OUT.ktape")]
    output: Option<PathBuf>,
    /// Overwrite the output if it exists
    #[arg(long)]
    force: bool,
    /// Keep what is sound of a broken file; what was left out is counted, and a loss on the tape
    #[arg(long)]
    lenient: bool,
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
        if let Some(total_bytes) = total_bytes {
            bar.set_length(total_bytes);
        }
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
    Ok(if summary.broken.is_loss() { Outcome::Losses } else { Outcome::Done })
}

/// The source's path with `.ktape` for `.json`, `.json.gz` or `.sqlite`; a folder's with `.ktape` added.
fn default_output(source: &Path) -> PathBuf {
    // `.` and the like have no name to make one of.
    let mut plain = if source.file_name().is_some() { source.to_owned() } else { source.join("ranks") };
    for ending in ["gz", "json", "sqlite"] {
        if plain.extension() == Some(OsStr::new(ending)) {
            plain.set_extension("");
        }
    }
    plain.add_extension("ktape");
    plain
}

/// How much was not kept for each reason why that is no loss.
fn by_reason(summary: &Summary) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    for (description, count) in summary.all_not_kept() {
        *counts.entry(Reason::of(&description).0.text()).or_default() += count;
    }
    counts
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
        "not_kept_by_reason": by_reason(summary),
        "repaired": summary.repaired,
        "broken": summary.broken,
        "disorder": summary.disorder,
        "files": summary.files,
        "tool": summary.tool.map(|tool| tool.to_string()),
        "lacks": summary.lacks,
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
    print_broken(&mut out, &summary.broken)?;
    if let Some(tool) = summary.tool {
        let lacks: Vec<String> = summary.lacks.iter().map(|what| format!("no {what}")).collect();
        let lacks = if lacks.is_empty() { String::new() } else { format!(": {}", lacks.join(", ")) };
        writeln!(out, "  {tool} trace{lacks}")?;
    }
    for FileSummary { name, entries, rank, left_out, same_rank_as } in &summary.files {
        let name = printable(name);
        match (left_out, same_rank_as, rank) {
            (Some(why), ..) => writeln!(out, "  {name}: left out: {}", printable(why))?,
            (None, Some(other), Some(rank)) => {
                let (entries, rank, other) = (HumanCount(*entries), printable(rank), printable(other));
                writeln!(out, "  {name}: {entries} entries, rank {rank} like {other}: kept as another process")?;
            }
            (None, _, Some(rank)) => {
                writeln!(out, "  {name}: {} entries, rank {}", HumanCount(*entries), printable(rank))?
            }
            (None, _, None) => writeln!(out, "  {name}: {} entries", HumanCount(*entries))?,
        }
    }
    let (all, unmatched) = (HumanCount(summary.matched + summary.unmatched), HumanCount(summary.unmatched));
    match (summary.matched, summary.unmatched) {
        (0, 0) => writeln!(out, "  no device work")?,
        (_, 0) => writeln!(out, "  device work: {all}, each with the call that launched it")?,
        _ => writeln!(out, "  device work: {all}, {unmatched} of it launched before the recording began")?,
    }
    let StreamDisorder { overlaps, impossible, impossible_ns } = summary.disorder;
    if impossible > 0 {
        let (count, ns) = (HumanCount(impossible), duration(impossible_ns as f64));
        writeln!(
            out,
            "  flagged: {count} durations that cannot be, by {ns} in all; `info --kernels` has repaired ones"
        )?;
    }
    if overlaps > 0 {
        let count = HumanCount(overlaps);
        writeln!(out, "  flagged: {count} operations began before the one before on their stream had ended")?;
    }
    write_counts(&mut out, "  ", "kept", summary.kept.iter().map(|(kind, count)| (*kind, *count)))?;
    write_counts(&mut out, "  ", "put right", summary.repaired.iter().map(|(what, count)| (*what, *count)))?;
    write_not_kept(&mut out, "  ", &summary.all_not_kept())
}

/// What is missing comes first.
fn print_broken(out: &mut impl Write, broken: &BrokenParts) -> io::Result<()> {
    if let Some(why) = &broken.cut {
        writeln!(out, "  not whole: {}; what came after is not known", printable(why))?;
    }
    if broken.left_out > 0 {
        let places = HumanCount(broken.left_out);
        match broken.left_out_bytes {
            // Rows of a database have no length.
            0 => writeln!(out, "  broken: {places} rows, left out")?,
            bytes => writeln!(out, "  broken: {places} places, {}, left out", HumanBytes(bytes))?,
        }
    }
    if broken.mended > 0 {
        writeln!(out, "  broken: {} events, put right", HumanCount(broken.mended))?;
    }
    for Broken { offset, bytes, mended, problem } in &broken.first {
        let fate = if *mended { "put right" } else { "left out" };
        writeln!(out, "    byte {offset}, {bytes} bytes {fate}: {}", printable(problem))?;
    }
    let more = (broken.left_out + broken.mended).saturating_sub(broken.first.len() as u64);
    match more {
        0 => Ok(()),
        _ if broken.first.is_empty() => Ok(()),
        more => writeln!(out, "    and {} more", HumanCount(more)),
    }
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
            ("report1.sqlite", "report1.ktape"),
            ("ranks/", "ranks.ktape"),
            (".", "./ranks.ktape"),
        ] {
            assert_eq!(default_output(Path::new(source)), Path::new(tape));
        }
    }
}
