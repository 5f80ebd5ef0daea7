#!/usr/bin/env python3
"""Writes docs/traces.md: what `analyze import` makes of every file in ../shared/traces.

Usage: docs/traces.py     needs target/release/analyze, and ../shared/traces beside the project
"""
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANALYZE = ROOT / "target/release/analyze"
TRACES = ROOT.parent / "shared/traces"

HEAD = """\
# Every real trace, imported

What `analyze import` makes of each file that we have, recorded on real GPUs by others. Made by `docs/traces.py`; the tests
hold the same files against independent counts of them ([import.md](import.md)).

- **read** = **kept** + **not kept**, in entries of the file (events of JSON, rows of tables). What is not kept follows
  from what is, or is for display, or names rows without events (`analyze import` lists it by name).
- **no place** are entries and arguments that are not kept and may say something that the tape does not.
- **put right** are values that could not be as they were; **flagged** is kept as it is but contradicts itself: operations
  that began before the one before on their stream had ended, and durations that cannot be.
- **unlaunched** device operations have no launching call in the file.

| trace | read | kept | not kept | no place | put right | flagged | device operations | unlaunched | tape |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def row(path, tape):
    name = str(path.relative_to(TRACES)).split("/")
    name = f"{name[0]}: {'/'.join(name[1:][-2:])}"
    run = subprocess.run([ANALYZE, "import", path, "-o", tape, "--force", "--json"], capture_output=True, text=True)
    if run.returncode != 0:
        why = run.stderr.strip().removeprefix(f"error: {path}: ")
        return None, f"- `{name}`: {why}\n"
    said = json.loads(run.stdout)
    disorder = said["disorder"]
    flagged = [f"{disorder['overlaps']:,} overlaps"] if disorder["overlaps"] else []
    flagged += [f"{disorder['impossible']:,} durations"] if disorder["impossible"] else []
    columns = [
        f"`{name}`", sum(said["read"].values()), sum(said["kept"].values()), sum(said["not_kept"].values()),
        said["not_kept_by_reason"].get("no place on the tape", 0), sum(said["repaired"].values()),
        ", ".join(flagged) or 0, said["matched"] + said["unmatched"], said["unmatched"], f"{said['file_bytes'] / 1024:,.0f} KiB",
    ]
    return "| " + " | ".join(f"{c:,}" if isinstance(c, int) else c for c in columns) + " |\n", None


with tempfile.TemporaryDirectory() as folder:
    paths = sorted(path for path in TRACES.rglob("*") if path.is_file() and path.suffix != ".md")
    rows = [row(path, pathlib.Path(folder, "x.ktape")) for path in paths]
refused = "".join(why for _, why in rows if why)
table = "".join(line for line, _ in rows if line)
(ROOT / "docs/traces.md").write_text(f"{HEAD}{table}\nRefused, as they are no timelines:\n\n{refused}")
