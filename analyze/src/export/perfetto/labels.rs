//! The names and arguments that host calls and device work share, each looked up once before encoding.

use ktape_format::definition::{Frame, Function, Graph, KernelName, Shape, Stream, node_kind};
use ktape_format::event::{allocator, copy_kind, lifecycle_kind, memory_kind, off_cpu_reason, sync_kind, timing};
use ktape_format::{Definitions, Table};
use rustc_hash::{FxHashMap, FxHashSet};

use super::text::{Arg, ArgTable, TextId, Texts, Value, list};
use crate::timeline::Timeline;
use crate::timeline::graphs::Graphs;
use crate::timeline::names::short_kernel_name;

/// Declares the arguments' names once: the field in the code, and the text in the trace.
macro_rules! keys {
    ($($field:ident: $name:literal,)*) => {
        /// The names of arguments.
        pub(super) struct Keys { $( pub(super) $field: TextId, )* }

        impl Keys {
            pub(super) fn new(texts: &mut Texts<'_>) -> Keys {
                Keys { $( $field: texts.text($name, list::ARGUMENT), )* }
            }
        }
    };
}

// Perfetto's own views read `device` and `stream` (the tree of streams) and, for the kernel table and its details,
// `grid_size` to `process_id`; the others are for people.
keys! {
    device: "device",
    stream: "stream",
    grid_size: "grid_size",
    workgroup_size: "workgroup_size",
    thread_count: "thread_count",
    registers_per_thread: "registers_per_thread",
    shared_mem: "shared_mem",
    shared_mem_static: "shared_mem_static",
    shared_mem_dynamic: "shared_mem_dynamic",
    waves_per_multiprocessor: "waves_per_multiprocessor",
    occupancy_limit_blocks: "occupancy_limit_blocks",
    occupancy_limit_registers: "occupancy_limit_registers",
    occupancy_limit_shared_mem: "occupancy_limit_shared_mem",
    occupancy_limit_warps: "occupancy_limit_warps",
    theoretical_occupancy_pct: "sm__maximum_warps_per_active_cycle_pct",
    theoretical_warps: "sm__maximum_warps_avg_per_active_cycle",
    process_name: "process_name",
    process_id: "process_id",
    address: "address",
    allocated_bytes: "allocated_bytes",
    allocator: "allocator",
    block: "block",
    bytes: "bytes",
    category: "category",
    cause: "cause",
    cluster: "cluster",
    code: "code",
    context: "context",
    correlation: "correlation",
    count: "count",
    cpu: "cpu",
    detail: "detail",
    direction: "direction",
    event: "event",
    file: "file",
    function: "function",
    gigabytes_per_second: "gigabytes_per_second",
    graph: "graph",
    nodes: "nodes",
    kernels: "kernels",
    first_kernels: "first_kernels",
    is_whole: "all_nodes_known",
    graph_node: "graph_node",
    grid: "grid",
    kernel: "kernel",
    line: "line",
    local_bytes: "local_bytes",
    module: "module",
    peer_device: "peer_device",
    reserved_bytes: "reserved_bytes",
    result: "result",
    runnable_ns: "runnable_ns",
    sequence: "sequence",
    source_memory: "source_memory",
    target_memory: "target_memory",
    timing: "timing",
    value: "value",
    waits_for: "waits_for",
    weight_ns: "weight_ns",
}

/// The texts of the codes of an enumeration.
pub(super) struct Codes(Vec<TextId>, TextId);

impl Codes {
    fn new(names: &[&str], texts: &mut Texts<'_>, list: u8) -> Codes {
        let unknown = texts.text("unknown", list);
        Codes(names.iter().map(|name| texts.text(name, list)).collect(), unknown)
    }

    pub(super) fn of(&self, code: u8) -> TextId {
        self.0.get(code as usize).copied().unwrap_or(self.1)
    }
}

/// Texts by the id of a definition; that of 0 stands for "none".
pub(super) struct ById(Vec<TextId>);

impl ById {
    pub(super) fn of(&self, id: u32) -> TextId {
        self.0.get(id as usize).copied().unwrap_or(self.0[0])
    }

    /// As an argument, unless there is none.
    pub(super) fn arg(&self, name: TextId, id: u32) -> Option<Arg> {
        (id != 0).then(|| Arg { name, value: Value::Text(self.of(id)) })
    }
}

/// Everything that encoding an event looks up.
pub(super) struct Labels<'a> {
    pub(super) definitions: &'a Definitions,
    pub(super) keys: Keys,
    pub(super) functions: ById,
    pub(super) frames: ById,
    /// Short kernel names by kernel.
    pub(super) kernels: ById,
    /// The grid of a shape, in words.
    pub(super) grids: ById,
    /// The block of a shape, in words.
    pub(super) blocks: ById,
    /// The cluster of a shape, in words.
    pub(super) clusters: ById,
    pub(super) allocators: Codes,
    pub(super) copies: Codes,
    pub(super) memories: Codes,
    pub(super) syncs: Codes,
    pub(super) timings: Codes,
    pub(super) lifecycles: Codes,
    pub(super) off_cpu_reasons: Codes,
    pub(super) args: ArgTable,
    /// What launched graphs run, where that is on no track of its own.
    graph_contents: FxHashMap<u32, GraphContents>,
}

/// What a graph runs, as arguments.
struct GraphContents {
    nodes: u64,
    kernels: u64,
    /// The names of the first ones.
    first: TextId,
    is_whole: bool,
}

impl<'a> Labels<'a> {
    pub(super) fn new(timeline: &'a Timeline, texts: &mut Texts<'_>) -> Labels<'a> {
        let definitions = &timeline.definitions;
        let both = list::EVENT_NAME | list::VALUE;
        let mut grids = vec![texts.text("unknown", list::VALUE)];
        let mut blocks = grids.clone();
        for shape in definitions.shapes.rows() {
            grids.push(texts.text(&triple(shape.grid_x, shape.grid_y, shape.grid_z), list::VALUE));
            blocks.push(texts.text(&triple(shape.block_x, shape.block_y, shape.block_z), list::VALUE));
        }
        let clusters = definitions
            .shapes
            .rows()
            .map(|shape| texts.text(&triple(shape.cluster_x, shape.cluster_y, shape.cluster_z), list::VALUE));
        let clusters = std::iter::once(grids[0]).chain(clusters).collect();
        for string in definitions.frames.file.iter().chain(&definitions.kernels.module) {
            texts.string(*string, list::VALUE);
        }
        Labels {
            definitions,
            keys: Keys::new(texts),
            functions: strings(
                definitions.functions.rows().map(|row: Function| row.name),
                "(unknown call)",
                if timeline.host_only { both } else { list::EVENT_NAME },
                texts,
            ),
            frames: strings(
                definitions.frames.rows().map(|row: Frame| row.name),
                "(unknown frame)",
                list::EVENT_NAME,
                texts,
            ),
            kernels: {
                let short = |row: KernelName| short_kernel_name(definitions.string(row.name));
                let names = std::iter::once("(unknown kernel)".to_owned()).chain(definitions.kernels.rows().map(short));
                ById(names.map(|name| texts.text(&name, both)).collect())
            },
            grids: ById(grids),
            blocks: ById(blocks),
            clusters: ById(clusters),
            allocators: Codes::new(allocator::NAMES, texts, list::VALUE),
            copies: Codes::new(copy_kind::NAMES, texts, list::VALUE),
            memories: Codes::new(memory_kind::NAMES, texts, list::VALUE),
            syncs: Codes::new(sync_kind::NAMES, texts, list::VALUE),
            timings: Codes::new(timing::NAMES, texts, list::VALUE),
            lifecycles: Codes::new(lifecycle_kind::NAMES, texts, list::EVENT_NAME),
            off_cpu_reasons: Codes::new(off_cpu_reason::NAMES, texts, list::EVENT_NAME),
            args: ArgTable::new(&used_args(timeline), texts),
            graph_contents: graph_contents(timeline, texts),
        }
    }

    /// What a launch of this graph runs.
    pub(super) fn contents(&self, graph: u32) -> impl Iterator<Item = Arg> {
        let contents = self.graph_contents.get(&graph).into_iter();
        contents.flat_map(|contents| {
            let keys = &self.keys;
            let is_cut = (!contents.is_whole).then_some(Arg { name: keys.is_whole, value: Value::Uint(0) });
            [
                Arg { name: keys.nodes, value: Value::Uint(contents.nodes) },
                Arg { name: keys.kernels, value: Value::Uint(contents.kernels) },
                Arg { name: keys.first_kernels, value: Value::Text(contents.first) },
            ]
            .into_iter()
            .chain(is_cut)
        })
    }

    /// The kernel of a shape, in short.
    pub(super) fn kernel_of(&self, shape: u32) -> TextId {
        self.kernels.of(self.definitions.get::<Shape>(shape).map_or(0, |shape| shape.kernel))
    }

    /// A stream's number as the driver has it.
    pub(super) fn stream(&self, stream: u32) -> Option<Arg> {
        let native = self.definitions.get::<Stream>(stream)?.native;
        Some(Arg { name: self.keys.stream, value: Value::Uint(native) })
    }

    /// A graph's number as the driver has it.
    pub(super) fn graph(&self, graph: u32) -> Option<Arg> {
        let native = self.definitions.get::<Graph>(graph)?.native;
        Some(Arg { name: self.keys.graph, value: Value::Uint(native) })
    }
}

/// `64 x 1 x 1`.
pub(super) fn triple(x: u32, y: u32, z: u32) -> String {
    format!("{x} x {y} x {z}")
}

fn strings(ids: impl Iterator<Item = u32>, none: &str, list: u8, texts: &mut Texts<'_>) -> ById {
    let none = texts.text(none, list);
    let mut by_id = vec![none];
    by_id.extend(ids.map(|id| match texts.string(id, list) {
        0 => none,
        id => id,
    }));
    ById(by_id)
}

/// What each launched graph runs; nothing where the device's own record has it.
fn graph_contents(timeline: &Timeline, texts: &mut Texts<'_>) -> FxHashMap<u32, GraphContents> {
    /// How many kernels are named: a graph may have thousands.
    const NAMED: usize = 8;
    let graphs = Graphs::new(timeline);
    let used: FxHashSet<u32> = timeline.events.graph_launch.graph.iter().copied().collect();
    let mut contents = FxHashMap::default();
    for graph in used.into_iter().filter(|graph| timeline.host_only && !graphs.nodes(*graph).is_empty()) {
        let nodes = graphs.nodes(graph);
        let kernels = graphs.run([(graph, 1)]).kernels.into_values().fold(0, u64::saturating_add);
        let of_kernels = nodes.iter().filter(|node| node.kind == node_kind::KERNEL).take(NAMED);
        let mut names: Vec<String> =
            of_kernels.map(|node| short_kernel_name(timeline.definitions.kernel_name(node.shape))).collect();
        if kernels > names.len() as u64 {
            names.push("…".to_owned());
        }
        let first = texts.text(&names.join(", "), list::VALUE);
        let is_whole = graphs.is_whole(graph);
        contents.insert(graph, GraphContents { nodes: nodes.len() as u64, kernels, first, is_whole });
    }
    contents
}

/// The string ids of all further arguments.
fn used_args(timeline: &Timeline) -> FxHashSet<u32> {
    let events = &timeline.events;
    let columns = [
        &events.launch.args,
        &events.graph_launch.args,
        &events.api.args,
        &events.kernel.args,
        &events.memcpy.args,
        &events.memset.args,
        &events.sync.args,
        &events.event_record.args,
        &events.event_wait.args,
        &events.slice.args,
        &events.range.args,
        &events.mark.args,
    ];
    columns.into_iter().flatten().copied().collect()
}
