//! `capture node`: processes that come and go, in containers, in and out of scope; what a service needs.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use ktape_format::definition::property;
use ktape_format::table::DefinitionKind;
use ktape_format::{Table as _, Tape, Wanted};
use rustix::process::Signal;

use crate::EXACT;
use crate::common::with_driver;
use crate::exact::{self, Compared, Threads};
use crate::processes::{LAUNCHES, Scene, Target, every_python, pythons, skip};

/// Calls alone: how soon the interpreter of a process that lives for milliseconds is known is not the question here.
const CALLS: Compared = Compared { launch_durations: false, stacks: false };

/// Waits a little between loading the driver and calling it, as a real one does for longer; then as [`LAUNCHES`].
const SLOW: &str = "import ctypes, time; ctypes.CDLL('libcuda.so.1'); time.sleep(0.5)";

/// A recorder of the node.
struct Node {
    child: Child,
    said: BufReader<ChildStderr>,
    folder: PathBuf,
}

impl Node {
    fn start(scene: &Scene, options: &[&str]) -> Node {
        let folder = scene.path("node");
        let mut command = scene.capture(&["node", "-o", &folder, "--json"]);
        Node::begin(command.args(options))
    }

    fn begin(command: &mut Command) -> Node {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("capture starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("capture says something");
        let folder = line.strip_prefix("recording the node into ").and_then(|rest| rest.split(';').next());
        let node = Node { child, said, folder: PathBuf::from(folder.unwrap_or_default()) };
        assert!(folder.is_some(), "{line}");
        node
    }

    fn signal(&self, signal: Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("it is ours");
    }

    /// Ends the recording as a service manager would. Returns the summary, and the recording.
    fn end(mut self) -> (serde_json::Value, PathBuf) {
        // What has just ended is to be seen as ended.
        std::thread::sleep(Duration::from_millis(100));
        self.signal(Signal::TERM);
        let mut summary = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut summary).expect("capture speaks");
        let mut said = String::new();
        self.said.read_to_string(&mut said).expect("capture speaks");
        let status = self.child.wait().expect("it is ours");
        assert!(status.success(), "{status}: {said} {summary}");
        let summary: serde_json::Value = serde_json::from_str(&summary).expect("a summary");
        assert_eq!(summary["lost"], 0, "{summary}");
        assert_eq!(summary["seen"], summary["written"], "{summary}");
        (summary, self.folder.clone())
    }
}

/// Nobody else ends it if its test fails.
impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The segments of a recording.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.ends_with(".ktape") && !name.ends_with(".rollup.ktape")
    };
    let mut segments: Vec<PathBuf> = files.filter(is_segment).collect();
    segments.sort();
    assert!(!segments.is_empty(), "nothing was recorded");
    segments
}

/// The calls of a process in all segments.
fn calls_of(folder: &Path, pid: u32, compared: Compared) -> Threads {
    let mut all = Threads::new();
    for segment in segments(folder) {
        for (thread, calls) in exact::tape(&segment, pid, compared) {
            all.entry(thread).or_default().extend(calls);
        }
    }
    all.values_mut().for_each(|calls| calls.sort_by_key(|timed| timed.start_ns));
    all
}

/// A program on the stand-in driver whose stacks the driver does not ask.
fn light(scene: &Scene, python: &str, arguments: &[&str]) -> Command {
    let mut command = scene.program(python);
    command.env_remove("SIMCUDA_TRUTH_STACKS").args(["-I", "-S", "-c"]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Demands that all that the driver was asked by all its processes is on the tape. Returns how many calls that are.
fn assert_all_recorded(scene: &Scene, folder: &Path, compared: Compared) -> usize {
    // One number may have been that of several programs.
    let mut expected = std::collections::BTreeMap::<u32, Threads>::new();
    for truth in scene.truths() {
        assert_eq!(truth.unrecorded(), 0, "the driver could not record all");
        let threads = expected.entry(truth.process()).or_default();
        for (thread, calls) in exact::truth(&truth, compared) {
            let all = threads.entry(thread).or_default();
            all.extend(calls);
            all.sort_by_key(|timed| timed.start_ns);
        }
    }
    for (pid, expected) in &expected {
        let differences = exact::differences(expected, &calls_of(folder, *pid, compared));
        assert!(differences.is_empty(), "process {pid}:\n{differences}");
    }
    let lost: u64 = segments(folder).iter().map(|segment| exact::lost(segment)).sum();
    assert_eq!(lost, 0, "events were lost");
    expected.values().flat_map(Threads::values).map(Vec::len).sum()
}

/// The numbers of the processes in a recording of one segment whose command line has this in it.
fn pids_of(folder: &Path, marker: &str) -> Vec<u32> {
    let [tape] = &segments(folder)[..] else { panic!("several segments") };
    let contents = Tape::open(tape).expect("the tape opens").read(&Wanted::default()).expect("the tape is read");
    let command = |id| contents.definitions.property(DefinitionKind::Process as u16, id, property::COMMAND);
    let marked = (1..).zip(contents.definitions.processes.rows());
    let marked = marked.filter(|(id, _)| command(*id).is_some_and(|command| command.contains(marker)));
    marked.map(|(_, process)| process.pid as u32).collect::<BTreeSet<u32>>().into_iter().collect()
}

#[test]
fn processes_that_come_and_go_are_recorded_each_from_its_first_call_to_its_last() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node") else { return };
    let node = Node::start(&scene, &[]);
    let (rounds, at_once) = (50, 4);
    for _ in 0..rounds {
        let mut children: Vec<Child> =
            (0..at_once).map(|_| light(&scene, &python, &[LAUNCHES, "20"]).spawn().expect("it starts")).collect();
        children.iter_mut().for_each(|child| assert!(child.wait().expect("it is ours").success()));
    }
    let (summary, folder) = node.end();
    assert_eq!(scene.truths().len(), rounds * at_once);
    let calls = assert_all_recorded(&scene, &folder, CALLS);
    assert!(calls >= rounds * at_once * 40, "{calls} calls");
    assert!(summary["processes"].as_u64().expect("a number") >= (rounds * at_once) as u64, "{summary}");
}

#[test]
fn a_process_has_its_stacks_while_the_recorder_stands_still_if_its_python_is_known() {
    for (version, python) in every_python() {
        let Some(scene) = Scene::new("a node's recorder that stands still") else { return };
        let run = || {
            let status = scene.program(python).args(["-c", LAUNCHES, "50"]).stdin(Stdio::null()).status();
            assert!(status.expect("it starts").success(), "{version}");
        };
        let node = Node::start(&scene, &[]);
        // The first of its Python; what of that is known, and when, is the recorder's luck.
        let mut first = light(&scene, python, &[SLOW]).spawn().expect("it starts");
        assert!(first.wait().expect("it is ours").success());
        node.signal(Signal::STOP);
        (0..3).for_each(|_| run());
        node.signal(Signal::CONT);
        let (summary, folder) = node.end();
        assert!(assert_all_recorded(&scene, &folder, EXACT) > 3 * 100, "{version}");
        assert_eq!(summary["gaps"]["before_interpreter"], 0, "{summary}");
    }
}

/// A parent that launches, children of it that are the same program and launch, one of which becomes another program.
const FAMILY: &str = with_driver!(
    r#"
import os, time
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\n")
gemm = handle(cu.cuModuleGetFunction, module, b"gemm")
def launch(count):
    for blocks in range(count):
        check(cu.cuLaunchKernel(gemm, 1 + blocks, 1, 1, 32, 1, 1, 0, None, None, None))
"#
);

#[test]
fn what_forks_and_becomes_another_program_is_recorded() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node, fork and exec") else { return };
    let node = Node::start(&scene, &[]);
    // A forked child's driver refuses everything: the calls are calls all the same.
    let family = format!(
        "{FAMILY}\nlaunch(30)\ntime.sleep(0.3)\npid = os.fork()\nif not pid:\n    for _ in range(7): cu.cuCtxSynchronize()\n    time.sleep(0.3)\n    os._exit(0)\nos.waitpid(pid, 0)\n\
         launch(5)\nos.execv(sys.executable, [sys.executable, '-I', '-S', '-c', {LAUNCHES:?}, '40'])"
    );
    assert!(light(&scene, &python, &[&family]).status().expect("it starts").success());
    let (_, folder) = node.end();
    assert_eq!(scene.truths().len(), 3, "of the one program, of its child, of the other");
    assert_all_recorded(&scene, &folder, CALLS);
    let contents =
        Tape::open(&segments(&folder)[0]).expect("the tape opens").read(&Wanted::default()).expect("the tape is read");
    let of_family = pids_of(&folder, "launch(30)");
    // The parent has the command of the program that it became.
    let [child] = of_family.as_slice() else { panic!("{of_family:?}") };
    assert_eq!(recorded(&folder, *child), 7);
    assert!(contents.events.launch.len() >= 35 + 80);
}

/// Copies a file that will be executed.
///
/// By a process of its own: a file that is open for writing cannot be executed ("Text file busy"), and what this process has open is
/// open in each child that another test forks meanwhile, until that executes something.
fn copy_program(from: &str, to: &str) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp starts").success(), "{from} to {to}");
}

/// A process in a mount namespace where the driver and the interpreter are copies, in a pid namespace, or both.
fn contained(namespaces: &[&str]) {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new(&format!("node, {namespaces:?}")) else { return };
    let node = Node::start(&scene, &[]);
    // Copies that nobody has mapped before, at the paths of others.
    let copies = scene.path("copies");
    std::fs::create_dir(&copies).expect("a folder");
    std::fs::copy(scene.driver("libcuda.so.1"), format!("{copies}/libcuda.so.1")).expect("a copy");
    copy_program(&python, &format!("{copies}/python"));
    // Another test's may run at the same time, and is of the node too.
    let marker = format!("400 marked{}.", namespaces.concat());
    let script =
        format!("mount --bind $0/libcuda.so.1 $1 && mount --bind $0/python $2 && exec $2 -I -S -c \"$3; $4\" {marker}");
    let mut command = Command::new("unshare");
    command.args(namespaces).args(["sh", "-c"]);
    if namespaces.contains(&"--mount") {
        command.arg(script).args([&copies, &scene.driver("libcuda.so.1"), &python, SLOW, LAUNCHES]);
    } else {
        command.arg(format!("exec $0 -I -S -c \"$1; $2\" {marker}")).args([&python, SLOW, LAUNCHES]);
    }
    command.env("LD_LIBRARY_PATH", scene.driver("")).env("SIMCUDA_TRUTH", scene.path("truth"));
    command.env("SIMCUDA_TRUTH_STACKS", "1").stdin(Stdio::null());
    let output = command.output().expect("unshare starts");
    if !output.status.success() && String::from_utf8_lossy(&output.stderr).contains("not permitted") {
        skip("no namespaces here");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let (_, folder) = node.end();
    let truth = scene.truths().pop().expect("it called");
    let pids: Vec<u32> = pids_of(&folder, &marker);
    let [pid] = pids.as_slice() else { panic!("{pids:?}") };
    if namespaces.contains(&"--pid") {
        assert_ne!(truth.process(), *pid, "it has another number inside");
    }
    let compared = Compared { launch_durations: false, stacks: true };
    // One thread, whose number is another inside too.
    let alone = |threads: Threads| Threads::from([(0, threads.into_values().flatten().collect())]);
    let (expected, found) = (alone(exact::truth(&truth, compared)), alone(calls_of(&folder, *pid, compared)));
    assert!(expected[&0].len() > 800);
    // The first, which has the driver begin, is where its interpreter is found.
    let without_first = |mut threads: Threads| {
        threads.values_mut().for_each(|calls| drop(calls.drain(..calls.len().min(100))));
        threads
    };
    let differences = exact::differences(&without_first(expected.clone()), &without_first(found.clone()));
    assert!(differences.is_empty(), "{differences}");
    assert_eq!(found[&0].len(), expected[&0].len(), "every call");
}

#[test]
fn a_process_with_its_own_files_is_recorded() {
    contained(&["--mount"]);
}

#[test]
fn a_process_with_its_own_numbers_is_recorded() {
    contained(&["--pid", "--fork"]);
}

#[test]
fn a_process_in_a_container_is_recorded() {
    contained(&["--mount", "--pid", "--fork", "--mount-proc"]);
}

#[test]
fn a_process_that_began_before_is_recorded_with_its_stacks() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node, older process") else { return };
    let mut target = Target::start(&scene, &python, LAUNCHES);
    target.go_on_until(100);
    let node = Node::start(&scene, &[]);
    target.go_on_until(1100);
    target.end();
    let (_, folder) = node.end();
    std::fs::rename(&segments(&folder)[0], scene.path("older.ktape")).expect("it is there");
    let recorded = scene.compare_middle("older.ktape", crate::EXACT);
    assert!(recorded >= 1990, "{recorded} calls");
}

#[test]
fn two_recorders_at_once_are_both_complete() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("two recorders") else { return };
    let node = Node::start(&scene, &[]);
    let mut run = scene.capture(&["run", "-q", "-o", &scene.path("run.ktape"), "--", &python, "-c", LAUNCHES, "3000"]);
    assert!(run.status().expect("capture starts").success());
    let (_, folder) = node.end();
    scene.compare("run.ktape", crate::EXACT);
    assert!(assert_all_recorded(&scene, &folder, CALLS) > 6000);
}

#[test]
fn one_folder_has_one_recorder() {
    let Some(scene) = Scene::new("node, one folder") else { return };
    let node = Node::start(&scene, &[]);
    let second = scene.capture(&["node", "-o", &scene.path("node")]).output().expect("capture starts");
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another recorder"), "{second:?}");
    node.end();
}

/// How many calls of a process are in a recording.
fn recorded(folder: &Path, pid: u32) -> usize {
    calls_of(folder, pid, CALLS).values().map(Vec::len).sum()
}

/// Runs a process that launches 200 times, and returns its number.
fn launch(command: &mut Command) -> u32 {
    let mut child = command.spawn().expect("it starts");
    assert!(child.wait().expect("it is ours").success());
    child.id()
}

#[test]
fn only_processes_of_a_name_are_recorded_and_the_others_counted() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node --comm") else { return };
    // The name is that of the file.
    let trainer = scene.path("trainer-7");
    std::os::unix::fs::symlink(&python, &trainer).expect("a link");
    let node = Node::start(&scene, &["--comm", "train?r*", "--comm", "nobody"]);
    let inside = launch(&mut light(&scene, &trainer, &[LAUNCHES, "100"]));
    let outside = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    let (summary, folder) = node.end();
    let asked = |pid| {
        scene
            .truths()
            .iter()
            .filter(|truth| truth.process() == pid)
            .map(|truth| exact::truth(truth, CALLS))
            .flat_map(Threads::into_values)
            .map(|calls| calls.len())
            .sum::<usize>()
    };
    assert_eq!((recorded(&folder, inside), recorded(&folder, outside)), (asked(inside), 0));
    // Other tests' processes are out of this scope as well.
    let left_out = |group: &str| summary["out_of_scope"][group].as_u64().unwrap_or(0);
    assert!(left_out("launch") >= 200 && left_out("mem") >= 2 && left_out("other") >= 2, "{summary}");
}

#[test]
fn only_processes_of_a_number_are_recorded() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node --pid") else { return };
    let mut inside = Target::start(&scene, &python, LAUNCHES);
    let mut outside = Target::start(&scene, &python, LAUNCHES);
    let node = Node::start(&scene, &["--pid", &inside.pid().to_string(), "--pid", "1"]);
    inside.go_on_until(110);
    outside.go_on_until(110);
    let pids = (inside.pid(), outside.pid());
    inside.end();
    outside.end();
    let (_, folder) = node.end();
    assert!(recorded(&folder, pids.0) >= 200);
    assert_eq!(recorded(&folder, pids.1), 0);
}

/// A control group of our own; `None`, and said, where there can be none.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new(name: &str) -> Option<ControlGroup> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let made = mount.map(|mount| PathBuf::from(mount).join(format!("ktape-{name}-{}", std::process::id())));
        let made = made.filter(|path| std::fs::create_dir(path).is_ok());
        if made.is_none() {
            skip("no control group can be made");
        }
        made.map(ControlGroup)
    }

    /// Has a command begin in the group, or one below.
    fn begin(&self, command: &mut Command, below: &str) {
        let folder = self.0.join(below);
        std::fs::create_dir_all(&folder).expect("a group below");
        // SAFETY: opening and writing a file, which is all that is allowed between fork and exec.
        unsafe { command.pre_exec(move || std::fs::write(folder.join("cgroup.procs"), "0")) };
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for below in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let _ = std::fs::remove_dir(below.path());
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn only_processes_of_a_control_group_are_recorded() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node --cgroup") else { return };
    let Some(group) = ControlGroup::new("scope") else { return };
    let node = Node::start(&scene, &["--cgroup", &group.0.display().to_string()]);
    let mut command = light(&scene, &python, &[LAUNCHES, "100"]);
    group.begin(&mut command, "");
    let inside = launch(&mut command);
    let mut command = light(&scene, &python, &[LAUNCHES, "100"]);
    group.begin(&mut command, "below");
    let below = launch(&mut command);
    let outside = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    let (_, folder) = node.end();
    assert!(recorded(&folder, inside) >= 200 && recorded(&folder, below) >= 200);
    assert_eq!(recorded(&folder, outside), 0);
}

#[test]
fn functions_that_are_not_asked_for_get_no_probes() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node --functions") else { return };
    let node = Node::start(&scene, &["--functions", "launch,sync"]);
    let pid = launch(&mut light(&scene, &python, &[LAUNCHES, "150"]));
    let (summary, folder) = node.end();
    let contents =
        Tape::open(&segments(&folder)[0]).expect("the tape opens").read(&Wanted::default()).expect("the tape is read");
    let found: Vec<_> = calls_of(&folder, pid, CALLS).into_values().flatten().collect();
    assert_eq!(found.iter().filter(|timed| &*timed.call.function == "cuLaunchKernel").count(), 300);
    assert!(found.iter().all(|timed| !timed.call.function.contains("Mem")), "{found:?}");
    // Names are never left out.
    assert!(found.iter().any(|timed| &*timed.call.kernel == "gemm"));
    assert_eq!((contents.events.alloc.len(), contents.events.memcpy.len()), (0, 0));
    assert!(contents.events.sync.len() >= 3);
    // Of all functions it would be 600 and more.
    assert!(summary["probes"].as_u64().expect("a number") < 400, "{summary}");
}

#[test]
fn a_configuration_is_read_again_on_sighup() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node, SIGHUP") else { return };
    let config = scene.path("capture.toml");
    let write = |text: &str| std::fs::write(&config, text).expect("a file");
    write(&format!("output = {:?}\ncomm = [\"nobody\"]\nbuffer = 4\n", scene.path("node")));
    let mut node = Node::begin(&mut scene.capture(&["node", "--config", &config, "--json"]));
    let hangup = |node: &mut Node| {
        node.signal(Signal::HUP);
        loop {
            let mut line = String::new();
            // Troubles are told in between.
            if node.said.read_line(&mut line).expect("capture speaks") == 0 || line.starts_with("SIGHUP") {
                break line;
            }
        }
    };
    let before = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    write(&format!("output = {:?}\ncomm = [\"*\"]\nbuffer = 8\n", scene.path("node")));
    let said = hangup(&mut node);
    assert!(said.contains("read again; buffer stay"), "{said}");
    let within = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    // A process that is recorded, and then is not.
    let mut target = Target::start(&scene, &python, LAUNCHES);
    target.go_on_until(500);
    write("comm = [\"python\" ");
    let said = hangup(&mut node);
    assert!(said.contains("nothing is changed") && said.contains("line 1: "), "{said}");
    target.go_on_until(1000);
    write(&format!("output = {:?}\npid = [1]\nbuffer = 4\n", scene.path("node")));
    let said = hangup(&mut node);
    assert!(said.trim_end().ends_with("read again"), "{said}");
    target.go_on_until(2000);
    let last = target.pid();
    target.end();
    let after = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    let (_, folder) = node.end();
    let counts = [before, within, after].map(|pid| recorded(&folder, pid));
    assert!(counts[0] == 0 && counts[1] >= 200 && counts[2] == 0, "{counts:?}");
    let of_last = recorded(&folder, last);
    assert!((2000..2100).contains(&of_last), "{of_last}");
}

/// How much processor time a process has had.
fn processor_time(pid: u32) -> Duration {
    let schedule = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it runs");
    Duration::from_nanos(schedule.split(' ').next().and_then(|time| time.parse().ok()).expect("a time"))
}

#[test]
fn what_never_calls_cuda_costs_next_to_nothing() {
    let Some(scene) = Scene::new("node, shells") else { return };
    let node = Node::start(&scene, &["--comm", "nobody"]);
    let pid = node.child.id();
    std::thread::sleep(Duration::from_millis(300));
    let (before, began) = (processor_time(pid), Instant::now());
    let shells = 1000;
    for _ in 0..shells {
        assert!(Command::new("/bin/true").status().expect("it starts").success());
    }
    let (spent, elapsed) = (processor_time(pid) - before, began.elapsed());
    let (_, folder) = node.end();
    assert!(pids_of(&folder, "/bin/true").is_empty());
    // Some 10 µs for the mappings of each, and what the recorder does anyway every 20 ms.
    let bound = Duration::from_micros(100) * shells + elapsed / 20;
    assert!(spent < bound, "{spent:?} for {shells} in {elapsed:?}");
}

/// A recorder that runs as nobody, with just these capabilities.
fn as_nobody(scene: &Scene, capabilities: &str, arguments: &[&str]) -> Command {
    use std::os::unix::fs::PermissionsExt as _;
    let open =
        |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let folder = PathBuf::from(scene.path("node"));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::os::unix::fs::chown(&folder, Some(65534), Some(65534)).expect("we may");
    open(folder.parent().expect("the scene's"));
    let program = scene.path("capture");
    copy_program(env!("CARGO_BIN_EXE_capture"), &program);
    let mut command = scene.program("setpriv");
    let sets = ["--inh-caps", "--ambient-caps"].map(|set| format!("{set}={capabilities}"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &format!("--bounding-set={capabilities}")]);
    command.args(sets).arg(&program).args(arguments);
    command
}

/// A `systemctl reload` right after the start. The kernel leaves off checking a program when there is a signal to handle: that ended the
/// recorder, or made it take the kernel for one that has no links for many probes.
#[test]
fn signals_while_it_begins_cost_no_probe() {
    let Some(scene) = Scene::new("node, signals") else { return };
    let mut command = scene.capture(&["node", "--json", "-o", &scene.path("node")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("capture starts");
    let pid = rustix::process::Pid::from_child(&child);
    let listens = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let handled = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim);
        // SIGHUP is the first.
        handled.is_some_and(|set| u64::from_str_radix(set, 16).is_ok_and(|set| set & 1 != 0))
    };
    let began = Instant::now();
    while !listens() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not listen");
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..400 {
        if child.try_wait().expect("it is ours").is_none() {
            rustix::process::kill_process(pid, Signal::HUP).expect("it is ours");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if child.try_wait().expect("it is ours").is_none() {
        rustix::process::kill_process(pid, Signal::TERM).expect("it is ours");
    }
    let output = child.wait_with_output().expect("it is ours");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a summary");
    assert!(summary["probes"].as_u64() > Some(0) && !said.contains("no probe at"), "{summary} {said}");
    assert_eq!(summary["blind_spots"], serde_json::json!([]), "{said}");
}

#[test]
fn three_capabilities_are_enough_and_one_less_is_told() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node, capabilities") else { return };
    if Command::new("setpriv").arg("--version").output().is_err() {
        skip("no setpriv");
        return;
    }
    let (folder, own) = (scene.path("node"), std::process::id().to_string());
    let node = ["node", "--json", "-o", &folder];
    let commands = [&node[..], &["run", "--collector", "outside", "--", "true"], &["attach", "--pid", &own]];
    for (missing, arguments) in ["sys_ptrace", "bpf", "perfmon"]
        .into_iter()
        .zip(commands)
        .chain([("sys_ptrace", commands[1]), ("sys_ptrace", commands[2])])
    {
        let rest = ["bpf", "perfmon", "sys_ptrace"].into_iter().filter(|name| *name != missing);
        let rest: Vec<String> = std::iter::once("-all".to_owned()).chain(rest.map(|name| format!("+{name}"))).collect();
        let refused = as_nobody(&scene, &rest.join(","), arguments).output().expect("setpriv starts");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        let named = format!("CAP_{} is missing; run as root, or: setcap ", missing.to_uppercase());
        assert!(said.contains(&named) && said.trim_end().lines().count() == 1, "{said}");
    }
    let node = Node::begin(&mut as_nobody(&scene, "-all,+bpf,+perfmon,+sys_ptrace", &node));
    // What is left of it: nothing else, in no set.
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.child.id())).expect("it runs");
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a set");
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap_or_else(|_| panic!("{line}"))
    };
    let needed = 1u64 << 19 | 1 << 38 | 1 << 39;
    assert_eq!((set("CapEff"), set("CapPrm"), set("CapInh"), set("CapAmb")), (needed, needed, 0, 0));
    assert_eq!(set("NoNewPrivs"), 1);
    let pid = launch(&mut light(&scene, &python, &[LAUNCHES, "100"]));
    let (_, folder) = node.end();
    assert!(recorded(&folder, pid) >= 200, "a process of root");
}

#[test]
fn root_keeps_only_what_it_needs() {
    let Some(scene) = Scene::new("node, capabilities of root") else { return };
    let node = Node::start(&scene, &[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.child.id())).expect("it runs");
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).expect("a set");
        let held = u64::from_str_radix(line.trim_start_matches(':').trim(), 16).expect("a number");
        let kept = 1u64 << 2 | 1 << 19 | 1 << 38 | 1 << 39 | 1 << 40;
        assert_eq!(held & !kept, 0, "{set}");
    }
    node.end();
}

#[test]
fn a_program_that_runs_as_its_owner_is_recorded() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("node, setuid") else { return };
    let program = scene.path("setuid");
    copy_program(&python, &program);
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("it is ours");
    // The loader takes no folder from the environment of such a program.
    let load = format!("import ctypes; ctypes.CDLL({:?}, mode=ctypes.RTLD_GLOBAL)\n", scene.driver("libcuda.so.1"));
    let home = Path::new(&python).parent().and_then(Path::parent).expect("a prefix").display().to_string();
    let node = Node::start(&scene, &[]);
    let folder = PathBuf::from(scene.path(""));
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let mut command = scene.program("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", &program, "-S", "-c"]);
    command.arg(format!("{load}{LAUNCHES}")).arg("100").env("PYTHONHOME", home).env_remove("SIMCUDA_TRUTH");
    let output = command.output().expect("setpriv starts");
    if !output.status.success() {
        // Its interpreter or the folders above may be closed to others.
        skip(&format!("no setuid program can be made: {}", String::from_utf8_lossy(&output.stderr)));
        return;
    }
    let (_, folder) = node.end();
    let pids = pids_of(&folder, &program);
    let [pid] = pids.as_slice() else { panic!("{pids:?}") };
    assert!(recorded(&folder, *pid) >= 200);
}

/// Launches one kernel from a file, another from another.
const TWO_FILES: &str = with_driver!(
    r#"
import time
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\n")
kernels = {name: handle(cu.cuModuleGetFunction, module, name) for name in (b"gemm", b"softmax")}
def launch(name):
    check(cu.cuLaunchKernel(kernels[name], 1, 1, 1, 32, 1, 1, 0, None, None, None))
models = {}
for name in ("model_a", "model_b"):
    exec(compile("def forward(launch):\n    launch(b'gemm')\n    launch(b'softmax')\n", f"/srv/{name}.py", "exec"), globals())
    models[name] = forward
time.sleep(0.5)
for index in range(int(sys.argv[1])):
    models["model_a"](launch)
    models["model_b"](launch)
    # Time for the recorder to say which stacks it does not want.
    if index == 0: time.sleep(0.3)
"#
);

/// Records [`TWO_FILES`], and returns how many launches are on the tape, how many were left out, and how many were written altogether.
fn launches_in(scope: &[&str]) -> Option<(usize, u64, serde_json::Value)> {
    let python = pythons().pop()?;
    let scene = Scene::new(&format!("node {scope:?}"))?;
    // So that other tests' processes are not among those left out.
    let mine = scene.path("two-files");
    std::os::unix::fs::symlink(&python, &mine).expect("a link");
    let node = Node::start(&scene, scope);
    let pid = launch(&mut light(&scene, &mine, &[TWO_FILES, "1000"]));
    let (summary, folder) = node.end();
    let found: Vec<_> = calls_of(&folder, pid, CALLS).into_values().flatten().collect();
    let launches = found.iter().filter(|timed| &*timed.call.function == "cuLaunchKernel").count();
    assert_eq!(
        segments(&folder).iter().map(|segment| exact::lost(segment)).sum::<u64>(),
        0,
        "what is left out is not lost"
    );
    Some((launches, summary["out_of_scope"]["launch"].as_u64().unwrap_or(0), summary))
}

#[test]
fn only_launches_under_a_python_file_are_recorded() {
    let Some((launches, left_out, summary)) = launches_in(&["--python-path", "*/model_a.py", "--comm", "two-files"])
    else {
        return;
    };
    // Those that came before the interpreter was known have no stack.
    assert_eq!(launches, 2000, "{summary}");
    assert!(left_out >= 2000, "{summary}");
}

#[test]
fn only_launches_of_a_kernel_are_recorded() {
    let Some((launches, left_out, summary)) = launches_in(&["--kernel", "^ge", "--comm", "two-files"]) else { return };
    assert_eq!(launches, 2000, "{summary}");
    assert!(left_out >= 2000, "{summary}");
}
