//! What recording costs is told, and kept under a limit by keeping less of each event: never fewer events.

use std::path::Path;

use ktape_format::definition::Frame;
use ktape_format::event::lifecycle_kind;
use ktape_format::{Contents, Table as _, Tape, Wanted};
use serde_json::Value;

use crate::exact::Compared;
use crate::processes::{self, Scene, pythons};

/// What the stack of a call is called that was left out.
const LEFT_OUT: &str = "[stack left out to keep the cost of recording down]";

fn read(tape: &str) -> Contents {
    Tape::open(Path::new(tape)).and_then(|tape| tape.read(&Wanted::default())).expect("a tape")
}

/// Records launches, and returns the summary.
fn record(scene: &Scene, python: &str, options: &[&str], launches: &str) -> Value {
    let tape = scene.path("run.ktape");
    let mut run = scene.capture(&["run", "--json", "-o", &tape]);
    let output = run.args(options).args(["--", python, "-c", processes::LAUNCHES, launches]).output().expect("capture");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a summary")
}

#[test]
fn the_cost_of_recording_is_told() {
    let Some(scene) = Scene::new("cost") else { return };
    let Some(python) = pythons().pop() else { return };
    let summary = record(&scene, &python, &[], "30000");
    let spending = &summary["spending"];
    let number = |key: &str| spending[key].as_f64().expect("a number");
    let (hits, seen) = (number("hits"), summary["seen"].as_f64().expect("a number"));
    // Every launch is a hit; what returns is seen is another one.
    assert!(hits >= seen && hits < 1.2 * seen, "{summary}");
    let each_ns = number("probes_ns") / hits;
    assert!((200.0..50_000.0).contains(&each_ns), "{each_ns} ns a hit");
    let share = number("probes_ns") / summary["duration_ns"].as_f64().expect("a number");
    assert!(share > 0.0 && share < 1.0, "{share}");
    assert!(number("recorder_cpu_ns") > 0.0 && number("busiest_thread_share") > 0.0, "{summary}");
    assert_eq!(summary["fidelity_changes"].as_array().map(Vec::len), Some(0), "no limit was set");
    let contents = read(&scene.path("run.ktape"));
    let names: Vec<&str> =
        contents.definitions.counters.rows().map(|row| contents.definitions.string(row.name)).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(contents.events.counter.len() >= 3 && contents.events.counter.len().is_multiple_of(3));
}

#[test]
fn under_a_limit_less_is_kept_of_each_launch_and_no_launch_is_left_out() {
    let Some(scene) = Scene::new("limit") else { return };
    let Some(python) = pythons().pop() else { return };
    let summary = record(&scene, &python, &["--max-overhead", "0.1%", "--native", "--launch-durations"], "300000");
    // Every call is there, as the driver has it; stacks are not compared.
    scene.compare("run.ktape", Compared { launch_durations: false, stacks: false });
    let contents = read(&scene.path("run.ktape"));
    let definitions = &contents.definitions;
    let rows = contents.events.lifecycle.rows().filter(|row| row.kind == lifecycle_kind::FIDELITY);
    let steps: Vec<&str> = rows.map(|row| definitions.string(row.detail)).collect();
    let told: Vec<&str> =
        summary["fidelity_changes"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(steps, told);
    let order = ["no native frames", "cut to 32 frames", "cut to 8 frames", "one call in 4 ", "one call in 16 "];
    assert!(steps.len() > 2, "{steps:?}");
    assert!(steps.iter().zip(order).all(|(step, expected)| step.contains(expected)), "{steps:?}");
    assert!(steps[0].contains("the limit is 0.10 %"), "{}", steps[0]);
    let is_left_out = |stack: u32| {
        let node = definitions.stack_nodes(stack).next();
        let frame = node.and_then(|(_, node)| definitions.get::<Frame>(node.frame));
        frame.is_some_and(|frame| definitions.string(frame.name) == LEFT_OUT)
    };
    let launches = contents.events.launch.rows().filter(|row| is_left_out(row.stack)).count();
    let of_all = summary["gaps"]["stacks_left_out"].as_u64().expect("a number");
    assert_eq!(launches > 0, steps.len() > 3, "{steps:?}");
    assert!(launches as u64 <= of_all && of_all <= launches as u64 * 11 / 10 + 100, "{launches} of {of_all}");
}
