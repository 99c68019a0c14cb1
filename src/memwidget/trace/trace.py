"""Trace: one device of a Recording, reduced, with the questions one can ask.

Owns the public answers about blocks, moments, stacks and call sites. It must not know how an answer is shown: the
methods that draw or write are one-line deferred imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import index
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from memwidget.recording import ACTION, CATEGORIES, I32, I64, U8, Events, Recording
from memwidget.trace import sites as _sites
from memwidget.trace.bands import innermost, named_ranges
from memwidget.trace.categories import RULE, Answer, categorize
from memwidget.trace.fragmentation import Fragmentation, Growth, Request, fragmentation, growth_despite_room
from memwidget.trace.oom import OutOfMemory
from memwidget.trace.phases import phases
from memwidget.trace.rankings import category_rows, operator_rows, range_rows, site_rows
from memwidget.trace.reduce import BEFORE, CURVES, FORWARD_STACK, GHOST, Columns, Reduced, make_curve, reduce_device
from memwidget.trace.rules import Rule, first_fits, rule_list
from memwidget.trace.segments import AllocatorState, address_map, allocator_state
from memwidget.trace.sites import NO_STACK
from memwidget.trace.tables import blocks_frame
from memwidget.trace.values import Band, Frame, Ranking, SiteRow
from memwidget.units import parse_bytes

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from numpy.typing import NDArray

    from memwidget.answer.finding import Finding

CurveName = Literal["allocated", "active", "reserved", "requested"]
At = int | str


class Trace:
    """One device's memory over a recording.

    A *moment* m in 0..n_events is the state after the first m events; event indices are rows of the history, -1 stands
    for none. All sizes are bytes.

    Parameters
    ----------
    recording : Recording
    device : int, optional
        Device ordinal; by default the one with most bytes.
    capacity : int or str, optional
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
        capacity: int | str | None = None,
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
        known = recording.capacities.get(device)
        #: Bytes the device has; None where neither the recording nor the caller knows.
        self.capacity: int | None = known if capacity is None else parse_bytes(capacity, "capacity")
        #: The history as recorded, one row an event.
        self.events: Events = recording.events.get(device, Events.empty())
        self._rules = rule_list(rules)
        own = dict.fromkeys(rule.name for rule in self._rules)
        #: What each block's category code stands for: design's eleven, and the names of the user's own rules.
        self.categories: tuple[str, ...] = (*CATEGORIES, *(n for n in own if n not in CATEGORIES))
        if len(self.categories) > 255:
            raise ValueError("There can be 240 names of rules at most.")
        self._found: tuple[Finding, ...] | None = None
        self._curves: dict[str, I64] = {}

    # -- the reduction, made when the first question needs it ----------------------------------------------------------

    @cached_property
    def _reduced(self) -> Reduced:
        return reduce_device(self.recording, self.device, self.events)

    @cached_property
    def _decided(self) -> Answer:
        """What blocks were for; also fills the columns that follow from it."""
        columns, events = self._reduced.columns, self.events
        born = columns["alloc_event"]
        for kind in ("phase", "step"):
            columns[kind] = innermost(self.bands, kind, len(events), born)
        found = phases(self.recording, self.event_times_us) if self.has_time else None
        answer = categorize(self.recording, self.device, columns, found)
        columns["category"], columns["reason"] = answer.category, answer.reason
        borrowed = (columns["stack"] < 0) & (answer.forward_stack >= 0)
        columns["stack"][borrowed] = answer.forward_stack[borrowed]
        columns["flags"][borrowed] |= FORWARD_STACK
        if self._rules:
            metadata = np.append(events.metadata, np.int32(-1))[born]
            fits = first_fits(self._rules, self.recording, columns["stack"], answer.name, metadata)
            ids = np.flatnonzero(fits >= 0)
            codes = np.array([self.categories.index(rule.name) for rule in self._rules], np.uint8)
            columns["category"][ids], columns["reason"][ids] = codes[fits[ids]], RULE
        return answer

    @cached_property
    def _columns(self) -> Columns:
        """The blocks, a column an array: for whole-column questions several times as fast as rows."""
        self._decided  # noqa: B018 - fills category, stack, phase and step
        return self._reduced.columns

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
        return (*self.recording.notes, *self._reduced.notes, *self._decided.notes)

    @cached_property
    def blocks(self) -> NDArray[Any]:
        """One row a block lifetime (`memwidget.trace.reduce.BLOCK_DTYPE`); a block id is its row.

        What existed at the start comes first, then blocks in order of allocation, so stacking order is ascending id.
        """
        return self._columns.rows()

    @property
    def n_events(self) -> int:
        """Number of events in the history."""
        return len(self.events)

    @property
    def n_blocks(self) -> int:
        """Number of block lifetimes."""
        return len(self._reduced.columns)

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
            if name not in CURVES:
                raise ValueError(
                    f'There is no curve {name!r}; there are "allocated", "active", "reserved", "requested".'
                )
            curve = make_curve(name, self._reduced, self.recording.device_type, self.recording.counters.of(self.device))
            curve.flags.writeable = False
            self._curves[name] = curve
        return self._curves[name]

    @cached_property
    def peak_allocated(self) -> int:
        """Highest allocated bytes."""
        return int(self.curve("allocated").max())

    @cached_property
    def peak_active(self) -> int:
        """Highest active bytes (allocated and pending frees)."""
        return int(self.curve("active").max())

    @cached_property
    def peak_reserved(self) -> int:
        """Highest reserved bytes."""
        return int(self.curve("reserved").max())

    @cached_property
    def peak_requested(self) -> int:
        """Highest requested bytes."""
        return int(self.curve("requested").max())

    @property
    def allocated(self) -> int:
        """Allocated bytes at the end."""
        return int(self.curve("allocated")[-1])

    @property
    def active(self) -> int:
        """Active bytes at the end."""
        return int(self.curve("active")[-1])

    @property
    def reserved(self) -> int:
        """Reserved bytes at the end."""
        return int(self.curve("reserved")[-1])

    @cached_property
    def peak_event(self) -> int:
        """The first moment at which allocated is at its peak."""
        return int(self.curve("allocated").argmax())

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
        if isinstance(at, (str, bool)) or not hasattr(at, "__index__"):
            raise ValueError(f'A moment is "peak", "end", "oom" or an int, not {at!r}.')
        m = index(at)
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
        """Ids of the blocks allocated at a moment; their sizes add up to ``curve("allocated")``.

        They are in order of allocation, which is the stack of a `MemView` with ``order="age"``, whatever a view shows.
        """
        m = self.moment(at)
        born, asked = self._columns["alloc_event"], self._columns["free_requested_event"]
        ids: I64 = np.flatnonzero((born < m) & ((asked == -1) | (asked >= m)))
        return ids

    def pending_at(self, at: At) -> I64:
        """Ids of the blocks whose free was requested but not completed at a moment."""
        m = self.moment(at)
        born, asked, died = (self._columns[c] for c in ("alloc_event", "free_requested_event", "free_event"))
        return np.flatnonzero((born < m) & (asked != -1) & (asked < m) & ((died < 0) | (died >= m)))

    @cached_property
    def block_uses(self) -> NDArray[np.uint32]:
        """How many blocks had the same address before, one entry a block."""
        address = self._columns["address"]
        order = np.argsort(address, kind="stable")
        fresh = np.ones(len(order), bool)
        fresh[1:] = address[order][1:] != address[order][:-1]
        position = np.arange(len(order))
        uses = np.zeros(len(order), np.uint32)
        uses[order] = position - np.maximum.accumulate(np.where(fresh, position, 0))
        return uses

    def block_name(self, block: int) -> str:
        """``b<hex>_<use>``, as the official viewer writes it."""
        return f"b{int(self.blocks['address'][self._row(block)]):x}_{int(self.block_uses[block])}"

    def stack(self, block: int, which: Literal["alloc", "free"] = "alloc") -> tuple[Frame, ...]:
        """The stack that made a block, or that freed it; innermost frame first, empty where none was kept."""
        if which not in {"alloc", "free"}:
            raise ValueError(f'A block has an "alloc" and a "free" stack, not {which!r}.')
        stack = int(self.blocks["stack" if which == "alloc" else "free_stack"][self._row(block)])
        return self._frames(stack)

    def _row(self, block: int) -> int:
        # -1 is "none" in all columns; numpy would answer for the last block.
        if isinstance(block, bool) or not hasattr(block, "__index__"):
            raise TypeError(f"A block id is an int, not {block!r}.")
        if not 0 <= block < self.n_blocks:
            raise IndexError(f"Block ids run from 0 to {self.n_blocks - 1:,}; {block:,} is none.")
        return index(block)

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
        return _sites.no_stack_codes(
            self.recording, self._columns["stack"], self._columns["alloc_event"], self.frame_kind
        )

    def no_stack_reason(self, block: int) -> str:
        """One sentence on why a block has no stack; empty if it has one."""
        return NO_STACK[self.no_stack[self._row(block)]]

    # -- the allocator -----------------------------------------------------------------------------------------------

    @property
    def has_reserved(self) -> bool:
        """Whether anything is known of what was reserved, by segments or counters; else ``reserved`` is ``active``."""
        return bool(len(self.segments) or len(self.recording.counters.of(self.device)))

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
        requested = self.blocks["requested"]
        return fragmentation(m, segments, stretches, requested, self._request_at(m), default_pool=self._default_pool)

    @property
    def _default_pool(self) -> int:
        pools = self.recording.pools
        return pools.index((0, 0)) if (0, 0) in pools else -1

    def _request_at(self, m: int) -> Request:
        if m in self.oom_moments:
            pool = int(self.events.pool[m])
            known = pool if pool >= 0 else self._default_pool
            return Request(int(self.events.size[m]), int(self.events.stream[m]), known)
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
        device_free, reserved = int(self.events.address[m]), int(self.curve("reserved")[m])
        return OutOfMemory(
            moment=m,
            requested=int(self.events.size[m]),
            device_free=device_free,
            allocated=int(self.curve("allocated")[m]),
            reserved=reserved,
            free=self.fragmentation_at(m),
            by_site=self.by_site(m),
            by_category=self.by_category(m),
            outside=None if self.capacity is None else max(0, self.capacity - device_free - reserved),
            expandable=bool(self.recording.settings.get("expandable_segments", False)),
        )

    @cached_property
    def growth_despite_room(self) -> tuple[Growth, ...]:
        """Each time memory was reserved although enough lay free in the request's own pool and stream."""
        return growth_despite_room(self.events, self.segments, self.blocks, self._default_pool)

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
        stack = self._columns["stack"]
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
        row = int(self.block_site[self._row(block)])
        return self.frame(row) if row >= 0 else None

    def by_site(self, at: At = "peak") -> Ranking:
        """Live bytes by call site at a moment, largest first."""
        live = self.live_at(at)
        return Ranking(site_rows(self.block_site[live], self._columns["size"][live], self.site_label))

    # -- what blocks were for ----------------------------------------------------------------------------------------

    @property
    def has_labels(self) -> bool:
        """Whether anything is known of what blocks were for, beyond "it was there before"."""
        return bool((self._columns["reason"] > 0).any())

    @property
    def block_label(self) -> I32:
        """Name of each block ("encoder.0.weight", the module that made it), an index into ``recording.strings``; -1."""
        return self._decided.name

    @property
    def forward_stack(self) -> I32:
        """Deep mode: the stack of the forward that each block made in backward belongs to; -1 for none."""
        return self._decided.forward_stack

    def label(self, block: int) -> str:
        """The name of a block: a parameter's, its gradient's, or the module that made it; empty where none is known."""
        row = int(self.block_label[self._row(block)])
        return self.recording.strings[row] if row >= 0 else ""

    def forward_frames(self, block: int) -> tuple[Frame, ...]:
        """Deep mode: the stack of the forward that a block made in backward belongs to; empty where not known."""
        return self._frames(int(self.forward_stack[self._row(block)]))

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

    # -- bands -------------------------------------------------------------------------------------------------------

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """Named ranges as moments, by start; ``depth`` counts the ranges of the same kind around it.

        Steps come from ``rec.step()`` and from the profiler's step marks, else from optimizer steps; phases from
        ``rec.phase()``, and from what the recorder saw: forward, backward, optimizer.
        """
        return named_ranges(self.recording, self.event_times_us) if self.has_time else ()

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

    def to_timeline_html(self, path: str | os.PathLike[str], **options: Any) -> Path:
        """Write memory by category as a page that works offline, as ``export_memory_timeline`` does for ``.html``."""
        from memwidget.show.figures import to_timeline_html

        return to_timeline_html(self, path, **options)

    def to_flamegraph(self, path: str | os.PathLike[str], at: At = "peak") -> Path:
        """Write what is live at a moment as folded stacks, for speedscope and other flame graph tools."""
        from memwidget.show.flamegraph import to_flamegraph

        return to_flamegraph(self, path, at)

    def to_perfetto(self, path: str | os.PathLike[str]) -> Path:
        """Write counters, bands and the largest blocks for ui.perfetto.dev (``.json`` or ``.json.gz``)."""
        from memwidget.show.perfetto import to_perfetto

        return to_perfetto(self, path)

    def to_dataframe(self) -> Any:
        """Every block as a row of a pandas DataFrame: the columns of `blocks`, with words in place of numbers of rows.

        ``site``, ``name``, ``category``, ``reason``, ``phase`` and ``step`` are categoricals; ``stream`` and ``pool``
        are as the allocator has them.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return blocks_frame(self)

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
