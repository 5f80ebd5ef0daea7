#!/usr/bin/env python3
"""Measures how long `capture run` takes to begin and to end, around a shell that only says what time it is.

Usage, as root: docs/measure_begin.py [CAPTURE]     needs fixtures/simcuda/build.sh, whose driver it finds and probes
"""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CAPTURE = sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/capture"
RUNS = 20

environment = dict(os.environ, LD_LIBRARY_PATH=str(ROOT / "target/simcuda"))
begins, ends = [], []
with tempfile.TemporaryDirectory() as folder:
    command = [CAPTURE, "run", "--quiet", "-o", f"{folder}/a.ktape", "--", "bash", "--norc", "-c", "echo $EPOCHREALTIME"]
    for _ in range(RUNS):
        began = time.time()
        said = float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
        ended = time.time()
        begins.append(said - began)
        ends.append(ended - said)
for what, seconds in [("to begin", begins), ("to end", ends)]:
    print(f"{what:<9} {statistics.median(seconds):.3f} s, {min(seconds):.3f} to {max(seconds):.3f}")
