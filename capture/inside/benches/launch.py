"""Calls the example library of launch_cost.rs with a stack of some depth below: see launch.sh."""

import ctypes
import sys

cost = ctypes.PyDLL(sys.argv[1]).cost
cost.argtypes = [ctypes.c_uint64, ctypes.c_uint16, ctypes.c_uint64, ctypes.c_void_p]
runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
version = sys.version_info[0] << 8 | sys.version_info[1]


def at(depth, version):
    if depth > 1:
        return at(depth - 1, version)
    result = (ctypes.c_double * 2)()
    cost(runtime, version, 2000, ctypes.addressof(result))
    return list(result)


def show(what, result):
    print(f"  {what:<46} {result[0]:8.1f} {result[1]:8.1f}", flush=True)


show("record without a stack", at(1, 0))
for depth in (1, 10, 30, 100):
    # The module's own frame is one of them.
    show(f"record with a repeated stack of {depth}", at(max(depth - 1, 1), version))
