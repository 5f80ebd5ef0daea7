//! The recorder on real processes: eBPF on this kernel, CPython, the stand-in driver, whose own record is the truth.
//!
//! Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE), the stand-in driver (`fixtures/simcuda/build.sh`) and a CPython that is
//! recorded with stacks. What is not there is said, and the test skipped, unless `KTAPE_REQUIRE_LIVE` is set.

mod exact;
mod processes;

use exact::Compared;
use processes::{Scene, pythons};

#[test]
fn run_records_every_call_as_the_driver_has_it() {
    for python in pythons() {
        let Some(scene) = Scene::new("run") else { return };
        let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape"), "--"]);
        run.args([python.as_str(), "-c", processes::LAUNCHES, "1000"]);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        scene.compare("run.ktape", Compared { launch_durations: false, stacks: true });
    }
}
