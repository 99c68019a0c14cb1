"""Functions of torch that a recording stands in for while it runs, where torch has no hook or one that costs too much.

Owns putting back: what was replaced returns, whatever order recordings end in and whoever wrapped it since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]

#: Whether torch.compile traces what runs: a stand-in then calls the original, and nothing of it goes into the graph.
compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", None) or (lambda: False)


class StandIns:
    """What one recording has replaced.

    A stand-in calls the original. One that somebody else wrapped since cannot be taken out; it stays and passes on, so
    each has to look whether its recording still runs.
    """

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Function, Function]] = []

    def place(self, owner: Any, name: str, make: Callable[[Function], Function]) -> Function:
        """Put ``make(original)`` in the original's place; returns it."""
        original = getattr(owner, name)
        ours = make(original)
        ours.__wrapped__ = original  # type: ignore[attr-defined]
        ours.__dict__["done"] = False
        setattr(owner, name, ours)
        self._placed.append((owner, name, original, ours))
        return ours

    def remove(self) -> None:
        """Put the originals back."""
        for owner, name, original, ours in reversed(self._placed):
            ours.__dict__["done"] = True
            if getattr(owner, name, None) is ours:
                while getattr(original, "done", False):  # of a recording that began before and ended meanwhile
                    original = original.__wrapped__  # noqa: PLW2901
                setattr(owner, name, original)
        self._placed.clear()
