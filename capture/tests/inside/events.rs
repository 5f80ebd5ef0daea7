//! `--device-time events`: CUDA events around launches, against the stand-in driver's own record.

use std::collections::BTreeMap;
use std::process::Command;

use ktape_format::definition::{KernelName, Shape, property};
use ktape_format::event::timing;
use ktape_format::table::DefinitionKind;
use ktape_format::{Contents, Table as _};
use ktape_simcuda_truth::{DeviceKind, Truth};

use crate::programs;
use crate::scene::{Outcome, PYTHON, Scene};

/// What a kernel's bounds may be off by for the clocks, on a busy machine.
const CLOCKS_NS: i64 = 30_000;

/// Kernels by the how-manieth launch they are: there is one thread, and one function that launches.
type Kernels = BTreeMap<usize, (i64, i64, String)>;

fn truth(truth: &Truth) -> Kernels {
    let calls =
        truth.calls().filter(|call| call.symbol == "cuLaunchKernel" && call.result == Some(0) && !call.captured);
    let nth: BTreeMap<u64, usize> = calls.enumerate().map(|(nth, call)| (call.sequence, nth)).collect();
    let rows = truth.device().filter(|row| row.kind == DeviceKind::Kernel);
    let rows = rows.filter_map(|row| {
        let name = row.kernel.unwrap_or_default().to_owned();
        Some((*nth.get(&row.cause)?, (row.start_ns as i64, row.end_ns as i64, name)))
    });
    rows.collect()
}

fn recorded(tape: &Contents) -> Kernels {
    let nth: BTreeMap<u64, usize> = tape
        .events
        .launch
        .rows()
        .filter(|row| row.result == 0)
        .enumerate()
        .map(|(nth, row)| (row.correlation, nth))
        .collect();
    let rows = tape.events.kernel.rows().map(|row| {
        assert_eq!(row.timing, timing::BOUNDED);
        let shape = tape.definitions.get::<Shape>(row.shape).expect("a shape");
        let name = tape.definitions.get::<KernelName>(shape.kernel).map_or(0, |kernel| kernel.name);
        let name = tape.definitions.string(name).to_owned();
        (nth[&row.correlation], (row.start_ns, row.start_ns + row.duration_ns as i64, name))
    });
    rows.collect()
}

/// That each kernel on the tape lies where the driver ran it, and that there are so many.
fn compare(scene: &Scene, count: usize) -> Contents {
    let (truth, tape) = (truth(&scene.truth()), scene.tape());
    let recorded = recorded(&tape);
    assert_eq!((recorded.len(), tape.events.kernel.len(), truth.len()), (count, count, count));
    for (nth, (start_ns, end_ns, name)) in &recorded {
        let (true_start_ns, true_end_ns, true_name) = &truth[nth];
        assert_eq!(name, true_name);
        assert!(start_ns - CLOCKS_NS <= *true_start_ns && end_ns + CLOCKS_NS >= *true_end_ns, "{nth}: {recorded:?}");
    }
    tape
}

/// What the tape says of where the device's times are from.
fn device_time(tape: &Contents) -> String {
    let thread = tape.events.launch.rows().next().expect("a launch").thread;
    let process = tape.definitions.process_of_thread(thread);
    let kind = DefinitionKind::Process as u16;
    tape.definitions.property(kind, process, property::DEVICE_TIME).unwrap_or_default().to_owned()
}

/// That launches have stacks, each.
fn have_stacks(tape: &Contents, summary: &serde_json::Value) {
    assert!(tape.events.launch.rows().all(|row| row.stack != 0));
    assert_eq!(summary["gaps"]["before_interpreter"], 0, "{summary}");
}

#[test]
fn kernels_are_bounded_by_events_with_their_calls_names_and_stacks_and_without_root() {
    let Some(scene) = Scene::new("events") else { return };
    let Outcome { summary, said } = scene.run(&["--device-time", "events"], programs::WORK, &["300"]);
    assert!(said.contains("collector: inside"), "{said}");
    let tape = compare(&scene, 600);
    have_stacks(&tape, &summary);
    // What is not timed is told by its call, as from outside.
    assert_eq!((tape.events.memcpy.len(), tape.events.memset.len()), (900, 600));
    assert!(tape.events.memcpy.rows().all(|row| row.timing != timing::MEASURED));
    // The library's own calls are none of the program's.
    assert_eq!(tape.events.event_record.len(), 0);
    assert_eq!(summary["inside"]["launches_without_kernel"], 0, "{summary}");
    assert_eq!(summary["inside"]["missing"], 0, "{summary}");
    assert_eq!(summary["seen"], summary["written"], "{summary}");
    assert_eq!(summary["inside"]["events"]["launches"], 600, "{summary}");
    assert!(summary["inside"]["events"]["own_ns"].as_u64().is_some_and(|ns| ns > 0), "{summary}");
    let said = device_time(&tape);
    assert!(said.starts_with("events: ") && said.contains("600 launches timed"), "{said}");
}

#[test]
fn where_cupti_has_another_client_launches_are_told_all_the_same_and_that_others_are_not() {
    let Some(scene) = Scene::new("events without CUPTI") else { return };
    let mut command = scene.command(&["--device-time", "events"], programs::WORK, &["1000"]);
    let output = command.env("SIMCUPTI_SUBSCRIBED", "nsys").output().expect("capture starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tape = compare(&scene, 2000);
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    have_stacks(&tape, &summary);
    assert_eq!((tape.events.api.len(), tape.events.memcpy.len()), (0, 0));
    let spots = summary["blind_spots"].as_array().expect("a list");
    assert!(spots.iter().any(|spot| spot["kind"] == "only_launches" && spot["count"] == 1), "{summary}");
    assert!(device_time(&tape).contains("launches alone"), "{}", device_time(&tape));
}

#[test]
fn graphs_are_recorded_as_without_events_and_said_to_have_no_times() {
    let Some(scene) = Scene::new("events and graphs") else { return };
    let Outcome { summary, .. } = scene.run(&["--device-time", "events"], programs::GRAPHS, &["20"]);
    let tape = scene.tape();
    assert_eq!((tape.events.graph_launch.len(), tape.events.kernel.len()), (20, 0));
    assert_eq!(
        summary["inside"]["events"]["untimed"],
        serde_json::json!({"captured": 2, "graph": 20, "out_of_scope": 0})
    );
    assert_eq!(summary["inside"]["missing"], 0, "{summary}");
}

/// A tape of those launches that the scope has, with the events around them.
fn scoped(test: &str, options: &[&str]) -> Option<(Contents, serde_json::Value)> {
    let scene = Scene::new(test)?;
    let options = [&["--device-time", "events"], options].concat();
    let Outcome { summary, .. } = scene.run(&options, programs::WORK, &["5000"]);
    let tape = scene.tape();
    assert_eq!(summary["seen"], summary["written"], "{summary}");
    assert_eq!((&summary["lost"], &summary["inside"]["of_unknown_calls"]), (&0.into(), &0.into()), "{summary}");
    assert_eq!(
        (&summary["gaps"]["returns_without_call"], &summary["inside"]["missing"]),
        (&0.into(), &0.into()),
        "{summary}"
    );
    Some((tape, summary))
}

#[test]
fn only_launches_of_kernels_that_are_asked_for_are_recorded_and_others_soon_get_no_events() {
    let Some((tape, summary)) = scoped("events by kernel", &["--kernel", "^ge.m$"]) else { return };
    assert_eq!((tape.events.launch.len(), tape.events.kernel.len()), (5000, 5000));
    let kernels = recorded(&tape);
    assert!(kernels.values().all(|(_, _, name)| name == "gemm"), "{kernels:?}");
    assert_eq!(summary["out_of_scope"]["launch"], 5000, "{summary}");
    let untimed = summary["inside"]["events"]["untimed"]["out_of_scope"].as_u64().expect("a number");
    let timed = summary["inside"]["events"]["launches"].as_u64().expect("a number");
    // Until the recorder has seen the other kernel once, it has events too.
    assert!(untimed > 0 && untimed + timed == 10_000, "{summary}");
}

#[test]
fn only_launches_from_python_files_that_are_asked_for_are_recorded() {
    let Some((tape, summary)) = scoped("events by file", &["--python-path", "<string>"]) else { return };
    // Those from before the recorder had found the interpreter have no stack, and so no file.
    let left_out = summary["out_of_scope"]["launch"].as_u64().unwrap_or(0);
    assert_eq!(tape.events.launch.len() as u64 + left_out, 10_000, "{summary}");
    assert!(tape.events.launch.rows().all(|row| row.stack != 0) && tape.events.launch.len() > 0, "{summary}");
    assert_eq!(tape.events.launch.len(), tape.events.kernel.len());
    let Some((tape, summary)) = scoped("events by file", &["--python-path", "*/model.py"]) else { return };
    assert_eq!((tape.events.launch.len(), tape.events.kernel.len()), (0, 0));
    assert_eq!(summary["out_of_scope"]["launch"], 10_000, "{summary}");
}

#[test]
fn the_program_does_not_notice() {
    let Some(scene) = Scene::new("events, unnoticed") else { return };
    let arguments = ["7"];
    let bare = Command::new(PYTHON)
        .args(["-c", programs::UNNOTICED])
        .args(arguments)
        .env("LD_LIBRARY_PATH", scene.driver())
        .output()
        .expect("python starts");
    let mut command = scene.command(&["--device-time", "events"], programs::UNNOTICED, &arguments);
    let output = command.output().expect("capture starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), bare.status.code()), (Some(7), Some(7)), "{said}");
    // The summary comes behind it.
    assert!(output.stdout.starts_with(&bare.stdout) && !bare.stdout.is_empty(), "{said}");
    assert!(scene.tape().events.kernel.len() >= 20);
}

#[test]
fn a_program_that_loads_no_library_is_refused_and_what_others_have_loaded_stays() {
    let Some(scene) = Scene::new("events, refused") else { return };
    let static_program = scene.path("static");
    let source = scene.path("static.c");
    std::fs::write(&source, "int main(void) { return 0; }").expect("ours");
    let compiled = Command::new("cc").arg("-static").arg("-o").arg(&static_program).arg(&source).status();
    if compiled.is_ok_and(|status| status.success()) {
        let mut command = scene.command_of("run.ktape", &["--device-time", "events"], &static_program);
        let output = command.output().expect("capture starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("linked statically"), "{said}");
    }
    // Another tool's library is the driver's to load: the first launch begins the recording.
    let mut command = scene.command(&["--device-time", "events"], programs::WORK, &["100"]);
    let output = command.env("CUDA_INJECTION64_PATH", "/no/other/tool.so").output().expect("capture starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    compare(&scene, 200);
    let program = "import os; print(os.environ['LD_PRELOAD'].split(':')[1:])";
    let mut command = scene.command(&["--device-time", "events"], program, &[]);
    let output = command.env("LD_PRELOAD", "libm.so.6").output().expect("capture starts");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("['libm.so.6']"), "{output:?}");
}
