//! `capture run` with the library inside, against the stand-in driver's own record: what the device did is on the tape to the
//! nanosecond, with the call that caused it. Without root: where the tests have it, they give it up for what they run.
//!
//! Needs the stand-ins (`fixtures/simcuda/build.sh`), the library (`cargo build -p ktape-inside`) and a Python that any user may run.
//! What is not there is said, and the test skipped, unless `KTAPE_REQUIRE_LIVE` is set.

#[path = "../live/common.rs"]
mod common;
mod events;
mod named;
mod programs;
mod scene;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ktape_format::definition::{Frame, Function, KernelName, Shape, Stack, Stream, property};
use ktape_format::event::timing;
use ktape_format::recording::Recording;
use ktape_format::table::DefinitionKind;
use ktape_format::{Contents, Table as _, Tape, Wanted};
use ktape_simcuda_truth::{CopyKind, DeviceKind, Truth};
use scene::{Outcome, Scene};

/// What the device did, as both sides tell it: when, what, by the function that caused it and when that was called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Did {
    start_ns: i64,
    end_ns: i64,
    what: String,
    stream: u64,
    function: String,
    /// The how-manieth call of its function it was.
    call: usize,
}

/// As the stand-in driver has it.
fn truth(truth: &Truth) -> Vec<Did> {
    let mut counts = BTreeMap::<String, usize>::new();
    let calls: BTreeMap<u64, (String, usize, u64)> = truth
        .calls()
        // Those that become no call on the tape are none of their function's.
        .filter(|call| call.correlation != 0)
        .map(|call| {
            let count = counts.entry(call.symbol.to_owned()).or_default();
            *count += 1;
            (call.sequence, (call.symbol.to_owned(), *count, call.stream))
        })
        .collect();
    let row = |row: ktape_simcuda_truth::Device<'_>| {
        let what = match row.kind {
            DeviceKind::Kernel => {
                format!("kernel {} {:?} {:?} {}", row.kernel.unwrap_or_default(), row.grid, row.block, row.shared_bytes)
            }
            DeviceKind::Copy => format!("copy {} {}", name_of(row.copy), row.bytes),
            DeviceKind::Set => format!("set {}", row.bytes),
            DeviceKind::Host => return None,
        };
        let (function, call, stream) = calls.get(&row.cause).cloned().unwrap_or_default();
        // As the call has it: the default stream is 0.
        let stream = if row.graph_id == 0 { stream } else { 0 };
        Some(Did { start_ns: row.start_ns as i64, end_ns: row.end_ns as i64, what, stream, function, call })
    };
    let mut rows: Vec<Did> = truth.device().filter_map(row).collect();
    rows.sort();
    rows
}

fn name_of(copy: Option<CopyKind>) -> &'static str {
    match copy {
        Some(CopyKind::HtoD) => "HtoD",
        Some(CopyKind::DtoH) => "DtoH",
        Some(CopyKind::DtoD) => "DtoD",
        Some(CopyKind::HtoH) => "HtoH",
        Some(CopyKind::PtoP) => "PtoP",
        None => "unknown",
    }
}

/// As the tape has it.
fn recorded(tape: &Contents) -> Vec<Did> {
    let (events, definitions) = (&tape.events, &tape.definitions);
    let mut counts = BTreeMap::<String, usize>::new();
    let launches = events.launch.rows().map(|row| (row.start_ns, row.correlation, row.function));
    let graphs = events.graph_launch.rows().map(|row| (row.start_ns, row.correlation, row.function));
    let others = events.api.rows().map(|row| (row.start_ns, row.correlation, row.function));
    let mut calls: Vec<(i64, u64, u32)> = launches.chain(graphs).chain(others).collect();
    calls.sort_unstable();
    let calls: BTreeMap<u64, (String, usize)> = calls
        .into_iter()
        .map(|(_, correlation, function)| {
            let name = definitions.get::<Function>(function).map_or(0, |function| function.name);
            let name = definitions.string(name).to_owned();
            let count = counts.entry(name.clone()).or_default();
            *count += 1;
            (correlation, (name, *count))
        })
        .collect();
    let stream = |id: u32, graph: u32| match graph {
        0 => definitions.get::<Stream>(id).map_or(0, |stream| stream.native),
        _ => 0,
    };
    let did = |start_ns: i64, duration_ns: u64, timing: u8, what, stream, correlation: u64| {
        assert_eq!(timing, timing::MEASURED, "{what}");
        let (function, call) = calls.get(&correlation).cloned().unwrap_or_default();
        Did { start_ns, end_ns: start_ns + duration_ns as i64, what, stream, function, call }
    };
    let kernels = events.kernel.rows().map(|row| {
        let shape = definitions.get::<Shape>(row.shape).expect("a shape");
        let name = definitions.get::<KernelName>(shape.kernel).map_or(0, |kernel| kernel.name);
        let what = format!(
            "kernel {} {:?} {:?} {}",
            definitions.string(name),
            [shape.grid_x, shape.grid_y, shape.grid_z],
            [shape.block_x, shape.block_y, shape.block_z],
            shape.dynamic_shared_bytes
        );
        did(row.start_ns, row.duration_ns, row.timing, what, stream(row.stream, row.graph), row.correlation)
    });
    let copies = events.memcpy.rows().map(|row| {
        let kind = ktape_format::event::copy_kind::NAMES[usize::from(row.kind)];
        let what = format!("copy {kind} {}", row.bytes);
        did(row.start_ns, row.duration_ns, row.timing, what, stream(row.stream, row.graph), row.correlation)
    });
    let sets = events.memset.rows().map(|row| {
        let what = format!("set {}", row.bytes);
        did(row.start_ns, row.duration_ns, row.timing, what, stream(row.stream, row.graph), row.correlation)
    });
    let mut rows: Vec<Did> = kernels.chain(copies).chain(sets).collect();
    rows.sort();
    rows
}

/// Holds the tape of one process against the driver's record.
fn compare(scene: &Scene, least: usize) -> Contents {
    let (truth, tape) = (truth(&scene.truth()), scene.tape());
    let recorded = recorded(&tape);
    assert!(truth.len() >= least, "{} rows of the device", truth.len());
    let differing = truth.iter().zip(&recorded).find(|(a, b)| a != b);
    assert_eq!((truth.len(), differing), (recorded.len(), None));
    tape
}

#[test]
fn what_the_device_did_is_on_the_tape_to_the_nanosecond_without_root() {
    let Some(scene) = Scene::new("device times") else { return };
    let Outcome { summary, said } = scene.run(&["--device-time", "cupti"], programs::WORK, &["300"]);
    assert!(said.contains("collector: inside"), "{said}");
    compare(&scene, 300 * 7);
    assert_eq!(summary["inside"]["states"]["recording"], 1, "{summary}");
    assert_eq!(summary["inside"]["of_unknown_calls"], 0, "{summary}");
    assert_eq!(summary["inside"]["launches_without_kernel"], 0, "{summary}");
    assert_eq!(summary["lost"], 0, "{summary}");
    assert_eq!(summary["seen"], summary["written"], "{summary}");
}

#[test]
fn a_million_rows_of_the_device_are_exact() {
    let Some(scene) = Scene::new("a million rows") else { return };
    let options = ["--device-time", "cupti", "--buffer", "1024"];
    let Outcome { summary, .. } = scene.run(&options, programs::WORK, &["143000"]);
    compare(&scene, 1_000_000);
    assert_eq!((&summary["lost"], &summary["inside"]["lost"]), (&0.into(), &0.into()), "{summary}");
}

#[test]
fn calls_have_the_python_stacks_that_made_them_without_root() {
    let Some(scene) = Scene::new("stacks") else { return };
    scene.run(&["--collector", "inside"], programs::WORK, &["50"]);
    let tape = scene.tape();
    let stacks: Vec<u32> = tape.events.launch.rows().map(|row| row.stack).collect();
    assert!(!stacks.is_empty());
    let leaf = |stack: u32| {
        let row = tape.definitions.get::<ktape_format::definition::Stack>(stack)?;
        let frame = tape.definitions.get::<ktape_format::definition::Frame>(row.frame)?;
        Some(tape.definitions.string(frame.name).to_owned())
    };
    let named = stacks.iter().filter(|&&stack| leaf(stack).as_deref() == Some("launch")).count();
    assert_eq!(named, stacks.len());
    assert!(tape.events.kernel.rows().next().is_none(), "nobody asked for the device's times");
}

#[test]
fn nothing_is_missing_and_the_tape_proves_it() {
    let Some(scene) = Scene::new("account") else { return };
    scene.run(&["--device-time", "cupti"], programs::WORK, &["100"]);
    let tape = scene.tape();
    let (mut told, mut there) = (BTreeMap::<u16, [u64; 3]>::new(), BTreeMap::<u16, u64>::new());
    for row in tape.events.tally.rows().filter(|row| row.kind != 0) {
        assert_eq!(row.cpu, 65_535, "processes count themselves");
        let sums = told.entry(row.kind).or_default();
        (sums[0], sums[1], sums[2]) = (sums[0] + row.seen, sums[1] + row.written, sums[2] + row.lost);
    }
    let events = &tape.events;
    for (kind, rows) in [
        (1, events.launch.len()),
        (3, events.api.len()),
        (4, events.kernel.len()),
        (5, events.memcpy.len()),
        (6, events.memset.len()),
    ] {
        there.insert(kind, rows as u64);
    }
    for (kind, rows) in there {
        assert_eq!(told.get(&kind), Some(&[rows, rows, 0]), "table {kind}");
    }
}

#[test]
fn what_recording_took_of_the_process_is_told_and_on_its_tape() {
    let Some(scene) = Scene::new("cost") else { return };
    let mut command = scene.command(&["--device-time", "cupti"], programs::WORK, &["1000"]);
    let output = command.env("SIMCUPTI_OVERHEAD", "2").output().expect("capture starts");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let cost = &summary["inside"]["cost"];
    let number = |name: &str| cost[name].as_u64().expect("a number");
    // An entry and a return of each, of which more is told than becomes a row: what only sets up.
    assert!(number("own_calls") >= 2 * 7 * 1000, "{cost}");
    assert!(number("own_ns") > 0 && number("keeper_ns") > 0 && number("process_ns") > number("own_ns"), "{cost}");
    // 2000 kernels, a thousand words, each sort a hundred times: the third took 5000 ns each.
    assert_eq!(cost["cupti_says_ns"]["resource"], 100 * 5000, "{cost}");
    assert_eq!(cost["driver_says_ns"]["command buffer full"], 100 * 8000, "{cost}");
    let tape = scene.tape();
    let process = DefinitionKind::Process as u16;
    let told = tape.definitions.property(process, 1, property::INSIDE_COST).expect("the cost");
    assert_eq!(&serde_json::from_str::<serde_json::Value>(told).expect("JSON"), cost);
}

#[test]
fn work_that_runs_past_its_successor_is_on_the_tape_as_it_is_and_counted() {
    let Some(scene) = Scene::new("overlapping") else { return };
    let mut command = scene.command(&["--device-time", "cupti"], programs::WORK, &["500"]);
    let output = command.env("SIMCUPTI_OVERRUN", "10").output().expect("capture starts");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    let events = scene.tape().events;
    let kernels = events.kernel.rows().map(|row| (row.stream, row.start_ns, row.duration_ns));
    let copies = events.memcpy.rows().map(|row| (row.stream, row.start_ns, row.duration_ns));
    let sets = events.memset.rows().map(|row| (row.stream, row.start_ns, row.duration_ns));
    let mut rows: Vec<_> = kernels.chain(copies).chain(sets).collect();
    rows.sort_unstable();
    let is_past = |pair: &&[(u32, i64, u64)]| pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 as i64 > pair[1].1;
    let past = rows.windows(2).filter(is_past).count();
    // Of a hundred that end late, the last of its stream may have none behind it.
    assert!((90..=100).contains(&past), "{past}");
    assert_eq!(summary["inside"]["overlapping"], past, "{summary}");
    let spots = summary["blind_spots"].as_array().expect("a list");
    assert!(spots.iter().any(|spot| spot["kind"] == "overlapping" && spot["count"] == past), "{summary}");
}

#[test]
fn what_a_killed_process_did_is_on_the_tape_as_far_as_it_was_told() {
    let Some(scene) = Scene::new("killed") else { return };
    let Outcome { summary, .. } = scene.run_until(137, &["--device-time", "cupti"], programs::KILLED, &["2000"]);
    let tape = scene.tape();
    let launches = tape.events.launch.len() as u64;
    assert_eq!(launches, 2000, "{summary}");
    let told = summary["inside"]["kernels"].as_u64().expect("a number");
    let cut_off = summary["inside"]["launches_cut_off"].as_u64().expect("a number");
    assert_eq!(told + cut_off, launches, "{summary}");
    // All that is told is true.
    let truth = truth(&scene.truth());
    for row in recorded(&tape) {
        assert!(truth.binary_search(&row).is_ok(), "{row:?}");
    }
}

#[test]
fn a_launch_that_is_refused_has_no_kernel_and_that_is_explained() {
    let Some(scene) = Scene::new("refused") else { return };
    let Outcome { summary, .. } = scene.run(&["--device-time", "cupti"], programs::REFUSED, &[]);
    assert_eq!(summary["inside"]["refused_launches"], 3, "{summary}");
    assert_eq!(summary["inside"]["launches_without_kernel"], 0, "{summary}");
    assert_eq!(summary["inside"]["launches_cut_off"], 0, "{summary}");
}

#[test]
fn nodes_of_a_graph_have_their_own_times_and_their_launch() {
    let Some(scene) = Scene::new("graphs") else { return };
    scene.run(&["--device-time", "cupti"], programs::GRAPHS, &["20"]);
    let tape = compare(&scene, 20 * 3);
    let graph = tape.events.graph_launch.rows().next().expect("a launch").graph;
    let of_graph: Vec<_> = tape.events.kernel.rows().filter(|row| row.graph == graph).collect();
    assert_eq!(of_graph.len(), 40);
    assert!(of_graph.iter().all(|row| row.graph_node != 0));
}

#[test]
fn launches_of_graphs_of_which_the_device_told_nothing_are_counted_but_not_of_empty_ones() {
    let Some(scene) = Scene::new("graphs untold") else { return };
    for (drop_buffers, untold) in [("0", 0), ("1", 20)] {
        let mut command = scene.command(&["--device-time", "cupti"], programs::FULL_AND_EMPTY_GRAPHS, &["20"]);
        let output = command.env("SIMCUPTI_DROP_BUFFERS", drop_buffers).output().expect("capture starts");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
        assert_eq!(scene.tape().events.graph_launch.len(), 40);
        let inside = &summary["inside"];
        assert_eq!(
            (&inside["kernels"], &inside["graph_launches_cut_off"]),
            (&(20 - untold).into(), &untold.into()),
            "{inside}"
        );
        let spots = summary["blind_spots"].as_array().expect("a list");
        assert_eq!(
            spots.iter().filter(|spot| spot["kind"] == "without_kernel").count(),
            (untold / 20) as usize,
            "{summary}"
        );
        std::fs::remove_file(scene.path("run.ktape")).expect("it is there");
    }
}

#[test]
fn children_are_recorded_unless_asked_not_to_and_then_have_the_environment_that_they_would_have_had() {
    let Some(scene) = Scene::new("children") else { return };
    let record = |options: &[&str], processes: u64| {
        let options = [options, &["--collector", "inside"]].concat();
        let Outcome { summary, .. } = scene.run(&options, programs::PARENT, &["parent", programs::PARENT]);
        assert_eq!((&summary["processes"], &summary["written"]), (&processes.into(), &summary["seen"]), "{summary}");
        assert_eq!(scene.tape().events.launch.len() as u64, processes);
        std::fs::remove_file(scene.path("run.ktape")).expect("it is there");
        let text = std::fs::read_to_string(scene.path("environment")).expect("the child's environment");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let (with, without) = (record(&[], 2), record(&["--no-children"], 1));
    let more: Vec<&String> = with.iter().filter(|line| !without.contains(line)).collect();
    assert_eq!(with.len(), without.len() + 2, "{with:?} {without:?}");
    assert!(more[0].starts_with("CUDA_INJECTION64_PATH=") && more[1].starts_with("KTAPE_INSIDE="), "{more:?}");
}

#[test]
fn the_first_calls_have_their_stacks_while_the_recorder_stands_still() {
    for options in [&["--collector", "inside"][..], &["--device-time", "cupti"], &["--device-time", "events"]] {
        let Some(scene) = Scene::new("a recorder that stands still") else { return };
        let Outcome { summary, .. } = scene.run(options, common::WHILE_STOPPED, &[programs::WORK, "100"]);
        let tape = scene.tape();
        assert_eq!(tape.events.launch.len(), 200, "{options:?}");
        assert!(tape.events.launch.rows().all(|launch| launch.stack != 0), "{options:?}");
        assert_eq!(summary["gaps"]["before_interpreter"], 0, "{options:?}: {summary}");
    }
}

/// What was told once, in the first, is not told again for the others: stacks, names, what they are of.
#[test]
fn each_segment_has_the_stacks_and_names_that_its_rows_refer_to() {
    const TURNS: usize = 8_000;
    let Some(scene) = Scene::new("segments") else { return };
    let options = ["--device-time", "cupti", "--segment-time", "1h", "--buffer", "1024"];
    let mut command = scene.command_onto("recording/", &options, programs::WORK, &[&TURNS.to_string()]);
    let child = command.stdout(std::process::Stdio::piped()).spawn().expect("capture starts");
    let directory = scene.path("recording");
    let segments = || Recording::list(&directory).map_or(0, |recording| recording.segments.len());
    let (began, mut asked) = (Instant::now(), 0);
    while asked < 3 && began.elapsed() < Duration::from_secs(60) {
        if segments() > asked {
            std::thread::sleep(Duration::from_millis(100));
            asked += 1;
            let pid = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("it is not waited for yet");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("capture ends");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert_eq!((&summary["lost"], &summary["inside"]["lost"]), (&0.into(), &0.into()), "{summary}");
    let recording = Recording::list(&directory).expect("segments");
    assert!(recording.segments.len() > 3, "{} segments", recording.segments.len());
    let (mut launches, mut kernels, mut was_told) = (0, 0, false);
    for (index, segment) in recording.segments.iter().enumerate() {
        let tape = Tape::open(segment.tape.as_ref().expect("its tape")).expect("a tape");
        let Contents { events, definitions, .. } = tape.read(&Wanted::default()).expect("a sound tape");
        for row in events.launch.rows() {
            let frame = definitions.get::<Stack>(row.stack).and_then(|stack| definitions.get::<Frame>(stack.frame));
            assert_eq!(frame.map(|frame| definitions.string(frame.name)), Some("launch"));
        }
        let names = events.launch.rows().map(|row| row.shape).chain(events.kernel.rows().map(|row| row.shape));
        let mut names = names.map(|shape| definitions.kernel_name(shape));
        assert!(names.all(|name| ["gemm", "softmax"].contains(&name)));
        launches += events.launch.len();
        kernels += events.kernel.len();
        let process = DefinitionKind::Process as u16;
        // The library says what it takes five times a second: of the first tenths it may not have yet.
        let is_told = definitions.property(process, 1, property::INSIDE_COST).is_some();
        assert!(is_told || !was_told || events.launch.is_empty(), "segment {index}");
        was_told |= is_told;
    }
    assert!(was_told, "what it took of the process");
    assert_eq!((launches, kernels), (2 * TURNS, 2 * TURNS));
}

#[test]
fn a_program_that_does_not_use_the_gpu_is_no_blind_spot_however_busy_it_is() {
    let Some(scene) = Scene::new("no GPU") else { return };
    const BUSY: &str = "import time\nend = time.time() + 6\nwhile time.time() < end: pass";
    let Outcome { summary, .. } = scene.run(&["--collector", "inside"], BUSY, &[]);
    assert_eq!(summary["blind_spots"], serde_json::json!([]), "{summary}");
}

#[test]
fn what_cannot_be_is_refused_before_the_command_begins() {
    let Some(scene) = Scene::new("refusals") else { return };
    let refused_with = |code: i32, options: &[&str], variables: &[(&str, &str)]| {
        let mut command = scene.command(options, programs::WORK, &["1"]);
        command.envs(variables.iter().copied());
        let output = command.output().expect("capture starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(!scene.has_truth(), "the command ran: {said}");
        said
    };
    // What this machine or environment has not, and options that exclude each other.
    let refused = |options: &[&str], variables: &[(&str, &str)]| refused_with(1, options, variables);
    let wrong = |options: &[&str]| refused_with(2, options, &[]);
    let inside = ["--collector", "inside"];
    assert!(refused(&inside, &[("KTAPE_INSIDE_LIBRARY", "/no/such/library")]).contains("KTAPE_INSIDE_LIBRARY"));
    let own = std::env::current_exe().expect("ours").display().to_string();
    assert!(refused(&inside, &[("KTAPE_INSIDE_LIBRARY", &own)]).contains("not a library of ktape's"));
    assert!(refused(&inside, &[("CUDA_INJECTION64_PATH", "/a/library.so")]).contains("is set already"));
    assert!(wrong(&["--collector", "outside", "--device-time", "cupti"]).contains("inside or both"));
    assert!(wrong(&["--collector", "inside", "--native"]).contains("--native"));
    assert!(refused(&["--collector", "both", "--device-time", "cupti"], &[]).contains("CAP_BPF"));
}
