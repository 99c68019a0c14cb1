"""One finding: what is wrong, in plain words, with what a reader needs to check it.

Owns the shape of a finding and its kinds, and what several rules share: which bytes are worth a word, and the sums by
call site. It must not know any rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.trace.sites import USER, site_labels
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.recording import I32, I64
    from memwidget.trace.trace import Frame, Trace

#: Every kind, in the order in which findings of equal weight are told.
KINDS = (
    "oom",
    "growth",
    "held",
    "fragmentation",
    "spike",
    "pending_free",
    "pool",
    "cache",
    "outside",
    "step",
    "baseline",
)
#: Facts that a healthy run has too; a recording with these alone is nothing unusual.
EXPECTED = frozenset({"step", "baseline", "cache", "pool", "outside"})

#: Below this share of the peak a one-off amount is not worth a word.
WORTH = 0.10


@dataclass(frozen=True)
class Finding:
    """What is wrong, or worth knowing.

    Attributes
    ----------
    kind : one of `KINDS`
    title : str
        Plain words, one line.
    bytes : int
        What it is about, all together.
    blocks : tuple of int
        Block ids to show, in stacking order.
    site : Frame or None
        The user's line (with its source text where that was recorded).
    label : str
        The same line in words: ``train.py:31 in step``.
    evidence : tuple of str
        Sentences that can be checked against the picture.
    advice : str
        One next step, with what it should save.
    certain : bool
        The evidence leaves no other reading; otherwise it is likely.
    bytes_per_step : int
        For growth: by how much per step; 0 elsewhere.
    saves : int
        Bytes that the advice should save; 0 where that cannot be said.
    moment : int
        The moment to look at.
    window : (int, int) or None
        Moments between which it shows.
    lines : tuple of (str, int)
        Call sites with a share in it and their bytes (per step for growth), largest first.
    frame : int
        Row of the recording's frames, -1 for none.
    """

    kind: str
    title: str
    bytes: int
    blocks: tuple[int, ...]
    site: Frame | None
    label: str
    evidence: tuple[str, ...]
    advice: str
    certain: bool
    bytes_per_step: int = 0
    saves: int = 0
    moment: int = 0
    window: tuple[int, int] | None = None
    lines: tuple[tuple[str, int], ...] = ()
    frame: int = -1

    def __str__(self) -> str:
        sure = "" if self.certain else " (likely)"
        return "\n".join([f"{self.title}{sure}", *(f"  {line}" for line in self.evidence), f"  -> {self.advice}"])


def worth(trace: Trace, size: int) -> bool:
    """Whether a one-off amount is large enough, against the peak, to be told."""
    return size > 0 and size >= WORTH * max(trace.peak_active, trace.peak_allocated)


def sums_by_site(trace: Trace, blocks: I64, sites: I32 | None = None) -> list[tuple[int, int, int]]:
    """(frame row, bytes, count) of some blocks, largest first; by `sites` (one entry a block of the trace) if given."""
    if not len(blocks):
        return []
    rows, inverse = np.unique((trace.block_site if sites is None else sites)[blocks], return_inverse=True)
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, inverse, trace.blocks["size"][blocks])
    counts = np.bincount(inverse, minlength=len(rows))
    found = zip(rows.tolist(), sums.tolist(), counts.tolist(), strict=True)
    return sorted(found, key=lambda row: (-row[1], row[0]))


def lines_of(trace: Trace, sums: list[tuple[int, int, int]]) -> tuple[tuple[str, int], ...]:
    """The call sites of `sums_by_site` in words."""
    return tuple((trace.site_label(row), size) for row, size, _ in sums)


def frame_of(trace: Trace, row: int) -> Frame | None:
    """A row of the recording's frames, None for -1."""
    return trace.frame(row) if row >= 0 else None


def source_sentence(trace: Trace, row: int) -> tuple[str, ...]:
    """What the line says, where that was recorded."""
    frame = frame_of(trace, row)
    return (f"The line: {plain(frame.source, 160)}",) if frame is not None and frame.source else ()


def callers_sentence(trace: Trace, blocks: I64, row: int) -> tuple[str, ...]:
    """The user's lines that led to a line, where it is a helper that others call."""
    mine = blocks[trace.block_site[blocks] == row]
    if row < 0 or not len(mine):
        return ()
    r = trace.recording
    stack = int(trace.blocks["stack"][mine[trace.blocks["size"][mine].argmax()]])
    rows = r.stack_frames[r.stacks[stack] : r.stacks[stack + 1]]
    outer = [int(f) for f in rows[trace.frame_kind[rows] == USER] if int(f) != row]
    words = [frame_words(trace, f) for f in outer[:3]]
    return (f"Called from {', from '.join(words)}.",) if words else ()


def frame_words(trace: Trace, row: int) -> str:
    """A frame that need not be a call site, in the words of one."""
    return plain(site_labels(trace.recording, np.array([row], np.int32), cell_names(trace))[row], 100)


def cell_names(trace: Trace) -> dict[str, str]:
    """File names of notebook cells -> what to call them."""
    cells = trace.recording.facts.get("cells")
    return {str(k): str(v) for k, v in cells.items()} if isinstance(cells, dict) else {}


def name_of(trace: Trace, row: int) -> str:
    """A call site fit for a sentence."""
    return plain(trace.site_label(row), 100)


def many(n: int, thing: str) -> str:
    """``1 block``, ``1,234 blocks``."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"


def amount(size: float) -> str:
    """Bytes for a sentence."""
    return bytes_text(size)


def ids(blocks: I64) -> tuple[int, ...]:
    """Block ids as plain ints."""
    found: list[int] = np.sort(blocks).tolist()
    return tuple(found)


def fact_rows(trace: Trace, name: str) -> list[dict[str, Any]]:
    """Rows of plain dicts that the recorder left under a name; what is anything else is passed over."""
    rows = trace.recording.facts.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, (list, tuple)) else []


__all__ = ["EXPECTED", "KINDS", "Finding", "worth"]
