//! Time off the processor: held against the kernel's own counters, the threads' clocks, and what they asked for.

use std::path::Path;

use ktape_format::definition::{Process, Thread};
use ktape_format::event::{Event as _, OffCpu, off_cpu_reason};
use ktape_format::{Row as _, Table as _, Tape, Wanted};
use serde_json::Value;

use crate::processes::{Running, Scene, Target, pythons};
use crate::proof;

/// The stretches of one process, with their thread's number, by start.
fn stretches(path: &str, pid: i64) -> Vec<(i64, OffCpu)> {
    let contents = Tape::open(Path::new(path)).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
    let definitions = &contents.definitions;
    let all = contents.events.off_cpu.rows().filter_map(|row| {
        let thread = definitions.get::<Thread>(row.thread).expect("a thread");
        (definitions.get::<Process>(thread.process).expect("a process").pid == pid).then_some((thread.tid, row))
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(tid, row)| (*tid, row.start_ns));
    all
}

/// What the program says, and the summary behind it.
fn split(said: &[u8]) -> (Value, Value) {
    let said = std::str::from_utf8(said).expect("text");
    let (said, summary) = said.split_at(said.find("{\n").expect("a summary"));
    (serde_json::from_str(said).expect("what the program says"), serde_json::from_str(summary).expect("a summary"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

/// What a thread's counters rose by, and its stretches meanwhile.
struct Observed<'a> {
    told: &'a Value,
    rows: Vec<OffCpu>,
}

impl Observed<'_> {
    fn count(&self, is_one: impl Fn(u8) -> bool) -> u64 {
        self.rows.iter().filter(|row| is_one(row.reason)).count() as u64
    }

    fn told(&self, key: &str) -> u64 {
        number(&self.told[key])
    }
}

fn observed<'a>(all: &[(i64, OffCpu)], told: &'a Value) -> Observed<'a> {
    let tid = number(&told["tid"]) as i64;
    let within = number(&told["start_ns"]) as i64..number(&told["end_ns"]) as i64;
    let is_one = |(of, row): &&(i64, OffCpu)| *of == tid && within.contains(&row.start_ns);
    Observed { told, rows: all.iter().filter(is_one).map(|(_, row)| *row).collect() }
}

/// Each wait that the program tells of is time off the processor, from `slack_ns` less than it was meant to take to what it took.
///
/// Where the thread (or the whole machine, by its host) is stopped between setting the timer and leaving, the wait is shorter, or
/// does not come: seen as 59 sleeps of 60. Few of them may be so.
fn held_against_waits(observed: &Observed, waits: usize, slack_ns: u64) {
    let said = list(&observed.told["said"]);
    assert_eq!(said.len(), waits);
    let mut short = Vec::new();
    for wait in said {
        let [start_ns, end_ns, meant_ns] = [0, 1, 2].map(|index| number(&wait[index]));
        let within = observed.rows.iter().filter(|row| (start_ns as i64..end_ns as i64).contains(&row.start_ns));
        let off_ns: u64 = within.clone().map(|row| row.duration_ns).sum();
        assert!(off_ns <= end_ns - start_ns, "{off_ns} of {wait}");
        let sleeps = within.filter(|row| row.reason == off_cpu_reason::SLEEP);
        if off_ns + slack_ns < meant_ns || sleeps.map(|row| row.duration_ns).max() < Some(meant_ns / 2) {
            short.push((wait, off_ns));
        }
    }
    assert!(short.len() <= waits / 20, "{short:?}");
}

#[test]
fn stretches_off_the_processor_are_those_that_the_kernel_counts() {
    for python in pythons() {
        let Some(scene) = Scene::new("off CPU") else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "--json", "--off-cpu", "-o", &tape, "--"]);
        let output =
            run.args([python.as_str(), &scene.fixture("workloads/waits.py")]).output().expect("capture starts");
        let (told, summary) = split(&output.stdout);
        let summary = &summary["off_cpu"];
        // The kernel does not tell programs of all switches: what they miss by that they count.
        let lost = number(&summary["lost"]);
        let code = if lost == 0 { 0 } else { 3 };
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(lost < 20 && number(&summary["unbegun"]) <= lost, "recorded from the first instruction on: {summary}");
        assert_eq!(number(&summary["seen"]), number(&summary["written"]) + lost);
        assert_eq!(number(&summary["off_at_end"]), 0);
        assert_eq!(account(&tape), ["seen", "written", "lost"].map(|key| number(&summary[key])));
        let all = stretches(&tape, told["pid"].as_i64().expect("a number"));
        let is_apart = |a: &OffCpu, b: &OffCpu| a.end_ns() <= b.start_ns;
        assert!(all.is_sorted_by(|(tid, a), (other, b)| tid != other || is_apart(a, b)), "one at a time");
        assert!(all.iter().all(|(_, row)| row.runnable_ns <= row.duration_ns));
        let threads = &told["threads"];
        let (mut missing, mut whole) = (0, Vec::new());
        for (name, told) in threads.as_object().expect("threads") {
            let observed = observed(&all, told);
            let involuntary = observed.count(|code| code == off_cpu_reason::PREEMPTED);
            let voluntary = observed.rows.len() as u64 - involuntary;
            // To the switch, but for those that are counted as lost.
            let told = (observed.told("voluntary"), observed.told("involuntary"));
            assert!(voluntary <= told.0 && involuntary <= told.1, "{name}: {voluntary}, {involuntary} of {told:?}");
            let missed = told.0 - voluntary + told.1 - involuntary;
            missing += missed;
            if missed > 0 {
                continue;
            }
            whole.push(name.as_str());
            let wall_ns = observed.told("end_ns") - observed.told("start_ns");
            let off_ns: u64 = observed.rows.iter().map(|row| row.duration_ns).sum();
            // Where the host takes a processor away, clocks that are read on either side of that differ by as much: 20 ms once.
            let (ran_ns, slack_ns) = (wall_ns - off_ns, wall_ns / 100 + observed.told("stolen_ns"));
            assert!(ran_ns.abs_diff(observed.told("cpu_ns")) < slack_ns, "{name}: ran {ran_ns}: {:?}", observed.told);
            let runnable_ns: u64 = observed.rows.iter().map(|row| row.runnable_ns).sum();
            let delay_ns = observed.told("run_delay_ns");
            assert!(
                runnable_ns.abs_diff(delay_ns) < slack_ns,
                "{name}: waited {runnable_ns}, for the kernel {delay_ns}"
            );
        }
        assert!(missing <= lost, "{missing} stretches are missing, {lost} are told as lost");

        // Each wait is as long as it was meant to be, and not longer than it took.
        if ["sleeper", "blocked", "crowded"].iter().any(|name| !whole.contains(name)) {
            eprintln!("not held against what was asked for: {lost} stretches were lost, and the rest is {whole:?}");
            continue;
        }
        // The timer is set some microseconds before the thread leaves.
        held_against_waits(&observed(&all, &threads["sleeper"]), 60, 500_000);
        // A lock is a sleep until it is free; the other thread's timer begins some time after the wait.
        held_against_waits(&observed(&all, &threads["blocked"]), 20, 2_000_000);

        // Of two that compute on one processor neither has more than about half; what it has not, it waits for.
        let crowded = observed(&all, &threads["crowded"]);
        let waited_ns: u64 =
            crowded.rows.iter().filter(|row| row.reason == off_cpu_reason::PREEMPTED).map(|row| row.runnable_ns).sum();
        assert!(waited_ns > 600_000_000, "waited {waited_ns} of 2 s");
        let preempted = crowded.rows.iter().filter(|row| row.reason == off_cpu_reason::PREEMPTED);
        assert!(preempted.clone().all(|row| row.runnable_ns == row.duration_ns));
        let cpus: std::collections::BTreeSet<u32> = preempted.map(|row| row.cpu).collect();
        assert_eq!(cpus.len(), 1, "it was bound to one processor");
    }
}

#[test]
fn what_the_recording_cuts_is_counted_and_not_made_up() {
    for python in pythons() {
        let Some(scene) = Scene::new("off CPU in the middle") else { return };
        // It waits for its standard input, before, between and after.
        let mut target = Target::start(&scene, &python, crate::processes::LAUNCHES);
        let tape = scene.path("middle.ktape");
        let recorder = scene.attach_with(&target, "middle.ktape", &["--off-cpu"]);
        target.go_on_until(100);
        std::thread::sleep(std::time::Duration::from_millis(300));
        let said = recorder.stop();
        let all = stretches(&tape, i64::from(target.pid()));
        let main: Vec<&OffCpu> =
            all.iter().filter(|(tid, _)| *tid == i64::from(target.pid())).map(|(_, row)| row).collect();
        let attached = attached_ns(&tape);
        // It slept when the recording began, and that is no row.
        assert!(main.iter().all(|row| row.start_ns > attached), "{attached}: {main:?}");
        let last = main.last().expect("it sleeps");
        assert_eq!((last.reason, last.runnable_ns), (off_cpu_reason::SLEEP, 0), "{last:?}");
        assert!(last.duration_ns > 250_000_000, "until the end of the recording: {last:?}");
        assert!(!said.contains(" 0 threads were off before") && !said.contains(", 0 at the end"), "{said}");
        // What is off at the end is seen and written too.
        let [seen, written, lost] = account(&tape);
        let contents = proof::contents(Path::new(&tape));
        assert_eq!((seen, written), (written + lost, contents.events.off_cpu.len() as u64));
        target.end();
    }
}

/// Seen, written and lost, by the tape's account, which adds up for each processor and interval.
fn account(path: &str) -> [u64; 3] {
    let account = proof::account(&proof::contents(Path::new(path)));
    assert!(account.intervals.values().all(|is_closed| *is_closed), "{:?}", account.intervals);
    account.of_kinds.get(&OffCpu::KIND).copied().unwrap_or_default()
}

/// When the recording of a process began.
fn attached_ns(path: &str) -> i64 {
    let contents = Tape::open(Path::new(path)).and_then(|tape| tape.read(&Wanted::default())).expect("a tape");
    let attach = ktape_format::event::lifecycle_kind::ATTACH;
    contents.events.lifecycle.rows().find(|row| row.kind == attach).expect("attached").start_ns
}

#[test]
fn stretches_that_found_no_room_are_told_as_losses() {
    for python in pythons() {
        let Some(scene) = Scene::new("lost stretches") else { return };
        let (tape, done) = (scene.path("run.ktape"), scene.path("done"));
        // Two processes that wake each other.
        let switches = "import os
a, b = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(a[1])
    while os.read(a[0], 1): os.write(b[1], b'x')
    os._exit(0)
os.close(a[0])
for _ in range(30000): os.write(a[1], b'x'), os.read(b[0], 1)
os._exit(0)";
        let script = "read go; \"$0\" -c \"$PROGRAM\"; touch $DONE; read go";
        let mut run = scene.capture(&[
            "run",
            "--json",
            "--buffer",
            "1",
            "--off-cpu",
            "-o",
            &tape,
            "--",
            "sh",
            "-c",
            script,
            &python,
        ]);
        run.env("PROGRAM", switches).env("DONE", &done);
        let (code, summary) = Running::stalled(run, &done);
        let stretches = &summary["off_cpu"];
        let of = |key: &str| number(&stretches[key]);
        assert!(of("lost") > 10_000, "{summary}");
        assert_eq!(of("seen"), of("written") + of("lost"), "{summary}");
        assert_eq!(code, Some(3), "{summary}");
        assert_eq!(crate::exact::lost(Path::new(&tape)), of("lost"), "the tape tells what the summary does");
        let [seen, written, lost] = account(&tape);
        assert_eq!((seen - written, lost), (lost, of("lost")));
        assert_eq!(written, of("written") + of("off_at_end"));
    }
}
