"""What differs between torch 2.0 and 2.14 as far as the recorder goes: one row a difference.

Owns how each difference is found out, which is by looking at what is there and never at a version number (builds lack
things, forks have more), and what is said where something is missing. The versions named are for readers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple


class Difference(NamedTuple):
    """One thing that some torch has and another has not.

    Attributes
    ----------
    since : str
        The first torch with it, for CUDA.
    found : callable
        ``found(torch, kind)``: whether this torch has it for "cuda" or "xpu".
    instead : str
        What is done without it.
    missing : str
        What is said without it; empty where nothing is lost. ``{torch}``, ``{device}`` and ``{since}`` are filled in.
    """

    since: str
    found: Callable[[Any, str], bool]
    instead: str
    missing: str = ""


def _memory(torch: Any, kind: str) -> Any:
    return getattr(getattr(torch, kind, None), "memory", None)


def parameters(function: Any) -> frozenset[str]:
    """Names of a function's parameters; none where there is no such function, or it cannot tell."""
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _takes(function: str, parameter: str) -> Callable[[Any, str], bool]:
    return lambda torch, kind: parameter in parameters(getattr(_memory(torch, kind), function, None))


def _offers(name: str) -> Callable[[Any, str], bool]:
    return lambda torch, kind: hasattr(getattr(torch, kind, None), name)


DIFFERENCES: dict[str, Difference] = {
    "history": Difference(
        "2.0",
        lambda torch, kind: hasattr(_memory(torch, kind), "_record_memory_history"),
        "the CPU allocator is recorded, or nothing",
        "PyTorch {torch} keeps no memory history for {device}: update to {since} or newer, or use backend='cpu'.",
    ),
    "words": Difference(
        "2.1",
        _takes("_record_memory_history", "stacks"),
        'enabled="all", context= and stacks= become the booleans of before',
    ),
    "c++ stacks": Difference(
        "2.0",
        lambda torch, kind: bool(
            parameters(getattr(_memory(torch, kind), "_record_memory_history", None))
            & {"stacks", "record_context_cpp", "_enable_expensive_cpp"}
        ),
        "Python stacks",
        "This PyTorch cannot add C++ frames: Python stacks were recorded.",
    ),
    "cleared on start": Difference(
        "2.8",
        _takes("_record_memory_history", "clear_history"),
        "nothing: a history that is off is empty",
    ),
    "asked whether on": Difference(
        "2.2",
        lambda torch, kind: hasattr(getattr(torch, "_C", None), f"_{kind}_isHistoryEnabled"),
        "a snapshot is taken: a history that is off is empty",
    ),
    "times": Difference(
        "2.2",
        # Events have carried them since torch can be asked whether it records; XPU had both from its start.
        lambda torch, kind: kind == "xpu" or hasattr(getattr(torch, "_C", None), f"_{kind}_isHistoryEnabled"),
        "events are counted, not timed",
        "PyTorch {torch} gives its events no time, so steps, phases and most labels are not known: "
        "update to {since} or newer.",
    ),
    "light snapshot": Difference(
        "2.11",
        _takes("memory_snapshot", "include_traces"),
        "a full snapshot marks the place in a history that somebody else runs",
    ),
    "allocator's name": Difference(
        "2.0",
        lambda torch, kind: hasattr(_memory(torch, kind), "get_allocator_backend"),
        "it is taken for torch's own",
    ),
    "counters": Difference(
        "2.0",
        _offers("memory_stats"),
        "what another thread does while the snapshot is taken goes unnoticed here; reducing finds some of it",
    ),
    "free memory": Difference(
        "2.0",
        _offers("mem_get_info"),
        "what others use on the device is not known",
    ),
}

#: The first torch with a memory history, by device; CUDA's before 2.1 has other words, and is read all the same.
FIRST = {"cuda": "2.1", "xpu": "2.11"}


def has(what: str, torch: Any, kind: str) -> bool:
    """Whether this torch has one of DIFFERENCES for a kind of device."""
    return DIFFERENCES[what].found(torch, kind)


def sentence(what: str, torch: Any, kind: str) -> str:
    """What to say where it has not."""
    row = DIFFERENCES[what]
    since = FIRST[kind] if what == "history" else row.since
    version = getattr(torch, "__version__", "")
    return row.missing.format(torch=version, device=kind.upper(), since=since)
