//! What a trace holds, in figures: the answer of `analyze info`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ktape_format::definition::{Context, Device, KernelName, Process, Stream, Thread, property};
use ktape_format::event::{Kernel, Launch};
use ktape_format::table::DefinitionKind;
use ktape_format::{Row as _, Table};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::graphs::Graphs;
use super::{DeviceOp, DeviceOpKind, Timeline, audit::Audit, intervals::union_ns, names};

/// A trace in figures. The field names are the keys of `analyze info --json`.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// From the first event's start to the last one's end.
    pub duration_ns: u64,
    /// Kind to number of events; all kinds.
    pub events: BTreeMap<&'static str, usize>,
    /// The processes in order of definition.
    pub processes: Vec<ProcessSummary>,
    /// The devices that did work or have properties, in order of definition.
    pub devices: Vec<DeviceSummary>,
    /// The streams that did work, in order of definition.
    pub streams: Vec<StreamSummary>,
    /// What an importer did not keep, by description.
    pub not_kept: BTreeMap<String, u64>,
}

/// A process.
#[derive(Debug, Serialize)]
pub struct ProcessSummary {
    /// Its number.
    pub pid: i64,
    /// Its name; empty if not known.
    pub name: String,
    /// Its rank in a distributed job.
    pub rank: Option<String>,
    /// How many ranks the job has.
    pub world_size: Option<String>,
    /// The container that it is in.
    pub container: Option<String>,
    /// The Python that it runs, or why it has no Python stacks.
    pub python: Option<String>,
    /// How many of its threads are on the tape.
    pub threads: usize,
}

/// A device.
#[derive(Debug, Serialize)]
pub struct DeviceSummary {
    /// Its number in its process or host.
    pub index: u32,
    /// Its name; empty if not known.
    pub name: String,
    /// The process that numbers it so; absent where the host does.
    pub pid: Option<i64>,
    /// The union of all its work; absent where nothing was recorded of the device, but only calls.
    pub busy_ns: Option<u64>,
    /// From the start of its first operation to the end of its last; absent likewise.
    pub span_ns: Option<u64>,
    /// How many kernels it ran.
    pub kernels: usize,
    /// How many copies and memsets.
    pub copies: usize,
    /// What else is known of it.
    pub properties: BTreeMap<String, String>,
}

/// A stream.
#[derive(Debug, Serialize)]
pub struct StreamSummary {
    /// The device's number.
    pub device: u32,
    /// The context's number.
    pub context: u64,
    /// The stream's number.
    pub stream: u64,
    /// The process.
    pub pid: Option<i64>,
    /// How many operations it ran.
    pub operations: usize,
    /// The union of its work; absent where nothing was recorded of the device, but only calls.
    pub busy_ns: Option<u64>,
}

/// A kernel with all its calls.
#[derive(Debug, Default, Serialize)]
pub struct KernelSummary {
    /// Its full name, demangled.
    pub name: String,
    /// How often it ran.
    pub calls: u64,
    /// How often it was launched by a call of its own; those that a graph has run are none.
    pub launches: u64,
    /// How often launches of graphs ran it, as far as their nodes are known; 0 where there are device times, as it is among the
    /// calls there.
    pub graph_launches: u64,
    /// The sum of its durations.
    pub total_ns: u64,
    /// The same, with the impossible ones cut ([`Audit::repaired_ns`]).
    pub repaired_ns: u64,
}

impl Timeline {
    /// This trace in figures.
    pub fn summary(&self) -> Summary {
        let ops = self.device_ops();
        let pid_of = |process: u32| self.definitions.get::<Process>(process).map(|process| process.pid);
        let not_kept = self.definitions.property(0, 0, property::NOT_KEPT);
        Summary {
            duration_ns: self.span_ns().map_or(0, |(start, end)| end.abs_diff(start)),
            events: self.events.counts().into_iter().collect(),
            processes: self.process_summaries(),
            devices: self.device_summaries(&ops, pid_of),
            streams: self.stream_summaries(&ops, pid_of),
            not_kept: not_kept.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default(),
        }
    }

    /// The kernels by repaired total time, longest first, so that no impossible duration hides them; those of equal
    /// time by launches, those of graphs among them, most first, then by name.
    pub fn kernel_summaries(&self, audit: &Audit) -> Vec<KernelSummary> {
        let kernel_of = |shape: u32| self.kernel_of(shape);
        let mut by_kernel = FxHashMap::<u32, KernelSummary>::default();
        for (index, row) in (0..).zip(self.events.kernel.rows()) {
            let summary = by_kernel.entry(kernel_of(row.shape)).or_default();
            let left_ns = audit.repaired_ns(DeviceOpKind::Kernel, index).unwrap_or(row.duration_ns);
            summary.calls += 1;
            summary.total_ns = summary.total_ns.saturating_add(row.duration_ns);
            summary.repaired_ns = summary.repaired_ns.saturating_add(left_ns);
        }
        for row in self.events.launch.rows() {
            by_kernel.entry(kernel_of(row.shape)).or_default().launches += 1;
        }
        for (&(_, shape), &count) in &self.ran_by_graphs(&Graphs::new(self)).kernels {
            let launches = &mut by_kernel.entry(kernel_of(shape)).or_default().graph_launches;
            *launches = launches.saturating_add(count);
        }
        for row in self.events.rollup.rows() {
            let summary = match row.kind {
                Launch::KIND | Kernel::KIND => by_kernel.entry(row.kernel).or_default(),
                _ => continue,
            };
            if row.kind == Launch::KIND {
                summary.launches = summary.launches.saturating_add(row.count);
            } else {
                summary.calls = summary.calls.saturating_add(row.count);
                summary.total_ns = summary.total_ns.saturating_add(row.sum_ns);
                summary.repaired_ns = summary.repaired_ns.saturating_add(row.sum_ns);
            }
        }
        // One name may stand in several modules, and belong to several handles.
        let mut kernels = BTreeMap::<String, KernelSummary>::new();
        // What was launched and did not run (a graph was being captured) has no time that it could be here by, unless nothing
        // has one.
        for (kernel, part) in by_kernel.into_iter().filter(|(_, part)| part.calls > 0 || self.host_only) {
            let name = self.definitions.get::<KernelName>(kernel).map_or(0, |kernel| kernel.name);
            let name = names::demangled(self.definitions.string(name)).into_owned();
            let summary = kernels.entry(name).or_default();
            summary.calls += part.calls;
            summary.launches += part.launches;
            summary.graph_launches = summary.graph_launches.saturating_add(part.graph_launches);
            summary.total_ns = summary.total_ns.saturating_add(part.total_ns);
            summary.repaired_ns = summary.repaired_ns.saturating_add(part.repaired_ns);
        }
        let named = kernels.into_iter().map(|(name, summary)| KernelSummary { name, ..summary });
        let mut kernels: Vec<KernelSummary> = named.collect();
        kernels
            .sort_by_key(|kernel| Reverse((kernel.repaired_ns, kernel.launches.saturating_add(kernel.graph_launches))));
        kernels
    }

    fn process_summaries(&self) -> Vec<ProcessSummary> {
        let mut threads = FxHashMap::<u32, usize>::default();
        self.definitions.threads.rows().for_each(|Thread { process, .. }| *threads.entry(process).or_default() += 1);
        let processes = self.definitions.processes.rows().zip(1_u32..);
        let kind = DefinitionKind::Process as u16;
        processes
            .map(|(process, id)| ProcessSummary {
                pid: process.pid,
                name: self.definitions.property(kind, id, property::NAME).unwrap_or_default().to_owned(),
                rank: self.definitions.property(kind, id, property::RANK).map(str::to_owned),
                world_size: self.definitions.property(kind, id, property::WORLD_SIZE).map(str::to_owned),
                container: self.definitions.property(kind, id, property::CONTAINER).map(str::to_owned),
                python: self.definitions.property(kind, id, property::PYTHON).map(str::to_owned),
                threads: threads.get(&id).copied().unwrap_or(0),
            })
            .collect()
    }

    fn device_summaries(&self, ops: &[DeviceOp], pid_of: impl Fn(u32) -> Option<i64>) -> Vec<DeviceSummary> {
        let mut by_device = FxHashMap::<u32, Vec<&DeviceOp>>::default();
        ops.iter().for_each(|op| by_device.entry(op.device).or_default().push(op));
        let devices = self.definitions.devices.rows().zip(1_u32..);
        devices
            .map(|(Device { process, index, .. }, id)| {
                let ops = by_device.get(&id).map(Vec::as_slice).unwrap_or_default();
                let kernels = ops.iter().filter(|op| op.kind == DeviceOpKind::Kernel).count();
                let is_recorded = ops.is_empty() || ops.iter().any(|op| op.is_of_device());
                let end = ops.iter().map(|op| op.end_ns).max();
                let span_ns = ops.first().zip(end).map_or(0, |(first, end)| end.abs_diff(first.start_ns));
                let mut properties: BTreeMap<String, String> = self
                    .definitions
                    .properties_of(DefinitionKind::Device as u16, id)
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .collect();
                DeviceSummary {
                    index,
                    name: properties.remove(property::NAME).unwrap_or_default(),
                    pid: pid_of(process),
                    busy_ns: is_recorded.then(|| union_ns(ops.iter().map(|op| (op.start_ns, op.end_ns)))),
                    span_ns: is_recorded.then_some(span_ns),
                    kernels,
                    copies: ops.len() - kernels,
                    properties,
                }
            })
            .collect()
    }

    fn stream_summaries(&self, ops: &[DeviceOp], pid_of: impl Fn(u32) -> Option<i64>) -> Vec<StreamSummary> {
        let mut by_stream = BTreeMap::<u32, Vec<&DeviceOp>>::new();
        ops.iter().for_each(|op| by_stream.entry(op.stream).or_default().push(op));
        by_stream
            .into_iter()
            .map(|(id, work)| {
                let stream = self.definitions.get::<Stream>(id).unwrap_or_default();
                let context = self.definitions.get::<Context>(stream.context).unwrap_or_default();
                StreamSummary {
                    device: self.definitions.get::<Device>(context.device).unwrap_or_default().index,
                    context: context.native,
                    stream: stream.native,
                    pid: pid_of(context.process),
                    operations: work.len(),
                    busy_ns: work
                        .iter()
                        .any(|op| op.is_of_device())
                        .then(|| union_ns(work.iter().map(|op| (op.start_ns, op.end_ns)))),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::Shape;
    use ktape_format::event::Kernel;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    #[test]
    fn a_kernel_of_two_modules_is_one() {
        let mut memory = Memory::default();
        let (Ok(mangled), Ok(plain)) = (memory.string("_Z1kPf"), memory.string("k(float*)"));
        for (name, module) in [(mangled, 0), (mangled, plain), (plain, 0)] {
            let Ok(kernel) = memory.define(KernelName { name, module });
            let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
            let Ok(()) = memory.event(Kernel { duration_ns: 5, shape, ..Kernel::default() });
        }
        let kernels = Timeline::new(memory.definitions, memory.events).kernel_summaries(&Audit::default());
        assert_eq!(kernels.len(), 1);
        assert_eq!((&*kernels[0].name, kernels[0].calls, kernels[0].total_ns), ("k(float*)", 3, 15));
    }
}
