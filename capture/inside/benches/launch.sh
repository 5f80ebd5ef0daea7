#!/bin/sh
# What a launch costs in the library inside, beside a tracepoint of LTTng-UST that keeps as much, in the same run.
#
# Usage: capture/inside/benches/launch.sh [PYTHON]...     needs a C compiler, lttng-tools and liblttng-ust-dev for the comparison
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
(cd "$root" && ${CARGO:-cargo} build --release --quiet -p ktape-inside --example launch_cost)

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
lttng_beside() {
    { echo '#define IS_HEADER'; cat "$here/launch.c"; echo '#undef IS_HEADER'; } >"$folder/launch.h"
    cc -O2 -I"$folder" -o "$folder/launch" "$here/launch.c" -llttng-ust -ldl
    export LTTNG_HOME="$folder"
    if ! pgrep -x lttng-sessiond >/dev/null; then
        lttng-sessiond --daemonize --quiet --pidfile "$folder/pid"
        trap 'kill "$(cat "$folder/pid")"; rm -rf "$folder"' EXIT
    fi
    # Overwrites the oldest where nobody reads: no event waits, and none is dropped.
    lttng --quiet create --snapshot ktape-launch
    lttng --quiet enable-channel --userspace --session ktape-launch --num-subbuf 4 --subbuf-size 1M launches
    lttng --quiet enable-event --userspace --session ktape-launch --channel launches 'ktape:*'
    lttng --quiet start ktape-launch
    "$folder/launch"
    lttng --quiet destroy ktape-launch
}

echo "ns a launch: the quickest batch of 1000, and the one in the middle of 2000"
for python in "${@:-python3}"; do
    "$python" -VV | head -n 1
    "$python" "$here/launch.py" "$root/target/release/examples/liblaunch_cost.so"
done
if command -v lttng >/dev/null && echo '#include <lttng/tracepoint.h>' | cc -E - >/dev/null 2>&1; then
    lttng_beside
else
    echo "SKIPPED: there is no LTTng-UST"
fi
