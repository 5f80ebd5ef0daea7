//! Frames that `traceback` doesn't have, and frames of processes that are something else by now: on every CPython that is here.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{Frame, Shape, frame_kind};
use ktape_format::table::DefinitionKind;
use ktape_format::{Table as _, Tape, Wanted};

use crate::processes::{Scene, every_python, unsupported_pythons};

/// A task for each argument, called so; one for `-` is called nothing. The launches of the first have grids of 2 blocks, those of
/// the next of 3, and so on. Before them comes one launch, with 1: from then on the recorder knows where tasks are.
const TASKS: &str = r#"
import asyncio, ctypes, sys
cu = ctypes.CDLL("libcuda.so.1")
cu.cuInit(0)
cu.cuLaunchKernel.argtypes = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
def launch(blocks):
    cu.cuLaunchKernel(None, blocks, 1, 1, 1, 1, 1, 0, None, None, None)
async def inner(blocks):
    launch(blocks)
    await asyncio.sleep(0)
    launch(blocks)
async def outer(blocks, woken):
    for turn in range(5):
        await inner(blocks)
        # A step after a sleep that ends at once comes another way than one after a wait.
        await asyncio.sleep(0.001)
    await woken.wait()
    launch(blocks)
async def main():
    launch(1)
    await asyncio.sleep(0.5)
    woken = asyncio.Event()
    tasks = []
    for blocks, name in enumerate(sys.argv[1:], 2):
        named = {} if name == "-" else {"name": name}
        tasks.append(asyncio.create_task(outer(blocks, woken), **named))
    await asyncio.sleep(0.1)
    woken.set()
    await asyncio.gather(*tasks)
asyncio.run(main())
"#;

#[test]
fn a_stack_names_the_task_that_it_runs_in() {
    let long = "x".repeat(200);
    let names = ["prefill", "декод", "解码", "🐍", "Task-7b", &long, "-", "Task-7"];
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("tasks") else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "-o", &tape, "--"]);
        run.args([python.as_str(), "-c", TASKS]).args(names);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{version}: {output:?}");
        let mut expected = BTreeMap::from([((1, None), 1)]);
        for (blocks, name) in (2..).zip(names) {
            let told = match name {
                // One that nobody has named, and one that is called as if.
                "-" | "Task-7" => None,
                name if name.len() > 128 => Some(format!("task {}…", &name[..128])),
                name => Some(format!("task {name}")),
            };
            expected.insert((blocks, told), 11);
        }
        assert_eq!(tasks(Path::new(&tape)), expected, "{version}");
    }
}

/// More tasks with names than are kept, each of which launches once; before them one launch.
const MANY_TASKS: &str = r#"
import asyncio, ctypes
cu = ctypes.CDLL("libcuda.so.1")
cu.cuInit(0)
def launch():
    cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
async def one():
    launch()
async def main():
    launch()
    await asyncio.sleep(0.5)
    for number in range(3000):
        await asyncio.create_task(one(), name=f"request {number}")
        if number == 1500:
            await asyncio.sleep(0.5)
asyncio.run(main())
"#;

#[test]
fn a_process_that_names_every_task_has_no_stack_for_each() {
    let Some((_, python)) = every_python().last() else { return };
    let Some(scene) = Scene::new("many tasks") else { return };
    let tape = scene.path("run.ktape");
    let output = scene.capture(&["run", "-o", &tape, "--", python, "-c", MANY_TASKS]).output().expect("capture starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let tasks = tasks(Path::new(&tape));
    let named: usize = tasks.iter().filter(|((_, task), _)| task.is_some()).map(|(_, count)| count).sum();
    // The recorder takes some milliseconds to say that it is enough.
    assert!((1000..=1501).contains(&named), "{named} launches in a named task");
    assert_eq!(tasks[&(1, None)], 3001 - named);
    assert!(said.contains("after so many names of asyncio tasks no more are recorded"), "{said}");
}

/// Children that launch once and at once become another program.
const CHILDREN: &str = r#"
import ctypes, os
cu = ctypes.CDLL("libcuda.so.1")
def launch():
    cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def child():
    launch()
    os.execv("/bin/true", ["true"])
def main():
    launch()
    for _ in range(20):
        pid = os.fork()
        if not pid:
            child()
        os.waitpid(pid, 0)
main()
"#;

/// Records a program by each Python; demands that so many launches have these stacks, by their functions.
fn assert_names(test: &str, program: &str, expected: &[(&str, usize)]) {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new(test) else { return };
        let tape = scene.path("run.ktape");
        let output =
            scene.capture(&["run", "-o", &tape, "--", python, "-c", program]).output().expect("capture starts");
        assert!(output.status.success(), "{version}: {output:?}");
        let mut found = BTreeMap::new();
        for (_, frames) in launches(Path::new(&tape)) {
            let names: Vec<&str> = frames.iter().map(|(_, name)| name.as_str()).collect();
            *found.entry(names.join(" ")).or_default() += 1;
        }
        let expected = expected.iter().map(|&(names, count)| (names.to_owned(), count)).collect();
        assert_eq!(found, expected, "{version}");
    }
}

#[test]
fn a_child_that_has_become_another_program_keeps_the_names_of_its_frames() {
    assert_names("fork, launch, exec", CHILDREN, &[("launch child main <module>", 20), ("launch main <module>", 1)]);
}

/// The same, but they become another Python that launches, and the recorder hears of all of it when it is over.
const CHILDREN_WHILE_STOPPED: &str = r#"
import ctypes, os, signal, sys
cu = ctypes.CDLL("libcuda.so.1")
def launch():
    cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
SECOND = """
import ctypes
cu = ctypes.CDLL("libcuda.so.1")
def launch():
    cu.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def second():
    launch()
second()
"""
def child():
    launch()
    os.execv(sys.executable, [sys.executable, "-c", SECOND])
def main():
    recorder = os.getppid()
    os.kill(recorder, signal.SIGSTOP)
    launch()
    for _ in range(5):
        pid = os.fork()
        if not pid:
            child()
        os.waitpid(pid, 0)
    os.kill(recorder, signal.SIGCONT)
main()
"#;

#[test]
fn both_programs_of_a_child_keep_the_names_of_their_frames_while_the_recorder_stands_still() {
    let stacks = [("launch child main <module>", 5), ("launch second <module>", 5), ("launch main <module>", 1)];
    assert_names("fork, launch, exec, launch", CHILDREN_WHILE_STOPPED, &stacks);
}

#[test]
fn launches_of_a_python_that_is_not_supported_are_recorded_and_the_reason_is_told() {
    for (said, python) in unsupported_pythons() {
        let Some(scene) = Scene::new("unsupported Pythons") else { return };
        let tape = scene.path("run.ktape");
        let mut run = scene.capture(&["run", "-o", &tape, "--", &python, &scene.fixture("workloads/shares.py"), "40"]);
        let output = run.output().expect("capture starts");
        assert!(output.status.success(), "{python}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
        let launches = launches(Path::new(&tape));
        assert_eq!(launches.len(), 4000, "{python}");
        assert!(launches.iter().all(|(_, frames)| frames.is_empty()), "{python}");
        let contents = Tape::open(Path::new(&tape)).expect("it opens").read(&Wanted::default()).expect("it is read");
        let definitions = &contents.definitions;
        let kind = DefinitionKind::Process as u16;
        let told = (1..=definitions.processes.len() as u32).filter_map(|id| definitions.property(kind, id, "python"));
        assert!(told.into_iter().any(|told| told.contains(said)), "{python}");
    }
}

/// How many launches there are of so many blocks under a task of this name.
fn tasks(tape: &Path) -> BTreeMap<(u32, Option<String>), usize> {
    let mut tasks = BTreeMap::new();
    for (blocks, frames) in launches(tape) {
        let mut names = frames.into_iter().filter(|(kind, _)| *kind == frame_kind::RANGE).map(|(_, name)| name);
        *tasks.entry((blocks, names.next())).or_default() += 1;
        assert_eq!(names.next(), None, "a task within a task");
    }
    tasks
}

/// The launches on a tape: how many blocks, and the frames by kind and name, innermost first.
fn launches(tape: &Path) -> Vec<(u32, Vec<(u8, String)>)> {
    let tape = Tape::open(tape).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    let definitions = &contents.definitions;
    let launch = |launch: ktape_format::event::Launch| {
        let shape: Shape = definitions.get(launch.shape).expect("a shape");
        let frames = definitions.stack_nodes(launch.stack).filter_map(|(_, node)| definitions.get::<Frame>(node.frame));
        (shape.grid_x, frames.map(|frame| (frame.kind, definitions.string(frame.name).to_owned())).collect())
    };
    contents.events.launch.rows().map(launch).collect()
}
