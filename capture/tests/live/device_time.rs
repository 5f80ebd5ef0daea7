//! Probes for calls and the library inside for what the device did: both meet on CUPTI's number of a call, or on that of the library.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::event::timing;
use ktape_format::{Table as _, Tape, Wanted};
use ktape_simcuda_truth::{DeviceKind, Truth};

use crate::EXACT;
use crate::processes::{self, Scene, pythons, skip};

#[test]
fn launches_that_probes_saw_meet_the_kernels_that_cupti_tells_of() {
    let library = Path::new(env!("CARGO_BIN_EXE_capture")).with_file_name("libktape_inside.so");
    if !library.exists() {
        return skip("device times: no library inside: run cargo build -p ktape-inside");
    }
    for python in pythons() {
        let Some(scene) = Scene::new("device times") else { return };
        if !scene.has_library("libcupti.so.12") {
            return skip("device times: no stand-in CUPTI: run fixtures/simcuda/build.sh");
        }
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
const WITH_EVENTS: &str = r#"
import ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code: raise SystemExit(f"CUresult {code}")
def handle(function, *arguments):
    out = ctypes.c_void_p()
    check(function(ctypes.byref(out), *arguments))
    return out
check(cu.cuInit(0))
check(cu.cuCtxSetCurrent(handle(cu.cuDevicePrimaryCtxRetain, 0)))
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
"#;

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
