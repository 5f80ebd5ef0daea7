#!/usr/bin/env python3
"""Measures the table of docs/performance.md: sizes, and the median time of five runs of each command.

Usage: docs/measure.py     needs `make demo` to have built, and ../shared/traces beside the project
"""
import pathlib
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANALYZE = ROOT / "target/release/analyze"
TRACES = {
    "owlv2, H100": "AMD-AGI+TraceLens/tests/traces/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "gpt-oss step, B200": "AMD-AGI+TraceLens/tests/traces/b200/eager_trace.json.gz",
    "training step, V100": "facebookresearch+HolisticTraceAnalysis/tests/data/df_index_resolver/df_index_resolver.json.gz",
}


def median_s(*command):
    """The median of five runs, each with the process's start."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([ANALYZE, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


with tempfile.TemporaryDirectory() as folder:
    out = {name: pathlib.Path(folder, name) for name in ("run.ktape", "run.pftrace", "run.pftrace.gz", "run.svg")}
    tape, trace, zipped, svg = out.values()
    for name, source in TRACES.items():
        source = ROOT.parent / "shared/traces" / source
        print(name)
        for label, product, command in [
            ("import", tape, ("import", source, "-o", tape, "--force")),
            ("info", None, ("info", tape)),
            ("dump", None, ("dump", tape)),
            ("perfetto", trace, ("perfetto", tape, "-o", trace, "--force")),
            ("perfetto --gz", zipped, ("perfetto", tape, "--gz", "-o", zipped, "--force")),
            ("flamegraph", svg, ("flamegraph", tape, "-o", svg, "--force")),
            ("compare", None, ("compare", tape)),
        ]:
            seconds = median_s(*command)
            size = f"{product.stat().st_size:>12,} bytes" if product else ""
            print(f"  {label:<14} {seconds:.3f} s {size}")
        print(f"  {'source':<14}         {source.stat().st_size:>12,} bytes")
