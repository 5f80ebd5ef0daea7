//! `capture probes`.

use std::fs;
use std::path::Path;

use ktape_capture::probes::library::Library;
use ktape_capture::probes::{Cost, Kernel, Site, sites};
use object::{Object as _, ObjectSymbol as _};

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

/// Not only those: whatever the driver exports, and on any kernel.
#[test]
fn every_api_function_of_the_real_driver_is_a_trampoline() {
    let Some(library) = real("driver/libcuda.so.1") else { return };
    let content = fs::read(library).expect("the driver");
    let file = object::File::parse(&content[..]).expect("an ELF file");
    let defined = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    // cuInit and so on; cudbgIpcFlag and its kin are the debugger's.
    let is_api = |name: &&str| name.strip_prefix("cu").is_some_and(|rest| rest.starts_with(char::is_uppercase));
    let names: Vec<&str> = defined.filter_map(|symbol| symbol.name().ok()).filter(is_api).collect();
    let library = Library::parse(&content[..]).expect("an ELF file");
    let all = sites(&library, names.iter().copied(), Kernel::OLD).expect("its symbols");
    assert!(all.refused.is_empty() && all.missing.is_empty(), "{:?} {:?}", all.refused, all.missing);
    let is_trampoline = |site: &Site| (site.offset_in_function, site.cost) == (10, Cost::Emulated);
    let others = all.sites.iter().filter(|site| !is_trampoline(site)).map(|site| site.symbol.as_str());
    // The first is the driver's own, the others only return "not supported".
    const NONE: [&str; 3] = ["cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"];
    let others: Vec<&str> = others.filter(|name| !NONE.contains(name)).collect();
    assert!(all.sites.len() > 500 && others.is_empty(), "{others:?} of {}", all.sites.len());
    let told: usize = all.sites.iter().map(|site| 1 + site.aliases.len()).sum();
    assert!(told >= names.len(), "every name is told: {told} of {}", names.len());
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
    // It waited for somebody who would write into it.
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo starts").success());
    let output = capture([Path::new("probes"), Path::new("--library"), &pipe]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is no regular file"), "{output:?}");
    let output = capture([Path::new("probes"), Path::new("--library"), &folder.path().join("none")]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"), "{output:?}");
}
