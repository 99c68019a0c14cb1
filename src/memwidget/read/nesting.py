"""What ran around each allocation, from time alone -> Recording.

Owns the form that a Chrome trace and a live profile object are brought into (`Profile`: spans of time and memory
events, thread by thread), and how it becomes a Recording: the spans open at an allocation are its stack, operators
inside, Python functions around them; allocations and frees also add up to what each operator did to memory.

torch.profiler's Python functions carry the line of their ``def``, not the line that ran.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.recording import (
    ACTION,
    CATEGORIES,
    I64,
    SAMPLED,
    Annotations,
    Counters,
    Events,
    Frames,
    Labels,
    Operators,
    Recording,
    SnapshotError,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Kinds of span.
PYTHON, RANGE, OPERATOR = range(3)
#: c10::DeviceType of what torch's profiler reports memory of; 6 is HIP, which torch calls cuda.
DEVICE_TYPES = {0: "cpu", 1: "cuda", 6: "cuda", 12: "xpu"}
#: Frames kept of one stack, the innermost ones; and of all together.
MAX_DEPTH, MAX_FRAMES = 256, 1 << 23
#: Named ranges kept: each is a band in the picture.
MAX_RANGES = 20_000
#: A named range outlives a few functions at most; with more of them it is cut off at the innermost that ends.
MAX_MOVED = 64
MAX_BYTES, MAX_TOTAL = 1 << 44, 1 << 61
MAX_TIME_NS = 1 << 62
_PYTHON_NAME = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)
_ALLOC, _FREE = ACTION["alloc"], ACTION["free_requested"]


class Strings:
    """Texts as numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))


@dataclass
class Memory:
    """Memory events of one kind of device, columns as the profiler reports them; -1 for a total that is missing."""

    time: array[int] = field(default_factory=lambda: array("q"))
    thread: array[int] = field(default_factory=lambda: array("q"))
    device: array[int] = field(default_factory=lambda: array("q"))
    address: array[int] = field(default_factory=lambda: array("Q"))
    size: array[int] = field(default_factory=lambda: array("q"))
    allocated: array[int] = field(default_factory=lambda: array("q"))
    reserved: array[int] = field(default_factory=lambda: array("q"))


class Profile:
    """Spans and memory events, in any order; times in ns after `base`, which is in ns since the Unix epoch."""

    def __init__(self) -> None:
        self.base = 0
        self.names = Strings()
        self.threads: dict[object, int] = {}
        self.start, self.end = array("q"), array("q")
        self.thread, self.kind, self.name = array("q"), array("B"), array("q")
        self.memory: dict[str, Memory] = {}
        self.other_devices = 0
        self._total = 0

    def thread_number(self, key: object) -> int:
        """A number for a thread."""
        return self.threads.setdefault(key, len(self.threads))

    def add_span(self, thread: int, time: tuple[int, int], kind: int, name: str) -> None:
        """Note something that ran, from a start to an end."""
        self.start.append(time[0])
        self.end.append(time[1])
        self.thread.append(thread)
        self.kind.append(kind)
        self.name.append(self.names.number(name))

    def add_memory(  # noqa: PLR0917
        self, thread: int, time: int, device: tuple[int, int], address: int, size: int, totals: tuple[int, int]
    ) -> None:
        """Note an allocation, or a free with negative size; a device is its type and ordinal, totals -1 if missing."""
        kind = DEVICE_TYPES.get(device[0])
        if kind is None:
            self.other_devices += 1
            return
        if not size:
            return
        self._total += abs(size)
        if self._total > MAX_TOTAL:
            raise SnapshotError("The sizes in this profile add up to more than any machine has.")
        memory = self.memory.setdefault(kind, Memory())
        memory.time.append(time)
        memory.thread.append(thread)
        memory.device.append(max(device[1], 0))  # the CPU is device -1
        memory.address.append(address)
        memory.size.append(size)
        memory.allocated.append(totals[0])
        memory.reserved.append(totals[1])

    def recording(self, name: str, device_type: str, notes: list[str]) -> Recording:
        """Put it all together for one kind of device: the one asked for, else a GPU before the CPU."""
        if not self.memory:
            raise SnapshotError(
                "The profile has no memory events; profile with torch.profiler.profile(profile_memory=True, ...)."
            )
        found = device_type or next(kind for kind in ("cuda", "xpu", "cpu") if kind in self.memory)
        if found not in self.memory:
            raise SnapshotError(f"The profile has no memory events of {found}; it has: {', '.join(self.memory)}.")
        return _Assembly(self, found, name, notes).recording


class _Assembly:
    """One kind of device of a profile on its way into a Recording."""

    def __init__(self, profile: Profile, device_type: str, name: str, notes: list[str]) -> None:
        self.profile = profile
        memory = profile.memory[device_type]
        self.table: I64 = np.stack(
            [np.array(c, np.int64) for c in (memory.time, memory.thread, memory.device, memory.size)]
            + [np.array(c, np.int64) for c in (memory.allocated, memory.reserved)],
            axis=1,
        )
        self.address = np.array(memory.address, np.uint64)
        self.table[:, 0] += profile.base
        order = np.argsort(self.table[:, 0], kind="stable")
        self.table, self.address = self.table[order], self.address[order]
        # Everything that was open at an allocation, as a tree: a span below the one around it.
        self.parent, self.key = array("q"), array("q")
        self.nested: dict[int, int] = {}  # name -> calls directly within one of the same name
        self.node = self._nodes()
        self.strings = Strings()
        self.recording = Recording(name=name, device_type=device_type, notes=list(notes))
        self.recording.facts = {"source": "torch.profiler", "sizes": "taken"}
        stack = self._stacks()
        self._events(stack)
        self._operators()
        self._ranges()
        self.recording.strings = list(self.strings.numbers)
        others = [kind for kind in profile.memory if kind != device_type]
        for kind in others:
            self.recording.notes.append(
                f"The profile holds {len(profile.memory[kind].size):,} memory events of {kind} too: "
                f'load it with device="{kind}" to see them.'
            )
        if profile.other_devices:
            self.recording.notes.append(
                f"{profile.other_devices:,} memory events are of a kind of device that is not known here; left out."
            )

    def _nodes(self) -> I64:
        """The node of each memory event: everything that was open then. -1: nothing was."""
        p = self.profile
        start, end = np.array(p.start, np.int64) + p.base, np.array(p.end, np.int64) + p.base
        thread, kind, name = np.array(p.thread, np.int64), np.array(p.kind, np.int64), np.array(p.name, np.int64)
        # By thread and start; what ends later lies outside, and of equal spans Python lies outside the operator.
        order = np.lexsort((kind, -end, start, thread))
        spans = zip(*(c[order].tolist() for c in (thread, start, end, name * 4 + kind)), strict=True)
        events = np.lexsort((self.table[:, 0], self.table[:, 1]))
        nodes = np.full(len(self.table), -1, np.int64)
        known: dict[tuple[int, int], int] = {}
        open_: list[list[int]] = []  # end, key, node (-1: none yet)
        filled = 0  # how many of them have a node
        span = next(spans, None)
        last = -1
        for event, (time, where) in zip(events.tolist(), self.table[events, :2].tolist(), strict=True):
            if where != last:
                open_, filled, last = [], 0, where
            while span is not None and (span[0], span[1]) <= (where, time):
                if span[0] == where:
                    while open_ and open_[-1][0] < span[1]:
                        open_.pop()
                    filled = min(filled, len(open_))
                    filled = min(filled, _open(open_, span[2], span[3]))
                    same = len(open_) > 1 and open_[-2][1] == span[3] == open_[-1][1]
                    if same:  # an operator that hands itself on to another kernel: one call
                        self.nested[span[3] >> 2] = self.nested.get(span[3] >> 2, 0) + 1
                span = next(spans, None)
            while open_ and open_[-1][0] < time:
                open_.pop()
            filled = min(filled, len(open_))
            for at in range(filled, len(open_)):
                above = open_[at - 1][2] if at else -1
                key = (above, open_[at][1])
                node = known.setdefault(key, len(known))
                if node == len(self.key):
                    self.parent.append(above)
                    self.key.append(open_[at][1])
                open_[at][2] = node
            filled = len(open_)
            nodes[event] = open_[-1][2] if open_ else -1
        return nodes

    def _stacks(self) -> NDArray[np.int32]:
        """Stack of each memory event; fills stacks and frames."""
        texts = list(self.profile.names.numbers)
        rows: dict[tuple[int, int, int], int] = {}
        row_of_key: dict[int, int] = {}
        stacks: dict[bytes, int] = {}
        stack_of: dict[int, int] = {-1: -1}
        total = left_out = 0
        used, place = np.unique(self.node, return_inverse=True)
        for node in used.tolist():
            found = array("i")
            at = node
            while at >= 0 and len(found) < MAX_DEPTH:
                key = self.key[at]
                if key not in row_of_key:
                    row_of_key[key] = self._frame(rows, texts[key >> 2], key & 3)
                if row_of_key[key] >= 0:
                    found.append(row_of_key[key])
                at = self.parent[at]
            content = found.tobytes()
            if content not in stacks and total + len(found) > MAX_FRAMES:
                left_out += 1
                content = b""
            elif content not in stacks and content:
                total += len(found)
                stacks[content] = len(stacks)
            stack_of[node] = stacks[content] if content else -1
        r = self.recording
        r.stacks = np.cumsum([0, *(len(content) // 4 for content in stacks)]).astype(np.int32)
        r.stack_frames = np.frombuffer(b"".join(stacks), np.int32).copy()
        table = np.array(list(rows), np.int32).reshape(-1, 3)
        r.frames = Frames(table[:, 0], table[:, 1], table[:, 2], np.full(len(table), -1, np.int32))
        if any(key & 3 == PYTHON for key in self.key):
            r.notes.append("The profiler's Python stacks name the line of each function's def, not the line that ran.")
        elif len(self.key):
            r.notes.append("The stacks hold operators only; with_stack=True in the profiler adds Python functions.")
        if left_out:
            r.notes.append(f"{left_out:,} stacks are left out: all together are longer than {MAX_FRAMES:,} frames.")
        return np.array([stack_of[node] for node in used.tolist()], np.int32)[place.reshape(-1)]

    def _frame(self, rows: dict[tuple[int, int, int], int], text: str, kind: int) -> int:
        """Row of a span's frame; -1 for a named range, which is no place in the code."""
        if kind == RANGE:
            return -1
        match = _PYTHON_NAME.fullmatch(text) if kind == PYTHON else None
        file, line, function = (match[1], int(match[2]), match[3]) if match else ("??", 0, text)
        return rows.setdefault((self.strings.number(file), line, self.strings.number(function)), len(rows))

    def _events(self, stack: NDArray[np.int32]) -> None:
        for device in np.unique(self.table[:, 2]).tolist():
            mine = np.flatnonzero(self.table[:, 2] == device)
            time, size, allocated, reserved = (self.table[mine, c] for c in (0, 3, 4, 5))
            events: Events = Events.empty(len(mine))
            events.action = np.where(size > 0, _ALLOC, _FREE).astype(np.uint8)
            events.address, events.size, events.time_us = self.address[mine], np.abs(size), time // 1000
            events.stack = stack[mine]
            # The CPU's total runs on through all profiles of a process and misses what is freed between them.
            known = allocated[0] >= 0 and self.recording.device_type != "cpu"
            if self.recording.device_type == "cpu":
                self.recording.notes.append("What CPU memory there was before the profile is not known and left out.")
            before = self._existed(device, events, int(allocated[0] - size[0]) if known else 0)
            self.recording.events[device] = events if before is None else before
            if self.recording.device_type != "cpu" and (reserved > 0).any():
                changed = np.flatnonzero(np.append(True, reserved[1:] != reserved[:-1]) & (reserved >= 0))
                old = self.recording.counters
                self.recording.counters = Counters(
                    np.append(old.device, np.full(len(changed), device)),
                    np.append(old.event, changed + (before is not None)),
                    np.append(old.reserved, reserved[changed]),
                )

    def _existed(self, device: int, events: Events, total: int) -> Events | None:
        """The events with what existed before them, where the profiler's own totals tell of more than frees do."""
        live: set[int] = set()
        for action, address, size in zip(
            events.action.tolist(), events.address.tolist(), events.size.tolist(), strict=True
        ):
            if action == _ALLOC:
                live.add(address)
            elif address in live:
                live.remove(address)
            else:
                total -= size
        if not 0 < total <= MAX_BYTES:
            return None
        self.recording.notes.append(
            f"{total:,} bytes existed before the first event and were not freed in it; "
            "they are drawn as one block, allocated at the first event."
        )
        first: Events = Events.empty(1)
        first.size[0], first.time_us[0] = total, events.time_us[0]
        r = self.recording
        labels: Labels = Labels.empty(1)
        labels.device[0], labels.time_us[0], labels.nbytes[0] = device, events.time_us[0], total
        labels.category[0], labels.how[0] = CATEGORIES.index("preexisting"), SAMPLED.index("profiler")
        r.labels = joined(r.labels, labels)
        result: Events = joined(first, events)
        return result

    def _operators(self) -> None:
        """What each operator and named range did, by device."""
        p = self.profile
        calls = np.bincount(np.array(p.name, np.int64)[np.array(p.kind, np.int64) != PYTHON], minlength=1)
        texts, n = list(p.names.numbers), len(self.key)
        key, parent = np.array(self.key, np.int64), self.parent.tolist()
        is_operator = (key & 3) != PYTHON
        owner = list(range(n))  # the innermost operator at each node, -1 for none
        for node, own in enumerate(is_operator.tolist()):
            if not own:
                owner[node] = owner[parent[node]] if parent[node] >= 0 else -1
        owners = np.array([*owner, -1], np.int64)
        rows = []
        for device in self.recording.events:
            mine = self.table[:, 2] == device
            nodes, size = self.node[mine], self.table[mine, 3]
            own, direct, made = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
            np.add.at(own, owners[nodes], size)
            np.add.at(direct, nodes, size)
            np.add.at(made, nodes, size > 0)
            within, below = direct.tolist(), made.tolist()
            for node in range(n - 1, -1, -1):  # a parent's number is smaller than its children's
                if parent[node] >= 0:
                    within[parent[node]] += within[node]
                    below[parent[node]] += below[node]
            sums: dict[int, list[int]] = {}
            for node in np.flatnonzero(is_operator).tolist():
                if parent[node] >= 0 and self.key[parent[node]] == self.key[node]:
                    continue  # counted with the call around it
                row = sums.setdefault(int(key[node]) >> 2, [0, 0, 0])
                row[0] += below[node]
                row[1] += within[node]
            for node in np.flatnonzero(own[:n]).tolist():
                sums[int(key[node]) >> 2][2] += int(own[node])
            rows += [
                (device, self.strings.number(texts[name]), int(calls[name]) - self.nested.get(name, 0), *sums[name])
                for name in sorted(sums, key=lambda name: texts[name])
            ]
        columns = np.array(rows, np.int64).reshape(-1, 6).T
        self.recording.operators = Operators(*columns)

    def _ranges(self) -> None:
        """Named ranges, for the bands."""
        p = self.profile
        kind = np.array(p.kind, np.int64)
        rows = np.flatnonzero(kind == RANGE)
        if len(rows) > MAX_RANGES:
            self.recording.notes.append(f"The first {MAX_RANGES:,} of {len(rows):,} named ranges are kept.")
        start, end, name = (np.array(c, np.int64)[rows] for c in (p.start, p.end, p.name))
        order = np.lexsort((-end, start))[:MAX_RANGES]
        texts = list(p.names.numbers)
        numbers = [self.strings.number(texts[i]) for i in name[order].tolist()]
        self.recording.annotations = Annotations(
            np.array(numbers, np.int32),
            np.full(len(order), -1),
            (start[order] + p.base) // 1000,
            (end[order] + p.base) // 1000,
        )


def _open(open_: list[list[int]], end: int, key: int) -> int:
    """Put a span among those that are open, ends falling from outside to inside; returns its place.

    A named range begins within the function that opens it and outlives that: it belongs outside.
    """
    place = len(open_)
    while place and open_[place - 1][0] < end and len(open_) - place < MAX_MOVED:
        place -= 1
        open_[place][2] = -1
    if place and open_[place - 1][0] < end:
        end = open_[place - 1][0]
    open_.insert(place, [end, key, -1])
    return place


def joined(first: Any, second: Any) -> Any:
    """Two tables of one kind, one after the other."""
    return type(first)(
        **{c.name: np.append(getattr(first, c.name), getattr(second, c.name)) for c in type(first).columns()}
    )
