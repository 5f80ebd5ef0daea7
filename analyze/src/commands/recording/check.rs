//! What `analyze verify` says of a recording: every file, every rollup against its segment, and the account of all together.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ktape_format::definition::{Frame, Graph, GraphNode, KernelName, Process, Shape};
use ktape_format::event::{Rollup, Tally};
use ktape_format::recording::Recording;
use ktape_format::rollup::{self, Digest};
use ktape_format::{Definitions, Memory, Table as _, Tape, TapeError};
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Serialize;

use super::{is_gone, read};
use crate::human::counted;
use crate::verify::completeness::{Completeness, Counting, over_all_time};
use crate::verify::{self, Report, Verdict};

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
    /// Why it is no tape that can be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// What a check of it as a tape says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Whether a segment's rollup has the totals of the segment; `None` where one of them is not there, or not closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollup_agrees: Option<bool>,
}

/// Checks every file of a recording, each segment's rollup by the segment, and the account of all of them together. A file that
/// is deleted meanwhile, as the recorder does with what is old, is none of it.
pub fn verify(path: &Path) -> Result<CheckedRecording> {
    let recording = Recording::list(path).with_context(|| path.display().to_string())?;
    let mut files = Vec::new();
    for segment in &recording.segments {
        for file in segment.tape.iter().chain(&segment.rollup) {
            let of_segment = segment.tape.as_deref().filter(|tape| tape != file);
            files.extend(check(file, of_segment)?);
        }
    }
    // Of what can be read; what cannot is damage enough.
    let completeness = completeness(path).or_else(|error| match files.iter().any(|file| file.report.is_some()) {
        true => Err(error),
        false => Ok(None),
    })?;
    Ok(CheckedRecording { files, completeness })
}

/// `None` for a file that is gone.
fn check(file: &Path, of_segment: Option<&Path>) -> Result<Option<Checked>> {
    let path = file.display().to_string();
    let tape = match Tape::open(file) {
        Err(error) if is_gone(&error) => return Ok(None),
        Err(error) => {
            let unreadable = Some(error.to_string());
            return Ok(Some(Checked { path, unreadable, report: None, rollup_agrees: None }));
        }
        Ok(tape) => tape,
    };
    let report = verify::verify(&tape, |_| ()).with_context(|| path.clone())?;
    let rollup_agrees = match of_segment.map(Tape::open) {
        // What of the segment cannot be read is told of that.
        None | Some(Err(_)) => None,
        Some(Ok(segment)) => {
            Some(rows(&segment).and_then(|all| Ok(all == rows(&tape)?)).with_context(|| path.clone())?)
        }
    };
    Ok(Some(Checked { path, unreadable: None, report: Some(report), rollup_agrees }))
}

fn completeness(path: &Path) -> Result<Option<Completeness>> {
    /// Both readings have to find the same files.
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let accounts = read(path, Accounts::default, |accounts, file, tape, has_events| {
            accounts.files.push(file.to_owned());
            accounts.is_open |= !tape.is_closed();
            let told = if has_events { &mut accounts.told } else { &mut accounts.told_by_rollups };
            told.extend(Counting::told_by(tape));
            Ok(None)
        })?;
        let Accounts { files, mut told, mut told_by_rollups, is_open } = accounts.all;
        // One interval may be in several of them.
        over_all_time(&mut told_by_rollups);
        let of_rollups_ns = told_by_rollups.first().map(|row| row.start_ns);
        told.append(&mut told_by_rollups);
        let counting = || (Counting::new(&told).with_rollups_from(of_rollups_ns), Vec::new());
        let counted = read(path, counting, |(counting, files), file, tape, _| {
            counting.count_tape(tape);
            files.push(file.to_owned());
            Ok(None)
        })?;
        let (counting, again) = counted.all;
        // What is new since then has told nothing yet.
        if again == files {
            return Ok(counting.finish(is_open));
        }
    }
    bail!("{}: its files change faster than they can be read: try again", path.display())
}

/// What recorders say of what they saw.
#[derive(Default)]
struct Accounts {
    files: Vec<PathBuf>,
    told: Vec<Tally>,
    /// Of which only the sums over all time are known.
    told_by_rollups: Vec<Tally>,
    is_open: bool,
}

/// What one row of totals is about, without ids: kind, digits of the duration, process, kernel, function, and hashes of the stack
/// and of the graph.
type About = (u16, u8, i64, String, String, u64, u64);

/// The totals of a tape: count, failed, sum, shortest, longest, bytes.
fn rows(tape: &Tape) -> Result<BTreeMap<About, [u64; 6]>, TapeError> {
    let mut digest = Digest::default();
    digest.add_tape(tape)?;
    let mut memory = Memory::default();
    let Ok(()) = digest.write(&mut memory);
    let definitions = &memory.definitions;
    let stacks = stacks(definitions);
    let stack = |id: u32| stacks.get(id as usize).copied().unwrap_or(0);
    let graphs = graphs(definitions, stack);
    let row = |row: Rollup| {
        let about = (
            row.kind,
            rollup::digits(row.max_ns),
            definitions.get(row.process).map_or(0, |process: Process| process.pid),
            kernel_name(definitions, row.kernel).to_owned(),
            definitions.function_name(row.function).to_owned(),
            stack(row.stack),
            graphs.get(&row.graph).copied().unwrap_or(0),
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

fn kernel_name(definitions: &Definitions, kernel: u32) -> &str {
    definitions.get(kernel).map_or("", |kernel: KernelName| definitions.string(kernel.name))
}

/// Hashes of all stacks, by id.
fn stacks(definitions: &Definitions) -> Vec<u64> {
    // A stack's parent comes before it.
    let mut stacks = vec![0_u64];
    for stack in definitions.stacks.rows() {
        let frame: Frame = definitions.get(stack.frame).unwrap_or_default();
        let parent = stacks.get(stack.parent as usize).copied().unwrap_or(0);
        let names = (definitions.string(frame.name), definitions.string(frame.file));
        stacks.push(FxBuildHasher.hash_one((parent, frame.kind, names, frame.line, stack.line)));
    }
    stacks
}

/// Hashes of graphs with all their nodes, by id.
fn graphs(definitions: &Definitions, stack: impl Fn(u32) -> u64) -> FxHashMap<u32, u64> {
    let graph = |id: u32| definitions.get(id).map_or((0, 0), |graph: Graph| (graph.native, graph.earlier));
    let mut nodes: Vec<GraphNode> = definitions.graph_nodes.rows().collect();
    nodes.sort_by_key(|node| (node.graph, node.index));
    let mut graphs: FxHashMap<u32, u64> = FxHashMap::default();
    for id in 1..=definitions.graphs.len() as u32 {
        graphs.insert(id, FxBuildHasher.hash_one(graph(id)));
    }
    for node in nodes {
        let kernel = definitions.get(node.shape).map_or(0, |shape: Shape| shape.kernel);
        let what = (node.index, node.kind, kernel_name(definitions, kernel), stack(node.stack), graph(node.child));
        let hash = graphs.entry(node.graph).or_default();
        *hash = FxBuildHasher.hash_one((*hash, what));
    }
    graphs
}

/// The worst of it.
pub fn verdict(checked: &CheckedRecording) -> Verdict {
    let verdict = |file: &Checked| file.report.as_ref().map_or(Verdict::Damaged, |report| report.verdict);
    let is_wrong = |file: &Checked| verdict(file) == Verdict::Damaged || file.rollup_agrees == Some(false);
    let holds = checked.completeness.as_ref().is_none_or(|completeness| completeness.holds);
    let checked = &checked.files;
    if !holds || checked.iter().any(is_wrong) {
        Verdict::Damaged
    } else if checked.iter().any(|file| verdict(file) == Verdict::Losses) {
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
