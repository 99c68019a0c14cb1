"""Two recordings side by side: what takes more, what takes less, and where.

Owns the matching of call sites between two versions of a program and the tables that follow from it. A line that moved
is found again by its function and its text, where the text was recorded, and one that was edited by a text that is
nearly the same; without text by its place among the lines of the same function that are found in one recording only.

::

    before                          after
    train.py:31 in step             train.py:34 in step          same function, same text
    train.py:40 in step             -                            gone
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.answer.steps import find_steps
from memwidget.trace.sites import normal_path
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from memwidget.recording import I64
    from memwidget.trace.trace import Trace


#: Texts of lines that are alike by this share are one line, edited: another number or argument, not another call.
_ALIKE = 0.8
#: Lines of a function that are compared so, and characters of each.
_MOST, _TEXT = 100, 200


@dataclass(frozen=True)
class Difference:
    """One thing in both recordings, in bytes; 0 where it is not there."""

    name: str
    before: int
    after: int
    #: What each recording calls a call site; empty where it has none, and for all that is no call site.
    labels: tuple[str, str] = ("", "")

    @property
    def change(self) -> int:
        """By how much it grew."""
        return self.after - self.before


@dataclass(frozen=True)
class _Site:
    """A call site, to be found again: `text` is its source, "" where not recorded."""

    file: str
    function: str
    line: int
    text: str
    label: str


class Comparison:
    """What differs between two traces; shows itself as a table in words.

    Parameters
    ----------
    before, after : Trace
    """

    def __init__(self, before: Trace, after: Trace) -> None:
        self.before, self.after = before, after

    @cached_property
    def totals(self) -> tuple[Difference, ...]:
        """Peaks and ends: allocated, reserved."""
        pairs = (
            ("peak allocated", "peak_allocated"),
            ("peak reserved", "peak_reserved"),
            ("allocated at the end", "allocated"),
            ("reserved at the end", "reserved"),
        )
        return tuple(Difference(n, getattr(self.before, a), getattr(self.after, a)) for n, a in pairs)

    @cached_property
    def by_site(self) -> tuple[Difference, ...]:
        """Live bytes at each recording's own peak, by call site, the largest change first."""
        old, new = _at_peak(self.before), _at_peak(self.after)
        pairs = _match(list(old), list(new))
        rows = [
            Difference(
                _pair_label(a, b),
                old.get(a, 0) if a else 0,
                new.get(b, 0) if b else 0,
                (a.label if a else "", b.label if b else ""),
            )
            for a, b in pairs
        ]
        return _sorted(rows)

    @cached_property
    def by_category(self) -> tuple[Difference, ...]:
        """Live bytes at each recording's own peak, by what they were for."""
        return _joined(self.before.by_category("peak"), self.after.by_category("peak"))

    @cached_property
    def by_phase(self) -> tuple[Difference, ...]:
        """Highest allocated bytes of each phase."""
        return _joined(self.before.by_phase(), self.after.by_phase())

    @cached_property
    def by_step(self) -> tuple[Difference, ...]:
        """Highest allocated bytes of each step, aligned by number; empty where either has no steps."""
        old, new = _step_peaks(self.before), _step_peaks(self.after)
        if not old or not new:
            return ()
        # Only steps that both have: one that is missing is no difference of memory.
        pairs = enumerate(zip(old, new, strict=False))
        return tuple(Difference(f"step {i}", one, other) for i, (one, other) in pairs)

    def summary(self, rows: int = 8) -> str:
        """Plain text: totals, then what changed most by call site, category and phase."""
        names = plain(self.before.name, 60) or "before", plain(self.after.name, 60) or "after"
        lines = [f"{names[0]} -> {names[1]}", *_table("", self.totals, len(self.totals))]
        for title, found in (
            ("at the peak, by call site", self.by_site),
            ("at the peak, by category", self.by_category),
            ("highest in each phase", self.by_phase),
        ):
            changed = [row for row in found if row.change]
            if changed:
                lines += _table(title, changed, rows)
            elif found:
                lines.append(f"  {title}: no difference")
        if self.by_step:
            worst = max(self.by_step, key=lambda row: abs(row.change))
            if worst.change:
                lines += _table("largest difference of one step", [worst], 1)
        return "\n".join(lines)

    def to_dataframe(self) -> Any:
        """Every row as a pandas DataFrame: by, name, before, after, change (bytes).

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        from memwidget.trace.tables import data_frame

        groups = (
            ("total", self.totals),
            ("site", self.by_site),
            ("category", self.by_category),
            ("phase", self.by_phase),
            ("step", self.by_step),
        )
        rows = [(by, row.name, row.before, row.after, row.change) for by, found in groups for row in found]
        return data_frame(rows, ("by", "name", "before", "after", "change"))

    def to_html(self, path: str | os.PathLike[str] | None = None, **options: Any) -> str | Path:
        """Write one self-contained page with both timelines; without a path, its text comes back."""
        from memwidget.show.compared import compare_html

        return compare_html(self, path, **options)

    def __repr__(self) -> str:
        return self.summary()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from memwidget.show.view import CompareView

        return CompareView(self)._repr_mimebundle_(**kwargs)


def compare(before: Any, after: Any) -> Comparison:
    """Compare two recordings: other code, another batch size, another torch, another rank.

    Parameters
    ----------
    before, after : Trace, or anything that ``load`` reads
    """
    return Comparison(_trace(before), _trace(after))


def _trace(source: Any) -> Trace:
    from memwidget.trace.trace import Trace

    if isinstance(source, Trace):
        return source
    inner = getattr(source, "trace", None)  # a memtrace that has ended
    if isinstance(inner, Trace):
        return inner
    from memwidget.read import load_recording

    return Trace(load_recording(source))


# -- what is compared -------------------------------------------------------------------------------------------------


def _at_peak(trace: Trace) -> dict[_Site, int]:
    """Bytes at the peak by call site; blocks without one are one entry."""
    live = trace.live_at("peak")
    found: dict[_Site, int] = {}
    rows, inverse = np.unique(trace.block_site[live], return_inverse=True)
    sums = np.zeros(len(rows), np.int64)
    np.add.at(sums, inverse, trace.blocks["size"][live])
    for row, size in zip(rows.tolist(), sums.tolist(), strict=True):
        site = _site(trace, row)
        found[site] = found.get(site, 0) + size
    return found


def _site(trace: Trace, row: int) -> _Site:
    label = trace.site_label(row)
    if row < 0:
        return _Site("", "", 0, "", label)
    frame = trace.frame(row)
    cells = trace.recording.facts.get("cells")
    cell = isinstance(cells, dict) and frame.filename in cells
    # Cells run again under another file name; a checkout may lie in another folder.
    file = "cell" if cell else normal_path(frame.filename).rsplit("/", 1)[-1]
    return _Site(file, frame.name, frame.line, (frame.source or "").strip(), label)


def _match(old: list[_Site], new: list[_Site]) -> list[tuple[_Site | None, _Site | None]]:
    """Pairs of the same call site: the same line, else the same text, nearly the same, or the same place."""
    pairs: list[tuple[_Site | None, _Site | None]] = []
    left, right = list(old), list(new)

    def take(key: Any) -> None:
        by_key: dict[Any, list[_Site]] = {}
        for site in right:
            by_key.setdefault(key(site), []).append(site)
        for site in list(left):
            twins = by_key.get(key(site)) if key(site) is not None else None
            if twins:
                twin = twins.pop(0)
                left.remove(site)
                right.remove(twin)
                pairs.append((site, twin))

    take(lambda s: (s.file, s.function, s.line, s.text))
    take(lambda s: (s.file, s.function, s.text) if s.text else None)
    take(lambda s: (s.function, s.text) if s.text else None)
    for site, twin in _edited(left, right):
        left.remove(site)
        right.remove(twin)
        pairs.append((site, twin))
    # Without text a line is known by its place among those that are left over; never against a text that differs.
    left.sort(key=lambda s: s.line)
    right.sort(key=lambda s: s.line)
    counts = [_counts(left), _counts(right)]
    take(
        lambda s: (s.file, s.function) if not s.text and counts[0].get(_where(s)) == counts[1].get(_where(s)) else None
    )
    return [*pairs, *((site, None) for site in left), *((None, site) for site in right)]


def _edited(left: list[_Site], right: list[_Site]) -> list[tuple[_Site, _Site]]:
    """Pairs of lines of the same function whose texts are nearly the same, the most alike first, each line once."""
    by_place: dict[tuple[str, str], list[_Site]] = {}
    for site in right:
        if site.text:
            by_place.setdefault(_where(site), []).append(site)
    alike = []
    for a in left:
        near = by_place.get(_where(a), ()) if a.text else ()
        for b in near if len(near) <= _MOST else ():
            ratio = SequenceMatcher(None, a.text[:_TEXT], b.text[:_TEXT], autojunk=False).ratio()
            if ratio >= _ALIKE:
                alike.append((-ratio, abs(a.line - b.line), a.line, b.line, a, b))
    alike.sort(key=lambda row: row[:4])
    found: list[tuple[_Site, _Site]] = []
    for *_, a, b in alike:
        if all(a is not x and b is not y for x, y in found):
            found.append((a, b))
    return found


def _where(site: _Site) -> tuple[str, str]:
    return site.file, site.function


def _counts(sites: list[_Site]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for site in sites:
        found[_where(site)] = found.get(_where(site), 0) + 1
    return found


def _pair_label(a: _Site | None, b: _Site | None) -> str:
    if a is None or b is None or a.label == b.label:
        site = b or a
        return site.label if site else ""
    return f"{b.label} (was {a.label})"


def _step_peaks(trace: Trace) -> list[int]:
    bounds: I64 = find_steps(trace).bounds
    curve = trace.curve("allocated")
    return [int(curve[lo : hi + 1].max()) for lo, hi in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]


def _joined(old: Any, new: Any) -> tuple[Difference, ...]:
    names = dict.fromkeys([*old, *new])
    return _sorted(Difference(name, int(old.get(name, 0)), int(new.get(name, 0))) for name in names)


def _sorted(rows: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(sorted(rows, key=lambda row: (-abs(row.change), -max(row.before, row.after), row.name)))


def _table(title: str, rows: Iterable[Difference], limit: int) -> list[str]:
    found = list(rows)
    lines = [f"  {title}:"] if title else []
    for row in found[:limit]:
        sign = "+" if row.change > 0 else ""
        change = f"{sign}{bytes_text(row.change)}" if row.change else "same"
        lines.append(
            f"    {bytes_text(row.before):>9} -> {bytes_text(row.after):>9}  {change:>10}  {plain(row.name, 120)}"
        )
    if len(found) > limit:
        rest = found[limit:]
        lines.append(f"    and {len(rest):,} more, {bytes_text(sum(row.change for row in rest))} together")
    return lines
