"""What was recorded, and nothing else.

Owns the Recording and the declaration of every recorded column: name, dtype, unit, meaning and the value that
stands for "none". It is the leaf of the house: every room may import it, it imports none of them. It must not know
where a recording came from, nor what will be asked of it.

A Recording holds columns, not objects::

    events[device]   one row an allocator event, in the allocator's own order
    segments         one row a segment at the end (any device); segment_blocks are the blocks inside them
    annotations      one row a named time range
    labels           one row a live tensor seen at a sample point; spans: what the code did meanwhile, and when
    saved, uses      deep mode: tensors that autograd kept, with their forward stack, and when backward took them
    operators        torch.profiler's files: what each operator did to memory; counters: what they say is reserved
    stacks           offsets into stack_frames; stack s is stack_frames[stacks[s]:stacks[s + 1]], innermost first
    frames           filename, line, function name as indices into strings
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]

#: Event actions, torch's own words; a column of actions holds indices into this tuple. "other" is an action of a
#: torch that is newer than this list: kept, counted in the notes, and without effect on any sum.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "annotate",
    "other",
)
ACTION = {name: code for code, name in enumerate(ACTIONS)}

#: Block states in a snapshot's segments. torch writes "active_pending_free" and documents "active_awaiting_free".
STATES = ("active_allocated", "active_pending_free", "inactive")

#: What a block was for (design 3.4). Index 10 stands for "not known".
CATEGORIES = (
    "parameter",
    "buffer",
    "gradient",
    "optimizer_state",
    "input",
    "activation",
    "temporary",
    "autograd_detail",
    "output",
    "preexisting",
    "unknown",
)

#: The categories that torch.profiler's memory timelines know, in the order of their columns.
TORCH_CATEGORIES = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)


#: Where a label was sampled: a model or optimizer that was handed over, the notebook's namespace, a module's call, an
#: optimizer's step. "profiler": not sampled, but torch.profiler's own judgement.
SAMPLED = ("given", "namespace", "module", "optimizer", "profiler")

#: What a span is: the outermost module's call, a run of the autograd engine, an optimizer's step, any module's call.
SPANS = ("forward", "backward", "optimizer", "module")
SPAN = {name: code for code, name in enumerate(SPANS)}

#: Span flags: autograd was recording and something required grad.
TRAINS = 1
#: Span flags: it lay within a run of the autograd engine (a recomputed forward, an optimizer step in backward).
IN_BACKWARD = 2

#: ``facts["source"]`` of a file in which an allocation at a live address is the same memory under another name.
RAW_TIMELINE = "torch.profiler raw timeline"


#: The highest device ordinal of a recording. torch's own go to 127; each costs a table.
MAX_DEVICE = 4096
#: Bytes that all events of a device, all segments, or all blocks may come to: sums of sums stay below 2**63, also when
#: each request is rounded up to twice its size.
MAX_TOTAL = 2**61
#: Events up to this one move bytes; the sizes of the others are added to nothing.
LAST_SIZED = ACTION["segment_unmap"]


class SnapshotError(ValueError):
    """A source that cannot be read as a memory recording; the message names the cause and the fix."""


class Column(NamedTuple):
    """Declaration of one column."""

    name: str
    dtype: str
    unit: str
    meaning: str
    none: int | None


def _column(dtype: DTypeLike, meaning: str, unit: str = "", none: int | None = None) -> Any:
    return field(metadata={"dtype": np.dtype(dtype), "meaning": meaning, "unit": unit, "none": none})


@dataclass(eq=False)
class Table:
    """Equally long columns; a subclass declares them once, as fields."""

    def __post_init__(self) -> None:
        length: int | None = None
        for f in fields(self):
            array = np.ascontiguousarray(getattr(self, f.name), dtype=f.metadata["dtype"])
            if length is None:
                length = len(array)
            if array.ndim != 1 or len(array) != length:
                raise ValueError(f"{type(self).__name__}.{f.name}: {length} rows expected, not {array.shape}")
            setattr(self, f.name, array)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    @classmethod
    def columns(cls) -> tuple[Column, ...]:
        """The declared columns, in order."""
        return tuple(
            Column(f.name, f.metadata["dtype"].str, f.metadata["unit"], f.metadata["meaning"], f.metadata["none"])
            for f in fields(cls)
        )

    @classmethod
    def empty(cls, length: int = 0) -> Any:
        """A table of `length` rows, each column filled with its "none" value (0 where it has none)."""
        return cls(**{f.name: np.full(length, f.metadata["none"] or 0, f.metadata["dtype"]) for f in fields(cls)})


@dataclass(eq=False)
class Events(Table):
    """One row an event of one device, in the order in which the allocator wrote them."""

    action: U8 = _column(np.uint8, "index into ACTIONS")
    address: U64 = _column(np.uint64, "start of the block or segment; for oom: bytes the device had free", "address", 0)
    size: I64 = _column(np.int64, "bytes requested; of the segment; oom: rounded request", "bytes")
    stream: I32 = _column(np.int32, "index into Recording.streams", none=-1)
    stack: I32 = _column(np.int32, "stack id", none=-1)
    time_us: I64 = _column(np.int64, "since the Unix epoch", "us", 0)
    pool: I32 = _column(np.int32, "index into Recording.pools", none=-1)
    metadata: I32 = _column(np.int32, "user_metadata, index into strings", none=-1)
    compile_context: I32 = _column(np.int32, "compiled region, index into strings", none=-1)


@dataclass(eq=False)
class Segments(Table):
    """One row a segment (or mapped range of an expandable one) at the end, sorted by device, address."""

    device: I32 = _column(np.int32, "device ordinal")
    address: U64 = _column(np.uint64, "start", "address")
    size: I64 = _column(np.int64, "reserved from the device", "bytes")
    stream: I32 = _column(np.int32, "index into Recording.streams", none=-1)
    pool: I32 = _column(np.int32, "index into Recording.pools", none=-1)
    stack: I32 = _column(np.int32, "stack id of the segment's first allocation", none=-1)
    small: U8 = _column(np.uint8, "1: serves requests up to 1 MiB; 0: larger ones")
    expandable: U8 = _column(np.uint8, "1: a mapped range of an expandable segment")


@dataclass(eq=False)
class SegmentBlocks(Table):
    """One row a block inside a segment at the end of the recording, sorted by segment, address."""

    segment: I32 = _column(np.int32, "row of Segments")
    address: U64 = _column(np.uint64, "start", "address")
    size: I64 = _column(np.int64, "really taken", "bytes")
    requested: I64 = _column(np.int64, "asked for; meaningless where the state is inactive", "bytes")
    state: U8 = _column(np.uint8, "index into STATES")
    stack: I32 = _column(np.int32, "stack id of the allocation", none=-1)


@dataclass(eq=False)
class Annotations(Table):
    """One row a named range, paired from record_function's START and END marks (or recorded as one)."""

    name: I32 = _column(np.int32, "index into strings")
    device: I32 = _column(np.int32, "current device of the thread that opened it", none=-1)
    start_us: I64 = _column(np.int64, "since the Unix epoch; -1 where the START mark is lost", "us", -1)
    end_us: I64 = _column(np.int64, "since the Unix epoch; -1 where the END mark is missing", "us", -1)


@dataclass(eq=False)
class Frames(Table):
    """One row a distinct (file, line, function)."""

    filename: I32 = _column(np.int32, "index into strings")
    line: I32 = _column(np.int32, "line number, 0 where unknown", "line", 0)
    name: I32 = _column(np.int32, "function name, index into strings")
    source: I32 = _column(np.int32, "text of that line, stored at recording; index into strings", none=-1)


@dataclass(eq=False)
class Labels(Table):
    """One row a sample of a live tensor: what it was, and where its storage began."""

    time_us: I64 = _column(np.int64, "when it was alive, since the Unix epoch", "us")
    device: I32 = _column(np.int32, "device ordinal")
    address: U64 = _column(np.uint64, "start of its storage", "address")
    nbytes: I64 = _column(np.int64, "bytes of its storage", "bytes")
    category: U8 = _column(np.uint8, "index into CATEGORIES; unknown: a name alone")
    name: I32 = _column(np.int32, "qualified name, index into strings", none=-1)
    how: U8 = _column(np.uint8, "index into SAMPLED")


@dataclass(eq=False)
class Spans(Table):
    """One row a stretch of time in which the code did something known."""

    kind: U8 = _column(np.uint8, "index into SPANS")
    name: I32 = _column(np.int32, "module path or class, index into strings", none=-1)
    thread: I32 = _column(np.int32, "0 is the thread that recorded; others are numbered as they came")
    start_us: I64 = _column(np.int64, "since the Unix epoch", "us")
    end_us: I64 = _column(np.int64, "since the Unix epoch", "us")
    flags: U8 = _column(np.uint8, "TRAINS, IN_BACKWARD")


@dataclass(eq=False)
class Saved(Table):
    """Deep mode: one row a tensor that autograd saved for backward."""

    time_us: I64 = _column(np.int64, "since the Unix epoch", "us")
    device: I32 = _column(np.int32, "device ordinal; -1 for memory that is not recorded", none=-1)
    address: U64 = _column(np.uint64, "start of its storage", "address", 0)
    stack: I32 = _column(np.int32, "forward stack, stack id", none=-1)


@dataclass(eq=False)
class Uses(Table):
    """Deep mode: what backward was at. A row when it takes a saved tensor back whose stack is not the last one's.

    Operators that save nothing take nothing back; where one made a saved tensor, a row tells when it runs.
    """

    time_us: I64 = _column(np.int64, "since the Unix epoch", "us")
    saved: I32 = _column(np.int32, "row of Saved; ~row for the operator that made that tensor")


@dataclass(eq=False)
class Operators(Table):
    """One row an operator (or named range) and device, as torch.profiler saw them."""

    device: I32 = _column(np.int32, "device ordinal")
    name: I32 = _column(np.int32, "index into strings")
    calls: I64 = _column(np.int64, "how often it ran, whatever the device")
    allocations: I64 = _column(np.int64, "made by it or by what it called")
    increase: I64 = _column(np.int64, "allocated minus freed, by it or by what it called", "bytes")
    self_increase: I64 = _column(np.int64, "the same without what it called", "bytes")


@dataclass(eq=False)
class Counters(Table):
    """One row a change of a counter that the source itself kept, where segments are not in it."""

    device: I32 = _column(np.int32, "device ordinal")
    event: I32 = _column(np.int32, "the event that the count belongs to, a row of that device's events")
    reserved: I64 = _column(np.int64, "reserved from the device after it", "bytes")

    def of(self, device: int) -> Counters:
        """The rows of one device."""
        mine = self.device == device
        return Counters(device=self.device[mine], event=self.event[mine], reserved=self.reserved[mine])


@dataclass(eq=False)
class Recording:
    """What one source held, all devices together.

    Attributes
    ----------
    name : str
        What to call it: the file's stem, or the name given to memtrace.
    device_type : str
        "cuda" (ROCm too), "xpu" or "cpu".
    events : dict of int to Events
        By device ordinal; a device without history has no entry or an empty table.
    stacks : ndarray of int32, shape (n_stacks + 1,)
        Offsets into `stack_frames`, whose entries are rows of `frames`, innermost frame first.
    streams : list of int
        Raw stream pointers; 0 is the default stream. Python ints: they may pass 2**63.
    pools : list of (int, int)
        (0, 0) is the default pool; (n, 0) a graph capture's private pool; (0, n) a MemPool's.
    capacities : dict of int to int
        Bytes a device has, by ordinal; kept by our recorder and archive, in no torch snapshot.
    settings : dict of str to plain values
        The allocator's settings as torch wrote them; empty when unknown.
    facts : dict of str to plain values
        Of the recording itself: "torch", "device_name", "stacks", "context", "max_entries", "started_us",
        "cell" and what recording cost ("seconds_...") where known. "history" is "none" where the source has
        segments but was never recorded. "sizes" is "taken" where the events' sizes are those of whole blocks, as
        torch.profiler's are, and not those that were requested.
    notes : list of str
        What the source could not tell, each one plain sentence.
    """

    name: str = ""
    device_type: str = "cuda"
    events: dict[int, Events] = field(default_factory=dict)
    segments: Segments = field(default_factory=Segments.empty)
    segment_blocks: SegmentBlocks = field(default_factory=SegmentBlocks.empty)
    annotations: Annotations = field(default_factory=Annotations.empty)
    labels: Labels = field(default_factory=Labels.empty)
    spans: Spans = field(default_factory=Spans.empty)
    saved: Saved = field(default_factory=Saved.empty)
    uses: Uses = field(default_factory=Uses.empty)
    operators: Operators = field(default_factory=Operators.empty)
    counters: Counters = field(default_factory=Counters.empty)
    frames: Frames = field(default_factory=Frames.empty)
    stacks: I32 = field(default_factory=lambda: np.zeros(1, np.int32))
    stack_frames: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    strings: list[str] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    pools: list[tuple[int, int]] = field(default_factory=list)
    capacities: dict[int, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def devices(self) -> tuple[int, ...]:
        """Ordinals that have events or segments, ascending."""
        found = {device for device, events in self.events.items() if len(events)}
        return tuple(sorted(found | {int(d) for d in np.unique(self.segments.device)}))

    @property
    def n_stacks(self) -> int:
        """Number of distinct stacks."""
        return len(self.stacks) - 1
