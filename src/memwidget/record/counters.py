"""The allocator's counters, read without recording anything: what a long run can afford at every step."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from memwidget.record import RecorderError


@dataclass(frozen=True)
class Counters:
    """Bytes now; -1 for what this device cannot tell."""

    device: str
    allocated: int
    reserved: int
    peak: int
    free: int


def read(device: int | None = None) -> Counters:
    """Read a GPU's counters, or the process's own memory where there is no GPU.

    Raises
    ------
    RecorderError
        Neither can be told here.
    """
    torch = sys.modules.get("torch")
    for kind in ("cuda", "xpu"):
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available() and hasattr(backend, "memory_allocated"):
            return _device(kind, backend, backend.current_device() if device is None else device)
    return _process()


def _device(kind: str, backend: Any, device: int) -> Counters:
    free = -1
    if hasattr(backend, "mem_get_info"):
        free = int(backend.mem_get_info(device)[0])
    return Counters(
        f"{kind}:{device}",
        int(backend.memory_allocated(device)),
        int(backend.memory_reserved(device)),
        int(backend.max_memory_allocated(device)),
        free,
    )


def _process() -> Counters:
    try:
        import resource

        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    except (ImportError, OSError, ValueError):
        raise RecorderError(
            "There is no GPU here, and this system does not tell a process's memory: monitor() has nothing to read."
        ) from None
    return Counters("process", resident, -1, max(peak, resident), free)
