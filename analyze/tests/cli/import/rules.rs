//! Made-up traces, one rule at a time.

use ktape_analyze::import::kineto::import_bytes;
use ktape_analyze::import::{Options, Summary};
use ktape_analyze::timeline::{DeviceOpKind, Submitter, Timeline};
use ktape_format::definition::{
    CounterName, Device, Frame, Function, Graph, Process, Shape, Stream, frame_kind, property, subject, vendor,
};
use ktape_format::event::{Range, allocator, clock_kind, copy_kind, memory_kind, sync_kind, timing};
use ktape_format::table::DefinitionKind;
use ktape_format::{Memory, Table};

use super::{fixture, import};

pub(super) fn made_up(name: &str) -> (Timeline, Summary) {
    let (memory, summary) = import(&fixture(name)).unwrap();
    let kept: u64 = summary.kept.values().sum();
    assert_eq!(summary.entries(), kept + summary.not_kept.values().sum::<u64>());
    (Timeline::new(memory.definitions, memory.events), summary)
}

/// The names of a stack's frames, outermost first.
pub(super) fn stack(timeline: &Timeline, stack: u32) -> Vec<String> {
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
    assert_eq!((shape.registers, shape.shared_bytes), (32, 2048));
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
    assert_eq!(tape("schemaVersion"), Some("1"));
    let clock = timeline.events.clock.row(0);
    assert_eq!((clock.clock, clock.value_ns), (clock_kind::UNIX, clock.start_ns));
    assert_eq!(Some(clock.start_ns), timeline.span_ns().map(|(first_ns, _)| first_ns));
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
    assert_eq!(
        stack(&timeline, timeline.stack_of(kernel).unwrap()),
        ["<module>", "forward", "ProfilerStep#5", "aten::conv2d"]
    );
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
    assert_eq!(summary.repaired.values().sum::<u64>(), 6, "{:?}", summary.repaired);
    assert_eq!(summary.not_kept.values().sum::<u64>(), 1, "{:?}", summary.not_kept);
}

#[test]
fn odd_values_stay_what_they_are() {
    let (timeline, summary) = made_up("odd_values.json");
    let (events, definitions) = (&timeline.events, &timeline.definitions);
    // In order of time, whatever the file's; fractions exact; what cannot be true is not touched.
    let kernels: Vec<_> = events
        .kernel
        .rows()
        .map(|row| (definitions.kernel_name(row.shape), row.start_ns - BASE_NS, row.duration_ns))
        .collect();
    assert_eq!(
        kernels,
        [("first, past the second's end", 10_750, 900_000_000_000_125), ("second", 20_001, 10_500)],
        "they overlap on one stream, and both stay"
    );
    assert_eq!(events.kernel.stream[0], events.kernel.stream[1]);
    // 0 is no correlation: neither the call nor the kernel with it has a partner.
    assert!(timeline.device_ops().iter().all(|op| timeline.submitter(op).is_none()));
    assert_eq!((summary.matched, summary.unmatched), (0, 2));
    assert_eq!((events.launch.shape.as_slice(), events.api.len()), (&[0][..], 1));
    // Slices that cross stay both; numbers in quotes are numbers.
    let slices: Vec<_> = events
        .slice
        .rows()
        .map(|row| {
            let name = definitions.string(definitions.get::<Frame>(row.frame).unwrap().name);
            (name, row.start_ns - BASE_NS, row.duration_ns, row.thread)
        })
        .collect();
    let thread = events.launch.thread[0];
    assert_eq!(
        slices,
        [
            ("before the base", -3_002, 1_000, thread),
            ("crossing", 4_000, 8_000, thread),
            ("crossed", 6_000, 8_000, thread),
            ("backwards", 7_000, 0, thread)
        ]
    );
    assert_eq!(summary.repaired["negative `dur`, taken as 0"], 1);
    let range = events.range.row(0);
    assert_eq!((definitions.string(range.category), definitions.string(range.args)), ("quantum_op", r#"{"qubits":3}"#));
    assert_eq!(definitions.property(subject::TAPE, 0, "displayTimeUnit"), Some("ms"));
}

/// Where the base of the times stands in the file changes nothing.
#[test]
fn the_base_before_and_behind_the_events() {
    let text = std::fs::read_to_string(fixture("odd_values.json")).unwrap();
    let base = r#""baseTimeNanoseconds": 1767189312000000000"#;
    let behind = text.replace(&format!("{base}, "), "").replace("\n]}", &format!("\n], {base}}}"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("odd_values.json");
    std::fs::write(&path, behind).unwrap();
    let (before, behind) = (import(&fixture("odd_values.json")).unwrap().0, import(&path).unwrap().0);
    assert_eq!(format!("{:?}", before.events), format!("{:?}", behind.events));
}

/// JSON allows it; a map would keep the last.
#[test]
fn two_values_of_one_series_are_both_kept() {
    let text = br#"[{"ph": "C", "name": "n", "pid": 1, "ts": 1, "args": {"b": 1, "a": 2, "b": 3}}]"#;
    let mut memory = Memory::default();
    import_bytes(text, "counter.json", &mut memory, Options::default(), |_| {}).unwrap();
    let definitions = &memory.definitions;
    let values: Vec<(&str, f64)> = memory
        .events
        .counter
        .rows()
        .map(|row| (definitions.string(definitions.get::<CounterName>(row.counter).unwrap().name), row.value))
        .collect();
    assert_eq!(values, [("n a", 2.0), ("n b", 1.0), ("n b", 3.0)]);
}
