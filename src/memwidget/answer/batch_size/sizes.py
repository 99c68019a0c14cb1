"""What a size is, and of which sizes trials say anything.

Owns the refusals. Trials of 2 x 16, 4 x 16 and 8 x 16 lie on a line: they say nothing of a length of 64, whatever a
fit through them would give for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from memwidget.answer.batch_size.trials import Size, words

#: No size beyond this is looked at.
MOST = 1 << 40


def as_size(size: int | Sequence[int], dimensions: int) -> Size:
    """A size as a tuple.

    Raises
    ------
    ValueError
        If it is none of so many numbers.
    """
    numbers = list(size) if isinstance(size, Iterable) and not isinstance(size, str) else [size]
    try:
        found = tuple(int(each) for each in numbers)
        good = not any(isinstance(each, (bool, str)) for each in numbers) and all(
            a == b for a, b in zip(found, numbers, strict=True)
        )
    except (TypeError, ValueError, OverflowError):
        good, found = False, ()
    if not good or len(found) != dimensions or min(found) < 1:
        raise ValueError(f"A size here is {dimensions} whole number(s) of at least 1, not {size!r}.")
    if max(found) > MOST:
        raise ValueError(f"A size is looked at up to 2**40, and {size!r} is beyond that.")
    return found


def refuse_untold(ran: Sequence[Size], size: Size) -> None:
    """Refuse a size that lies off the line, or plane, of those that ran.

    Raises
    ------
    ValueError
        With the number that should be varied.
    """
    if len(size) == 1 or size in ran:
        return
    points = np.array(ran, float)
    across = points - points[0]
    more = np.vstack([across, np.array([size], float) - points[0]])
    # As shares of the largest, since numbers of a size may differ by powers of ten.
    scale = np.maximum(np.abs(more).max(axis=0), 1.0)
    if np.linalg.matrix_rank(more / scale) > np.linalg.matrix_rank(across / scale):
        raise ValueError(_together(ran, size))


def _together(sizes: Sequence[Size], asked: Size) -> str:
    """Why nothing can be said of a size that the trials' numbers do not reach."""
    for number, (value, other) in enumerate(zip(sizes[0], asked, strict=True)):
        if other != value and all(size[number] == value for size in sizes):
            return (
                f"Number {number + 1} of a size was {value} in every trial, so what {words(asked)} takes is not known: "
                f"vary it in sizes, as in {[*sizes[:2], (*sizes[0][:number], 2 * value, *sizes[0][number + 1 :])]}."
            )
    first = sizes[0]
    apart = [first, *((*first[:i], 2 * n, *first[i + 1 :]) for i, n in enumerate(first))]
    return (
        "The trials change the numbers of a size together, so what one of them alone does is not known: vary each by "
        f"itself in sizes, as in {apart}."
    )
