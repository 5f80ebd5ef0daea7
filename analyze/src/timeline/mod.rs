//! A trace in memory, ready to be asked.
//!
//! The columns are those of the tape ([`ktape_format::Events`]), sorted by start. On top of them stand the joins
//! that every report needs: a device operation with the call that submitted it ([`Timeline::submitter`]), all
//! operations of the devices in one order ([`Timeline::device_ops`]), and the union of their times
//! ([`intervals::union_ns`]; a sum would count overlapping work twice). What of it cannot be right, [`audit`] says.

pub mod audit;
mod calls;
pub mod cpu_side;
pub(crate) mod graph_work;
pub(crate) mod graphs;
pub mod host_side;
pub mod intervals;
pub mod names;
mod native;
pub mod occupancy;
pub mod off_cpu;
pub mod selection;
pub mod summary;
pub mod weights;

use ktape_format::definition::Shape;
use ktape_format::event::{Event, Kernel, Memcpy, Memset, timing};
use ktape_format::{Definitions, Events, Row as _, Table};
use rustc_hash::FxHashMap;

pub use selection::Selection;

/// A trace in memory. See the module's head.
#[derive(Debug, Default)]
pub struct Timeline {
    /// What the events refer to.
    pub definitions: Definitions,
    /// The events, each table sorted by start.
    pub events: Events,
    /// Whether the trace has launches without kernels ([`is_host_only`]): all of it, where the events are a part.
    pub host_only: bool,
    submitters: FxHashMap<(u32, u64), Submitter>,
    /// The stacks of calls that are not among the events.
    callers_elsewhere: FxHashMap<(u32, u64), u32>,
}

/// The host call that submitted a device operation: its table and row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitter {
    /// Row of `events.launch`.
    Launch(u32),
    /// Row of `events.graph_launch`.
    GraphLaunch(u32),
    /// Row of `events.api`: a copy's or memset's call.
    Api(u32),
}

/// Which table a device operation is a row of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceOpKind {
    /// `events.kernel`.
    Kernel,
    /// `events.memcpy`.
    Memcpy,
    /// `events.memset`.
    Memset,
}

/// A kernel, copy or memset on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOp {
    /// Which table.
    pub kind: DeviceOpKind,
    /// Which row of it.
    pub row: u32,
    /// When it began.
    pub start_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// Id of its stream.
    pub stream: u32,
    /// Id of its device.
    pub device: u32,
    /// Joins it with its submitter within a process.
    pub correlation: u64,
    /// How good its times are ([`ktape_format::event::timing`]).
    pub timing: u8,
}

/// What the name of a device operation depends on ([`Timeline::op_name`]), found without making it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpClass {
    /// Which table.
    pub kind: DeviceOpKind,
    /// The kernel's id, or that of the text which a copy or memset brings as its name.
    pub id: u32,
    /// The codes of a copy's or memset's direction and memories.
    pub codes: [u8; 3],
}

impl DeviceOp {
    /// How long it ran.
    pub fn duration_ns(&self) -> u64 {
        self.end_ns.abs_diff(self.start_ns)
    }

    /// Whether it is a record of the device, and not of the call that asked for it: see [`is_host_only`].
    pub fn is_of_device(&self) -> bool {
        self.kind == DeviceOpKind::Kernel || !matches!(self.timing, timing::ABSENT | timing::BOUNDED)
    }
}

/// Whether events are those of the host's side only: calls of the API, and no record of what the devices did.
///
/// A recorder outside of the driver sees launches, not kernels. It knows of copies too, as their calls say all but the
/// time; for that it has none, or the call that waited for the copy as a bound. So such copies are no device record.
pub fn is_host_only(events: &Events) -> bool {
    let has_calls = !(events.launch.is_empty()
        && events.graph_launch.is_empty()
        && events.api.is_empty()
        && events.sync.is_empty()
        && events.rollup.is_empty());
    let has_kernels = !events.kernel.is_empty() || events.rollup.kind.contains(&Kernel::KIND);
    let mut copies = events.memcpy.timing.iter().chain(&events.memset.timing);
    has_calls && !has_kernels && copies.all(|&code| matches!(code, timing::ABSENT | timing::BOUNDED))
}

impl Timeline {
    /// Takes a trace's definitions and events, in any order.
    pub fn new(mut definitions: Definitions, mut events: Events) -> Timeline {
        events.sort_by_start();
        names::learn_kernel_names(&mut definitions);
        let mut submitters = FxHashMap::default();
        let process = |thread: u32| definitions.process_of_thread(thread);
        // Correlation 0 is "none". The launches go in last: where ids collide, the call that launches kernels wins.
        let api = events.api.thread.iter().zip(&events.api.correlation);
        for (row, (&thread, &correlation)) in api.enumerate().filter(|(_, (_, id))| **id != 0) {
            submitters.insert((process(thread), correlation), Submitter::Api(row as u32));
        }
        let graph = events.graph_launch.thread.iter().zip(&events.graph_launch.correlation);
        for (row, (&thread, &correlation)) in graph.enumerate().filter(|(_, (_, id))| **id != 0) {
            submitters.insert((process(thread), correlation), Submitter::GraphLaunch(row as u32));
        }
        let launch = events.launch.thread.iter().zip(&events.launch.correlation);
        for (row, (&thread, &correlation)) in launch.enumerate().filter(|(_, (_, id))| **id != 0) {
            submitters.insert((process(thread), correlation), Submitter::Launch(row as u32));
        }
        let host_only = is_host_only(&events);
        Timeline { definitions, events, host_only, submitters, callers_elsewhere: FxHashMap::default() }
    }

    /// Learns the stacks of the launches and calls of `calls`, which a selection left out of the events: device work
    /// that was selected is often launched by a call that was not.
    pub fn learn_callers(&mut self, calls: &Events) {
        let api = calls.api.rows().map(|row| (row.thread, row.correlation, row.stack));
        let graph = calls.graph_launch.rows().map(|row| (row.thread, row.correlation, row.stack));
        let launch = calls.launch.rows().map(|row| (row.thread, row.correlation, row.stack));
        for (thread, correlation, stack) in api.chain(graph).chain(launch).filter(|(_, id, _)| *id != 0) {
            self.callers_elsewhere.insert((self.definitions.process_of_thread(thread), correlation), stack);
        }
    }

    /// The call that submitted a device operation, if it is among the events: it is not when it came before the
    /// recording or the selection.
    pub fn submitter(&self, op: &DeviceOp) -> Option<Submitter> {
        let process = self.definitions.process_of_stream(op.stream);
        self.submitters.get(&(process, op.correlation)).copied()
    }

    /// The stack that submitted a device operation, 0 if its call was recorded without one; `None` if its call is not
    /// on the tape.
    pub fn stack_of(&self, op: &DeviceOp) -> Option<u32> {
        match self.submitter(op) {
            Some(Submitter::Launch(row)) => Some(self.events.launch.stack[row as usize]),
            Some(Submitter::GraphLaunch(row)) => Some(self.events.graph_launch.stack[row as usize]),
            Some(Submitter::Api(row)) => Some(self.events.api.stack[row as usize]),
            None => {
                let process = self.definitions.process_of_stream(op.stream);
                self.callers_elsewhere.get(&(process, op.correlation)).copied()
            }
        }
    }

    /// All device operations, by start; those that start together in the order kernel, memcpy, memset, row.
    pub fn device_ops(&self) -> Vec<DeviceOp> {
        let mut ops = Vec::new();
        self.collect_ops::<Kernel>(DeviceOpKind::Kernel, |row| (row.stream, row.correlation, row.timing), &mut ops);
        self.collect_ops::<Memcpy>(DeviceOpKind::Memcpy, |row| (row.stream, row.correlation, row.timing), &mut ops);
        self.collect_ops::<Memset>(DeviceOpKind::Memset, |row| (row.stream, row.correlation, row.timing), &mut ops);
        ops.sort_by_key(|op| op.start_ns);
        ops
    }

    fn collect_ops<E: Event>(&self, kind: DeviceOpKind, place: fn(&E) -> (u32, u64, u8), ops: &mut Vec<DeviceOp>) {
        ops.extend(E::table(&self.events).rows().enumerate().map(|(index, row)| {
            let (stream, correlation, timing) = place(&row);
            let device = self.definitions.device_of_stream(stream);
            DeviceOp {
                kind,
                row: index as u32,
                start_ns: row.start_ns(),
                end_ns: row.end_ns(),
                stream,
                device,
                correlation,
                timing,
            }
        }));
    }

    /// What a device operation's name depends on: operations of one class are called the same.
    pub fn op_class(&self, op: &DeviceOp) -> OpClass {
        let row = op.row as usize;
        let (id, codes) = match op.kind {
            DeviceOpKind::Kernel => {
                let shape = self.definitions.get::<Shape>(self.events.kernel.shape[row]);
                (shape.map_or(0, |shape| shape.kernel), [0; 3])
            }
            DeviceOpKind::Memcpy => {
                let copy = self.events.memcpy.row(row);
                (copy.name, [copy.kind, copy.source_memory, copy.target_memory])
            }
            DeviceOpKind::Memset => {
                let memset = self.events.memset.row(row);
                (memset.name, [memset.target_memory, 0, 0])
            }
        };
        OpClass { kind: op.kind, id, codes }
    }

    /// What a device operation is called: the kernel's name as the source has it, or a copy's kind.
    pub fn op_name(&self, op: &DeviceOp) -> String {
        use ktape_format::event::{copy_kind, memory_kind};
        let name_of = |codes: &[&'static str], code: u8| codes.get(code as usize).copied().unwrap_or("unknown");
        let named = |id: u32| Some(self.definitions.string(id)).filter(|name| !name.is_empty()).map(str::to_owned);
        match op.kind {
            DeviceOpKind::Kernel => self.definitions.kernel_name(self.events.kernel.shape[op.row as usize]).to_owned(),
            DeviceOpKind::Memcpy => {
                let row = self.events.memcpy.row(op.row as usize);
                named(row.name).unwrap_or_else(|| {
                    let (kind, from, to) = (
                        name_of(copy_kind::NAMES, row.kind),
                        name_of(memory_kind::NAMES, row.source_memory),
                        name_of(memory_kind::NAMES, row.target_memory),
                    );
                    format!("Memcpy {kind} ({from} -> {to})")
                })
            }
            DeviceOpKind::Memset => {
                let row = self.events.memset.row(op.row as usize);
                named(row.name)
                    .unwrap_or_else(|| format!("Memset ({})", name_of(memory_kind::NAMES, row.target_memory)))
            }
        }
    }

    /// From the start of the first event to the end of the last; clock pairs, and rows that only speak of others, aside; `None` without events.
    pub fn span_ns(&self) -> Option<(i64, i64)> {
        span_ns(&self.events)
    }
}

/// From the start of the first event to the end of the last; clock pairs, and rows that only speak of others, aside; `None` without events.
pub fn span_ns(events: &Events) -> Option<(i64, i64)> {
    use ktape_format::event::{ClockPair, KindVisitor, Loss, Rollup, Tally, visit_kinds};
    use ktape_format::table::Row;
    const ASIDE: [u16; 4] = [ClockPair::KIND, Loss::KIND, Rollup::KIND, Tally::KIND];
    struct Span<'a>(&'a Events, Option<(i64, i64)>);
    impl KindVisitor for Span<'_> {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            if !ASIDE.contains(&E::KIND) {
                for row in E::table(self.0).rows() {
                    let (start, end) = self.1.unwrap_or((row.start_ns(), row.end_ns()));
                    self.1 = Some((start.min(row.start_ns()), end.max(row.end_ns())));
                }
            }
            Ok(())
        }
    }
    let mut span = Span(events, None);
    let Ok(()) = visit_kinds(&mut span);
    span.1
}
