//! Opening what the user named: a tape, or a trace that an importer can read.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ktape_format::event::{Api, GraphLaunch, Kernel, Launch, Memcpy, Memset, Sync, Tally};
use ktape_format::{Damage, Events, Memory, Owners, Row as _, Table as _, Tape, Wanted, header};
use serde::Serialize;

use super::Outcome;
use super::recording::{self, Unread};
use crate::import;
use crate::symbols::{self, Symbols, Unnamed};
use crate::timeline::{Selection, Timeline, is_host_only, span_ns};
use crate::verify::LEFT_OUT;
use crate::verify::completeness::{Completeness, Counting, over_all_time};

/// An opened trace.
#[derive(Debug)]
pub struct Loaded {
    /// Where it came from.
    pub path: PathBuf,
    /// How long the file is.
    pub file_bytes: u64,
    /// When the first event of the whole trace began: from where times are counted for people.
    pub first_ns: i64,
    /// What is in it, cut to the selection.
    pub timeline: Timeline,
    /// How many events were lost: before they reached the file, or in damaged parts of it. Every report says so first.
    pub lost: u64,
    /// Which native frames have no name.
    pub unnamed: Unnamed,
    /// What of the file cannot be read.
    pub damage: Vec<Damage>,
    /// What of a recording's files cannot be read.
    pub unread: Vec<Unread>,
    /// The segments of a recording whose events were deleted, where this is of events: they are not in it.
    pub only_totals: Vec<String>,
    /// How many rows came from the tail that the writer had not sealed; 0 for a tape that was closed.
    pub staged_rows: u64,
    /// Whether the open tail was only in its writer's memory, so that it may be missing if the tape was not closed.
    pub tail_in_memory: bool,
    /// Whether the writer finished the file.
    pub closed: bool,
}

impl Loaded {
    /// A trace of which nothing is missing, and nothing more known.
    pub fn whole(path: &Path, timeline: Timeline) -> Loaded {
        Loaded {
            path: path.to_owned(),
            file_bytes: 0,
            first_ns: 0,
            timeline,
            lost: 0,
            unnamed: Unnamed::default(),
            damage: Vec::new(),
            unread: Vec::new(),
            only_totals: Vec::new(),
            staged_rows: 0,
            tail_in_memory: false,
            closed: true,
        }
    }

    /// How a command over this trace ends well.
    pub fn outcome(&self) -> Outcome {
        // A loss whose number is not known counts as 0.
        let losses = self.lost > 0 || !self.timeline.events.loss.is_empty() || !self.damage.is_empty();
        match self.unread.iter().any(|unread| unread.is_whole_file) {
            true => Outcome::Damaged,
            false if losses || !self.unread.is_empty() => Outcome::Losses,
            false => Outcome::Done,
        }
    }

    /// Whether all that was recorded is there; `None` where no recorder says what it saw. Only of a whole trace.
    pub fn completeness(&self) -> Option<Completeness> {
        let events = &self.timeline.events;
        let mut told: Vec<Tally> = events.tally.rows().collect();
        if !events.rollup.is_empty() {
            over_all_time(&mut told);
        }
        let mut counting = Counting::new(&told);
        counting.count(events);
        for row in events.loss.rows() {
            if self.timeline.definitions.string(row.cause).starts_with(LEFT_OUT) {
                counting.left_out_by_repair(row.kind, row.count);
            }
        }
        counting.finish(!self.closed)
    }

    /// What answers in JSON say of losses.
    pub fn losses(&self) -> Losses {
        let damage = self.damage.iter().map(ToString::to_string);
        Losses {
            lost: self.lost,
            damage: damage.chain(self.unread.iter().map(ToString::to_string)).collect(),
            only_totals: self.only_totals.clone(),
        }
    }
}

/// The losses of a trace, as every answer in JSON has them.
#[derive(Debug, Serialize)]
pub struct Losses {
    /// See [`Loaded::lost`].
    pub lost: u64,
    /// See [`Loaded::damage`] and [`Loaded::unread`].
    pub damage: Vec<String>,
    /// See [`Loaded::only_totals`].
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub only_totals: Vec<String>,
}

/// Opens `path`, keeps what `selection` asks for, and names its native frames by `symbols`. Of a recording all segments that have
/// events are one trace.
pub fn load(path: &Path, selection: &Selection, symbols: &Symbols) -> Result<Loaded> {
    if recording::is_recording(path) {
        return recording::load_trace(path, selection, symbols);
    }
    let mut loaded = if is_tape(path)? {
        load_tape(path, selection).with_context(|| path.display().to_string())?
    } else {
        load_foreign(path, selection)?
    };
    let (named, unnamed) = symbols::names(&loaded.timeline.definitions, symbols);
    loaded.timeline.name_native_frames(&named);
    loaded.unnamed = unnamed;
    Ok(loaded)
}

/// Opens a tape as a file, for what a trace of another tool does not have.
pub fn open_tape(path: &Path) -> Result<Tape> {
    let name = || path.display().to_string();
    if path.is_dir() {
        // One that can't be read may have segments.
        std::fs::read_dir(path).with_context(name)?;
        bail!("{}: is a directory; name a tape in it", path.display());
    }
    if !is_tape(path)? && std::fs::metadata(path).with_context(name)?.len() > 0 {
        bail!("{}: is not a tape; `analyze import` makes one of a PyTorch or Nsight Systems trace", path.display());
    }
    Tape::open(path).with_context(name)
}

/// Whether a file begins as a tape does; a folder of traces does not. What is neither is refused.
fn is_tape(path: &Path) -> Result<bool> {
    let name = || path.display().to_string();
    let mut magic = Vec::new();
    // What the user named may be read more than once: first to learn what it is.
    match std::fs::metadata(path).with_context(name)? {
        kind if kind.is_dir() => return Ok(false),
        kind if !kind.is_file() => bail!("{}: is a pipe or device; write it to a file first", path.display()),
        _ => {}
    }
    let limit = header::MAGIC.len() as u64;
    File::open(path).and_then(|file| file.take(limit).read_to_end(&mut magic)).with_context(name)?;
    Ok(magic == header::MAGIC)
}

/// A trace of another tool is imported into memory. Its importer's errors name the file.
fn load_foreign(path: &Path, selection: &Selection) -> Result<Loaded> {
    let file_bytes = bytes_of(path).with_context(|| path.display().to_string())?;
    let mut memory = Memory::default();
    import::import(path, &mut memory, import::Options::default(), |_| {})?;
    let Memory { definitions, mut events, .. } = memory;
    let calls = match selection.leaves_out_callers() {
        true => Events {
            launch: events.launch.clone(),
            graph_launch: events.graph_launch.clone(),
            api: events.api.clone(),
            ..Events::default()
        },
        false => Events::default(),
    };
    let first_ns = span_ns(&events).map_or(0, |(first_ns, _)| first_ns);
    let wanted = Wanted { processes: selection.processes(&definitions)?, ..selection.wanted(first_ns)? };
    let host_only = is_host_only(&events);
    wanted.keep(&Owners::of(&definitions), &mut events);
    let mut timeline = Timeline::new(definitions, events);
    timeline.host_only = host_only;
    timeline.learn_callers(&calls);
    Ok(Loaded { file_bytes, first_ns, ..Loaded::whole(path, timeline) })
}

/// How long a file is, or all files of a folder.
fn bytes_of(path: &Path) -> std::io::Result<u64> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    path.read_dir()?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

fn load_tape(path: &Path, selection: &Selection) -> Result<Loaded> {
    let tape = Tape::open(path)?;
    let first_ns = tape.first_ns().unwrap_or(0);
    let mut wanted = selection.wanted(first_ns)?;
    if !selection.pid.is_empty() {
        wanted.processes = selection.processes(&tape.definitions()?)?;
    }
    let contents = tape.read(&wanted)?;
    let lost = contents.events.loss.count.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let damaged = contents.damage.iter().filter_map(|damage| damage.rows).fold(0_u64, u64::saturating_add);
    let mut timeline = Timeline::new(contents.definitions, contents.events);
    if !selection.is_everything() && timeline.events.kernel.is_empty() {
        // A part without kernels says nothing of the whole, of which these columns do.
        let kinds =
            vec![Launch::KIND, GraphLaunch::KIND, Api::KIND, Sync::KIND, Kernel::KIND, Memcpy::KIND, Memset::KIND];
        let columns = Wanted { kinds, columns: vec!["timing", "thread"], ..Wanted::default() };
        timeline.host_only = is_host_only(&tape.read(&columns)?.events);
    }
    if selection.leaves_out_callers() {
        let kinds = vec![Launch::KIND, GraphLaunch::KIND, Api::KIND];
        timeline.learn_callers(&tape.read(&Wanted { from_ns: None, kinds, ..wanted })?.events);
    }
    Ok(Loaded {
        file_bytes: tape.file_bytes(),
        first_ns,
        lost: lost.saturating_add(damaged),
        damage: contents.damage,
        staged_rows: contents.staged_rows,
        tail_in_memory: tape.header().tail == header::TailKind::Memory,
        closed: tape.is_closed(),
        ..Loaded::whole(path, timeline)
    })
}
