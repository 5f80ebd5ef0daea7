//! `analyze info`: what is on a tape.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Result;
use ktape_format::Table as _;
use ktape_format::blind_spots::BlindSpot;
use ktape_format::event::lifecycle_kind;
use serde::Serialize;

use super::blind_spots;
use super::counts::write_not_kept;
use super::inside_cost::{self, InsideCost};
use super::load::{Loaded, Losses, load, open_tape};
use super::recording::{self, KindTotals, Part};
use super::{Outcome, audit, cpu_side, host_side, layout, note_host_only, note_losses, off_cpu, write_json};
use crate::human::{HumanBytes, HumanCount, counted, duration, share, text_table};
use crate::layout::Layout;
use crate::symbols::Symbols;
use crate::timeline::audit::Audit;
use crate::timeline::cpu_side::CpuSide;
use crate::timeline::host_side::HostSide;
use crate::timeline::names::printable;
use crate::timeline::off_cpu::OffCpuSide;
use crate::timeline::summary::{KernelSummary, Summary};
use crate::timeline::{Selection, Timeline};
use crate::verify::completeness::Completeness;

/// The options of `analyze info`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  analyze info run.ktape                          events, devices, streams
  analyze info run.ktape --kernels | head -40     the kernels with the most time
  analyze info run.ktape --from 1s --to 2s        the same of a part
  analyze info recording/                         a recording of many segments: exact totals of all of it
  analyze info run.ktape --layout                 and where the file's bytes go, table by table and column by column

Busy is the time in which at least one kernel, copy or memset ran: what overlaps counts once. A recording without \
device times has no such figure; of it info says who launched, waited, copied and did not free.")]
pub struct Args {
    /// A tape, a recording (a directory of segments), a PyTorch profiler trace, or a report that Nsight Systems exported to SQLite
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// List every kernel with its calls and its total time, longest first; without device times with its launches
    #[arg(long)]
    kernels: bool,
    /// Say what each table, column and other part of the tape takes of the whole file
    #[arg(long)]
    layout: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    symbols: Symbols,
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
    tail_in_memory: bool,
    device_times: bool,
    /// Whether all that its recorder saw is there; not told of a part of a tape.
    #[serde(skip_serializing_if = "Option::is_none")]
    completeness: Option<&'a Completeness>,
    /// What its recorder cannot have seen.
    blind_spots: &'a [BlindSpot],
    /// What a library inside of processes took of them.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    inside_cost: &'a [InsideCost],
    /// What its recorder kept less of, to keep the cost down, and of what more again, in order.
    fidelity: &'a [String],
    audit: &'a Audit,
    #[serde(flatten)]
    summary: &'a Summary,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    parts: &'a [Part],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    totals: &'a [KindTotals],
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostSide>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuSide>,
    #[serde(skip_serializing_if = "Option::is_none")]
    off_cpu: Option<OffCpuSide>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernels: Option<Vec<KernelSummary>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<Layout>,
}

/// Runs `analyze info`.
pub fn run(args: &Args) -> Result<Outcome> {
    let tape = args.layout.then(|| open_tape(&args.trace)).transpose()?;
    let is_recording = recording::is_recording(&args.trace);
    let parts = if is_recording { recording::parts(&args.trace)? } else { Vec::new() };
    let as_totals = is_recording && args.selection.is_everything();
    let loaded = match as_totals {
        true => recording::load_totals(&args.trace, &args.symbols)?,
        false => load(&args.trace, &args.selection, &args.symbols)?,
    };
    let summary = loaded.timeline.summary();
    let audit = loaded.timeline.audit(loaded.first_ns, args.selection.is_everything());
    let host_only = loaded.timeline.host_only;
    let completeness = args.selection.is_everything().then(|| loaded.completeness()).flatten();
    let blind_spots = blind_spots::of(&loaded.timeline.definitions);
    let inside_cost = inside_cost::of(&loaded.timeline);
    let fidelity = fidelity(&loaded.timeline);
    let totals = recording::totals(&loaded.timeline);
    let events: usize = match as_totals {
        true => totals.iter().map(|totals| totals.count as usize).sum(),
        false => summary.events.values().sum(),
    };
    let info = Info {
        path: loaded.path.display().to_string(),
        file_bytes: loaded.file_bytes,
        bytes_per_event: if events == 0 { 0.0 } else { loaded.file_bytes as f64 / events as f64 },
        losses: loaded.losses(),
        closed: loaded.closed,
        staged_rows: loaded.staged_rows,
        tail_in_memory: loaded.tail_in_memory,
        device_times: !host_only,
        completeness: completeness.as_ref(),
        blind_spots: &blind_spots,
        inside_cost: &inside_cost,
        fidelity: &fidelity,
        audit: &audit,
        summary: &summary,
        parts: &parts,
        totals: &totals,
        host: host_only.then(|| loaded.timeline.host_side()),
        cpu: loaded.timeline.cpu_side(),
        off_cpu: loaded.timeline.off_cpu_side(),
        kernels: (args.kernels || host_only).then(|| loaded.timeline.kernel_summaries(&audit)),
        layout: tape.map(|tape| Layout::new(&tape, &loaded.timeline.definitions.strings)),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        write_json(&mut out, &info)?;
    } else {
        print(&mut out, &loaded, &info, args)?;
    }
    Ok(loaded.outcome())
}

fn print(out: &mut impl Write, loaded: &Loaded, info: &Info<'_>, args: &Args) -> Result<()> {
    let summary = info.summary;
    if let Some(completeness) = info.completeness.filter(|completeness| !completeness.holds) {
        let (missing, surplus) = (HumanCount(completeness.missing), HumanCount(completeness.surplus));
        writeln!(
            out,
            "{}: not complete: {missing} calls are missing, {surplus} were not counted: `analyze verify` says when and which",
            info.path
        )?;
    }
    note_losses(out, loaded)?;
    note_host_only(out, loaded)?;
    audit::print(out, info.audit, loaded.timeline.host_only)?;
    writeln!(
        out,
        "{}: {}, {:.2} bytes an event{}{}",
        info.path,
        HumanBytes(info.file_bytes),
        info.bytes_per_event,
        // Totals may be of boots whose clocks have nothing to do with each other.
        if info.totals.is_empty() { format!(", {}", duration(summary.duration_ns as f64)) } else { String::new() },
        match (info.closed, info.tail_in_memory) {
            (true, _) => "",
            (false, false) => " (not closed: still being written, or its writer was killed)",
            (false, true) => {
                " (not closed: still being written, or its writer was killed; what was in no block yet is missing, as \
                 the filesystem has no shared mappings)"
            }
        },
    )?;
    recording::print_parts(out, info.parts)?;
    print_processes(out, info, &loaded.timeline)?;
    print_devices(out, summary)?;
    let mut table = text_table(["events", "count"], &[0]);
    for (kind, count) in loaded.timeline.events.counts().into_iter().filter(|(_, count)| *count > 0) {
        table.add_row([kind.to_owned(), HumanCount(count as u64).to_string()]);
    }
    match table.row_count() {
        0 => writeln!(out, "no events")?,
        _ => writeln!(out, "{}", table.trim_fmt())?,
    }
    recording::print_totals(out, info.totals)?;
    match &info.host {
        Some(host) => host_side::print(out, host, info.kernels.as_deref().unwrap_or_default(), args.kernels)?,
        None => {
            print_streams(out, summary)?;
            print_kernels(out, info)?;
        }
    }
    if let Some(cpu) = &info.cpu {
        cpu_side::print(out, cpu)?;
    }
    if let Some(off_cpu) = &info.off_cpu {
        off_cpu::print(out, off_cpu)?;
    }
    if let Some(layout) = &info.layout {
        layout::print(out, layout, info.file_bytes)?;
    }
    inside_cost::print(out, info.inside_cost)?;
    blind_spots::print(out, info.blind_spots)?;
    if !info.fidelity.is_empty() {
        writeln!(out, "what was kept of each event, to keep the cost of recording under its limit:")?;
    }
    info.fidelity.iter().take(MOST_CHANGES).try_for_each(|change| writeln!(out, "  {}", printable(change)))?;
    if info.fidelity.len() > MOST_CHANGES {
        writeln!(
            out,
            "  and {} changes more: --json lists them",
            HumanCount((info.fidelity.len() - MOST_CHANGES) as u64)
        )?;
    }
    Ok(write_not_kept(out, "", &summary.not_kept)?)
}

/// So many changes of what is kept are shown to a person.
const MOST_CHANGES: usize = 20;

/// What the recorder kept less of, and of what more again.
fn fidelity(timeline: &Timeline) -> Vec<String> {
    let changes = timeline.events.lifecycle.rows().filter(|row| row.kind == lifecycle_kind::FIDELITY);
    changes.map(|row| timeline.definitions.string(row.detail).to_owned()).collect()
}

/// The processes; those of a live recording (only that has lifecycles) that called no API are only counted, as a shell has many children.
fn print_processes(out: &mut impl Write, info: &Info<'_>, timeline: &Timeline) -> io::Result<()> {
    let events = &timeline.events;
    let is_live = info.host.is_some() || !events.lifecycle.is_empty() || !events.rollup.is_empty();
    let callers = is_live.then(|| timeline.processes_with_calls());
    let called = |id: u32| callers.as_ref().is_none_or(|callers| callers.contains(&id));
    let mut silent = 0;
    for (id, process) in (1..).zip(&info.summary.processes) {
        if !called(id) {
            silent += 1;
            continue;
        }
        // PyTorch writes the cost of its profiler as threads of a process -1, and the importer the device work of a
        // trace without any host events as that of one without threads.
        match (process.pid, process.threads) {
            (-1, 0) => write!(out, "process not known")?,
            (-1, _) => write!(out, "the profiler's own overhead (process -1)")?,
            (pid, _) => write!(out, "process {pid}")?,
        }
        if !process.name.is_empty() {
            write!(out, " {}", printable(&process.name))?;
        }
        if let Some(rank) = &process.rank {
            write!(out, ", rank {rank}")?;
        }
        if let Some(size) = &process.world_size {
            write!(out, " of {size}")?;
        }
        if let Some(container) = &process.container {
            write!(out, ", container {}", printable(container))?;
        }
        if let Some(python) = &process.python {
            write!(out, ", {}", printable(python))?;
        }
        // Totals are by process.
        if process.threads > 0 || events.rollup.is_empty() {
            write!(out, ", {}", counted(process.threads, "thread"))?;
        }
        writeln!(out)?;
    }
    match silent {
        0 => Ok(()),
        1 => writeln!(out, "and 1 process that made no GPU calls"),
        _ => writeln!(out, "and {silent} processes that made no GPU calls"),
    }
}

fn print_devices(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    for device in summary.devices.iter().filter(|device| device.kernels + device.copies > 0) {
        write!(out, "device {}", device.index)?;
        if !device.name.is_empty() {
            write!(out, " {}", printable(&device.name))?;
        }
        if let (Some(busy_ns), Some(span_ns)) = (device.busy_ns, device.span_ns) {
            let (busy, span) = (duration(busy_ns as f64), duration(span_ns as f64));
            write!(out, ": busy {busy} of {span} ({}), ", share(busy_ns, span_ns))?;
            write!(out, "{}, ", counted(device.kernels, "kernel"))?;
        } else {
            write!(out, ": ")?;
        }
        writeln!(out, "{} copies and memsets", HumanCount(device.copies as u64))?;
    }
    Ok(())
}

fn print_streams(out: &mut impl Write, summary: &Summary) -> io::Result<()> {
    if let [_, _, ..] = summary.streams[..] {
        let mut table = text_table(["device", "context", "stream", "operations", "busy"], &[]);
        for stream in &summary.streams {
            table.add_row([
                stream.device.to_string(),
                stream.context.to_string(),
                stream.stream.to_string(),
                HumanCount(stream.operations as u64).to_string(),
                stream.busy_ns.map_or("-".to_owned(), |busy_ns| duration(busy_ns as f64)),
            ]);
        }
        writeln!(out, "{}", table.trim_fmt())?;
    }
    Ok(())
}

fn print_kernels(out: &mut impl Write, info: &Info<'_>) -> io::Result<()> {
    let Some(kernels) = &info.kernels else { return Ok(()) };
    let is_repaired = info.audit.impossible.count > 0;
    let mut table = match is_repaired {
        true => text_table(["calls", "total", "repaired", "kernel"], &[3]),
        false => text_table(["calls", "total", "kernel"], &[2]),
    };
    for kernel in kernels {
        let repaired = is_repaired.then(|| duration(kernel.repaired_ns as f64));
        let figures = [HumanCount(kernel.calls).to_string(), duration(kernel.total_ns as f64)];
        table.add_row(figures.into_iter().chain(repaired).chain([printable(&kernel.name).into_owned()]));
    }
    writeln!(out, "{}", table.trim_fmt())
}
