"""Threads that each stop at a known place, and say beforehand what stack they stop with.

The stack is told on the very line that then stops, so every line of it still holds. With the argument `all` there are large
cases too, and some with frames of the standard library; without it, every file name is this one's or made up here.
"""

import _thread
import ctypes
import json
import os
import sys
import traceback

FILE = "workload.py"
RELEASED = ctypes.CDLL(None)
HELD = ctypes.PyDLL(None)
CASES = {}
NAMES = {}
HAS_QUALNAMES = sys.version_info >= (3, 11)
ALL = "all" in sys.argv


def tell(frame):
    stack = []
    at = frame
    while at is not None:
        code = at.f_code
        stack.append([getattr(code, "co_qualname", code.co_name), code.co_filename, at.f_lineno])
        at = at.f_back
    if frame.f_lineno is not None:
        summary = [(entry.filename, entry.lineno) for entry in traceback.extract_stack(frame)]
        assert summary == [(file, line) for _, file, line in reversed(stack)]
    ident = _thread.get_ident()
    line = json.dumps({"case": NAMES[ident], "pthread": ident, "stack": stack})
    os.write(1, line.encode() + b"\n")


def case(function):
    CASES[function.__name__] = function
    return function


def only_if(condition):
    return case if condition else lambda function: function


@case
def plain():
    tell(sys._getframe()); RELEASED.pause()


@case
def several_lines():
    list(
        map(
            lambda _: (tell(sys._getframe()), RELEASED.pause()),
            [
                1,
            ],
        )
    )


def decorated(function):
    def wrapper(*args):
        return function(*args)

    return wrapper


@case
@decorated
def wrapper(*args):
    tell(sys._getframe()); RELEASED.pause()


@case
def generator():
    def inner():
        yield 1
        tell(sys._getframe()); RELEASED.pause()
        yield 2

    def outer():
        yield from inner()

    for _ in outer():
        pass


@case
def thrown_into():
    def generate():
        try:
            yield
        except ValueError:
            tell(sys._getframe()); RELEASED.pause()

    running = generate()
    next(running)
    running.throw(ValueError())


@case
def generator_expression():
    sum(tell(sys._getframe()) or RELEASED.pause() for _ in range(1))


@case
def comprehension():
    [[(tell(sys._getframe()), RELEASED.pause()) for _ in range(1)] for _ in range(1)]


@case
def coroutine():
    class Awaitable:
        def __await__(self):
            tell(sys._getframe()); RELEASED.pause()
            yield

    async def inner():
        await Awaitable()

    async def outer():
        async with Context():
            await inner()

    class Context:
        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

    outer().send(None)


@case
def async_generator():
    async def generate():
        yield 1
        tell(sys._getframe()); RELEASED.pause()

    async def consume():
        async for _ in generate():
            pass

    consume().send(None)


def down(depth):
    if depth:
        return down(depth - 1)
    tell(sys._getframe()); RELEASED.pause()


# With `down`'s last call, the case's own frame and `run`: 256 frames, 257, and many more.
@only_if(ALL)
def as_deep_as_is_kept():
    down(253)


@case
def one_too_deep():
    down(254)


@only_if(ALL)
def far_too_deep():
    down(500)


@case
def called_back():
    callback = ctypes.CFUNCTYPE(None)
    callback(lambda: callback(innermost)())()


def innermost():
    tell(sys._getframe()); RELEASED.pause()


@case
def called_back_by_qsort():
    def compare(*_):
        tell(sys._getframe()); RELEASED.pause()

    pair = (ctypes.c_int * 2)(2, 1)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(compare)
    RELEASED.qsort(pair, ctypes.c_size_t(2), ctypes.c_size_t(4), compare)


@case
def in_special_methods():
    class Special:
        def __getattr__(self, _):
            return self[1]

        def __getitem__(self, _):
            return -self

        def __neg__(self):
            with self:
                pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            sorted([1], key=self)

        def __call__(self, _):
            tell(sys._getframe()); RELEASED.pause()

    Special().attribute


@case
def in_a_finaliser():
    class Finalised:
        def __del__(self):
            tell(sys._getframe()); RELEASED.pause()

    Finalised()


@case
def in_a_class_body():
    class Body:
        tell(sys._getframe()); RELEASED.pause()


@case
def exec_and_eval():
    exec(compile("\n\neval('(tell(sys._getframe()), RELEASED.pause())')", "<made up>", "exec"), globals())


@case
def имя_в_юникоде():
    source = "def 层():\n    tell(sys._getframe()); RELEASED.pause()\nclass Größe:\n    def é(self): 层()\nGröße().é()"
    exec(compile(source, "модуль/层/🐍.py", "exec"), globals())


@case
def a_path_of_4000_characters():
    for path in ["long/" * 800 + "a.py"]:
        exec(compile("tell(sys._getframe()); RELEASED.pause()", path, "exec"), globals())


@only_if(ALL)
def a_wide_path_of_4000_characters():
    exec(compile("tell(sys._getframe()); RELEASED.pause()", "🐍" * 4000, "exec"), globals())


@only_if(HAS_QUALNAMES)
def names_that_compilers_do_not_make():
    def emoji():
        tell(sys._getframe()); RELEASED.pause()

    emoji.__code__ = emoji.__code__.replace(co_name="🐍", co_qualname="🐍.🐍")
    emoji()


@only_if(HAS_QUALNAMES)
def code_without_lines():
    def nowhere():
        tell(sys._getframe()); RELEASED.pause()

    units = len(nowhere.__code__.co_code) // 2
    table = bytes([0x80 | 15 << 3 | 7] * (units // 8) + [0x80 | 15 << 3 | units % 8 - 1] * (units % 8 > 0))
    nowhere.__code__ = nowhere.__code__.replace(co_linetable=table)
    nowhere()


@only_if(ALL)
def thousands_of_lines():
    source = "value = 1\n" * 5000 + "tell(sys._getframe()); RELEASED.pause()"
    exec(compile(source, FILE, "exec"), globals())


def cases_of_the_standard_library():
    import asyncio
    import concurrent.futures
    import contextlib
    import functools
    import threading

    def stop():
        tell(sys._getframe()); RELEASED.pause()

    def thread(function):
        def told():
            NAMES[_thread.get_ident()] = function.__name__
            stop()

        @functools.wraps(function)
        def run():
            function(told)

        return case(run)

    @thread
    def threading_thread(told):
        threading.Thread(target=told, daemon=True).start()
        RELEASED.pause()

    @thread
    def thread_pool(told):
        concurrent.futures.ThreadPoolExecutor(1).submit(told).result()

    @case
    def asyncio_task():
        async def leaf():
            await asyncio.sleep(0)
            stop()

        async def main():
            await asyncio.gather(leaf())

        asyncio.run(main())

    @case
    def partial_and_context():
        @contextlib.contextmanager
        def context():
            functools.partial(functools.lru_cache(stop))()
            yield

        with context():
            pass


def run(name, function):
    NAMES[_thread.get_ident()] = name
    function()


def main():
    if ALL:
        cases_of_the_standard_library()
    os.write(1, json.dumps({"cases": len(CASES)}).encode() + b"\n")
    for name, function in CASES.items():
        _thread.start_new_thread(run, (name, function))
    # Once this thread holds the lock for good, no other can get to where it stops.
    sys.stdin.readline()
    NAMES[_thread.get_ident()] = "lock_held"
    tell(sys._getframe()); HELD.pause()


main()
