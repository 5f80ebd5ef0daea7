//! Calls that the stand-in driver does not take, and what would take it too long: by records as the programs send them.

use ktape_ebpf::wire::{Call, MEMORY_BYTES, MemoryCall, Plain, Return, StackCall, kind};
use ktape_format::Memory;
use ktape_format::table::Table as _;

use super::super::{Collector, Identity};
use super::*;
use crate::probes::functions;

const PID: u64 = 7;

/// A recording of one process, call by call.
struct Recording {
    collector: Collector,
    sink: Memory,
    now_ns: u64,
}

fn bytes_of<T: Plain>(record: &T) -> &[u8] {
    // SAFETY: plain integers without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(record).cast(), size_of::<T>()) }
}

impl Recording {
    fn new(is_new: bool) -> Recording {
        let (mut collector, mut sink) = (Collector::new(functions::all(), false), Memory::default());
        let Ok(()) = collector.begin_process(&Identity { pid: PID as u32, ..Identity::default() }, is_new, &mut sink);
        Recording { collector, sink, now_ns: 0 }
    }

    fn take<T: Plain>(&mut self, record: &T) {
        let Ok(notice) = self.collector.take(bytes_of(record), &mut self.sink);
        assert_eq!(notice, None);
    }

    /// A call of this function, which hands out `out`.
    fn call(&mut self, symbol: &str, arguments: &[u64], memory: &[u8], out: u64, result: u64) {
        let functions = functions::all();
        let index = functions.iter().position(|function| function.symbol == symbol).expect("it is probed");
        let plan = functions[index].meaning.plan();
        self.now_ns += 10;
        let mut registers = [0; 6];
        let first = arguments.len().min(6);
        registers[..first].copy_from_slice(&arguments[..first]);
        let call = Call {
            kind: plan.record as u16,
            cpu: 0,
            function: index as u32,
            time_ns: self.now_ns,
            pid_tid: PID << 32 | PID,
            stack: 0,
            stack_pointer: 0x7000,
            registers,
        };
        match plan.record {
            kind::MEMORY_CALL => {
                let mut kept = [0; MEMORY_BYTES];
                let bytes = memory.len().min(plan.bytes as usize);
                kept[..bytes].copy_from_slice(&memory[..bytes]);
                let bytes = if memory.is_empty() { 0 } else { u64::from(plan.bytes) };
                self.take(&MemoryCall { call, bytes, memory: kept });
            }
            kind::STACK_CALL => {
                let mut words = [0; 5];
                arguments[first..].iter().zip(&mut words).for_each(|(argument, word)| *word = *argument);
                self.take(&StackCall { call, words });
            }
            _ => self.take(&call),
        }
        if functions[index].meaning.wants_return(false) {
            let (kind, function, time_ns) = (kind::RETURN, index as u32, self.now_ns + 5);
            let pid_tid = PID << 32 | PID;
            self.take(&Return { kind, function, time_ns, pid_tid, stack_pointer: 0x7008, result, outs: [out, 0] });
        }
    }

    fn launch(&mut self, blocks: u64, stream: u64) {
        self.call("cuLaunchKernel", &[0x500, blocks, 1, 1, 32, 1, 1, 0, stream], &[], 0, 0);
    }

    fn capture(&mut self, graph: u64, blocks: &[u64]) {
        self.call("cuStreamBeginCapture_v2", &[0x77, 0], &[], 0, 0);
        blocks.iter().for_each(|&blocks| self.launch(blocks, 0x77));
        self.call("cuStreamEndCapture", &[0x77, 0x1000], &[], graph, 0);
    }

    /// Launches an executable graph that is made of a graph.
    fn run(&mut self, graph: u64, exec: u64) -> Vec<(u8, u32)> {
        self.call("cuGraphInstantiateWithFlags", &[0x1000, graph, 0], &[], exec, 0);
        self.replay(exec)
    }

    /// Launches an executable graph: kinds of its nodes, and blocks of its kernels.
    fn replay(&mut self, exec: u64) -> Vec<(u8, u32)> {
        self.call("cuGraphLaunch", &[exec, 0x77], &[], 0, 0);
        let graph = *self.sink.events.graph_launch.graph.last().expect("a launch");
        let blocks = |shape| {
            let shape: Option<ktape_format::definition::Shape> = self.sink.definitions.get(shape);
            shape.map_or(0, |shape| shape.grid_x)
        };
        let nodes = self.sink.definitions.graph_nodes.rows().filter(|node| node.graph == graph);
        nodes.map(|node| (node.kind, blocks(node.shape))).collect()
    }
}

/// A `CUDA_KERNEL_NODE_PARAMS` of so many blocks.
fn kernel_params(blocks: u32) -> Vec<u8> {
    let words = [0x500, 0, blocks, 1, 1, 32, 1, 1, 0];
    words.iter().flat_map(|word: &u32| word.to_le_bytes()).chain([0; 36]).collect()
}

const KERNEL: u8 = node_kind::KERNEL;
const UNKNOWN: (u8, u32) = (node_kind::UNKNOWN, 0);

#[test]
fn a_capture_into_a_graph_adds_to_its_nodes_and_a_recapture_replaces_them() {
    let mut recording = Recording::new(true);
    recording.capture(0x10, &[1]);
    recording.call("cuStreamBeginCaptureToGraph", &[0x77, 0x10, 0, 0, 0, 0], &[], 0, 0);
    recording.launch(2, 0x77);
    recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0x10, 0);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 1), (KERNEL, 2)]);
    recording.call("cuStreamBeginRecaptureToGraph", &[0x77, 0, 0x10, 0, 0], &[], 0, 0);
    recording.launch(3, 0x77);
    recording.launch(4, 0x77);
    recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0x10, 0);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 3), (KERNEL, 4)]);
    // What a capture that failed has left in a graph is not known.
    recording.call("cuStreamBeginCaptureToGraph", &[0x77, 0x10, 0, 0, 0, 0], &[], 0, 0);
    recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0, 901);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 3), (KERNEL, 4), UNKNOWN]);
    assert_eq!(recording.collector.gaps().launches_of_partly_known_graphs, 1);
    assert_eq!(recording.sink.events.launch.rows().count(), 0, "captured calls are no launches");
}

#[test]
fn an_end_in_another_stream_or_thread_ends_no_capture() {
    let mut recording = Recording::new(true);
    recording.call("cuStreamBeginCapture_v2", &[0x77, 0], &[], 0, 0);
    recording.launch(1, 0x77);
    for result in [903, 908] {
        recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0, result);
    }
    recording.launch(2, 0x77);
    recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0x10, 0);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 1), (KERNEL, 2)]);
}

#[test]
fn a_change_by_a_handle_that_was_not_seen_is_counted_and_makes_the_graph_partly_unknown() {
    let mut recording = Recording::new(true);
    recording.capture(0x10, &[1]);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 1)]);
    // Of `cuGraphGetNodes`.
    recording.call("cuGraphExecKernelNodeSetParams", &[0x20, 0xabc, 0x2000], &kernel_params(9), 0, 0);
    assert_eq!(recording.replay(0x20), [(KERNEL, 1), UNKNOWN]);
    assert_eq!(recording.replay(0x20), [(KERNEL, 1), UNKNOWN]);
    recording.call("cuGraphKernelNodeSetParams", &[0xabc, 0x2000], &kernel_params(9), 0, 0);
    let gaps = recording.collector.gaps();
    assert_eq!((gaps.unknown_graph_changes, gaps.launches_of_partly_known_graphs), (2, 2));
    // An update by a graph that is known makes it known again.
    recording.capture(0x11, &[5]);
    recording.call("cuGraphExecUpdate_v2", &[0x20, 0x11, 0], &[], 0, 0);
    assert_eq!(recording.replay(0x20), [(KERNEL, 5)]);
}

#[test]
fn a_change_that_changes_nothing_makes_no_other_graph() {
    let mut recording = Recording::new(true);
    recording.call("cuGraphCreate", &[0x1000, 0], &[], 0x10, 0);
    recording.call("cuGraphAddKernelNode", &[0x1000, 0x10, 0, 0, 0x2000], &kernel_params(1), 0xa, 0);
    recording.run(0x10, 0x20);
    for blocks in [1, 1, 2, 2] {
        let params = kernel_params(blocks);
        recording.call("cuGraphExecKernelNodeSetParams", &[0x20, 0xa, 0x2000], &params, 0, 0);
        assert_eq!(recording.replay(0x20), [(KERNEL, blocks)]);
    }
    let launched = recording.sink.events.graph_launch.graph.clone();
    assert_eq!(launched, [1, 1, 1, 2, 2]);
    let earlier: Vec<u32> = recording.sink.definitions.graphs.rows().map(|graph| graph.earlier).collect();
    assert_eq!(earlier, [0, 1]);
}

#[test]
fn parameters_that_could_not_be_read_are_an_unknown_node() {
    let mut recording = Recording::new(true);
    recording.call("cuGraphCreate", &[0x1000, 0], &[], 0x10, 0);
    recording.call("cuGraphAddKernelNode", &[0x1000, 0x10, 0, 0, 0x2000], &[], 0xa, 0);
    let mut conditional = vec![0; 256];
    conditional[0] = 13;
    recording.call("cuGraphAddNode_v2", &[0x1000, 0x10, 0, 0, 0, 0x2000], &conditional, 0xb, 0);
    conditional[0] = 200;
    recording.call("cuGraphAddNode_v2", &[0x1000, 0x10, 0, 0, 0, 0x2000], &conditional, 0xc, 0);
    assert_eq!(recording.run(0x10, 0x20), [UNKNOWN, (node_kind::CONDITIONAL, 0), UNKNOWN]);
    assert_eq!(recording.collector.gaps().unreadable_arguments, 1);
}

#[test]
fn what_was_captured_while_calls_were_lost_is_partly_unknown() {
    let mut recording = Recording::new(true);
    recording.capture(0x10, &[1]);
    recording.collector.looked_for_losses(LostCalls::None);
    recording.capture(0x11, &[2]);
    recording.call("cuStreamBeginCapture_v2", &[0x77, 0], &[], 0, 0);
    recording.launch(3, 0x77);
    recording.collector.looked_for_losses(LostCalls::Some);
    recording.call("cuStreamEndCapture", &[0x77, 0x1000], &[], 0x12, 0);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 1)]);
    assert_eq!(recording.run(0x11, 0x21), [(KERNEL, 2), UNKNOWN]);
    assert_eq!(recording.run(0x12, 0x22), [(KERNEL, 3), UNKNOWN]);
}

#[test]
fn executable_graphs_of_before_stay_known_when_calls_were_lost_that_change_none() {
    let mut recording = Recording::new(true);
    recording.capture(0x10, &[1]);
    assert_eq!(recording.run(0x10, 0x20), [(KERNEL, 1)]);
    recording.collector.looked_for_losses(LostCalls::None);
    assert_eq!(recording.run(0x10, 0x21), [(KERNEL, 1)]);
    recording.collector.looked_for_losses(LostCalls::OfTemplates);
    assert_eq!(recording.replay(0x20), [(KERNEL, 1)], "it was made before");
    assert_eq!(recording.replay(0x21), [(KERNEL, 1), UNKNOWN], "its graph may have had another node");
    assert_eq!(recording.run(0x10, 0x22), [(KERNEL, 1), UNKNOWN]);
    recording.collector.looked_for_losses(LostCalls::OfGraphs);
    assert_eq!(recording.replay(0x20), [(KERNEL, 1), UNKNOWN]);
}

#[test]
fn what_is_written_for_a_process_is_bounded_on_each_tape_by_itself() {
    let mut recording = Recording::new(true);
    recording.capture(0x10, &[1]);
    recording.collector.processes.get_mut(&(PID as u32)).expect("it").objects.graphs.rows = MOST_ROWS;
    assert_eq!(recording.run(0x10, 0x20), [UNKNOWN]);
    recording.collector.begin_tape();
    assert_eq!(recording.run(0x10, 0x21), [(KERNEL, 1)]);
}

#[test]
fn handles_beyond_the_bound_give_no_two_graphs_one_name() {
    let mut graphs = Graphs::new(1);
    assert_eq!((graphs.earlier(7), graphs.earlier(7), graphs.earlier(8)), (0, 1, 0));
    for handle in 0..2 * MOST_KEPT as u64 {
        graphs.earlier(100 + handle);
    }
    assert!(graphs.defined.len() <= MOST_KEPT);
    assert!(graphs.earlier(7) >= 2 && graphs.earlier(8) >= 1);
}

#[test]
fn graphs_that_lie_in_graphs_without_end_are_cut_and_say_so() {
    let mut recording = Recording::new(true);
    recording.capture(0x100, &[1]);
    for graph in 0x101..0x140 {
        recording.call("cuGraphCreate", &[0x1000, 0], &[], graph, 0);
        for node in [2 * graph, 2 * graph + 1] {
            recording.call("cuGraphAddChildGraphNode", &[0x1000, graph, 0, 0, graph - 1], &[], node, 0);
        }
    }
    recording.run(0x13f, 0x20);
    assert_eq!(recording.collector.gaps().launches_of_partly_known_graphs, 1);
    assert!(recording.sink.definitions.graphs.rows().count() <= usize::from(MOST_LEVELS) + 2);
}

#[test]
fn more_nodes_than_are_kept_are_one_unknown_node_and_a_graph_that_ends_makes_room() {
    let (mut graphs, mut sink) = (Graphs::new(1), Memory::default());
    let node = || Node { body: Body { kind: KERNEL, ..Body::default() }, ..Node::default() };
    let fill = |graphs: &mut Graphs, handle: u64, count: u64| {
        graphs.change(Change::Create, handle);
        for _ in 0..count {
            graphs.add(handle, None, node());
        }
    };
    fill(&mut graphs, 0x10, MOST_NODES - 5);
    fill(&mut graphs, 0x11, 100);
    let mut launch = |graphs: &mut Graphs, graph| {
        graphs.change(Change::Instantiate(graph), graph + 0x100);
        let Ok((id, is_whole)) = graphs.launched(graph + 0x100, &mut sink);
        (sink.definitions.graph_nodes.rows().filter(|node| node.graph == id).count(), is_whole)
    };
    assert_eq!(launch(&mut graphs, 0x11), (6, Some(false)));
    graphs.change(Change::Destroy(0x10), 0);
    fill(&mut graphs, 0x12, 100);
    assert_eq!(launch(&mut graphs, 0x12), (100, Some(true)));
    let kept = graphs.kept.clone();
    drop(graphs);
    assert_eq!(kept.get(), 0);
}
