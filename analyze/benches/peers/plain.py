"""Kernel totals of a trace, as one would write them down without any tool: plain.py TRACE.json"""

import json
import sys

kernels = {}
with open(sys.argv[1], "rb") as file:
    trace = json.load(file)
for event in trace["traceEvents"]:
    if event["ph"] == "X" and event.get("cat") in ("kernel", "Kernel"):
        total = kernels.setdefault(event["name"], [0, 0])
        total[0] += 1
        total[1] += round(event["dur"] * 1000)
print(json.dumps(kernels))
