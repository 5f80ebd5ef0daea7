//! Compiles the eBPF programs of `capture-ebpf`, which `capture` carries inside.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use aya_build::{Package, Toolchain};

/// The name of the programs' file.
const PROGRAMS: &str = "ktape-ebpf-programs";
/// Names the toolchain to use, for who has another one.
const VARIABLE: &str = "KTAPE_BPF_TOOLCHAIN";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let toolchain = choose_toolchain()?;
    // SAFETY: a build script has one thread. With this, a stable compiler takes -Z build-std as nightly does.
    unsafe { std::env::set_var("RUSTC_BOOTSTRAP", "1") };
    let package = Package {
        name: "ktape-ebpf",
        root_dir: concat!(env!("CARGO_MANIFEST_DIR"), "/../capture-ebpf"),
        features: &["programs"],
        ..Package::default()
    };
    // `cargo clippy`, `cargo test` and `cargo build --release` have a folder each for what this makes. `core` and its like are
    // compiled in one that they share.
    let own = PathBuf::from(std::env::var_os("OUT_DIR").context("cargo says where to write")?);
    let shared = own.ancestors().nth(4).context("a folder for all profiles")?.join("bpf");
    std::fs::create_dir_all(&shared)?;
    // SAFETY: as above.
    unsafe { std::env::set_var("OUT_DIR", &shared) };
    aya_build::build_ebpf([package], Toolchain::Custom(&toolchain)).context("compiling the eBPF programs")?;
    std::fs::copy(shared.join(PROGRAMS), own.join(PROGRAMS)).context("the eBPF programs")?;
    Ok(())
}

/// A toolchain that has the source of `core`: the one that is asked for, else Debian's, linked as `bpf`, else rustup's nightly.
/// A nightly may be newer than the LLVM that bpf-linker was built with.
fn choose_toolchain() -> Result<String> {
    if let Ok(asked) = std::env::var(VARIABLE) {
        return Ok(asked);
    }
    if let Some(name) = ["bpf", "nightly"].into_iter().find(|name| has_source_of_core(name)) {
        return Ok(name.to_owned());
    }
    bail!(
        "no Rust toolchain with the source of `core`, which eBPF programs are compiled with. Either\n  \
         rustup toolchain install nightly --component rust-src && cargo install bpf-linker\n\
         or, on Debian,\n  capture/setup.sh\n\
         or name one in {VARIABLE}"
    )
}

fn has_source_of_core(toolchain: &str) -> bool {
    let sysroot = Command::new("rustup").args(["run", toolchain, "rustc", "--print", "sysroot"]).output();
    let Ok(sysroot) = sysroot.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) else {
        return false;
    };
    !sysroot.is_empty() && std::path::Path::new(&sysroot).join("lib/rustlib/src/rust/library/core/Cargo.toml").exists()
}
