"""A trace as torch.profiler's memory timeline, for scripts that read what ``export_memory_timeline`` wrote.

Owns that format, ``[times, sizes]``: times in microseconds, and for each one row of a leading 0 and eight sums of
bytes, by torch's categories and in torch's order. torch has no word for some of ours: a buffer counts as a parameter,
an output as an activation; what existed before, the user's own names and what is not known are all "unknown".
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memwidget.recording import CATEGORIES, TORCH_CATEGORIES
from memwidget.trace.reduce import BEFORE

if TYPE_CHECKING:
    import os

    from memwidget.trace.trace import Trace

_STAND_IN = {"buffer": "parameter", "output": "activation"}
_PLACE = np.array(
    [
        TORCH_CATEGORIES.index(name if name in TORCH_CATEGORIES else _STAND_IN.get(name, "unknown"))
        for name in CATEGORIES
    ]
)


def to_timeline_json(trace: Trace, path: str | os.PathLike[str]) -> Path:
    """Write torch's ``.json`` timeline; compressed where the name ends in ``.gz``.

    Raises
    ------
    ValueError
        If the recording has no times (made by a torch before 2.2).
    """
    if not trace.has_time and trace.n_events:
        raise ValueError(
            "This recording has no times, and a timeline is nothing without; record with torch 2.2 or later."
        )
    blocks, n = trace.blocks, trace.n_events
    code = blocks["category"].astype(np.intp)
    place = np.append(_PLACE, np.full(256 - len(_PLACE), TORCH_CATEGORIES.index("unknown")))[code]
    born, freed = blocks["alloc_event"], blocks["free_requested_event"]
    change = np.zeros((n + 1, len(TORCH_CATEGORIES)), np.int64)
    there = freed != BEFORE
    np.add.at(change, (born[there] + 1, place[there]), blocks["size"][there])  # born -1: at moment 0
    gone = freed >= 0
    np.subtract.at(change, (freed[gone] + 1, place[gone]), blocks["size"][gone])
    level = np.cumsum(change, axis=0)
    time = trace.event_times_us
    last = np.flatnonzero(np.append(time[1:] != time[:-1], True)) if n else np.zeros(0, np.intp)
    times, sizes = time[last].tolist(), level[last + 1].tolist()
    if level[0].any():
        times.insert(0, times[0] if times else 0)
        sizes.insert(0, level[0].tolist())
    content = json.dumps([times, [[0, *row] for row in sizes]]).encode()
    target = Path(path).expanduser()
    target.write_bytes(gzip.compress(content, mtime=0) if target.suffix == ".gz" else content)
    return target
