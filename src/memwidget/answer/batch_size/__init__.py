"""Tune the batch size: a few small trials, a prediction, and one run to see that it holds.

Owns the order of events: warm up, try, fit, propose, verify, and bisect only where the proposal was wrong.

::

    trials.py   one trial as plain numbers        laws.py    sizes -> bytes, and which law to believe
    replay.py   the allocator read forwards       fit.py     BatchSizeFit, the answer
    terms.py    constant, linear, quadratic       advice.py  what checkpointing would buy
    limits.py   "24 GiB", names of cards
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, Protocol

from memwidget.answer.batch_size.fit import BatchSizeFit
from memwidget.answer.batch_size.limits import bytes_of, margin_of
from memwidget.answer.batch_size.trials import Size, Trial, read_trial, words
from memwidget.record import Options

if TYPE_CHECKING:
    from memwidget.record.trials import Measured

#: Steps of one trial: the second shows what a step finds of the one before, and whether they are alike.
REPEATS = 2
#: On a CPU the default limit is the machine's memory, and filling that can take hours.
_PATIENCE_S = 120
#: Runs at most after a proposal that was wrong.
_BISECTIONS = 6


class Runner(Protocol):
    """What runs trials; `memwidget.record.trials.Stand` is the real one."""

    kind: str
    device: int | None

    @property
    def device_name(self) -> str:
        """What the device calls itself."""

    def limit(self) -> int:
        """Bytes that torch can have."""

    def warm_up(self, run: Callable[[], object]) -> str:
        """Run a step that is thrown away; returns its out-of-memory error, or nothing."""

    def trial(self, run: Callable[[], object], repeats: int = 2, limit: int | None = None) -> Measured:
        """Run a step from a clean state."""


def tune_batch_size(
    step: Callable[..., object],
    sizes: Sequence[int] | Sequence[Sequence[int]] = (1, 2, 4, 8),
    limit: float | str | None = None,
    margin: float | str = 0.05,
    verify: bool = True,
    *,
    batch: Callable[..., Any] | None = None,
    model: Any = None,
    optimizer: Any = None,
    device: int | None = None,
    backend: str = "auto",
) -> BatchSizeFit:
    """Find the largest batch size that fits, from a few small ones.

    The steps really run, so parameters change: make the model anew before the real training.

    Parameters
    ----------
    step : callable
        ``step(batch_size)`` runs one real step (with several numbers a size: ``step(b, s)``). With `batch`, it is
        called with what that makes: ``step(batch(batch_size))``.
    sizes : sequence of int, or of tuples
        What to try. An eighth of what will fit is plenty; four sizes are better than three.
    limit : bytes, "24 GiB" or a card's name, optional
        By default what the device really has for torch: free and reserved memory, within the process's own share.
    margin : share or bytes
        To stay below the limit by.
    verify : bool
        Run the size that is proposed, and bisect if it was wrong.
    batch : callable, optional
        Makes a batch of a size; for a step with a fixed model.
    model, optimizer : module, optimizer, or lists of them, optional
        What to label by name; others are found as they are called.
    device : int, optional
        The device to look at; by default the current one.
    backend : {"auto", "cuda", "xpu", "cpu"}
        The allocator to record; "auto" takes a GPU where there is one.

    Returns
    -------
    BatchSizeFit

    Examples
    --------
    >>> fit = mw.tune_batch_size(train_step, sizes=(2, 4, 8, 16))  # doctest: +SKIP
    >>> fit.size, fit.predict(64)  # doctest: +SKIP
    """
    if not callable(step):
        raise TypeError(f"step must be a function of the batch size, not {type(step).__name__}.")
    tried = as_sizes(sizes)
    from memwidget.record.trials import Stand, models

    stand = Stand(Options(device=device, backend=backend), models(model, optimizer))

    def run_of(size: Size) -> Callable[[], object]:
        return (lambda: step(*size)) if batch is None else (lambda: step(batch(*size)))

    return tune(stand, run_of, tried, limit, margin, verify)


def as_sizes(sizes: Sequence[int] | Sequence[Sequence[int]]) -> list[Size]:
    """Sizes as tuples, smallest first.

    Raises
    ------
    ValueError
        If they are no whole numbers, or fewer than two.
    """
    found: list[Size] = []
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise TypeError(f"sizes={sizes!r} must be several sizes to try, such as (2, 4, 8, 16).")
    for each in sizes:
        numbers = [each] if isinstance(each, (int, float, str)) or not isinstance(each, Iterable) else list(each)
        try:
            size = tuple(map(index, numbers))
        except TypeError:
            size = ()
        if not size or min(size) < 1 or any(isinstance(n, bool) for n in numbers):
            raise ValueError(f"sizes: {each!r} is no size; use whole numbers of at least 1, or tuples of them.")
        found.append(size)
    if len(set(found)) < 2 or len({len(size) for size in found}) > 1:
        raise ValueError("sizes must be at least two different ones, all with as many numbers: (2, 4, 8, 16), say.")
    return sorted(set(found), key=lambda size: (math.prod(size), size))


def tune(  # noqa: PLR0917  (in the order of `tune_batch_size`)
    stand: Runner,
    run_of: Callable[[Size], Callable[[], object]],
    sizes: Sequence[Size],
    limit: float | str | None = None,
    margin: float | str = 0.05,
    verify: bool = True,
) -> BatchSizeFit:
    """Do what `tune_batch_size` says, on any runner of trials."""
    asked = None if limit is None else bytes_of(limit)
    margin_of(margin, asked or 1 << 40)  # a mistake is told before anything runs
    failed = stand.warm_up(run_of(sizes[0]))
    if failed:
        raise ValueError(f"Even the smallest size, {words(sizes[0])}, runs out of memory ({failed}): start smaller.")
    device_limit = stand.limit()
    room = device_limit if asked is None else asked
    device = stand.device or 0
    trials: list[Trial] = []
    notes: list[str] = []
    for size in sizes:
        trial = read_trial(size, stand.trial(run_of(size), REPEATS), device)
        trials.append(trial)
        notes += [note for note in trial.notes if note not in notes]
        if not trial.fits:
            left = [words(other) for other in sizes if math.prod(other) > math.prod(size)]
            if left:
                notes.append(f"Not run, since size {words(size)} ran out of memory: {', '.join(left)}.")
            break

    def fit_of(trials: Sequence[Trial], checks: Sequence[Trial] = ()) -> BatchSizeFit:
        return BatchSizeFit(
            tuple(trials), room, margin, device_limit, stand.device_name, stand.kind, tuple(checks), list(notes)
        )

    fit = fit_of(trials)
    if verify and fit.size is not None:
        _verify(fit, stand, run_of)
    return fit


def _verify(fit: BatchSizeFit, stand: Runner, run_of: Callable[[Size], Callable[[], object]]) -> None:
    """Run the proposed size; where it was wrong, halve the way between what ran and what did not."""
    assert fit.size is not None  # noqa: S101
    proposed = fit.size_of(fit.size)
    if any(trial.size == proposed for trial in fit.trials):
        return
    if fit.kind == "cpu" and (seconds := _seconds(fit, proposed)) > _PATIENCE_S:
        fit.notes.append(
            f"Size {words(proposed)} was not run: on this CPU that would take about {seconds:,.0f} s. A smaller limit= "
            "keeps sizes within reason where no GPU is measured."
        )
        return
    capped = fit.limit if fit.device_limit is None or fit.limit < fit.device_limit else None
    checks: list[Trial] = []

    def fits(n: int) -> bool:
        size = (n, *proposed[1:])
        check = read_trial(size, stand.trial(run_of(size), REPEATS, capped), stand.device or 0)
        checks.append(check)
        return check.fits and max(check.allocated, check.reserved) <= fit.limit

    good = max(
        (t.size[0] for t in fit.trials if t.fits and t.size[1:] == proposed[1:] and t.reserved <= fit.limit), default=0
    )
    if not fits(proposed[0]):
        bad = proposed[0]
        for _ in range(_BISECTIONS):
            if bad - good <= max(1, good // 20):
                break
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(middle) else (good, middle)
        best: Any = None if good == 0 else good if fit.dimensions == 1 else (good, *proposed[1:])
        fit.size = best
        fit.notes.append(
            f"The size that was proposed, {words(proposed)}, did not fit; found by bisection instead, in "
            f"{len(checks) - 1} more runs."
        )
    fit.checks = tuple(checks)


def _seconds(fit: BatchSizeFit, size: Size) -> float:
    """How long running a size would take, going by what each further sample took from the smallest trial on."""
    ran = sorted((trial for trial in fit.trials if trial.fits), key=lambda trial: math.prod(trial.size))
    low, high = ran[0], ran[-1]
    samples = math.prod(high.size) - math.prod(low.size)
    each = max(0.0, high.seconds - low.seconds) / samples if samples else high.seconds / math.prod(high.size)
    return REPEATS * (high.seconds + each * (math.prod(size) - math.prod(high.size)))
