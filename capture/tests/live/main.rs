//! The recorder on real processes: eBPF on this kernel, CPython, the stand-in driver, whose own record is the truth.
//!
//! Needs root (or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE), the stand-in driver (`fixtures/simcuda/build.sh`) and a CPython that is
//! recorded with stacks. What is not there is said, and the test skipped, unless `KTAPE_REQUIRE_LIVE` is set.

mod collectives;
mod common;
mod device_time;
mod early;
mod exact;
mod frames;
mod gpu_counters;
mod graphs;
mod names;
mod native;
mod node;
mod off_cpu;
mod overhead;
mod processes;
mod proof;
mod samples;
mod segments;
mod stacks;

use std::path::Path;

use exact::Compared;
use ktape_format::{Table as _, Tape, Wanted};
use processes::{Recorder, Scene, Target, pythons};

/// Everything that can be compared without a return probe at each launch.
const EXACT: Compared = Compared { launch_durations: false, stacks: true };

#[test]
fn run_records_every_call_as_the_driver_has_it() {
    for python in pythons() {
        let Some(scene) = Scene::new("run") else { return };
        let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape"), "--"]);
        run.args([python.as_str(), "-c", processes::LAUNCHES, "1000"]);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        scene.compare("run.ktape", EXACT);
    }
}

#[test]
fn launches_have_durations_and_results_on_request() {
    for python in pythons() {
        let Some(scene) = Scene::new("launch durations") else { return };
        let mut run = scene.capture(&["run", "--launch-durations", "-o", &scene.path("run.ktape"), "--"]);
        run.args([python.as_str(), "-c", processes::LAUNCHES, "200"]);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        scene.compare("run.ktape", Compared { launch_durations: true, ..EXACT });
    }
}

#[test]
fn the_end_of_a_terminal_ends_a_recording_as_ctrl_c_does() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("hang-up") else { return };
    let mut target = Target::start(&scene, &python, processes::LAUNCHES);
    let recorder = scene.attach(&target, "run.ktape");
    target.go_on_until(100);
    let said = recorder.hang_up();
    assert!(said.contains("lost: 0") || said.contains("0 lost"), "{said}");
    assert!(Tape::open(Path::new(&scene.path("run.ktape"))).expect("the tape opens").is_closed());
    target.end();
    let calls = scene.compare_middle("run.ktape", EXACT);
    assert!(calls >= 180, "{calls}");
}

#[test]
fn run_ends_as_its_command_does() {
    let Some(scene) = Scene::new("exit codes") else { return };
    let tape = scene.path("run.ktape");
    let code = |command: &[&str]| {
        let mut run = scene.capture(&["run", "-q", "-o", &tape, "--"]);
        run.args(command).status().expect("capture starts").code()
    };
    assert_eq!(code(&["true"]), Some(0));
    assert_eq!(code(&["sh", "-c", "exit 7"]), Some(7));
    assert_eq!(code(&["sh", "-c", "kill -9 $$"]), Some(128 + 9));
    assert_eq!(code(&["no-such-program"]), Some(1));
    // Also where nobody listens any more: it ended with 1.
    for options in [&["-o", &tape, "--"][..], &["--json", "-o", &tape, "--"]] {
        let mut run = scene.capture(&[&["run"], options, &["sh", "-c", "exit 7"]].concat());
        let closed = || std::io::pipe().expect("a pipe").1;
        assert_eq!(run.stdout(closed()).stderr(closed()).status().expect("capture starts").code(), Some(7));
    }
    assert_eq!(scene.capture(&["run"]).output().expect("capture starts").status.code(), Some(2));
}

#[test]
fn attach_records_from_the_middle_on_and_leaves_no_trace() {
    for python in pythons() {
        let Some(scene) = Scene::new("attach") else { return };
        let mut target = Target::start(&scene, &python, processes::LAUNCHES);
        let text = target.library_text();
        target.go_on_until(500);
        let first = scene.attach(&target, "first.ktape");
        target.go_on_until(1500);
        first.stop();
        processes::assert_same_text(&target.library_text(), &text);
        target.go_on_until(2000);
        let second = scene.attach(&target, "second.ktape");
        target.go_on_until(3000);
        target.end();
        second.wait();
        for (tape, most) in [("first.ktape", 1400), ("second.ktape", 1400)] {
            let recorded = scene.compare_middle(tape, EXACT);
            // Each turn has two launches; turns while the recorder comes and goes are a few.
            assert!((1000..2 * most).contains(&recorded), "{tape}: {recorded} calls");
        }
    }
}

#[test]
fn a_kernel_whose_handle_is_older_than_the_recording_has_the_name_of_its_host_stub() {
    for python in pythons() {
        let Some(scene) = Scene::new("host stubs") else { return };
        let mut target = Target::start(&scene, &python, processes::STUBS);
        let recorder = scene.attach(&target, "stubs.ktape");
        target.go_on_until(500);
        target.end();
        recorder.wait();
        let recorded = scene.compare_middle("stubs.ktape", EXACT);
        assert!(recorded >= 490, "{recorded} calls");
    }
}

#[test]
fn what_a_killed_process_did_is_on_the_tape() {
    for python in pythons() {
        let Some(scene) = Scene::new("killed target") else { return };
        let mut target = Target::start(&scene, &python, processes::LAUNCHES);
        let recorder = scene.attach(&target, "killed.ktape");
        target.go_on_until(1000);
        target.kill();
        recorder.wait();
        scene.compare_middle("killed.ktape", EXACT);
    }
}

#[test]
fn what_a_killed_recorder_saw_is_on_the_tape() {
    for python in pythons() {
        let Some(scene) = Scene::new("killed recorder") else { return };
        let mut target = Target::start(&scene, &python, processes::LAUNCHES);
        let text = target.library_text();
        let recorder = scene.attach(&target, "cut.ktape");
        target.go_on_until(5000);
        target.go_on_until(10_000);
        recorder.kill();
        target.go_on_until(10_200);
        processes::assert_same_text(&target.library_text(), &text);
        target.end();
        // What was in the ring buffer is gone with it; what it had taken is there.
        let recorded = scene.compare_middle("cut.ktape", EXACT);
        assert!(recorded > 5000, "{recorded} calls");
    }
}

#[test]
fn children_are_recorded_with_their_parent() {
    for python in pythons() {
        let Some(scene) = Scene::new("children") else { return };
        let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape"), "--"]);
        run.env("PROGRAM", processes::LAUNCHES).args(["sh", "-c", "\"$0\" -c \"$PROGRAM\" 300", python.as_str()]);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        scene.compare("run.ktape", EXACT);
    }
}

#[test]
fn only_the_command_itself_is_recorded_where_that_is_asked_for() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("no children") else { return };
    let child = "import os, subprocess\nif os.environ.pop('WITH_CHILD', None):\n    \
                 subprocess.run([sys.executable, '-c', os.environ['PROGRAM'], sys.argv[1]], check=True)\n";
    let program = format!("{}\n{child}", processes::LAUNCHES);
    for (options, processes) in [(["--no-children"].as_slice(), 1), (&[], 2)] {
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&[["run", "--json", "-o", &tape].as_slice(), options, &["--"]].concat());
        run.env("PROGRAM", &program).env("WITH_CHILD", "1").args([&python, "-c", &program, "300"]);
        let output = run.output().expect("capture starts");
        let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
        assert_eq!(summary["processes"], processes, "{summary}");
        let contents = Tape::open(Path::new(&tape)).expect("a tape").read(&Wanted::default()).expect("a sound tape");
        assert_eq!(contents.events.launch.len(), 600 * processes, "{summary}");
        std::fs::remove_file(&tape).expect("it is there");
    }
}

/// Records a program of `fixtures/`, and holds the tape against the driver's record.
fn record_exactly(test: &str, python: &str, program: &str, arguments: &[&str]) {
    let Some(scene) = Scene::new(test) else { return };
    let program = scene.fixture(program);
    let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape"), "--", python, &program]);
    let output = run.args(arguments).output().expect("capture starts");
    assert!(output.status.success(), "{python} {program}: {}", String::from_utf8_lossy(&output.stderr));
    scene.compare("run.ktape", EXACT);
}

#[test]
fn every_function_is_recorded_with_its_arguments_and_result() {
    for python in pythons() {
        record_exactly("every function", &python, "workloads/calls.py", &[]);
    }
}

#[test]
fn an_inference_service_is_recorded_exactly() {
    for python in pythons() {
        record_exactly("service", &python, "workloads/serve.py", &["--requests", "12", "--seed", "5"]);
    }
}

#[test]
fn a_million_launches_are_recorded_exactly() {
    if let Some(python) = pythons().pop() {
        let arguments = ["--launches", "250000", "--threads", "4", "--depth", "20", "--distinct-stacks", "64"];
        record_exactly("a million launches", &python, "workloads/launches.py", &arguments);
    }
}

/// The kernel's map of what was sent is half full with 65,536: then everything counts as not sent.
#[test]
fn more_stacks_than_are_remembered_are_recorded_exactly() {
    if let Some(python) = pythons().pop() {
        let arguments = ["--launches", "150000", "--threads", "1", "--depth", "30", "--distinct-stacks", "70000"];
        record_exactly("many stacks", &python, "workloads/launches.py", &arguments);
    }
}

#[test]
fn real_clients_are_recorded_exactly() {
    for version in ["311", "312"] {
        let Some(python) = processes::client(version) else { continue };
        // All but the last resolve what they call through `cuGetProcAddress`, and call through the pointers.
        for client in ["with_bindings.py", "with_core.py", "with_numba.py", "with_cudart.py"] {
            record_exactly("real clients", &python, &format!("simcuda/clients/{client}"), &[]);
        }
    }
}

#[test]
fn the_real_driver_is_recorded_too() {
    for python in pythons() {
        let Some(scene) = Scene::new("real driver").and_then(Scene::with_real_driver) else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "--launch-durations", "-o", &tape, "--"]);
        let output = run.args([python.as_str(), "-c", processes::REFUSED, "2000"]).output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        let said = String::from_utf8(output.stdout).expect("numbers");
        let said: Vec<i64> = said.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let &[pid, answer, count] = said.as_slice() else { panic!("{said:?}") };
        assert_ne!(answer, 0, "there is no GPU here");
        let compared = Compared { launch_durations: true, ..EXACT };
        let threads = scene.recorded("run.ktape", pid as u32, compared);
        let (calls, before): (Vec<_>, Vec<_>) =
            threads.values().flatten().partition(|timed| &*timed.call.function == "cuLaunchKernel");
        assert_eq!(before.iter().map(|timed| &*timed.call.function).collect::<Vec<_>>(), ["cuInit"]);
        assert_eq!(calls.len() as i64, count, "each call once, by symbol or by pointer");
        for (index, recorded) in calls.iter().enumerate() {
            let call = &recorded.call;
            assert_eq!(i64::from(call.result), answer);
            let blocks = 1 + (index as u32 / 2) % 7;
            assert_eq!((call.grid, call.block, call.shared_bytes), ([blocks, 2, 3], [4, 5, 6], 7));
            assert_eq!((call.stack.len(), call.stack[0].2), (1, if index % 2 == 0 { 12 } else { 13 }));
        }
    }
}

#[test]
fn what_a_stalled_recorder_loses_is_counted_to_the_call() {
    for python in pythons() {
        let Some(scene) = Scene::new("losses") else { return };
        let said = Recorder::stalled(&scene, &python, "holes.ktape");
        let (pid, asked) = scene.asked(EXACT);
        let recorded: usize = scene.recorded("holes.ktape", pid, EXACT).values().map(Vec::len).sum();
        let lost = exact::lost(std::path::Path::new(&scene.path("holes.ktape"))) as usize;
        assert!(lost > 10_000, "{lost} lost of {asked}");
        // What came before the recorder are the calls of ten turns, and those that set the driver up.
        let before = asked - recorded - lost;
        assert!((20..30).contains(&before), "{asked} asked, {recorded} recorded, {lost} lost: {said}");
        assert!(said.contains(&format!("{} seen, {recorded} written, {lost} lost", recorded + lost)), "{said}");
    }
}

#[test]
fn calls_of_a_process_whose_beginning_was_lost_are_on_the_tape_or_told() {
    for python in pythons() {
        let Some(scene) = Scene::new("lost beginnings") else { return };
        let (tape, done) = (scene.path("run.ktape"), scene.path("done"));
        // The first program fills the buffer; of the others' fork, exec and end nothing comes through.
        let script =
            "read go; \"$0\" -c \"$PROGRAM\" 20000; for n in 1 2 3; do \"$0\" -c \"$PROGRAM\" 50; done; touch $DONE
            read go; \"$0\" -c \"$PROGRAM\" 50";
        let mut run =
            scene.capture(&["run", "--json", "--buffer", "1", "-o", &tape, "--", "sh", "-c", script, &python]);
        run.env("PROGRAM", processes::LAUNCHES).env("DONE", &done);
        let (code, summary) = processes::Running::stalled(run, &done);
        let number = |key: &str| summary[key].as_u64().expect("a number");
        assert_eq!(code, Some(3), "{summary}");
        assert!(number("lost") > 10_000, "{summary}");
        assert_eq!(number("seen"), number("written") + number("lost"), "{summary}");
        assert_eq!(exact::lost(std::path::Path::new(&tape)), number("lost"), "the tape tells what the summary does");
    }
}
