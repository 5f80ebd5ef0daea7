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
use crate::exact::{self, Compared, Tally};
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

/// What is built in C for a Python; `None`, and said, where it can't be.
fn native(python: &str) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/workloads/stacks/build.sh");
    let output = Command::new(script).arg(python).output().expect("a shell");
    if !output.status.success() {
        skip(&format!("launches from C: {}", String::from_utf8_lossy(&output.stderr).trim()));
        return None;
    }
    Some(String::from_utf8(output.stdout).expect("a path").trim().to_owned())
}

/// All cases of the workload, on each Python, recorded once.
fn all_cases() -> &'static [(&'static str, Outcome)] {
    static RUNS: OnceLock<Vec<(&str, Outcome)>> = OnceLock::new();
    RUNS.get_or_init(|| {
        let run = |(version, python): &(&'static str, String)| {
            let scene = Scene::new("stacks")?;
            let native = native(python);
            let arguments = native.iter().flat_map(|native| ["--native", native]).chain(["--cases", "all"]);
            Some((*version, workload(&scene, &[python], &arguments.collect::<Vec<_>>())))
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
    fork_and_exec
    multiprocessing_by_spawn
    subinterpreters
    threads_of_subinterpreters
    subinterpreters_from_several_threads
    subinterpreters_with_their_own_lock
    launches_of_an_extension_module
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

/// Cases that free no code, and take little time: for what concerns the process as a whole.
const QUICK: &str = "lock_held_and_released,generators,decorators,c_that_calls_back,ctypes_callbacks,asyncio_gather";

/// Demands that the quick cases are exact in processes that are begun in this way, on each Python.
fn quick_cases(what: &str, command: impl Fn(&Scene, &str) -> Option<Vec<String>>) {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new(what) else { return };
        let Some(command) = command(&scene, python) else { continue };
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        let arguments = [command.as_slice(), &["--cases", QUICK]].concat();
        record(&scene, &arguments, |_| {}).assert_exact(&format!("{what} on {version}"));
    }
}

fn owned<const N: usize>(words: [&str; N]) -> Option<Vec<String>> {
    Some(words.map(str::to_owned).to_vec())
}

#[test]
fn with_import_times_and_optimised() {
    quick_cases("-X importtime -O", |scene, python| {
        owned([python, "-X", "importtime", "-O", &scene.fixture("workloads/stacks")])
    });
}

#[test]
fn in_development_mode_and_isolated() {
    quick_cases("-X dev -I", |scene, python| owned([python, "-X", "dev", "-I", &scene.fixture("workloads/stacks")]));
}

#[test]
fn with_memory_of_malloc() {
    quick_cases("PYTHONMALLOC=malloc", |scene, python| {
        owned(["env", "PYTHONMALLOC=malloc", python, &scene.fixture("workloads/stacks")])
    });
}

#[test]
fn in_a_virtual_environment() {
    quick_cases("venv", |scene, python| {
        let folder = scene.path("venv");
        let made = Command::new(python).args(["-m", "venv", "--without-pip", &folder]).status();
        assert!(made.expect("Python starts").success(), "{python}: no virtual environment");
        owned([&format!("{folder}/bin/python"), &scene.fixture("workloads/stacks")])
    });
}

#[test]
fn in_a_zipapp() {
    quick_cases("zipapp", |scene, python| {
        let archive = scene.path("stacks.pyz");
        let made =
            Command::new(python).args(["-m", "zipapp", &scene.fixture("workloads/stacks"), "-o", &archive]).status();
        assert!(made.expect("Python starts").success(), "{python}: no archive");
        owned([python, &archive])
    });
}

#[test]
fn embedded_in_a_program_in_c() {
    quick_cases("embedded", |scene, python| {
        let program = format!("{}/embedded", native(python)?);
        if !Path::new(&program).exists() {
            skip(&format!("embedded: {python} has no libpython"));
            return None;
        }
        owned([&program, &scene.fixture("workloads/stacks")])
    });
}

#[test]
fn with_a_stripped_libpython() {
    quick_cases("stripped", |scene, python| {
        let tell = "import sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'))";
        let output = Command::new(python).args(["-c", tell]).output().expect("Python starts");
        let library = String::from_utf8(output.stdout).expect("a path").trim().to_owned();
        let name = Path::new(&library).file_name()?.to_str()?.to_owned();
        // The driver's folder comes first where libraries are looked for.
        let copy = scene.driver(&name);
        let stripped = Command::new("strip").args(["--strip-all", "-o", &copy, &library]).status();
        if !name.contains(".so") || !stripped.is_ok_and(|status| status.success()) {
            skip(&format!("stripped: {python} has no library to strip, or there is no strip"));
            return None;
        }
        owned([python, &scene.fixture("workloads/stacks")])
    });
}

#[test]
fn forked_children_have_their_stacks() {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("forks") else { return };
        let outcome = workload(&scene, &[python], &["--forks", "--cases", "depths"]);
        outcome.assert_exact(version);
        // Three processes launch four times each.
        assert_eq!(outcome.kernels["forks"].launches, 12, "{version}");
        assert_eq!(scene.truths().len(), 4, "{version}");
    }
}

/// Threads without Python: every launch is there. What their stack is, see the recorder's own tests.
#[test]
fn threads_that_never_ran_python_are_recorded() {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("native threads") else { return };
        let Some(native) = native(python) else { continue };
        let outcome = workload(&scene, &[python], &["--native", &native, "--native-threads"]);
        let tally = &outcome.kernels["native_threads"];
        assert_eq!((tally.launches, tally.missing), (200, 0), "{version}");
    }
}

/// A process that writes over what is read of it, and then dies of that or goes on. The recorder must end, soon, with a tape
/// that has every launch.
#[test]
fn a_process_that_scrambles_its_own_python_is_recorded() {
    let mut damaged = None;
    for (version, python) in every_python() {
        let Some(native) = native(python) else { continue };
        for (seed, restores) in [("1", true), ("2", true), ("3", false)] {
            let Some(scene) = Scene::new("scrambled") else { return };
            let tape = scene.path("run.ktape");
            let mut run = scene.capture(&["run", "--json", "-o", &tape, "--", python]);
            run.arg(scene.fixture("workloads/stacks")).args(["--native", &native, "--scramble", seed]);
            // The driver would ask the interpreter, which is not fit to answer.
            run.args(restores.then_some("--restore")).env_remove("SIMCUDA_TRUTH_STACKS");
            let began = std::time::Instant::now();
            let output = run.output().expect("capture starts");
            let took = began.elapsed();
            assert!(took < std::time::Duration::from_secs(60), "{version}: {took:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            let ended = output.status.code();
            assert!(if restores { ended == Some(0) } else { ended.is_some() }, "{version}: {:?} {said}", output.status);
            let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
            let (pid, asked) = scene.asked(EXACT);
            let compared = Compared { stacks: false, ..EXACT };
            let recorded: usize = scene.recorded("run.ktape", pid, compared).values().map(Vec::len).sum();
            let lost = exact::lost(Path::new(&tape)) as usize;
            assert!(asked >= 20_000, "{version}: {asked} launches");
            assert_eq!(asked, recorded + lost, "{version}, seed {seed}: {summary}");
            // Stacks that couldn't be read, or not whole, are counted. Whether a walk meets a scrambled word is for the machine to
            // say, run by run.
            let gaps = &summary["gaps"];
            let counted = [&summary["without_stack"], &gaps["incomplete_stacks"], &gaps["unknown_frames"]];
            *damaged.get_or_insert(0) += counted.iter().filter_map(|count| count.as_u64()).sum::<u64>();
        }
    }
    assert_ne!(damaged, Some(0), "no stack met what was scrambled");
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
        let row = format!("| {version} | {launches} | {equal} | {differing} | {without} | {missing} |\n");
        if asked.is_some() {
            // A million each takes minutes: told as they come.
            std::io::Write::write_all(&mut std::io::stderr(), row.as_bytes()).expect("stderr is open");
        }
        rows += &row;
        if equal != launches {
            faults.push(format!("{version}: {example}"));
        } else {
            outcome.assert_exact(version);
        }
    }
    let table = format!("| Version | Launches | Equal | Differing | Without | Missing |\n{rows}");
    assert!(faults.is_empty(), "{table}{}", faults.join("\n"));
}
