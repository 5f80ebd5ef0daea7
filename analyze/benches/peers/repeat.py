#!/usr/bin/env python3
"""Repeats a Kineto trace in time: python3 repeat.py TRACE.json[.gz] TIMES OUT.json

A stand-in for the long recordings that people have and nobody publishes: real events, each repetition after the one
before and with ids of its own. Names, shapes and stacks repeat too, so a figure from it is one of a synthetic scale-up
of real data, and is called that wherever it stands. Every number keeps the decimal text that it has in the file; what
is shifted is added exactly. Needs the standard library only, and some fifteen times the size of the JSON as memory.
"""

import gzip
import json
import re
import sys
from decimal import Decimal

# The arguments that say which event belongs to which. None of them may mean an event of another repetition.
IDS = {
    "correlation", "External id", "external id", "Ev Idx", "Sequence number", "Python id", "Python parent id",
    "wait_on_cuda_event_record_corr_id",
}
# Numbers are kept as strings between marks (characters that no trace has), which go when the text is written.
AS_IT_IS, TIME, ID = "\ue000", "\ue001", "\ue002"
SHIFTED = re.compile(f'"([{TIME}{ID}])([^"]*)[{TIME}{ID}]"')


def kept(text):
    return f"{AS_IT_IS}{text}{AS_IT_IS}"


def load(path):
    data = open(path, "rb").read()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "surrogatepass")
    if re.search(f"[{AS_IT_IS}-{ID}]", text):
        sys.exit(f"{path}: has characters of the private use area that mark numbers here")
    trace = json.loads(text, parse_int=kept, parse_float=kept, parse_constant=kept, strict=False)
    return trace if isinstance(trace, dict) else {"traceEvents": trace}


def value(number):
    """A kept number; what is absent or no number is none."""
    return Decimal(number.strip(AS_IT_IS)) if isinstance(number, str) and number.startswith(AS_IT_IS) else Decimal(0)


def mark(record, key, kind, values):
    """Has a number shifted in each repetition. Zero and below say "none" and stay."""
    if value(record.get(key)) > 0:
        values.append(value(record[key]))
        record[key] = record[key].replace(AS_IT_IS, kind)


def text(parts):
    written = ",\n".join(json.dumps(part, ensure_ascii=False) for part in parts)
    return written.replace(f'"{AS_IT_IS}', "").replace(f'{AS_IT_IS}"', "")


def main(source, times, target):
    trace = load(source)
    once, repeated, starts, ends, ids = [], [], [], [], []
    for event in trace.pop("traceEvents"):
        if event.get("ph") == "M" or value(event.get("ts")) <= 0:
            once.append(event)
            continue
        ends.append(value(event["ts"]) + value(event.get("dur")))
        mark(event, "ts", TIME, starts)
        mark(event, "id", ID, ids)
        for key in IDS & event.get("args", {}).keys():
            mark(event["args"], key, ID, ids)
        repeated.append(event)
    # A millisecond between two repetitions, so that nothing of one lies in the next.
    strides = {TIME: int(max(ends) - min(starts)) + 1000, ID: int(max(ids, default=0)) + 1}
    head, once, repeated = text([trace])[:-1] + ", " * bool(trace), text(once), text(repeated)
    with open(target, "w", encoding="utf-8", errors="surrogatepass") as out:
        out.write(f'{head}"traceEvents": [\n{once}')
        for repetition in range(times):
            shift = {kind: repetition * stride for kind, stride in strides.items()}
            out.write(",\n" * bool(once or repetition))
            out.write(SHIFTED.sub(lambda found: str(Decimal(found[2]) + shift[found[1]]), repeated))
        out.write("\n]}\n")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
