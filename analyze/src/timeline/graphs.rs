//! What launches of graphs run, where the tape says which nodes a graph has and not what the device did.
//!
//! A node that is a graph runs all of that one, so launches are handed down from each graph to its children. A child is defined
//! before the graph that it is part of, so one pass from the last graph to the first does it, in time that grows with the
//! nodes and not with what they come to. A child that is defined later is a damaged tape's, and counts as not known.

use std::cell::Cell;
use std::collections::BTreeMap;

use ktape_format::definition::{GraphNode, Shape, node_kind};
use ktape_format::event::{GraphLaunch, Rollup};
use ktape_format::{Row as _, Table as _};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Timeline;

/// The nodes of graphs, by graph.
pub(crate) struct Graphs {
    nodes: Vec<GraphNode>,
    /// Where the nodes of each graph are among them.
    ranges: FxHashMap<u32, std::ops::Range<usize>>,
    whole: FxHashSet<u32>,
    /// Nodes that may still be looked at.
    steps: Cell<u64>,
}

/// How many nodes are looked at. No recording comes near it; a made-up tape whose graphs lie in graphs by the thousand would.
const MOST_STEPS: u64 = 1 << 28;

/// What many launches of graphs come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ran {
    /// How often each kernel ran, by the stack that captured or added it and the kernel's shape.
    pub(crate) kernels: BTreeMap<(u32, u32), u64>,
}

impl Graphs {
    /// The graphs of a trace.
    pub(crate) fn new(timeline: &Timeline) -> Graphs {
        let nodes = timeline.definitions.graph_nodes.rows();
        // 0 is no graph.
        let mut nodes: Vec<GraphNode> = nodes.filter(|node| node.graph != 0).collect();
        nodes.sort_by_key(|node| (node.graph, node.index));
        // A graph never changes, but a tape that is made of many may tell of it more than once: the last time counts.
        nodes.dedup_by(|next, last| {
            let is_same = (next.graph, next.index) == (last.graph, last.index);
            if is_same {
                *last = *next;
            }
            is_same
        });
        let mut ranges = FxHashMap::default();
        let mut begin = 0;
        for graph in nodes.chunk_by(|one, next| one.graph == next.graph) {
            ranges.insert(graph[0].graph, begin..begin + graph.len());
            begin += graph.len();
        }
        Graphs { whole: whole(&nodes), nodes, ranges, steps: Cell::new(MOST_STEPS) }
    }

    /// The nodes of a graph, by number; none of one that the tape does not tell of.
    pub(crate) fn nodes(&self, graph: u32) -> &[GraphNode] {
        self.ranges.get(&graph).map_or(&[], |range| &self.nodes[range.clone()])
    }

    /// What so many launches of these graphs run; nothing, once too much was asked for.
    pub(crate) fn run(&self, launches: impl IntoIterator<Item = (u32, u64)>) -> Ran {
        let mut open = BTreeMap::<u32, u64>::new();
        let add = |open: &mut BTreeMap<u32, u64>, graph, count: u64| {
            let sum = open.entry(graph).or_default();
            *sum = sum.saturating_add(count);
        };
        launches.into_iter().for_each(|(graph, count)| add(&mut open, graph, count));
        let mut ran = Ran::default();
        while let Some((graph, count)) = open.pop_last() {
            let nodes = self.nodes(graph);
            let Some(left) = self.steps.get().checked_sub(nodes.len() as u64 + 1) else { return Ran::default() };
            self.steps.set(left);
            for node in nodes {
                match node.kind {
                    node_kind::KERNEL => {
                        let sum = ran.kernels.entry((node.stack, node.shape)).or_default();
                        *sum = sum.saturating_add(count);
                    }
                    node_kind::GRAPH if node.child < graph => add(&mut open, node.child, count),
                    _ => {}
                }
            }
        }
        ran
    }

    /// Whether it is known of all nodes of a graph what they run.
    pub(crate) fn is_whole(&self, graph: u32) -> bool {
        self.whole.contains(&graph)
    }
}

/// The graphs of which all nodes are known, those of graphs in them too.
fn whole(nodes: &[GraphNode]) -> FxHashSet<u32> {
    let mut whole = FxHashSet::default();
    for nodes in nodes.chunk_by(|one, next| one.graph == next.graph) {
        let is_known = |node: &GraphNode| match node.kind {
            node_kind::UNKNOWN | node_kind::CONDITIONAL => false,
            // Children come first.
            node_kind::GRAPH => whole.contains(&node.child),
            _ => true,
        };
        if nodes.iter().all(is_known) {
            whole.insert(nodes[0].graph);
        }
    }
    whole
}

/// The graph of a row of totals, and how many of its launches ran it.
pub(crate) fn ran_of(row: Rollup) -> (u32, u64) {
    (row.graph, row.count.saturating_sub(row.failed))
}

impl Timeline {
    /// What all launches of graphs that succeeded run, if that is not on the tape as work of the device.
    pub(crate) fn ran_by_graphs(&self, graphs: &Graphs) -> Ran {
        let launches = self.events.graph_launch.rows().filter(|row| row.result == 0);
        let launches = launches.map(|row| (row.graph, 1)).chain(self.rolled_up_graphs().map(ran_of));
        graphs.run(launches.filter(|_| self.host_only))
    }

    /// The launches of graphs that are only there added up.
    pub(crate) fn rolled_up_graphs(&self) -> impl Iterator<Item = Rollup> {
        self.events.rollup.rows().filter(|row| row.kind == GraphLaunch::KIND)
    }

    /// The kernel of a shape.
    pub(crate) fn kernel_of(&self, shape: u32) -> u32 {
        self.definitions.get::<Shape>(shape).map_or(0, |shape| shape.kernel)
    }
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::{Graph, KernelName};
    use ktape_format::event::Kernel;
    use ktape_format::rollup::Digest;
    use ktape_format::{Memory, Sink as _};

    use super::*;

    /// Kernels of these names as shapes.
    fn shapes<const N: usize>(memory: &mut Memory, names: [&str; N]) -> [u32; N] {
        names.map(|name| {
            let Ok(name) = memory.string(name);
            let Ok(kernel) = memory.define(KernelName { name, module: 0 });
            let Ok(shape) = memory.define(Shape { kernel, ..Shape::default() });
            shape
        })
    }

    /// A graph of these nodes: kind, shape, stack, child.
    fn graph(memory: &mut Memory, nodes: &[(u8, u32, u32, u32)]) -> u32 {
        let earlier = memory.definitions.graphs.native.len() as u32;
        let Ok(graph) = memory.define(Graph { earlier, ..Graph::default() });
        for (index, &(kind, shape, stack, child)) in (0..).zip(nodes) {
            let Ok(_) = memory.define(GraphNode { graph, index, kind, shape, stack, child, ..GraphNode::default() });
        }
        graph
    }

    #[test]
    fn a_launch_runs_the_kernels_of_its_graph_and_of_the_graphs_in_it() {
        let mut memory = Memory::default();
        let [gemm, softmax] = shapes(&mut memory, ["gemm", "softmax"]);
        let inner = graph(&mut memory, &[(node_kind::KERNEL, gemm, 1, 0), (node_kind::MEMCPY, 0, 1, 0)]);
        let twice = (node_kind::GRAPH, 0, 2, inner);
        let outer = graph(&mut memory, &[(node_kind::KERNEL, softmax, 2, 0), twice, twice]);
        for (graph, result) in [(outer, 0), (outer, 0), (inner, 0), (outer, 700)] {
            let Ok(()) = memory.event(GraphLaunch { graph, result, ..GraphLaunch::default() });
        }
        let timeline = Timeline::new(memory.definitions, memory.events);
        let graphs = Graphs::new(&timeline);
        let ran = timeline.ran_by_graphs(&graphs);
        assert_eq!(ran.kernels, BTreeMap::from([((1, gemm), 2 * 2 + 1), ((2, softmax), 2)]));
        assert!(graphs.is_whole(outer) && graphs.is_whole(inner));
    }

    #[test]
    fn rollups_of_graph_launches_run_what_the_launches_ran() {
        let mut memory = Memory::default();
        let [gemm, softmax] = shapes(&mut memory, ["gemm", "softmax"]);
        let inner = graph(&mut memory, &[(node_kind::KERNEL, gemm, 0, 0)]);
        let outer = graph(&mut memory, &[(node_kind::KERNEL, softmax, 0, 0), (node_kind::GRAPH, 0, 0, inner)]);
        for (graph, duration_ns, result) in [(outer, 1, 0), (outer, 90, 0), (outer, 91, 700), (inner, 1, 0), (0, 5, 0)]
        {
            let Ok(()) = memory.event(GraphLaunch { graph, duration_ns, result, ..GraphLaunch::default() });
        }
        let mut digest = Digest::default();
        digest.add_events(&memory.definitions, &memory.events);
        let by_name = |timeline: &Timeline| -> BTreeMap<String, u64> {
            let ran = timeline.ran_by_graphs(&Graphs::new(timeline)).kernels;
            ran.iter()
                .map(|(&(_, shape), &count)| (timeline.definitions.kernel_name(shape).to_owned(), count))
                .collect()
        };
        let detail = Timeline::new(memory.definitions, memory.events);
        // Each graph is told of twice; a rollup of rollups has it once.
        let mut again = Digest::default();
        for _ in 0..2 {
            let mut rolled_up = Memory::default();
            let Ok(()) = digest.write(&mut rolled_up);
            assert_eq!(rolled_up.definitions.graph_nodes.len(), 3);
            again.add_events(&rolled_up.definitions, &rolled_up.events);
        }
        let mut twice = Memory::default();
        let Ok(()) = again.write(&mut twice);
        assert_eq!((twice.definitions.graphs.len(), twice.definitions.graph_nodes.len()), (2, 3));
        assert_eq!(by_name(&detail), BTreeMap::from([("gemm".to_owned(), 3), ("softmax".to_owned(), 2)]));
        let twice = by_name(&Timeline::new(twice.definitions, twice.events));
        assert_eq!(twice, BTreeMap::from([("gemm".to_owned(), 6), ("softmax".to_owned(), 4)]));
    }

    #[test]
    fn nothing_is_told_twice_where_the_device_tells_it() {
        let mut memory = Memory::default();
        let [gemm] = shapes(&mut memory, ["gemm"]);
        let graph = graph(&mut memory, &[(node_kind::KERNEL, gemm, 1, 0)]);
        let Ok(()) = memory.event(GraphLaunch { graph, ..GraphLaunch::default() });
        let Ok(()) = memory.event(Kernel { shape: gemm, graph, ..Kernel::default() });
        let timeline = Timeline::new(memory.definitions, memory.events);
        assert_eq!(timeline.ran_by_graphs(&Graphs::new(&timeline)), Ran::default());
    }

    #[test]
    fn graphs_that_contain_each_other_or_double_without_end_are_no_trap() {
        let mut memory = Memory::default();
        let [gemm] = shapes(&mut memory, ["gemm"]);
        let mut last = graph(&mut memory, &[(node_kind::KERNEL, gemm, 1, 0)]);
        for _ in 0..100 {
            last = graph(&mut memory, &[(node_kind::GRAPH, 0, 1, last), (node_kind::GRAPH, 0, 1, last)]);
        }
        let cycle = graph(&mut memory, &[(node_kind::GRAPH, 0, 1, last + 1), (node_kind::KERNEL, gemm, 3, 0)]);
        let timeline = Timeline::new(memory.definitions, memory.events);
        let graphs = Graphs::new(&timeline);
        assert_eq!(graphs.run([(last, 1)]).kernels, BTreeMap::from([((1, gemm), u64::MAX)]));
        assert_eq!(graphs.run([(cycle, 7)]).kernels, BTreeMap::from([((3, gemm), 7)]));
        assert!(graphs.is_whole(last) && !graphs.is_whole(cycle));
    }

    #[test]
    fn a_graph_with_something_unknown_is_not_whole() {
        let mut memory = Memory::default();
        let [gemm] = shapes(&mut memory, ["gemm"]);
        let unknown = graph(&mut memory, &[(node_kind::KERNEL, gemm, 1, 0), (node_kind::UNKNOWN, 0, 0, 0)]);
        let outer = graph(&mut memory, &[(node_kind::GRAPH, 0, 1, unknown)]);
        let untold = graph(&mut memory, &[]);
        let timeline = Timeline::new(memory.definitions, memory.events);
        let graphs = Graphs::new(&timeline);
        assert!(![unknown, outer, untold].into_iter().any(|graph| graphs.is_whole(graph)));
    }
}
