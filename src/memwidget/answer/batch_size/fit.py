"""BatchSizeFit: what sizes take, which one is the largest that fits, what grows; as numbers and as text.

Owns the public answer. It holds plain numbers only: no tensor, no trace, no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memwidget.answer.batch_size.advice import Advice, checkpointing
from memwidget.answer.batch_size.laws import FLOOR, Chosen, Law, choose
from memwidget.answer.batch_size.limits import bytes_of, margin_of
from memwidget.answer.batch_size.measured import Knots
from memwidget.answer.batch_size.replay import STEP
from memwidget.answer.batch_size.requests import Requests
from memwidget.answer.batch_size.sizes import MOST, as_size, refuse_untold
from memwidget.answer.batch_size.table import Table, summary_of, table_of
from memwidget.answer.batch_size.trials import Size, Trial, differences, words
from memwidget.units import bytes_text

#: Growth below this share of the largest trial, from there to the largest size looked at, is none.
_FLAT = 0.001


@dataclass(frozen=True)
class Prediction:
    """Peaks of a size in bytes, each as (expected, low, high)."""

    allocated: tuple[int, int, int]
    reserved: tuple[int, int, int]


@dataclass(frozen=True)
class Growing:
    """A call site that takes more, the larger the batch: bytes at the size, and for each further sample."""

    line: str
    bytes_per_sample: float
    bytes: int
    share: float


@dataclass
class BatchSizeFit:
    """What `tune_batch_size` found.

    Attributes
    ----------
    trials : tuple of Trial
        What was run and what it took, as plain numbers; one that ran out of memory has its error in `failed`.
    limit : int
        Bytes that torch can have.
    margin : float or str
        To stay below it by: a share, or bytes.
    size : int, tuple of int or None
        The largest size that fits; None where not even the smallest does.
    checks : tuple of Trial
        Runs of proposed sizes (``verify=True``). Where they were not as predicted, every answer is corrected by them.
    foretold : dict of tuple to tuple
        What was predicted of each of them before it ran.
    notes : list of str
        What was unusual.
    """

    trials: tuple[Trial, ...]
    limit: int
    margin: float | str = 0.05
    device_limit: int | None = None
    device_name: str = ""
    kind: str = "cuda"
    checks: tuple[Trial, ...] = ()
    notes: list[str] = field(default_factory=list)
    size: int | Size | None = None
    _chosen: Chosen = field(init=False, repr=False)
    _advice: dict[tuple[str, float | str | None], tuple[Advice, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.trials = tuple(self.trials)
        self._chosen = choose(self.trials)
        alike = isinstance(self._law, Requests)
        self.notes += [note for note in differences(self.trials, alike) if note not in self.notes]
        ran = sorted((t for t in self.trials if t.fits), key=lambda t: math.prod(t.size))
        self.largest_trial = ran[-1]
        self._near = ran[-2]
        self._kept: dict[Size, Prediction] = {}
        self.foretold: dict[Size, tuple[int, int, int]] = {}
        self._knots = (Knots(), Knots())
        #: A run that took as little as a much smaller size: of what is larger than it, nothing is known.
        self._ends: int | None = None
        #: Which number of a size is looked for unless `fixed` says otherwise: the first that the trials vary.
        self.free = next(i for i in range(self.dimensions) if len({t.size[i] for t in ran}) > 1)
        self.size = self._propose()

    def _propose(self) -> Any:
        """The answer for the fit's own limit, and notes where it is no more than what was tried."""
        only = "the largest that was tried and fits stands in for the answer."
        try:
            size, endless = self._largest(None, None, None)
        except ValueError as error:  # the trials do not tell the numbers of a size apart
            self.notes.append(f"{error} Until then {only}")
            return self._tried()
        if not self._law.follows:
            sizes = ", ".join(f"{words(t.size)}: {bytes_text(t.reserved)}" for t in self.trials if t.fits)
            self.notes.append(
                f"The peaks of the trials follow no function of the size ({sizes}), so nothing larger is predicted: "
                f"{only} Larger sizes, further apart, and a step that is the same from call to call tell more."
            )
            return self._tried()
        if self._law.in_steps:
            self.notes.append(
                "Memory rises in steps with the size, and the trials do not tell how long a step is: the interval is "
                "wide: sizes further apart narrow it."
            )
        if endless:
            self.notes.append(
                "The trials take the same memory whatever their size, so there is no largest one: the largest that was "
                "tried stands in for it. Does step() use the size that it is given?"
            )
        return size

    def _tried(self) -> Any:
        room, _ = self._room(None, None)
        ran = [t for t in self.trials if t.fits and max(t.allocated, t.reserved) <= room]
        best = max(ran, key=lambda t: math.prod(t.size), default=None)
        return None if best is None else best.size if self.dimensions > 1 else best.size[0]

    def learn(self, check: Trial) -> bool:
        """Take in the run of a size beyond the trials; returns whether it was outside its interval."""
        told = self.foretold.setdefault(check.size, self.predict(check.size))
        self.checks = (*self.checks, check)
        got = max(check.allocated, check.reserved)
        wrong = check.fits and not told[1] <= got <= told[2]
        if not wrong and not self._knots[0].law:
            return False
        far, need = self.largest_trial, self._law.need
        runs = [c for c in self.checks if c.fits]
        laws = [need(c.size) for c in runs]
        self._knots = (
            Knots.of(
                (need(far.size).allocated, far.allocated),
                [(law.allocated, c.allocated) for law, c in zip(laws, runs, strict=True)],
            ),
            Knots.of(
                (need(far.size).reserved, far.reserved),
                [(law.reserved, c.reserved) for law, c in zip(laws, runs, strict=True)],
            ),
        )
        self._kept.clear()
        self._advice.clear()
        return wrong

    # -- sizes and bytes ---------------------------------------------------------------------------------------------

    @property
    def dimensions(self) -> int:
        """How many numbers a size has."""
        return len(self.trials[0].size)

    @property
    def method(self) -> str:
        """Either "requests" (each block followed, the allocator replayed) or "totals" (peaks of phases fitted)."""
        return self._law.name

    @property
    def why(self) -> str:
        """Why that method was taken: its error on the largest trial, predicted from the others."""
        return self._chosen.why

    def predict(self, size: int | Sequence[int]) -> tuple[int, int, int]:
        """Bytes that a size needs: expected, and the bounds of the 95 % interval.

        The larger need counts: what torch reserves on a GPU, what is allocated on a CPU.

        Raises
        ------
        ValueError
            For what is no size, and for a size that differs from the trials in a number which these never varied.
        """
        both = self.predict_both(size)
        expected, low, high = (max(a, r) for a, r in zip(both.allocated, both.reserved, strict=True))
        return expected, low, high

    def predict_both(self, size: int | Sequence[int]) -> Prediction:
        """Allocated and reserved peaks of a size, each as expected, low, high."""
        key = self._size(size)
        self._told(key)
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._predict(key)
        return kept

    def _predict(self, size: Size) -> Prediction:
        law, off = self._law, self._chosen.held_out
        need, half, far, near = (
            law.need(size),
            law.half_width(size),
            law.need(self.largest_trial.size),
            law.need(self._near.size),
        )
        doublings = max(0.0, math.log2(math.prod(size) / math.prod(self.largest_trial.size)))
        grain = 0 if self.kind == "cpu" else STEP
        ran = [trial for trial in self.trials if trial.fits]
        above = all(n >= min(trial.size[i] for trial in ran) for i, n in enumerate(size))

        def bounds(which: str, knots: Knots) -> Any:
            value, half_width, held_out, at_far, at_near = (
                getattr(each, which) for each in (need, half, off, far, near)
            )
            growth = max(0.0, value - at_far)
            # A slope that is off shows in proportion to how far it is followed; with the largest trial in it, the
            # slope is off by half as much as it was without.
            beyond = held_out * max(1.0, 0.5 * growth / max(1.0, at_far - at_near))
            width = math.hypot(half_width, beyond) + FLOOR * doublings * growth + grain
            value, low, high = knots.apply((value, value - width, value + width), half_width + grain)
            # What is larger than the smallest trial takes no less.
            least = min(getattr(trial, which) for trial in ran) if above else 0
            return round(value), round(min(value, max(least, low))), round(high)

        return Prediction(bounds("allocated", self._knots[0]), bounds("reserved", self._knots[1]))

    def largest(
        self,
        limit: float | str | None = None,
        margin: float | str | None = None,
        fixed: Sequence[int | None] | None = None,
    ) -> Any:
        """The largest size whose upper bound fits under the limit less the margin; None where none does.

        Parameters
        ----------
        limit : bytes, "24 GiB" or a card's name, optional
            By default the fit's own.
        margin : share or bytes, optional
            By default the fit's own.
        fixed : sequence, optional
            For sizes of several numbers: each number, and None for the one to be found. By default the first that
            the trials vary is found, the others being the largest that were tried.

        Returns
        -------
        int, or tuple of int for sizes of several numbers
            Where memory does not grow with it, the largest that was tried. A size that was run and fits is never
            undercut, one that was run and does not fit never passed.

        Raises
        ------
        ValueError
            Where it asks about a number that the trials never varied.
        """
        return self._largest(limit, margin, fixed)[0]

    def _largest(
        self, limit: float | str | None, margin: float | str | None, fixed: Sequence[int | None] | None
    ) -> tuple[Any, bool]:
        """What `largest` says, and whether memory does not grow at all."""
        room, bytes_ = self._room(limit, margin)
        template = self._template(fixed)
        free = template.index(None)

        def at(n: int) -> Size:
            return tuple(n if value is None else value for value in template)

        for n in (1, 2):  # on the line of the trials, or off it
            self._told(at(n))
        top = self._cap(bytes_, template)
        ran, most = self._ran(room, template)

        def fits(n: int) -> bool:
            return n < top and self.predict(at(n))[2] <= room

        def answer(n: int) -> Any:
            n = max(ran, min(n, most))
            return None if n == 0 else at(n) if self.dimensions > 1 else n

        if not fits(1):
            return answer(0), False
        low = max(1, min(self.largest_trial.size[free], top - 1))
        low = low if fits(low) else 1
        high = low * 2
        while high < MOST and fits(high):
            low, high = high, high * 2
        if self._ends is not None and high > self._ends and fits(self._ends):
            return answer(self._ends), False
        if high >= MOST:
            here, there = self.predict(at(self.largest_trial.size[free]))[0], self.predict(at(low))[0]
            endless = there - here <= _FLAT * here
            return answer(self.largest_trial.size[free] if endless else low), endless
        # Needs are nearly straight, and one may cost many replays: look where a line says, in turns with halving.
        halve = False
        while high - low > 1:
            middle = (low + high) // 2
            if high < top and not halve:
                lower, upper = self.predict(at(low))[2], self.predict(at(high))[2]
                if upper > lower:
                    middle = low + int((high - low) * (room - lower) / (upper - lower))
                    middle = min(max(middle, low + 1), high - 1)
            halve = not halve
            low, high = (middle, high) if fits(middle) else (low, middle)
        return answer(low), False

    def _ran(self, room: int, template: Sequence[int | None]) -> tuple[int, int]:
        """The largest of the sizes that ran and fit, 0 for none; and up to where runs out of memory let a law be."""
        free = template.index(None)
        mine = [
            trial
            for trial in (*self.trials, *self.checks)
            if all(value is None or value == n for value, n in zip(template, trial.size, strict=True))
        ]
        needs = {t.size[free]: max(t.allocated, t.reserved) for t in mine if t.fits}
        wrong = min((n for n, need in needs.items() if need > room), default=MOST)
        good = max((n for n, need in needs.items() if need <= room and n < wrong), default=0)
        # Where a size failed that a law said would run, the law holds as far as sizes did run.
        failed = min((c.size[free] for c in self.checks if c in mine and not c.fits), default=MOST)
        return good, max((n for n in needs if n < failed), default=0) if failed < MOST else MOST

    def _room(self, limit: float | str | None, margin: float | str | None) -> tuple[int, int]:
        bytes_ = self.limit if limit is None else bytes_of(limit)
        return bytes_ - margin_of(self.margin if margin is None else margin, bytes_), bytes_

    def _template(self, fixed: Sequence[int | None] | None) -> list[int | None]:
        if fixed is None:
            largest = [max(trial.size[i] for trial in self.trials) for i in range(self.dimensions)]
            return [None if i == self.free else n for i, n in enumerate(largest)]
        template = list(fixed)
        if (
            len(template) != self.dimensions
            or template.count(None) != 1
            or any(n is not None and n < 1 for n in template)
        ):
            raise ValueError(
                f"fixed= takes {self.dimensions} numbers of at least 1, with None for the one to be found."
            )
        return template

    def _cap(self, limit: int, template: list[int | None]) -> int:
        """The smallest n that is known not to run on this device, where the limit is no smaller than its own."""
        most = MOST
        for number, trial in enumerate((*self.trials, *self.checks)):
            here = limit <= self._until(number >= len(self.trials))
            if not trial.fits and here and all(v is None or v >= s for v, s in zip(template, trial.size, strict=True)):
                most = min(most, trial.size[template.index(None)])
        return most

    def _until(self, check: bool) -> float:
        """Up to which limit running out of memory counts: checks run under the fit's own, where torch keeps it."""
        if check and self.kind != "cpu":
            return self.limit
        return math.inf if self.device_limit is None else self.device_limit

    def _size(self, size: int | Sequence[int]) -> Size:
        return as_size(size, self.dimensions)

    def keeps(self, trial: Trial) -> bool:
        """Whether a run stayed under the limit less the margin."""
        return trial.fits and max(trial.allocated, trial.reserved) <= self._room(None, None)[0]

    def saturates(self, check: Trial) -> int:
        """The size that would take what a run took, where that is far less than was predicted of it; else 0."""
        got = max(check.allocated, check.reserved)
        if not check.fits or 2 * got > self.foretold[check.size][0]:
            return 0
        low, high = 1, check.size[self.free]
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (middle, high) if self._law.need(self.along(middle, check.size)).reserved <= got else (low, middle)
            )
        self._ends = max(self._ends or 0, check.size[self.free])
        return low

    def knows(self, size: Size) -> bool:
        """Whether the trials say something of a size at all."""
        try:
            self._told(size)
        except ValueError:
            return False
        return True

    def _told(self, size: Size) -> None:
        """Refuse a size that the trials say nothing of."""
        refuse_untold([trial.size for trial in self.trials if trial.fits], size)

    def runs_within(self, size: int | Sequence[int], limit: float | str | None = None) -> bool | None:
        """Whether a size would run at all, with the allocator giving its cache back at each turn; None if not known.

        That is slower than a size that fits with its cache, and leaves no margin.
        """
        law = self._law
        if not isinstance(law, Requests):
            return None
        return law.runs_within(self._size(size), self.limit if limit is None else bytes_of(limit))

    # -- what grows --------------------------------------------------------------------------------------------------

    @property
    def _law(self) -> Law:
        return self._chosen.law

    def size_of(self, size: int | Sequence[int]) -> Size:
        """A size as a tuple, checked."""
        return self._size(size)

    def along(self, n: int, size: Size) -> Size:
        """A size with n for the number that is looked for."""
        return tuple(n if i == self.free else other for i, other in enumerate(size))

    def _at(self, size: int | Sequence[int] | None) -> Size:
        if size is None:
            size = self.largest_trial.size if self.size is None else self.size
        return self._size(size)

    def split(self, size: int | Sequence[int] | None = None, by: str = "category") -> dict[str, int]:
        """Predicted bytes at the peak by "category" or "line", largest first."""
        if by not in ("category", "line"):
            raise ValueError(f'by={by!r}: bytes are split by "category" or by "line".')
        sums = self._law.split(self._at(size), by)
        return {key: round(value) for key, value in sorted(sums.items(), key=lambda kv: -kv[1]) if round(value)}

    def fixed(self, size: int | Sequence[int] | None = None, by: str = "category") -> dict[str, int]:
        """The bytes of `split` that no batch size changes, largest first; the rest of it grows."""
        if by not in ("category", "line"):
            raise ValueError(f'by={by!r}: bytes are split by "category" or by "line".')
        sums = self._law.fixed(self._at(size), by)
        least = 0.0005 * sum(sums.values())
        return {key: round(value) for key, value in sorted(sums.items(), key=lambda kv: -kv[1]) if value > least}

    def grows(self, size: int | Sequence[int] | None = None) -> tuple[Growing, ...]:
        """Lines that take more with one further sample, most first; at the proposed size where none is given.

        The bytes are those of the next sample. Where memory grows faster than the size, as with the length of a text,
        a sample costs more the larger the size: ask at the size in question.
        """
        at = self._at(size)
        free = self.free
        now, then = (self._law.split(each, "line") for each in (at, self.along(at[free] + 1, at)))
        total = sum(max(0.0, then[key] - now.get(key, 0.0)) for key in then) or 1.0
        rows = [
            Growing(
                key,
                then[key] - now.get(key, 0.0),
                round(now.get(key, 0)),
                (then[key] - now.get(key, 0)) / total,
            )
            for key in then
            if then[key] - now.get(key, 0.0) > 0.001 * total
        ]
        return tuple(sorted(rows, key=lambda row: -row.bytes_per_sample))

    def advice(self, limit: float | str | None = None) -> tuple[Advice, ...]:
        """What checkpointing the modules that hold most would allow: predictions from the labels, not measured."""
        key = (str(self.size), limit)
        if key not in self._advice:
            self._advice[key] = self._advise(limit)
        return self._advice[key]

    def _advise(self, limit: float | str | None) -> tuple[Advice, ...]:
        law = self._law
        if not isinstance(law, Requests) or self.size is None:
            return ()
        room, _ = self._room(limit, None)
        at, before = self._at(None), self.largest(limit)
        if before is None:
            return ()
        here = at[self.free]
        extra = self.predict(at)[2] - law.need_of(law.program, at).reserved

        def largest(need: Any) -> int:
            def fits(n: int) -> bool:
                return bool(need(self.along(n, at)) + extra * n / here <= room)

            low, high = here, here * 2
            while high < MOST and fits(high):
                low, high = high, high * 2
            while high - low > max(1, low // 200):
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle) else (low, middle)
            return low

        return checkpointing(law, at, self._size(before)[self.free], largest)

    # -- as text -----------------------------------------------------------------------------------------------------

    def table(self) -> Table:
        """Each size that ran, measured and as the fit has it, and the size proposed."""
        return table_of(self)

    @property
    def summary(self) -> str:
        """Everything in words."""
        return summary_of(self)

    def __str__(self) -> str:
        return self.summary

    def __repr__(self) -> str:
        size = "none" if self.size is None else words(self._size(self.size))
        return f"<BatchSizeFit: largest size {size} under {bytes_text(self.limit)}, {len(self.trials)} trials>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        printer.text(self.summary)

    # -- exits -------------------------------------------------------------------------------------------------------

    def plot(self, limits: Sequence[float | str] = ()) -> Any:
        """Measured points, the curve with its band, limits, and categories against size; shows itself in a notebook."""
        from memwidget.show.figures_batch_size import plot

        return plot(self, limits)

    def sliders(self) -> Any:
        """Move limit and margin, and read the size that fits: ipywidgets."""
        from memwidget.show.sliders import sliders

        return sliders(self)


__all__ = ["BatchSizeFit", "Growing", "Prediction", "Table"]
