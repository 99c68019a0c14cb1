"""A finished ``torch.profiler.profile`` object -> Recording, without importing torch.

Owns the walk over the profiler's event tree (the same data that a Chrome trace is written from; exporting one would
use it up) and torch's own categories, which a Chrome trace has not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memwidget.read.nesting import OPERATOR, PYTHON, RANGE, Profile, joined
from memwidget.recording import CATEGORIES, SAMPLED, Labels, Recording, SnapshotError

#: torch's search for categories takes about 1 s for 10,000 events here, and more than twice that for twice as many.
MAX_FOR_CATEGORIES = 300_000
#: c10::DeviceType by torch's name.
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "hip": 6, "xpu": 12}


def is_profile(source: Any) -> bool:
    """Whether this is a profiler's object, by what it has."""
    return (
        hasattr(source, "kineto_results")
        or hasattr(getattr(source, "profiler", None), "kineto_results")
        or (hasattr(source, "export_chrome_trace") and hasattr(source, "key_averages"))
    )


def read(source: Any, name: str, device_type: str) -> Recording:
    """Read a finished profile."""
    inner = source if hasattr(source, "kineto_results") else source.profiler
    result = getattr(inner, "kineto_results", None)
    if result is None or not hasattr(result, "experimental_event_tree"):
        raise SnapshotError("The profile is not finished; load it after its with block, or after stop().")
    profile = Profile()
    count = _walk(profile, result.experimental_event_tree())
    recording = profile.recording(name, device_type, [])
    _categories(source, recording, count)
    return recording


def _walk(profile: Profile, roots: Any) -> int:
    """Note every event of the tree; returns how many there are."""
    count = 0
    pending = list(roots)
    while pending:
        node = pending.pop()
        pending += node.children
        count += 1
        tag, fields = node.tag.name, node.extra_fields
        if tag == "Allocation":
            profile.add_memory(
                profile.thread_number(node.start_tid),
                node.start_time_ns,
                (_DEVICE_TYPES.get(fields.device.type, -1), fields.device.index or 0),
                fields.ptr,
                fields.alloc_size,
                (getattr(fields, "total_allocated", -1), getattr(fields, "total_reserved", -1)),
            )
        elif tag in {"TorchOp", "PyCall"}:
            named = tag == "TorchOp" and fields.scope.name == "USER_SCOPE"
            kind = PYTHON if tag == "PyCall" else RANGE if named else OPERATOR
            name = node.name.encode("utf-8", "replace").decode("utf-8")
            thread = profile.thread_number(node.start_tid)
            profile.add_span(thread, (node.start_time_ns, node.end_time_ns), kind, name)
    return count


def _categories(source: Any, recording: Recording, count: int) -> None:
    """Let torch say what memory was for. It needs shapes and Python functions, and follows the data through them."""
    if not (getattr(source, "record_shapes", False) and getattr(source, "with_stack", False)):
        recording.notes.append(
            "The profiler can tell what memory was for only with record_shapes=True and with_stack=True."
        )
        return
    search = getattr(source, "_memory_profile", None)
    if search is None:
        return
    if count > MAX_FOR_CATEGORIES:
        recording.notes.append(f"torch's search for categories is left out: it is too slow for {count:,} events.")
        return
    try:
        found = search()
        rows = _named(found)
    except Exception as error:  # noqa: BLE001  (it asserts what is not always so)
        recording.notes.append(f"torch could not say what memory was for: {type(error).__name__}: {error}"[:300])
        return
    kind = recording.device_type
    mine = [row for row in rows if row[0] == kind and row[1] in recording.events]
    starts = {device: int(events.time_us[0]) for device, events in recording.events.items()}
    labels: Labels = Labels.empty(len(mine))
    for at, (_, device, address, time_ns, category) in enumerate(mine):
        labels.device[at], labels.address[at], labels.category[at] = device, address, category
        labels.time_us[at] = starts[device] if time_ns < 0 else time_ns // 1000
    labels.how = np.full(len(mine), SAMPLED.index("profiler"), np.uint8)
    recording.labels = joined(recording.labels, labels)


def _named(found: Any) -> list[tuple[str, int, int, int, int]]:
    """Kind of device, ordinal, address, time of allocation in ns (-1: earlier) and category of each tensor's memory."""
    born: dict[Any, tuple[int, int]] = {}
    named: dict[Any, int] = {}
    for time_ns, action, (key, version), _ in found.timeline:
        pointer = getattr(getattr(key, "storage", None), "ptr", None)
        if pointer is None:
            continue
        if action.name in {"PREEXISTING", "CREATE"}:
            born[key] = (time_ns, pointer)
        category = found._categories.get(key, version)  # noqa: SLF001
        if category is not None and category.name.lower() in CATEGORIES:
            named.setdefault(key, CATEGORIES.index(category.name.lower()))
    return [
        (key.device.type, max(key.device.index or 0, 0), address, time_ns, named[key])
        for key, (time_ns, address) in born.items()
        if key in named
    ]
