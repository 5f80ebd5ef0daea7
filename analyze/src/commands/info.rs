//! `analyze info`: what is on a tape.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use super::load::{Loaded, Losses, load};
use super::{Outcome, note_losses, write_json};
use crate::human::{HumanBytes, HumanCount, duration, share, text_table};
use crate::timeline::Selection;
use crate::timeline::summary::{KernelSummary, Summary};

/// The options of `analyze info`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A tape, or a trace that `analyze import` reads
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// List every kernel with its calls and its total time, longest first
    #[arg(long)]
    kernels: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selection: Selection,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Info<'a> {
    path: String,
    file_bytes: u64,
    bytes_per_event: f64,
    #[serde(flatten)]
    losses: Losses,
    closed: bool,
    staged_rows: u64,
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<Vec<KernelSummary>>,
}

/// Runs `analyze info`.
pub fn run(args: &Args) -> Result<Outcome> {
    let loaded = load(&args.trace, &args.selection)?;
    let summary = loaded.timeline.summary();
    let events: usize = summary.events.values().sum();
    let info = Info {
        path: loaded.path.display().to_string(),
        file_bytes: loaded.file_bytes,
        bytes_per_event: if events == 0 { 0.0 } else { loaded.file_bytes as f64 / events as f64 },
        losses: loaded.losses(),
        closed: loaded.closed,
        staged_rows: loaded.staged_rows,
        summary: &summary,
        kernels: args.kernels.then(|| loaded.timeline.kernel_summaries()),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        write_json(&mut out, &info)?;
    } else {
        print(&mut out, &loaded, &info)?;
    }
    Ok(loaded.outcome())
}

fn print(out: &mut impl Write, loaded: &Loaded, info: &Info<'_>) -> Result<()> {
    let summary = info.summary;
    note_losses(out, loaded)?;
    writeln!(
        out,
        "{}: {}, {:.2} bytes an event, {}{}",
        info.path,
        HumanBytes(info.file_bytes),
        info.bytes_per_event,
        duration(summary.duration_ns as f64),
        if info.closed { "" } else { " (not closed: still being written, or its writer was killed)" },
    )?;
    for process in &summary.processes {
        write!(out, "process {}", process.pid)?;
        if !process.name.is_empty() {
            write!(out, " {}", process.name)?;
        }
        if let Some(rank) = &process.rank {
            write!(out, ", rank {rank}")?;
        }
        if let Some(size) = &process.world_size {
            write!(out, " of {size}")?;
        }
        writeln!(out, ", {} threads", process.threads)?;
    }
    for device in summary.devices.iter().filter(|device| device.kernels + device.copies > 0) {
        writeln!(
            out,
            "device {} {}: busy {} of {} ({}), {} kernels, {} copies and memsets",
            device.index,
            device.name,
            duration(device.busy_ns as f64),
            duration(device.span_ns as f64),
            share(device.busy_ns, device.span_ns),
            HumanCount(device.kernels as u64),
            HumanCount(device.copies as u64),
        )?;
    }
    let mut table = text_table(["events", "count"], &[0]);
    for (kind, count) in loaded.timeline.events.counts().into_iter().filter(|(_, count)| *count > 0) {
        table.add_row([kind.to_owned(), HumanCount(count as u64).to_string()]);
    }
    writeln!(out, "{table}")?;
    if let [_, _, ..] = summary.streams[..] {
        let mut table = text_table(["device", "context", "stream", "operations", "busy"], &[]);
        for stream in &summary.streams {
            table.add_row([
                stream.device.to_string(),
                stream.context.to_string(),
                stream.stream.to_string(),
                HumanCount(stream.operations as u64).to_string(),
                duration(stream.busy_ns as f64),
            ]);
        }
        writeln!(out, "{table}")?;
    }
    if let Some(kernels) = &info.kernels {
        let mut table = text_table(["calls", "total", "kernel"], &[2]);
        for kernel in kernels {
            table.add_row([
                HumanCount(kernel.calls).to_string(),
                duration(kernel.total_ns as f64),
                kernel.name.clone(),
            ]);
        }
        writeln!(out, "{table}")?;
    }
    if !summary.not_kept.is_empty() {
        let parts: Vec<String> =
            summary.not_kept.iter().map(|(what, count)| format!("{what} {}", HumanCount(*count))).collect();
        writeln!(out, "not kept from the source: {}", parts.join(", "))?;
    }
    Ok(())
}
