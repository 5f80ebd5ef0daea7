//! Real traces, held against `fixtures/kineto/count.py` and against the reference figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ktape_analyze::import::Summary;
use ktape_analyze::timeline::{DeviceOp, DeviceOpKind, Submitter, Timeline, intervals};
use ktape_format::definition::{Context, Device, Frame, Stream};
use ktape_format::event::{Event, Events, KindVisitor, visit_kinds};
use ktape_format::{Memory, Table};
use serde_json::Value;

use super::import;
use crate::common;

const COUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kineto/count.py");

/// All real Kineto traces: every JSON file but the memory timeline.
pub(crate) fn kineto_traces(folder: &Path) -> Vec<PathBuf> {
    traces(folder, &[".json", ".json.gz"])
}

/// All files in the traces of a folder whose names end so.
pub(super) fn traces(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut traces = Vec::new();
    let mut folders = vec![folder.join("traces")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                traces.push(path);
            }
        }
    }
    traces.sort();
    traces
}

pub(crate) fn has_python() -> bool {
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

pub(super) fn object(value: &Value) -> BTreeMap<String, Vec<u64>> {
    serde_json::from_value(value.clone()).unwrap()
}

/// Every entry of the file is either an event of the tape, or counted as not kept.
fn every_entry_is_accounted_for(name: &str, memory: &Memory, summary: &Summary, count: &Value) {
    assert_eq!(Some(summary.entries()), count["entries"].as_u64(), "{name}: entries read");
    let total = |counts: &BTreeMap<_, u64>| counts.values().sum::<u64>();
    let not_kept: u64 = summary.not_kept.values().sum();
    assert_eq!(summary.entries(), total(&summary.kept) + not_kept, "{name}: read = kept + not kept: {summary:?}");
    // The clock pair is no entry of the file, but says what its times count from.
    for (kind, rows) in memory.events.counts().into_iter().filter(|(kind, _)| *kind != "clock") {
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

pub(super) fn sorted(events: &Events) {
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

pub(super) fn add<const N: usize>(map: &mut BTreeMap<String, Vec<u64>>, key: String, values: [u64; N]) {
    let sums = map.entry(key).or_insert_with(|| vec![0; N]);
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

pub(super) fn kernels(timeline: &Timeline) -> BTreeMap<String, Vec<u64>> {
    let mut kernels = BTreeMap::new();
    for row in timeline.events.kernel.rows() {
        add(&mut kernels, timeline.definitions.kernel_name(row.shape).to_owned(), [1, row.duration_ns]);
    }
    kernels
}

pub(super) fn copies(timeline: &Timeline, ops: &[DeviceOp]) -> BTreeMap<String, Vec<u64>> {
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
                assert_eq!(timeline.stack_of(op), Some(timeline.events.graph_launch.stack[row as usize]));
            }
        }
        assert!(*kernels.iter().max().unwrap() >= most_kernels, "{file}: {kernels:?}");
    }
}
