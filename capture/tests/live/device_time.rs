//! Probes for calls and the library inside for what the device did: both meet on CUPTI's number of a call, or on that of the library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use ktape_format::event::timing;
use ktape_format::recording::Recording;
use ktape_format::{Table as _, Tape, Wanted};
use ktape_simcuda_truth::{DeviceKind, Truth};
use serde_json::Value;

use crate::EXACT;
use crate::common::with_driver;
use crate::processes::{self, Scene, pythons, skip};

/// Kernels that are all launched at once, one after the other in a stream: as many as its argument says.
const QUEUED: &str = with_driver!(
    r#"
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\n")
gemm = handle(cu.cuModuleGetFunction, module, b"gemm")
for index in range(int(sys.argv[1])):
    check(cu.cuLaunchKernel(gemm, 1, 1, 1, 1, 1, 1, 0, None, None, None))
check(cu.cuCtxSynchronize())
"#
);

/// A scene with the stand-in CUPTI, and the library inside; `None`, and said, where one is not here.
fn scene() -> Option<(Scene, PathBuf)> {
    let library = Path::new(env!("CARGO_BIN_EXE_capture")).with_file_name("libktape_inside.so");
    if !library.exists() {
        skip("device times: no library inside: run cargo build -p ktape-inside");
        return None;
    }
    let scene = Scene::new("device times")?;
    if !scene.has_library("libcupti.so.12") {
        skip("device times: no stand-in CUPTI: run fixtures/simcuda/build.sh");
        return None;
    }
    Some((scene, library))
}

#[test]
fn what_the_device_did_in_other_segments_than_its_calls_is_proven_also_when_these_are_deleted() {
    const KERNELS: usize = 16;
    let analyze = Path::new(env!("CARGO_BIN_EXE_capture")).with_file_name("analyze");
    if !analyze.exists() {
        return skip("device times in segments: `analyze` has not been built beside `capture`");
    }
    let Some(python) = pythons().pop() else { return };
    for collector in ["inside", "both"] {
        let Some((scene, library)) = scene() else { return };
        let (directory, durations) = (scene.path("recording/"), scene.path("durations"));
        std::fs::write(&durations, "gemm 500000000\n").expect("a file");
        let mut run = scene.capture(&["run", "--json", "--collector", collector, "--device-time", "cupti"]);
        run.args(["--segment-time", "1s", "--keep-age", "3s", "-o", &directory, "--", &python, "-c", QUEUED]);
        run.env("KTAPE_INSIDE_LIBRARY", &library).env("SIMCUDA_DURATIONS", durations);
        let output = run.arg(KERNELS.to_string()).output().expect("capture starts");
        assert!(output.status.success(), "{collector}: {output:?}");

        let recording = Recording::list(directory.as_ref()).expect("a directory");
        let tapes: Vec<_> = recording.segments.iter().filter_map(|segment| segment.tape.as_ref()).collect();
        assert!(tapes.len() > 1 && tapes.len() < recording.segments.len(), "{recording:?}");
        let events = tapes.iter().map(|tape| Tape::open(tape).expect("a tape").read(&Wanted::default()));
        let began_before = events.map(|contents| {
            let events = contents.expect("a sound tape").events;
            // The clocks are read when a segment begins.
            let began_ns = events.clock.start_ns[0];
            events.kernel.start_ns.iter().filter(|&&start_ns| start_ns < began_ns).count()
        });
        assert!(began_before.sum::<usize>() > 0, "no kernel ran across the end of a segment");

        let verify = Command::new(&analyze).args(["verify", "--json", &directory]).output().expect("analyze starts");
        let checked: Value = serde_json::from_slice(&verify.stdout).expect("JSON");
        let completeness = &checked["completeness"];
        assert_eq!((verify.status.code(), &completeness["closed"]), (Some(0), &Value::Bool(true)), "{checked}");
        let accounts = completeness["by_kind"].as_array().expect("a list");
        let kernels = accounts.iter().find(|account| account["kind"] == "kernel").expect("an account of kernels");
        let counts = ["seen", "written", "lost", "on_tape"].map(|key| kernels[key].as_u64());
        assert_eq!(counts, [Some(KERNELS as u64), Some(KERNELS as u64), Some(0), Some(KERNELS as u64)], "{kernels}");
    }
}

#[test]
fn launches_that_probes_saw_meet_the_kernels_that_cupti_tells_of() {
    for python in pythons() {
        let Some((scene, library)) = scene() else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "--json", "--device-time", "cupti", "-o", &tape, "--"]);
        run.env("KTAPE_INSIDE_LIBRARY", &library);
        let output = run.args([python.as_str(), "-c", processes::LAUNCHES, "1000"]).output().expect("capture starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{python}: {said}");
        assert!(said.contains("collector: both"), "{said}");
        // The calls are as exact as without the library.
        scene.compare("run.ktape", EXACT);
        let truth = Truth::open(Path::new(&scene.path("truth"))).expect("the driver's record");
        let contents = Tape::open(Path::new(&tape)).expect("a tape").read(&Wanted::default()).expect("a sound tape");
        // The how-manieth launch each is: there is one thread.
        let launches: BTreeMap<u64, usize> =
            contents.events.launch.rows().enumerate().map(|(nth, row)| (row.correlation, nth)).collect();
        let calls = truth.calls().filter(|call| call.symbol == "cuLaunchKernel");
        let calls: BTreeMap<u64, usize> = calls.enumerate().map(|(nth, call)| (call.sequence, nth)).collect();
        let mut recorded = Vec::new();
        for row in contents.events.kernel.rows() {
            assert_eq!(row.timing, timing::MEASURED);
            let nth = launches.get(&row.correlation).expect("its launch");
            recorded.push((row.start_ns as u64, row.start_ns as u64 + row.duration_ns, *nth));
        }
        recorded.sort_unstable();
        let kernels = truth.device().filter(|row| row.kind == DeviceKind::Kernel);
        let mut ran: Vec<(u64, u64, usize)> =
            kernels.map(|row| (row.start_ns, row.end_ns, calls[&row.cause])).collect();
        ran.sort_unstable();
        assert_eq!(recorded.len(), 2000);
        assert!(recorded == ran, "{:?}", recorded.iter().zip(&ran).find(|(recorded, ran)| recorded != ran));
        assert_eq!(contents.events.memcpy.len(), 1, "the device tells it, and the call does not");
    }
}

/// Launches, and events of the program's own among them, in two streams.
const WITH_EVENTS: &str = with_driver!(
    r#"
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\n")
gemm, softmax = handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
first, second = handle(cu.cuStreamCreate, 1), handle(cu.cuStreamCreate, 1)
event = handle(cu.cuEventCreate, 0)
def launch(function, blocks, stream):
    check(cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 64, stream, None, None))
for index in range(int(sys.argv[1])):
    launch(gemm, 16 + index % 3, first)
    check(cu.cuEventRecord(event, first))
    check(cu.cuStreamWaitEvent(second, event, 0))
    launch(softmax, 8, second)
check(cu.cuCtxSynchronize())
"#
);

#[test]
fn launches_that_probes_saw_have_bounds_and_the_librarys_own_events_are_not_the_programs() {
    let library = Path::new(env!("CARGO_BIN_EXE_capture")).with_file_name("libktape_inside.so");
    if !library.exists() {
        return skip("events: no library inside: run cargo build -p ktape-inside");
    }
    for python in pythons() {
        let Some(scene) = Scene::new("events") else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "--json", "--device-time", "events", "-o", &tape, "--"]);
        run.env("KTAPE_INSIDE_LIBRARY", &library);
        let output = run.args([python.as_str(), "-c", WITH_EVENTS, "500"]).output().expect("capture starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{python}: {said}");
        assert!(said.contains("collector: both"), "{said}");
        let truth = Truth::open(Path::new(&scene.path("truth"))).expect("the driver's record");
        let contents = Tape::open(Path::new(&tape)).expect("a tape").read(&Wanted::default()).expect("a sound tape");
        let events = &contents.events;
        // The driver was asked for three times as many, and for what the library needs besides.
        assert!(truth.calls().filter(|call| call.symbol == "cuEventRecord").count() >= 2500);
        assert_eq!((events.event_record.len(), events.event_wait.len(), events.launch.len()), (500, 500, 1000));
        let asked = |name: &str| {
            contents.events.api.rows().any(|row| {
                let function = contents.definitions.get::<ktape_format::definition::Function>(row.function);
                function.is_some_and(|function| contents.definitions.string(function.name) == name)
            })
        };
        assert!(!asked("cuCtxPushCurrent_v2") && !asked("cuEventCreate"));
        let launches: BTreeMap<u64, usize> =
            events.launch.rows().enumerate().map(|(nth, row)| (row.correlation, nth)).collect();
        let calls = truth.calls().filter(|call| call.symbol == "cuLaunchKernel");
        let calls: BTreeMap<u64, usize> = calls.enumerate().map(|(nth, call)| (call.sequence, nth)).collect();
        let kernels = truth.device().filter(|row| row.kind == DeviceKind::Kernel);
        let ran: BTreeMap<usize, (u64, u64)> =
            kernels.map(|row| (calls[&row.cause], (row.start_ns, row.end_ns))).collect();
        assert_eq!((events.kernel.len(), ran.len()), (1000, 1000));
        for row in events.kernel.rows() {
            assert_eq!(row.timing, timing::BOUNDED);
            let (start_ns, end_ns) = ran[launches.get(&row.correlation).expect("its launch")];
            let (own_start_ns, own_end_ns) = (row.start_ns as u64, row.start_ns as u64 + row.duration_ns);
            // As far apart as readings of the host's clock on a busy machine.
            assert!(own_start_ns <= start_ns + 30_000 && own_end_ns + 30_000 >= end_ns, "{row:?} {start_ns} {end_ns}");
        }
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
        assert_eq!(summary["inside"]["events"]["launches"], 1000, "{summary}");
        assert_eq!((&summary["lost"], &summary["seen"]), (&0.into(), &summary["written"]), "{summary}");
    }
}
