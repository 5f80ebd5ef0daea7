//! Joins the records and writes them: device work with its call, everything with its stack, in order of time.

mod calls;
mod links;
mod rest;

use ktape_format::Sink;
use ktape_format::definition::Graph;
use ktape_format::event::{Event, Kernel, Memcpy, Memset, timing};

use super::devices::Places;
use super::dialect;
use super::edges;
use super::error::Fault;
use super::records::{DeviceOp, Records, Work, is_without_shared_memory_of};
use crate::import::calls::Keep;
use crate::import::stacks::{self, Query, Rank, Span};
use crate::import::{Summary, Tool};
use crate::timeline::audit::stream_order::StreamOrder;
use links::Links;

/// Writes the records of one file.
pub(super) struct Writer<'s, S> {
    sink: &'s mut S,
    places: Places,
    summary: Summary,
    base_ns: i64,
    /// Whether the tape gets other traces too, so that what this one says of itself is said of its process.
    of_many: bool,
    /// How many events of each kind were written, with the kind's name.
    kept: Vec<(&'static str, u64)>,
}

/// The stacks of the records, one for each.
struct Stacks {
    calls: Vec<u32>,
    memory: Vec<u32>,
    ranges: Vec<u32>,
    marks: Vec<u32>,
}

/// A device operation's definitions.
#[derive(Clone, Copy, Default)]
struct Located {
    stream: u32,
    graph: u32,
}

impl<'s, S: Sink> Writer<'s, S> {
    /// Writes everything and adds what was kept to the summary. `source` is the file's name.
    pub(super) fn write(
        sink: &'s mut S,
        source: &str,
        of_many: bool,
        mut records: Records,
        mut summary: Summary,
    ) -> Result<Summary, Fault> {
        if dialect::name_rows(&mut records) {
            summary.tool = summary.tool.max(Some(Tool::TensorFlow));
        }
        let base_ns = records.checked_base_ns()?;
        let (on_host, on_device) = records.set_missing_times();
        edges::pair(&mut records, &mut summary);
        summary.repair_all("event without a time (`ts` 0), set to the file's first", on_host);
        summary.repair_all("device operation without a time (`ts` 0), set to its call's", on_device);
        summary.repair_all("event that ends beyond the year 2262, its end set to that", records.cut_ends(base_ns));
        records.sort();
        let places = Places::new(sink, source, &records)?;
        let mut writer = Writer { sink, places, summary, base_ns, of_many, kept: Vec::new() };
        let (links, stacks) = writer.links_and_stacks(&records)?;
        let located = writer.locate(&records, &links)?;
        let mut order = StreamOrder::default();
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| see_order(&mut order, &records.device_ops, &located));
            writer.device_ops(&records, &links, &located)?;
            writer.calls(&records, &links, &located, &stacks.calls)
        })?;
        writer.summary.take_disorder(order);
        writer.memory(&records, &stacks.memory)?;
        writer.ranges(&records, &links, &stacks.ranges)?;
        writer.marks(&records, &stacks.marks)?;
        writer.slices(&records)?;
        writer.counters(&records)?;
        writer.properties(&records)?;
        writer.clock(&records)?;
        writer.losses(&records)?;
        let Writer { mut summary, kept, .. } = writer;
        if summary.tool.is_some() {
            summary.lacks = dialect::lacks(&records, summary.matched);
        }
        for (kind, count) in kept.into_iter().filter(|(_, count)| *count > 0) {
            *summary.kept.entry(kind).or_default() += count;
        }
        Ok(summary)
    }

    /// Two long searches at once: for links, which needs no sink, and for stacks.
    fn links_and_stacks(&mut self, records: &Records) -> Result<(Links, Stacks), Fault> {
        let Writer { sink, places, summary, .. } = self;
        let mut links = Links::default();
        let stacks = rayon::in_place_scope(|scope| {
            scope.spawn(|_| links = Links::of(records, places));
            Stacks::of(records, *sink, summary)
        })?;
        Ok((links, stacks))
    }

    /// Defines the stream and graph of each device operation.
    fn locate(&mut self, records: &Records, links: &Links) -> Result<Vec<Located>, Fault> {
        let mut located = Vec::with_capacity(records.device_ops.len());
        for op in &records.device_ops {
            let process = links.process(records, &self.places, op.correlation);
            let stream = self.places.stream(self.sink, process, records.places.get(op.place))?;
            let graph = match op.graph {
                0 => 0,
                native => self.sink.define(Graph { process, native, earlier: 0 })?,
            };
            located.push(Located { stream, graph });
        }
        Ok(located)
    }

    fn device_ops(&mut self, records: &Records, links: &Links, located: &[Located]) -> Result<(), Fault> {
        for ((op, located), call) in records.device_ops.iter().zip(located).zip(&links.call_of_op) {
            let call = call.map(|call| &records.calls[call as usize]);
            *if call.is_some() { &mut self.summary.matched } else { &mut self.summary.unmatched } += 1;
            let Located { stream, graph } = *located;
            let start_ns = op.start_ns + self.base_ns;
            let &DeviceOp { duration_ns, correlation, graph_node, timing, args, .. } = op;
            match op.work {
                Work::Kernel(shape) => {
                    // The call knows the shared memory, which a HIP kernel's own record does not have.
                    let shape = records.shapes.get(shape);
                    let said = call.and_then(|call| call.shape).map(|said| records.shapes.get(said));
                    let shape = said.filter(|said| is_without_shared_memory_of(&shape, said)).unwrap_or(shape);
                    let shape = self.sink.define(shape)?;
                    self.event(Kernel {
                        start_ns,
                        duration_ns,
                        correlation,
                        stream,
                        shape,
                        graph,
                        graph_node,
                        timing,
                        args,
                    })?;
                }
                Work::Memcpy { bytes, kind, source_memory, target_memory, peer_device, name } => {
                    let peer_device = match peer_device {
                        Some(index) => {
                            let process = links.process(records, &self.places, correlation);
                            self.places.device(self.sink, process, index)?
                        }
                        None => 0,
                    };
                    self.event(Memcpy {
                        start_ns,
                        duration_ns,
                        correlation,
                        stream,
                        bytes,
                        kind,
                        source_memory,
                        target_memory,
                        peer_device,
                        graph,
                        graph_node,
                        timing,
                        name,
                        args,
                    })?;
                }
                Work::Memset { bytes, target_memory, name } => self.event(Memset {
                    start_ns,
                    duration_ns,
                    correlation,
                    stream,
                    bytes,
                    value: 0,
                    target_memory,
                    graph,
                    graph_node,
                    timing,
                    name,
                    args,
                })?,
            }
        }
        Ok(())
    }
}

/// Looks at whether the operations of each stream came one after the other.
fn see_order(order: &mut StreamOrder, ops: &[DeviceOp], located: &[Located]) {
    for (op, located) in ops.iter().zip(located).filter(|(op, _)| op.timing == timing::MEASURED) {
        order.see(located.stream, op.start_ns, op.duration_ns, op.correlation);
    }
}

impl Stacks {
    /// Asks for the stack of everything that has one.
    fn of<S: Sink>(records: &Records, sink: &mut S, summary: &mut Summary) -> Result<Stacks, Fault> {
        let mut has_python = vec![false; records.threads.things.len() + 1];
        for slice in records.slices.iter().filter(|slice| slice.rank == Some(Rank::Python)) {
            has_python[slice.row.thread as usize] = true;
        }
        let (calls, memory) = (records.calls.len(), records.memory.len());
        let (ranges, marks) = (records.ranges.len(), records.marks.len());
        let mut spans: Vec<Span> = Vec::with_capacity(records.slices.len());
        for slice in records.slices.iter().filter(|slice| slice.row.thread != 0) {
            let Some(rank) = slice.rank else { continue };
            let row = &slice.row;
            let call_stack = if has_python[row.thread as usize] { 0 } else { slice.call_stack };
            let (thread, start_ns, frame) = (row.thread, row.start_ns, row.frame);
            spans.push(Span { thread, start_ns, end_ns: row.end_ns(), rank, frame, call_stack, slot: None });
        }
        let mut queries: Vec<Query> = Vec::with_capacity(calls + memory + ranges + marks);
        let mut ask = |slot: usize, thread: u32, at_ns: i64| {
            if thread != 0 {
                queries.push(Query { thread, at_ns, slot: slot as u32 });
            }
        };
        records.calls.iter().enumerate().for_each(|(at, call)| ask(at, call.thread, call.start_ns));
        records.memory.iter().enumerate().for_each(|(at, row)| ask(calls + at, row.thread, row.start_ns));
        for (at, range) in records.ranges.iter().enumerate() {
            let (slot, row) = (calls + memory + at, &range.row);
            let (thread, start_ns, frame) = (row.thread, row.start_ns, range.frame);
            if frame == 0 || thread == 0 {
                ask(slot, thread, start_ns);
            } else {
                let (end_ns, rank, slot) = (row.end_ns(), Rank::Annotation, Some(slot as u32));
                spans.push(Span { thread, start_ns, end_ns, rank, frame, call_stack: 0, slot });
            }
        }
        let slots = calls + memory + ranges;
        records.marks.iter().enumerate().for_each(|(at, mark)| ask(slots + at, mark.thread, mark.start_ns));
        let stacks = stacks::resolve(sink, spans, queries, slots + marks)?;
        summary.stacks(&stacks);
        let mut all = stacks.by_slot;
        let marks = all.split_off(calls + memory + ranges);
        let ranges = all.split_off(calls + memory);
        let memory = all.split_off(calls);
        Ok(Stacks { calls: all, memory, ranges, marks })
    }
}

impl<S: Sink> Keep for Writer<'_, S> {
    type Error = Fault;

    fn event<E: Event>(&mut self, row: E) -> Result<(), Fault> {
        self.sink.event(row)?;
        let kind = usize::from(E::KIND);
        if self.kept.len() <= kind {
            self.kept.resize(kind + 1, ("", 0));
        }
        self.kept[kind] = (E::NAME, self.kept[kind].1 + 1);
        Ok(())
    }
}
