#!/bin/sh
# Installs what eBPF programs are compiled with, where it is not here: a Rust toolchain with the source of `core`, and bpf-linker.
#
# Most have both by `rustup toolchain install nightly --component rust-src` and `cargo install bpf-linker`. Where rustup can fetch
# nothing but apt can, Debian's own compiler serves, linked into rustup as the toolchain `bpf`. `capture/build.rs` takes either.
set -eu

LLVM=22
has_core() { [ -e "$(rustup run "$1" rustc --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library/core/Cargo.toml" ]; }

if ! has_core "${KTAPE_BPF_TOOLCHAIN:-nightly}" && ! has_core bpf; then
    if rustup toolchain install nightly --profile minimal --component rust-src >/dev/null 2>&1 && has_core nightly; then
        echo "capture: nightly, with the source of core"
    else
        run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
        run apt-get -qq update
        run apt-get -qq install -y rustc-web cargo-web rust-web-src >/dev/null
        rustup toolchain link bpf /usr
        has_core bpf || { echo "capture/setup.sh: no source of core in Debian's rustc" >&2; exit 1; }
    fi
fi
if ! command -v bpf-linker >/dev/null; then
    if ! [ -d "/usr/lib/llvm-$LLVM/lib" ]; then
        run() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
        run apt-get -qq update
        run apt-get -qq install -y "llvm-$LLVM-dev" "libpolly-$LLVM-dev" >/dev/null
    fi
    LLVM_PREFIX="/usr/lib/llvm-$LLVM" cargo install -q bpf-linker --version 0.13.0 --no-default-features --features "llvm-$LLVM"
fi
