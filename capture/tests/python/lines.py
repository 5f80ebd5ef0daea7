"""Every code object of the standard library's top-level modules: its table of lines, and what Python makes of it.

One JSON object a line: `first`, `table`, and `lines`, the ranges of code with their line, or null where there is none.
"""

import dis
import glob
import json
import os
import sys
import types


def ranges(code):
    if hasattr(code, "co_lines"):
        return list(code.co_lines())
    starts = list(dis.findlinestarts(code))
    ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
    return [(start, end, line) for (start, line), end in zip(starts, ends)]


def check_positions(code, lines):
    """The other account that Python gives of the same table."""
    if hasattr(code, "co_positions"):
        expected = [line for begin, end, line in lines for _ in range(begin, end, 2)]
        assert [position[0] for position in code.co_positions()] == expected


def show(code):
    lines = ranges(code)
    check_positions(code, lines)
    table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
    print(json.dumps({"first": code.co_firstlineno, "table": table.hex(), "lines": lines}))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            show(constant)


# One of them is a link to a configuration, which is not there where the package was only unpacked.
for path in filter(os.path.isfile, sorted(glob.glob(os.path.join(os.path.dirname(os.__file__), "*.py")))):
    with open(path, "rb") as file:
        show(compile(file.read(), path, "exec"))
