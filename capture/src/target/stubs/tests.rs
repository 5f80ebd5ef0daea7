//! Files that a C compiler makes as nvcc's host compiler does, and those of real wheels.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// What nvcc generates, in short: a static stub and one that every file may have its own of, their registration, and the
/// question for a handle. `LAUNCH` is a runtime of its own, for a program that has it inside.
const SOURCE: &str = r#"
typedef void *kernel;
#ifdef RUNTIME
__attribute__((noipa)) void __cudaRegisterFunction(void **b, const void *h, char *d, const char *n, int l, void *t,
    void *i, void *k, void *g, int *w) { __asm__ volatile("" :: "r"(b), "r"(h), "r"(d), "r"(n), "r"(l) : "memory"); }
__attribute__((noipa)) int __cudaGetKernel(kernel *k, const void *h) { *k = (void *)h; return 0; }
__attribute__((section(".nvFatBinSegment"), used)) static int segment = 1;
#else
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
int __cudaGetKernel(kernel *, const void *);
#endif
static kernel handle_1, handle_2;
__attribute__((noinline)) static void stub_1(int a) {
    static int done;
    if (!done && !__cudaGetKernel(&handle_1, (const void *)stub_1)) done = a;
}
__attribute__((noinline, weak)) void stub_2(int a) {
    static int done;
    if (!done && !__cudaGetKernel(&handle_2, (const void *)stub_2)) done = a;
}
__attribute__((constructor)) static void everything(void) {
    void **binary = (void **)&handle_1;
    char *names[] = {"not", "these"};
    __cudaRegisterFunction(binary, (const void *)stub_1, (char *)"_Z7scale_1PfRKi", "_Z7scale_1PfRKi", -1, 0, 0, 0, 0, 0);
    __cudaRegisterFunction(binary, (const void *)stub_2, (char *)"__nv_static_2_gemm", "__nv_static_2_gemm", -1, 0, 0, 0, 0, 0);
    for (int i = 0; i < 2; i++)
        __cudaRegisterFunction(binary, 0, names[i], names[i], -1, 0, 0, 0, 0, 0);
    stub_1(1), stub_2(2);
}
#ifdef RUNTIME
int main(void) { return 0; }
#endif
"#;

/// Compiles it; `None`, and said, where there is no compiler.
fn compiled(folder: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    let (source, out) = (folder.join("stubs.c"), folder.join(name));
    std::fs::write(&source, SOURCE).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&out).arg(&source).args(options);
    match compiler.status() {
        Err(_) => {
            eprintln!("SKIPPED stubs of a compiled file: no C compiler");
            None
        }
        Ok(status) => {
            assert!(status.success(), "{options:?}");
            Some(out)
        }
    }
}

fn find_in(path: &Path) -> Stubs {
    find(&File::open(path).expect("a file")).expect("an ELF file")
}

/// The names that are registered, and those that the stubs with handles have.
fn names(stubs: &Stubs) -> [Vec<&str>; 2] {
    let of = |stub: &Place| stubs.named.iter().find(|(named, _)| named == stub).map_or("", |(_, name)| name);
    let mut both = [
        stubs.named.iter().map(|(_, name)| &**name).collect::<Vec<_>>(),
        stubs.handles.iter().map(|(_, stub)| of(stub)).collect(),
    ];
    both.iter_mut().for_each(|names| names.sort_unstable());
    both
}

#[test]
fn stubs_have_the_names_that_the_code_registers_however_it_is_compiled() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = ["-shared", "-fPIC"];
    let ways: [&[&str]; 7] = [
        &["-O0"],
        &["-O2"],
        &["-O2", "-fno-plt"],
        &["-O2", "-fcf-protection=full"],
        &["-Os", "-fvisibility=hidden"],
        &["-O2", "-s"],
        &["-O1", "-fno-plt", "-s", "-Wl,-z,norelro"],
    ];
    for (index, way) in ways.into_iter().enumerate() {
        let options: Vec<&str> = shared.into_iter().chain(way.iter().copied()).collect();
        let Some(file) = compiled(folder.path(), &format!("{index}.so"), &options) else { return };
        let stubs = find_in(&file);
        let expected = vec!["_Z7scale_1PfRKi", "__nv_static_2_gemm"];
        assert_eq!(names(&stubs), [expected.clone(), expected], "{way:?}: {stubs:?}");
    }
}

#[test]
fn a_program_that_has_the_runtime_inside_calls_it_directly() {
    let folder = tempfile::tempdir().expect("a folder");
    for way in [["-DRUNTIME", "-O2", "-no-pie"], ["-DRUNTIME", "-O0", "-pie"]] {
        let Some(file) = compiled(folder.path(), way[2], &way) else { return };
        let stubs = find_in(&file);
        let expected = vec!["_Z7scale_1PfRKi", "__nv_static_2_gemm"];
        assert_eq!(names(&stubs), [expected.clone(), expected], "{way:?}: {stubs:?}");
    }
}

#[test]
fn files_without_stubs_and_broken_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(find_in(Path::new("/proc/self/exe")).is_empty());
    let text = folder.path().join("text");
    std::fs::write(&text, "no ELF file").expect("a file");
    assert!(find(&File::open(&text).expect("it")).is_err());
    let Some(whole) = compiled(folder.path(), "whole.so", &["-shared", "-fPIC", "-O1"]) else { return };
    let bytes = std::fs::read(whole).expect("it");
    let broken = folder.path().join("broken.so");
    // Cut anywhere, and with each header and table full of ones in turn: an answer or an error, soon.
    for end in (0..bytes.len()).step_by(211) {
        std::fs::write(&broken, &bytes[..end]).expect("a file");
        let _ = find(&File::open(&broken).expect("it"));
    }
    for at in (0..bytes.len()).step_by(64) {
        let mut changed = bytes.clone();
        changed[at..].iter_mut().take(8).for_each(|byte| *byte = 0xff);
        std::fs::write(&broken, &changed).expect("a file");
        let _ = find(&File::open(&broken).expect("it"));
    }
}

#[test]
fn what_can_be_a_kernels_name() {
    for (text, is_one) in [
        ("gemm", true),
        ("_Z6kernelPf", true),
        ("triton_poi_fused_add_0", true),
        ("_ZN3foo3barE.constprop.0", true),
        ("$_0", true),
        ("a", false),
        ("", false),
        ("two words", false),
        ("0x12", false),
        ("caf\u{e9}", false),
    ] {
        assert_eq!(is_kernel_name(text), is_one, "{text}");
    }
}

/// The real torchvision wheel, compiled by CUDA 13: every stub is registered and asks for its handle.
#[test]
fn torchvision_of_cuda_13() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/wheels/torchvision/torchvision/_C_stable.so");
    if !file.exists() {
        eprintln!("SKIPPED stubs of torchvision: run fixtures/wheels/setup.sh");
        return;
    }
    let stubs = find_in(&file);
    assert_eq!((stubs.named.len(), stubs.handles.len()), (55, 55));
    let [registered, with_handles] = names(&stubs);
    assert_eq!(registered, with_handles);
    assert!(registered.iter().all(|name| name.starts_with("_Z")), "{registered:?}");
    assert!(registered.iter().any(|name| name.contains("box_iou_rotated_cuda_kernelIdE")), "{registered:?}");
}
