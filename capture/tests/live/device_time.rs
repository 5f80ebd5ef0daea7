//! Probes for calls and the library inside for what the device did: both meet on CUPTI's number of a call.

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
