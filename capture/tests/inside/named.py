"""Names ranges by NVTX in all ways, and says what it named: `named.py SITE FILE [cuda]`.

Each line of FILE is a range or mark as the program itself knows it, with its clock before and after each word.
"""

import ctypes
import json
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
import nvtx  # noqa: E402

now = time.monotonic_ns
said = []


def stack():
    """The functions that called, innermost first."""
    frame, names = sys._getframe(1), []
    while frame:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


def say(kind, name, domain, began, ended, calls, payload=None):
    thread = threading.get_native_id()
    row = {"kind": kind, "name": name, "domain": domain or "", "thread": thread, "began": began, "ended": ended}
    said.append({**row, "stack": calls, "payload": payload})


def nest(depth):
    domain = "odd" if depth % 2 else None
    name = f"level {depth}"
    before = now()
    nvtx.push_range(name, domain=domain, payload=depth)
    began = (before, now())
    if depth:
        nest(depth - 1)
    before = now()
    nvtx.pop_range(domain=domain)
    say("range", name, domain, began, (before, now()), stack(), depth)


def mark(index):
    before = now()
    nvtx.mark(f"mark {index}", domain="marks", payload=index + 0.5)
    say("mark", f"mark {index}", "marks", (before, now()), None, stack(), index + 0.5)


@nvtx.annotate("décoré", domain="decorated")
def decorated():
    return now()


def work(rounds):
    for index in range(rounds):
        nest(5)
        mark(index)
        before = now()
        within = decorated()
        say("range", "décoré", "decorated", (before, within), (within, now()), None)


def start():
    """Ranges that overlap; the second ends on another thread."""
    ranges = []
    for name in ("first", "second"):
        before = now()
        ranges.append((name, nvtx.start_range(name, domain="started"), (before, now())))
    (first, one, began), second = ranges
    before = now()
    nvtx.end_range(one)
    say("range", first, "started", began, (before, now()), None)
    return second


def end(name, number, began, by):
    before = now()
    nvtx.end_range(number)
    said.append({"kind": "range", "name": name, "domain": "started", "thread": by, "began": began,
                 "ended": (before, now()), "stack": None, "payload": None})


def main():
    nvtx.mark("ready")
    if "cuda" in sys.argv:
        assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    threads = [threading.Thread(target=work, args=(100,)) for _ in range(4)]
    threads.append(threading.Thread(target=end, args=(*start(), threading.get_native_id())))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    nvtx.push_range("left open")
    with open(sys.argv[2], "w") as file:
        file.writelines(json.dumps(row) + "\n" for row in said)


main()
