"""Each block's bytes as a function of the batch size, and the allocator replayed with them.

Owns the model that follows the requests of a step, where all trials ask for the same blocks in the same order. Most
blocks follow one function of the size exactly; scratch of libraries does not, see scratch.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from memwidget.answer.batch_size.replay import SMALL, Outcome, Program, align, large_only, live_at, replay
from memwidget.answer.batch_size.scratch import capped, draws, reductions
from memwidget.answer.batch_size.terms import Term, design, exact, largest_row, solve, through_most
from memwidget.answer.batch_size.trials import Size, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64


@dataclass(frozen=True)
class Need:
    """Peaks of one size, bytes."""

    allocated: float
    reserved: float


class NotAlikeError(Exception):
    """The trials ran steps that cannot be matched block by block."""


def points_of(trials: Sequence[Trial]) -> NDArray[np.float64]:
    """Sizes as rows."""
    return np.array([trial.size for trial in trials], float)


@dataclass(eq=False)
class Requests:
    """Each block's bytes as a function of the size, and the allocator replayed."""

    trials: Sequence[Trial]
    name: str = "requests"
    #: Of the bytes at the largest trial's peak, the share in blocks whose size is an exact function of the batch size.
    exact_share: float = 0.0
    _kept: dict[Size, tuple[Outcome, I64]] = field(default_factory=dict)
    _scattered: dict[Size, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        points = points_of(self.trials)
        far = largest_row(points)
        self.template = self.trials[far]
        if self.template.program is None:
            raise NotAlikeError
        self.program: Program = self.template.program
        rows, values = [], []
        for row, trial in enumerate(self.trials):
            map_ = None if trial.program is None else align(self.program, trial.program)
            if map_ is not None and trial.program is not None:
                rows.append(row)
                values.append(np.where(map_ >= 0, trial.program.sizes[map_], -1)[self.program.known :])
        if len(rows) < 2:
            raise NotAlikeError
        self.used = [self.trials[row] for row in rows]
        self._fit(points[rows], np.array(values, float))
        live = np.array(live_at(self.program, self.run(self.template.size)[0].peak_op), np.int64)
        sizes = self.program.sizes[live]
        loose = np.isin(live - self.program.known, self._rest)
        self.exact_share = 1.0 - float(sizes[loose].sum()) / max(1.0, float(sizes.sum()))
        fits = [self.run(trial.size)[0] for trial in self.used]
        self._off = (
            max(abs(o.allocated - t.allocated) for o, t in zip(fits, self.used, strict=True)),
            max(abs(o.reserved - t.reserved) for o, t in zip(fits, self.used, strict=True)),
        )

    def _fit(self, points: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Terms of each block; those that not every trial has, or that follow no term, as most trials have them."""
        self._groups: list[tuple[tuple[Term, ...], NDArray[np.int64], NDArray[np.float64]]] = []
        whole = np.flatnonzero((values >= 0).all(axis=0))
        full = values[:, whole]
        # An index or a mask may be padded by some elements; more than that is no function of the size.
        index, sets = exact(points, full, np.maximum(64.0, 1e-6 * full.max(axis=0, initial=0.0)))
        for row, terms in enumerate(sets):
            mine = np.flatnonzero(index == row)
            self._groups.append((terms, whole[mine], solve(points, terms, full[:, mine])))
        self._rest = np.setdiff1d(np.arange(values.shape[1]), whole[index >= 0])
        one = (0,) * points.shape[1]
        laws: dict[bytes, tuple[Term, float, float]] = {}  # a layer's twins have the same
        loose: dict[Term, list[tuple[int, float, float]]] = {}
        changed = []
        for block in self._rest.tolist():
            has = values[:, block] >= 0
            asked = values[has, block]
            tolerance = max(64.0, 0.002 * float(asked.max()))
            key = values[:, block].tobytes()
            if key not in laws:
                laws[key] = through_most(points[has], asked, tolerance)
            term, constant, factor = laws[key]
            loose.setdefault(term, []).append((block, constant, factor))
            if np.abs(design(points[has], (one, term)) @ [constant, factor] - asked).max() > tolerance:
                changed.append(block)
        for term, found in loose.items():
            table = np.array(found)
            self._groups.append(((one, term), table[:, 0].astype(np.int64), table[:, 1:].T))
        known = self.program.known
        self._sums, self._caps = reductions(self.program)
        everywhere = np.concatenate([np.zeros((len(values), known)), values], axis=1)
        self._drawn, self._factors = draws(self.program, everywhere, known + np.array(changed, np.int64))

    def sizes_at(self, size: Size) -> I64:
        """Requested bytes of every block at a size."""
        sizes = self.program.sizes.astype(float)
        point = np.array([size], float)
        for terms, mine, factors in self._groups:
            sizes[self.program.known + mine] = design(point, terms)[0] @ factors
        sizes[self._sums] = capped(sizes[self._sums], self._caps)
        return _whole(sizes)

    def run(self, size: Size) -> tuple[Outcome, I64]:
        """Peaks and block sizes at a size, replayed once."""
        kept = self._kept.get(size)
        if kept is None:
            sizes = self.sizes_at(size)
            kept = self._kept[size] = (replay(self.program, sizes), sizes)
        return kept

    def need(self, size: Size) -> Need:
        """Peaks at a size."""
        return Need(self.run(size)[0].allocated, self._reserved(size)[0])

    def scatter(self, size: Size) -> float:
        """Standard deviation of the reserved peak where libraries choose scratch by size, 0 elsewhere."""
        return self._reserved(size)[1]

    def _reserved(self, size: Size) -> tuple[float, float]:
        """Reserved peak at a size, and by how much it scatters where libraries choose scratch by size."""
        found = self._scattered.get(size)
        if found is None:
            outcome, sizes = self.run(size)
            reserved = [outcome.reserved]
            if len(self._factors):
                large = large_only(self.program, sizes)
                small = outcome.reserved - replay(large, sizes).reserved
                drawn = np.tile(sizes, (len(self._factors), 1))
                drawn[:, self._drawn] = np.maximum(_whole(drawn[:, self._drawn] * self._factors), SMALL + 1)
                reserved = [small + replay(large, each).reserved for each in drawn]
            found = self._scattered[size] = (float(np.mean(reserved)), float(np.std(reserved)))
        return found

    def runs_within(self, size: Size, limit: int) -> bool:
        """Whether the step would run at all under a limit, giving cached memory back where it must."""
        return replay(self.program, self.sizes_at(size), limit).fits

    def split(self, size: Size, by: str) -> dict[str, float]:
        """Bytes at the allocated peak "by" category, line or name."""
        outcome, sizes = self.run(size)
        return self._by(outcome.peak_op, sizes, by)

    def fixed(self, size: Size, by: str) -> dict[str, float]:
        """The part of `split` that no size changes."""
        return self._by(self.run(size)[0].peak_op, self.sizes_at((0,) * len(size)), by)

    def _by(self, peak_op: int, sizes: I64, by: str) -> dict[str, float]:
        keys = {"category": self.template.kinds, "line": self.template.sites, "name": self.template.names}[by]
        sums: dict[str, float] = {}
        for block in live_at(self.program, peak_op):
            key = keys[block]
            sums[key] = sums.get(key, 0.0) + float(sizes[block])
        if self.program.base:  # held all the while, unseen by the recorder
            held = {k: v for k, v in self.template.categories.items() if by == "category"}
            seen: dict[str, float] = {}
            for block in live_at(self.program, self.run(self.template.size)[0].peak_op):
                seen[keys[block]] = seen.get(keys[block], 0.0) + float(self.program.sizes[block])
            for key, value in held.items():
                sums[key] = sums.get(key, 0.0) + max(0.0, value - seen.get(key, 0.0))
        return sums

    def need_of(self, program: Program, size: Size) -> Need:
        """Peaks at a size, if the same blocks were asked for in another order."""
        outcome = replay(program, self.sizes_at(size))
        return Need(outcome.allocated, outcome.reserved)

    def half_width(self, size: Size) -> Need:
        """Half of the 95 % interval that the residuals give."""
        # The residuals are of a replay, not of a regression: they grow with the size at most as fast as the need does.
        grown = max(1.0, self.need(size).allocated / max(1, self.template.allocated))
        loose = (1.0 - self.exact_share) * 0.25
        need = self.need(size)
        return Need(
            math.hypot(self._off[0] * grown, loose * need.allocated),
            # The draws scatter by 5 % where the truth was off their mean by 1 to 3 %: one deviation is enough.
            math.hypot(self._off[1] * grown, loose * need.reserved, self.scatter(size)),
        )


def _whole(sizes: NDArray[np.float64]) -> I64:
    found: I64 = np.maximum(np.rint(sizes), 1).astype(np.int64)
    return found
