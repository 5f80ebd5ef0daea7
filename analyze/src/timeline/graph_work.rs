//! Which node of a graph the device ran, and so on which stack that was captured.
//!
//! The device's rows name a node by CUPTI's number, the tape's definitions by its place in the graph, and nobody says which is
//! which. But CUPTI numbers the nodes of a graph in the order in which they were made, as the definitions do; so of those that do the
//! same (a kernel of one name, grid and block; a copy of so many bytes) the first by number is the first by place. Where there are not
//! as many of the one as of the other nothing is said of these nodes: some never ran, or are not known.

use std::collections::{BTreeMap, BTreeSet};

use ktape_format::Table as _;
use ktape_format::definition::{GraphNode, Shape, node_kind};
use rustc_hash::FxHashMap;

use super::graphs::Graphs;
use super::{DeviceOp, DeviceOpKind, Timeline};

/// What a node does, as far as both sides tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Does<'a> {
    Kernel(&'a str, [u32; 6]),
    Copy(u64),
    Set(u64),
}

/// Graphs lie in graphs no deeper than this on any tape that was recorded; and so many nodes are looked at.
const MOST_LEVELS: u32 = 32;
const MOST_NODES: usize = 1 << 24;

/// The stack on which each node was captured, by graph and CUPTI's number of the node.
#[derive(Debug, Default)]
pub(crate) struct CapturedStacks(FxHashMap<(u32, u64), u32>);

impl CapturedStacks {
    /// Finds out what can be.
    pub(crate) fn new(timeline: &Timeline) -> CapturedStacks {
        let mut ran = BTreeMap::<u32, BTreeMap<u64, Does<'_>>>::new();
        let events = &timeline.events;
        for row in events.kernel.rows().filter(|row| row.graph != 0 && row.graph_node != 0) {
            ran.entry(row.graph).or_default().entry(row.graph_node).or_insert_with(|| kernel(timeline, row.shape));
        }
        for row in events.memcpy.rows().filter(|row| row.graph != 0 && row.graph_node != 0) {
            ran.entry(row.graph).or_default().entry(row.graph_node).or_insert(Does::Copy(row.bytes));
        }
        for row in events.memset.rows().filter(|row| row.graph != 0 && row.graph_node != 0) {
            ran.entry(row.graph).or_default().entry(row.graph_node).or_insert(Does::Set(row.bytes));
        }
        let mut stacks = FxHashMap::default();
        if ran.is_empty() {
            return CapturedStacks(stacks);
        }
        let graphs = Graphs::new(timeline);
        for (graph, nodes) in ran {
            let mut made = Vec::new();
            lay_out(timeline, &graphs, graph, 0, &mut made);
            let kinds: BTreeSet<Does<'_>> = nodes.values().copied().collect();
            for kind in kinds {
                let numbers = nodes.iter().filter(|(_, does)| **does == kind).map(|(&number, _)| number);
                let places = made.iter().filter(|(does, _)| *does == kind).map(|(_, stack)| *stack);
                if numbers.clone().count() == places.clone().count() {
                    stacks.extend(numbers.zip(places).map(|(number, stack)| ((graph, number), stack)));
                }
            }
        }
        CapturedStacks(stacks)
    }

    /// The stack of the node that an operation of the device is; `None` where it is none, or that is not known.
    pub(crate) fn of(&self, timeline: &Timeline, op: &DeviceOp) -> Option<u32> {
        let (events, row) = (&timeline.events, op.row as usize);
        let node = match op.kind {
            DeviceOpKind::Kernel => (events.kernel.graph[row], events.kernel.graph_node[row]),
            DeviceOpKind::Memcpy => (events.memcpy.graph[row], events.memcpy.graph_node[row]),
            DeviceOpKind::Memset => (events.memset.graph[row], events.memset.graph_node[row]),
        };
        self.0.get(&node).copied()
    }
}

/// The working nodes of a graph in the order in which they were made, with those of the graphs in it where these are.
fn lay_out<'a>(timeline: &'a Timeline, graphs: &Graphs, graph: u32, level: u32, made: &mut Vec<(Does<'a>, u32)>) {
    for node in graphs.nodes(graph) {
        if level > MOST_LEVELS || made.len() >= MOST_NODES {
            return;
        }
        let &GraphNode { kind, shape, bytes, stack, child, .. } = node;
        match kind {
            node_kind::KERNEL => made.push((kernel(timeline, shape), stack)),
            node_kind::MEMCPY => made.push((Does::Copy(bytes), stack)),
            node_kind::MEMSET => made.push((Does::Set(bytes), stack)),
            // Children are defined before.
            node_kind::GRAPH if child < graph => lay_out(timeline, graphs, child, level + 1, made),
            _ => {}
        }
    }
}

fn kernel(timeline: &Timeline, shape: u32) -> Does<'_> {
    let definitions = &timeline.definitions;
    let row = definitions.get::<Shape>(shape).unwrap_or_default();
    let size = [row.grid_x, row.grid_y, row.grid_z, row.block_x, row.block_y, row.block_z];
    Does::Kernel(definitions.kernel_name(shape), size)
}

#[cfg(test)]
mod tests {
    use ktape_format::definition::{Graph, KernelName};
    use ktape_format::event::{Kernel, Memcpy};
    use ktape_format::{Memory, Sink as _};

    use super::*;

    fn shape(memory: &mut Memory, name: &str, blocks: u32, registers: u32) -> u32 {
        let Ok(name) = memory.string(name);
        let Ok(kernel) = memory.define(KernelName { name, module: 0 });
        let Ok(shape) = memory.define(Shape { kernel, grid_x: blocks, registers, ..Shape::default() });
        shape
    }

    #[test]
    fn nodes_that_do_the_same_are_told_apart_by_their_order() {
        let mut memory = Memory::default();
        // What the launch does not know, the device does.
        let made =
            [("gemm", 1), ("softmax", 1), ("gemm", 1), ("gemm", 2)].map(|(name, n)| shape(&mut memory, name, n, 0));
        let ran =
            [("gemm", 1), ("softmax", 1), ("gemm", 1), ("gemm", 2)].map(|(name, n)| shape(&mut memory, name, n, 40));
        let Ok(inner) = memory.define(Graph::default());
        let kernel = |graph, index, shape, stack| GraphNode {
            graph,
            index,
            kind: node_kind::KERNEL,
            shape,
            stack,
            ..GraphNode::default()
        };
        let Ok(_) = memory.define(kernel(inner, 0, made[2], 13));
        let Ok(outer) = memory.define(Graph { earlier: 1, ..Graph::default() });
        for node in [
            kernel(outer, 0, made[0], 11),
            kernel(outer, 1, made[1], 12),
            GraphNode { graph: outer, index: 2, kind: node_kind::GRAPH, child: inner, ..GraphNode::default() },
            kernel(outer, 3, made[3], 14),
            GraphNode { graph: outer, index: 4, kind: node_kind::MEMCPY, bytes: 64, stack: 15, ..GraphNode::default() },
            GraphNode { graph: outer, index: 5, kind: node_kind::MEMCPY, bytes: 64, stack: 16, ..GraphNode::default() },
        ] {
            let Ok(_) = memory.define(node);
        }
        // Not in the order of their numbers, and more than once.
        for (node, shape) in [(9003, ran[2]), (9001, ran[0]), (9002, ran[1]), (9004, ran[3]), (9001, ran[0])] {
            let Ok(()) = memory.event(Kernel { shape, graph: outer, graph_node: node, ..Kernel::default() });
        }
        // Of two copies one ran: which is not known.
        let Ok(()) = memory.event(Memcpy { bytes: 64, graph: outer, graph_node: 9005, ..Memcpy::default() });
        let timeline = Timeline::new(memory.definitions, memory.events);
        let stacks = CapturedStacks::new(&timeline);
        let of = |node| stacks.0.get(&(outer, node)).copied();
        assert_eq!([9001, 9002, 9003, 9004, 9005].map(of), [Some(11), Some(12), Some(13), Some(14), None]);
        let op = timeline.device_ops().into_iter().find(|op| op.kind == DeviceOpKind::Kernel && op.row == 0).unwrap();
        assert_eq!(stacks.of(&timeline, &op), Some(13));
    }
}
