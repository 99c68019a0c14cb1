"""A trace for ui.perfetto.dev and chrome://tracing, where people lay it beside other recordings.

Owns that file, Chrome's trace event format: counters (allocated, reserved, each category), phases, steps and
annotations as slices, failed allocations as instants, and the largest blocks as slices that may overlap.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.show.figures import category_areas
from memwidget.show.picture import column_moments
from memwidget.show.text import device_text
from memwidget.units import plain

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from memwidget.recording import I64
    from memwidget.trace.trace import Trace

#: Values of one counter at most, its highest moments among them; and blocks, the largest ones. 10 MB of text each.
MAX_VALUES, MAX_BLOCKS = 100_000, 50_000
_KINDS = ("step", "phase", "annotation")


def to_perfetto(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write the trace as Chrome's JSON; compressed where the name ends in ``.gz``.

    Times are microseconds since the first event; where a history has none (torch before 2.2), an event takes one.
    """
    events = [
        _name("process_name", 0, f"{plain(trace.name, 80) or 'recording'} on {device_text(trace)}"),
        *(_name("thread_name", row, f"{kind}s") for row, kind in enumerate(_KINDS, 1)),
    ]
    events += [*_counters(trace), *_bands(trace), *_failures(trace), *_blocks(trace)]
    content = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    target = Path(path).expanduser()
    target.write_bytes(gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
    return target


def _name(what: str, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": 0, "tid": row, "args": {"name": name}}


def _times(trace: Trace, moments: I64) -> I64:
    """Microseconds at which the history reached each moment."""
    if not trace.has_time:
        return moments
    times = trace.event_times_us
    found: I64 = np.where(moments > 0, times[np.maximum(moments, 1) - 1] - times[0], 0)
    return found


def _counters(trace: Trace) -> Iterator[dict[str, Any]]:
    allocated = trace.curve("allocated")
    moments = np.arange(len(allocated)) if len(allocated) <= MAX_VALUES else column_moments(allocated, MAX_VALUES)
    series = [("allocated", allocated[moments])]
    if trace.has_reserved:
        series.append(("reserved", trace.curve("reserved")[moments]))
    if trace.has_labels:
        series += [(name.replace("_", " "), sizes) for name, sizes in category_areas(trace, moments)]
    times = _times(trace, moments)
    for name, sizes in series:
        changes = np.flatnonzero(np.append(True, np.diff(sizes) != 0))
        for at, size in zip(times[changes].tolist(), sizes[changes].tolist(), strict=True):
            yield {"ph": "C", "name": name, "pid": 0, "ts": at, "args": {"bytes": size}}


def _bands(trace: Trace) -> Iterator[dict[str, Any]]:
    for band in trace.bands:
        start, end = _times(trace, np.array([band.lo, band.hi], np.int64)).tolist()
        row = _KINDS.index(band.kind) + 1
        yield {
            "ph": "X", "name": band.name, "cat": band.kind, "pid": 0, "tid": row, "ts": start, "dur": end - start
        }  # fmt: skip


def _failures(trace: Trace) -> Iterator[dict[str, Any]]:
    for m in trace.oom_moments:
        at = int(_times(trace, np.array([m], np.int64))[0])
        size = int(trace.events.size[m])
        yield {"ph": "i", "s": "p", "name": "out of memory", "pid": 0, "tid": 0, "ts": at, "args": {"requested": size}}


def _blocks(trace: Trace) -> Iterator[dict[str, Any]]:
    blocks = trace.blocks
    largest = np.sort(np.argsort(-blocks["size"], kind="stable")[:MAX_BLOCKS])
    for block in largest.tolist():
        row = blocks[block]
        asked = int(row["free_requested_event"])
        if asked == -2:  # its free is all that was seen of it
            continue
        moments = np.array([max(int(row["alloc_event"]) + 1, 0), trace.n_events if asked < 0 else asked + 1], np.int64)
        start, end = _times(trace, moments).tolist()
        common = {
            "cat": "block",
            "id": block,
            "pid": 0,
            "tid": 0,
            "name": trace.site_label(int(trace.block_site[block])),
        }
        facts = {
            "block": trace.block_name(block),
            "bytes": int(row["size"]),
            "requested": int(row["requested"]),
            "category": trace.categories[row["category"]],
            "for": trace.label(block),
        }
        yield {**common, "ph": "b", "ts": start, "args": facts}
        yield {**common, "ph": "e", "ts": end}
