"""Named ranges of time as ranges of moments: annotations, phases, steps.

Owns where each band begins and ends, how bands nest, and which band a block was allocated in. It must not know what
else a phase says of a block (categories.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memwidget.trace.paint import last_over
from memwidget.trace.phases import found_steps, phase_ranges
from memwidget.trace.values import Band

if TYPE_CHECKING:
    from memwidget.recording import I32, I64, Recording

#: Bands kept of each kind, the longest ones: a picture shows no more, and each of them is an object.
MAX_BANDS = 20_000
#: Deeper nesting is drawn at this depth; it also bounds the work on a file of a million ranges that never end.
MAX_DEPTH = 255


def named_ranges(recording: Recording, times: I64) -> tuple[Band, ...]:
    """Every annotation, phase and step that holds an event.

    Parameters
    ----------
    times : ndarray of int64
        Microseconds of each event, never falling.
    """
    marks, facts, strings = recording.annotations, recording.facts, recording.strings
    phases = set(facts.get("phases", ()))
    ranges = [
        (_kind(strings[name], row in phases), strings[name], start, end)
        for row, (name, start, end) in enumerate(
            zip(marks.name.tolist(), marks.start_us.tolist(), marks.end_us.tolist(), strict=True)
        )
    ]
    bounds = [-1, *facts.get("steps", ())]
    if len(bounds) == 1 and not any(kind == "step" for kind, *_ in ranges):
        bounds += found_steps(recording)
    ranges += phase_ranges(recording, [r for r in ranges if r[0] == "phase"])
    # What follows the last boundary is a step only if it goes on; the loop may have ended there.
    first = facts.get("first_step", 0)  # of a schedule's repeat
    ranges += [("step", str(first + i), bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1)]
    return _nested(ranges, times)


def innermost(bands: tuple[Band, ...], kind: str, n_events: int, born: I32) -> I32:
    """Row of the innermost band of a kind around each event index in `born`; -1 for none."""
    mine = sorted((band.depth, row, band.lo, band.hi) for row, band in enumerate(bands) if band.kind == kind)
    table = np.array(mine, np.int64).reshape(-1, 4)
    # Never allocated here is -1, which takes the last entry.
    inside = np.append(last_over(n_events, table[:, 2], table[:, 3]), -1)[born]
    rows: I32 = np.append(table[:, 1], -1)[inside].astype(np.int32)
    return rows


def _kind(name: str, is_phase: bool) -> str:
    if name.startswith("ProfilerStep#"):
        return "step"
    return "phase" if is_phase else "annotation"


def _nested(ranges: list[tuple[str, str, int, int]], times: I64) -> tuple[Band, ...]:
    """Ranges of (kind, name, start, end) in microseconds, -1 for an end that is not known, as bands."""
    start = np.array([r[2] for r in ranges], np.int64)
    end = np.array([r[3] for r in ranges], np.int64)
    lo = np.where(start < 0, 0, np.searchsorted(times, start, side="left"))
    hi = np.where(end < 0, len(times), np.searchsorted(times, end, side="right"))
    kept = np.flatnonzero(hi > lo)  # in the others lies no event of this device
    if len(kept) > MAX_BANDS:
        kinds = np.array([ranges[row][0] for row in kept.tolist()])
        longest = np.argsort(lo[kept] - hi[kept], kind="stable")
        kept = np.concatenate([kept[longest[kinds[longest] == kind][:MAX_BANDS]] for kind in np.unique(kinds)])
    found: list[Band] = []
    open_: dict[str, list[int]] = {}
    for row in kept[np.lexsort((kept, start[kept], -hi[kept], lo[kept]))].tolist():
        kind, name, first, last = ranges[row][0], ranges[row][1], int(lo[row]), int(hi[row])
        around = [other for other in open_.get(kind, []) if other > first]
        found.append(Band(kind, name, first, last, len(around)))
        open_[kind] = [*around, last][-MAX_DEPTH:]
    return tuple(found)
