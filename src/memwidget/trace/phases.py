"""Spans -> what the code was doing at each event.

Owns how recorded spans become stretches of events: forward, backward, optimizer steps, the module that ran, and steps
where nobody marked any. It must not know about labels or categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwidget.recording import I32, I64, IN_BACKWARD, SPAN, SPANS, TRAINS, Recording
from memwidget.trace.paint import last_over

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD, BACKWARD, STEP, CALL = (SPAN[name] for name in ("forward", "backward", "optimizer", "module"))
#: Between a forward that trains and its backward: where functional losses are computed.
LOSS = len(SPAN)


@dataclass(eq=False)
class Phases:
    """Stretches of events, by start; `kind` is FORWARD, BACKWARD, STEP or LOSS.

    Attributes
    ----------
    lo, hi : ndarray of int64
        The stretch holds the events lo <= e < hi.
    start_us : ndarray of int64
    flags : ndarray of uint8
        TRAINS, IN_BACKWARD.
    at : ndarray of int32, shape (n_events + 1,)
        Row of the innermost stretch at each event, -1 for none; the last entry is -1 and takes a block's "none".
    module : ndarray of int32, shape (n_events + 1,)
        Name (index into strings) of the innermost module that ran, -1 for none.
    torn : ndarray of bool, shape (n_events + 1,)
        Two threads did different things at once: nothing can be said from time.
    """

    kind: I64
    lo: I64
    hi: I64
    start_us: I64
    flags: I64
    at: I32
    module: I32
    torn: NDArray[np.bool_]


def phases(recording: Recording, times: I64) -> Phases:
    """The phases of one device.

    Parameters
    ----------
    times : ndarray of int64, shape (n_events,)
        Time of each event, never falling.
    """
    spans = _own(recording)
    n = len(times)
    top = spans[spans[:, 0] != CALL]
    top = np.concatenate([top, _losses(top)])
    # Outermost first, and a LOSS under everything: what is painted later stands.
    top = top[np.lexsort((-top[:, 4], top[:, 3], top[:, 0] != LOSS))]
    lo, hi = _stretch(top, times)
    at = _paint(n, lo, hi, np.arange(len(top)))
    calls = spans[spans[:, 0] == CALL]
    calls = calls[np.lexsort((-calls[:, 4], calls[:, 3]))]
    module = _paint(n, *_stretch(calls, times), calls[:, 1])
    torn = np.append(last_over(n, *_stretch(_overlaps(spans), times)) >= 0, np.False_)
    return Phases(top[:, 0], lo, hi, top[:, 3], top[:, 5], at, module, torn)


def _own(recording: Recording) -> I64:
    """Spans as rows (kind, name, thread, start, end, flags); of one thread only where only one was recorded."""
    table = recording.spans
    rows = np.stack(
        [c.astype(np.int64) for c in (table.kind, table.name, table.thread, table.start_us, table.end_us, table.flags)],
        axis=1,
    )
    return rows[rows[:, 2] == 0] if recording.device_type == "cpu" else rows


def _stretch(rows: I64, times: I64) -> tuple[I64, I64]:
    lo = np.searchsorted(times, rows[:, 3], side="left")
    hi = np.searchsorted(times, rows[:, 4], side="right")
    return lo.astype(np.int64), hi.astype(np.int64)


def _paint(n: int, lo: I64, hi: I64, values: I64) -> I32:
    painted: I32 = np.append(values, -1)[np.append(last_over(n, lo, hi), -1)].astype(np.int32)
    return painted


def _losses(top: I64) -> I64:
    """From the first forward that trains to the backward that follows, thread by thread."""
    found = []
    since: dict[int, int] = {}
    for kind, _, thread, start, _, flags in top[np.argsort(top[:, 3], kind="stable")].tolist():
        if kind == FORWARD and flags & TRAINS:
            since.setdefault(thread, start)
        elif kind in (BACKWARD, STEP) and not flags & IN_BACKWARD:
            began = since.pop(thread, None)
            if kind == BACKWARD and began is not None:
                found.append((LOSS, -1, thread, began, start, TRAINS))
    return np.array(found, np.int64).reshape(-1, 6)


def _overlaps(spans: I64) -> I64:
    """Where phases of two threads lie over each other. What runs within backward is autograd's own, on any thread."""
    top = spans[(spans[:, 0] != CALL) & (spans[:, 5] & IN_BACKWARD == 0)]
    top = top[np.argsort(top[:, 3], kind="stable")]
    found = []
    first, second = (-1, 0), (-2, 0)  # the two threads that are busy longest, and until when
    for row in top.tolist():
        thread, start, end = row[2:5]
        until = second[1] if thread == first[0] else first[1]
        if until > start:
            found.append([*row[:3], start, min(until, end), 0])
        if thread == first[0]:
            first = (thread, max(first[1], end))
        elif end > first[1]:
            first, second = (thread, end), first
        elif end > second[1]:
            second = (thread, end)
    return np.array(found, np.int64).reshape(-1, 6)


def found_steps(recording: Recording) -> list[int]:
    """Ends of steps, in microseconds, where nobody marked any.

    Each step ends with an optimizer's; of several optimizers the one that steps least often counts, so that a loop
    with five steps of one network for each of another has one step a turn. Where there is no optimizer, the model that
    is called most often gives the steps, from three calls on.
    """
    spans = _own(recording)
    rows = spans[spans[:, 0] == STEP]
    if len(rows):
        names, counts = np.unique(rows[:, 1], return_counts=True)
        several = np.where(counts > 1, counts, np.iinfo(np.int64).max)
        last = np.zeros(len(names), np.int64)
        np.maximum.at(last, np.searchsorted(names, rows[:, 1]), rows[:, 4])
        best = int(np.lexsort((-last, several))[0])
        return sorted(rows[rows[:, 1] == names[best], 4].tolist())
    rows = spans[spans[:, 0] == FORWARD]
    if len(rows):
        names, counts = np.unique(rows[:, 1], return_counts=True)
        if counts.max() >= 3:
            return sorted(rows[rows[:, 1] == names[counts.argmax()], 4].tolist())
    return []


def phase_ranges(recording: Recording, marked: list[tuple[str, str, int, int]]) -> list[tuple[str, str, int, int]]:
    """Phases that the recorder saw, as ("phase", name, start, end), but for those that the user marked himself."""
    found = []
    spans = _own(recording)
    for kind, name in enumerate(SPANS):
        if kind == CALL:
            continue
        mine = spans[spans[:, 0] == kind]
        own = np.array([(begin, until) for _, marks, begin, until in marked if marks == name], np.int64).reshape(-1, 2)
        own = own[np.argsort(own[:, 0])]
        latest = np.append(np.maximum.accumulate(own[:, 1]), np.iinfo(np.int64).min)  # the last one stands for "none"
        hidden = latest[np.searchsorted(own[:, 0], mine[:, 4], side="right") - 1] >= mine[:, 3]
        found += [("phase", name, start, end) for start, end in mine[~hidden, 3:5].tolist()]
    return found
