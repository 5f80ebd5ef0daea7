//! What the live tests work with: a folder, the stand-in driver, interpreters, `capture`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use ktape_simcuda_truth::Truth;

use crate::common::{self, with_driver};
use crate::exact::{self, Compared};

/// A program that launches, waits and copies: as often as its argument says, else up to each number on its standard input.
pub(crate) const LAUNCHES: &str = with_driver!(
    r#"
def turns():
    if len(sys.argv) > 1:
        yield from range(int(sys.argv[1]))
        return
    # One turn a line on standard input: how far to go. Says how far it got.
    index = 0
    for line in sys.stdin:
        while index < int(line):
            yield index
            index += 1
        # Whoever attached since learns the kernels' names only now.
        handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
        print(index, flush=True)
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\nkernel softmax\n")
gemm, softmax = handle(cu.cuModuleGetFunction, module, b"gemm"), handle(cu.cuModuleGetFunction, module, b"softmax")
memory = handle(cu.cuMemAlloc_v2, ctypes.c_size_t(1 << 20))
stream = handle(cu.cuStreamCreate, 1)
def launch(function, blocks):
    check(cu.cuLaunchKernel(function, blocks, 1, 1, 128, 1, 1, 64, stream, None, None))
def layer(index):
    launch(gemm, 16 + index % 3)
    launch(softmax, 8)
for index in turns():
    layer(index)
    if index % 100 == 0:
        check(cu.cuStreamSynchronize(stream))
buffer = ctypes.create_string_buffer(4096)
check(cu.cuMemcpyDtoH_v2(buffer, memory, ctypes.c_size_t(4096)))
check(cu.cuMemFree_v2(memory))
check(cu.cuCtxSynchronize())
"#
);

/// A program that asks a driver without a GPU to launch, by its symbol and by the pointer that the driver hands out; its
/// argument is how often. Prints how often the answer was `CUDA_ERROR_INVALID_HANDLE` or another, and its process.
pub(crate) const REFUSED: &str = r#"
import collections, ctypes, os, sys
cu = ctypes.CDLL("libcuda.so.1")
cu.cuInit(0)
pointer = ctypes.c_void_p()
assert cu.cuGetProcAddress(b"cuLaunchKernel", ctypes.byref(pointer), 12000, ctypes.c_uint64(0)) == 0
kinds = [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p] * 3
by_pointer = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(pointer.value)
cu.cuLaunchKernel.argtypes = kinds
answers = collections.Counter()
for index in range(int(sys.argv[1])):
    answers[cu.cuLaunchKernel(None, 1 + index % 7, 2, 3, 4, 5, 6, 7, None, None, None)] += 1
    answers[by_pointer(None, 1 + index % 7, 2, 3, 4, 5, 6, 7, None, None, None)] += 1
(answer, count), = answers.items()
print(os.getpid(), answer, count)
"#;

/// A program whose kernel is launched by the runtime library, as those that nvcc makes. The kernel's host stub is a function
/// whose symbol is the kernel's name. Up to each number on its standard input, as [`LAUNCHES`].
pub(crate) const STUBS: &str = r#"
import ctypes, sys
from ctypes import c_uint, c_void_p
runtime = ctypes.CDLL("libcudart.so.12")
class Dim3(ctypes.Structure):
    _fields_ = [("x", c_uint), ("y", c_uint), ("z", c_uint)]
class Wrapper(ctypes.Structure):
    _fields_ = [("magic", c_uint), ("version", c_uint), ("data", ctypes.c_char_p), ("unused", c_void_p)]
stub = ctypes.cast(ctypes.CDLL("libc.so.6").getppid, c_void_p)
register, end = runtime["__cudaRegisterFatBinary"], runtime["__cudaRegisterFatBinaryEnd"]
register.restype = c_void_p
wrapper = Wrapper(0x466243b1, 1, b"SIMCUDA-IMAGE\nkernel getppid\n", None)
binary = c_void_p(register(ctypes.byref(wrapper)))
runtime["__cudaRegisterFunction"](binary, stub, b"getppid", b"getppid", -1, None, None, None, None, None)
end(binary)
def launch(blocks):
    code = runtime.cudaLaunchKernel(stub, Dim3(blocks, 1, 1), Dim3(32, 1, 1), None, ctypes.c_size_t(0), None)
    if code: raise SystemExit(f"cudaError {code}")
index = 0
for line in sys.stdin:
    while index < int(line):
        launch(1 + index % 5)
        index += 1
    print(index, flush=True)
"#;

/// Where a test happens.
pub(crate) struct Scene {
    folder: tempfile::TempDir,
    driver: PathBuf,
}

impl Scene {
    /// A folder with a driver; `None`, and said, where recording can't be tried.
    pub(crate) fn new(test: &str) -> Option<Scene> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let driver = root.join("target/simcuda");
        let missing = if !rustix::process::geteuid().is_root() {
            Some("recording needs root")
        } else if !driver.join("libcuda.so.1").exists() {
            Some("no stand-in driver: run fixtures/simcuda/build.sh")
        } else {
            None
        };
        if let Some(missing) = missing {
            skip(&format!("{test}: {missing}"));
            return None;
        }
        // Probes belong to a file, whoever maps it: so that tests don't see each other's, each has a driver of its own.
        let folder = tempfile::tempdir().expect("a folder");
        let own = folder.path().join("driver");
        std::fs::create_dir(&own).expect("a folder");
        for file in
            std::fs::read_dir(driver).expect("the driver's folder").flatten().filter(|file| file.path().is_file())
        {
            std::fs::copy(file.path(), own.join(file.file_name())).expect("a copy");
        }
        Some(Scene { folder, driver: own })
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// A path in the folder that libraries are looked for in first.
    pub(crate) fn driver(&self, name: &str) -> String {
        self.driver.join(name).display().to_string()
    }

    /// A file of `fixtures/`.
    pub(crate) fn fixture(&self, name: &str) -> String {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures").join(name).display().to_string()
    }

    /// Whether the stand-ins have this library.
    pub(crate) fn has_library(&self, name: &str) -> bool {
        self.driver.join(name).exists()
    }

    /// A program on the stand-in driver, which keeps its truth in `truth`.
    pub(crate) fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", &self.driver)
            .env("SIMCUDA_TRUTH", self.path("truth"))
            .env("SIMCUDA_TRUTH_STACKS", "1");
        command
    }

    /// `capture` with these arguments, in the environment of a recorded program.
    pub(crate) fn capture(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_capture"));
        command.args(arguments);
        command
    }

    /// Begins to record a process, and returns when it is.
    pub(crate) fn attach(&self, target: &Target, tape: &str) -> Recorder {
        self.attach_with(target, tape, &[])
    }

    /// As [`Scene::attach`], with further options.
    pub(crate) fn attach_with(&self, target: &Target, tape: &str, options: &[&str]) -> Recorder {
        let pid = target.child.id().to_string();
        let mut command = self.capture(&["attach", "--pid", &pid, "-o", &self.path(tape)]);
        command.args(options);
        command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::null());
        let default = || {
            // SAFETY: no pointers.
            let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
            if before == libc::SIG_ERR { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: a system call, which is all that is allowed between fork and exec. Whoever runs the tests may ignore it (`nohup`).
        unsafe { command.pre_exec(default) };
        let mut child = command.spawn().expect("capture starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("capture says something");
        assert!(line.starts_with("recording"), "{line}");
        Recorder { child, said }
    }

    /// As [`Scene::compare`], of a recording that began or ended while the process ran: what it has must be a piece of the
    /// driver's record without a hole. Returns how many calls it has.
    pub(crate) fn compare_middle(&self, tape: &str, compared: Compared) -> usize {
        let truth = Truth::open(Path::new(&self.path("truth"))).expect("the driver's record");
        assert_eq!(truth.unrecorded(), 0, "the driver could not record all");
        let tape = self.path(tape);
        let found = exact::tape(Path::new(&tape), truth.process(), compared);
        let expected = exact::truth(&truth, compared);
        let expected = exact::between(expected, &found);
        let differences = exact::differences(&expected, &found);
        assert!(differences.is_empty(), "{tape}:\n{differences}");
        assert_eq!(exact::lost(Path::new(&tape)), 0, "events were lost");
        found.values().map(Vec::len).sum()
    }

    /// As a tape's calls, all of them.
    pub(crate) fn recorded(&self, tape: &str, pid: u32, compared: Compared) -> exact::Threads {
        exact::tape(Path::new(&self.path(tape)), pid, compared)
    }

    /// How many calls the driver was asked that are events.
    pub(crate) fn asked(&self, compared: Compared) -> (u32, usize) {
        let truth = Truth::open(Path::new(&self.path("truth"))).expect("the driver's record");
        (truth.process(), exact::truth(&truth, compared).values().map(Vec::len).sum())
    }

    /// The driver's records of all processes that called it.
    pub(crate) fn truths(&self) -> Vec<Truth> {
        let files = std::fs::read_dir(self.folder.path()).expect("a folder").flatten().map(|file| file.path());
        let is_truth = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            name.starts_with("truth") && !name.ends_with(".names")
        };
        files.filter(is_truth).map(|path| Truth::open(&path).expect("the driver's record")).collect()
    }

    /// NVIDIA's own driver, where `fixtures/libcuda/setup.sh` could fetch it, in place of the stand-in.
    pub(crate) fn with_real_driver(mut self) -> Option<Scene> {
        let real = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/libcuda/driver/libcuda.so.1");
        if !real.exists() {
            skip("NVIDIA's libcuda is not here: run fixtures/libcuda/setup.sh");
            return None;
        }
        let own = self.folder.path().join("real");
        std::fs::create_dir(&own).expect("a folder");
        std::fs::copy(real, own.join("libcuda.so.1")).expect("a copy");
        self.driver = own;
        Some(self)
    }

    /// Demands that a tape is what the driver recorded, and nothing was lost.
    pub(crate) fn compare(&self, tape: &str, compared: Compared) {
        let truth = Truth::open(Path::new(&self.path("truth"))).expect("the driver's record");
        assert_eq!(truth.unrecorded(), 0, "the driver could not record all");
        let expected = exact::truth(&truth, compared);
        let tape = self.path(tape);
        let found = exact::tape(Path::new(&tape), truth.process(), compared);
        let differences = exact::differences(&expected, &found);
        assert!(differences.is_empty(), "\n{differences}");
        assert_eq!(exact::lost(Path::new(&tape)), 0, "events were lost");
        assert!(expected.values().map(Vec::len).sum::<usize>() > 0, "the driver was not called");
    }
}

/// A process to attach to.
pub(crate) struct Target {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Target {
    pub(crate) fn start(scene: &Scene, python: &str, program: &str) -> Target {
        let mut command = scene.program(python);
        command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let mut target = Target { child, input, output };
        target.go_on_until(10);
        target
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has it launch until it has made so many turns.
    pub(crate) fn go_on_until(&mut self, turns: u32) {
        writeln!(self.input.as_mut().expect("it has not been ended"), "{turns}").expect("it reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim(), turns.to_string());
    }

    /// The code of its driver, as it is in its memory.
    pub(crate) fn library_text(&self) -> Vec<u8> {
        let pid = self.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
        let line =
            maps.lines().find(|line| line.contains("libcuda.so.1") && line.contains(" r-xp ")).expect("its driver");
        let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |text| u64::from_str_radix(text, 16).expect("an address");
        let mut text = vec![0; (number(end) - number(start)) as usize];
        let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
        memory.read_exact_at(&mut text, number(start)).expect("its code");
        text
    }

    /// Lets it end.
    pub(crate) fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("it is ours").success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

/// Demands that a library's code is what it was before it was probed.
pub(crate) fn assert_same_text(now: &[u8], before: &[u8]) {
    assert_eq!(now.len(), before.len());
    let changed = (0..now.len()).filter(|&at| now[at] != before[at]);
    let changed: Vec<String> =
        changed.take(8).map(|at| format!("{at:#x}: {:#x}, was {:#x}", now[at], before[at])).collect();
    assert!(changed.is_empty(), "the library's code is not what it was: {changed:?}");
}

/// A `capture run` whose command reads from us.
pub(crate) struct Running {
    child: Child,
    input: ChildStdin,
}

impl Running {
    /// Begins it, and waits until its command does.
    fn start(mut command: Command) -> Running {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("capture starts");
        let input = child.stdin.take().expect("piped");
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        while std::fs::read_to_string(&children).expect("its children").is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        // Time to come to know it.
        std::thread::sleep(std::time::Duration::from_millis(200));
        Running { child, input }
    }

    /// Stalls the recorder while its command, a shell script, goes from its first `read` to where it makes the file `done`; the
    /// rest comes while it works again. Returns its exit code and the summary.
    pub(crate) fn stalled(command: Command, done: &str) -> (Option<i32>, serde_json::Value) {
        let mut recorder = Running::start(command);
        signal(&recorder.child, rustix::process::Signal::STOP);
        recorder.go();
        while !Path::new(done).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        signal(&recorder.child, rustix::process::Signal::CONT);
        recorder.go();
        drop(recorder.input);
        let output = recorder.child.wait_with_output().expect("it is ours");
        (output.status.code(), serde_json::from_slice(&output.stdout).expect("a summary"))
    }

    /// Answers a `read`.
    fn go(&mut self) {
        writeln!(self.input, "go").expect("it reads");
    }
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).expect("it is ours");
}

/// A `capture` that records.
pub(crate) struct Recorder {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Recorder {
    /// Ends the recording, as a person would. Returns what it said.
    pub(crate) fn stop(self) -> String {
        self.signal(rustix::process::Signal::INT);
        self.wait_for(0)
    }

    /// Ends the recording, as a terminal does that is closed. Returns what it said.
    pub(crate) fn hang_up(self) -> String {
        self.signal(rustix::process::Signal::HUP);
        self.wait_for(0)
    }

    /// Waits for its end.
    pub(crate) fn wait(self) {
        self.wait_for(0);
    }

    /// Waits for its end with this exit code. Returns what it said.
    pub(crate) fn wait_for(mut self, code: i32) -> String {
        let mut said = String::new();
        self.said.read_to_string(&mut said).expect("capture speaks");
        let status = self.child.wait().expect("it is ours");
        assert_eq!(status.code(), Some(code), "{status}: {said}");
        said
    }

    /// Stalls the recorder of a target with a small buffer for 20,000 turns, and lets both end. Returns what it said.
    pub(crate) fn stalled(scene: &Scene, python: &str, tape: &str) -> String {
        let mut target = Target::start(scene, python, LAUNCHES);
        let recorder = scene.attach_with(&target, tape, &["--buffer", "1"]);
        target.go_on_until(100);
        recorder.signal(rustix::process::Signal::STOP);
        target.go_on_until(20_000);
        recorder.signal(rustix::process::Signal::CONT);
        target.go_on_until(20_100);
        target.end();
        recorder.wait_for(3)
    }

    fn signal(&self, what: rustix::process::Signal) {
        signal(&self.child, what);
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }
}

/// Says that something is not tested here.
pub(crate) fn skip(what: &str) {
    common::skip("live recording", what);
}

/// The interpreters that stacks are recorded of, as far as they are here.
pub(crate) fn pythons() -> Vec<String> {
    let found: Vec<String> = ["3.11", "3.12"].iter().filter_map(|version| python(version)).collect();
    if found.is_empty() {
        skip("no CPython 3.11 or 3.12");
    }
    found
}

/// Every interpreter of a version that stacks are recorded of, with the version; those that are not here are said once.
pub(crate) fn every_python() -> &'static [(&'static str, String)] {
    static FOUND: OnceLock<Vec<(&str, String)>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let versions = ["3.8", "3.9", "3.10", "3.11", "3.12", "3.13"];
        let find = |version: &'static str| {
            let found = python(version);
            if found.is_none() {
                skip(&format!("no CPython {version}"));
            }
            found.map(|python| (version, python))
        };
        versions.into_iter().filter_map(find).collect()
    })
}

/// The interpreter that has NVIDIA's own clients of the driver, of a version: `fixtures/simcuda/setup.sh` installs them.
pub(crate) fn client(version: &str) -> Option<String> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../target/simcuda/clients{version}/bin/python"));
    if !python.exists() {
        skip(&format!("no clients for {version}: run fixtures/simcuda/setup.sh"));
    }
    python.exists().then(|| python.display().to_string())
}

/// Interpreters whose stacks are not recorded, with what is said of them; those that are not here are said.
pub(crate) fn unsupported_pythons() -> Vec<(&'static str, String)> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/pythons/own-pypy/usr/bin/pypy3");
    let pypy = unpacked.exists().then(|| unpacked.display().to_string());
    let found = [("CPython 3.7 is not supported", python("3.7")), ("PyPy is not supported", pypy)];
    let there = found.into_iter().filter_map(|(said, python)| {
        if python.is_none() {
            skip(&format!("none of which is said: {said}"));
        }
        python.map(|python| (said, python))
    });
    there.collect()
}

/// The executable of a version, on the path or of pyenv.
fn python(version: &str) -> Option<String> {
    let says = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let of = |program: &str| says(program, &["-c", "import sys; print(sys.executable)"]);
    of(&format!("python{version}")).or_else(|| {
        let newest = says("pyenv", &["latest", version])?;
        of(&format!("{}/bin/python", says("pyenv", &["prefix", &newest])?))
    })
}
