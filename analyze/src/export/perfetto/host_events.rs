//! A host event as a packet: its name, its arguments, its stack, its arrows.

use ktape_format::Definitions;
use ktape_format::definition::{Frame, frame_kind};
use ktape_format::event::{
    Alloc, Api, CpuSample, Event, EventRecord, EventWait, Events, Free, GraphLaunch, KindVisitor, Launch, Lifecycle,
    Loss, Mark, OffCpu, Range, Slice, Sync, phase, visit_kinds,
};
use ktape_format::table::{Row, Table as _};
use rustc_hash::{FxHashMap, FxHashSet};

use super::host::{HostSlice, Lane};
use super::labels::Labels;
use super::links::{Links, Submitted, event_id};
use super::proto::{GpuCorrelation, TrackEvent, event_type};
use super::stacks::Stacks;
use super::text::{Arg, TextId, Texts, Value, list};
use super::untimed::Untimed;
use crate::timeline::{DeviceOp, DeviceOpKind, Timeline};

/// Makes packets of host events.
pub(super) struct HostEvents<'a> {
    pub(super) timeline: &'a Timeline,
    pub(super) labels: &'a Labels<'a>,
    pub(super) links: &'a Links,
    pub(super) untimed: &'a Untimed,
    pub(super) stacks: &'a Stacks<'a>,
    categories: FxHashMap<Lane, TextId>,
    names: Names,
}

/// The names of events that bring none of their own.
struct Names {
    alloc: TextId,
    free: TextId,
    unnamed: TextId,
    opened_before: TextId,
    waiting_for_processor: TextId,
    /// By row of `events.loss`.
    losses: Vec<TextId>,
}

/// The stacks that host events refer to.
pub(super) fn used_stacks(events: &Events) -> FxHashSet<u32> {
    let columns = [
        &events.launch.stack,
        &events.graph_launch.stack,
        &events.api.stack,
        &events.sync.stack,
        &events.event_record.stack,
        &events.event_wait.stack,
        &events.alloc.stack,
        &events.free.stack,
        &events.range.stack,
        &events.mark.stack,
        &events.cpu_sample.stack,
    ];
    columns.into_iter().flatten().copied().collect()
}

impl<'a> HostEvents<'a> {
    pub(super) fn new(
        timeline: &'a Timeline,
        labels: &'a Labels<'a>,
        links: &'a Links,
        untimed: &'a Untimed,
        stacks: &'a Stacks<'a>,
        texts: &mut Texts<'_>,
    ) -> HostEvents<'a> {
        let events = &timeline.events;
        for &name in events.range.name.iter().chain(&events.mark.name) {
            texts.string(name, list::EVENT_NAME);
        }
        for &value in events.range.category.iter().chain(&events.mark.category).chain(&events.lifecycle.detail) {
            texts.string(value, list::VALUE);
        }
        for &cause in &events.loss.cause {
            texts.string(cause, list::VALUE);
        }
        let loss = |row: Loss| texts.text(&loss_name(&timeline.definitions, &row), list::EVENT_NAME);
        let losses = events.loss.rows().map(loss).collect();
        let names = Names {
            alloc: texts.text("alloc", list::EVENT_NAME),
            free: texts.text("free", list::EVENT_NAME),
            unnamed: texts.text("(unnamed)", list::EVENT_NAME),
            opened_before: texts.text("(opened before the recording)", list::EVENT_NAME),
            waiting_for_processor: texts.text("waiting for a processor", list::EVENT_NAME),
            losses,
        };
        HostEvents { timeline, labels, links, untimed, stacks, categories: FxHashMap::default(), names }
    }

    /// Says which kinds of tracks there are.
    pub(super) fn category(&mut self, lane: Lane, texts: &mut Texts<'_>) {
        self.categories.entry(lane).or_insert_with(|| texts.text(lane.names().1, list::CATEGORY));
    }

    /// Fills the packet of a slice's end.
    pub(super) fn end(&self, uuid: u64, event: &mut TrackEvent) {
        clear(event);
        event.r#type = event_type::SLICE_END;
        event.track_uuid = uuid;
    }

    /// Fills the packet of a slice's begin, or of an instant.
    pub(super) fn begin(&self, lane: Lane, uuid: u64, slice: &HostSlice, event: &mut TrackEvent) {
        clear(event);
        event.r#type = if slice.is_instant() { event_type::INSTANT } else { event_type::SLICE_BEGIN };
        event.track_uuid = uuid;
        event.category_iids.push(self.categories[&lane]);
        let row = slice.row as usize;
        let events = &self.timeline.events;
        match slice.kind {
            Launch::KIND => self.launch(row, events.launch.row(row), event),
            GraphLaunch::KIND => self.graph_launch(row, events.graph_launch.row(row), event),
            Api::KIND => self.api(row, events.api.row(row), event),
            Sync::KIND => self.sync(row, events.sync.row(row), event),
            EventRecord::KIND => self.event_record(events.event_record.row(row), event),
            EventWait::KIND => self.event_wait(events.event_wait.row(row), event),
            Alloc::KIND => self.memory(events.alloc.row(row), self.names.alloc, event),
            Free::KIND => self.memory(as_alloc(events.free.row(row)), self.names.free, event),
            Slice::KIND => self.slice(events.slice.row(row), event),
            Range::KIND => self.range(events.range.row(row), event),
            Mark::KIND => self.mark(events.mark.row(row), event),
            CpuSample::KIND => self.cpu_sample(events.cpu_sample.row(row), event),
            OffCpu::KIND => self.off_cpu(events.off_cpu.row(row), slice.start_ns, event),
            Lifecycle::KIND => self.lifecycle(events.lifecycle.row(row), event),
            Loss::KIND => self.loss(row, events.loss.row(row), event),
            kind => unreachable!("no host event has kind {kind}"),
        }
    }

    fn launch(&self, row: usize, launch: Launch, event: &mut TrackEvent) {
        let keys = &self.labels.keys;
        event.name_iid = Some(self.labels.functions.of(launch.function));
        if launch.shape != 0 {
            event.text(keys.kernel, self.labels.kernel_of(launch.shape));
            if self.timeline.host_only {
                // It stands for its kernel, which is on no other track.
                event.name_iid = Some(self.labels.kernel_of(launch.shape));
                event.text(keys.function, self.labels.functions.of(launch.function));
            }
            event.arg(self.labels.grids.arg(keys.grid, launch.shape));
            event.arg(self.labels.blocks.arg(keys.block, launch.shape));
        }
        event.arg(self.labels.stream(launch.stream));
        self.call(launch.correlation, launch.result, launch.args, event);
        self.submitted(&self.links.launch, row, launch.stack, event);
    }

    fn graph_launch(&self, row: usize, launch: GraphLaunch, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.functions.of(launch.function));
        event.arg(self.labels.graph(launch.graph));
        self.labels.contents(launch.graph).for_each(|arg| event.arg(Some(arg)));
        event.arg(self.labels.stream(launch.stream));
        self.call(launch.correlation, launch.result, launch.args, event);
        self.submitted(&self.links.graph_launch, row, launch.stack, event);
    }

    fn api(&self, row: usize, api: Api, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.functions.of(api.function));
        self.call(api.correlation, api.result, api.args, event);
        if let Some(op) = self.untimed.of_call(row) {
            self.asked_for(op, event);
        }
        if self.links.api.ops.of(row).is_empty() {
            event.callstack_iid = self.stacks.id(api.stack);
        } else {
            self.submitted(&self.links.api, row, api.stack, event);
        }
    }

    /// What a call asked of the device where its time is not known.
    fn asked_for(&self, op: &DeviceOp, event: &mut TrackEvent) {
        let (keys, row) = (&self.labels.keys, op.row as usize);
        event.arg(self.labels.stream(op.stream));
        if op.kind == DeviceOpKind::Memcpy {
            let copy = self.timeline.events.memcpy.row(row);
            event.uint(keys.bytes, copy.bytes);
            event.text(keys.direction, self.labels.copies.of(copy.kind));
            event.text(keys.source_memory, self.labels.memories.of(copy.source_memory));
            event.text(keys.target_memory, self.labels.memories.of(copy.target_memory));
            event.args(self.labels.args.of(copy.args));
        } else {
            let memset = self.timeline.events.memset.row(row);
            event.uint(keys.bytes, memset.bytes);
            event.arg(Some(Arg { name: keys.value, value: Value::Uint(memset.value.into()) }));
            event.text(keys.target_memory, self.labels.memories.of(memset.target_memory));
            event.args(self.labels.args.of(memset.args));
        }
        event.text(keys.timing, self.labels.timings.of(op.timing));
    }

    fn sync(&self, row: usize, sync: Sync, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.functions.of(sync.function));
        event.text(self.labels.keys.waits_for, self.labels.syncs.of(sync.kind));
        event.arg(self.labels.stream(sync.stream));
        event.uint(self.labels.keys.event, sync.event);
        self.call(sync.correlation, sync.result, sync.args, event);
        event.callstack_iid = self.stacks.id(sync.stack);
        let waited_for = self.links.sync.of(row);
        if !waited_for.is_empty() {
            let ids = waited_for.iter().map(|op| event_id(*op as usize));
            event.gpu_correlation.get_or_insert_default().waited_for.extend(ids);
        }
    }

    fn event_record(&self, record: EventRecord, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.functions.of(record.function));
        event.arg(self.labels.stream(record.stream));
        event.uint(self.labels.keys.event, record.event);
        self.call(record.correlation, record.result, record.args, event);
        event.callstack_iid = self.stacks.id(record.stack);
    }

    fn event_wait(&self, wait: EventWait, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.functions.of(wait.function));
        event.arg(self.labels.stream(wait.stream));
        event.uint(self.labels.keys.event, wait.event);
        self.call(wait.correlation, wait.result, wait.args, event);
        event.callstack_iid = self.stacks.id(wait.stack);
    }

    fn memory(&self, alloc: Alloc, name: TextId, event: &mut TrackEvent) {
        let keys = &self.labels.keys;
        event.name_iid = Some(if alloc.function == 0 { name } else { self.labels.functions.of(alloc.function) });
        event.uint(keys.bytes, alloc.bytes);
        event.uint(keys.address, alloc.address);
        event.text(keys.allocator, self.labels.allocators.of(alloc.allocator));
        event.arg(self.labels.stream(alloc.stream));
        event.uint(keys.allocated_bytes, alloc.allocated_bytes);
        event.uint(keys.reserved_bytes, alloc.reserved_bytes);
        self.call(0, alloc.result, 0, event);
        event.callstack_iid = self.stacks.id(alloc.stack);
    }

    fn slice(&self, slice: Slice, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.frames.of(slice.frame));
        if let Some(frame) = self.labels.definitions.get::<Frame>(slice.frame) {
            event.string(self.labels.keys.file, frame.file);
            event.uint(self.labels.keys.line, frame.line.into());
            if frame.kind == frame_kind::OPERATOR && slice.sequence >= 0 {
                event.arg(Some(Arg { name: self.labels.keys.sequence, value: Value::Int(slice.sequence) }));
            }
        }
        event.args(self.labels.args.of(slice.args));
    }

    fn range(&self, range: Range, event: &mut TrackEvent) {
        event.name_iid = Some(match (range.name, range.phase) {
            (0, phase::POP) => self.names.opened_before,
            (0, _) => self.names.unnamed,
            (name, _) => name.into(),
        });
        event.string(self.labels.keys.category, range.category);
        event.arg(self.labels.stream(range.stream));
        event.args(self.labels.args.of(range.args));
        event.callstack_iid = self.stacks.id(range.stack);
    }

    fn mark(&self, mark: Mark, event: &mut TrackEvent) {
        event.name_iid = Some(if mark.name == 0 { self.names.unnamed } else { mark.name.into() });
        event.string(self.labels.keys.category, mark.category);
        event.args(self.labels.args.of(mark.args));
        event.callstack_iid = self.stacks.id(mark.stack);
    }

    fn cpu_sample(&self, sample: CpuSample, event: &mut TrackEvent) {
        let leaf = self.labels.definitions.get::<ktape_format::definition::Stack>(sample.stack);
        event.name_iid = Some(self.labels.frames.of(leaf.map_or(0, |stack| stack.frame)));
        event.arg(Some(Arg { name: self.labels.keys.cpu, value: Value::Uint(sample.cpu.into()) }));
        event.uint(self.labels.keys.weight_ns, sample.weight_ns);
        // Without a weight: weights are device time, and a flamegraph must not add up two kinds of time.
        event.callstack_iid = self.stacks.id(sample.stack);
    }

    fn off_cpu(&self, off: OffCpu, start_ns: i64, event: &mut TrackEvent) {
        if start_ns != off.start_ns {
            event.name_iid = Some(self.names.waiting_for_processor);
            return;
        }
        event.name_iid = Some(self.labels.off_cpu_reasons.of(off.reason));
        event.arg(Some(Arg { name: self.labels.keys.cpu, value: Value::Uint(off.cpu.into()) }));
        event.uint(self.labels.keys.runnable_ns, off.runnable_ns);
    }

    fn lifecycle(&self, row: Lifecycle, event: &mut TrackEvent) {
        event.name_iid = Some(self.labels.lifecycles.of(row.kind));
        event.arg(Some(Arg { name: self.labels.keys.code, value: Value::Int(row.code) }));
        event.string(self.labels.keys.detail, row.detail);
    }

    fn loss(&self, row: usize, loss: Loss, event: &mut TrackEvent) {
        event.name_iid = Some(self.names.losses[row]);
        event.arg(Some(Arg { name: self.labels.keys.count, value: Value::Uint(loss.count) }));
        event.string(self.labels.keys.cause, loss.cause);
    }

    /// What all calls have.
    fn call(&self, correlation: u64, result: i32, args: u32, event: &mut TrackEvent) {
        event.uint(self.labels.keys.correlation, correlation);
        if result != 0 {
            event.arg(Some(Arg { name: self.labels.keys.result, value: Value::Int(result.into()) }));
        }
        event.args(self.labels.args.of(args));
    }

    /// The device work of a call: arrows to it, and its exact time as the weight of the stack. A weight is a double,
    /// exact up to 2^53 ns: 104 days. Without device times there are no weights, so that a flamegraph counts calls.
    fn submitted(&self, submitted: &Submitted, row: usize, stack: u32, event: &mut TrackEvent) {
        event.callstack_iid = self.stacks.id(stack);
        let is_weighted = event.callstack_iid.is_some() && !self.timeline.host_only;
        event.callstack_weight = is_weighted.then(|| submitted.device_ns[row] as f64);
        let ops = submitted.ops.of(row);
        if !ops.is_empty() {
            let ids = ops.iter().map(|op| event_id(*op as usize));
            event.gpu_correlation.get_or_insert_default().submitted.extend(ids);
        }
    }
}

/// Empties an event; its lists keep their memory.
fn clear(event: &mut TrackEvent) {
    event.category_iids.clear();
    event.debug_annotations.clear();
    event.name_iid = None;
    event.callstack_iid = None;
    event.callstack_weight = None;
    event.gpu_correlation = None::<GpuCorrelation>;
}

impl TrackEvent {
    fn arg(&mut self, arg: Option<Arg>) {
        self.debug_annotations.extend(arg.map(Into::<super::proto::DebugAnnotation>::into));
    }

    fn args(&mut self, args: &[Arg]) {
        self.debug_annotations.extend(args.iter().map(|arg| super::proto::DebugAnnotation::from(*arg)));
    }

    fn text(&mut self, name: TextId, text: TextId) {
        self.arg(Some(Arg { name, value: Value::Text(text) }));
    }

    /// A number, unless it is 0, which stands for "none" or "not known".
    fn uint(&mut self, name: TextId, value: u64) {
        self.arg((value != 0).then_some(Arg { name, value: Value::Uint(value) }));
    }

    /// A string of the definitions, unless it is the empty one.
    fn string(&mut self, name: TextId, string: u32) {
        self.arg((string != 0).then(|| Arg { name, value: Value::Text(string.into()) }));
    }
}

/// An allocation with the columns of a free, which are the same.
fn as_alloc(free: Free) -> Alloc {
    Alloc {
        start_ns: free.start_ns,
        duration_ns: free.duration_ns,
        thread: free.thread,
        device: free.device,
        stream: free.stream,
        address: free.address,
        bytes: free.bytes,
        allocator: free.allocator,
        allocated_bytes: free.allocated_bytes,
        reserved_bytes: free.reserved_bytes,
        stack: free.stack,
        function: free.function,
        result: free.result,
    }
}

/// `lost 12 kernel events: ring buffer full`.
fn loss_name(definitions: &Definitions, loss: &Loss) -> String {
    struct NameOf(u16, Option<&'static str>);
    impl KindVisitor for NameOf {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            if E::KIND == self.0 {
                self.1 = Some(E::NAME);
            }
            Ok(())
        }
    }
    let mut name = NameOf(loss.kind, None);
    let Ok(()) = visit_kinds(&mut name);
    let kind = name.1.map_or(String::new(), |name| format!("{name} "));
    match definitions.string(loss.cause) {
        "" => format!("lost {} {kind}events", loss.count),
        cause => format!("lost {} {kind}events: {cause}", loss.count),
    }
}
