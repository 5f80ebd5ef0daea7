//! `capture probes`.

use std::fs;
use std::path::Path;

use super::common::{capture, json, real, stdout};

fn probes(library: &Path) -> serde_json::Value {
    let output = capture([Path::new("probes"), Path::new("--json"), Path::new("--library"), library]);
    assert!(output.status.success(), "{output:?}");
    json(&output)
}

/// Of NVIDIA's own library, every function that is probed is a trampoline.
#[test]
fn in_the_real_driver_every_probe_is_emulated() {
    let Some(library) = real("driver/libcuda.so.1") else { return };
    let answer = probes(&library);
    let sites = answer["sites"].as_array().expect("sites");
    assert!(sites.len() > 15, "{answer}");
    for site in sites {
        assert_eq!(
            (site["offset_in_function"].as_u64(), site["cost"].as_str()),
            (Some(10), Some("emulated")),
            "{site}"
        );
        assert!(site["instruction"].as_str().is_some_and(|text| text.starts_with("je +")), "{site}");
    }
    assert_eq!(answer["refused"].as_array().map(Vec::len), Some(0));
}

#[test]
fn in_the_real_runtime_every_probe_is_emulated() {
    let Some(library) = real("runtime/libcudart.so.12") else { return };
    let answer = probes(&library);
    let sites = answer["sites"].as_array().expect("sites");
    assert!(sites.iter().any(|site| site["symbol"] == "cudaLaunchKernel"), "{answer}");
    assert!(sites.iter().all(|site| site["cost"] == "emulated"), "{answer}");
}

#[test]
fn text_names_what_a_library_lacks() {
    let Some(library) = real("runtime/libcudart.so.12") else { return };
    let output = capture([Path::new("probes"), Path::new("--library"), &library]);
    let text = stdout(&output);
    let launch = text.lines().find(|line| line.contains("cudaLaunchKernel")).expect("a line for it");
    assert!(launch.contains("emulated") && launch.contains("push rbp"), "{text}");
    let last = text.lines().last().expect("a last line");
    assert!(last.starts_with("not in this library: ") && last.contains("cuLaunchKernel"), "{text}");
    assert!(!text.contains('\x1b'), "colours are for a terminal: {text}");
}

/// Whatever is in a file, the answer is text or an error of one line.
#[test]
fn files_that_are_no_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("library");
    let itself = fs::read(env!("CARGO_BIN_EXE_capture")).expect("our own file");
    let mut other_machine = itself[..4096].to_vec();
    other_machine[18] = 183;
    for (content, says) in [
        (&b""[..], "not an ELF file"),
        (b"#!/bin/sh\n", "not an ELF file"),
        (&itself[..70], "program headers"),
        (&other_machine, "another machine"),
    ] {
        fs::write(&file, content).expect("a file");
        let output = capture([Path::new("probes"), Path::new("--library"), &file]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("error: ") && error.contains(says) && error.lines().count() == 1, "{error}");
    }
    let output = capture([Path::new("probes"), Path::new("--library"), &folder.path().join("none")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"), "{output:?}");
}
