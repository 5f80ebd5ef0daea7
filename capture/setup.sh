#!/bin/sh
# Installs what eBPF programs are compiled with, where it is not here: a Rust toolchain with the source of `core`, and bpf-linker.
#
# On Debian its own compiler serves, linked into rustup as the toolchain `bpf`, and is of the same LLVM as the linker; elsewhere
# rustup's nightly. `capture/build.rs` takes either, in this order.
set -eu

LLVM=22
has_core() {
    sysroot=$(rustup run "$1" rustc --print sysroot 2>/dev/null) &&
        [ -e "$sysroot/lib/rustlib/src/rust/library/core/Cargo.toml" ]
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

if ! has_core "${KTAPE_BPF_TOOLCHAIN:-bpf}"; then
    if command -v apt-get >/dev/null && as_root apt-get -qq update &&
        as_root apt-get -qq install -y rustc-web cargo-web rust-web-src >/dev/null; then
        rustup toolchain link bpf /usr
    elif ! has_core nightly; then
        rustup toolchain install nightly --profile minimal --component rust-src
    fi
    has_core bpf || has_core nightly || { echo "capture/setup.sh: no toolchain with the source of core" >&2; exit 1; }
fi
if ! command -v bpf-linker >/dev/null; then
    if ! [ -d "/usr/lib/llvm-$LLVM/lib" ]; then
        as_root apt-get -qq update
        as_root apt-get -qq install -y "llvm-$LLVM-dev" "libpolly-$LLVM-dev" >/dev/null
    fi
    LLVM_PREFIX="/usr/lib/llvm-$LLVM" cargo install -q bpf-linker --version 0.13.0 --no-default-features --features "llvm-$LLVM"
fi
