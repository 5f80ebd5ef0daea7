//! Names of asyncio tasks in stacks, on every CPython that is here.

use std::collections::BTreeMap;
use std::path::Path;

use ktape_format::definition::{Frame, Shape, frame_kind};
use ktape_format::{Table as _, Tape, Wanted};

use crate::processes::{Scene, every_python};

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

/// How many launches there are of so many blocks under a task of this name.
fn tasks(tape: &Path) -> BTreeMap<(u32, Option<String>), usize> {
    let tape = Tape::open(tape).expect("the tape opens");
    let contents = tape.read(&Wanted::default()).expect("the tape is read");
    let definitions = &contents.definitions;
    let mut tasks = BTreeMap::new();
    for launch in contents.events.launch.rows() {
        let shape: Shape = definitions.get(launch.shape).expect("a shape");
        let frames = definitions.stack_nodes(launch.stack).filter_map(|(_, node)| definitions.get::<Frame>(node.frame));
        let names = frames.filter(|frame| frame.kind == frame_kind::RANGE).map(|frame| definitions.string(frame.name));
        let names: Vec<&str> = names.collect();
        assert!(names.len() <= 1, "{names:?}");
        *tasks.entry((shape.grid_x, names.first().map(|name| (*name).to_owned()))).or_default() += 1;
    }
    tasks
}
