"""Limits on memory: what was allowed, what a trace shows, and the error that names lines and bytes.

Owns the words of a limit ("2 GiB", "0 B/step") and the judgement; recording around the code is the session's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.finding import lines_of, sums_by_site
from memwidget.answer.growth import grows
from memwidget.answer.steps import find_steps
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i)?b?|b|bytes)?\s*(/\s*step)?\s*", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_LINES = 5


class MemoryLimitExceeded(AssertionError):  # noqa: N818  (says what happened, as torch.OutOfMemoryError does)
    """Code took more memory than it was allowed to; the message names the lines and their bytes.

    Attributes
    ----------
    exceeded : tuple of Exceeded
        Numbers and texts only: nothing of the code or its tensors is held.
    """

    def __init__(self, exceeded: tuple[Exceeded, ...]) -> None:
        self.exceeded = exceeded
        super().__init__("\n".join(map(str, exceeded)))


@dataclass(frozen=True)
class Exceeded:
    """One limit that did not hold: which, what was allowed, what it was (bytes), and the lines that took most."""

    limit: str
    allowed: int
    actual: int
    lines: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        what = {"peak": "The peak", "growth": "The growth a step", "held": "What is held at the end"}[self.limit]
        shown = "".join(f"\n  {bytes_text(size):>9}  {plain(label, 120)}" for label, size in self.lines[:_LINES])
        more = len(self.lines) - _LINES
        rest = f"\n  and {more:,} more lines" if more > 0 else ""
        allowed = f"{bytes_text(self.allowed)} ({self.allowed:,} B) allowed"
        return f"{what} is {bytes_text(self.actual)} ({self.actual:,} B), {allowed}; by line:{shown}{rest}"


@dataclass(frozen=True)
class Limits:
    """What is allowed, in bytes; None for no limit."""

    peak: int | None = None
    growth: int | None = None
    held: int | None = None

    @classmethod
    def of(cls, peak: str | int | None, growth: str | int | None, held: str | int | None) -> Limits:
        """Read "2 GiB", "0 B/step" or plain bytes."""
        if peak is None and growth is None and held is None:
            raise ValueError('limit() needs at least one of peak="2 GiB", growth="0 B/step", held=0.')
        return cls(
            _bytes("peak", peak, per_step=False),
            _bytes("growth", growth, per_step=True),
            _bytes("held", held, per_step=False),
        )

    def check(self, trace: Trace) -> None:
        """Compare with what a trace shows.

        Raises
        ------
        MemoryLimitExceeded
            Something is above its limit.
        """
        found = [*self._peak(trace), *self._growth(trace), *self._held(trace)]
        if found:
            raise MemoryLimitExceeded(tuple(found)) from None

    def _peak(self, trace: Trace) -> list[Exceeded]:
        if self.peak is None or trace.peak_allocated <= self.peak:
            return []
        lines = lines_of(trace, sums_by_site(trace, trace.live_at("peak")))
        return [Exceeded("peak", self.peak, trace.peak_allocated, lines)]

    def _growth(self, trace: Trace) -> list[Exceeded]:
        if self.growth is None or not trace.n_events:
            return []
        steps = find_steps(trace)
        stairs = grows(trace, steps)
        if stairs is None:
            return []
        slope = round(float(stairs.slopes.sum()))
        if slope <= self.growth:
            return []
        pairs = zip(stairs.sites.tolist(), stairs.slopes.tolist(), strict=True)
        return [Exceeded("growth", self.growth, slope, tuple((trace.site_label(r), round(s)) for r, s in pairs))]

    def _held(self, trace: Trace) -> list[Exceeded]:
        if self.held is None:
            return []
        live = trace.live_at("end")
        live = live[trace.blocks["alloc_event"][live] >= 0]
        size = int(trace.blocks["size"][live].sum()) if len(live) else 0
        if size <= self.held:
            return []
        return [Exceeded("held", self.held, size, lines_of(trace, sums_by_site(trace, live.astype(np.int64))))]


def _bytes(name: str, written: str | int | None, *, per_step: bool) -> int | None:
    if written is None:
        return None
    if isinstance(written, bool) or not isinstance(written, (str, int)):
        raise TypeError(f'{name}={written!r} must be bytes, or text such as "2 GiB".')
    if isinstance(written, int):
        if written < 0:
            raise ValueError(f"{name}={written} must not be negative.")
        return written
    match = _SIZE.fullmatch(written)
    example = '"0 B/step"' if per_step else '"2 GiB"'
    if match is None or (match[4] and not per_step):
        raise ValueError(f"{name}={written!r} is no amount of memory; write {example} or plain bytes.")
    return int(float(match[1]) * 2.0 ** _POWERS[(match[2] or "").lower()])
