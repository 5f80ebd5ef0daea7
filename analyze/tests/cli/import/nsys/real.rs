//! Real reports, held against `fixtures/nsys/count.py` and against the reference figures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ktape_analyze::import::Summary;
use ktape_analyze::timeline::{DeviceOp, DeviceOpKind, Timeline, intervals};
use ktape_format::definition::{Context, Device, Frame, Process, Stream, frame_kind};
use ktape_format::{Memory, Table};
use serde_json::Value;

use super::super::import;
use super::super::real::{add, copies, has_python, kernels, object, sorted, traces};
use super::every_row_is_accounted_for;
use crate::common;

const COUNT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/nsys/count.py");

/// All real reports.
pub(super) fn reports(folder: &Path) -> Vec<PathBuf> {
    traces(folder, &[".sqlite"])
}

#[test]
fn every_real_report_agrees_with_an_independent_count() {
    let Some(shared) = common::shared() else { return };
    if !has_python() {
        return;
    }
    let reports = reports(&shared);
    assert!(reports.len() >= 8, "{} reports", reports.len());
    for path in reports {
        let count = Command::new("python3").arg(COUNT).arg(&path).output().unwrap();
        assert!(count.status.success(), "{}: count.py failed", path.display());
        let (memory, summary) = import(&path).unwrap_or_else(|error| panic!("{error}"));
        holds(&path, memory, &summary, &serde_json::from_slice(&count.stdout).unwrap());
    }
}

/// Holds what was imported against what `count.py` counted.
fn holds(path: &Path, memory: Memory, summary: &Summary, count: &Value) {
    let name = path.display();
    every_row_is_accounted_for(&memory, summary);
    assert_eq!(summary.repaired, BTreeMap::new(), "{name}");
    for (table, rows) in count["rows"].as_object().unwrap() {
        if table != "StringIds" && !table.starts_with("ENUM_") {
            assert_eq!(summary.read.get(table).copied(), rows.as_u64(), "{name}: {table}");
        }
    }
    sorted(&memory.events);
    let timeline = Timeline::new(memory.definitions, memory.events);
    let ops = timeline.device_ops();
    assert_eq!(kernels(&timeline), object(&count["kernels"]), "{name}: calls and time by kernel");
    assert_eq!(copies(&timeline, &ops), object(&count["copies"]), "{name}: calls, time and bytes by copy");
    assert_eq!(streams(&timeline, &ops), object(&count["streams"]), "{name}: calls and time by stream");
    assert_eq!(functions(&timeline), object(&count["functions"]), "{name}: calls and time by function");
    assert_eq!(ranges(&timeline), object(&count["nvtx"]), "{name}: calls and time by range");
    assert_eq!(overhead(&timeline), object(&count["overhead"]), "{name}: overhead");
    let matched = ops.iter().filter(|op| timeline.submitter(op).is_some()).count() as u64;
    assert_eq!(Some(matched), count["matched"].as_u64(), "{name}: matched with a launch");
    assert_eq!(Some(ops.len() as u64 - matched), count["unmatched"].as_u64(), "{name}: without a launch");
    assert_eq!((matched, ops.len() as u64 - matched), (summary.matched, summary.unmatched), "{name}");
    for (key, expected) in count["devices"].as_object().unwrap() {
        let figures = Figures::of(&timeline, &ops, key);
        assert_eq!(Some(figures.first_ns), expected["first_ns"].as_i64(), "{name}: first on {key}");
        assert_eq!(Some(figures.span_ns), expected["span_ns"].as_u64(), "{name}: span of {key}");
        assert_eq!(Some(figures.busy_ns), expected["busy_ns"].as_u64(), "{name}: busy time of {key}");
        assert_eq!(Some(figures.kernel_busy_ns), expected["kernel_busy_ns"].as_u64(), "{name}: kernels of {key}");
    }
    let counts = |key: &str| serde_json::from_value::<BTreeMap<String, u64>>(count[key].clone()).unwrap();
    assert_eq!(calls_inside(&timeline), counts("calls_inside"), "{name}: stacks of calls");
    let stacks = timeline.events.cpu_sample.rows().map(|row| row.stack);
    assert_eq!(by_native_stack(&timeline, stacks), counts("samples"), "{name}: stacks of samples");
    let is_native = |stack: &u32| {
        timeline.definitions.stack_nodes(*stack).any(|(_, node)| is(&timeline, node.frame, frame_kind::NATIVE))
    };
    let stacks = timeline.events.api.stack.iter().copied().filter(is_native);
    assert_eq!(by_native_stack(&timeline, stacks), counts("system_stacks"), "{name}: stacks of system calls");
    let clock = timeline.events.clock.rows().next().map(|pair| (pair.start_ns, pair.value_ns));
    assert_eq!(clock, count["utc_ns"].as_i64().map(|utc_ns| (0, utc_ns)), "{name}: clock");
}

fn is(timeline: &Timeline, frame: u32, kind: u8) -> bool {
    timeline.definitions.get::<Frame>(frame).is_some_and(|row| row.kind == kind)
}

/// What one process's device did.
struct Figures {
    operations: u64,
    matched: u64,
    first_ns: i64,
    span_ns: u64,
    busy_ns: u64,
    kernel_busy_ns: u64,
}

impl Figures {
    /// By a key as `pid40.dev0`.
    fn of(timeline: &Timeline, ops: &[DeviceOp], key: &str) -> Figures {
        let ops: Vec<&DeviceOp> = ops.iter().filter(|op| device_key(timeline, op) == key).collect();
        let span = |op: &&DeviceOp| (op.start_ns, op.end_ns);
        let first_ns = ops.iter().map(|op| op.start_ns).min().unwrap();
        Figures {
            operations: ops.len() as u64,
            matched: ops.iter().filter(|op| timeline.submitter(op).is_some()).count() as u64,
            first_ns,
            span_ns: ops.iter().map(|op| op.end_ns).max().unwrap().abs_diff(first_ns),
            busy_ns: intervals::union_ns(ops.iter().map(span)),
            kernel_busy_ns: intervals::union_ns(ops.iter().filter(|op| op.kind == DeviceOpKind::Kernel).map(span)),
        }
    }
}

fn device_key(timeline: &Timeline, op: &DeviceOp) -> String {
    let device: Device = timeline.definitions.get(op.device).unwrap();
    let process: Process = timeline.definitions.get(device.process).unwrap();
    format!("pid{}.dev{}", process.pid, device.index)
}

fn streams(timeline: &Timeline, ops: &[DeviceOp]) -> BTreeMap<String, Vec<u64>> {
    let mut streams = BTreeMap::new();
    for op in ops {
        let stream: Stream = timeline.definitions.get(op.stream).unwrap();
        let context: Context = timeline.definitions.get(stream.context).unwrap();
        let device: Device = timeline.definitions.get(context.device).unwrap();
        let process: Process = timeline.definitions.get(context.process).unwrap();
        let key = format!("{}/{}/{}/{}", process.pid, device.index, context.native, stream.native);
        add(&mut streams, key, [1, op.duration_ns()]);
    }
    streams
}

fn functions(timeline: &Timeline) -> BTreeMap<String, Vec<u64>> {
    let mut functions = BTreeMap::new();
    macro_rules! collect {
        ($($kind:ident),*) => {$(
            for row in timeline.events.$kind.rows() {
                let function = timeline.definitions.function_name(row.function).to_owned();
                add(&mut functions, function, [1, row.duration_ns]);
            }
        )*};
    }
    collect!(launch, graph_launch, api, sync, event_record, event_wait);
    functions
}

fn ranges(timeline: &Timeline) -> BTreeMap<String, Vec<u64>> {
    let mut ranges = BTreeMap::new();
    for row in timeline.events.range.rows() {
        add(&mut ranges, timeline.definitions.string(row.name).to_owned(), [1, row.duration_ns]);
    }
    ranges
}

fn overhead(timeline: &Timeline) -> BTreeMap<String, Vec<u64>> {
    let mut overhead = BTreeMap::new();
    for row in timeline.events.slice.rows() {
        let frame: Frame = timeline.definitions.get(row.frame).unwrap();
        assert_eq!(frame.kind, frame_kind::OVERHEAD);
        add(&mut overhead, timeline.definitions.string(frame.name).to_owned(), [1, row.duration_ns]);
    }
    overhead
}

/// In how many stacks of calls each range is. Two ranges of one name in one stack count twice.
fn calls_inside(timeline: &Timeline) -> BTreeMap<String, u64> {
    let events = &timeline.events;
    let stacks = [
        &events.launch.stack,
        &events.graph_launch.stack,
        &events.api.stack,
        &events.sync.stack,
        &events.event_record.stack,
        &events.event_wait.stack,
    ];
    let mut inside = BTreeMap::new();
    for stack in stacks.into_iter().flatten() {
        for (_, node) in timeline.definitions.stack_nodes(*stack) {
            if is(timeline, node.frame, frame_kind::RANGE) {
                let frame: Frame = timeline.definitions.get(node.frame).unwrap();
                *inside.entry(timeline.definitions.string(frame.name).to_owned()).or_default() += 1;
            }
        }
    }
    inside
}

/// How often each stack of functions is, outermost first.
fn by_native_stack(timeline: &Timeline, stacks: impl Iterator<Item = u32>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for stack in stacks {
        let nodes = timeline.definitions.stack_nodes(stack);
        let frames = nodes.filter(|(_, node)| !is(timeline, node.frame, frame_kind::RANGE));
        let mut names: Vec<&str> = frames
            .map(|(_, node)| timeline.definitions.string(timeline.definitions.get::<Frame>(node.frame).unwrap().name))
            .collect();
        names.reverse();
        *counts.entry(names.join(";")).or_default() += 1;
    }
    counts
}

/// The reference figures were made from the same files by another person's script.
#[test]
fn real_reports_agree_with_the_reference_figures() {
    let Some(shared) = common::shared() else { return };
    let mut held = 0;
    for entry in std::fs::read_dir(shared.join("reference")).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_string_lossy().starts_with("exact-nsys-") {
            continue;
        }
        let reference: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let name = reference["file"].as_str().unwrap();
        let (memory, _) = import(&shared.join("traces").join(name)).unwrap();
        let timeline = Timeline::new(memory.definitions, memory.events);
        let ops = timeline.device_ops();
        for (key, expected) in reference["devices"].as_object().unwrap() {
            let figures = Figures::of(&timeline, &ops, key);
            for (what, figure) in [
                ("n", figures.operations),
                ("span_ns", figures.span_ns),
                ("busy_union_ns", figures.busy_ns),
                ("kernel_union_ns", figures.kernel_busy_ns),
                ("matched", figures.matched),
            ] {
                assert_eq!(Some(figure), expected[what].as_u64(), "{name}: {key}: {what}");
            }
            held += 1;
        }
        let functions = functions(&timeline);
        for (function, expected) in reference["sync"].as_object().unwrap() {
            let plain = function.rsplit_once("_v").unwrap().0;
            assert_eq!(serde_json::json!(functions[plain]), *expected, "{name}: {function}");
        }
    }
    assert!(held >= 8, "{held} devices");
}
