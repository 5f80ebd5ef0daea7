//! Python stacks: on every CPython that is here, what is on the tape is what the program itself says, frame for frame.
//!
//! `fixtures/workloads/stacks` has the cases; each launches a kernel of its own name. One recording a version has all those
//! that need no process of their own, and each has a test here that looks at its kernel. The truth is what the stand-in
//! driver asks of the interpreter's C API during the call; of a part of the launches the program tells the same out of
//! `traceback.extract_stack`, and the driver counts where the two differ.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::EXACT;
use crate::exact::{self, Tally};
use crate::processes::{Scene, every_python, skip};

/// What a recording and the driver's record come to.
struct Outcome {
    kernels: BTreeMap<String, Tally>,
    /// What `capture` said at its end.
    summary: serde_json::Value,
    /// What the program said, where it said something.
    report: serde_json::Value,
}

impl Outcome {
    fn total(&self) -> Tally {
        let mut total = Tally::default();
        self.kernels.values().for_each(|tally| total.add(tally));
        total
    }

    /// Demands that every launch has its stack, and that nothing had to be counted as unknown.
    fn assert_exact(&self, what: &str) {
        for (kernel, tally) in &self.kernels {
            assert_equal(&format!("{what}, {kernel}"), tally);
        }
        assert!(self.total().launches > 0, "{what}: nothing was launched");
        let gaps = &self.summary["gaps"];
        let counted = [&self.summary["without_stack"], &gaps["unknown_stacks"], &gaps["unknown_frames"]];
        assert_eq!(counted, [0, 0, 0], "{what}: {}", self.summary);
    }
}

fn assert_equal(what: &str, tally: &Tally) {
    let Tally { launches, equal, differing, without, missing, example } = tally;
    assert_eq!(
        equal, launches,
        "{what}: of {launches} launches {differing} have another stack, {without} none, {missing} are missing\n{example}"
    );
}

/// Records a command, which launches, and compares the stacks of all processes that it had.
fn record(scene: &Scene, command: &[&str], prepare: impl FnOnce(&mut Command)) -> Outcome {
    let (tape, report) = (scene.path("run.ktape"), scene.path("report.json"));
    let mut run = scene.capture(&["run", "--json", "-o", &tape, "--"]);
    run.args(command);
    prepare(&mut run);
    let output = run.output().expect("capture starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    let mut kernels: BTreeMap<String, Tally> = BTreeMap::new();
    for truth in scene.truths() {
        assert_eq!(truth.unrecorded(), 0, "the driver could not record all");
        assert_eq!(truth.contradicted(), 0, "{command:?}: the program tells other stacks than the interpreter");
        let found = exact::tape(Path::new(&tape), truth.process(), EXACT);
        for (kernel, tally) in exact::tally(&exact::truth(&truth, EXACT), &found) {
            kernels.entry(kernel).or_default().add(&tally);
        }
    }
    let read = |path: &str| std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let summary = serde_json::from_slice(&output.stdout).expect("a summary");
    Outcome { kernels, summary, report: read(&report).unwrap_or_default() }
}

/// Records the workload with these arguments.
fn workload(scene: &Scene, python: &[&str], arguments: &[&str]) -> Outcome {
    let (program, report) = (scene.fixture("workloads/stacks"), scene.path("report.json"));
    let command = [python, &[&program, "--report", &report], arguments].concat();
    record(scene, &command, |_| {})
}

/// All cases of the workload, on each Python, recorded once.
fn all_cases() -> &'static [(&'static str, Outcome)] {
    static RUNS: OnceLock<Vec<(&str, Outcome)>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let run = |(version, python): &(&'static str, String)| {
            let scene = Scene::new("stacks")?;
            Some((*version, workload(&scene, &[python], &["--cases", "all"])))
        };
        every_python().iter().filter_map(run).collect()
    })
}

/// Looks at one case on each Python.
fn case(name: &str) {
    for (version, outcome) in all_cases() {
        if let Some(why) = outcome.report["missing"].get(name) {
            skip(&format!("{name} on {version}: {}", why.as_str().unwrap_or_default()));
            continue;
        }
        let tally = outcome.kernels.get(name).cloned().unwrap_or_default();
        assert!(tally.launches > 0, "{name} on {version} launched nothing");
        assert_equal(&format!("{name} on {version}"), &tally);
    }
}

macro_rules! cases {
    ($($(#[$attribute:meta])* $name:ident)*) => {
        const CASES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            $(#[$attribute])*
            fn $name() {
                case(stringify!($name));
            }
        )*
    };
}

cases! {
    lock_held_and_released
    generators
    yield_from
    generator_expressions
    decorators
    partial_and_lru_cache
    context_managers
    exceptions
    depths
    recursion_of_500_frames
    recursion_to_the_limit
    mutual_recursion
    exec_eval_and_lambda
    comprehensions
    class_bodies_and_metaclasses
    calls_over_several_lines
    special_methods
    names_in_cyrillic
    names_in_chinese
    names_of_emoji
    lone_surrogates
    paths_of_4000_bytes
    a_module_4000_directories_deep
    a_name_of_2000_characters
    a_location_table_above_4_kib
    lines_that_jump
    code_without_lines
    names_from_another_thread
    threads_200
    threads_that_come_and_go
    thread_pools
    queues_between_threads
    threads_below_threading
    asyncio_tasks
    asyncio_gather
    asyncio_generators
    asyncio_named_tasks
    asyncio_callbacks_and_executors
    asyncio_task_groups
    coroutines_by_hand
    greenlets
    c_that_calls_back
    ctypes_callbacks
    finalisers_and_weak_references
    trace_and_profile_functions
    signal_handlers
    at_exit_handlers
    code_freed_and_its_address_used_again
    code_freed_at_once
    code_that_differs_in_its_name_only
    code_that_differs_in_its_lines_only
    functions_of_a_factory
    code_replaced_in_a_function
    code_freed_by_threads
}

#[test]
fn every_case_of_the_workload_has_its_test() {
    for (version, outcome) in all_cases() {
        let ran = outcome.report["cases"].as_array().expect("a list").iter().filter_map(|name| name.as_str());
        let missing = outcome.report["missing"].as_object().expect("an object").keys().map(String::as_str);
        let mut told: Vec<&str> = ran.chain(missing).collect();
        let mut tested = CASES.to_vec();
        told.sort_unstable();
        tested.sort_unstable();
        assert_eq!(told, tested, "on {version}");
    }
}

/// Launches of the mix by all versions together; `KTAPE_MIX` is the number for each version instead.
const MIX: u64 = 1_000_000;

#[test]
fn a_million_launches_by_all_versions_have_their_stacks() {
    let pythons = every_python();
    let asked = std::env::var("KTAPE_MIX").ok().map(|number| number.parse().expect("a number"));
    let each = asked.unwrap_or(MIX / pythons.len().max(1) as u64).to_string();
    let mut rows = String::new();
    let mut faults = Vec::new();
    for (version, python) in pythons {
        let Some(scene) = Scene::new("a million stacks") else { return };
        let outcome = workload(&scene, &[python], &["--mix", &each, "--threads", "6"]);
        let Tally { launches, equal, differing, without, missing, example } = outcome.total();
        rows += &format!("| {version} | {launches} | {equal} | {differing} | {without} | {missing} |\n");
        if equal != launches {
            faults.push(format!("{version}: {example}"));
        } else {
            outcome.assert_exact(version);
        }
    }
    let table = format!("| Version | Launches | Equal | Differing | Without | Missing |\n{rows}");
    if asked.is_some() {
        std::io::Write::write_all(&mut std::io::stderr(), table.as_bytes()).expect("stderr is open");
    }
    assert!(faults.is_empty(), "{table}{}", faults.join("\n"));
}
