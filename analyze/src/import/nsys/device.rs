//! What the devices did: kernels, copies, memsets, and graphs that were recorded as a whole.
//!
//! Written before the host's calls, which need to know of each correlation what work it has: that decides what kind of
//! call it was, and is all that stays in memory of the work.

use ktape_format::Sink;
use ktape_format::definition::{Graph, KernelName, Shape};
use ktape_format::event::{Kernel, Memcpy, Memset, Range, copy_kind, memory_kind, timing};
use ktape_format::table::DefinitionKind;
use rustc_hash::FxHashMap;
use serde_json::Map;

use super::database::{Columns, Row};
use super::error::Fault;
use super::places::Place;
use super::{CallKey, Importer};
use crate::import::Progress;
use crate::import::calls::Keep as _;
use crate::timeline::audit::stream_order::StreamOrder;

/// The device work of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Submitted {
    /// Where the first kernel ran, or without one the first other work.
    pub(super) stream: u32,
    /// The first kernel's; 0 where there is none.
    pub(super) shape: u32,
    /// The graph that it belongs to.
    pub(super) graph: u32,
    /// How many kernels, copies and memsets there are.
    pub(super) operations: u32,
    /// Whether it belongs to a graph.
    pub(super) in_graph: bool,
}

/// Device work by call.
pub(super) type SubmittedBy = FxHashMap<CallKey, Submitted>;

// All device work begins with the columns that `work` names.
const START: usize = 0;
const END: usize = 1;
const DEVICE: usize = 2;
const CONTEXT: usize = 3;
const STREAM: usize = 4;
const CORRELATION: usize = 5;
const PROCESS: usize = 6;
const GRAPH: usize = 7;
const NODE: usize = 8;

/// The columns of a table of device work: those that all have, and its own.
macro_rules! work {
    ($($own:literal),* $(,)?) => {
        &[
            "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId", "graphNodeId",
            $($own),*
        ]
    };
}

const KERNEL: Columns<'_> = Columns {
    known: work![
        "mangledName",
        "demangledName",
        "gridX",
        "gridY",
        "gridZ",
        "blockX",
        "blockY",
        "blockZ",
        "clusterX",
        "clusterY",
        "clusterZ",
        "staticSharedMemory",
        "dynamicSharedMemory",
        "registersPerThread",
        "localMemoryPerThread",
    ],
    dropped: &["shortName", "gridId"],
};

const MEMCPY: Columns<'_> = Columns {
    known: work!["bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "name"],
    dropped: &["deprecatedSrcId"],
};

const MEMSET: Columns<'_> = Columns { known: work!["bytes", "value", "memKind"], dropped: &[] };

const GRAPH_TRACE: Columns<'_> = Columns { known: work![], dropped: &[] };

/// What all device work has.
struct Common {
    start_ns: i64,
    duration_ns: u64,
    correlation: u64,
    process: u32,
    place: Place,
    stream: u32,
    graph: u32,
    graph_node: u64,
}

impl<S: Sink, P: FnMut(Progress)> Importer<'_, '_, S, P> {
    /// Writes the device work. Returns it by call, and the ranges of whole graphs, which are written with all ranges.
    pub(super) fn device_work(&mut self) -> Result<(SubmittedBy, Vec<Range>), Fault> {
        let mut submitted = SubmittedBy::default();
        self.kernels(&mut submitted)?;
        self.copies(&mut submitted)?;
        self.memsets(&mut submitted)?;
        let mut operations = std::mem::take(&mut self.operations);
        operations.sort_unstable();
        let mut order = StreamOrder::default();
        for (start_ns, stream, duration_ns, correlation) in operations {
            order.see(stream, start_ns, duration_ns, correlation);
        }
        self.summary.take_disorder(order);
        let graphs = self.graphs(&mut submitted)?;
        self.summary.unmatched = submitted.values().map(|work| u64::from(work.operations)).sum();
        // What has no correlation has no call, but was counted.
        submitted.retain(|(_, correlation), _| *correlation != 0);
        Ok((submitted, graphs))
    }

    fn common(&mut self, row: &Row<'_>) -> Result<Common, Fault> {
        // All that can be wrong with the row comes first: one that is skipped must define nothing.
        let (start_ns, end_ns) = (row.need(START)?, row.need(END)?);
        let (device, stream) = (row.need_u32(DEVICE)?, row.need(STREAM)? as u64);
        let context = row.int(CONTEXT)?.unwrap_or(0) as u64;
        let correlation = row.id(CORRELATION)?.unwrap_or(0);
        let key = self.process_key(row.int(PROCESS)?);
        let graph = row.id(GRAPH)?.unwrap_or(0);
        let graph_node = row.id(NODE)?.unwrap_or(0);
        let place = Place { process: key, device, context, stream };
        let duration_ns = self.duration(start_ns, end_ns);
        let start_ns = self.time(start_ns)?;
        let (process, stream) = (self.process(key)?, self.stream(place)?);
        let graph = match graph {
            0 => 0,
            native => self.sink.define(Graph { process, native, earlier: 0 })?,
        };
        Ok(Common { start_ns, duration_ns, correlation, process, place, stream, graph, graph_node })
    }

    fn kernels(&mut self, submitted: &mut SubmittedBy) -> Result<(), Fault> {
        let mut kernels: Vec<(u32, Kernel)> = Vec::new();
        let mut names = FxHashMap::default();
        self.each("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL, "", |me, row| {
            let (mangled, demangled) = (row.int(9)?, row.int(10)?);
            let mut numbers = [0; 13];
            for (at, number) in numbers.iter_mut().enumerate() {
                *number = row.u32(11 + at)?.unwrap_or(0);
            }
            let common = me.common(row)?;
            let kernel = match names.get(&(mangled, demangled)) {
                Some(kernel) => *kernel,
                None => {
                    let kernel = me.kernel_name(mangled, demangled)?;
                    names.insert((mangled, demangled), kernel);
                    kernel
                }
            };
            let [grid_x, grid_y, grid_z, block_x, block_y, block_z, cluster_x, cluster_y, cluster_z, ..] = numbers;
            let [.., static_shared_bytes, dynamic_shared_bytes, registers, local_bytes] = numbers;
            let shape = me.sink.define(Shape {
                kernel,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                cluster_x,
                cluster_y,
                cluster_z,
                static_shared_bytes,
                dynamic_shared_bytes,
                shared_bytes: 0,
                registers,
                local_bytes,
            })?;
            let Common { start_ns, duration_ns, correlation, process, stream, graph, graph_node, .. } = common;
            let args = me.args(row, Map::new())?;
            let timing = timing::MEASURED;
            let kernel = Kernel { start_ns, duration_ns, correlation, stream, shape, graph, graph_node, timing, args };
            me.operations.push((start_ns, stream, duration_ns, correlation));
            kernels.push((process, kernel));
            Ok(())
        })?;
        kernels.sort_by_key(|(_, kernel)| kernel.start_ns);
        for (process, kernel) in kernels {
            let Kernel { stream, shape, graph, graph_node, .. } = kernel;
            let work = submitted.entry((process, kernel.correlation)).or_insert(Submitted {
                stream,
                shape,
                graph,
                ..Submitted::default()
            });
            work.operations = work.operations.saturating_add(1);
            work.in_graph |= graph != 0 || graph_node != 0;
            self.event(kernel)?;
        }
        Ok(())
    }

    /// The kernel with a mangled name, or where there is none a readable one; that stays as the kernel's property.
    fn kernel_name(&mut self, mangled: Option<i64>, demangled: Option<i64>) -> Result<u32, Fault> {
        let readable = demangled.map_or(Ok(0), |number| self.string(number))?;
        let name = match mangled.map_or(Ok(0), |number| self.string(number))? {
            0 => readable,
            name => name,
        };
        let kernel = self.sink.define(KernelName { name, module: 0 })?;
        if readable != name {
            let readable = demangled.and_then(|number| self.strings.text(number)).unwrap_or("");
            self.sink.property(DefinitionKind::Kernel as u16, kernel, "demangled_name", readable)?;
        }
        Ok(kernel)
    }

    fn other_work(submitted: &mut SubmittedBy, common: &Common) {
        let &Common { stream, graph, graph_node, .. } = common;
        let first = Submitted { stream, graph, ..Submitted::default() };
        let work = submitted.entry((common.process, common.correlation)).or_insert(first);
        work.operations = work.operations.saturating_add(1);
        work.in_graph |= graph != 0 || graph_node != 0;
    }

    fn copies(&mut self, submitted: &mut SubmittedBy) -> Result<(), Fault> {
        let mut copies: Vec<Memcpy> = Vec::new();
        self.each("CUPTI_ACTIVITY_KIND_MEMCPY", MEMCPY, "", |me, row| {
            let (bytes, kind) = (row.need(9)? as u64, row.int(10)?.unwrap_or(0));
            let (source, target) = (row.int(11)?, row.int(12)?);
            let ends = [row.u32(13)?, row.u32(14)?];
            let name = row.plain(15)?.unwrap_or_default();
            let common = me.common(row)?;
            let here = common.place.device;
            let peer = ends.into_iter().flatten().find(|device| *device != here && *device != u32::MAX);
            let peer_device = match peer {
                Some(device) => me.device(common.place.process, device)?,
                None => 0,
            };
            let (kind, unified) = copy_of(kind);
            let (mut source_memory, mut target_memory) = (memory_of(source), memory_of(target));
            if unified {
                (source_memory, target_memory) = (memory_kind::MANAGED, memory_kind::MANAGED);
            }
            let name = me.sink.string(&name)?;
            let args = me.args(row, Map::new())?;
            Self::other_work(submitted, &common);
            let Common { start_ns, duration_ns, correlation, stream, graph, graph_node, .. } = common;
            me.operations.push((start_ns, stream, duration_ns, correlation));
            copies.push(Memcpy {
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
                timing: timing::MEASURED,
                name,
                args,
            });
            Ok(())
        })?;
        copies.sort_by_key(|copy| copy.start_ns);
        copies.into_iter().try_for_each(|copy| self.event(copy))
    }

    fn memsets(&mut self, submitted: &mut SubmittedBy) -> Result<(), Fault> {
        let mut memsets: Vec<Memset> = Vec::new();
        self.each("CUPTI_ACTIVITY_KIND_MEMSET", MEMSET, "", |me, row| {
            let (bytes, value) = (row.need(9)? as u64, row.int(10)?.unwrap_or(0) as u32);
            let target_memory = memory_of(row.int(11)?);
            let common = me.common(row)?;
            let args = me.args(row, Map::new())?;
            Self::other_work(submitted, &common);
            let Common { start_ns, duration_ns, correlation, stream, graph, graph_node, .. } = common;
            me.operations.push((start_ns, stream, duration_ns, correlation));
            memsets.push(Memset {
                start_ns,
                duration_ns,
                correlation,
                stream,
                bytes,
                value,
                target_memory,
                graph,
                graph_node,
                timing: timing::MEASURED,
                name: 0,
                args,
            });
            Ok(())
        })?;
        memsets.sort_by_key(|memset| memset.start_ns);
        memsets.into_iter().try_for_each(|memset| self.event(memset))
    }

    /// A graph recorded as a whole is a range on its stream: its time on the device is seen, and nothing is called a
    /// kernel that was many.
    fn graphs(&mut self, submitted: &mut SubmittedBy) -> Result<Vec<Range>, Fault> {
        let mut graphs = Vec::new();
        self.each("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", GRAPH_TRACE, "", |me, row| {
            let native = row.id(GRAPH)?.unwrap_or(0);
            let common = me.common(row)?;
            let (name, category) = (me.sink.string(&format!("CUDA graph {native}"))?, me.sink.string("CUDA graph")?);
            let args = me.args(row, Map::new())?;
            let Common { start_ns, duration_ns, process, correlation, stream, graph, .. } = common;
            let work = submitted.entry((process, correlation)).or_default();
            if work.operations == 0 {
                (work.stream, work.graph) = (stream, graph);
            }
            work.in_graph = true;
            graphs.push(Range { start_ns, duration_ns, stream, name, category, args, ..Range::default() });
            Ok(())
        })?;
        Ok(graphs)
    }
}

/// The direction of a copy by Nsight's number, and whether unified memory made it. Up to 10 the numbers are CUPTI's.
fn copy_of(kind: i64) -> (u8, bool) {
    match kind {
        0..=10 => (kind as u8, false),
        11 => (copy_kind::HTOD, true),
        12 => (copy_kind::DTOH, true),
        13 => (copy_kind::DTOD, true),
        _ => (copy_kind::UNKNOWN, false),
    }
}

/// The kind of memory by Nsight's number, which counts from 0 and has "unknown" last.
pub(super) fn memory_of(kind: Option<i64>) -> u8 {
    match kind {
        Some(kind @ 0..=6) => kind as u8 + memory_kind::PAGEABLE,
        _ => memory_kind::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_copies_and_memory() {
        assert_eq!(copy_of(1), (copy_kind::HTOD, false));
        assert_eq!(copy_of(10), (copy_kind::PTOP, false));
        assert_eq!(copy_of(12), (copy_kind::DTOH, true));
        assert_eq!(copy_of(-1), (copy_kind::UNKNOWN, false));
        assert_eq!(memory_of(Some(0)), memory_kind::PAGEABLE);
        assert_eq!(memory_of(Some(2)), memory_kind::DEVICE);
        assert_eq!(memory_of(Some(6)), memory_kind::MANAGED_STATIC);
        assert_eq!([memory_of(Some(7)), memory_of(None)], [memory_kind::UNKNOWN; 2]);
    }
}
