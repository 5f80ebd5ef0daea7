#!/bin/sh
# Makes the pictures of README and docs anew, from two real traces.
#
# Usage: docs/images/make.sh     needs ../shared/traces beside the project, and `make setup` to have run
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
perfetto=$root/fixtures/perfetto
traces=$root/../shared/traces/AMD-AGI+TraceLens/tests/traces
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$root"
cargo build -q --release --bin analyze
analyze=target/release/analyze

$analyze import "$traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz" -o "$work/owlv2.ktape"
$analyze import "$traces/b200/eager_trace.json.gz" -o "$work/b200.ktape"
for name in owlv2 b200; do
    $analyze perfetto "$work/$name.ktape" -o "$work/$name.pftrace"
done

# The timeline, in the real UI, as shots/*.json says.
node "$perfetto/screenshot.mjs" "$work/owlv2.pftrace" "$perfetto/shots/owlv2.json" docs/images
node "$perfetto/screenshot.mjs" "$work/b200.pftrace" "$perfetto/shots/b200.json" docs/images
node "$perfetto/screenshot.mjs" --own-engine "$work/b200.pftrace" "$perfetto/shots/b200-flamegraph.json" docs/images

# The flamegraph, as a browser shows it.
$analyze flamegraph "$work/owlv2.ktape" -o "$work/owlv2.svg"
chromium --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --hide-scrollbars --window-size=1600,835 \
    --screenshot="$root/docs/images/flamegraph.png" "file://$work/owlv2.svg" 2> /dev/null

# A service of tasks and threads, recorded live, which needs root and a CPython 3.13.
cp -r fixtures/workloads "$work/serve"
cargo build -q --release --bin capture
LD_LIBRARY_PATH=$(fixtures/simcuda/build.sh) target/release/capture run -q -o "$work/serve.ktape" -- \
    python3.13 "$work/serve/serve_async.py" --requests 40
$analyze flamegraph "$work/serve.ktape" -o "$work/serve.svg"
chromium --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --hide-scrollbars --window-size=1600,690 \
    --screenshot="$root/docs/images/python-tasks.png" "file://$work/serve.svg" 2> /dev/null

# The comparison.
$analyze compare "$work/owlv2.ktape" --svg docs/images/compare.svg --force > /dev/null
