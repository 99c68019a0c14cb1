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

from memwidget.answer.batch_size.replay import SMALL, Outcome, Program, align, large_only, lifetimes, live_at, replay
from memwidget.answer.batch_size.scratch import capped, draws, reductions
from memwidget.answer.batch_size.terms import (
    Term,
    design,
    exact,
    fitted,
    largest_row,
    solve,
    stairs,
    t95,
    through_most,
)
from memwidget.answer.batch_size.trials import Size, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memwidget.recording import I64


#: Of a block that follows no term, the share that its law may be off by; and, where no library is choosing, how many
#: times what it was off by in the trials. oneDNN's scratch for an LSTM is padded to pages: 0.4 % in trials of 2 to 8,
#: and the whole 1.7 % off at 66.
_LOOSE, _SEEN = 0.25, 10.0
#: By which share peaks must fall as sizes grow, and the law be off, for it to say nothing of larger sizes.
_ASTRAY = 0.1


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
    follows: bool = True
    in_steps: bool = False
    #: Of the bytes at the largest trial's peak, the share in blocks whose size is an exact function of the batch size.
    exact_share: float = 0.0
    _kept: dict[Size, tuple[Outcome, I64]] = field(default_factory=dict)
    _high: dict[Size, Need] = field(default_factory=dict)
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
        loose = self._loose[live]
        self.exact_share = 1.0 - float((sizes * loose).sum()) / (_LOOSE * max(1.0, float(sizes.sum())))
        fits = [self.run(trial.size)[0] for trial in self.used]
        self._off = (
            max(abs(o.allocated - t.allocated) for o, t in zip(fits, self.used, strict=True)),
            max(abs(o.reserved - t.reserved) for o, t in zip(fits, self.used, strict=True)),
        )
        self.in_steps = bool(self._steep)
        self.follows = self.program.allocator != "plain" or not self._astray()

    def _astray(self) -> bool:
        """Whether a trial took clearly less than a smaller one, and the law does not know why."""
        taken = sorted((math.prod(trial.size), trial.allocated, trial.size) for trial in self.trials)
        most = 0
        for _, allocated, size in taken:
            off = abs(self.need(size).allocated - allocated)
            if allocated < (1 - _ASTRAY) * most and off > _ASTRAY * allocated:
                return True
            most = max(most, allocated)
        return False

    def _fit(self, points: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        """Terms of each block; those that not every trial has, or that follow no term, as most trials have them."""
        self._groups: list[tuple[tuple[Term, ...], NDArray[np.int64], NDArray[np.float64]]] = []
        whole = np.flatnonzero((values >= 0).all(axis=0))
        full = values[:, whole]
        most = full.max(axis=0, initial=0.0)
        # To the byte first: an element a sample is less than what an allocator rounds to, and grows all the same.
        index, sets = exact(points, full, 0.5 + 1e-9 * most, 2)
        # An index or a mask may be padded by some elements; more than that is no function of the size.
        padded, more = exact(points, full, np.maximum(np.minimum(64.0, 0.25 * most), 1e-6 * most))
        index = np.where((index < 0) & (padded >= 0), padded + len(sets), index)
        sets += more
        by_data = self._by_data(points, values)
        index[np.isin(whole, by_data)] = -1
        for row, terms in enumerate(sets):
            mine = np.flatnonzero(index == row)
            self._groups.append((terms, whole[mine], solve(points, terms, full[:, mine])))
        known = self.program.known
        self._rest = np.setdiff1d(np.setdiff1d(np.arange(values.shape[1]), whole[index >= 0]), by_data)
        #: Of each block the share that its law may be off by.
        self._loose = np.zeros(len(self.program.sizes))
        self._loose[known + self._rest] = _LOOSE
        self._steep: list[tuple[int, float, float]] = []
        born, died = lifetimes(self.program)
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
            if factor == 0 and np.ptp(asked) > tolerance and died[known + block] != born[known + block] + 1:
                on_top = stairs(points[has], asked, tolerance)
                if on_top is not None:
                    term, (constant, factor) = (1,) * points.shape[1], on_top[0]
                    self._steep.append((block, *on_top[1]))
            loose.setdefault(term, []).append((block, constant, factor))
            off = float(np.abs(design(points[has], (one, term)) @ [constant, factor] - asked).max())
            if off > tolerance:
                changed.append(block)
            if self.program.allocator == "plain" and has.all():
                # No library chooses by what is free here: a law is off by what it was seen to be off by.
                self._loose[known + block] = min(_LOOSE, _SEEN * off / max(1.0, float(asked.max())))
        for term, found in loose.items():
            table = np.array(found)
            self._groups.append(((one, term), table[:, 0].astype(np.int64), table[:, 1:].T))
        self._sums, self._caps = reductions(self.program)
        everywhere = np.concatenate([np.zeros((len(values), known)), values], axis=1)
        self._drawn, self._factors = draws(self.program, everywhere, known + np.array(changed, np.int64))

    def _by_data(self, points: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Blocks that two runs of one size ask for in other sizes, fitted through all runs.

        In proportion to the size, or with a constant where that is certain; each run counts by its samples, as where
        each sample is in by chance.
        """
        none = np.zeros(0, np.int64)
        self._data, self._spread = none, 0.0
        if not self.template.twins:
            return none
        one, two = (run - self.program.known for run in self.template.twins)
        born, died = (each[self.program.known :] for each in lifetimes(self.program))
        seen = (one >= 0) & (two >= 0) & (values[:, one] >= 0).all(axis=0) & (values[:, two] >= 0).all(axis=0)
        differ = seen & (values[:, one] != values[:, two]).any(axis=0) & (died[two] != born[two] + 1)
        one, two = one[differ], two[differ]
        if not len(one):
            return none
        asked = np.concatenate([values[:, one], values[:, two]])
        where = np.concatenate([points, points])
        along = where.prod(axis=1)
        product, constant = (1,) * points.shape[1], (0,) * points.shape[1]
        expected = np.zeros_like(asked)
        for column in range(len(one)):
            factors = np.array([0.0, asked[:, column].sum() / along.sum()])
            line = fitted(where, (constant, product), asked[:, column])
            if line.factors[0] > 0 and line.factors[1] >= 0 and line.certain(constant):
                factors = np.array(line.factors)
            expected[:, column] = design(where, (constant, product)) @ factors
            mine = np.array([one[column], two[column]])
            self._groups.append(((constant, product), mine, np.stack([factors, factors], axis=1)))
        # Relative to what was expected of all of them, since they hang on the same data.
        off = asked.sum(axis=1) / np.maximum(1.0, expected.sum(axis=1)) - 1.0
        variance = float((off**2 * along).sum()) / (len(off) - 1)
        self._spread = t95(len(off) - 1) * math.sqrt(variance / along.sum() + variance / along.max())
        self._data = np.union1d(one, two)
        return self._data

    def _needs_most(self, size: Size) -> Need:
        """Peaks where what hangs on the data, and what rises in steps, is at its upper bound."""
        found = self._high.get(size)
        if found is None:
            sizes = self.sizes_at(size).astype(float)
            product = float(np.prod(np.array(size, float)))
            for block, constant, factor in self._steep:
                at = self.program.known + block
                sizes[at] = max(sizes[at], constant + factor * product)
            sizes[self.program.known + self._data] *= 1.0 + self._spread
            outcome = replay(self.program, _whole(sizes))
            found = self._high[size] = Need(outcome.allocated, outcome.reserved)
        return found

    def by_data(self, size: Size) -> Need:
        """By how much a run may be above what is expected, because of its data, and of steps it may be on."""
        plain = self.run(size)[0]
        if not self._steep and not len(self._data):
            return Need(0.0, 0.0)
        most = self._needs_most(size)
        return Need(max(0, most.allocated - plain.allocated), max(0, most.reserved - plain.reserved))

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
        loose = (1.0 - self.exact_share) * _LOOSE
        need, more = self.need(size), self.by_data(size)
        return Need(
            math.hypot(self._off[0] * grown, loose * need.allocated) + more.allocated,
            # The draws scatter by 5 % where the truth was off their mean by 1 to 3 %: one deviation is enough.
            math.hypot(self._off[1] * grown, loose * need.reserved, self.scatter(size)) + more.reserved,
        )


def _whole(sizes: NDArray[np.float64]) -> I64:
    found: I64 = np.maximum(np.rint(sizes), 1).astype(np.int64)
    return found
