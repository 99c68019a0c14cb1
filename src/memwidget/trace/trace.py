"""Trace: one device of a Recording, reduced, with the questions one can ask.

Owns the public answers about blocks, moments, stacks and call sites. It must not know how an answer is shown: the
methods that draw or write are one-line deferred imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from memwidget.recording import ACTION, CATEGORIES, I32, I64, U8, Events, Recording
from memwidget.trace import sites as _sites
from memwidget.trace.categories import RULE, categorize
from memwidget.trace.fragmentation import Fragmentation, Growth, Request, fragmentation, growth_despite_room
from memwidget.trace.oom import OutOfMemory
from memwidget.trace.phases import found_steps, phase_ranges, phases
from memwidget.trace.rankings import category_rows, operator_rows, range_rows
from memwidget.trace.reduce import BEFORE, FORWARD_STACK, GHOST, Reduced, curves, reduce_device
from memwidget.trace.rules import Rule, first_fits, rule_list
from memwidget.trace.segments import AllocatorState, address_map, allocator_state

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from numpy.typing import NDArray

    from memwidget.answer.finding import Finding

CurveName = Literal["allocated", "active", "reserved", "requested"]
At = int | str

#: Why a block has no stack, by code; 0 stands for "it has one".
NO_STACK = (
    "",
    "It existed before the recording began, so its allocation was not seen.",
    'Allocated in backward, on autograd\'s own thread, which has no Python stack; stacks="all" shows the C++ side.',
    "The recording kept no stacks at all (context=None).",
    "The recording kept no stack for this allocation.",
    "Allocated outside any operator (a bare storage, say), where the CPU recorder sees no line.",
)
_STACK, _EARLIER, _BACKWARD, _NO_STACKS, _NOT_KEPT, _NO_OPERATOR = range(len(NO_STACK))


class Frame(NamedTuple):
    """One line of a stack; `source` is its text where that was stored at recording."""

    filename: str
    line: int
    name: str
    source: str | None = None


class Band(NamedTuple):
    """A named range of moments: an annotation, a phase or a step."""

    kind: str
    name: str
    lo: int
    hi: int
    depth: int


@dataclass(frozen=True)
class SiteRow:
    """One call site's share of the live memory at a moment; `frame` is its row of the recording's frames, or -1."""

    label: str
    bytes: int
    count: int
    frame: int


class Ranking(Mapping[str, int]):
    """Bytes by name, largest first; `rows` has more than the number."""

    def __init__(self, rows: tuple[Any, ...]) -> None:
        self.rows = rows
        self._bytes = {row.label: row.bytes for row in rows}

    def __getitem__(self, key: str) -> int:
        return int(self._bytes[key])

    def __iter__(self) -> Iterator[str]:
        return iter(self._bytes)

    def __len__(self) -> int:
        return len(self._bytes)

    def __repr__(self) -> str:
        return repr(self._bytes)


class Trace:
    """One device's memory over a recording.

    A *moment* m in 0..n_events is the state after the first m events; event indices are rows of the history, -1 stands
    for none. All sizes are bytes.

    Parameters
    ----------
    recording : Recording
    device : int, optional
        Device ordinal; by default the one with most bytes.
    capacity : int, optional
        Bytes the device has, where the recording does not know.
    rules : list of Rule, optional
        The user's own names for blocks; see `with_rules`.

    Raises
    ------
    ValueError
        If the recording has nothing about that device.
    """

    def __init__(
        self,
        recording: Recording,
        device: int | None = None,
        capacity: int | None = None,
        rules: Iterable[Rule | Mapping[str, str]] = (),
    ) -> None:
        self.recording = recording
        found = recording.devices
        if device is None:
            device = _fullest(recording)
        elif device not in found:
            names = ", ".join(map(str, found)) or "none"
            raise ValueError(f"This recording has nothing about device {device}; it has: {names}.")
        self.device = device
        self.capacity: int | None = capacity if capacity is not None else recording.capacities.get(device)
        self._reduced: Reduced = reduce_device(recording, device)
        counters = recording.counters.of(device)
        self._found: tuple[Finding, ...] | None = None
        self._curves: dict[str, I64] = curves(self._reduced, recording.device_type, counters)
        for kind in ("phase", "step"):
            self._reduced.blocks[kind] = self._innermost(kind)
        phase = phases(recording, self.event_times_us) if self.has_time else None
        blocks = self._reduced.blocks
        answer = categorize(recording, device, blocks, phase)
        blocks["category"], blocks["reason"] = answer.category, answer.reason
        borrowed = (blocks["stack"] < 0) & (answer.forward_stack >= 0)
        blocks["stack"] = np.where(borrowed, answer.forward_stack, blocks["stack"])
        blocks["flags"][borrowed] |= FORWARD_STACK
        self._reduced.notes += answer.notes
        #: What each block's category code stands for: design's eleven, and the names of the user's own rules.
        self.categories: tuple[str, ...] = CATEGORIES
        #: Name of each block ("encoder.0.weight", the module that made it), an index into ``recording.strings``; -1.
        self.block_label: I32 = answer.name
        #: Deep mode: the stack of the forward that each block made in backward belongs to; -1 for none.
        self.forward_stack: I32 = answer.forward_stack
        self._rules = rule_list(rules)
        if self._rules:
            self._apply(self._rules)

    # -- facts -------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the recording is called."""
        return self.recording.name

    @property
    def device_type(self) -> str:
        """Either "cuda" (ROCm too), "xpu" or "cpu"."""
        return self.recording.device_type

    @property
    def devices(self) -> tuple[int, ...]:
        """Ordinals of the devices in the recording."""
        return self.recording.devices

    @property
    def notes(self) -> tuple[str, ...]:
        """What the source could not tell, one plain sentence each."""
        return (*self.recording.notes, *self._reduced.notes)

    @property
    def events(self) -> Events:
        """The history as recorded, one row an event."""
        return self._reduced.events

    @property
    def blocks(self) -> NDArray[Any]:
        """One row a block lifetime (`memwidget.trace.reduce.BLOCK_DTYPE`); a block id is its row.

        What existed at the start comes first, then blocks in order of allocation, so stacking order is ascending id.
        """
        return self._reduced.blocks

    @property
    def n_events(self) -> int:
        """Number of events in the history."""
        return len(self._reduced.events)

    @property
    def n_blocks(self) -> int:
        """Number of block lifetimes."""
        return len(self._reduced.blocks)

    def for_device(self, device: int) -> Trace:
        """Another device of the same recording, without a second reading."""
        return Trace(self.recording, device, rules=self._rules)

    def __repr__(self) -> str:
        return (
            f"<Trace {self.name!r} {self.device_type}:{self.device}, {self.n_events:,} events, "
            f"{self.n_blocks:,} blocks, peak {self.peak_allocated:,} B>"
        )

    # -- curves and moments ------------------------------------------------------------------------------------------

    def curve(self, name: CurveName) -> I64:
        """Bytes at every moment.

        Parameters
        ----------
        name : {"allocated", "active", "reserved", "requested"}
            As torch counts them: allocated ends at free_requested, active and requested at free_completed.

        Returns
        -------
        ndarray of int64, shape (n_events + 1,), bytes; read-only
        """
        if name not in self._curves:
            raise ValueError(f'There is no curve {name!r}; there are "allocated", "active", "reserved", "requested".')
        curve: I64 = self._curves[name].view()
        curve.flags.writeable = False
        return curve

    @cached_property
    def peak_allocated(self) -> int:
        """Highest allocated bytes."""
        return int(self._curves["allocated"].max())

    @cached_property
    def peak_active(self) -> int:
        """Highest active bytes (allocated and pending frees)."""
        return int(self._curves["active"].max())

    @cached_property
    def peak_reserved(self) -> int:
        """Highest reserved bytes."""
        return int(self._curves["reserved"].max())

    @cached_property
    def peak_requested(self) -> int:
        """Highest requested bytes."""
        return int(self._curves["requested"].max())

    @property
    def allocated(self) -> int:
        """Allocated bytes at the end."""
        return int(self._curves["allocated"][-1])

    @property
    def active(self) -> int:
        """Active bytes at the end."""
        return int(self._curves["active"][-1])

    @property
    def reserved(self) -> int:
        """Reserved bytes at the end."""
        return int(self._curves["reserved"][-1])

    @cached_property
    def peak_event(self) -> int:
        """The first moment at which allocated is at its peak."""
        return int(self._curves["allocated"].argmax())

    @cached_property
    def oom_moments(self) -> tuple[int, ...]:
        """Moments at which an allocation failed for good: the state the failing request met."""
        return tuple(int(i) for i in np.flatnonzero(self.events.action == ACTION["oom"]))

    def moment(self, at: At) -> int:
        """Resolve "peak", "end", "oom" (the last one) or an int in 0..n_events.

        Raises
        ------
        ValueError
            If there is no such moment.
        """
        if isinstance(at, str):
            if at == "peak":
                return self.peak_event
            if at == "end":
                return self.n_events
            if at == "oom":
                if not self.oom_moments:
                    raise ValueError("This recording has no out-of-memory event.")
                return self.oom_moments[-1]
            raise ValueError(f'A moment is "peak", "end", "oom" or an int, not {at!r}.')
        m = int(at)
        if not 0 <= m <= self.n_events:
            raise ValueError(f"Moments run from 0 to {self.n_events:,}; {m:,} is none.")
        return m

    @cached_property
    def has_time(self) -> bool:
        """Whether events carry time (torch 2.2 and later)."""
        return bool((self.events.time_us > 0).any())

    @cached_property
    def event_times_us(self) -> I64:
        """Microseconds since the Unix epoch, one an event, never falling; zeros where the history has no time."""
        times: I64 = np.maximum.accumulate(self.events.time_us) if self.n_events else self.events.time_us
        return times

    # -- blocks ------------------------------------------------------------------------------------------------------

    def live_at(self, at: At = "peak") -> I64:
        """Ids of the blocks allocated at a moment, in stacking order; their sizes add up to ``curve("allocated")``."""
        m = self.moment(at)
        born, asked = self.blocks["alloc_event"], self.blocks["free_requested_event"]
        ids: I64 = np.flatnonzero((born < m) & ((asked == -1) | (asked >= m)))
        return ids

    def pending_at(self, at: At) -> I64:
        """Ids of the blocks whose free was requested but not completed at a moment."""
        m = self.moment(at)
        born, asked, died = (self.blocks[c] for c in ("alloc_event", "free_requested_event", "free_event"))
        return np.flatnonzero((born < m) & (asked != -1) & (asked < m) & ((died < 0) | (died >= m)))

    @cached_property
    def block_uses(self) -> NDArray[np.uint32]:
        """How many blocks had the same address before, one entry a block."""
        address = self.blocks["address"]
        order = np.argsort(address, kind="stable")
        fresh = np.ones(len(order), bool)
        fresh[1:] = address[order][1:] != address[order][:-1]
        position = np.arange(len(order))
        uses = np.zeros(len(order), np.uint32)
        uses[order] = position - np.maximum.accumulate(np.where(fresh, position, 0))
        return uses

    def block_name(self, block: int) -> str:
        """``b<hex>_<use>``, as the official viewer writes it."""
        return f"b{int(self.blocks['address'][block]):x}_{int(self.block_uses[block])}"

    def stack(self, block: int, which: Literal["alloc", "free"] = "alloc") -> tuple[Frame, ...]:
        """The stack that made a block, or that freed it; innermost frame first, empty where none was kept."""
        if which not in {"alloc", "free"}:
            raise ValueError(f'A block has an "alloc" and a "free" stack, not {which!r}.')
        stack = int(self.blocks["stack" if which == "alloc" else "free_stack"][block])
        return self._frames(stack)

    def _frames(self, stack: int) -> tuple[Frame, ...]:
        if stack < 0:
            return ()
        r = self.recording
        return tuple(self.frame(int(row)) for row in r.stack_frames[r.stacks[stack] : r.stacks[stack + 1]])

    def frame(self, row: int) -> Frame:
        """A row of the recording's frames as text."""
        frames, strings = self.recording.frames, self.recording.strings
        source = int(frames.source[row])
        return Frame(
            strings[frames.filename[row]],
            int(frames.line[row]),
            strings[frames.name[row]],
            strings[source] if source >= 0 else None,
        )

    @cached_property
    def no_stack(self) -> U8:
        """Why a block has no stack: an index into NO_STACK, one entry a block."""
        stack, born = self.blocks["stack"], self.blocks["alloc_event"]
        missing = stack < 0
        if not (stack >= 0).any():
            ordinary = _NO_STACKS
        elif self.recording.facts.get("context") == "state":
            ordinary = _NOT_KEPT
        elif self.device_type == "cpu":
            ordinary = _NO_OPERATOR
        else:
            # Python-only stacks are empty exactly on autograd's own threads. One C++ frame anywhere means that C++
            # stacks were on, and then an empty stack has another reason.
            ordinary = _NOT_KEPT if (self.frame_kind >= _sites.CPP).any() else _BACKWARD
        codes = np.where(missing, np.where(born < 0, _EARLIER, ordinary), _STACK)
        return codes.astype(np.uint8)

    def no_stack_reason(self, block: int) -> str:
        """One sentence on why a block has no stack; empty if it has one."""
        return NO_STACK[self.no_stack[block]]

    # -- the allocator -----------------------------------------------------------------------------------------------

    @property
    def segments(self) -> NDArray[Any]:
        """One row a segment's lifetime (`memwidget.trace.segments.SEGMENT_DTYPE`); expandable ones in mapped pieces."""
        return self._reduced.table

    def allocator_at(self, at: At = "peak") -> AllocatorState:
        """Every segment at a moment, with the blocks and holes in it by address.

        Blocks whose segment is not in the recording (freed before it was seen) are left out.
        """
        m = self.moment(at)
        segments, stretches = address_map(self.segments, self.blocks, self.live_at(m), self.pending_at(m), m)
        return allocator_state(m, segments, stretches, self.blocks["requested"], self.recording.pools)

    def fragmentation_at(self, at: At = "peak") -> Fragmentation:
        """Judge the free bytes at a moment by the request that fails there, else by the peak's largest block.

        See `memwidget.trace.fragmentation.Fragmentation`.
        """
        m = self.moment(at)
        segments, stretches = address_map(self.segments, self.blocks, self.live_at(m), self.pending_at(m), m)
        return fragmentation(m, segments, stretches, self.blocks["requested"], self._request_at(m))

    def _request_at(self, m: int) -> Request:
        if m in self.oom_moments:
            pool = int(self.events.pool[m])
            default = self.recording.pools.index((0, 0)) if (0, 0) in self.recording.pools else -1
            return Request(int(self.events.size[m]), int(self.events.stream[m]), pool if pool >= 0 else default)
        live = self.live_at("peak")
        if not len(live):
            return Request(0, -1, -1)
        block = self.blocks[live[self.blocks["size"][live].argmax()]]
        return Request(int(block["size"]), int(block["stream"]), int(block["pool"]))

    def out_of_memory(self, at: At = "oom") -> OutOfMemory:
        """Explain an out-of-memory event (by default the last): what was asked, what was there, why it could not serve.

        Raises
        ------
        ValueError
            If no allocation failed at that moment.
        """
        m = self.moment(at)
        if m not in self.oom_moments:
            raise ValueError(f"No allocation failed at moment {m:,}.")
        device_free, reserved = int(self.events.address[m]), int(self._curves["reserved"][m])
        return OutOfMemory(
            moment=m,
            requested=int(self.events.size[m]),
            device_free=device_free,
            allocated=int(self._curves["allocated"][m]),
            reserved=reserved,
            free=self.fragmentation_at(m),
            by_site=self.by_site(m),
            outside=None if self.capacity is None else max(0, self.capacity - device_free - reserved),
            expandable=bool(self.recording.settings.get("expandable_segments", False)),
        )

    @cached_property
    def growth_despite_room(self) -> tuple[Growth, ...]:
        """Each time memory was reserved although enough lay free in the request's own pool and stream."""
        return growth_despite_room(self.events, self.segments, self.blocks)

    # -- call sites --------------------------------------------------------------------------------------------------

    @cached_property
    def frame_kind(self) -> U8:
        """0 the user's, 1 a library's, 2 C++, 3 plumbing; one entry a row of ``recording.frames``."""
        return _sites.frame_kinds(self.recording)

    @cached_property
    def stack_site(self) -> I32:
        """The user's innermost frame of each stack, a row of ``recording.frames``; -1 for none."""
        return _sites.stack_sites(self.recording, self.frame_kind)

    @cached_property
    def block_site(self) -> I32:
        """The user's innermost frame of each block, a row of ``recording.frames``; -1 for none."""
        stack = self.blocks["stack"]
        return np.where(stack >= 0, np.append(self.stack_site, np.int32(-1))[stack], -1).astype(np.int32)

    @cached_property
    def _labels(self) -> dict[int, str]:
        cells = self.recording.facts.get("cells")
        return _sites.site_labels(
            self.recording, np.unique(self.stack_site), cells if isinstance(cells, Mapping) else {}
        )

    def site_label(self, frame: int) -> str:
        """Words for a call site: ``train.py:31 in step``, ``cell 3, line 5``."""
        return self._labels.get(frame, _sites.NO_SITE)

    def site(self, block: int) -> Frame | None:
        """The user's innermost frame, or None where the block has no Python stack."""
        row = int(self.block_site[block])
        return self.frame(row) if row >= 0 else None

    def by_site(self, at: At = "peak") -> Ranking:
        """Live bytes by call site at a moment, largest first."""
        live = self.live_at(at)
        keys, inverse = np.unique(self.block_site[live], return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, inverse, self.blocks["size"][live])
        counts = np.bincount(inverse, minlength=len(keys))
        merged: dict[str, SiteRow] = {}
        for key, size, count in zip(keys.tolist(), sums.tolist(), counts.tolist(), strict=True):
            label = self.site_label(key)
            old = merged.get(label, SiteRow(label, 0, 0, key))
            merged[label] = SiteRow(label, old.bytes + size, old.count + count, old.frame)
        return Ranking(tuple(sorted(merged.values(), key=lambda row: (-row.bytes, row.label))))

    # -- what blocks were for ----------------------------------------------------------------------------------------

    @property
    def has_labels(self) -> bool:
        """Whether anything is known of what blocks were for, beyond "it was there before"."""
        return bool((self.blocks["reason"] > 0).any())

    def label(self, block: int) -> str:
        """The name of a block: a parameter's, its gradient's, or the module that made it; empty where none is known."""
        row = int(self.block_label[block])
        return self.recording.strings[row] if row >= 0 else ""

    def forward_frames(self, block: int) -> tuple[Frame, ...]:
        """Deep mode: the stack of the forward that a block made in backward belongs to; empty where not known."""
        return self._frames(int(self.forward_stack[block]))

    def by_category(self, at: At = "peak") -> Ranking:
        """Live bytes by category at a moment, largest first; ``rows`` also say how they were decided."""
        return Ranking(category_rows(self.blocks, self.live_at(at), self.categories))

    def by_operator(self) -> Ranking:
        """Bytes that each operator added, largest first; ``rows`` have calls, allocations and its own share.

        Known from torch.profiler's Chrome traces and finished profiles only; otherwise empty.
        """
        return Ranking(operator_rows(self.recording, self.device))

    def by_phase(self) -> Ranking:
        """Highest allocated bytes of each phase; ``rows`` have the end and the growth too."""
        return self._by_band("phase")

    def by_step(self) -> Ranking:
        """Highest allocated bytes of each step; ``rows`` have the end and the growth too."""
        return self._by_band("step")

    def _by_band(self, kind: str) -> Ranking:
        ranges = [(band.name, band.lo, band.hi) for band in self.bands if band.kind == kind]
        return Ranking(range_rows(ranges, self.curve("allocated")))

    def with_rules(self, rules: Iterable[Rule | Mapping[str, str]]) -> Trace:
        """The same trace with the user's own names for blocks in place of their categories.

        Parameters
        ----------
        rules : list of Rule
            Tried in order; the first that fits names the block. Dicts with the same keys do as well.

        Examples
        --------
        >>> mine = trace.with_rules([mw.Rule("KV cache", function="update_cache")])  # doctest: +SKIP
        >>> mine.by_category()["KV cache"]  # doctest: +SKIP
        """
        return Trace(self.recording, self.device, self.capacity, rules)

    def _apply(self, rules: tuple[Rule, ...]) -> None:
        names = tuple(dict.fromkeys(rule.name for rule in rules))
        self.categories += tuple(name for name in names if name not in CATEGORIES)
        if len(self.categories) > 255:
            raise ValueError("There can be 240 names of rules at most.")
        blocks = self.blocks
        born = blocks["alloc_event"]
        metadata = np.append(self.events.metadata, np.int32(-1))[born]
        fits = first_fits(rules, self.recording, blocks["stack"], self.block_label, metadata)
        ids = np.flatnonzero(fits >= 0)
        codes = np.array([self.categories.index(rule.name) for rule in rules], np.uint8)
        blocks["category"][ids], blocks["reason"][ids] = codes[fits[ids]], RULE

    # -- bands -------------------------------------------------------------------------------------------------------

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """Named ranges as moments, by start; ``depth`` counts the ranges of the same kind around it.

        Steps come from ``rec.step()`` and from the profiler's step marks, else from optimizer steps; phases from
        ``rec.phase()``, and from what the recorder saw: forward, backward, optimizer.
        """
        if not self.has_time:
            return ()
        marks, facts, strings = self.recording.annotations, self.recording.facts, self.recording.strings
        phases = set(facts.get("phases", ()))
        ranges = [
            (_kind(strings[name], row in phases), strings[name], start, end)
            for row, (name, start, end) in enumerate(
                zip(marks.name.tolist(), marks.start_us.tolist(), marks.end_us.tolist(), strict=True)
            )
        ]
        bounds = [-1, *facts.get("steps", ())]
        if len(bounds) == 1 and not any(kind == "step" for kind, *_ in ranges):
            bounds += found_steps(self.recording)
        ranges += phase_ranges(self.recording, [r for r in ranges if r[0] == "phase"])
        # What follows the last boundary is a step only if it goes on; the loop may have ended there.
        ranges += [("step", str(i), bounds[i], bounds[i + 1]) for i in range(len(bounds) - 1)]
        return _nested(ranges, self.event_times_us)

    def _innermost(self, kind: str) -> I32:
        """Row of the innermost band of a kind in which each block was allocated; -1 for none."""
        inside: I32 = np.full(self.n_events + 1, -1, np.int32)
        for row, band in sorted(enumerate(self.bands), key=lambda b: b[1].depth):
            if band.kind == kind:
                inside[band.lo : band.hi] = row
        # Never allocated here is -1, which takes the last entry.
        rows: I32 = inside[self.blocks["alloc_event"]]
        return rows

    # -- exits: each of these is drawn or written by another room -----------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording: ``.memtrace`` ours, ``.pickle`` torch's own layout."""
        from memwidget.read.archive import save

        save(self.recording, path)

    def to_html(self, path: str | os.PathLike[str] | None = None, **options: Any) -> str | Path:
        """Write one self-contained page that works offline; without a path, its text comes back."""
        from memwidget.show.export import to_html

        return to_html(self, path, **options)

    def to_timeline_json(self, path: str | os.PathLike[str]) -> Path:
        """Write torch.profiler's memory timeline (``.json`` or ``.json.gz``), as ``export_memory_timeline`` does."""
        from memwidget.show.timeline_json import to_timeline_json

        return to_timeline_json(self, path)

    def findings(self) -> list[Finding]:
        """Say what is wrong, or worth knowing, with lines, bytes and a next step; empty where nothing is unusual."""
        from memwidget.answer.findings import findings

        if self._found is None:
            self._found = tuple(findings(self))
        return list(self._found)

    def plot(self, **options: Any) -> Any:
        """Draw memory by category over time, as a bokeh figure that shows itself in a notebook."""
        from memwidget.show.figures import plot

        return plot(self, **options)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        from memwidget.show.view import MemView

        return MemView(self)._repr_mimebundle_(**kwargs)


def _kind(name: str, is_phase: bool) -> str:
    if name.startswith("ProfilerStep#"):
        return "step"
    return "phase" if is_phase else "annotation"


def _nested(ranges: list[tuple[str, str, int, int]], times: I64) -> tuple[Band, ...]:
    """Ranges of (kind, name, start, end) in microseconds, -1 for an end that is not known, as bands."""
    start = np.array([r[2] for r in ranges], np.int64)
    end = np.array([r[3] for r in ranges], np.int64)
    lo = np.where(start < 0, 0, np.searchsorted(times, start, side="left"))
    hi = np.where(end < 0, len(times), np.searchsorted(times, end, side="right"))
    found: list[Band] = []
    open_: dict[str, list[int]] = {}
    for row in np.lexsort((start, -hi, lo)).tolist():
        kind, name, first, last = ranges[row][0], ranges[row][1], int(lo[row]), int(hi[row])
        if last <= first:
            continue  # no event of this device lies inside
        around = [other for other in open_.get(kind, []) if other > first]
        found.append(Band(kind, name, first, last, len(around)))
        open_[kind] = [*around, last]
    return tuple(found)


def _fullest(recording: Recording) -> int:
    """The device with most bytes, judged by segments, then by events; 0 where there is none."""
    best, most = 0, (-1, -1)
    for device in recording.devices:
        reserved = int(recording.segments.size[recording.segments.device == device].sum())
        events = recording.events.get(device)
        if events is not None and len(events):
            grown = np.isin(events.action, [ACTION["alloc"], ACTION["segment_alloc"], ACTION["segment_map"]])
            reserved = max(reserved, int(events.size[grown].max(initial=0)))
        size = (reserved, 0 if events is None else len(events))
        if size > most:
            best, most = device, size
    return best


__all__ = ["BEFORE", "GHOST", "NO_STACK", "Band", "Frame", "Ranking", "SiteRow", "Trace"]
