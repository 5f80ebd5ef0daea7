//! Native frames: of threads without Python, below Python, and of programs without it.
//!
//! The library that launches is compiled here, and what its frames are called is looked up in its own symbol table.

use std::path::Path;
use std::process::Command;

use ktape_format::definition::{Definitions, Frame, Stack, frame_kind, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Table as _, Tape, Wanted};
use object::{Object as _, ObjectSymbol as _};

use crate::common::with_driver;
use crate::processes::{self, Scene};

/// A library between a program and the driver.
const LIBRARY: &str = r#"
#include <pthread.h>
#include <semaphore.h>
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static volatile int kept;
__attribute__((noinline)) int launch_inner(void *kernel, void *stream) {
    kept = cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0);
    return kept;
}
__attribute__((noinline)) int launch_outer(void *kernel, void *stream) {
    kept = launch_inner(kernel, stream);
    return kept;
}
static void *arguments[2];
static void *thread_main(void *unused) {
    kept = launch_outer(arguments[0], arguments[1]);
    return unused;
}
static sem_t asked, answered;
static void *server_main(void *unused) {
    for (;;) {
        sem_wait(&asked);
        kept = launch_outer(arguments[0], arguments[1]);
        sem_post(&answered);
    }
    return unused;
}
int start_server(void *kernel, void *stream) {
    pthread_t thread;
    arguments[0] = kernel, arguments[1] = stream;
    return sem_init(&asked, 0, 0) || sem_init(&answered, 0, 0) || pthread_create(&thread, 0, server_main, 0);
}
int poke_server(void) {
    return sem_post(&asked);
}
int ask_server(void) {
    return sem_post(&asked) || sem_wait(&answered);
}
int launch_in_thread(void *kernel, void *stream) {
    pthread_t thread;
    arguments[0] = kernel, arguments[1] = stream;
    return pthread_create(&thread, 0, thread_main, 0) || pthread_join(thread, 0);
}
"#;

/// What the programs begin with: a kernel, and a call that the recorder sees.
const KERNEL: &str = with_driver!(
    r#"
import threading, time
handle(cu.cuMemAlloc_v2, ctypes.c_size_t(4096))
kernel = handle(cu.cuModuleGetFunction, handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\n"), b"gemm")
"#
);

/// Opens the library that the first argument names.
const OPEN: &str = "library = ctypes.CDLL(sys.argv[1])\n";

/// Calls a function of the library, which the second argument names. It lives on for a while, as what is mapped where can't be
/// asked of a process that is gone, and this machine may have more to do.
const WAIT: &str = r#"
def wait():
    assert library[sys.argv[2]](kernel, None) == 0
wait()
time.sleep(1)
"#;

/// A program on the library.
fn program(rest: &str) -> String {
    // A call before the interpreter is known has no stack of Python's, and on a busy machine that takes its time.
    [KERNEL, OPEN, "time.sleep(0.3)\n", rest].concat()
}

/// Calls one library, unloads it, and calls another, which mostly comes to the same place. What is mapped has to be seen
/// before it is gone, so there is a second for that.
const EXCHANGE: &str = r#"
import _ctypes
for file in sys.argv[1:]:
    library = ctypes.CDLL(file)
    time.sleep(1)
    assert library.launch_outer(kernel, None) == 0
    _ctypes.dlclose(library._handle)
"#;

/// A program without Python.
const PROGRAM: &str = r#"
extern int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
extern int launch_outer(void *, void *);
extern unsigned sleep(unsigned);
static volatile int kept;
int main(void) {
    void *context, *module, *kernel;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (cuModuleLoadData(&module, "SIMCUDA-IMAGE\nkernel gemm\n") || cuModuleGetFunction(&kernel, module, "gemm")) return 2;
    kept = launch_outer(kernel, 0);
    sleep(1);
    return kept;
}
"#;

const WITH: &str = "-fno-omit-frame-pointer";
const WITHOUT: &str = "-fomit-frame-pointer";
const UNREAD: &str = "[further frames could not be read]";
const STARTED: &str = "[thread without Python, started by this one, which waits]";
const CALLED_LAST: &str = "[thread without Python; this one, which waits, called the driver last]";

/// Compiles one of the texts.
fn compile(scene: &Scene, text: &str, name: &str, options: &[&str]) -> String {
    let (source, file) = (scene.path(&format!("{name}.c")), scene.path(name));
    std::fs::write(&source, text).expect("the source");
    let driver = scene.path("driver");
    let output = Command::new("cc")
        .args(["-O2", "-fno-optimize-sibling-calls", "-Wl,--build-id=sha1", "-o", &file, &source])
        .args(options)
        .args(["-L", &driver, "-l:libcuda.so.1", "-pthread"])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

fn library(scene: &Scene, frame_pointers: &str) -> String {
    compile(scene, LIBRARY, "libnested.so", &["-shared", "-fPIC", frame_pointers])
}

/// A frame of a launch's stack.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    kind: u8,
    /// Of a native frame the symbol that its place is in, if there is one.
    name: String,
    file: String,
    build_id: Option<String>,
}

/// The stack of the only launch on a tape, innermost first.
fn launch(scene: &Scene, tape: &str) -> Vec<Seen> {
    let mut launches = launches(scene, tape);
    assert_eq!(launches.len(), 1);
    launches.remove(0)
}

/// The stacks of the launches on a tape.
fn launches(scene: &Scene, tape: &str) -> Vec<Vec<Seen>> {
    let contents =
        Tape::open(Path::new(&scene.path(tape))).expect("it opens").read(&Wanted::default()).expect("it is read");
    let definitions = &contents.definitions;
    let stack = |id: u32| definitions.stack_nodes(id).map(|(_, node)| seen(definitions, &node)).collect();
    contents.events.launch.rows().map(|row| stack(row.stack)).collect()
}

fn seen(definitions: &Definitions, node: &Stack) -> Seen {
    let frame: Frame = definitions.get(node.frame).expect("it is on the tape");
    let (mut name, file) = (definitions.string(frame.name).to_owned(), definitions.string(frame.file).to_owned());
    let build_id = definitions.property(DefinitionKind::String as u16, frame.file, property::BUILD_ID);
    if frame.kind == frame_kind::NATIVE && !file.is_empty() {
        let (module, address) = name.rsplit_once("+0x").expect("a place in a file");
        assert!(file.ends_with(module), "{name} in {file}");
        let address = u64::from_str_radix(address, 16).expect("an address");
        let bytes = std::fs::read(&file).expect("the file");
        let parsed = object::File::parse(&*bytes).expect("an ELF file");
        let expected =
            parsed.build_id().expect("notes").map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        assert_eq!(build_id, expected.as_deref(), "{file}");
        let mut symbols = parsed.symbols().chain(parsed.dynamic_symbols());
        let holds = |symbol: &object::Symbol<'_, '_>| {
            symbol.is_definition() && (symbol.address()..symbol.address() + symbol.size()).contains(&address)
        };
        if let Some(symbol) = symbols.find(holds) {
            name = symbol.name().expect("a name").to_owned();
        }
    }
    Seen { kind: frame.kind, name, file, build_id: build_id.map(str::to_owned) }
}

fn names(stack: &[Seen]) -> Vec<&str> {
    stack.iter().map(|frame| frame.name.as_str()).collect()
}

/// The frames of a stack by what they are: native ones, then a mark if there is one, then Python's.
fn parts(stack: &[Seen]) -> (&[Seen], &[Seen], &[Seen]) {
    let natives = stack.iter().take_while(|frame| frame.kind == frame_kind::NATIVE).count();
    let (natives, rest) = stack.split_at(natives);
    let marks = rest.iter().take_while(|frame| frame.kind == frame_kind::UNKNOWN).count();
    let (marks, pythons) = rest.split_at(marks);
    assert!(pythons.iter().all(|frame| frame.kind == frame_kind::PYTHON), "{pythons:?}");
    assert!(natives.iter().all(|frame| !frame.file.is_empty()), "garbage: {natives:?}");
    (natives, marks, pythons)
}

fn record(scene: &Scene, options: &[&str], command: &[&str]) -> Vec<Seen> {
    let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape")]);
    let output = run.args(options).arg("--").args(command).output().expect("capture starts");
    assert!(output.status.success(), "{output:?}");
    launch(scene, "run.ktape")
}

#[test]
fn a_thread_without_python_has_its_native_frames_below_the_thread_that_waits() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("threads without Python") else { return };
        let library = library(&scene, WITH);
        for options in [&[][..], &["--native"]] {
            let stack = record(&scene, options, &[&python, "-c", &program(WAIT), &library, "launch_in_thread"]);
            let (natives, marks, pythons) = parts(&stack);
            let launching = ["cuLaunchKernel", "launch_inner", "launch_outer", "thread_main"];
            assert_eq!(names(natives)[..4], launching, "{stack:?}");
            // It was started by the C library, whose functions have no frame pointers.
            assert!(natives[4..].iter().all(|frame| frame.file.contains("libc.so")), "{stack:?}");
            assert!(names(marks) == [UNREAD, STARTED] || names(marks) == [STARTED], "{stack:?}");
            assert_eq!(names(pythons), ["wait", "<module>"]);
        }
    }
}

/// While the first thread waits for native threads, another launches.
const OTHERS: &str = r#"
over = False
def other():
    while not over:
        cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
def wait():
    for _ in range(100):
        assert library.launch_in_thread(kernel, None) == 0
thread = threading.Thread(target=other)
thread.start()
wait()
over = True
thread.join()
time.sleep(1)
"#;

#[test]
fn a_thread_without_python_stands_below_its_starter_whoever_called_last() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("threads of two") else { return };
        let library = library(&scene, WITH);
        let program = program(OTHERS);
        let mut run = scene.capture(&["run", "-o", &scene.path("run.ktape"), "--", &python, "-c", &program, &library]);
        assert!(run.status().expect("capture starts").success());
        let mut natives = 0;
        for stack in launches(&scene, "run.ktape") {
            let names = names(&stack);
            if names.contains(&"thread_main") {
                natives += 1;
                assert!(names.contains(&STARTED) && names.ends_with(&["wait", "<module>"]), "{names:?}");
                assert_eq!(names[..4], ["cuLaunchKernel", "launch_inner", "launch_outer", "thread_main"]);
            } else {
                assert_eq!(names[0], "other");
            }
        }
        assert_eq!(natives, 100);
    }
}

/// A native thread launches while the thread that started it runs Python and never gives up the interpreter's lock.
const BUSY: &str = r#"
assert library.start_server(kernel, None) == 0
poke = ctypes.PyDLL(sys.argv[1]).poke_server
def spin():
    for _ in range(50):
        assert poke() == 0
        until = time.monotonic() + 0.01
        while time.monotonic() < until:
            pass
cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
spin()
time.sleep(1)
"#;

#[test]
fn a_thread_without_python_stands_alone_while_its_starter_does_not_wait() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("busy starters") else { return };
        let library = library(&scene, WITH);
        let program = program(BUSY);
        let mut run =
            scene.capture(&["run", "-q", "-o", &scene.path("run.ktape"), "--", &python, "-c", &program, &library]);
        assert!(run.status().expect("capture starts").success());
        let stacks = launches(&scene, "run.ktape");
        assert_eq!(stacks.len(), 51);
        let natives = stacks.iter().filter(|stack| names(stack).contains(&"server_main"));
        let alone = natives.filter(|stack| stack.iter().all(|frame| frame.kind == frame_kind::NATIVE)).count();
        // One that is late may come while the starter sleeps.
        assert!(alone >= 45, "{alone} of 50");
    }
}

/// A native thread launches for Python, which launches too; as many turns as each line on the standard input says.
const SERVER: &str = r#"
assert library.start_server(kernel, None) == 0
def wait():
    cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    assert library.ask_server() == 0
index = 0
for line in sys.stdin:
    while index < int(line):
        wait()
        index += 1
    print(index, flush=True)
"#;

#[test]
fn a_thread_that_is_older_than_the_recording_stands_below_the_last_caller() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("older threads") else { return };
        let library = library(&scene, WITH);
        let program = program(SERVER).replace("sys.argv[1]", &format!("{library:?}"));
        let mut target = processes::Target::start(&scene, &python, &program);
        let recorder = scene.attach(&target, "late.ktape");
        target.go_on_until(50);
        target.end();
        recorder.wait();
        let stacks = launches(&scene, "late.ktape");
        let natives = stacks.iter().filter(|stack| names(stack).contains(&"server_main"));
        let natives: Vec<Vec<&str>> = natives.map(|stack| names(stack)).collect();
        assert!(natives.len() >= 39, "{} of {}", natives.len(), stacks.len());
        for names in natives {
            assert!(names.contains(&CALLED_LAST) && names.ends_with(&["wait", "<module>"]), "{names:?}");
        }
    }
}

#[test]
fn below_python_stand_the_frames_of_what_it_called() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("native frames below Python") else { return };
        let library = library(&scene, WITH);
        let command = [&python, "-c", &program(WAIT), &library, "launch_outer"];
        let stack = record(&scene, &["--native"], &command);
        let (natives, marks, pythons) = parts(&stack);
        assert_eq!(names(natives)[..3], ["cuLaunchKernel", "launch_inner", "launch_outer"], "{natives:?}");
        // What is between has no frame pointers; its innermost function is known by where it is returned to.
        assert!(
            natives[3..].iter().all(|frame| frame.file.contains("ffi") || frame.file.contains("_ctypes")),
            "{natives:?}"
        );
        assert!(marks.iter().all(|mark| mark.name == UNREAD), "{marks:?}");
        assert_eq!(names(pythons), ["wait", "<module>"]);
        // Without being asked for they are not there.
        let stack = record(&scene, &[], &command);
        assert_eq!(names(&stack), ["wait", "<module>"]);
    }
}

#[test]
fn a_library_in_the_place_of_an_unloaded_one_has_its_own_frames() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("exchanged libraries") else { return };
        let own = |name: &str| compile(&scene, LIBRARY, name, &["-shared", "-fPIC", WITH]);
        let libraries = ["libone.so", "libtwo.so", "libthree.so"].map(own);
        let program = [KERNEL, EXCHANGE].concat();
        let mut run =
            scene.capture(&["run", "--native", "-o", &scene.path("run.ktape"), "--", &python, "-c", &program]);
        let output = run.args(&libraries).output().expect("capture starts");
        assert!(output.status.success(), "{output:?}");
        let launches = launches(&scene, "run.ktape");
        assert_eq!(launches.len(), libraries.len());
        for (stack, library) in launches.iter().zip(&libraries) {
            assert_eq!(names(stack)[..3], ["cuLaunchKernel", "launch_inner", "launch_outer"], "{stack:?}");
            assert!(stack[1..3].iter().all(|frame| frame.file == *library), "{library}: {stack:?}");
        }
    }
}

#[test]
fn a_program_without_python_has_native_frames_on_request() {
    let Some(scene) = Scene::new("native frames of a program") else { return };
    library(&scene, WITH);
    let own = scene.path("");
    let folder = own.trim_end_matches('/');
    let rpath = format!("-Wl,-rpath,{folder}");
    let program = compile(&scene, PROGRAM, "program", &["-L", folder, "-l:libnested.so", &rpath, WITH]);
    let stack = record(&scene, &["--native"], &[&program]);
    let (natives, _, pythons) = parts(&stack);
    assert_eq!(names(natives)[..4], ["cuLaunchKernel", "launch_inner", "launch_outer", "main"], "{stack:?}");
    assert!(natives[4..].iter().all(|frame| frame.file.contains("libc.so")), "{stack:?}");
    assert!(pythons.is_empty());
    assert!(record(&scene, &[], &[&program]).is_empty());
}

#[test]
fn a_stack_through_code_without_frame_pointers_ends_and_says_so() {
    for python in processes::pythons() {
        let Some(scene) = Scene::new("code without frame pointers") else { return };
        let library = library(&scene, WITHOUT);
        let stack = record(&scene, &["--native"], &[&python, "-c", &program(WAIT), &library, "launch_outer"]);
        let (natives, _, pythons) = parts(&stack);
        // The probe is hit before the driver's function has set its own frame up, so who called it is known all the same.
        assert_eq!(names(natives)[..2], ["cuLaunchKernel", "launch_inner"], "{stack:?}");
        assert_eq!(names(pythons), ["wait", "<module>"]);
    }
}

#[test]
fn analyze_names_what_was_recorded() {
    let analyze = Path::new(env!("CARGO_BIN_EXE_capture")).with_file_name("analyze");
    if !analyze.exists() {
        return processes::skip("names of native frames: `analyze` has not been built beside `capture`");
    }
    let Some(python) = processes::pythons().pop() else { return };
    let Some(scene) = Scene::new("names of native frames") else { return };
    let library = library(&scene, WITH);
    record(&scene, &["--native"], &[&python, "-c", &program(WAIT), &library, "launch_outer"]);
    let output = Command::new(&analyze)
        .args(["flamegraph", "--folded", "--value", "launches", &scene.path("run.ktape")])
        .output()
        .expect("analyze starts");
    let folded = String::from_utf8(output.stdout).expect("text");
    let inner = ["launch_outer (libnested.so);", "launch_inner (libnested.so);", "cuLaunchKernel", "gemm"];
    let mut rest = folded.as_str();
    for part in inner {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part} in {rest}: {folded}"));
        rest = &rest[at + part.len()..];
    }
}
