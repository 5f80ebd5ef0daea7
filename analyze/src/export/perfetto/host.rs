//! What threads did: calls, operators, Python frames, ranges, as slices that nest, each kind on tracks of its own.
//!
//! The kinds of one thread partly overlap each other in real traces, so they do not share a track; where slices of
//! one kind cross, they go to a sibling track (`nest`). First every event is put on its track, then the tracks are
//! laid out, then all edges of all tracks are encoded as one long list.

use std::cmp::Reverse;

use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::{Alloc, Api, CpuSample, Event, EventRecord, EventWait, Free, GraphLaunch, Launch, Lifecycle};
use ktape_format::event::{Loss, Mark, OffCpu, Range, Slice, Sync, phase};
use ktape_format::{Row as _, Table as _};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::nest::{self, Edge};
use super::tracks::{Owner, Tracks};
use crate::timeline::Timeline;

/// The kinds of tracks below a thread, in the order in which they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Lane {
    Lost,
    Lifecycle,
    Ranges,
    Python,
    Operators,
    Native,
    Slices,
    Api,
    Memory,
    Overhead,
    Marks,
    Samples,
    OffCpu,
    StreamRanges,
}

impl Lane {
    /// The name of the track, and the category of what is on it.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Lane::Lost => ("Lost events", "loss"),
            Lane::Lifecycle => ("Lifecycle", "lifecycle"),
            Lane::Ranges => ("Ranges", "range"),
            Lane::Python => ("Python", "python"),
            Lane::Operators => ("Operators", "operator"),
            Lane::Native => ("Native", "native"),
            Lane::Slices => ("Slices", "slice"),
            Lane::Api => ("API", "api"),
            Lane::Memory => ("Memory", "memory"),
            Lane::Overhead => ("Overhead", "overhead"),
            Lane::Marks => ("Marks", "mark"),
            Lane::Samples => ("CPU samples", "cpu_sample"),
            Lane::OffCpu => ("Off CPU", "off_cpu"),
            Lane::StreamRanges => ("Ranges on", "gpu_range"),
        }
    }

    fn of_frame(kind: u8) -> Lane {
        match kind {
            frame_kind::PYTHON => Lane::Python,
            frame_kind::OPERATOR => Lane::Operators,
            frame_kind::RANGE => Lane::Ranges,
            frame_kind::NATIVE | frame_kind::SYSTEM => Lane::Native,
            frame_kind::OVERHEAD => Lane::Overhead,
            _ => Lane::Slices,
        }
    }
}

/// One thing on a host track: its time, and the row that it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostSlice {
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    pub(super) row: u32,
    /// The table's number.
    pub(super) kind: u16,
}

impl HostSlice {
    /// Whether it is a point in time.
    pub(super) fn is_instant(&self) -> bool {
        matches!(self.kind, Mark::KIND | CpuSample::KIND | Lifecycle::KIND)
    }
}

/// All host tracks, laid out.
#[derive(Default)]
pub(super) struct Host {
    groups: Vec<Group>,
    lanes: Vec<LaidOut>,
    /// Where each lane's edges begin in the list of all edges; one more for the end.
    starts: Vec<usize>,
    /// Slices that crossed others of their kind and so are on a sibling track.
    pub(super) crossing: u64,
    /// Ranges whose end is not on the tape.
    pub(super) open_ranges: u64,
}

struct Group {
    owner: Owner,
    lane: Lane,
    slices: Vec<HostSlice>,
}

struct LaidOut {
    group: usize,
    uuid: u64,
    edges: Vec<Edge>,
}

impl Host {
    /// Collects and lays out; the tracks are described in `tracks`.
    pub(super) fn new(timeline: &Timeline, span_ns: (i64, i64), tracks: &mut Tracks<'_>) -> Host {
        let mut collected = Collected::default();
        collected.all(timeline, span_ns);
        let mut groups = collected.groups;
        groups.sort_by_key(|group| (group.owner, group.lane));
        let laid_out: Vec<Vec<Vec<Edge>>> = groups
            .par_iter_mut()
            .map(|group| {
                // The tables are sorted already: the sort only merges them.
                group.slices.sort_by_key(|slice| (slice.start_ns, Reverse(slice.end_ns), slice.row));
                let spans: Vec<(i64, i64)> = group.slices.iter().map(|slice| (slice.start_ns, slice.end_ns)).collect();
                nest::lay_out(&spans)
            })
            .collect();
        let mut host = Host { starts: vec![0], open_ranges: collected.open_ranges, ..Host::default() };
        for (group, lanes) in laid_out.into_iter().enumerate() {
            let (owner, lane) = (groups[group].owner, groups[group].lane);
            for (sibling, edges) in lanes.into_iter().enumerate() {
                let uuid = tracks.named(owner, track_name(owner, lane, sibling, tracks), rank(lane, sibling));
                host.starts.push(host.starts[host.starts.len() - 1] + edges.len());
                host.crossing += if sibling > 0 { edges.len() as u64 / 2 } else { 0 };
                host.lanes.push(LaidOut { group, uuid, edges });
            }
        }
        host.groups = groups;
        host
    }

    /// The kinds of tracks that there are.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.groups.iter().map(|group| group.lane)
    }

    /// How many edges there are: two for each slice.
    pub(super) fn edges(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The edges in a range of the list of all edges, with what they are the edges of.
    pub(super) fn walk(&self, range: std::ops::Range<usize>, mut visit: impl FnMut(Lane, u64, &HostSlice, bool)) {
        let mut lane = self.starts.partition_point(|start| *start <= range.start) - 1;
        let mut at = range.start;
        while at < range.end {
            let laid_out = &self.lanes[lane];
            let group = &self.groups[laid_out.group];
            let end = range.end.min(self.starts[lane + 1]);
            for edge in &laid_out.edges[at - self.starts[lane]..end - self.starts[lane]] {
                visit(group.lane, laid_out.uuid, &group.slices[edge.slice()], edge.is_end());
            }
            at = end;
            lane += 1;
        }
    }
}

fn track_name(owner: Owner, lane: Lane, sibling: usize, tracks: &Tracks<'_>) -> String {
    let (name, _) = lane.names();
    let name = match owner {
        Owner::Stream(stream) => format!("{name} {}", tracks.stream_name(stream)),
        Owner::Trace => format!("{name} (no thread known)"),
        _ => name.to_owned(),
    };
    if sibling == 0 { name } else { format!("{name} ({})", sibling + 1) }
}

fn rank(lane: Lane, sibling: usize) -> i32 {
    const SIBLINGS: usize = 1_000_000;
    lane as i32 * SIBLINGS as i32 + sibling.min(SIBLINGS - 1) as i32
}

/// Events on their way to their tracks.
#[derive(Default)]
struct Collected {
    groups: Vec<Group>,
    index: FxHashMap<(Owner, Lane), usize>,
    open_ranges: u64,
}

impl Collected {
    fn all(&mut self, timeline: &Timeline, span_ns: (i64, i64)) {
        self.table::<Launch>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<GraphLaunch>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<Api>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<Sync>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<EventRecord>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<EventWait>(timeline, |row| (thread(row.thread), Lane::Api));
        self.table::<Alloc>(timeline, |row| (thread(row.thread), Lane::Memory));
        self.table::<Free>(timeline, |row| (thread(row.thread), Lane::Memory));
        self.table::<Mark>(timeline, |row| (thread(row.thread), Lane::Marks));
        self.table::<CpuSample>(timeline, |row| (thread(row.thread), Lane::Samples));
        self.off_cpu(timeline);
        self.table::<Lifecycle>(timeline, |row| (process(row.process), Lane::Lifecycle));
        self.table::<Loss>(timeline, |row| (process(row.process), Lane::Lost));
        let kinds: Vec<u8> = timeline.definitions.frames.rows().map(|frame: Frame| frame.kind).collect();
        let kind = |frame: u32| (frame as usize).checked_sub(1).and_then(|row| kinds.get(row)).copied();
        self.table::<Slice>(timeline, |row| {
            (thread(row.thread), Lane::of_frame(kind(row.frame).unwrap_or(frame_kind::UNKNOWN)))
        });
        self.ranges(timeline, span_ns);
    }

    fn table<E: Event>(&mut self, timeline: &Timeline, place: impl Fn(&E) -> (Owner, Lane)) {
        let rows = E::table(&timeline.events).rows();
        self.rows((0..).zip(rows).map(|(index, row)| {
            let slice = HostSlice { start_ns: row.start_ns(), end_ns: row.end_ns(), row: index, kind: E::KIND };
            (place(&row), slice)
        }));
    }

    fn rows(&mut self, rows: impl Iterator<Item = ((Owner, Lane), HostSlice)>) {
        // Neighbours mostly share their track.
        let mut last = ((Owner::Trace, Lane::Slices), usize::MAX);
        for (place, slice) in rows {
            if last.0 != place || last.1 == usize::MAX {
                last = (place, self.group(place));
            }
            self.groups[last.1].slices.push(slice);
        }
    }

    fn group(&mut self, (owner, lane): (Owner, Lane)) -> usize {
        *self.index.entry((owner, lane)).or_insert_with(|| {
            self.groups.push(Group { owner, lane, slices: Vec::new() });
            self.groups.len() - 1
        })
    }

    /// Stretches off the processor; one that ends with a wait for a processor has that within it.
    fn off_cpu(&mut self, timeline: &Timeline) {
        let rows = (0..).zip(timeline.events.off_cpu.rows());
        self.rows(rows.flat_map(|(index, row): (u32, OffCpu)| {
            let whole = HostSlice { start_ns: row.start_ns, end_ns: row.end_ns(), row: index, kind: OffCpu::KIND };
            let is_part = row.runnable_ns > 0 && row.runnable_ns < row.duration_ns;
            let waiting =
                is_part.then(|| HostSlice { start_ns: whole.end_ns.saturating_sub_unsigned(row.runnable_ns), ..whole });
            let place = (thread(row.thread), Lane::OffCpu);
            std::iter::once(whole).chain(waiting).map(move |slice| (place, slice))
        }));
    }

    /// Ranges: whole ones as they are, opened ones up to where they are closed or the trace ends, and those of which
    /// only the closing is known from the trace's start. Each is one slice; its row is the opening's if there is one.
    fn ranges(&mut self, timeline: &Timeline, (first_ns, last_ns): (i64, i64)) {
        let mut open: FxHashMap<(u32, u32), Vec<(u32, Range)>> = FxHashMap::default();
        let mut slices = Vec::with_capacity(timeline.events.range.len());
        let slice = |index, start_ns, end_ns| HostSlice { start_ns, end_ns, row: index, kind: Range::KIND };
        for (index, row) in (0..).zip(timeline.events.range.rows()) {
            let key = (row.thread, row.stream);
            match row.phase {
                phase::PUSH => open.entry(key).or_default().push((index, row)),
                phase::POP => slices.push(match open.get_mut(&key).and_then(Vec::pop) {
                    Some((opened, push)) => (range_place(&push), slice(opened, push.start_ns, row.start_ns)),
                    None => {
                        self.open_ranges += 1;
                        (range_place(&row), slice(index, first_ns.min(row.start_ns), row.start_ns))
                    }
                }),
                _ => slices.push((range_place(&row), slice(index, row.start_ns, row.end_ns()))),
            }
        }
        let mut still_open: Vec<(u32, Range)> = open.into_values().flatten().collect();
        still_open.sort_by_key(|(index, _)| *index);
        self.open_ranges += still_open.len() as u64;
        slices.extend(
            still_open
                .iter()
                .map(|(index, row)| (range_place(row), slice(*index, row.start_ns, last_ns.max(row.start_ns)))),
        );
        self.rows(slices.into_iter());
    }
}

fn thread(id: u32) -> Owner {
    if id == 0 { Owner::Trace } else { Owner::Thread(id) }
}

fn process(id: u32) -> Owner {
    if id == 0 { Owner::Trace } else { Owner::Process(id) }
}

fn range_place(row: &Range) -> (Owner, Lane) {
    if row.stream != 0 && row.thread == 0 {
        (Owner::Stream(row.stream), Lane::StreamRanges)
    } else {
        (thread(row.thread), Lane::Ranges)
    }
}
