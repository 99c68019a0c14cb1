"""Rows of the answers by call site, by category, by phase and by step.

Owns how blocks and ranges are summed up; `Trace` gives the results out as mappings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.trace.categories import GUESS, IDENTITY, PHASE, RULE
from memwidget.trace.values import SiteRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from memwidget.recording import I32, I64, Recording


@dataclass(frozen=True)
class CategoryRow:
    """One category's share of the live memory at a moment, and how many of its bytes were decided in which way."""

    label: str
    bytes: int
    count: int
    by_identity: int
    by_phase: int
    by_guess: int
    by_rule: int


@dataclass(frozen=True)
class RangeRow:
    """Allocated memory over the ranges of one name.

    Attributes
    ----------
    bytes : int
        The highest of them all.
    peak_moment : int
    end : int
        At the end of the last range.
    growth : int
        Ends minus starts, all ranges together.
    count : int
        Number of ranges.
    """

    label: str
    bytes: int
    peak_moment: int
    end: int
    growth: int
    count: int


@dataclass(frozen=True)
class OperatorRow:
    """What one operator or named range did to memory, as torch.profiler saw it.

    Attributes
    ----------
    bytes : int
        Allocated minus freed while it ran, by what it called too.
    self_bytes : int
        The same without what it called.
    allocations : int
        Made while it ran, by what it called too.
    calls : int
    """

    label: str
    bytes: int
    self_bytes: int
    allocations: int
    calls: int


def operator_rows(recording: Recording, device: int) -> tuple[OperatorRow, ...]:
    """A device's operators, the one that added most first."""
    table, strings = recording.operators, recording.strings
    mine = table.device == device
    columns = (table.name, table.increase, table.self_increase, table.allocations, table.calls)
    rows = [
        OperatorRow(strings[name], *numbers)
        for name, *numbers in zip(*(column[mine].tolist() for column in columns), strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, -row.self_bytes, row.label)))


def site_rows(frames: I32, sizes: I64, label: Callable[[int], str]) -> tuple[SiteRow, ...]:
    """Bytes and blocks of each call site, largest first; frames of one label are one site.

    Parameters
    ----------
    frames, sizes : one entry a block: its call site as a row of ``recording.frames`` (-1 for none), its bytes
    label : what a row is called
    """
    keys, inverse = np.unique(frames, return_inverse=True)
    sums = np.zeros(len(keys), np.int64)
    np.add.at(sums, inverse, sizes)
    counts = np.bincount(inverse, minlength=len(keys))
    merged: dict[str, SiteRow] = {}
    for key, size, count in zip(keys.tolist(), sums.tolist(), counts.tolist(), strict=True):
        text = label(key)
        old = merged.get(text, SiteRow(text, 0, 0, key))
        merged[text] = SiteRow(text, old.bytes + size, old.count + count, old.frame)
    return tuple(sorted(merged.values(), key=lambda row: (-row.bytes, row.label)))


def category_rows(blocks: NDArray[Any], live: I64, categories: Sequence[str]) -> tuple[CategoryRow, ...]:
    """Sums of the live blocks by category, largest first."""
    size, code, reason = blocks["size"][live], blocks["category"][live], blocks["reason"][live]
    rows = []
    for category in np.unique(code).tolist():
        mine = code == category
        ways = [int(size[mine & (reason == way)].sum()) for way in (IDENTITY, PHASE, GUESS, RULE)]
        rows.append(CategoryRow(categories[category], int(size[mine].sum()), int(mine.sum()), *ways))
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.label)))


def range_rows(ranges: Iterable[tuple[str, int, int]], allocated: I64) -> tuple[RangeRow, ...]:
    """Peak, end and growth over ranges (name, lo, hi) of moments, by name, highest peak first."""
    rows: dict[str, RangeRow] = {}
    for name, lo, hi in sorted(ranges, key=lambda r: r[1]):
        moment = lo + int(allocated[lo : hi + 1].argmax())
        peak, grown = int(allocated[moment]), int(allocated[hi] - allocated[lo])
        old = rows.get(name)
        if old is None:
            rows[name] = RangeRow(name, peak, moment, int(allocated[hi]), grown, 1)
            continue
        best, at = (peak, moment) if peak > old.bytes else (old.bytes, old.peak_moment)
        rows[name] = RangeRow(name, best, at, int(allocated[hi]), old.growth + grown, old.count + 1)
    return tuple(sorted(rows.values(), key=lambda row: -row.bytes))
