//! CUDA graphs: what the tape says that their launches run, against what the stand-in driver's device ran.
//!
//! The driver's record says of all that its device ran by which call it was launched, and which call added its node to the graph. So
//! for each launch of a graph both sides are brought into one form: the work, and the stack of the call that added it.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{Frame, Graph, GraphNode, KernelName, Shape, Stack, frame_kind, node_kind};
use ktape_format::event::Launch;
use ktape_format::table::DefinitionKind;
use ktape_format::{Definitions, Table as _, Tape, Wanted};
use ktape_simcuda_truth::{DeviceKind, Truth};
use serde_json::Value;

use crate::EXACT;
use crate::common::with_driver;
use crate::exact::FrameLine;
use crate::processes::{Scene, Target, pythons};

/// Work of a graph and the stack that captured or added it. What host functions, events and memory do is not the device's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Work {
    kind: &'static str,
    kernel: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    bytes: u64,
    function: String,
    stack: Vec<FrameLine>,
}

/// What each launch of a graph ran, launches in their order, the work of each sorted. `None` where that is not known.
type Launches = Vec<Option<Vec<Work>>>;

/// As the driver has it.
fn truth(truth: &Truth) -> Launches {
    let calls: BTreeMap<u64, _> = truth.calls().map(|call| (call.sequence, call)).collect();
    let mut launches: BTreeMap<u64, Vec<Work>> = calls
        .values()
        .filter(|call| call.symbol.starts_with("cuGraphLaunch") && !call.captured && call.result == Some(0))
        .map(|call| (call.sequence, Vec::new()))
        .collect();
    for device in truth.device() {
        let Some(work) = launches.get_mut(&device.cause) else { continue };
        let added = calls[&device.added.expect("a node's")];
        let own =
            |frame: ktape_simcuda_truth::Frame<'_>| (frame.qualname.to_owned(), frame.file.to_owned(), frame.line);
        let kind = match device.kind {
            DeviceKind::Kernel => "kernel",
            DeviceKind::Copy => "memcpy",
            DeviceKind::Set => "memset",
            DeviceKind::Host => "host",
        };
        work.push(Work {
            kind,
            kernel: device.kernel.unwrap_or_default().to_owned(),
            grid: device.grid,
            block: device.block,
            shared_bytes: device.shared_bytes,
            bytes: device.bytes,
            function: added.symbol.to_owned(),
            stack: added.stack.map(|id| truth.stack(id).into_iter().map(own).collect()).unwrap_or_default(),
        });
    }
    launches.into_values().map(sorted).map(Some).collect()
}

fn sorted(mut work: Vec<Work>) -> Vec<Work> {
    work.sort();
    work
}

/// As the tape has it.
fn tape(path: &str) -> Launches {
    let tape = Tape::open(Path::new(path)).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    let definitions = &contents.definitions;
    let mut nodes = BTreeMap::<u32, Vec<GraphNode>>::new();
    definitions.graph_nodes.rows().for_each(|node| nodes.entry(node.graph).or_default().push(node));
    let mut rows: Vec<_> = contents.events.graph_launch.rows().collect();
    rows.sort_by_key(|row| row.start_ns);
    for row in &rows {
        definitions.get::<Graph>(row.graph).expect("a launched graph is defined");
    }
    let ran = |graph| expand(graph, &nodes, definitions).map(sorted);
    rows.iter().filter(|row| row.result == 0).map(|row| ran(row.graph)).collect()
}

/// What a graph runs, with the graphs in it.
fn expand(graph: u32, nodes: &BTreeMap<u32, Vec<GraphNode>>, definitions: &Definitions) -> Option<Vec<Work>> {
    let mut all = Vec::new();
    for node in nodes.get(&graph).map_or(&[][..], Vec::as_slice) {
        let kind = match node.kind {
            node_kind::UNKNOWN => return None,
            node_kind::GRAPH => {
                all.extend(expand(node.child, nodes, definitions)?);
                continue;
            }
            kind @ (node_kind::KERNEL | node_kind::MEMCPY | node_kind::MEMSET | node_kind::HOST) => {
                node_kind::NAMES[usize::from(kind)]
            }
            _ => continue,
        };
        let shape: Shape = definitions.get(node.shape).unwrap_or_default();
        let kernel: KernelName = definitions.get(shape.kernel).unwrap_or_default();
        let learned = definitions.property(DefinitionKind::Kernel as u16, shape.kernel, "name");
        let function: ktape_format::definition::Function =
            definitions.get(node.function).expect("the call that added it");
        all.push(Work {
            kind,
            kernel: learned.unwrap_or_else(|| definitions.string(kernel.name)).to_owned(),
            grid: [shape.grid_x, shape.grid_y, shape.grid_z],
            block: [shape.block_x, shape.block_y, shape.block_z],
            shared_bytes: shape.dynamic_shared_bytes,
            bytes: node.bytes,
            function: definitions.string(function.name).to_owned(),
            stack: stack(node.stack, definitions),
        });
    }
    Some(all)
}

fn stack(id: u32, definitions: &Definitions) -> Vec<FrameLine> {
    let frame = |(_, node): (u32, Stack)| {
        let frame: Frame = definitions.get(node.frame).expect("a frame");
        let line = (definitions.string(frame.name).to_owned(), definitions.string(frame.file).to_owned(), node.line);
        (frame.kind == frame_kind::PYTHON).then_some(line)
    };
    definitions.stack_nodes(id).filter_map(frame).collect()
}

/// What a program needs that works with graphs.
macro_rules! with_graphs {
    ($program:literal) => {
        concat!(
            with_driver!(
                r#"
import struct, threading
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\nkernel relu\n")
gemm, softmax, relu = (handle(cu.cuModuleGetFunction, module, name) for name in (b"gemm", b"softmax", b"relu"))
memory = handle(cu.cuMemAlloc_v2, c_size_t(1 << 20))
def launch(function, blocks, stream):
    return cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 64, stream, None, None)
def layer(index, stream):
    check(launch(gemm, 16 + index, stream))
    check(launch(softmax, 8, stream))
def begin(stream, mode=1):
    check(cu.cuStreamBeginCapture_v2(stream, mode))
def end(stream):
    graph = c_void_p()
    check(cu.cuStreamEndCapture(stream, byref(graph)))
    return graph
def instantiate(graph):
    return handle(cu.cuGraphInstantiateWithFlags, graph, c_uint64(0))
def replay(exe, stream, times=1):
    for _ in range(times):
        check(cu.cuGraphLaunch(exe, stream))
def kernel_params(function, blocks, bytes=56):
    return struct.pack("<Q7I4xQQ", function.value, blocks, 1, 1, 32, 1, 1, 0, 0, 0).ljust(bytes, b"\0")
def any_params(kind, params):
    return (struct.pack("<4I", kind, 0, 0, 0) + params).ljust(256, b"\0")
def add(name, graph, *arguments):
    return handle(getattr(cu, name), graph, None, c_size_t(0), *arguments)
stream, side = handle(cu.cuStreamCreate, 1), handle(cu.cuStreamCreate, 1)
"#
            ),
            $program
        )
    };
}

/// Captures as a framework does: layers, copies, memsets, memory, host functions, and a fork to another stream and back.
const CAPTURED: &str = with_graphs!(
    r#"
host = ctypes.cast(ctypes.CDLL(None).getpid, c_void_p)
forked, joined = handle(cu.cuEventCreate, 2), handle(cu.cuEventCreate, 2)
def forward():
    for index in range(5):
        layer(index, stream)
def fork():
    check(cu.cuEventRecord(forked, stream))
    check(cu.cuStreamWaitEvent(side, forked, 0))
    check(launch(relu, 3, side))
    check(cu.cuMemsetD8Async(memory, 7, c_size_t(4096), side))
    check(cu.cuEventRecord(joined, side))
    check(launch(relu, 4, stream))
    check(cu.cuStreamWaitEvent(stream, joined, 0))
def capture():
    begin(stream)
    forward()
    fork()
    scratch = c_void_p()
    check(cu.cuMemAllocAsync(byref(scratch), c_size_t(8192), stream))
    check(cu.cuMemcpyDtoDAsync_v2(scratch, memory, c_size_t(4096), stream))
    check(cu.cuMemFreeAsync(scratch, stream))
    check(cu.cuLaunchHostFunc(stream, host, None))
    return end(stream)
graph = capture()
# What comes after the capture is done at once, in both streams.
layer(9, stream), layer(9, side)
exe = instantiate(graph)
check(cu.cuGraphDestroy(graph))
replay(exe, stream, 3), replay(exe, side)
# A graph in a graph, by capture.
begin(side)
replay(exe, side)
check(launch(relu, 5, side))
outer = instantiate(end(side))
replay(outer, stream, 2)
check(cu.cuCtxSynchronize())
"#
);

/// Builds graphs by calls, and changes them and what was made of them.
const BUILT: &str = with_graphs!(
    r#"
primary = c_void_p()
check(cu.cuCtxGetCurrent(byref(primary)))
copy = bytearray(200)
struct.pack_into("<IxxxxQQ", copy, 32, 2, 0, memory.value)
struct.pack_into("<IxxxxQQ", copy, 120, 2, 0, memory.value + 65536)
struct.pack_into("<QQQ", copy, 176, 4096, 2, 3)
copy = bytes(copy)
inner = handle(cu.cuGraphCreate, 0)
add("cuGraphAddKernelNode", inner, kernel_params(relu, 2))
graph = handle(cu.cuGraphCreate, 0)
def build():
    nodes = [add("cuGraphAddKernelNode", graph, kernel_params(gemm, 3)),
             add("cuGraphAddKernelNode_v2", graph, kernel_params(softmax, 5, 72))]
    add("cuGraphAddEmptyNode", graph)
    add("cuGraphAddMemsetNode", graph, struct.pack("<2Q2I2Q", memory.value, 0, 7, 4, 21, 1), primary)
    add("cuGraphAddMemcpyNode", graph, copy, primary)
    add("cuGraphAddChildGraphNode", graph, inner)
    add("cuGraphAddNode", graph, any_params(0, kernel_params(gemm, 7, 72)))
    handle(cu.cuGraphAddNode_v2, graph, None, None, c_size_t(0), any_params(0, kernel_params(gemm, 9, 72)))
    add("cuGraphAddNode", graph, any_params(2, struct.pack("<2Q2I2Q", memory.value, 0, 7, 2, 11, 1)))
    add("cuGraphAddNode", graph, any_params(1, struct.pack("<2IQ", 0, 0, primary.value) + copy))
    return nodes
first, second = build()
# What is changed of the graph in the node's making does not change the node.
add("cuGraphAddKernelNode", inner, kernel_params(relu, 30))
exe = instantiate(graph)
replay(exe, stream)
# A change of the graph is none of what was made of it.
check(cu.cuGraphKernelNodeSetParams(first, kernel_params(gemm, 40)))
replay(exe, stream)
replay(instantiate(graph), stream)
check(cu.cuGraphExecKernelNodeSetParams_v2(exe, second, kernel_params(relu, 50, 72)))
replay(exe, stream, 2)
check(cu.cuGraphNodeSetEnabled(exe, first, 0))
replay(exe, stream)
check(cu.cuGraphNodeSetEnabled(exe, first, 1))
replay(exe, stream)
check(cu.cuGraphExecUpdate_v2(exe, graph, ctypes.create_string_buffer(24)))
replay(exe, stream)
clone = handle(cu.cuGraphClone, graph)
found = handle(cu.cuGraphNodeFindInClone, second, clone)
check(cu.cuGraphKernelNodeSetParams(found, kernel_params(softmax, 60)))
check(cu.cuGraphDestroyNode(handle(cu.cuGraphNodeFindInClone, first, clone)))
replay(instantiate(clone), stream), replay(instantiate(graph), stream)
# Handles are given out again.
for blocks in range(1, 6):
    begin(stream)
    check(launch(relu, blocks, stream))
    short = end(stream)
    exe = instantiate(short)
    replay(exe, stream)
    check(cu.cuGraphExecDestroy(exe)), check(cu.cuGraphDestroy(short))
check(cu.cuCtxSynchronize())
"#
);

/// Captures that overlap: two threads, each in its own stream, and a third stream that is not captured; and captures that fail.
const THREADS: &str = with_graphs!(
    r#"
turns = threading.Barrier(2)
context = c_void_p()
check(cu.cuCtxGetCurrent(byref(context)))
graphs = {}
def capture(name, stream, function):
    check(cu.cuCtxSetCurrent(context))
    turns.wait()
    begin(stream, 2)
    for index in range(20):
        turns.wait()
        check(launch(function, 1 + index, stream))
        check(launch(softmax, 1 + index, third))
    turns.wait()
    graphs[name] = end(stream)
third = handle(cu.cuStreamCreate, 1)
threads = [threading.Thread(target=capture, args=of) for of in (("a", stream, gemm), ("b", side, relu))]
[thread.start() for thread in threads], [thread.join() for thread in threads]
replay(instantiate(graphs["a"]), stream), replay(instantiate(graphs["b"]), side)
# One that is invalidated: the event was recorded in no captured stream. What follows is refused.
event = handle(cu.cuEventCreate, 2)
check(cu.cuEventRecord(event, third))
begin(stream)
check(launch(gemm, 77, stream))
assert cu.cuStreamWaitEvent(stream, event, 0) != 0
assert launch(gemm, 78, stream) != 0
nothing = c_void_p()
assert cu.cuStreamEndCapture(stream, byref(nothing)) != 0
layer(1, stream)
# And one after it, in the same stream.
begin(stream)
layer(2, stream)
replay(instantiate(end(stream)), stream)
check(cu.cuCtxSynchronize())
"#
);

/// Runs a program under the recorder. Returns the tape's path and what the recorder says.
fn record(scene: &Scene, python: &str, program: &str, options: &[&str]) -> (String, Value) {
    let tape = scene.path("run.ktape");
    let mut run = scene.capture(&["run", "--json", "-o", &tape]);
    let output = run.args(options).args(["--", python, "-c", program]).output().expect("capture starts");
    assert!(output.status.success(), "{python}: {output:?}");
    (tape, serde_json::from_slice(&output.stdout).expect("a summary"))
}

/// Demands that each launch runs on the tape what it ran on the device. Returns what they ran.
fn compare(scene: &Scene, tape_path: &str) -> Launches {
    let record = Truth::open(Path::new(&scene.path("truth"))).expect("the driver's record");
    let (expected, found) = (truth(&record), tape(tape_path));
    assert_eq!(expected.len(), found.len(), "launches of graphs");
    for (index, (expected, found)) in expected.iter().zip(&found).enumerate() {
        assert_eq!(expected, found, "launch {index}");
    }
    found
}

fn exactly(test: &str, program: &str, launches: usize) {
    for python in pythons() {
        for options in [&[][..], &["--launch-durations"]] {
            let Some(scene) = Scene::new(test) else { return };
            let (tape, summary) = record(&scene, &python, program, options);
            let found = compare(&scene, &tape);
            assert_eq!(found.len(), launches);
            scene.compare("run.ktape", crate::exact::Compared { launch_durations: !options.is_empty(), ..EXACT });
            for gap in [
                "launches_of_older_graphs",
                "launches_of_partly_known_graphs",
                "unknown_graph_changes",
                "captures_without_begin",
            ] {
                assert_eq!(summary["gaps"][gap], 0, "{summary}");
            }
            assert_eq!(summary["seen"], summary["written"], "{summary}");
        }
    }
}

#[test]
fn captured_graphs_run_what_was_captured_with_the_stacks_that_captured_it() {
    exactly("captured graphs", CAPTURED, 6);
}

#[test]
fn built_and_changed_graphs_run_what_they_were_at_each_launch() {
    exactly("built graphs", BUILT, 15);
}

#[test]
fn captures_of_several_threads_are_kept_apart_and_failed_ones_leave_nothing() {
    exactly("threads that capture", THREADS, 3);
}

/// Launches into a stream that is captured, and meanwhile into another one.
const ELSEWHERE: &str = with_graphs!(
    r#"
other = handle(cu.cuStreamCreate, 1)
begin(stream)
for blocks in (5, 6):
    check(launch(gemm, blocks, stream))
    check(launch(softmax, blocks, stream))
    check(launch(gemm, 10 + blocks, other))
    check(launch(softmax, 10 + blocks, other))
replay(instantiate(end(stream)), stream)
check(cu.cuCtxSynchronize())
"#
);

#[test]
fn what_is_launched_beside_a_capture_is_recorded_only_if_it_is_in_scope() {
    for python in pythons() {
        // The graph's own launch has a stack too, and a graph that nobody launches is not told of.
        let cases = [(["--kernel", "gemm"], &[15, 16][..], 2, 4), (["--python-path", "*/nowhere.py"], &[], 5, 0)];
        for (options, blocks, left_out, nodes) in cases {
            let Some(scene) = Scene::new("launches beside a capture") else { return };
            let (path, summary) = record(&scene, &python, ELSEWHERE, &options);
            let tape = Tape::open(Path::new(&path)).expect("the tape opens");
            let contents = tape.read(&Wanted::default()).expect("the tape is read");
            let shape = |launch: Launch| contents.definitions.get::<Shape>(launch.shape).expect("a shape").grid_x;
            let launched: Vec<u32> = contents.events.launch.rows().map(shape).collect();
            assert_eq!(launched, blocks, "{options:?}");
            assert_eq!(summary["out_of_scope"]["launch"], left_out, "{options:?}: {summary}");
            // What was captured is all there, whatever is in scope.
            assert_eq!(contents.definitions.graph_nodes.rows().count(), nodes, "{options:?}");
        }
    }
}

/// A program that begins a capture, and ends it when it is told to.
const BEFORE: &str = with_graphs!(
    r#"
begin(stream)
layer(0, stream)
old, steps = None, 0
begin(side)
layer(1, side)
old = instantiate(end(side))
for line in sys.stdin:
    while steps < int(line):
        steps += 1
        if steps == 11:
            # Whoever attached since learns the kernels' names only now.
            [handle(cu.cuModuleGetFunction, module, name) for name in (b"gemm", b"softmax", b"relu")]
            replay(old, side)
            layer(2, stream)
            late = instantiate(end(stream))
            replay(late, stream, 2)
            begin(stream)
            layer(3, stream)
            replay(instantiate(end(stream)), stream)
    print(steps, flush=True)
"#
);

#[test]
fn graphs_and_captures_from_before_the_recording_are_said_to_be_unknown() {
    for python in pythons() {
        let Some(scene) = Scene::new("graphs of before") else { return };
        let mut target = Target::start(&scene, &python, BEFORE);
        let recorder = scene.attach(&target, "late.ktape");
        target.go_on_until(20);
        target.end();
        let said = recorder.wait_for(0);
        let found = tape(&scene.path("late.ktape"));
        let is_known: Vec<bool> = found.iter().map(Option::is_some).collect();
        assert_eq!(is_known, [false, false, false, true]);
        let record = Truth::open(Path::new(&scene.path("truth"))).expect("the driver's record");
        assert_eq!(truth(&record)[3], found[3]);
        assert!(said.contains("1 captures that began before the recording"), "{said}");
        assert!(said.contains("1 launches of graphs that were made before the recording"), "{said}");
        assert!(said.contains("2 launches of graphs of which not all kernels are known"), "{said}");
    }
}
