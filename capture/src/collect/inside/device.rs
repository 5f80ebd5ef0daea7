//! What the device did, of one process: kernels, copies and memsets as CUPTI has them, each with the call that caused it.
//!
//! CUPTI numbers calls with 32 bits and says that number with all that a call has the device do. A word of the same thread,
//! right behind the call's record ([`Correlated`]), says which of the tape's calls has which number: from then on the call waits
//! here for what the device did for it. The number comes again after four billion calls: the last call that had it counts.
//!
//! Both can be late. A device's record whose call is not known yet waits for [`WAITS_NS`], and becomes a row without a call if
//! none comes. A call waits until [`MOST_CALLS`] others came after it; what it launched and the device never told of is counted.
//!
//! Where CUDA events are in place of CUPTI, their numbers are the library's own, and all that is told is when a kernel ran at most: from
//! the event before it to the one behind. The rest is its launch's.
//!
//! A copy is told of by both sides. The call's row has no time, so it waits with the call, and the device's row takes its place;
//! where none comes, it goes onto the tape as it is. So each copy is there once.

use std::collections::VecDeque;
use std::sync::Arc;

#[cfg(doc)]
use ktape_ebpf::inside::Correlated;
use ktape_ebpf::inside::{CopyRan, KernelRan, Ran, SetRan};
use ktape_ebpf::wire::tally::NO_CPU;
use ktape_format::definition::{self, Context, KernelName, Shape, Stream, property, vendor};
use ktape_format::event::{Event as _, Kernel, Memcpy, Memset, copy_kind, memory_kind, timing};
use ktape_format::table::DefinitionKind;
use ktape_format::{Row as _, Sink};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::super::events::Key;
use super::super::events::account::{Account, Fate, give};
use super::super::events::graphs::Graphs;
use super::super::events::kernels::Kernels;
use super::order::Order;

/// Calls that wait for what the device did for them, at most.
const MOST_CALLS: usize = 1 << 20;
/// Records of the device that wait for their call, at most.
const MOST_EARLY: usize = 1 << 16;
/// How long they wait.
const WAITS_NS: u64 = 2_000_000_000;

/// What became of what the device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceCounts {
    /// Kernels.
    pub kernels: u64,
    /// Copies.
    pub copies: u64,
    /// Memsets.
    pub sets: u64,
    /// Of all these, those without a time: CUPTI had none.
    pub without_time: u64,
    /// Those without a call, as that was before the first that is recorded.
    pub of_older_calls: u64,
    /// Those without a call for another reason: its record was lost, or it is of a function that is not recorded.
    pub of_unknown_calls: u64,
    /// Launches that were refused: they have no kernel.
    pub refused_launches: u64,
    /// Launches that the device told nothing of, of processes that ended: they were killed before CUPTI had handed it out.
    pub launches_cut_off: u64,
    /// Launches that the device told nothing of, for another reason: CUPTI dropped it, it was lost, or there were no events around it.
    pub launches_without_kernel: u64,
    /// Launches of graphs that the device told nothing of, although kernels, copies or memsets of theirs are known, of processes that
    /// ended.
    pub graph_launches_cut_off: u64,
    /// And for another reason.
    pub graph_launches_without_work: u64,
    /// Copies and memsets likewise: they are on the tape, without a time of the device.
    pub copies_without_time: u64,
    /// Records that CUPTI dropped, or that could not be read, and kernels that should have had events around them, or whose events could not
    /// be read.
    pub missing: u64,
    /// Kernels, copies and memsets that ended after the next of their stream had begun. They are on the tape as they were told.
    pub overlapping: u64,
}

/// What a call has the device do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum What {
    /// A kernel.
    Launch {
        /// Its definition.
        kernel: u32,
        /// And that of how it is launched.
        shape: u32,
    },
    /// All of a graph, by its definition.
    Graph(u32),
    /// A kernel that nobody asked for.
    LeftOut,
    /// Copies or memsets.
    Copies,
    /// Something else, or nothing.
    Other,
}

/// A call that may have the device do something.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Called {
    /// The call's number on the tape.
    pub(in super::super) correlation: u64,
    pub(in super::super) start_ns: i64,
    /// The definition of its stream; 0 for none.
    pub(in super::super) stream: u32,
    pub(in super::super) what: What,
}

/// A copy or memset as its call has it.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Work {
    /// A copy.
    Copy(Memcpy),
    /// A memset.
    Set(Memset),
}

/// A call that waits.
#[derive(Debug)]
struct Waiting {
    serial: u64,
    called: Called,
    /// What the device told of it so far.
    ran: u64,
    /// Rows that wait for the device's.
    work: Vec<Work>,
    /// Rows of the device that came before the call's.
    ahead: u64,
}

/// What the device did.
#[derive(Clone, Debug)]
pub(in super::super) enum Did {
    /// It ran a kernel of this name.
    Kernel(KernelRan, Arc<str>),
    /// It copied.
    Copy(CopyRan),
    /// It set memory.
    Set(SetRan),
    /// It ran a kernel between these times.
    Between(Ran),
}

impl Did {
    /// The table of its row.
    fn kind(&self) -> u16 {
        match self {
            Did::Kernel(..) | Did::Between(_) => Kernel::KIND,
            Did::Copy(_) => Memcpy::KIND,
            Did::Set(_) => Memset::KIND,
        }
    }

    fn ran(&self) -> &Ran {
        match self {
            Did::Kernel(kernel, _) => &kernel.ran,
            Did::Copy(copy) => &copy.ran,
            Did::Set(set) => &set.ran,
            Did::Between(ran) => ran,
        }
    }
}

impl Called {
    /// A launch that nobody asked for.
    pub(in super::super) fn left_out(time_ns: u64) -> Called {
        Called { correlation: 0, start_ns: time_ns as i64, stream: 0, what: What::LeftOut }
    }
}

/// What a device's row needs of the process besides.
pub(in super::super) struct Around<'a> {
    /// The process's definition.
    pub(in super::super) process: u32,
    pub(in super::super) kernels: &'a mut Kernels,
    /// The context of each stream, by their definitions.
    pub(in super::super) contexts: &'a FxHashMap<u32, u32>,
    pub(in super::super) graphs: &'a Graphs,
    pub(in super::super) account: &'a mut Account,
    pub(in super::super) counts: &'a mut DeviceCounts,
}

/// The calls and what the device did for them.
#[derive(Debug, Default)]
pub(in super::super) struct Device {
    calls: FxHashMap<u32, Waiting>,
    /// Their numbers in the order that they came in, with the serial that tells whether it is still that call.
    called_order: VecDeque<(u32, u64)>,
    serials: u64,
    /// The first number that was told, whether its call is known or not.
    first: Option<u32>,
    early: FxHashMap<u32, Vec<Did>>,
    /// When they came, in this order.
    early_order: VecDeque<(u64, u32)>,
    /// Definitions of streams by CUPTI's numbers of context and stream.
    streams: FxHashMap<(u32, u32), u32>,
    /// And of contexts.
    contexts: FxHashMap<u32, u32>,
    /// Whether the work of each stream ran in its order.
    order: Order,
}

impl Device {
    /// Names each definition whose id is kept.
    pub(in super::super) fn kept(&self, keep: &mut dyn FnMut(DefinitionKind, u32)) {
        self.calls.values().for_each(|waiting| match waiting.called.what {
            What::Launch { kernel, shape } => {
                keep(DefinitionKind::Kernel, kernel);
                keep(DefinitionKind::Shape, shape);
            }
            What::Graph(graph) => keep(DefinitionKind::Graph, graph),
            What::LeftOut | What::Copies | What::Other => {}
        });
    }

    /// The rows of copies and memsets that wait.
    pub(in super::super) fn waiting(&self) -> impl Iterator<Item = Work> + '_ {
        self.calls.values().flat_map(|waiting| waiting.work.iter().copied())
    }

    /// Learns that a call has this number, whichever it is: what has a later one is of no call that came before the recording.
    pub(in super::super) fn announced(&mut self, id: u32) {
        self.first.get_or_insert(id);
    }

    /// Learns CUPTI's number of a call.
    pub(in super::super) fn called<S: Sink>(
        &mut self,
        id: u32,
        called: Called,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        self.serials += 1;
        let waiting = Waiting { serial: self.serials, called, ran: 0, work: Vec::new(), ahead: 0 };
        self.called_order.push_back((id, self.serials));
        if let Some(before) = self.calls.insert(id, waiting) {
            give_up(before, false, around, sink)?;
        }
        for did in self.early.remove(&id).unwrap_or_default() {
            self.did(did, 0, around, sink)?;
        }
        // Whose call is gone needs no place in the row.
        let is_over = |(id, serial): &mut (u32, u64)| self.calls.get(id).is_none_or(|call| call.serial != *serial);
        while self.called_order.pop_front_if(is_over).is_some() {}
        if self.called_order.len() > MOST_CALLS
            && let Some((id, serial)) = self.called_order.pop_front()
            && self.calls.get(&id).is_some_and(|call| call.serial == serial)
            && let Some(waiting) = self.calls.remove(&id)
        {
            give_up(waiting, false, around, sink)?;
        }
        Ok(())
    }

    /// A call was refused: the device does nothing for it.
    pub(in super::super) fn refused(&mut self, id: u32, counts: &mut DeviceCounts) {
        if let Some(waiting) = self.calls.remove(&id) {
            counts.refused_launches += u64::from(matches!(waiting.called.what, What::Launch { .. }));
        }
    }

    /// Takes the row of a copy or memset whose call has this number; 0 for none that is known.
    pub(in super::super) fn work<S: Sink>(
        &mut self,
        id: u32,
        work: Work,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        match self.calls.get_mut(&id).filter(|waiting| waiting.called.correlation == correlation(&work)) {
            Some(waiting) if waiting.ahead > 0 => {
                waiting.ahead -= 1;
                Ok(())
            }
            Some(waiting) => {
                waiting.work.push(work);
                Ok(())
            }
            None => write_work(work, around, sink),
        }
    }

    /// Takes what the device did. `now_ns` is when that was read.
    pub(in super::super) fn did<S: Sink>(
        &mut self,
        did: Did,
        now_ns: u64,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let id = did.ran().correlation;
        let Some(waiting) = self.calls.get_mut(&id) else {
            if now_ns == 0 {
                return self.row(None, &did, around, sink);
            }
            self.early.entry(id).or_default().push(did);
            self.early_order.push_back((now_ns, id));
            let is_full = self.early_order.len() > MOST_EARLY;
            return if is_full { self.give_up_early(now_ns, true, around, sink) } else { Ok(()) };
        };
        waiting.ran += 1;
        let called = waiting.called;
        if called.what == What::Copies {
            let is_same = |work: &Work| match (work, &did) {
                (Work::Copy(row), Did::Copy(copy)) => row.bytes == copy.bytes,
                (Work::Set(row), Did::Set(set)) => row.bytes == set.bytes,
                _ => false,
            };
            match waiting.work.iter().position(is_same).or((!waiting.work.is_empty()).then_some(0)) {
                Some(at) => drop(waiting.work.remove(at)),
                None => waiting.ahead += 1,
            }
        }
        if matches!(called.what, What::Launch { .. } | What::LeftOut) {
            self.calls.remove(&id);
        }
        if called.what == What::LeftOut {
            around.account.settle(Key::new(did.ran().start_ns, NO_CPU, did.kind()), Fate::LeftOut);
            return Ok(());
        }
        self.row(Some(called), &did, around, sink)
    }

    /// Ends the waiting of what has waited long enough.
    pub(in super::super) fn sweep<S: Sink>(
        &mut self,
        now_ns: u64,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        around.counts.overlapping += self.order.settle(now_ns.saturating_sub(WAITS_NS));
        self.give_up_early(now_ns, false, around, sink)
    }

    /// Ends all waiting.
    pub(in super::super) fn finish<S: Sink>(
        &mut self,
        has_ended: bool,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        self.give_up_early(u64::MAX, false, around, sink)?;
        around.counts.overlapping += self.order.finish();
        let mut left: Vec<Waiting> = self.calls.drain().map(|(_, waiting)| waiting).collect();
        left.sort_unstable_by_key(|waiting| waiting.serial);
        left.into_iter().try_for_each(|waiting| give_up(waiting, has_ended, around, sink))
    }

    fn give_up_early<S: Sink>(
        &mut self,
        now_ns: u64,
        is_full: bool,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let mut most = if is_full { MOST_EARLY / 16 } else { usize::MAX };
        let has_waited = |(came_ns, _): &mut (u64, u32)| is_full || now_ns.saturating_sub(*came_ns) >= WAITS_NS;
        while most > 0
            && let Some((_, id)) = self.early_order.pop_front_if(has_waited)
        {
            most -= 1;
            // Its call may have come meanwhile; all with its number came about then.
            for did in self.early.remove(&id).unwrap_or_default() {
                self.row(None, &did, around, sink)?;
            }
        }
        Ok(())
    }

    /// Writes the device's row.
    fn row<S: Sink>(
        &mut self,
        called: Option<Called>,
        did: &Did,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let ran = did.ran();
        let stream = match did {
            Did::Between(_) => called.map_or(0, |called| called.stream),
            _ => self.stream(called, ran, around, sink)?,
        };
        let correlation = called.map_or(0, |called| called.correlation);
        let graph = match called.map(|called| called.what) {
            Some(What::Graph(graph)) => graph,
            _ => 0,
        };
        let has_time = ran.end_ns != 0 && ran.end_ns >= ran.start_ns;
        let start_ns = match called {
            Some(called) if !has_time => called.start_ns,
            _ => ran.start_ns as i64,
        };
        let duration_ns = if has_time { ran.end_ns - ran.start_ns } else { 0 };
        let timing = match did {
            _ if !has_time => timing::ABSENT,
            Did::Between(_) => timing::BOUNDED,
            _ => timing::MEASURED,
        };
        around.counts.without_time += u64::from(!has_time);
        // Nodes of a graph have an order of their own, and events tell no stream.
        if timing == timing::MEASURED && (ran.graph, ran.graph_node) == (0, 0) {
            around.counts.overlapping += self.order.add((ran.context, ran.stream), (ran.start_ns, ran.end_ns));
        }
        if called.is_none() {
            // As far apart as half of all numbers: the number may have come round.
            let is_older = self.first.is_none_or(|first| ran.correlation.wrapping_sub(first) > u32::MAX / 2);
            *(if is_older { &mut around.counts.of_older_calls } else { &mut around.counts.of_unknown_calls }) += 1;
        }
        let graph_node = ran.graph_node;
        let (kind, end_ns, fate) = match did {
            Did::Between(_) => {
                let fate = match called.map(|called| called.what) {
                    Some(What::Launch { shape, .. }) => {
                        around.counts.kernels += 1;
                        give(
                            Kernel { start_ns, duration_ns, correlation, stream, shape, timing, ..Kernel::default() },
                            sink,
                        )?
                    }
                    // Which kernel that was only its launch could say.
                    _ => Fate::LeftOut,
                };
                (Kernel::KIND, ran.counted_ns() as i64, fate)
            }
            Did::Kernel(kernel, name) => {
                around.counts.kernels += 1;
                let shape = self.shape(called, kernel, name, around, sink)?;
                let row =
                    Kernel { start_ns, duration_ns, correlation, stream, shape, graph, graph_node, timing, args: 0 };
                (Kernel::KIND, row.end_ns(), give(row, sink)?)
            }
            Did::Copy(copy) => {
                around.counts.copies += 1;
                let peer_device = match copy.peer.checked_sub(1) {
                    Some(index) => sink.define(device(index))?,
                    None => 0,
                };
                let row = Memcpy {
                    start_ns,
                    duration_ns,
                    correlation,
                    stream,
                    bytes: copy.bytes,
                    kind: known(copy.copy, copy_kind::NAMES),
                    source_memory: known(copy.memory & 0xffff, memory_kind::NAMES),
                    target_memory: known(copy.memory >> 16, memory_kind::NAMES),
                    peer_device,
                    graph,
                    graph_node,
                    timing,
                    ..Memcpy::default()
                };
                (Memcpy::KIND, row.end_ns(), give(row, sink)?)
            }
            Did::Set(set) => {
                around.counts.sets += 1;
                let row = Memset {
                    start_ns,
                    duration_ns,
                    correlation,
                    stream,
                    bytes: set.bytes,
                    value: set.value,
                    target_memory: known(set.memory, memory_kind::NAMES),
                    graph,
                    graph_node,
                    timing,
                    ..Memset::default()
                };
                (Memset::KIND, row.end_ns(), give(row, sink)?)
            }
        };
        around.account.settle_at(Key::new(ran.counted_ns(), NO_CPU, kind), end_ns as u64, fate);
        Ok(())
    }

    /// The kernel as it ran. Its definition is the launch's, where that has no other name.
    fn shape<S: Sink>(
        &mut self,
        called: Option<Called>,
        ran: &KernelRan,
        name: &str,
        around: &mut Around<'_>,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        if let Some(Called { what: What::Launch { kernel, .. }, .. }) = called
            && !name.is_empty()
        {
            around.kernels.named_by_device(kernel, name, sink)?;
        }
        let name = sink.string(name)?;
        let kernel = sink.define(KernelName { name, module: 0 })?;
        sink.define(Shape {
            kernel,
            grid_x: ran.grid[0],
            grid_y: ran.grid[1],
            grid_z: ran.grid[2],
            block_x: ran.block[0],
            block_y: ran.block[1],
            block_z: ran.block[2],
            static_shared_bytes: ran.static_shared_bytes,
            dynamic_shared_bytes: ran.dynamic_shared_bytes,
            registers: ran.registers,
            local_bytes: ran.local_bytes,
            ..Shape::default()
        })
    }

    /// The definition of a stream: the same as that of the calls which are submitted to it. CUPTI's numbers of context and stream are
    /// learned from those; what no call named (a graph's own streams) is a stream by CUPTI's number.
    fn stream<S: Sink>(
        &mut self,
        called: Option<Called>,
        ran: &Ran,
        around: &Around<'_>,
        sink: &mut S,
    ) -> Result<u32, S::Error> {
        let key = (ran.context, ran.stream);
        let own = called.map_or(0, |called| called.stream);
        let is_of_graph = called.is_some_and(|called| matches!(called.what, What::Graph(_)));
        if own != 0 && !is_of_graph {
            if self.streams.insert(key, own) != Some(own)
                && let Some(&context) = around.contexts.get(&own)
            {
                self.contexts.insert(ran.context, context);
            }
            return Ok(own);
        }
        if let Some(&known) = self.streams.get(&key) {
            return Ok(known);
        }
        // The first of a graph is its launch's own, unless that goes by another number.
        if own != 0 && !self.streams.values().any(|&other| other == own) {
            self.streams.insert(key, own);
            return Ok(own);
        }
        let context = match self.contexts.get(&ran.context).or_else(|| around.contexts.get(&own)) {
            Some(&context) => context,
            None => {
                let device = sink.define(device(ran.device))?;
                sink.define(Context { process: around.process, device, native: ran.context.into() })?
            }
        };
        let id = sink.define(Stream { context, native: ran.stream.into(), ..Stream::default() })?;
        sink.property(DefinitionKind::Stream as u16, id, property::NAME, &format!("CUPTI's stream {}", ran.stream))?;
        self.streams.insert(key, id);
        Ok(id)
    }
}

fn correlation(work: &Work) -> u64 {
    match work {
        Work::Copy(row) => row.correlation,
        Work::Set(row) => row.correlation,
    }
}

/// A device of NVIDIA's, by its number.
pub(in super::super) fn device(index: u32) -> definition::Device {
    definition::Device { process: 0, index, vendor: vendor::NVIDIA, uuid: 0 }
}

/// A code of CUPTI's as the tape's, which has the same numbers; 0 for one that it has not.
fn known(code: u32, names: &[&str]) -> u8 {
    if (code as usize) < names.len() { code as u8 } else { 0 }
}

/// Writes the row of a call, which no tally has counted.
fn write_work<S: Sink>(work: Work, around: &mut Around<'_>, sink: &mut S) -> Result<(), S::Error> {
    let (end_ns, kind, fate) = match work {
        Work::Copy(row) => (row.end_ns(), Memcpy::KIND, give(row, sink)?),
        Work::Set(row) => (row.end_ns(), Memset::KIND, give(row, sink)?),
    };
    around.account.settle_uncounted(Key::new(end_ns as u64, NO_CPU, kind), fate);
    Ok(())
}

/// Ends the waiting of a call: `has_ended` says whether its process has.
fn give_up<S: Sink>(waiting: Waiting, has_ended: bool, around: &mut Around<'_>, sink: &mut S) -> Result<(), S::Error> {
    let counts = &mut *around.counts;
    let missing = match (waiting.called.what, has_ended) {
        _ if waiting.ran > 0 => None,
        (What::Launch { .. }, true) => Some(&mut counts.launches_cut_off),
        (What::Launch { .. }, false) => Some(&mut counts.launches_without_kernel),
        (What::Graph(graph), _) if !around.graphs.has_work(graph) => None,
        (What::Graph(_), true) => Some(&mut counts.graph_launches_cut_off),
        (What::Graph(_), false) => Some(&mut counts.graph_launches_without_work),
        _ => None,
    };
    if let Some(count) = missing {
        *count += 1;
    }
    counts.copies_without_time += waiting.work.len() as u64;
    waiting.work.into_iter().try_for_each(|work| write_work(work, around, sink))
}

#[cfg(test)]
mod tests;
