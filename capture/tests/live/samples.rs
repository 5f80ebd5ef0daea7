//! CPU samples: as many as there was processor time, where the threads were, and none lost.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{Frame, Process, Thread};
use ktape_format::event::CpuSample;
use ktape_format::{Table as _, Tape, Wanted};
use serde_json::Value;

use crate::processes::{Scene, pythons};

/// One sample, as a person reads it.
struct Seen {
    tid: i64,
    row: CpuSample,
    /// The innermost function; none without a stack.
    function: Option<String>,
}

/// The samples of one process.
fn samples(path: &str, pid: i64) -> Vec<Seen> {
    let contents = Tape::open(Path::new(path)).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
    let definitions = &contents.definitions;
    let seen = contents.events.cpu_sample.rows().filter_map(|row| {
        let thread = definitions.get::<Thread>(row.thread).expect("a thread");
        (definitions.get::<Process>(thread.process).expect("a process").pid == pid).then(|| Seen {
            tid: thread.tid,
            row,
            function: definitions.stack_nodes(row.stack).next().map(|(_, node)| {
                let frame = definitions.get::<Frame>(node.frame).expect("a frame");
                definitions.string(frame.name).to_owned()
            }),
        })
    });
    seen.collect()
}

/// Records a run, and returns what the program says in its last line, and the summary behind it.
fn record(scene: &Scene, hz: &str, options: &[&str], command: &[&str]) -> (String, Value) {
    let tape = scene.path("run.ktape");
    let mut run = scene.capture(&["run", "--json", "--cpu-hz", hz, "-o", &tape]);
    let output = run.args(options).arg("--").args(command).output().expect("capture starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    let (said, summary) = said.split_at(said.find("{\n").expect("a summary"));
    (said.trim().to_owned(), serde_json::from_str(summary).expect("a summary"))
}

/// How many standard deviations so many samples are off, of which each of `periods` gives one by chance.
fn off(count: usize, periods: f64) -> f64 {
    (count as f64 - periods) / periods.sqrt()
}

#[test]
fn running_threads_are_sampled_and_sleeping_ones_are_not() {
    for python in pythons() {
        let Some(scene) = Scene::new("CPU samples") else { return };
        let busy = scene.fixture("workloads/busy.py");
        let (said, summary) = record(&scene, "499", &[], &[&python, &busy, "--seconds", "3", "--idle"]);
        let told: Value = serde_json::from_str(&said).expect("what the program says");
        let summary = &summary["cpu_samples"];
        let number = |key: &str| summary[key].as_u64().expect("a number");
        assert_eq!((number("hz"), number("period_ns"), number("lost")), (499, 2_004_008, 0), "{summary}");
        let all = samples(&scene.path("run.ktape"), told["pid"].as_i64().expect("a number"));
        assert_eq!((number("seen"), number("written")), (all.len() as u64, all.len() as u64), "{summary}");
        // Memory that is not there, at the beginning and the end of a process.
        assert!(number("without_stack") < 20 && number("unknown_stacks") == 0, "{summary}");
        assert!(all.iter().all(|seen| seen.row.weight_ns == 2_004_008));
        assert!(all.is_sorted_by_key(|seen| seen.row.start_ns));
        // As much as the process's own clock says; its end comes after it was read.
        let periods = told["cpu_ns"].as_f64().expect("a number") / 2_004_008.0;
        assert!(off(all.len(), periods).abs() < 5.0, "{} samples, {periods} periods", all.len());
        // Two threads of 3 s each, and the one that is only there at the beginning and end: none that sleeps.
        let mut threads = BTreeMap::<i64, usize>::new();
        all.iter().for_each(|seen| *threads.entry(seen.tid).or_default() += 1);
        let mut counts: Vec<usize> = threads.into_values().collect();
        counts.sort_unstable();
        let worked = counts.split_off(counts.len() - 2);
        assert!(worked.iter().all(|&count| off(count, 3e9 / 2_004_008.0).abs() < 5.0), "{worked:?}");
        // Starting the interpreter takes some 50 ms.
        assert!(counts.len() <= 2 && counts.iter().sum::<usize>() < 150, "{counts:?}");
        let took = told["took_ns"].as_object().expect("by function");
        let of = |name: &str| all.iter().filter(|seen| seen.function.as_deref() == Some(name)).count();
        let total_ns: f64 = took.values().filter_map(Value::as_f64).sum();
        let found: usize = took.keys().map(|name| of(name)).sum();
        for (name, took_ns) in took {
            let share = took_ns.as_f64().expect("a number") / total_ns;
            let error = (share * (1.0 - share) / found as f64).sqrt();
            let is = of(name) as f64 / found as f64;
            assert!((is - share).abs() < 5.0 * error, "{name} took {share:.3}, samples say {is:.3} ± {error:.3}");
        }
    }
}

#[test]
fn processes_without_python_are_sampled_too() {
    let Some(scene) = Scene::new("CPU samples of a shell") else { return };
    let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; cat /proc/$$/stat";
    let (said, summary) = record(&scene, "999", &[], &["sh", "-c", spin]);
    let words: Vec<&str> = said.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks: f64 = words[11..13].iter().map(|word| word.parse::<f64>().expect("ticks")).sum();
    let pid = said.split_whitespace().next().expect("a number").parse().expect("a number");
    let all = samples(&scene.path("run.ktape"), pid);
    // The kernel says its time in hundredths of a second.
    let (few, many) = ((ticks - 2.0) * 9.99, (ticks + 3.0) * 9.99);
    let (least, most) = (few - 5.0 * few.sqrt(), many + 5.0 * many.sqrt());
    assert!(ticks > 10.0 && (least..most).contains(&(all.len() as f64)), "{} samples, {ticks} ticks", all.len());
    assert!(all.iter().all(|seen| seen.function.is_none()));
    assert_eq!(summary["cpu_samples"]["without_stack"], 0, "there is none to be read");
}

#[test]
fn a_sample_in_a_call_has_the_stack_of_the_call() {
    for python in pythons() {
        let Some(scene) = Scene::new("CPU samples in calls") else { return };
        record(&scene, "999", &["--launch-durations"], &[&python, &scene.fixture("workloads/shares.py"), "2000"]);
        let path = scene.path("run.ktape");
        let contents = Tape::open(Path::new(&path)).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
        let events = &contents.events;
        let mut launches: Vec<_> = events.launch.rows().collect();
        launches.sort_by_key(|row| row.start_ns);
        let (mut within, mut same) = (0, 0);
        for sample in events.cpu_sample.rows() {
            let after = launches.partition_point(|row| row.start_ns <= sample.start_ns);
            let Some(launch) = after.checked_sub(1).map(|at| launches[at]) else { continue };
            if sample.start_ns < launch.start_ns + launch.duration_ns as i64 && sample.thread == launch.thread {
                within += 1;
                same += u32::from(sample.stack == launch.stack);
            }
        }
        assert!(within > 50, "{within} samples in launches");
        assert_eq!(same, within, "of {within} samples in launches {same} have the launch's stack, line for line");
    }
}

#[test]
fn samples_that_found_no_room_are_told_as_losses() {
    for python in pythons() {
        let Some(scene) = Scene::new("lost CPU samples") else { return };
        let (tape, busy) = (scene.path("run.ktape"), scene.fixture("workloads/busy.py"));
        let script = "read go; \"$0\" $BUSY --seconds 3 > /dev/null; touch $DONE; read go";
        let arguments = ["run", "--json", "--buffer", "1", "--cpu-hz", "10000", "-o", &tape, "--", "sh", "-c", script];
        let mut run = scene.capture(&arguments);
        let done = scene.path("done");
        run.arg(&python).env("BUSY", busy).env("DONE", &done);
        // Two threads of 3 s at 10,000 a second are more than the buffer holds.
        let (code, summary) = crate::processes::Running::stalled(run, &done);
        let samples = &summary["cpu_samples"];
        let number = |key: &str| samples[key].as_u64().expect("a number");
        assert!(number("lost") > 1000, "{summary}");
        assert_eq!(number("seen"), number("written") + number("lost"), "{summary}");
        assert_eq!(code, Some(3), "{summary}");
        assert_eq!(crate::exact::lost(Path::new(&tape)), number("lost"), "the tape tells what the summary does");
    }
}
