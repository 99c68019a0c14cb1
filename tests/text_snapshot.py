"""A few readable lines of what a program did -> torch's snapshot dict, by way of the toy allocator.

One step a line; sizes take KiB and MiB; what follows ``@`` is the user's line::

    alloc a 3MiB @ train.py:31 step
    alloc b 512 stream=1
    request a              free_requested only: another stream still uses it
    complete a
    free b                 both at once
    empty_cache
    oom 5MiB device_free=100MiB
"""

from __future__ import annotations

from typing import Any

from toy_allocator import Block, ToyAllocator

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def run(text: str, settings: dict[str, Any] | None = None) -> ToyAllocator:
    """Carry the steps out; the allocator keeps history and counters."""
    toy = ToyAllocator(settings)
    live: dict[str, Block] = {}
    for raw in text.strip().splitlines():
        step, _, where = raw.partition("@")
        words = step.split()
        options = dict(w.split("=") for w in words if "=" in w)
        verb, names = words[0], [w for w in words[1:] if "=" not in w]
        if verb == "alloc":
            live[names[0]] = toy.alloc(_bytes(names[1]), int(options.get("stream", 0)), _frames(where))
        elif verb == "request":
            toy.request_free(live[names[0]])
        elif verb == "complete":
            toy.complete_free(live.pop(names[0]))
        elif verb == "free":
            toy.free(live.pop(names[0]))
        elif verb == "empty_cache":
            toy.empty_cache()
        elif verb == "oom":
            toy.oom(_bytes(names[0]), _bytes(options["device_free"]))
        else:
            raise ValueError(f"unknown step {raw!r}")
    return toy


def snapshot(text: str, settings: dict[str, Any] | None = None, keep_last: int | None = None) -> dict[str, Any]:
    """The snapshot that torch would have written."""
    return run(text, settings).snapshot(keep_last)


def _bytes(word: str) -> int:
    for unit, factor in _UNITS.items():
        if word.endswith(unit):
            return int(float(word.removesuffix(unit)) * factor)
    return int(word)


def _frames(where: str) -> list[dict[str, Any]] | None:
    """``train.py:31 step < main.py:4 <module>``: innermost first; nothing: no stack was kept."""
    if not where.strip():
        return None
    frames = []
    for part in where.split("<-"):
        place, _, name = part.strip().partition(" ")
        filename, _, line = place.rpartition(":")
        frames.append({"filename": filename, "line": int(line), "name": name or "<module>"})
    return frames
