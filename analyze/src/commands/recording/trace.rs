//! The segments of a recording as one trace: their events in memory, with ids of their own.
//!
//! Each segment numbers what it defines for itself, and the same thing gets the same id here. So what one segment says of it counts
//! for all: a kernel has the name that was learned last. Segments of another boot have times of another clock; they are moved to
//! where the wall clock puts them.

use std::convert::Infallible;
use std::path::Path;

use anyhow::{Result, bail};
use ktape_format::blind_spots::BlindSpots;
use ktape_format::carry::{Carrier, OfTape};
use ktape_format::definition::{property, subject};
use ktape_format::event::{
    Api, ClockPair, Event, GraphLaunch, Kernel, KindVisitor, Launch, clock_kind, timing, visit_kinds,
};
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Events, Memory, Row as _, Sink as _, Table as _, Tape, TapeError, Wanted, header};

use super::{Unread, numbered, read};
use crate::commands::load::Loaded;
use crate::symbols::{self, Symbols};
use crate::timeline::{Selection, Timeline};

/// What the segments so far come to.
#[derive(Default)]
struct Joined {
    memory: Memory,
    /// The calls of segments of which only a part is wanted.
    calls: Events,
    file_bytes: u64,
    /// When the first event of the first segment that has some began: from where times are counted.
    first_ns: Option<i64>,
    /// The boot of the first segment, and how far the wall clock was ahead of the tape's clock.
    clock: Option<([u8; 16], Option<i64>)>,
    has_kernels: bool,
    has_process: bool,
    lost: u64,
    staged_rows: u64,
    tail_in_memory: bool,
    is_open: bool,
    blind_spots: BlindSpots,
}

/// Opens the segments of a recording that have events as one trace, cut to the selection.
pub fn load_trace(path: &Path, selection: &Selection, symbols: &Symbols) -> Result<Loaded> {
    // Before anything is read.
    selection.wanted(0)?;
    let read = read(path, Joined::default, |joined, file, tape, has_events| match has_events {
        true => joined.add(file, tape, selection),
        false => Ok(None),
    })?;
    let mut joined = read.all;
    if !selection.pid.is_empty() && !joined.has_process {
        bail!("{}: no segment with events has a process with pid {:?}", path.display(), selection.pid);
    }
    if joined.first_ns.is_none() && !read.only_totals.is_empty() {
        bail!(
            "{}: only totals are left, all events were deleted; `analyze info` and `flamegraph` show them",
            path.display()
        );
    }
    if let Some(json) = joined.blind_spots.json() {
        let Ok(()) = joined.memory.property(subject::TAPE, 0, property::BLIND_SPOTS, &json);
    }
    let events = std::mem::take(&mut joined.memory.events);
    let mut timeline = Timeline::new(joined.memory.definitions, events);
    if !selection.is_everything() && timeline.events.kernel.is_empty() {
        // A part without kernels says nothing of the whole.
        let mut copies = timeline.events.memcpy.timing.iter().chain(&timeline.events.memset.timing);
        let has_times = copies.any(|code| !matches!(*code, timing::ABSENT | timing::BOUNDED));
        timeline.host_only = !joined.has_kernels && !has_times;
    }
    timeline.learn_callers(&joined.calls);
    let (named, unnamed) = symbols::names(&timeline.definitions, symbols);
    timeline.name_native_frames(&named);
    let lost = timeline.events.loss.count.iter().fold(joined.lost, |sum, count| sum.saturating_add(*count));
    Ok(Loaded {
        file_bytes: joined.file_bytes,
        first_ns: joined.first_ns.unwrap_or(0),
        lost,
        unnamed,
        unread: read.unread,
        only_totals: read.only_totals.into_iter().map(numbered).collect(),
        staged_rows: joined.staged_rows,
        tail_in_memory: joined.tail_in_memory,
        closed: !joined.is_open,
        ..Loaded::whole(path, timeline)
    })
}

impl Joined {
    fn add(&mut self, file: &Path, tape: &Tape, selection: &Selection) -> Result<Option<Unread>, TapeError> {
        let boot = tape.header().boot_id;
        let wall_ns = wall_clock(tape)?;
        let (first_boot, first_wall_ns) = *self.clock.get_or_insert((boot, wall_ns));
        let shift_ns = match (first_boot == boot, first_wall_ns, wall_ns) {
            (true, ..) => 0,
            (false, Some(first), Some(this)) => this.saturating_sub(first),
            _ => {
                let why = "is of another boot, and when it was by the wall clock is not known".to_owned();
                return Ok(Some(Unread { path: file.to_owned(), why, is_whole_file: true }));
            }
        };
        // A segment of a time in which nobody called has only its clocks and tallies, which tell of no event.
        self.first_ns = self.first_ns.or(tape.first_ns().map(|begin_ns| begin_ns.saturating_add(shift_ns)));
        let first_ns = self.first_ns.unwrap_or(0);
        let definitions = tape.definitions()?;
        self.blind_spots.add(&definitions);
        // It was asked for once, so it can be no error now.
        let mut wanted = selection.wanted(first_ns.saturating_sub(shift_ns)).unwrap_or_default();
        let processes = selection.processes(&definitions).ok();
        self.has_process |= processes.is_some();
        let is_there = processes.is_some();
        wanted.processes = processes.unwrap_or_default();
        let contents = if is_there { tape.read(&wanted)? } else { Default::default() };
        self.file_bytes += tape.file_bytes();
        self.is_open |= !tape.is_closed();
        self.tail_in_memory |= tape.header().tail == header::TailKind::Memory;
        self.staged_rows += contents.staged_rows;
        self.has_kernels |=
            tape.blocks().iter().flat_map(|block| &block.sections).any(|section| section.table == Kernel::KIND);
        self.carry(&definitions, &contents.events, shift_ns);
        let has_device_work =
            |events: &Events| !(events.kernel.is_empty() && events.memcpy.is_empty() && events.memset.is_empty());
        if selection.leaves_out_callers() && has_device_work(&contents.events) {
            let kinds = vec![Launch::KIND, GraphLaunch::KIND, Api::KIND];
            let calls = tape.read(&Wanted { from_ns: None, kinds, ..wanted })?.events;
            let events = std::mem::replace(&mut self.memory.events, std::mem::take(&mut self.calls));
            self.carry(&definitions, &calls, shift_ns);
            self.calls = std::mem::replace(&mut self.memory.events, events);
        }
        let rows = contents.damage.iter().filter_map(|damage| damage.rows).fold(0_u64, u64::saturating_add);
        self.lost = self.lost.saturating_add(rows);
        Ok(contents.damage.first().map(|first| {
            let more = contents.damage.len() - 1;
            let more = if more == 0 { String::new() } else { format!(", and {more} more damaged places") };
            Unread { path: file.to_owned(), why: format!("{first}{more}"), is_whole_file: false }
        }))
    }

    /// Takes over events, with what they refer to.
    fn carry(&mut self, definitions: &Definitions, events: &Events, shift_ns: i64) {
        struct Carry<'a> {
            carrier: Carrier,
            known: &'a OfTape<'a>,
            events: &'a Events,
            memory: &'a mut Memory,
            shift_ns: i64,
        }
        impl KindVisitor for Carry<'_> {
            type Error = Infallible;
            fn visit<E: Event>(&mut self) -> Result<(), Infallible> {
                for mut row in E::table(self.events).rows() {
                    // Column 0 of an event is its start.
                    row.set(0, row.start_ns().saturating_add(self.shift_ns) as u64);
                    self.carrier.event(row, self.known, self.memory)?;
                }
                Ok(())
            }
        }
        let known = OfTape::new(definitions);
        let mut carry =
            Carry { carrier: Carrier::default(), known: &known, events, memory: &mut self.memory, shift_ns };
        let Ok(()) = visit_kinds(&mut carry);
        for kernel in known.renamed_kernels() {
            let Ok(_) = carry.carrier.carry(DefinitionKind::Kernel as u16, kernel, &known, carry.memory);
        }
    }
}

/// How far the wall clock is ahead of the tape's; `None` if the tape does not tell.
fn wall_clock(tape: &Tape) -> Result<Option<i64>, TapeError> {
    let clocks = tape.read(&Wanted { kinds: vec![ClockPair::KIND], ..Wanted::default() })?.events.clock;
    let pair = clocks.rows().find(|pair| pair.clock == clock_kind::UNIX);
    Ok(pair.map(|pair| pair.value_ns.saturating_sub(pair.start_ns)))
}
