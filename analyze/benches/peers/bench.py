#!/usr/bin/env python3
"""Measures `analyze import` beside its peers and limits on one trace; run.sh installs what it needs and starts it.

Each runs in a process of its own and prints how often each kernel ran and how long, which is held against our tape:
a table of times says little where the answers differ. The rows take turns, so that a busy neighbour meets all of them.
Files are in the page cache. A process may have 20 GB of address space and ten minutes; one that fails is a row too.
"""

import argparse
import gzip
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LIMIT_BYTES = 20_000_000_000
LIMIT_S = 600
SMALL_BYTES = 200_000_000  # below, three rounds are soon done
SQL = "SELECT name, count(*) AS count, sum(dur) AS ns FROM slice WHERE category IN ('kernel', 'Kernel') GROUP BY name"


@dataclass
class Row:
    name: str
    command: list
    # What was done when the process printed its first line, its second, …
    steps: tuple = ()
    # A limit in the middle of a process: the step whose time counts.
    only: str = ""
    # Whether its last line is its totals.
    answers: bool = False
    seconds: list = field(default_factory=list)
    step_seconds: dict = field(default_factory=dict)
    peak_bytes: int = 0
    totals: dict | None = None
    failure: str = ""

    def run(self):
        if self.failure:
            return
        with tempfile.TemporaryFile() as errors:
            began = time.perf_counter()
            process = subprocess.Popen(
                [str(part) for part in self.command], stderr=errors, preexec_fn=confine,
                stdout=subprocess.PIPE if self.steps or self.answers else subprocess.DEVNULL,
            )
            late = threading.Timer(LIMIT_S, process.kill)
            late.start()
            lines = [(time.perf_counter() - began, line) for line in process.stdout or ()]
            _, status, usage = os.wait4(process.pid, 0)
            took = time.perf_counter() - began
            late.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            self.peak_bytes = max(self.peak_bytes, usage.ru_maxrss * 1024)
            if process.returncode != 0 or (self.answers and not lines):
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().splitlines()
                # Python's last line is the message, under node the frames of the stack come after it.
                said = [line for line in said if not line.startswith("    at ")] or ["said nothing"]
                self.failure = f"failed after {took:.0f} s (exit code {process.returncode}): {said[-1][:160]}"
                return
        before = 0
        for step, (at, _) in zip(self.steps, lines):
            self.step_seconds.setdefault(step, []).append(at - before)
            before = at
        self.seconds.append(self.step_seconds[self.only][-1] if self.only else took)
        if self.answers:
            self.totals = totals(json.loads(lines[-1][1]))


def confine():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def totals(answer):
    """How often each kernel ran (none where a tool does not say) and how long, from an object or from rows of SQL."""
    rows = ((row["name"], row["count"], row["ns"]) for row in answer) if isinstance(answer, list) else (
        (name, count, ns) for name, (count, ns) in answer.items())
    return {name: (count, ns) for name, count, ns in rows}


def of_tape(analyze, tape):
    """The same of our tape, by way of `analyze dump`."""
    kernels = {}
    with subprocess.Popen([analyze, "dump", tape, "--kind", "kernel"], stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            event = json.loads(line)
            name = event["shape"]["kernel"]["name"]
            count, ns = kernels.get(name, (0, 0))
            kernels[name] = (count + 1, ns + event["duration_ns"])
    return kernels


def differences(ours, theirs):
    """The names whose totals differ, with both answers. Where a tool does not count, its times are compared alone."""
    def same(name):
        (count, ns), (their_count, their_ns) = ours.get(name, (0, 0)), theirs.get(name, (0, 0))
        return ns == their_ns and (their_count is None or count == their_count)

    return {name: [ours.get(name), theirs.get(name)] for name in ours.keys() | theirs.keys() if not same(name)}


def agreement(ours, theirs):
    counted = all(count is not None for count, _ in theirs.values())
    differ = len(differences(ours, theirs))
    if not differ:
        return "yes" if counted else "yes, in time; it does not count"
    kernels = f"{sum(count for count, _ in theirs.values()):,} kernels, " if counted else ""
    return f"**no**: {kernels}{sum(ns for _, ns in theirs.values()) / 1e6:,.3f} ms, names that differ: {differ}"


def rows(analyze, raw, zipped, folder):
    python = [sys.executable]
    return [
        Row("`analyze import`", [analyze, "import", raw, "-o", folder / "raw.ktape", "--force"]),
        Row("`analyze import` from the gz", [analyze, "import", zipped, "-o", folder / "gz.ktape", "--force"]),
        Row("`analyze info` of the tape", [analyze, "info", folder / "raw.ktape"]),
        Row("limit: read the JSON (`cat`)", ["cat", raw]),
        Row("limit: inflate the gz (ISA-L)", [*python, "-m", "isal.igzip", "-dc", zipped]),
        Row("limit: inflate the gz (`gzip -dc`)", ["gzip", "-dc", zipped]),
        Row("limit: simdjson's parse alone", [*python, HERE / "simd_parse.py", raw], ("read", "parse"), only="parse"),
        Row("plain Python", [*python, HERE / "plain.py", raw], answers=True),
        Row("Perfetto's trace_processor (WebAssembly)",
            ["node", ROOT / "fixtures/perfetto/sql.mjs", raw, "SELECT 'loaded'", SQL], ("load", "query"), answers=True),
        Row("Holistic Trace Analysis", [*python, HERE / "holistic.py", raw], ("load", "breakdown"), answers=True),
    ]


def both_forms(trace, folder):
    """The trace raw and gzipped, whichever of the two it is."""
    with open(trace, "rb") as file:
        is_zipped = file.read(2) == b"\x1f\x8b"
    other = folder / ("trace.json" if is_zipped else "trace.json.gz")
    with (gzip.open(trace) if is_zipped else open(trace, "rb")) as source:
        with (open(other, "wb") if is_zipped else gzip.open(other, "wb", compresslevel=6)) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return (other, trace) if is_zipped else (trace, other)


def measure(trace, analyze, rounds, folder):
    raw, zipped = both_forms(trace, folder)
    load = os.getloadavg()[0]
    table = rows(analyze, raw, zipped, folder)
    rounds = rounds or (3 if raw.stat().st_size < SMALL_BYTES else 1)
    for turn in range(rounds):
        for row in table:
            row.run()
            outcome = row.failure or f"{row.seconds[-1]:.2f} s"
            print(f"{trace.name}, round {turn + 1} of {rounds}: {row.name}: {outcome}", file=sys.stderr)
    if failure := table[0].failure or table[1].failure:
        sys.exit(f"analyze import: {failure}")
    ours = of_tape(analyze, folder / "raw.ktape")
    if ours != of_tape(analyze, folder / "gz.ktape"):
        sys.exit("the tapes from the JSON and from the gz differ")
    return {
        "trace": trace.name, "json_bytes": raw.stat().st_size, "gz_bytes": zipped.stat().st_size, "rounds": rounds,
        "cores": os.cpu_count(), "load_average": load,
        "kernels": sum(count for count, _ in ours.values()), "names": len(ours),
        "kernel_ns": sum(ns for _, ns in ours.values()),
        "rows": [{
            "name": row.name, "seconds": row.seconds, "step_seconds": row.step_seconds, "peak_bytes": row.peak_bytes,
            "failure": row.failure, "agrees": agreement(ours, row.totals) if row.totals is not None else "",
            "differences": differences(ours, row.totals) if row.totals is not None else {},
        } for row in table],
    }


def markdown(result):
    own_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    ours = statistics.median(result["rows"][0]["seconds"])
    lines = [
        f"{result['trace']}: {result['json_bytes'] / 1e6:,.1f} MB, gzipped {result['gz_bytes'] / 1e6:,.1f} MB; "
        f"{result['kernels']:,} kernels of {result['names']} names, {result['kernel_ns'] / 1e6:,.3f} ms; "
        f"rounds: {result['rounds']}; {result['cores']} cores, load average before {result['load_average']:.1f}",
        "",
        "| | wall time | × `analyze import` | peak memory | same kernel totals |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if row["failure"]:
            said = row["failure"].replace("|", "/")
            lines.append(f"| {row['name']} | {said} | | {row['peak_bytes'] / 1e6:,.0f} MB | |")
            continue
        seconds, steps = row["seconds"], row["step_seconds"]
        time_text = f"{statistics.median(seconds):.2f} s"
        if len(seconds) > 1:
            time_text += f" ({min(seconds):.2f} to {max(seconds):.2f})"
        if row["agrees"] and steps:
            time_text += "; " + ", ".join(f"{step} {statistics.median(times):.2f}" for step, times in steps.items())
        # A child starts as a copy of this process, and Linux counts that too.
        peak = f"{row['peak_bytes'] / 1e6:,.0f} MB" if row["peak_bytes"] > own_bytes else f"< {own_bytes / 1e6:,.0f} MB"
        ratio = f"{statistics.median(seconds) / ours:.2f}"
        lines.append(f"| {row['name']} | {time_text} | {ratio} | {peak} | {row['agrees']} |")
    return "\n".join(lines)


def main():
    arguments = argparse.ArgumentParser(prog="run.sh", description="Measures `analyze import` beside its peers.")
    arguments.add_argument("traces", nargs="+", type=pathlib.Path, metavar="TRACE.json[.gz]")
    arguments.add_argument("--rounds", type=int, help="default: 3, and 1 for a trace above 200 MB")
    arguments.add_argument("--json", type=pathlib.Path, help="write every measurement there, too")
    arguments.add_argument("--analyze", type=pathlib.Path, help="default: build it, in release")
    options = arguments.parse_args()
    if not options.analyze:
        subprocess.run(["cargo", "build", "--release", "--bin", "analyze"], cwd=ROOT, check=True)
    analyze = options.analyze or TARGET / "release/analyze"
    results = []
    for trace in options.traces:
        with tempfile.TemporaryDirectory(dir=TARGET / "peers") as folder:
            results.append(measure(trace, analyze, options.rounds, pathlib.Path(folder)))
        print(markdown(results[-1]), end="\n\n", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
