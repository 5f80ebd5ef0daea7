//! Names of kernels whose handles are older than the recording: each from where it can still be known.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use ktape_format::definition::{KernelName, Shape, property};
use ktape_format::table::DefinitionKind;
use ktape_format::{Table as _, Tape, Wanted};

use crate::EXACT;
use crate::common::with_driver;
use crate::processes::{Scene, Target, pythons, skip};

/// What nvcc makes of a program with two kernels: a stub as of CUDA 12, which launches by its own address, and one as of
/// CUDA 13, which asks once for a handle. The host's names are not the device's.
const STUBS: &str = r#"
typedef struct { unsigned x, y, z; } dim;
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFatBinaryEnd(void **);
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
int __cudaGetKernel(void **, const void *);
int cudaLaunchKernel(const void *, dim, dim, void **, unsigned long, void *);
int __cudaLaunchKernel(void *, dim, dim, void **, unsigned long, void *);
static const char image[] = "SIMCUDA-IMAGE\nkernel _Z9device_12Pf\nkernel _Z9device_13Pf\n";
__attribute__((section(".nvFatBinSegment"))) static struct { int magic, version; const void *data; void *unused; }
    wrapper = {0x466243b1, 1, image, 0};
int stub_12(unsigned blocks)
{
    return cudaLaunchKernel((const void *)stub_12, (dim){blocks, 1, 1}, (dim){32, 1, 1}, 0, 0, 0);
}
int stub_13(unsigned blocks)
{
    static void *handle;
    static int asked;
    if (!asked) asked = !__cudaGetKernel(&handle, (const void *)stub_13);
    return __cudaLaunchKernel(handle, (dim){blocks, 1, 1}, (dim){32, 1, 1}, 0, 0, 0);
}
__attribute__((constructor)) static void everything(void)
{
    void **binary = __cudaRegisterFatBinary(&wrapper);
    __cudaRegisterFunction(binary, (const void *)stub_12, (char *)"_Z9device_12Pf", "_Z9device_12Pf", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(binary, (const void *)stub_13, (char *)"_Z9device_13Pf", "_Z9device_13Pf", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFatBinaryEnd(binary);
}
"#;

/// Launches by both stubs, the one of CUDA 13 only from the turn `FROM` on.
const LAUNCH_STUBS: &str = r#"
import ctypes, sys
stubs = ctypes.CDLL("LIBRARY")
index = 0
for line in sys.stdin:
    while index < int(line):
        code = stubs.stub_12(1 + index % 5) or (stubs.stub_13(1 + index % 3) if index >= FROM else 0)
        if code: raise SystemExit(f"cudaError {code}")
        index += 1
    print(index, flush=True)
"#;

/// Launches twelve kernels of a module, whose handles it has from the start, in turn. From the turn 200 on it asks for those of
/// the first `ASKED` again.
const LAUNCH_MODULE: &str = with_driver!(
    r#"
names = [f"triton_{'x' * (40 * n)}_{n}" for n in range(12)]
image = "SIMCUDA-IMAGE\n" + "".join(f"kernel {name}\n" for name in names)
module = handle(cu.cuModuleLoadData, image.encode())
functions = [handle(cu.cuModuleGetFunction, module, name.encode()) for name in names]
index = 0
for line in sys.stdin:
    while index < int(line):
        check(cu.cuLaunchKernel(functions[index % 12], 1 + index % 7, 1, 1, 32, 1, 1, 0, None, None, None))
        index += 1
        if index == 200:
            for name in names[:ASKED]: handle(cu.cuModuleGetFunction, module, name.encode())
    print(index, flush=True)
"#
);

/// The launched kernels of a tape: what they are called in the end, and where that is from.
fn launched(tape: &str) -> BTreeMap<String, String> {
    let contents = Tape::open(Path::new(tape)).expect("the tape opens").read(&Wanted::default()).expect("it is read");
    let definitions = &contents.definitions;
    let kernels = contents.events.launch.rows().map(|row| {
        let shape: Shape = definitions.get(row.shape).expect("a shape");
        let fact = |key| definitions.property(DefinitionKind::Kernel as u16, shape.kernel, key);
        let kernel: KernelName = definitions.get(shape.kernel).expect("a kernel");
        let name = fact(property::NAME).unwrap_or_else(|| definitions.string(kernel.name));
        (name.to_owned(), fact(property::NAME_SOURCE).expect("every name is from somewhere").to_owned())
    });
    kernels.collect()
}

/// Builds the library with stubs, without its symbols but the two that are called; `None`, and said, without a compiler.
fn stubs(scene: &Scene, test: &str) -> Option<String> {
    let (source, library) = (scene.path("stubs.c"), scene.path("libstubs.so"));
    std::fs::write(&source, STUBS).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O2", "-s", "-o", &library, &source, &scene.driver("libcudart.so.12")]);
    let Ok(status) = compiler.status() else {
        skip(&format!("{test}: no C compiler"));
        return None;
    };
    assert!(status.success());
    Some(library)
}

#[test]
fn stubs_that_were_registered_before_have_their_kernels_mangled_names() {
    // A handle that is asked for later is seen to be handed out.
    for (from, source_13) in [(0, "handle"), (100, "module")] {
        let Some(python) = pythons().pop() else { return };
        let Some(scene) = Scene::new("names of stubs") else { return };
        let Some(library) = stubs(&scene, "names of stubs") else { return };
        let program = LAUNCH_STUBS.replace("LIBRARY", &library).replace("FROM", &from.to_string());
        let mut target = Target::start(&scene, &python, &program);
        let recorder = scene.attach(&target, "late.ktape");
        target.go_on_until(300);
        target.end();
        recorder.wait();
        assert!(scene.compare_middle("late.ktape", EXACT) >= 480);
        let expected = [("_Z9device_12Pf", "stub"), ("_Z9device_13Pf", source_13)];
        let expected = expected.map(|(name, source)| (name.to_owned(), source.to_owned()));
        assert_eq!(launched(&scene.path("late.ktape")), BTreeMap::from(expected), "handle from turn {from} on");
    }
}

#[test]
fn handles_of_modules_from_before_have_the_names_that_the_drivers_objects_have() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("names of modules") else { return };
    let mut target = Target::start(&scene, &python, &LAUNCH_MODULE.replace("ASKED", "6"));
    let recorder = scene.attach(&target, "late.ktape");
    target.go_on_until(300);
    // The objects are read while they are there, and the recorder looks every 20 ms.
    std::thread::sleep(std::time::Duration::from_millis(300));
    target.end();
    let said = recorder.wait_for(0);
    assert!(scene.compare_middle("late.ktape", EXACT) >= 280);
    let sources = launched(&scene.path("late.ktape"));
    let of = |source: &str| sources.values().filter(|from| *from == source).count();
    assert_eq!((sources.len(), of("module"), of("scan")), (12, 6, 6), "{sources:?}");
    assert!(said.contains("kernels, by where their names are from: 6 module, 6 scan"), "{said}");
}

#[test]
fn too_few_known_names_leave_the_others_unknown() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("unknown names") else { return };
    let mut target = Target::start(&scene, &python, &LAUNCH_MODULE.replace("ASKED", "4"));
    let recorder = scene.attach(&target, "late.ktape");
    target.go_on_until(300);
    target.end();
    let said = recorder.wait_for(0);
    let sources = launched(&scene.path("late.ktape"));
    let unknown = |(name, from): &(&String, &String)| {
        assert_eq!(*from == "unresolved", name.starts_with("unknown kernel @0x"), "{name}");
        *from == "unresolved"
    };
    assert_eq!((sources.len(), sources.iter().filter(unknown).count()), (12, 8), "{sources:?}");
    assert!(said.contains("kernels, by where their names are from: 4 module, 8 unresolved"), "{said}");
}

/// Captures a graph of one launch at the start, and another at the turn 100; launches the newest of them each turn.
const LAUNCH_GRAPHS: &str = with_driver!(
    r#"
module = handle(cu.cuModuleLoadData, b"SIMCUDA-IMAGE\nkernel gemm\n")
gemm = handle(cu.cuModuleGetFunction, module, b"gemm")
stream = handle(cu.cuStreamCreate, 1)
def captured():
    check(cu.cuStreamBeginCapture_v2(stream, 0))
    check(cu.cuLaunchKernel(gemm, 1, 1, 1, 32, 1, 1, 0, stream, None, None))
    graph = ctypes.c_void_p()
    check(cu.cuStreamEndCapture(stream, ctypes.byref(graph)))
    return handle(cu.cuGraphInstantiateWithFlags, graph, ctypes.c_uint64(0))
graph = captured()
index = 0
for line in sys.stdin:
    while index < int(line):
        if index == 100: graph = captured()
        check(cu.cuGraphLaunch(graph, stream))
        index += 1
    print(index, flush=True)
"#
);

#[test]
fn launches_of_graphs_from_before_are_counted() {
    let Some(python) = pythons().pop() else { return };
    let Some(scene) = Scene::new("older graphs") else { return };
    let mut target = Target::start(&scene, &python, LAUNCH_GRAPHS);
    let recorder = scene.attach(&target, "late.ktape");
    target.go_on_until(300);
    target.end();
    let said = recorder.wait_for(0);
    assert!(said.contains("  90 launches of graphs that were made before the recording"), "{said}");
}
