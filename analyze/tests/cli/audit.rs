//! What `analyze info` says of faults: on a made-up tape that has each, and on the real traces against an independent
//! count.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::common::{analyze, shared};
use crate::import::real::{has_python, kineto_traces};
use ktape_analyze::timeline::audit::stream_order::StreamOrder;
use ktape_analyze::timeline::{DeviceOp, Timeline};
use ktape_format::definition::{Context, Device, KernelName, Process, Shape, Stream, Thread, property, vendor};
use ktape_format::event::{Api, GraphLaunch, Kernel, Launch, Loss, Slice, timing};
use ktape_format::table::DefinitionKind;
use ktape_format::{Memory, Options, Sink as _, TapeWriter};
use serde_json::Value;

const AUDIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/kineto/audit.py");

/// One fault of each sort, and a loss.
fn faulty(path: &Path) {
    let mut tape = TapeWriter::create(path, &Options::batch("test")).unwrap();
    let process = tape.define(Process { pid: 42, ..Process::default() }).unwrap();
    let twin = tape.define(Process { pid: 43, ..Process::default() }).unwrap();
    for process in [process, twin] {
        tape.property(DefinitionKind::Process as u16, process, property::RANK, "5").unwrap();
    }
    let thread = tape.define(Thread { process, tid: 42 }).unwrap();
    let device = tape.define(Device { process, index: 3, vendor: vendor::NVIDIA, ..Device::default() }).unwrap();
    tape.define(Device { process, index: 4, vendor: vendor::AMD, ..Device::default() }).unwrap();
    let context = tape.define(Context { process, device, native: 1 }).unwrap();
    let [busy, graphs] = [7, 8].map(|native| tape.define(Stream { context, native, ..Stream::default() }).unwrap());
    let [faulty, sound] = ["faulty\u{1b}[2J_kernel", "sound_kernel"].map(|name| {
        let name = tape.string(name).unwrap();
        let kernel = tape.define(KernelName { name, ..KernelName::default() }).unwrap();
        tape.define(Shape { kernel, ..Shape::default() }).unwrap()
    });
    // The host lasts 1 ms, from 1 ms on.
    let call = Api { start_ns: 1_000_000, duration_ns: 1_000_000, thread, ..Api::default() };
    tape.event(call).unwrap();
    for (start_ns, duration_ns) in [(1_100_000, 1_000), (1_100_500, 1_000)] {
        tape.event(Slice { start_ns, duration_ns, thread, ..Slice::default() }).unwrap();
    }
    for correlation in 1..=9 {
        let (start_ns, duration_ns) = (1_200_000 + 10 * correlation as i64, 1);
        tape.event(Launch { start_ns, duration_ns, correlation, thread, ..Launch::default() }).unwrap();
    }
    let graph = GraphLaunch { start_ns: 1_210_000, duration_ns: 1, correlation: 20, thread, ..GraphLaunch::default() };
    tape.event(graph).unwrap();
    let mut kernel = |stream, shape, start_ns, duration_ns, correlation, timing| {
        let row = Kernel { start_ns, duration_ns, correlation, stream, shape, timing, ..Kernel::default() };
        tape.event(row).unwrap();
    };
    kernel(busy, sound, 1_200_000, 100, 1, timing::MEASURED); // before its call at 1,200,010
    kernel(busy, sound, 1_300_000, 3_000, 2, timing::MEASURED);
    kernel(busy, sound, 1_302_000, 2_000, 3, timing::MEASURED); // overlaps by 1,000
    kernel(busy, faulty, 1_400_000, 700_000_000, 4, timing::MEASURED); // impossible, and longer than the host
    kernel(busy, sound, 1_410_000, 5_000, 5, timing::MEASURED);
    kernel(busy, sound, 1_420_000, 0, 6, timing::MEASURED);
    kernel(busy, sound, 1_420_000, 0, 7, timing::ABSENT);
    kernel(busy, sound, 1_420_000, 50, 8, timing::BOUNDED);
    kernel(busy, sound, 1_500_000, 900, 0, timing::MEASURED); // no correlation, so no call; 9 has no work
    kernel(graphs, sound, 1_500_000, 900, 20, timing::MEASURED);
    kernel(graphs, sound, 1_500_800, 900, 20, timing::MEASURED);
    tape.event(Loss { start_ns: 1_000_000, count: 1, ..Loss::default() }).unwrap();
    tape.finish().unwrap();
}

fn info(path: &Path, options: &[&str]) -> Value {
    let output = analyze([&["info", path.to_str().unwrap(), "--json"], options].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no JSON, but {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn each_fault_is_found_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.ktape");
    faulty(&path);
    let json = info(&path, &["--kernels"]);
    let audit = &json["audit"];
    let both = |name: &str| (audit[name]["count"].as_u64().unwrap(), audit[name]["ns"].as_u64().unwrap());
    assert_eq!(both("impossible"), (1, 700_000_000 - 10_000));
    assert_eq!(both("longer_than_host"), (1, 700_000_000));
    assert_eq!(both("overlaps"), (1, 1_000));
    assert_eq!(both("graph_branches"), (1, 100));
    assert_eq!(both("before_launch"), (1, 10));
    assert_eq!(both("unlaunched"), (1, 900));
    for (name, count) in [("launches", 10), ("launches_without_work", 1), ("zero_duration", 1)] {
        assert_eq!(audit[name], count, "{name}");
    }
    for name in ["no_correlation", "absent", "bounded", "crossings"] {
        assert_eq!(audit[name], 1, "{name}");
    }
    assert_eq!(audit["same_rank"], serde_json::json!([{"rank": "5", "pids": [42, 43]}]));
    assert_eq!(audit["mixed_vendors"], serde_json::json!([{"pid": 42, "vendors": ["NVIDIA", "AMD"]}]));
    let worst = &audit["overlaps"]["worst"];
    assert_eq!((&worst["name"], &worst["stream"], &worst["device"]), (&"sound_kernel".into(), &7.into(), &3.into()));
    assert_eq!((&worst["after_ns"], &worst["duration_ns"]), (&302_000.into(), &2_000.into()));
    let others_ns = 100 + 3_000 + 2_000 + 5_000 + 50 + 3 * 900;
    assert_eq!(audit["device_ns"], 700_000_000 + others_ns);
    assert_eq!(audit["repaired_device_ns"], 10_000 + others_ns);
    let kernels = json["kernels"].as_array().unwrap();
    assert_eq!((&kernels[0]["name"], &kernels[0]["repaired_ns"]), (&"sound_kernel".into(), &others_ns.into()));
    let figures = ["total_ns", "repaired_ns"].map(|key| kernels[1][key].as_u64().unwrap());
    assert_eq!(figures, [700_000_000, 10_000], "raw beside repaired, and no longer first");
}

#[test]
fn faults_stand_behind_losses_and_before_the_figures() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.ktape");
    faulty(&path);
    let output = analyze(["info", path.to_str().unwrap(), "--kernels"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "because of the loss");
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}:\n{text}"));
    let places = [at("events were lost"), at("to know before the figures"), at("NVIDIA, AMD"), at("bytes an event")];
    assert!(places.is_sorted(), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for expected in [
        "1 device operation runs far past later ones on the stream",
        "faulty\u{fffd}[2J_kernel, 700 ms",
        "at 0.000302 s on stream 7 of device 3",
        "rank 5 is several processes: 42, 43",
        "1 of 10 launches have no device work",
        "calls total repaired kernel",
    ] {
        assert!(words.contains(expected), "{expected}:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 116), "{text}");
}

#[test]
fn a_selection_is_not_blamed_for_what_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty.ktape");
    faulty(&path);
    for selection in [["--kind", "kernel"], ["--from", "400us"]] {
        let audit = &info(&path, &selection)["audit"];
        assert_eq!((&audit["launches_without_work"], &audit["longer_than_host"]["count"]), (&Value::Null, &0.into()));
        assert_eq!((&audit["unlaunched"]["count"], &audit["impossible"]["count"]), (&1.into(), &1.into()));
    }
}

#[test]
fn real_traces_agree_with_an_independent_audit() {
    let Some(shared) = shared() else { return };
    if !has_python() {
        return;
    }
    let mut with_overlaps = 0;
    for path in kineto_traces(&shared) {
        let name = path.display();
        let count = Command::new("python3").arg(AUDIT).arg(&path).output().unwrap();
        assert!(count.status.success(), "{name}: {}", String::from_utf8_lossy(&count.stderr));
        let count: Value = serde_json::from_slice(&count.stdout).unwrap();
        let mut memory = Memory::default();
        ktape_analyze::import::import(&path, &mut memory, Default::default(), |_| {}).unwrap();
        let timeline = Timeline::new(memory.definitions, memory.events);
        let audit = serde_json::to_value(timeline.audit(0, true)).unwrap();
        for fault in ["overlaps", "graph_branches", "impossible", "before_launch", "unlaunched"] {
            let found = serde_json::json!([audit[fault]["count"], audit[fault]["ns"]]);
            assert_eq!(found, count[fault], "{name}: {fault}");
        }
        for figure in ["device_ns", "repaired_device_ns", "zero_duration"] {
            assert_eq!(audit[figure], count[figure], "{name}: {figure}");
        }
        let by_stream = overlaps_by_stream(&timeline);
        with_overlaps += by_stream.len();
        assert_eq!(by_stream, serde_json::from_value(count["overlaps_by_stream"].clone()).unwrap(), "{name}");
    }
    assert!(with_overlaps >= 2, "{with_overlaps} streams with overlaps");
}

/// Device and stream to the number of overlaps and their time.
fn overlaps_by_stream(timeline: &Timeline) -> BTreeMap<String, [u64; 2]> {
    let mut streams = BTreeMap::<String, Vec<DeviceOp>>::new();
    for op in timeline.device_ops().into_iter().filter(|op| op.timing == timing::MEASURED) {
        let stream: Stream = timeline.definitions.get(op.stream).unwrap();
        let context: Context = timeline.definitions.get(stream.context).unwrap();
        let device: Device = timeline.definitions.get(context.device).unwrap();
        streams.entry(format!("{}/{}", device.index, stream.native)).or_default().push(op);
    }
    let overlaps = streams.into_iter().map(|(name, ops)| {
        let mut order = StreamOrder::default();
        ops.iter().for_each(|op| order.see(op.stream, op.start_ns, op.duration_ns(), op.correlation));
        let overlaps = order.finish().overlaps;
        (name, [overlaps.count, overlaps.ns])
    });
    overlaps.filter(|(_, [count, _])| *count > 0).collect()
}

/// Of a recording with CUDA events it said that the busy time is the most that it can be, in which no graph is.
#[test]
fn of_what_is_only_bounded_the_bound_is_not_that_of_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.ktape");
    let mut tape = TapeWriter::create(&path, &Options::batch("test")).unwrap();
    tape.event(Launch { correlation: 1, ..Launch::default() }).unwrap();
    tape.event(GraphLaunch { start_ns: 9, correlation: 2, ..GraphLaunch::default() }).unwrap();
    let kernel = Kernel { start_ns: 1, duration_ns: 5, correlation: 1, timing: timing::BOUNDED, ..Kernel::default() };
    tape.event(kernel).unwrap();
    tape.finish().unwrap();
    let output = analyze(["info", path.to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("1 device operation with bounds instead of a device time: theirs is the most"), "{text}");
    assert!(text.contains("1 of 2 launches have no device work"), "{text}");
    assert!(text.contains("it is a graph's, around which there are no CUDA events"), "{text}");
}
