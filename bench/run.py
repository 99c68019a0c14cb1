"""`make bench`: speed and size against their targets, as a Markdown table.

Figures are ratios where they can be: both sides run in turn on the same machine, in fresh processes, and the median
of the ratios counts. A missed target is said, not failed: other work on the machine moves every figure.
"""

import argparse
import lzma
import os
import platform
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import reading

ROOT = Path(__file__).resolve().parent.parent
STATIC = ROOT / "src" / "memwidget" / "show" / "static"
DATA = ROOT / "tests" / "data"


def find(name):
    """Return the compressed recording `name`, or None.

    Those too large for the repository are looked for in MEMWIDGET_SNAPSHOTS, and in a folder `snapshots` one or two
    levels beside the checkout.
    """
    named = os.environ.get("MEMWIDGET_SNAPSHOTS")
    beside = [*ROOT.parent.glob("snapshots"), *sorted(ROOT.parent.glob("*/snapshots"))]
    places = [DATA, *([Path(named)] if named else []), *beside]
    return next((path for place in places if (path := place / f"{name}.pickle.xz").is_file()), None)


class Table:
    """Rows of figure, value, target, verdict; printed as they come."""

    def __init__(self):
        print("| figure | value | target | verdict |\n| --- | --- | --- | --- |", flush=True)

    def row(self, figure, value, shown, target=None, limit="at most {}"):
        verdict = "" if target is None else "met" if value <= target else "**missed**"
        print(f"| {figure} | {shown} | {limit.format(target) if target is not None else ''} | {verdict} |", flush=True)


def bench_reading(table, name, pickle, rounds, folder):
    """Loading against the bare unpickler, and the archive against the pickle."""
    import memwidget

    both = reading.side_by_side(("bare", pickle), ("load", pickle), rounds)
    bare, ours, ratio = both["seconds"]
    table.row(f"{name}: load / bare unpickling, time", ratio, f"{ratio:.2f} ({ours:.2f} s / {bare:.2f} s)", 3.0)
    bare, ours, ratio = both["bytes"]
    table.row(f"{name}: same, peak memory", ratio, f"{ratio:.2f} ({ours / 1e6:.0f} MB / {bare / 1e6:.0f} MB)", 1.3)
    archive = folder / f"{name}.memtrace"
    trace = memwidget.load(pickle)
    trace.save(archive)
    page = folder / f"{name}.html"
    trace.to_html(page)
    del trace
    # `load` alone, then with blocks, peak and call sites, which both have to work out from the events.
    for job, what in (("reload", ""), ("load", ", and the first answers")):
        pickled, ours, ratio = reading.side_by_side((job, pickle), (job, archive), rounds)["seconds"]
        shown = f"{ratio:.3f} ({ours:.2f} s / {pickled:.2f} s)"
        table.row(f"{name}: .memtrace load / pickle load{what}", ratio, shown, 0.1)
    ratio = archive.stat().st_size / pickle.stat().st_size
    shown = f"1/{1 / ratio:.0f} ({archive.stat().st_size / 1e6:.2f} MB / {pickle.stat().st_size / 1e6:.1f} MB)"
    table.row(f"{name}: .memtrace size / pickle size", ratio, shown, 1 / 25, "at most 1/25")
    return page


def bench_sizes(table):
    """What everyone pays: the bundle and the import."""
    size = (STATIC / "widget.js").stat().st_size
    table.row("widget.js, minified", size, f"{size / 1e3:.1f} kB", 150_000, "at most 150 kB")
    took = 1e3 * statistics.median(reading.measure("memwidget", "-")["seconds"] for _ in range(9))
    numpy = 1e3 * statistics.median(reading.measure("numpy", "-")["seconds"] for _ in range(9))
    table.row(
        "import memwidget, beyond numpy", took, f"{took:.0f} ms (numpy itself {numpy:.0f} ms)", 150, "at most {} ms"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each pair runs")
    parser.add_argument("--only", choices=("reading", "sizes", "browser"), help="one part")
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores\n")
    table = Table()
    if options.only in {None, "sizes"}:
        bench_sizes(table)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("gpt2_100k", "gpt2_1m"):
            found = find(name)
            if found is None:
                print(f"{name}.pickle.xz not found: set MEMWIDGET_SNAPSHOTS to its folder", file=sys.stderr)
                continue
            pickle = Path(folder) / f"{name}.pickle"
            with lzma.open(found) as packed, pickle.open("wb") as plain:
                shutil.copyfileobj(packed, plain, 1 << 20)
            if options.only in {None, "reading"}:
                bench_reading(table, name, pickle, options.rounds, Path(folder))
            if options.only in {None, "browser"}:
                import browser

                browser.bench(table, name, pickle, Path(folder))


if __name__ == "__main__":
    main()
