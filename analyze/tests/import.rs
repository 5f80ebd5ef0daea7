//! The import of PyTorch profiler traces, held against independent counts of the same files.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktape_analyze::import::kineto::{self, ImportError, Summary};
use ktape_analyze::timeline::{DeviceOp, DeviceOpKind, Submitter, Timeline, intervals};
use ktape_format::definition::{
    Context, CounterName, Device, Frame, Function, Graph, Process, Shape, Stream, frame_kind, property, subject, vendor,
};
use ktape_format::event::{
    Event, Events, KindVisitor, Range, allocator, copy_kind, memory_kind, sync_kind, timing, visit_kinds,
};
use ktape_format::table::DefinitionKind;
use ktape_format::{Memory, Table};
use serde_json::Value;

const COUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kineto/count.py");

fn import(path: &Path) -> Result<(Memory, Summary), ImportError> {
    let mut memory = Memory::default();
    let summary = kineto::import(path, &mut memory, |_| {})?;
    Ok((memory, summary))
}

/// All real Kineto traces: every JSON file but the memory timeline.
fn kineto_traces(folder: &Path) -> Vec<PathBuf> {
    let mut traces = Vec::new();
    let mut folders = vec![folder.join("traces")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".json") || name.ends_with(".json.gz") {
                traces.push(path);
            }
        }
    }
    traces.sort();
    traces
}

fn has_python() -> bool {
    let found = Command::new("python3").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        common::skipped("no python3 to count independently");
    }
    found
}

#[test]
fn every_real_trace_agrees_with_an_independent_count() {
    let Some(shared) = common::shared() else { return };
    if !has_python() {
        return;
    }
    let traces = kineto_traces(&shared);
    assert!(traces.len() >= 35, "{} traces", traces.len());
    for path in traces {
        let count = Command::new("python3").arg(COUNT).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
        let (memory, summary) = import(&path).unwrap_or_else(|error| panic!("{error}"));
        let count = count.wait_with_output().unwrap();
        assert!(count.status.success(), "{}: count.py failed", path.display());
        let count: Value = serde_json::from_slice(&count.stdout).unwrap();
        holds(&path, memory, &summary, &count);
    }
}

/// Holds what was imported against what `count.py` counted.
fn holds(path: &Path, memory: Memory, summary: &Summary, count: &Value) {
    let name = path.display();
    every_entry_is_accounted_for(&name.to_string(), &memory, summary, count);
    sorted(&memory.events);
    let timeline = Timeline::new(memory.definitions, memory.events);
    let ops = timeline.device_ops();
    assert_eq!(kernels(&timeline), object(&count["kernels"]), "{name}: calls and time by kernel");
    assert_eq!(copies(&timeline, &ops), object(&count["copies"]), "{name}: calls, time and bytes by copy");
    assert_eq!(streams(&timeline, &ops), object(&count["streams"]), "{name}: calls and time by stream");
    let matched = ops.iter().filter(|op| timeline.submitter(op).is_some()).count() as u64;
    assert_eq!(Some(matched), count["matched"].as_u64(), "{name}: matched with a launch");
    assert_eq!(Some(ops.len() as u64 - matched), count["unmatched"].as_u64(), "{name}: without a launch");
    assert_eq!((matched, ops.len() as u64 - matched), (summary.matched, summary.unmatched), "{name}");
    let devices = count["devices"].as_object().unwrap();
    for (index, expected) in devices {
        let ops: Vec<&DeviceOp> = ops.iter().filter(|op| device_index(&timeline, op).to_string() == *index).collect();
        let first_ns = ops.iter().map(|op| op.start_ns).min().unwrap();
        let end_ns = ops.iter().map(|op| op.end_ns).max().unwrap();
        assert_eq!(Some(first_ns), expected["first_ns"].as_i64(), "{name}: first on device {index}");
        assert_eq!(Some(end_ns - first_ns), expected["span_ns"].as_i64(), "{name}: span of device {index}");
        assert_eq!(Some(busy_ns(&ops)), expected["busy_ns"].as_u64(), "{name}: busy time of device {index}");
    }
    let bytes = |bytes: &[u64]| Some(bytes.iter().sum::<u64>());
    assert_eq!(bytes(&timeline.events.alloc.bytes), count["allocated_bytes"].as_u64(), "{name}");
    assert_eq!(bytes(&timeline.events.free.bytes), count["freed_bytes"].as_u64(), "{name}");
    let inside: BTreeMap<String, u64> = serde_json::from_value(count["calls_inside"].clone()).unwrap();
    assert_eq!(calls_inside(&timeline), inside, "{name}: stacks of calls");
}

fn object(value: &Value) -> BTreeMap<String, Vec<u64>> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Every entry of the file is either an event of the tape, or counted as not kept.
fn every_entry_is_accounted_for(name: &str, memory: &Memory, summary: &Summary, count: &Value) {
    assert_eq!(Some(summary.entries()), count["entries"].as_u64(), "{name}: entries read");
    let total = |counts: &BTreeMap<_, u64>| counts.values().sum::<u64>();
    let not_kept: u64 = summary.not_kept.values().sum();
    assert_eq!(summary.entries(), total(&summary.kept) + not_kept, "{name}: read = kept + not kept: {summary:?}");
    for (kind, rows) in memory.events.counts() {
        assert_eq!(rows as u64, summary.kept.get(kind).copied().unwrap_or(0), "{name}: {kind}");
    }
    // Only arrows and metadata may be missing: complete events and instants are all kept.
    for what in summary.not_kept.keys() {
        assert!(what.starts_with("flow") || what.starts_with("metadata"), "{name}: not kept: {what}");
    }
    for (category, events) in count["categories"].as_object().unwrap() {
        assert_eq!(summary.read.get(&format!("X {category}")).copied(), events.as_u64(), "{name}: {category}");
    }
}

fn sorted(events: &Events) {
    struct Sorted<'a>(&'a Events);
    impl KindVisitor for Sorted<'_> {
        type Error = std::convert::Infallible;
        fn visit<E: Event>(&mut self) -> Result<(), Self::Error> {
            assert!(E::table(self.0).rows().map(|row| row.start_ns()).is_sorted(), "{} by start", E::NAME);
            Ok(())
        }
    }
    let Ok(()) = visit_kinds(&mut Sorted(events));
}

fn add<const N: usize>(map: &mut BTreeMap<String, Vec<u64>>, key: String, values: [u64; N]) {
    let sums = map.entry(key).or_insert_with(|| vec![0; N]);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn kernels(timeline: &Timeline) -> BTreeMap<String, Vec<u64>> {
    let mut kernels = BTreeMap::new();
    for row in timeline.events.kernel.rows() {
        add(&mut kernels, timeline.definitions.kernel_name(row.shape).to_owned(), [1, row.duration_ns]);
    }
    kernels
}

fn copies(timeline: &Timeline, ops: &[DeviceOp]) -> BTreeMap<String, Vec<u64>> {
    let mut copies = BTreeMap::new();
    for op in ops.iter().filter(|op| op.kind != DeviceOpKind::Kernel) {
        let bytes = match op.kind {
            DeviceOpKind::Memcpy => timeline.events.memcpy.bytes[op.row as usize],
            _ => timeline.events.memset.bytes[op.row as usize],
        };
        add(&mut copies, timeline.op_name(op), [1, op.duration_ns(), bytes]);
    }
    copies
}

fn streams(timeline: &Timeline, ops: &[DeviceOp]) -> BTreeMap<String, Vec<u64>> {
    let mut streams = BTreeMap::new();
    for op in ops {
        let stream: Stream = timeline.definitions.get(op.stream).unwrap();
        let key = format!("{}/{}", device_index(timeline, op), stream.native);
        add(&mut streams, key, [1, op.duration_ns()]);
    }
    streams
}

fn device_index(timeline: &Timeline, op: &DeviceOp) -> u32 {
    let stream: Stream = timeline.definitions.get(op.stream).unwrap();
    let context: Context = timeline.definitions.get(stream.context).unwrap();
    timeline.definitions.get::<Device>(context.device).unwrap().index
}

fn busy_ns(ops: &[&DeviceOp]) -> u64 {
    intervals::union_ns(ops.iter().map(|op| (op.start_ns, op.end_ns)))
}

/// In how many stacks of calls each frame is. Frames of a 2021 operator's call stack, which have a line, are no slices.
fn calls_inside(timeline: &Timeline) -> BTreeMap<String, u64> {
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let stacks = [
        &events.launch.stack,
        &events.graph_launch.stack,
        &events.api.stack,
        &events.sync.stack,
        &events.event_record.stack,
        &events.event_wait.stack,
    ];
    let mut calls = BTreeMap::<u32, u64>::new();
    for stack in stacks.into_iter().flatten() {
        for (_, node) in definitions.stack_nodes(*stack).filter(|(_, node)| node.line == 0) {
            *calls.entry(node.frame).or_default() += 1;
        }
    }
    let mut inside = BTreeMap::new();
    for (frame, calls) in calls {
        let frame: Frame = definitions.get(frame).unwrap();
        let (name, file) = (definitions.string(frame.name), definitions.string(frame.file));
        let name = if file.is_empty() { name.to_owned() } else { format!("{file}({}): {name}", frame.line) };
        *inside.entry(name).or_default() += calls;
    }
    inside
}

/// The reference figures were made from the same files by another person's script.
#[test]
fn real_traces_agree_with_the_reference_figures() {
    let Some(shared) = common::shared() else { return };
    let mut held = 0;
    for entry in std::fs::read_dir(shared.join("reference")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("exact-") || name.starts_with("exact-nsys-") {
            continue;
        }
        let reference: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let (memory, summary) = import(&shared.join("traces").join(reference["trace"].as_str().unwrap())).unwrap();
        let timeline = Timeline::new(memory.definitions, memory.events);
        let ops = timeline.device_ops();
        let number = |value: &Value| value.as_u64().unwrap();
        assert_eq!(summary.entries(), number(&reference["n_events"]), "{name}");
        assert_eq!(timeline.events.kernel.len() as u64, number(&reference["n_kernels"]), "{name}");
        assert_eq!(ops.len() as u64, number(&reference["n_gpu_ops"]), "{name}");
        for (index, device) in reference["devices"].as_object().unwrap() {
            let ops: Vec<&DeviceOp> =
                ops.iter().filter(|op| device_index(&timeline, op).to_string() == *index).collect();
            let kernels: Vec<&DeviceOp> = ops.iter().copied().filter(|op| op.kind == DeviceOpKind::Kernel).collect();
            let matched = ops.iter().filter(|op| timeline.submitter(op).is_some()).count() as u64;
            let span_ns = ops.iter().map(|op| op.end_ns).max().unwrap().abs_diff(ops[0].start_ns);
            assert_eq!(span_ns, number(&device["span_ns"]), "{name}: span");
            assert_eq!(busy_ns(&ops), number(&device["busy_union_ns"]), "{name}: busy");
            assert_eq!(busy_ns(&kernels), number(&device["kernel_union_ns"]), "{name}: busy with kernels");
            let total_ns: u64 = ops.iter().map(|op| op.duration_ns()).sum();
            assert_eq!(total_ns, number(&device["sum_dur_ns"]), "{name}: sum");
            assert_eq!(matched, number(&device["matched"]), "{name}: matched");
            assert_eq!(ops.len() as u64 - matched, number(&device["unmatched"]), "{name}: unmatched");
            held += 1;
        }
        calls_agree(&name, &timeline, &reference);
    }
    assert!(held >= 9, "{held} devices");
}

/// Calls and time by API function, whichever kind of event they became.
fn calls_agree(name: &str, timeline: &Timeline, reference: &Value) {
    let mut calls = BTreeMap::new();
    macro_rules! collect {
        ($($kind:ident),*) => {$(
            for row in timeline.events.$kind.rows() {
                let function = timeline.definitions.function_name(row.function).to_owned();
                add(&mut calls, function, [1, row.duration_ns]);
            }
        )*};
    }
    collect!(launch, graph_launch, api, sync, event_record, event_wait);
    for expected in reference["api_top"].as_array().unwrap() {
        let function = expected["name"].as_str().unwrap();
        let expected = ["count", "sum_ns"].map(|key| expected[key].as_u64().unwrap());
        assert_eq!(calls.get(function).map(Vec::as_slice), Some(expected.as_slice()), "{name}: {function}");
    }
}

#[test]
fn one_graph_launch_has_many_kernels() {
    let Some(shared) = common::shared() else { return };
    for (file, graph_launches, most_kernels) in [
        ("AMD-AGI+TraceLens/tests/traces/inference/vllm_decode_full/graph_execution.json.gz", 1, 421),
        ("AMD-AGI+TraceLens/tests/traces/inference/sglang_decode/sglang_Qwen3-8B_decode.json.gz", 1, 500),
        ("facebookresearch+HolisticTraceAnalysis/tests/data/negative_queue_length_values_check/rank0.json.gz", 70, 2),
    ] {
        let (memory, _) = import(&shared.join("traces").join(file)).unwrap();
        let timeline = Timeline::new(memory.definitions, memory.events);
        assert_eq!(timeline.events.graph_launch.len(), graph_launches, "{file}");
        let mut kernels = vec![0; graph_launches];
        for op in timeline.device_ops().iter().filter(|op| op.kind == DeviceOpKind::Kernel) {
            if let Some(Submitter::GraphLaunch(row)) = timeline.submitter(op) {
                kernels[row as usize] += 1;
                assert_eq!(timeline.stack_of(op), timeline.events.graph_launch.stack[row as usize]);
            }
        }
        assert!(*kernels.iter().max().unwrap() >= most_kernels, "{file}: {kernels:?}");
    }
}

/// A made-up trace of `fixtures/kineto`.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/kineto").join(name)
}

fn made_up(name: &str) -> (Timeline, Summary) {
    let (memory, summary) = import(&fixture(name)).unwrap();
    let kept: u64 = summary.kept.values().sum();
    assert_eq!(summary.entries(), kept + summary.not_kept.values().sum::<u64>());
    (Timeline::new(memory.definitions, memory.events), summary)
}

/// The names of a stack's frames, outermost first.
fn stack(timeline: &Timeline, stack: u32) -> Vec<String> {
    let definitions = &timeline.definitions;
    let frame = |node: ktape_format::definition::Stack| definitions.get::<Frame>(node.frame).unwrap();
    let mut names: Vec<String> =
        definitions.stack_nodes(stack).map(|(_, node)| definitions.string(frame(node).name).to_owned()).collect();
    names.reverse();
    names
}

const BASE_NS: i64 = 1_767_189_312_000_000_000;

#[test]
fn a_kernel_and_its_launch() {
    let (timeline, summary) = made_up("modern.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let kernel = events.kernel.row(0);
    assert_eq!((kernel.start_ns - BASE_NS, kernel.duration_ns), (230_125, 40_001));
    assert_eq!(definitions.string(kernel.args), r#"{"Collective name":"all reduce"}"#);
    let shape: Shape = definitions.get(kernel.shape).unwrap();
    assert_eq!(definitions.kernel_name(kernel.shape), "gemm<float>");
    assert_eq!((shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x), (4, 2, 1, 128));
    assert_eq!((shape.registers, shape.static_shared_bytes), (32, 2048));
    assert_eq!(definitions.get::<Stream>(kernel.stream).unwrap().priority, -5);
    let launch = events.launch.row(0);
    assert_eq!((launch.start_ns - BASE_NS, launch.duration_ns), (220_000, 5_250));
    assert_eq!((launch.shape, launch.stream), (kernel.shape, kernel.stream));
    assert_eq!(definitions.get::<Function>(launch.function).unwrap().callback_id, 211);
    assert_eq!(stack(&timeline, launch.stack), ["main", "step 1", "<built-in method to of Tensor object>", "aten::mm"]);
    assert_eq!((summary.matched, summary.unmatched), (4, 1));
    // The launch without a kernel: its stack crosses the end of `main`, which the annotation outlives.
    assert_eq!(events.launch.len(), 2);
    assert_eq!(definitions.function_name(events.launch.function[1]), "cuLaunchKernelEx");
    assert_eq!(stack(&timeline, events.launch.stack[1]), ["step 1"]);
}

#[test]
fn graphs_copies_and_memsets() {
    let (timeline, _) = made_up("modern.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    // A call that CUPTI had no name for launched a graph: its kernels say so.
    assert_eq!(definitions.function_name(events.graph_launch.function[0]), "INVALID");
    let graph: Graph = definitions.get(events.graph_launch.graph[0]).unwrap();
    assert_eq!((graph.native, &events.kernel.graph_node[1..]), (6, [601, 602].as_slice()));
    let copy = events.memcpy.row(0);
    assert_eq!((copy.kind, copy.source_memory, copy.bytes), (copy_kind::PTOP, memory_kind::DEVICE, 4096));
    assert_eq!(definitions.get::<Device>(copy.peer_device).unwrap().index, 1);
    assert_eq!(definitions.string(copy.name), "Memcpy PtoP (Device -> Device)");
    assert_eq!((events.memset.bytes[0], events.memset.target_memory[0]), (64, memory_kind::DEVICE));
}

#[test]
fn synchronisations_and_events() {
    let (timeline, _) = made_up("modern.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let native = |stream: u32| definitions.get::<Stream>(stream).map(|stream| stream.native);
    let syncs: Vec<_> = events.sync.rows().map(|row| (row.kind, native(row.stream), row.duration_ns)).collect();
    assert_eq!(syncs, [(sync_kind::STREAM, Some(7), 30_000), (sync_kind::CONTEXT, None, 20_000)]);
    let wait = events.event_wait.row(0);
    assert_eq!((native(wait.stream), wait.event, wait.recorded_by), (Some(9), 3, 14));
    assert_eq!(events.event_record.correlation, [14]);
    // The records themselves stay, as ranges on their stream.
    let named = |row: &Range| definitions.string(row.category) == "cuda_sync";
    let records: Vec<_> = events.range.rows().filter(named).map(|row| native(row.stream)).collect();
    assert_eq!(records, [Some(9), Some(7), None]);
}

#[test]
fn slices_ranges_marks_and_memory() {
    let (timeline, summary) = made_up("modern.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let slices: Vec<_> = events.slice.rows().map(|row| definitions.get::<Frame>(row.frame).unwrap()).collect();
    assert_eq!(
        (slices[0].kind, definitions.string(slices[0].file), slices[0].line),
        (frame_kind::PYTHON, "train.py", 12)
    );
    assert_eq!(slices.last().unwrap().kind, frame_kind::OVERHEAD);
    let operator = events.slice.rows().find(|row| row.sequence == 77).unwrap();
    // Its `stream` says nothing of where it ran.
    assert_eq!(definitions.string(operator.args), r#"{"stream":5,"Input Dims":[[2,3],[3,4]]}"#);
    let range = |name: &str| events.range.rows().find(|row| definitions.string(row.category) == name).unwrap();
    assert_eq!(stack(&timeline, range("user_annotation").stack), ["main"]);
    assert_eq!(definitions.get::<Stream>(range("gpu_user_annotation").stream).unwrap().native, 7);
    assert_eq!(definitions.string(range("mtia_ccp_events").args), r#"{"lane":2}"#);
    let spans = range("Trace");
    assert_eq!(
        (spans.thread, definitions.string(spans.args)),
        (0, r#"{"Op count":0,"pid":"Spans","tid":"PyTorch Profiler"}"#)
    );
    assert_eq!(definitions.string(events.mark.name[0]), "Record Window End");
    let alloc = events.alloc.row(0);
    assert_eq!(
        (alloc.bytes, alloc.address, alloc.allocated_bytes, alloc.reserved_bytes),
        (512, 139_637_976_727_552, 1024, 2048)
    );
    assert_eq!((alloc.allocator, events.alloc.allocator[1]), (allocator::CACHING, allocator::HOST));
    assert_eq!((events.alloc.device[1], events.free.bytes[0]), (0, 512));
    assert_eq!(stack(&timeline, alloc.stack).last().unwrap(), "aten::mm");
    let counter: CounterName = definitions.get(events.counter.counter[0]).unwrap();
    assert_eq!((definitions.string(counter.name), events.counter.value[0]), ("GPU power", 412.5));
    assert_eq!(definitions.get::<Device>(counter.device).unwrap().index, 0);
    assert_eq!(summary.not_kept_parts["address in a name"], 1);
    assert_eq!(summary.not_kept_parts["argument finished"], 1);
    assert_eq!(summary.not_kept["flow ac2g"], 2);
}

#[test]
fn properties_of_tape_process_and_device() {
    let (timeline, _) = made_up("modern.json");
    let definitions = &timeline.definitions;
    let tape = |key| definitions.property(subject::TAPE, 0, key);
    assert_eq!(tape("note"), Some(r#"{"nested": ["a", 1]}"#));
    assert_eq!(tape("traceName"), Some("/tmp/a \"quoted\" name.json"));
    assert_eq!((tape("schemaVersion"), tape("clock")), (Some("1"), Some("unix")));
    assert!(tape(property::NOT_KEPT).unwrap().contains(r#""flow ac2g":2"#));
    let process: Vec<i64> = definitions.processes.pid.clone();
    assert_eq!(process, [40, -1]);
    assert_eq!(definitions.string(definitions.processes.source[0]), "modern.json");
    let of = |kind: DefinitionKind, id, key| definitions.property(kind as u16, id, key);
    assert_eq!(of(DefinitionKind::Process, 1, property::RANK), Some("3"));
    assert_eq!(of(DefinitionKind::Process, 1, property::WORLD_SIZE), Some("8"));
    assert_eq!(of(DefinitionKind::Process, 1, property::NAME), Some("python3"));
    assert_eq!(definitions.devices.vendor, [vendor::NVIDIA; 2]);
    for (key, value) in [
        (property::NAME, "NVIDIA H100 80GB HBM3"),
        (property::COMPUTE_CAPABILITY, "9.0"),
        (property::MULTIPROCESSORS, "132"),
        (property::SHARED_BYTES_PER_MULTIPROCESSOR, "233472"),
        ("maxThreadsPerBlock", "1024"),
        ("labels", "GPU 0"),
    ] {
        assert_eq!(of(DefinitionKind::Device, 1, key), Some(value), "{key}");
    }
    let kernels_stream = timeline.events.kernel.stream[0];
    assert_eq!(of(DefinitionKind::Stream, kernels_stream, property::NAME), Some("stream 7"));
}

#[test]
fn the_names_of_2021() {
    let (timeline, summary) = made_up("schema2021.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    assert_eq!(events.kernel.start_ns, [1_623_142_623_460_200_000]);
    let kernels_stream: Stream = definitions.get(events.kernel.stream[0]).unwrap();
    assert_eq!((kernels_stream.native, events.memcpy.stream[0]), (7, events.kernel.stream[0]));
    let ops = timeline.device_ops();
    let kernel = ops.iter().find(|op| op.kind == DeviceOpKind::Kernel).unwrap();
    assert_eq!(timeline.submitter(kernel), Some(Submitter::Launch(0)));
    // The innermost operator's call stack, then the operators.
    assert_eq!(stack(&timeline, timeline.stack_of(kernel)), ["<module>", "forward", "ProfilerStep#5", "aten::conv2d"]);
    assert_eq!((events.alloc.len(), events.free.len(), events.alloc.address[0]), (1, 1, 0));
    assert_eq!((summary.matched, summary.unmatched), (1, 2));
    assert_eq!(definitions.processes.pid, [5555]);
}

#[test]
fn what_hip_says_with_the_call() {
    let (timeline, _) = made_up("hip.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    let shape: Shape = definitions.get(events.kernel.shape[0]).unwrap();
    assert_eq!((shape.dynamic_shared_bytes, events.launch.shape[0]), (2048, events.kernel.shape[0]));
    // Captured into a graph: no kernel yet.
    assert_eq!(definitions.kernel_name(events.launch.shape[1]), "captured");
    assert_eq!((events.memcpy.kind[0], events.memcpy.bytes[0]), (copy_kind::HTOD, 16));
    assert_eq!((definitions.devices.index[0], definitions.devices.vendor[0]), (2, vendor::AMD));
}

#[test]
fn device_work_belongs_to_the_process_that_launched_it() {
    let (timeline, _) = made_up("two_processes.json");
    let definitions = &timeline.definitions;
    let owners: Vec<(String, i64)> = timeline
        .events
        .kernel
        .rows()
        .map(|row| {
            let process: Process = definitions.get(definitions.process_of_stream(row.stream)).unwrap();
            (definitions.kernel_name(row.shape).to_owned(), process.pid)
        })
        .collect();
    assert_eq!(owners, [("of 200".into(), 200), ("of 100".into(), 100), ("of nobody".into(), 100)]);
}

#[test]
fn what_was_put_right_is_counted() {
    let (timeline, summary) = made_up("to_repair.json");
    let events = &timeline.events;
    let first_ns = 5_000_000_000_000_000;
    assert_eq!((events.kernel.start_ns[0], events.kernel.duration_ns[0]), (first_ns, 0));
    assert_eq!(events.kernel.timing[0], timing::ABSENT);
    assert_eq!(timeline.span_ns().unwrap().0, first_ns, "nothing in 1970");
    assert_eq!(summary.repaired.values().sum::<u64>(), 5, "{:?}", summary.repaired);
    assert_eq!(summary.not_kept.values().sum::<u64>(), 2, "{:?}", summary.not_kept);
}

/// The one line that the user gets.
fn refusal(path: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = common::analyze([
        "import".as_ref(),
        path.as_os_str(),
        "-o".as_ref(),
        folder.path().join("x.ktape").as_os_str(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", path.display());
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains(&*path.file_name().unwrap().to_string_lossy()), "{error}");
    error
}

fn says(path: &Path, parts: &[&str]) {
    let error = refusal(path);
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn broken_json_is_refused_with_its_place() {
    says(&fixture("control_character.json"), &["byte 145 (line 3, column 43)", "control character", "0x01"]);
    says(&fixture("truncated.json"), &["byte 160", "the file ends", "complete events before: 1"]);
    says(&fixture("bad_number.json"), &["line 2"]);
    says(&fixture("bad_time.json"), &["byte 86 (line 2, column 69)", "`ts` is \"soon\"", "microseconds"]);
}

#[test]
fn other_files_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    says(&file("empty.json", b" \n"), &["is empty"]);
    says(&file("object.json", b"{\"a\": 1}"), &["traceEvents", "export_chrome_trace"]);
    says(&file("report.sqlite", b"SQLite format 3\0..."), &["SQLite"]);
    says(&file("noise", &[0xff, 0xd8, 0xff]), &["not JSON"]);
    says(&file("rows.json", b"[[0, 1, 2, 3]]"), &["export_memory_timeline"]);
    says(folder.path(), &["is a directory"]);
    says(&folder.path().join("absent.json"), &["No such file"]);
    let whole = std::fs::read(fixture("modern.json")).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &whole).unwrap();
    let packed = packed.finish().unwrap();
    says(&file("cut.json.gz", &packed[..packed.len() / 2]), &["gzip", "cut off"]);
    let name = file("no_ending", &packed);
    assert_eq!(import(&name).unwrap().1, import(&fixture("modern.json")).unwrap().1, "content decides, not the ending");
}

#[test]
fn a_memory_timeline_is_refused_by_name() {
    let Some(shared) = common::shared() else { return };
    let path = "traces/facebookresearch+HolisticTraceAnalysis/tests/data/memory_analysis/memory_timeline.raw.gz";
    says(&shared.join(path), &["export_memory_timeline", "export_chrome_trace"]);
}

/// Cutting a real file anywhere gives one clear error, never a panic and never a tape that claims to be whole.
#[test]
fn a_trace_cut_anywhere_is_refused() {
    let text = std::fs::read(fixture("modern.json")).unwrap();
    let whole = text.trim_ascii_end().len();
    for length in 0..whole {
        let outcome = kineto::import_bytes(&text[..length], "cut.json", &mut Memory::default(), |_| {});
        assert!(outcome.is_err(), "cut to {length} bytes");
    }
    assert!(kineto::import_bytes(&text[..whole], "whole.json", &mut Memory::default(), |_| {}).is_ok());
}

/// Whatever a byte is replaced with, the import succeeds or says why not; it never panics.
#[test]
fn a_changed_byte_is_survived() {
    let text = std::fs::read(fixture("modern.json")).unwrap();
    for position in 0..text.len() {
        for byte in [b'9', b'-', b'"'] {
            let mut text = text.clone();
            text[position] = byte;
            let _ = kineto::import_bytes(&text, "changed.json", &mut Memory::default(), |_| {});
        }
    }
}
