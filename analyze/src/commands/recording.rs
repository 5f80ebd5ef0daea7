//! A recording as `info`, `flamegraph` and `verify` open it: a directory of segments and rollups, added up.
//!
//! What is left of a part of the time is its events or only their totals. The totals of all parts are those of all that was
//! ever recorded, so reports over a recording are made of totals only, one tape after the other: memory does not grow with
//! the recording. For single events there are the segments.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ktape_format::definition::{Frame, KernelName, Process};
use ktape_format::event::Rollup;
use ktape_format::recording::Recording;
use ktape_format::rollup::{self, Digest};
use ktape_format::{Memory, Table as _, Tape};
use rustc_hash::FxBuildHasher;
use serde::Serialize;

use super::load::Loaded;
use crate::human::{HumanBytes, HumanCount, counted, duration, text_table};
use crate::symbols::{self, Symbols, Unnamed};
use crate::tables::KnownTables;
use crate::timeline::{Selection, Timeline};
use crate::verify::completeness::{Completeness, Counting, over_all_time};
use crate::verify::{self, Report, Verdict};

/// What is left of a stretch of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The numbers of the first and the last of its segments.
    pub segments: (u64, u64),
    /// Whether their events are there, or only rollups.
    pub has_events: bool,
    /// What is on the disk of it.
    pub bytes: u64,
    /// When the first segment began, in seconds since 1970-01-01 UTC.
    pub begin_unix_s: i64,
}

/// Whether a path is a directory with segments or rollups in it.
pub fn is_recording(path: &Path) -> bool {
    path.is_dir() && Recording::list(path).is_ok_and(|recording| !recording.segments.is_empty())
}

/// The files that count, and for each whether it has events.
fn files(recording: &Recording) -> impl Iterator<Item = (&PathBuf, bool)> {
    recording.segments.iter().filter_map(|segment| match (&segment.tape, &segment.rollup) {
        (Some(tape), _) => Some((tape, true)),
        (None, rollup) => rollup.as_ref().map(|rollup| (rollup, false)),
    })
}

/// What is left of which stretch.
pub fn parts(path: &Path) -> Result<Vec<Part>> {
    let recording = Recording::list(path).with_context(|| path.display().to_string())?;
    let mut parts: Vec<Part> = Vec::new();
    for segment in &recording.segments {
        let files = segment.tape.iter().chain(&segment.rollup);
        let bytes = files.map(|file| std::fs::metadata(file).map_or(0, |data| data.len())).sum();
        let has_events = segment.tape.is_some();
        match parts.last_mut() {
            Some(part) if part.has_events == has_events => {
                part.segments.1 = segment.name.segments.1;
                part.bytes += bytes;
            }
            _ => {
                let segments = segment.name.segments;
                parts.push(Part { segments, has_events, bytes, begin_unix_s: segment.name.begin_s });
            }
        }
    }
    Ok(parts)
}

/// Opens a recording as totals.
pub fn load(path: &Path, selection: &Selection, symbols: &Symbols) -> Result<Loaded> {
    if !selection.is_everything() {
        bail!(
            "{}: is a recording, of which only all together is added up: for a part of it name a segment",
            path.display()
        );
    }
    let recording = Recording::list(path).with_context(|| path.display().to_string())?;
    let mut digest = Digest::default();
    let mut file_bytes = 0;
    for (file, _) in files(&recording) {
        // One that the recorder deletes just now has left its rollup.
        let tape = match Tape::open(file) {
            Err(ktape_format::TapeError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                bail!("{}: was deleted meanwhile: try again", file.display())
            }
            tape => tape.with_context(|| file.display().to_string())?,
        };
        file_bytes += tape.file_bytes();
        digest.add_tape(&tape).with_context(|| file.display().to_string())?;
    }
    let mut memory = Memory::default();
    let Ok(()) = digest.write(&mut memory);
    let lost = memory.events.loss.count.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let first_ns = memory.events.rollup.start_ns.iter().copied().min().unwrap_or(0);
    let mut timeline = Timeline::new(memory.definitions, memory.events);
    let (named, unnamed): (_, Unnamed) = symbols::names(&timeline.definitions, symbols);
    timeline.name_native_frames(&named);
    Ok(Loaded {
        path: path.to_owned(),
        file_bytes,
        first_ns,
        timeline,
        lost,
        unnamed,
        damage: Vec::new(),
        staged_rows: 0,
        tail_in_memory: false,
        closed: true,
    })
}

/// Writes what is left of which stretch.
pub fn print_parts(out: &mut impl Write, parts: &[Part]) -> io::Result<()> {
    for part in parts {
        let (first, last) = part.segments;
        let numbers = if first == last { format!("segment {first}") } else { format!("segments {first} to {last}") };
        let what = if part.has_events { "all events" } else { "totals only, the events were deleted" };
        writeln!(out, "{numbers}: {what}, {}", HumanBytes(part.bytes))?;
    }
    Ok(())
}

/// Totals of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindTotals {
    /// The kind.
    pub kind: String,
    /// How many events.
    pub count: u64,
    /// Of these, how many failed.
    pub failed: u64,
    /// Their durations together.
    pub sum_ns: u64,
    /// What they moved or handed out, together.
    pub bytes: u64,
}

/// The rows of rollups by kind.
pub fn totals(timeline: &Timeline) -> Vec<KindTotals> {
    let known = KnownTables::new();
    let mut totals = BTreeMap::<u16, KindTotals>::new();
    for row in timeline.events.rollup.rows() {
        let sums = totals.entry(row.kind).or_default();
        sums.count = sums.count.saturating_add(row.count);
        sums.failed = sums.failed.saturating_add(row.failed);
        sums.sum_ns = sums.sum_ns.saturating_add(row.sum_ns);
        sums.bytes = sums.bytes.saturating_add(row.bytes);
    }
    totals.into_iter().map(|(kind, sums)| KindTotals { kind: known.name(kind), ..sums }).collect()
}

/// Writes the totals by kind.
pub fn print_totals(out: &mut impl Write, totals: &[KindTotals]) -> io::Result<()> {
    if totals.is_empty() {
        return Ok(());
    }
    let mut table = text_table(["rolled up", "count", "failed", "time", "bytes"], &[0]);
    for row in totals {
        table.add_row([
            row.kind.clone(),
            HumanCount(row.count).to_string(),
            HumanCount(row.failed).to_string(),
            duration(row.sum_ns as f64),
            HumanBytes(row.bytes).to_string(),
        ]);
    }
    writeln!(out, "{}", table.trim_fmt())
}

/// What a check of a recording says.
#[derive(Debug, Serialize)]
pub struct CheckedRecording {
    /// Of each file.
    pub files: Vec<Checked>,
    /// Whether all that was seen is there, in events or in totals, over all files together: a call that was under way when a segment
    /// ended is accounted for in the next. Null if no recorder says what it saw.
    pub completeness: Option<Completeness>,
}

/// What a check of a recording says of one file.
#[derive(Debug, Serialize)]
pub struct Checked {
    /// The file.
    pub path: String,
    /// What a check of it as a tape says.
    pub report: Report,
    /// Whether a segment's rollup has the totals of the segment; `None` where one of them is not there, or not closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollup_agrees: Option<bool>,
}

/// Checks every file of a recording, each segment's rollup by the segment, and the account of all of them together.
pub fn verify(path: &Path) -> Result<CheckedRecording> {
    let recording = Recording::list(path).with_context(|| path.display().to_string())?;
    let mut all = Vec::new();
    for segment in &recording.segments {
        for file in segment.tape.iter().chain(&segment.rollup) {
            let name = || file.display().to_string();
            let tape = Tape::open(file).with_context(name)?;
            let report = verify::verify(&tape, |_| ()).with_context(name)?;
            let of_segment = segment.tape.as_ref().filter(|tape| *tape != file);
            let rollup_agrees = of_segment.map(|segment| Ok::<_, anyhow::Error>(rows(segment)? == rows(file)?));
            all.push(Checked { path: name(), report, rollup_agrees: rollup_agrees.transpose()? });
        }
    }
    Ok(CheckedRecording { files: all, completeness: completeness(&recording)? })
}

fn completeness(recording: &Recording) -> Result<Option<Completeness>> {
    let open = |file: &Path| Tape::open(file).with_context(|| file.display().to_string());
    let (mut told, mut is_closed) = (Vec::new(), true);
    let mut told_by_rollups = Vec::new();
    for (file, has_events) in files(recording) {
        let tape = open(file)?;
        is_closed &= tape.is_closed();
        let told = if has_events { &mut told } else { &mut told_by_rollups };
        told.extend(Counting::told_by(&tape));
    }
    // One interval may be in several of them.
    over_all_time(&mut told_by_rollups);
    told.append(&mut told_by_rollups);
    let mut counting = Counting::new(&told);
    for (file, _) in files(recording) {
        counting.count_tape(&open(file)?);
    }
    Ok(counting.finish(!is_closed))
}

/// What one row of totals is about, without ids: kind, digits of the duration, process, kernel, function, and a hash of the stack.
type About = (u16, u8, i64, String, String, u64);

/// The totals of a tape: count, failed, sum, shortest, longest, bytes.
fn rows(path: &Path) -> Result<BTreeMap<About, [u64; 6]>> {
    let tape = Tape::open(path).with_context(|| path.display().to_string())?;
    let mut digest = Digest::default();
    digest.add_tape(&tape).with_context(|| path.display().to_string())?;
    let mut memory = Memory::default();
    let Ok(()) = digest.write(&mut memory);
    let definitions = &memory.definitions;
    // A stack's parent comes before it.
    let mut stacks = vec![0_u64];
    for stack in definitions.stacks.rows() {
        let frame: Frame = definitions.get(stack.frame).unwrap_or_default();
        let parent = stacks.get(stack.parent as usize).copied().unwrap_or(0);
        let names = (definitions.string(frame.name), definitions.string(frame.file));
        stacks.push(FxBuildHasher.hash_one((parent, frame.kind, names, frame.line, stack.line)));
    }
    let row = |row: Rollup| {
        let kernel = definitions.get(row.kernel).map_or("", |kernel: KernelName| definitions.string(kernel.name));
        let about = (
            row.kind,
            rollup::digits(row.max_ns),
            definitions.get(row.process).map_or(0, |process: Process| process.pid),
            kernel.to_owned(),
            definitions.function_name(row.function).to_owned(),
            stacks.get(row.stack as usize).copied().unwrap_or(0),
        );
        (about, [row.count, row.failed, row.sum_ns, row.min_ns, row.max_ns, row.bytes])
    };
    let mut rows = BTreeMap::new();
    for (about, sums) in memory.events.rollup.rows().map(row) {
        let [count, failed, sum_ns, min_ns, max_ns, bytes] = rows.entry(about).or_insert([0, 0, 0, u64::MAX, 0, 0]);
        let add = |sum: &mut u64, more| *sum = sum.saturating_add(more);
        add(count, sums[0]);
        add(failed, sums[1]);
        add(sum_ns, sums[2]);
        (*min_ns, *max_ns) = ((*min_ns).min(sums[3]), (*max_ns).max(sums[4]));
        add(bytes, sums[5]);
    }
    Ok(rows)
}

/// The worst of it.
pub fn verdict(checked: &CheckedRecording) -> Verdict {
    let is_wrong = |file: &Checked| file.report.verdict == Verdict::Damaged || file.rollup_agrees == Some(false);
    let holds = checked.completeness.as_ref().is_none_or(|completeness| completeness.holds);
    let checked = &checked.files;
    if !holds || checked.iter().any(is_wrong) {
        Verdict::Damaged
    } else if checked.iter().any(|file| file.report.verdict == Verdict::Losses) {
        Verdict::Losses
    } else {
        Verdict::Sound
    }
}

/// Writes how many of the rollups are those of their segments.
pub fn print_agreement(out: &mut impl Write, checked: &[Checked]) -> io::Result<()> {
    let compared = checked.iter().filter(|file| file.rollup_agrees.is_some()).count();
    writeln!(out, "{}, {} compared with the segment", counted(checked.len(), "file"), counted(compared, "rollup"))?;
    for file in checked.iter().filter(|file| file.rollup_agrees == Some(false)) {
        writeln!(out, "{}: is not the rollup of its segment", file.path)?;
    }
    Ok(())
}
