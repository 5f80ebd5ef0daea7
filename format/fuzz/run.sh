#!/bin/sh
# Fuzzes one target for so many seconds, with the stable toolchain and nothing to install: libFuzzer comes with the crate
# libfuzzer-sys, and the coverage that it steers by is LLVM's own pass. `cargo +nightly fuzz run TARGET` does the same with
# AddressSanitizer on top.
#
# Usage: format/fuzz/run.sh TARGET SECONDS [LIBFUZZER-OPTION…]     TARGET: block, tape
# Begins with the corpus that is committed; what it finds new goes to target/fuzz/corpus, an input that fails to
# target/fuzz/artifacts. To run such an input alone: target/fuzz/HOST/release/TARGET FILE
set -eu

fuzz=$(cd "$(dirname "$0")" && pwd)
home=${CARGO_TARGET_DIR:-$(cd "$fuzz/../.." && pwd)/target}/fuzz
target=$1
seconds=$2
shift 2
host=$(rustc -vV | sed -n 's/^host: //p')

# With --target the flags stay off build scripts, which do not link libFuzzer.
CARGO_TARGET_DIR=$home RUSTFLAGS="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
    ${CARGO:-cargo} build --release --quiet --locked --target "$host" --manifest-path "$fuzz/Cargo.toml" --bin "$target"

mkdir -p "$home/corpus/$target" "$home/artifacts"
log=$home/$target.log
"$home/$host/release/$target" "$home/corpus/$target" "$fuzz/corpus/$target" -artifact_prefix="$home/artifacts/$target-" \
    -max_total_time="$seconds" -max_len=16384 -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=256 "$@" >"$log" 2>&1 || {
    tail -40 "$log" >&2
    echo "run.sh: $target failed; all of it is in $log" >&2
    exit 1
}
grep '^Done' "$log" | sed "s/^Done/$target: fuzzed/"
