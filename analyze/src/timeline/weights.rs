//! Weighted stacks: how much of something each calling stack is answerable for.
//!
//! One pass over the events adds each one's weight to the stack that caused it, by id, so that a trace of millions of
//! events costs one map entry for each different stack and leaf. Flamegraphs and their like only render the result.
//! Nothing falls out: work whose launch is not on the tape, or whose launch has no stack, keeps its weight under a
//! [`Caller`] that says so.

use std::collections::BTreeMap;

use ktape_format::definition::KernelName;
use ktape_format::event::{
    Api, CpuSample, Event, EventRecord, EventWait, GraphLaunch, Kernel, Launch, Memcpy, Memset, Sync, timing,
};
use ktape_format::{Row as _, Table};
use rustc_hash::FxHashMap;

use super::graph_work::CapturedStacks;
use super::graphs::{Graphs, Ran, ran_of};
use super::{DeviceOpKind, OpClass, Timeline};

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Value {
    /// Time of kernels, copies and memsets on the device
    Gpu,
    /// Number of kernels launched; a graph counts as the kernels that it runs without device times, else once
    Launches,
    /// Time of the host in API calls
    Api,
    /// Time of the host in synchronisations: waiting for device work
    Sync,
    /// Time of copies and memsets on the device
    Copies,
    /// Bytes copied
    Bytes,
    /// Time of threads on processors, by CPU samples
    Cpu,
    /// Number of CPU samples
    Samples,
}

/// On which stack the kernels of a graph stand, where the tape tells of the graph's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum GraphStacks {
    /// That of the graph's launch: who sent them to the device
    #[default]
    Launched,
    /// That of the call that was captured, or built the graph: whose work they are
    Captured,
}

/// Who caused an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Caller {
    /// This stack.
    Stack(u32),
    /// A call that is on the tape, but was recorded without a stack.
    NoStack,
    /// A call that is not on the tape: it came before the recording or the selection, or was lost.
    NoCall,
}

/// What stands at the end of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeafKind {
    /// A kernel; the leaf's `id` is its id among the kernels.
    Kernel,
    /// A copy.
    Memcpy,
    /// A memset.
    Memset,
    /// A call of the API; the leaf's `id` is its id among the functions.
    Call,
    /// Nothing: the innermost function itself ran. It is no frame of its own.
    Running,
}

/// What a stack led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// What it is.
    pub kind: LeafKind,
    /// See [`LeafKind`]; 0 for copies and memsets.
    pub id: u32,
    /// Its name as the source has it.
    pub name: String,
}

/// The events that have all of this in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Whose they are.
    pub process: u32,
    /// The stream they ran on or were submitted to; 0 for calls that have none.
    pub stream: u32,
    /// Who caused them.
    pub caller: Caller,
    /// What they are: an index into [`Weights::leaves`].
    pub leaf: u32,
}

/// A timeline's weighted stacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Weights {
    /// The weights, in the order of their places. None is 0.
    pub stacks: Vec<(Place, u64)>,
    /// What the places' leaves are, in order of first appearance.
    pub leaves: Vec<Leaf>,
    /// The sum of all weights.
    pub total: u64,
    /// How many events were weighed.
    pub events: u64,
    /// How many of them have no device time ([`timing::ABSENT`]) and so no weight.
    pub absent: u64,
    /// How many of them have a device time that is an upper bound ([`timing::BOUNDED`]).
    pub bounded: u64,
}

/// The sum does not fit; only a damaged tape gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sum of all durations or sizes exceeds 64 bits, so some of them cannot be true; look for them with `analyze dump`"
)]
pub struct Overflow;

/// Adds up `value` by calling stack.
pub fn weigh(timeline: &Timeline, value: Value, graph_stacks: GraphStacks) -> Result<Weights, Overflow> {
    let mut scale =
        Scale { timeline, leaves: FxHashMap::default(), sums: FxHashMap::default(), done: Weights::default() };
    match value {
        Value::Gpu | Value::Copies | Value::Bytes => scale.device_work(value, graph_stacks)?,
        Value::Launches => scale.launches(graph_stacks)?,
        Value::Api => scale.calls()?,
        Value::Sync => scale.waits()?,
        Value::Cpu | Value::Samples => scale.samples(value)?,
    }
    scale.rollups(value)?;
    let sorted: BTreeMap<Place, u64> = scale.sums.into_iter().filter(|(_, weight)| *weight > 0).collect();
    Ok(Weights { stacks: sorted.into_iter().collect(), ..scale.done })
}

/// What makes two leaves the same, without building a name for each event.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum LeafKey {
    Op(OpClass),
    /// With the function's id.
    Call(u32),
    Running,
}

struct Scale<'a> {
    timeline: &'a Timeline,
    leaves: FxHashMap<LeafKey, u32>,
    sums: FxHashMap<Place, u64>,
    done: Weights,
}

impl Scale<'_> {
    fn device_work(&mut self, value: Value, graph_stacks: GraphStacks) -> Result<(), Overflow> {
        let captured = match graph_stacks {
            GraphStacks::Launched => CapturedStacks::default(),
            GraphStacks::Captured => CapturedStacks::new(self.timeline),
        };
        let events = &self.timeline.events;
        for op in self.timeline.device_ops() {
            let counts = match op.kind {
                DeviceOpKind::Kernel => value == Value::Gpu,
                DeviceOpKind::Memcpy => true,
                DeviceOpKind::Memset => value != Value::Bytes,
            };
            if !counts {
                continue;
            }
            let weight = match value {
                Value::Bytes => events.memcpy.bytes[op.row as usize],
                _ => {
                    self.done.absent += u64::from(op.timing == timing::ABSENT);
                    self.done.bounded += u64::from(op.timing == timing::BOUNDED);
                    op.duration_ns()
                }
            };
            let stack = captured.of(self.timeline, &op).or_else(|| self.timeline.stack_of(&op));
            let caller = stack.map_or(Caller::NoCall, caller);
            let process = self.timeline.definitions.process_of_stream(op.stream);
            let leaf = self.leaf(LeafKey::Op(self.timeline.op_class(&op)), || self.timeline.op_name(&op));
            self.add(Place { process, stream: op.stream, caller, leaf }, weight)?;
        }
        Ok(())
    }

    fn launches(&mut self, graph_stacks: GraphStacks) -> Result<(), Overflow> {
        for row in self.timeline.events.launch.rows() {
            let leaf = self.kernel_leaf(row.shape);
            self.add_call(row.thread, row.stream, row.stack, leaf, 1)?;
        }
        // Launches of graphs that have all of this in common: process, stream, stack, graph, function.
        let mut launches = BTreeMap::<(u32, u32, u32, u32, u32), u64>::new();
        for row in self.timeline.events.graph_launch.rows() {
            let process = self.timeline.definitions.process_of_thread(row.thread);
            // What failed ran nothing, and what ran on a device that was recorded is there.
            let graph = if row.result == 0 && self.timeline.host_only { row.graph } else { 0 };
            *launches.entry((process, row.stream, row.stack, graph, row.function)).or_default() += 1;
        }
        for row in self.timeline.rolled_up_graphs() {
            let ran = if self.timeline.host_only { ran_of(row) } else { (0, row.count) };
            for (graph, count) in
                [ran, (0, row.count.saturating_sub(ran.1))].into_iter().filter(|(_, count)| *count > 0)
            {
                let sum = launches.entry((row.process, 0, row.stack, graph, row.function)).or_default();
                *sum = sum.checked_add(count).ok_or(Overflow)?;
            }
        }
        let graphs = Graphs::new(self.timeline);
        let mut runs: FxHashMap<u32, Ran> = FxHashMap::default();
        for ((process, stream, stack, graph, function), count) in launches {
            let ran = runs.entry(graph).or_insert_with(|| graphs.run([(graph, 1)]));
            for (&(captured, shape), &times) in &ran.kernels {
                let stack = if graph_stacks == GraphStacks::Captured { captured } else { stack };
                let leaf = self.kernel_leaf(shape);
                let place = Place { process, stream, caller: caller(stack), leaf };
                self.add(place, count.checked_mul(times).ok_or(Overflow)?)?;
            }
            // It stands for itself where it runs no kernel, or others than are known.
            if ran.kernels.is_empty() || !graphs.is_whole(graph) {
                let leaf = self.call_leaf(function);
                self.add(Place { process, stream, caller: caller(stack), leaf }, count)?;
            }
        }
        Ok(())
    }

    fn kernel_leaf(&mut self, shape: u32) -> u32 {
        let timeline = self.timeline;
        let class = OpClass { kind: DeviceOpKind::Kernel, id: timeline.kernel_of(shape), codes: [0; 3] };
        self.leaf(LeafKey::Op(class), || timeline.definitions.kernel_name(shape).to_owned())
    }

    fn calls(&mut self) -> Result<(), Overflow> {
        self.calls_of::<Launch>(|row| (row.thread, row.stream, row.stack, row.function))?;
        self.calls_of::<GraphLaunch>(|row| (row.thread, row.stream, row.stack, row.function))?;
        self.calls_of::<Api>(|row| (row.thread, 0, row.stack, row.function))?;
        self.waits()?;
        self.calls_of::<EventRecord>(|row| (row.thread, row.stream, row.stack, row.function))?;
        self.calls_of::<EventWait>(|row| (row.thread, row.stream, row.stack, row.function))
    }

    fn waits(&mut self) -> Result<(), Overflow> {
        self.calls_of::<Sync>(|row| (row.thread, row.stream, row.stack, row.function))
    }

    fn calls_of<E: Event>(&mut self, parts: fn(&E) -> (u32, u32, u32, u32)) -> Result<(), Overflow> {
        for row in E::table(&self.timeline.events).rows() {
            let (thread, stream, stack, function) = parts(&row);
            let leaf = self.call_leaf(function);
            self.add_call(thread, stream, stack, leaf, row.duration_ns())?;
        }
        Ok(())
    }

    fn samples(&mut self, value: Value) -> Result<(), Overflow> {
        for row in self.timeline.events.cpu_sample.rows() {
            let leaf = self.leaf(LeafKey::Running, || "on a processor".to_owned());
            let weight = if value == Value::Samples { 1 } else { row.weight_ns };
            self.add_call(row.thread, 0, row.stack, leaf, weight)?;
        }
        Ok(())
    }

    /// Totals of events that are not there themselves. How good the device times in them were is not known any more.
    fn rollups(&mut self, value: Value) -> Result<(), Overflow> {
        for row in self.timeline.events.rollup.rows() {
            let is_launch = matches!(row.kind, Launch::KIND | GraphLaunch::KIND);
            let is_call = is_launch || [Api::KIND, Sync::KIND, EventRecord::KIND, EventWait::KIND].contains(&row.kind);
            let is_copy = row.kind == Memcpy::KIND;
            let weight = match value {
                // Those of graphs are among the others': they run kernels.
                Value::Launches if row.kind == Launch::KIND => row.count,
                Value::Api if is_call => row.sum_ns,
                Value::Sync if row.kind == Sync::KIND => row.sum_ns,
                Value::Cpu if row.kind == CpuSample::KIND => row.sum_ns,
                Value::Samples if row.kind == CpuSample::KIND => row.count,
                Value::Gpu if row.kind == Kernel::KIND => row.sum_ns,
                Value::Gpu | Value::Copies if is_copy || row.kind == Memset::KIND => row.sum_ns,
                Value::Bytes if is_copy => row.bytes,
                _ => continue,
            };
            let definitions = &self.timeline.definitions;
            let op = |kind, id| LeafKey::Op(OpClass { kind, id, codes: [0; 3] });
            let kernel = || {
                let name = definitions.get::<KernelName>(row.kernel).map_or(0, |kernel| kernel.name);
                definitions.string(name).to_owned()
            };
            let leaf = match row.kind {
                Launch::KIND if value == Value::Launches => self.leaf(op(DeviceOpKind::Kernel, row.kernel), kernel),
                Kernel::KIND => self.leaf(op(DeviceOpKind::Kernel, row.kernel), kernel),
                Memcpy::KIND => self.leaf(op(DeviceOpKind::Memcpy, 0), || "Memcpy".to_owned()),
                Memset::KIND => self.leaf(op(DeviceOpKind::Memset, 0), || "Memset".to_owned()),
                CpuSample::KIND => self.leaf(LeafKey::Running, || "on a processor".to_owned()),
                _ => self.call_leaf(row.function),
            };
            if matches!(row.kind, Memcpy::KIND | Memset::KIND) && value != Value::Bytes {
                self.done.bounded = self.done.bounded.saturating_add(row.count);
            }
            let is_device = matches!(row.kind, Kernel::KIND | Memcpy::KIND | Memset::KIND);
            let caller = if is_device { Caller::NoCall } else { caller(row.stack) };
            self.add(Place { process: row.process, stream: 0, caller, leaf }, weight)?;
            // The row itself counts as one already.
            self.done.events = self.done.events.saturating_add(row.count.saturating_sub(1));
        }
        Ok(())
    }

    fn call_leaf(&mut self, function: u32) -> u32 {
        let definitions = &self.timeline.definitions;
        self.leaf(LeafKey::Call(function), || definitions.function_name(function).to_owned())
    }

    fn leaf(&mut self, key: LeafKey, name: impl FnOnce() -> String) -> u32 {
        let leaves = &mut self.done.leaves;
        *self.leaves.entry(key).or_insert_with(|| {
            let (kind, id) = match key {
                LeafKey::Op(OpClass { kind: DeviceOpKind::Kernel, id, .. }) => (LeafKind::Kernel, id),
                LeafKey::Op(OpClass { kind: DeviceOpKind::Memcpy, .. }) => (LeafKind::Memcpy, 0),
                LeafKey::Op(OpClass { kind: DeviceOpKind::Memset, .. }) => (LeafKind::Memset, 0),
                LeafKey::Call(id) => (LeafKind::Call, id),
                LeafKey::Running => (LeafKind::Running, 0),
            };
            leaves.push(Leaf { kind, id, name: name() });
            leaves.len() as u32 - 1
        })
    }

    fn add_call(&mut self, thread: u32, stream: u32, stack: u32, leaf: u32, weight: u64) -> Result<(), Overflow> {
        let process = self.timeline.definitions.process_of_thread(thread);
        self.add(Place { process, stream, caller: caller(stack), leaf }, weight)
    }

    fn add(&mut self, place: Place, weight: u64) -> Result<(), Overflow> {
        // A strange rollup may have counted to the end already.
        self.done.events = self.done.events.saturating_add(1);
        self.done.total = self.done.total.checked_add(weight).ok_or(Overflow)?;
        // No part of a sum that fits can overflow.
        *self.sums.entry(place).or_default() += weight;
        Ok(())
    }
}

fn caller(stack: u32) -> Caller {
    if stack == 0 { Caller::NoStack } else { Caller::Stack(stack) }
}
