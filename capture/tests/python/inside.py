"""Launches on the stand-in driver, and tells of each from where: what the library inside has to tell too.

A launch is known by its grid, which counts them. Its stack is told on the very line that launches.
"""

import asyncio
import ctypes
import json
import sys
import threading

HAS_QUALNAMES = sys.version_info >= (3, 11)
IMAGE = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry _Z5scalePf()\n{\n    ret;\n}\n"
REST = (1, 1, 1, 1, 1, 0, None, None, None)
TOLD = []
LOCK = threading.Lock()


def tell(frame, task=None):
    stack = []
    while frame is not None:
        code = frame.f_code
        stack.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    with LOCK:
        TOLD.append({"stack": stack, "task": task})
        return len(TOLD)


def answer():
    print("ready", flush=True)
    sys.stdin.readline()


def begin():
    """The driver with the interpreter lock given up while it is called, with the lock held, and a kernel."""
    released, held = ctypes.CDLL("libcuda.so.1"), ctypes.PyDLL("libcuda.so.1")
    context, module, function = (ctypes.c_void_p() for _ in range(3))
    assert released.cuInit(0) == 0
    assert released.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert released.cuCtxSetCurrent(context) == 0
    assert released.cuModuleLoadData(ctypes.byref(module), IMAGE) == 0
    assert released.cuModuleGetFunction(ctypes.byref(function), module, b"_Z5scalePf") == 0
    return context, function, released, held


CONTEXT, F, RELEASED, HELD = begin()


def nested(launch, depth):
    if depth > 0:
        nested(launch, depth - 1)
    else:
        launch(F, tell(sys._getframe()), *REST)


def around(launch, depth):
    """The same frames with other instructions, at the innermost and further out."""
    if depth % 2:
        around(launch, depth - 1)
    elif depth:
        around(launch, depth - 1)
    else:
        for _ in range(20):
            launch(F, tell(sys._getframe()), *REST)
            launch(F, tell(sys._getframe()), *REST)
    launch(F, tell(sys._getframe()), *REST)


def generating(launch):
    def inner():
        launch(F, tell(sys._getframe()), *REST)
        yield 1
        launch(F, tell(sys._getframe()), *REST)

    def outer():
        yield from inner()

    for _ in outer():
        launch(F, tell(sys._getframe()), *REST)


def called_back(launch):
    sorted(range(5), key=lambda _: launch(F, tell(sys._getframe()), *REST))
    [launch(F, tell(sys._getframe()), *REST) for _ in range(3)]


def made_anew(launch):
    """Code that is freed, and whose place another gets that is like it but for its names."""
    for number in range(100):
        source = "\n" * (number % 3) + "def f(launch, F, tell, sys, REST):\n    launch(F, tell(sys._getframe()), *REST)\n"
        made = {}
        exec(compile(source, f"made{number:03}", "exec"), made)
        made["f"](launch, F, tell, sys, REST)


def all_cases():
    for launch in (RELEASED.cuLaunchKernel, HELD.cuLaunchKernel):
        for depth in (0, 30, 31, 30, 200, 300, 290, 3):
            nested(launch, depth)
        around(launch, 7)
        generating(launch)
        called_back(launch)
        made_anew(launch)
        long_name = "x" * 3000
        made = {}
        exec(f"def {long_name}(launch, F, tell, sys, REST):\n    launch(F, tell(sys._getframe()), *REST)", made)
        made[long_name](launch, F, tell, sys, REST)
    # Those that start kernels in other ways, and return something.
    address = ctypes.c_void_p()
    assert RELEASED.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1000)) == 0
    assert RELEASED.cuMemFree_v2(address) == 0
    assert RELEASED.cuMemAlloc_v2(ctypes.c_void_p(), ctypes.c_size_t(1000)) != 0


def on_thread():
    RELEASED.cuCtxSetCurrent(CONTEXT)
    all_cases()


async def of_task(name):
    for _ in range(3):
        RELEASED.cuLaunchKernel(F, tell(sys._getframe(), name), *REST)
        await asyncio.sleep(0)


async def tasks(names):
    made = []
    for name in names:
        task = asyncio.ensure_future(of_task(name))
        if name:
            task.set_name(name)
        made.append(task)
    for task in made:
        await task


def main():
    answer()
    sys.setrecursionlimit(2000)
    all_cases()
    threads = [threading.Thread(target=on_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop = asyncio.new_event_loop()
    loop.run_until_complete(tasks([None]))
    answer()
    loop.run_until_complete(tasks(["prefill", "decode", None]))
    RELEASED.cuCtxSynchronize()
    print(json.dumps(TOLD), flush=True)


def end(library):
    """The interpreter ends while a thread launches without the lock: its state goes under it."""
    answer()
    many = ctypes.CDLL(library).launch_many
    threads = [threading.Thread(target=many, args=(F, CONTEXT), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(1000):
        nested(RELEASED.cuLaunchKernel, 10)


if len(sys.argv) > 1:
    end(sys.argv[1])
else:
    main()
