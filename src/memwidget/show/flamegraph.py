"""What is live at a moment as folded stacks, the text that flame graph tools read.

Owns that format: a line a stack, frames from the outside in with ";" between, a space, bytes. speedscope, inferno and
flamegraph.pl take it. C++ frames and the notebook's own machinery are left out, as in the Live view.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from memwidget.trace.sites import CPP, NO_SITE, PLUMBING
from memwidget.units import plain

if TYPE_CHECKING:
    import os

    from memwidget.trace.trace import At, Trace


def to_flamegraph(trace: Trace, path: str | os.PathLike[str], at: At = "peak") -> Path:
    """Write the bytes live at a moment by stack.

    Raises
    ------
    ValueError
        If there is no such moment.
    """
    live = trace.live_at(at)
    stacks, inverse = np.unique(trace.blocks["stack"][live], return_inverse=True)
    sums = np.zeros(len(stacks), np.int64)
    np.add.at(sums, inverse, trace.blocks["size"][live])
    folded: dict[str, int] = {}
    for stack, size in zip(stacks.tolist(), sums.tolist(), strict=True):
        words = _folded(trace, stack)
        folded[words] = folded.get(words, 0) + size
    target = Path(path).expanduser()
    target.write_text("".join(f"{words} {size}\n" for words, size in sorted(folded.items())), encoding="utf-8")
    return target


def _folded(trace: Trace, stack: int) -> str:
    recording = trace.recording
    start, end = (recording.stacks[stack], recording.stacks[stack + 1]) if stack >= 0 else (0, 0)
    rows = [row for row in recording.stack_frames[start:end].tolist() if trace.frame_kind[row] not in (CPP, PLUMBING)]
    frames = [trace.frame(row) for row in reversed(rows)]
    words = (f"{frame.name} ({frame.filename.rsplit('/', 1)[-1]}:{frame.line})" for frame in frames)
    return ";".join(plain(text, 200).replace(";", ",") for text in words) or NO_SITE
