"""Parses a trace with simdjson and looks at nothing: simd_parse.py TRACE.json. Says when it is read and when parsed."""

import sys

import simdjson

with open(sys.argv[1], "rb") as file:
    data = file.read()
print("read", flush=True)
trace = simdjson.Parser().parse(data)
print("parsed", flush=True)
