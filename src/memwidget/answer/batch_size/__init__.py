"""Tune the batch size: a few small trials, a prediction, and one run to see that it holds.

Owns the order of events: warm up, try, fit, propose, verify, and bisect only where the proposal was wrong.

::

    trials.py   one trial as plain numbers        laws.py      sizes -> bytes, and which law to believe
    replay.py   the allocator read forwards       measured.py  what runs of proposals correct
    terms.py    constant, linear, quadratic       fit.py       BatchSizeFit, the answer
    limits.py   "24 GiB", names of cards          advice.py    what checkpointing would buy
    sizes.py    what no trial speaks of
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from memwidget.answer.batch_size.fit import BatchSizeFit
from memwidget.answer.batch_size.limits import bytes_of, margin_of
from memwidget.answer.batch_size.trials import Size, Trial, read_trial, words
from memwidget.record import Options
from memwidget.record.tracebacks import without_recorder
from memwidget.units import plain

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

    The steps really run, so parameters change: make the model anew before the real training. torch's random numbers
    go on afterwards as if nothing had been run.

    Parameters
    ----------
    step : callable
        ``step(batch_size)`` runs one real step (with several numbers a size: ``step(b, s)``). With `batch`, it is
        called with what that makes: ``step(batch(batch_size))``.
    sizes : sequence of int, or of tuples
        What to try. An eighth of what will fit is plenty; four sizes are better than three. Of several numbers a size,
        each must vary that anything is to be said about.
    limit : bytes, "24 GiB" or a card's name ("RTX 4090"), optional
        By default what the device really has for torch: free and reserved memory, within the process's own share.
    margin : share ("5 %", 0.05) or bytes ("1 GiB")
        To stay below the limit by.
    verify : bool
        Run the size that is proposed, and bisect if it was wrong. An error of that run becomes a note.
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

    try:
        with stand.same_luck():
            return tune(stand, run_of, tried, limit, margin, verify)
    except Exception as error:
        _without_tuner(error)
        raise


def _without_tuner(error: BaseException) -> None:
    """Leave of the frames between the call of `tune_batch_size` and the step's own none, in place."""
    without_recorder(error)
    outer = error.__traceback__
    inner = None if outer is None else outer.tb_next
    while inner is not None and inner.tb_next is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    if outer is not None:
        outer.tb_next = inner


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
    notes: list[str] = []
    try:
        failed = stand.warm_up(run_of(sizes[0]))
    except ValueError as error:
        # BatchNorm trains on no single value, and sizes begin with 1 unless asked otherwise.
        if _ALONE not in str(error) or math.prod(sizes[0]) > 1 or len(sizes) < 3:
            raise
        notes.append("Size 1 was left out: a layer of the model (BatchNorm, say) cannot be trained on one sample.")
        sizes = sizes[1:]
        failed = stand.warm_up(run_of(sizes[0]))
    if failed:
        raise ValueError(f"Even the smallest size, {words(sizes[0])}, runs out of memory ({failed}): start smaller.")
    device_limit = stand.limit()
    room = device_limit if asked is None else asked
    device = stand.device or 0
    trials: list[Trial] = []
    for size in sizes:
        trial = read_trial(size, stand.trial(run_of(size), REPEATS), device)
        trials.append(trial)
        notes += [note for note in trial.notes if note not in notes]
        if not trial.fits:
            left = [words(other) for other in sizes if math.prod(other) > math.prod(size)]
            if left:
                notes.append(f"Not run, since size {words(size)} ran out of memory: {', '.join(left)}.")
            break
    fit = BatchSizeFit(tuple(trials), room, margin, device_limit, stand.device_name, stand.kind, notes=notes)
    if verify and fit.size is not None:
        _verify(fit, stand, run_of)
    return fit


#: What torch's normalisations say of a batch of one value a channel.
_ALONE = "Expected more than 1 value per channel"


def _verify(fit: BatchSizeFit, stand: Runner, run_of: Callable[[Size], Callable[[], object]]) -> None:
    """Run the proposed size; where it was wrong, halve the way between what ran and what did not."""
    assert fit.size is not None  # noqa: S101
    proposed = fit.size_of(fit.size)
    if any(trial.size == proposed for trial in fit.trials):
        fit.notes.append(f"Size {words(proposed)} is one of the trials, so it was not run once more.")
        return
    if fit.kind == "cpu" and (seconds := _seconds(fit, proposed)) > _PATIENCE_S:
        fit.notes.append(
            f"Size {words(proposed)} was not run: on this CPU that would take about {seconds:,.0f} s. A smaller limit= "
            "keeps sizes within reason where no GPU is measured."
        )
        return
    capped = fit.limit if fit.device_limit is None or fit.limit < fit.device_limit else None

    def fits(n: int) -> bool:
        size = fit.along(n, proposed)
        check = read_trial(size, stand.trial(run_of(size), REPEATS, capped), stand.device or 0)
        if fit.learn(check) and (most := fit.saturates(check)):
            fit.notes.append(
                f"Size {words(size)} takes no more than size {most} would: from there on the step does not grow "
                "with its size. Is there no more data than that, or does step() not use the size that it is given?"
            )
        return fit.keeps(check)

    alike = [t for t in fit.trials if fit.along(0, t.size) == fit.along(0, proposed)]
    good = max((t.size[fit.free] for t in alike if fit.keeps(t)), default=0)
    bad, why = proposed[fit.free], ""
    try:
        if fits(bad):
            return
        why = "did not fit with the margin" if fit.checks[0].fits else "did not fit: it ran out of memory"
        for _ in range(_BISECTIONS):
            if bad - good <= max(1, good // 20):
                break
            middle = (good + bad) // 2
            good, bad = (middle, bad) if fits(middle) else (good, middle)
    except Exception as error:  # noqa: BLE001
        # The trials are done, and what they say is not lost to an error at a size that nobody asked for.
        without_recorder(error)
        from memwidget.record.trials import forget

        last = traceback.extract_tb(error.__traceback__)[-1]
        fit.notes.append(
            f"A proposed size could not be run: step() raised {type(error).__name__} "
            f"({plain(str(error), 200)}) at {Path(last.filename).name}:{last.lineno}. The prediction stands unverified."
        )
        forget(error)
    best: Any = None if good == 0 else good if fit.dimensions == 1 else fit.along(good, proposed)
    more = len(fit.checks) - 1
    if fit.checks:
        fit.size = best
        fit.notes.append(
            f"The size that was proposed, {words(proposed)}, {why}; the answer is the largest "
            + (
                f"found to fit by halving, in {more} more run{'s' * (more > 1)}."
                if more
                else "that was tried and fits."
            )
        )


def _seconds(fit: BatchSizeFit, size: Size) -> float:
    """How long running a size would take, going by what each further sample took from the smallest trial on."""
    ran = sorted((trial for trial in fit.trials if trial.fits), key=lambda trial: math.prod(trial.size))
    low, high = ran[0], ran[-1]
    samples = math.prod(high.size) - math.prod(low.size)
    each = max(0.0, high.seconds - low.seconds) / samples if samples else high.seconds / math.prod(high.size)
    return REPEATS * (high.seconds + each * (math.prod(size) - math.prod(high.size)))
