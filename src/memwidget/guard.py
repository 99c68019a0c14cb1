"""Memory under guard: `limit` fails when code takes too much, `monitor` tells what it takes, step by step.

Owns the context managers; what a limit means is answer/limits.py, the counters are record/counters.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memwidget.answer.limits import Limits, MemoryLimitExceeded
from memwidget.record.counters import Counters, read
from memwidget.session import memtrace
from memwidget.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from logging import Logger
    from types import TracebackType

    from memwidget.trace.trace import Trace


class limit:  # noqa: N801  (used like a function: `with mw.limit(peak="2 GiB"):`)
    """Fail when a block of code takes more memory than it may.

    Records the block like `memtrace`, on a GPU where there is one, else the CPU allocator (whose peak counts from the
    start of the block). If the block fails itself, its own error is the one to see.

    Parameters
    ----------
    peak : str or int, optional
        Most that may be allocated at once: ``"2 GiB"`` or bytes.
    growth : str or int, optional
        Most that may stay behind at each step: ``"0 B/step"``. Steps are those marked with ``step()``, else the
        optimizer's, else turns of a loop. The first one is not counted; with fewer than two more a warning says that
        there is no telling.
    held : str or int, optional
        Most that the block may leave allocated: ``0``.
    **options
        As `memtrace` takes them: ``backend="cpu"``, ``max_entries``, ``device``.

    Attributes
    ----------
    trace : Trace
        What was recorded, when the block has ended.

    Raises
    ------
    MemoryLimitExceeded
        At the end of the block; names the lines and their bytes.
    RuntimeError
        The recording stopped before the block's end (``max_entries``), so that nobody knows whether the limit held.

    Examples
    --------
    >>> with mw.limit(peak="2 GiB", growth="0 B/step") as guard:  # doctest: +SKIP
    ...     for batch in loader:
    ...         train(batch)
    ...         guard.step()
    """

    def __init__(
        self,
        peak: str | int | None = None,
        growth: str | int | None = None,
        held: str | int | None = None,
        **options: Any,
    ) -> None:
        self._limits = Limits.of(peak, growth, held)
        self._recorder = memtrace("limit", **options)

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        return self._recorder.trace

    def step(self) -> None:
        """Mark the boundary between two steps."""
        self._recorder.step()

    def __enter__(self) -> limit:  # noqa: PYI034  (typing.Self is newer than Python 3.10)
        self._recorder.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recorder.__exit__(kind, error, traceback)
        if kind is None:
            self._limits.check(self.trace)


class monitor:  # noqa: N801  (used like a function: `watch = mw.monitor(every=10)`)
    """Tell the allocator's counters at every few steps: one line a step, next to nothing in cost.

    Nothing is recorded: torch keeps these counters anyway. Without a GPU it tells the process's own memory.

    Parameters
    ----------
    every : int
        Steps between two lines.
    to : callable or logging.Logger
        Takes the line; ``print`` by default.
    device : int, optional
        Device ordinal; by default the current one.

    Examples
    --------
    >>> for batch in mw.monitor(every=10).over(loader):  # doctest: +SKIP
    ...     train(batch)

    or ``watch = mw.monitor()`` and ``watch.step()`` where a step ends.
    """

    def __init__(self, every: int = 1, to: Callable[[str], Any] | Logger = print, device: int | None = None) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every={every!r} must be a whole number of steps, at least 1.")
        info = getattr(to, "info", None)  # a logger
        if not callable(to) and not callable(info):
            raise TypeError(f"to={to!r} must be a function that takes a line, or a logger.")
        self._say: Callable[[str], Any] = to if callable(to) else info  # type: ignore[assignment]
        self._every, self._device = every, device
        self._steps = 0
        self._before: Counters | None = None

    def step(self) -> None:
        """End a step; tells a line when one is due."""
        self._steps += 1
        if self._steps % self._every:
            return
        now = read(self._device)
        change = now.allocated - self._before.allocated if self._before is not None else 0
        self._before = now
        parts = [f"step {self._steps:,} on {now.device}: {bytes_text(now.allocated)} allocated"]
        parts += [f"{bytes_text(now.reserved)} reserved"] if now.reserved >= 0 else []
        parts += [f"peak {bytes_text(now.peak)}", f"{'+' if change >= 0 else ''}{bytes_text(change)}"]
        parts += [f"{bytes_text(now.free)} free"] if now.free >= 0 else []
        self._say(", ".join(parts))

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        """Go through `items`, a step each."""
        for item in items:
            yield item
            self.step()

    def __enter__(self) -> monitor:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was switched on, so nothing is switched off."""


__all__ = ["MemoryLimitExceeded", "limit", "monitor"]
