"""When Python's garbage collector ran in a recording and found something: what it frees was in reference cycles."""

from __future__ import annotations

import gc
import time
from typing import Any

#: Runs kept. A collection of the youngest generation may come a thousand times a second.
MAX_RUNS = 10_000


class GarbageWatch:
    """Notes the times of collections that freed something; numbers only."""

    def __init__(self) -> None:
        self.runs: list[dict[str, int]] = []
        self._began = 0

    def start(self) -> None:
        """Begin to listen."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Listen no more."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, Any]) -> None:
        at = time.time_ns() // 1000
        if phase == "start":
            self._began = at
        elif info.get("collected") and len(self.runs) < MAX_RUNS:
            self.runs.append({"start_us": self._began, "end_us": at + 1, "collected": int(info["collected"])})
