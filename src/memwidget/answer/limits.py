"""Limits on memory: what was allowed, what a trace shows, and the error that names lines and bytes.

Owns the words of a limit ("2 GiB", "0 B/step") and the judgement; recording around the code is the session's.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.finding import lines_of, sums_by_site
from memwidget.answer.growth import grows, moves_on, survivors
from memwidget.answer.steps import find_steps
from memwidget.units import bytes_text, plain

if TYPE_CHECKING:
    from memwidget.answer.steps import Steps
    from memwidget.trace.trace import Trace

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i)?b?|b|bytes)?\s*(/\s*step)?\s*", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_LINES = 5
#: Fewest steps that can tell growth: the first one is not counted.
_TELLING = 3
#: How the notes begin that say that events are missing.
_NOT_WHOLE = ("The recording stopped by itself", "The first ", "The history is full")


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


class LimitNotChecked(RuntimeError):  # noqa: N818  (says what happened)
    """The recording is not whole, so that nobody knows whether a limit held."""


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
        LimitNotChecked
            Nothing is, as far as the recording goes; but it is not whole.
        """
        found = [*self._peak(trace), *self._growth(trace), *self._held(trace)]
        if found:
            raise MemoryLimitExceeded(tuple(found)) from None
        missing = next((note for note in trace.notes if "max_entries" in note and note.startswith(_NOT_WHOLE)), None)
        if missing is not None:
            raise LimitNotChecked(
                f"The limit could not be checked. {plain(missing, 200)} "
                "Give limit() a larger max_entries, or less code."
            )

    def _peak(self, trace: Trace) -> list[Exceeded]:
        if self.peak is None or trace.peak_allocated <= self.peak:
            return []
        lines = lines_of(trace, sums_by_site(trace, trace.live_at("peak")))
        return [Exceeded("peak", self.peak, trace.peak_allocated, lines)]

    def _growth(self, trace: Trace) -> list[Exceeded]:
        if self.growth is None or not trace.n_events:
            return []
        steps = find_steps(trace)
        if steps.n < _TELLING:
            warnings.warn(
                f"growth= could not be checked: {steps.n} steps are too few. The first one is not counted, and two "
                "more are needed: mark them with step().",
                stacklevel=4,
            )
            return []
        for lines in (_all_along(trace, steps), _late(trace, steps)):
            total = round(sum(size for _, size in lines))
            if total > self.growth:
                told = tuple((trace.site_label(row), round(size)) for row, size in lines)
                return [Exceeded("growth", self.growth, total, told)]
        return []

    def _held(self, trace: Trace) -> list[Exceeded]:
        if self.held is None:
            return []
        live = trace.live_at("end")
        live = live[trace.blocks["alloc_event"][live] >= 0]
        size = int(trace.blocks["size"][live].sum()) if len(live) else 0
        if size <= self.held:
            return []
        return [Exceeded("held", self.held, size, lines_of(trace, sums_by_site(trace, live.astype(np.int64))))]


def _all_along(trace: Trace, steps: Steps) -> list[tuple[int, float]]:
    """What grows through the whole run: call sites and their bytes a step."""
    stairs = grows(trace, steps)
    return [] if stairs is None else list(zip(stairs.sites.tolist(), stairs.slopes.tolist(), strict=True))


def _late(trace: Trace, steps: Steps) -> list[tuple[int, float]]:
    """What most of the later half of the steps leave, the same way; nothing for turns that are merely guessed.

    A limit of the user's is exact: a finding wants more steps, and the whole run.
    """
    if steps.how == "repetition":
        return []
    bounds = steps.bounds[1:]  # the first step is the warm-up
    bounds = bounds[min((len(bounds) - 1) // 2, len(bounds) - _TELLING) :]
    # By stack: a helper's line may make what is kept and what is not.
    stacks, first = np.unique(trace.blocks["stack"], return_index=True)
    kept, given = survivors(trace, trace.blocks["stack"], stacks.astype(np.int64), bounds)
    net = kept - given
    # What the last step leaves may be its own variables: the steps before it must leave something, too.
    # And what holds the last few lets as many go.
    most = ((net > 0).mean(1) > 0.5) & ((net[:, :-1] > 0).mean(1) > 0.5) & (2 * given.sum(1) < kept.sum(1))
    if moves_on(kept[most].sum(0), given.sum(0)):
        return []
    grown: dict[int, float] = {}
    for site, size in zip(trace.block_site[first[most]].tolist(), np.median(net[most], axis=1).tolist(), strict=True):
        grown[site] = grown.get(site, 0) + size
    return sorted(grown.items(), key=lambda pair: -pair[1])


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
