"""Kernel totals of a trace by Holistic Trace Analysis: holistic.py TRACE.json. It says when it has loaded it.

Both switches make it answer what all others are asked: by default it rounds times to microseconds and leaves out the
last step. Its breakdown has no counts.
"""

import json
import logging
import os
import sys

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis  # noqa: E402  (it reads the environment as it is imported)

logging.disable(logging.WARNING)
folder, name = os.path.split(os.path.abspath(sys.argv[1]))
analysis = TraceAnalysis({0: name}, folder, include_last_profiler_step=True)
print("loaded", flush=True)
EVERY_NAME = 1_000_000
_, kernels = analysis.get_gpu_kernel_breakdown(
    visualize=False, duration_ratio=1.0, num_kernels=EVERY_NAME, include_memory_kernels=False
)
print(json.dumps({name: [None, round(us * 1000)] for name, us in zip(kernels["name"], kernels["sum (us)"])}))
