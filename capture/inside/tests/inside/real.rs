//! NVIDIA's real CUPTI, as far as it goes without a GPU: found where wheels have it, loaded, its version read, its refusal told.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ktape_ebpf::inside::state;

use super::recorder::{Recorder, library, part};
use super::skip;

/// What the driver does in `cuInit`, with libraries of an environment mapped.
const SCRIPT: &str = "
import ctypes, os, sys, time
for path in sys.argv[2:]:
    ctypes.CDLL(path)
print(ctypes.CDLL(sys.argv[1]).InitializeInjection())
";

fn initialise(recorder: &mut Recorder, mapped: &[&std::path::Path]) -> bool {
    if Command::new("python3").arg("--version").output().is_err() {
        skip("there is no python3");
        return false;
    }
    let output = recorder.run(Command::new("python3").arg("-c").arg(SCRIPT).arg(library()).args(mapped));
    assert!(output.status.success(), "{output:?}");
    assert_eq!((output.stdout, output.stderr), (b"1\n".to_vec(), Vec::new()));
    true
}

#[test]
fn a_cupti_that_was_asked_for_is_loaded_and_its_refusal_told() {
    // The version that each says it is, and what it answers to a subscriber where there is no driver. 13.5 does not even say its
    // version then.
    for (file, says) in [
        ("cuda11/nvidia/cuda_cupti/lib/libcupti.so.11.8", Some((18, 15))),
        ("cuda12/nvidia/cuda_cupti/lib/libcupti.so.12", Some((28, 15))),
        ("cuda13/nvidia/cu13/lib/libcupti.so.13", None),
    ] {
        let path = part("cupti").join(file);
        if !path.exists() {
            return skip("fixtures/cupti/setup.sh has not run");
        }
        let mut recorder = Recorder::new(|control| {
            let path = path.to_str().unwrap().as_bytes();
            control.cupti[..path.len()].copy_from_slice(path);
        });
        if !initialise(&mut recorder, &[]) {
            return;
        }
        let pages = recorder.pages();
        let [page] = &pages[..] else { panic!("{pages:?}") };
        match says {
            Some((cupti, answer)) => {
                assert_eq!((page.state, page.code, page.cupti_version), (state::REFUSED, answer, cupti), "{file}");
                assert_eq!(page.detail, "cuptiSubscribe");
            }
            None => {
                assert_eq!(page.state, state::NO_CUPTI, "{file}");
                assert!(page.detail.ends_with("libcupti.so.13: cuptiGetVersion answers 999"), "{page:?}");
            }
        }
    }
}

#[test]
fn cupti_is_found_beside_the_libraries_of_a_python_environment() {
    let real = part("cupti/cuda12/nvidia/cuda_cupti/lib/libcupti.so.12");
    let runtime = part("libcuda/runtime/libcudart.so.12");
    if !real.exists() || !runtime.exists() {
        return skip("fixtures/cupti/setup.sh or fixtures/libcuda/setup.sh has not run");
    }
    let folder = tempfile::tempdir().unwrap();
    let nvidia = folder.path().join("lib/python3.11/site-packages/nvidia");
    for package in ["cuda_cupti", "cuda_runtime"] {
        fs::create_dir_all(nvidia.join(package).join("lib")).unwrap();
    }
    // Copies, as where a link leads to is what the process has mapped.
    let [cupti, cudart] =
        ["cuda_cupti/lib/libcupti.so.12", "cuda_runtime/lib/libcudart.so.12"].map(|name| nvidia.join(name));
    fs::copy(&real, &cupti).unwrap();
    fs::copy(&runtime, &cudart).unwrap();
    let link = folder.path().join("libcudart.so");
    symlink(&cudart, &link).unwrap();
    let mut recorder = Recorder::new(|_| {});
    if initialise(&mut recorder, &[&link]) {
        let pages = recorder.pages();
        assert_eq!((pages[0].state, pages[0].cupti_version), (state::REFUSED, 28), "{pages:?}");
    }
}

#[test]
fn where_there_is_no_cupti_the_page_says_what_was_tried() {
    let mut recorder = Recorder::new(|control| control.cupti[..12].copy_from_slice(b"/nowhere.so\0"));
    if initialise(&mut recorder, &[]) {
        let pages = recorder.pages();
        assert_eq!(pages[0].state, state::NO_CUPTI);
        assert!(pages[0].detail.contains("/nowhere.so"), "{pages:?}");
    }
}
