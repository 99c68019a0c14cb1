"""A trace as a header and binary columns, as the browser gets it.

Owns the wire: its version, every column's name, type and order, and which strings travel. js/src/wire.ts reads it and
tests/golden holds examples that both sides are tested with. It must not know how the payload travels: view.py sends it
as a message, export.py writes it into a page.

One payload is one device. Moments and event indices are those of `Trace`; stacks, frames and strings are renumbered,
so that only what this device's blocks use travels.
"""

from __future__ import annotations

import json
import linecache
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memwidget.answer.finding import cell_names
from memwidget.answer.oom import explain
from memwidget.show.palette import NO_COLOR, PHASES, palette_with, site_color
from memwidget.show.text import without_history
from memwidget.trace.sites import USER, site_labels
from memwidget.trace.trace import NO_STACK

if TYPE_CHECKING:
    from memwidget.trace.trace import Trace

WIRE_VERSION = 1

#: Strings are names, paths and source lines; 2,000 characters show any of them. The total keeps a page of a hostile
#: file, or one with a label on each of a million allocations, from growing without end.
MAX_STRING = 2_000
MAX_STRINGS_BYTES = 8 << 20
#: A program that catches its errors may run out of memory at every step; the first of them tell the story.
MAX_OOMS = 100
#: Most lines looked up in files: far above the distinct user lines of real recordings (tens to hundreds).
MAX_LOOKUPS = 2_000

_BAND_KINDS = {"annotation": 0, "phase": 1, "step": 2}
_DTYPES: dict[str, np.dtype[Any]] = {
    "f8": np.dtype("<f8"),
    "i4": np.dtype("<i4"),
    "u4": np.dtype("<u4"),
    "u1": np.dtype("u1"),
}

Array = NDArray[Any]


class Payload(NamedTuple):
    """What travels: a header that json can write, and one buffer a column in the header's order."""

    header: dict[str, Any]
    buffers: list[memoryview]


def payload(trace: Trace, *, read_sources: bool = False) -> Payload:
    """Header and columns of one device.

    Parameters
    ----------
    trace : Trace
    read_sources : bool
        Look lines of the user's code up in the files of this machine where the recording did not store them. Only for
        a view in a notebook: a page that is passed on must not pick up text that a stranger's recording points to.

    Returns
    -------
    Payload
        The buffers are little endian and may share memory with the trace.
    """
    strings, used = _Strings(trace.recording.strings), _used_stacks(trace)
    columns: list[tuple[str, str, Array]] = []
    columns += _event_columns(trace)
    phases, phase = phases_of(trace)
    columns += _block_columns(trace, strings, used, phase)
    columns += _loose_columns(trace, used)
    columns += _segment_columns(trace, used)
    columns += _stack_columns(trace, strings, used, read_sources=read_sources)
    columns += _curve_columns(trace)
    columns += _band_columns(trace, strings)

    described, buffers = [], []
    for name, dtype, values in columns:
        array = np.ascontiguousarray(values, _DTYPES[dtype])
        described.append({"name": name, "dtype": dtype, "length": len(array)})
        # An empty array cannot be cast; its buffer travels all the same, so that places stay in step.
        buffers.append(array.data.cast("B") if len(array) else memoryview(b""))
    header = _header(trace, phases)
    header["phases"] = [strings.add(name) for name in phases]
    header["strings"] = strings.texts
    header["columns"] = described
    if strings.dropped:
        header["notes"].append(
            f"{strings.dropped:,} texts are left out of the picture: names, source lines and labels "
            f"come to more than {MAX_STRINGS_BYTES >> 20} MiB."
        )
    return Payload(header, buffers)


def _header(trace: Trace, phases: list[str]) -> dict[str, Any]:
    events, times = trace.events, trace.event_times_us
    return {
        "wire": WIRE_VERSION,
        "name": text(trace.name),
        "device": int(trace.device),
        "device_type": text(trace.device_type),
        # Only this device's peak: the others' would each cost a reduction that nobody has asked for yet.
        "devices": [
            {"device": int(d), "peak_allocated": int(trace.peak_allocated) if d == trace.device else None}
            for d in trace.devices
        ],
        "capacity": None if trace.capacity is None else int(trace.capacity),
        "n_events": int(trace.n_events),
        "n_blocks": int(trace.n_blocks),
        "peak_allocated": int(trace.peak_allocated),
        "peak_active": int(trace.peak_active),
        # 0, as the column is empty, where nothing is known of it.
        "peak_reserved": int(trace.peak_reserved) if trace.has_reserved else 0,
        "peak_requested": int(trace.peak_requested),
        "allocated": int(trace.allocated),
        "active": int(trace.active),
        "reserved": int(trace.reserved) if trace.has_reserved else 0,
        "peak_event": int(trace.peak_event),
        "oom": [
            {
                "moment": int(m),
                "requested": int(events.size[m]),
                "device_free": int(events.address[m]),
                "said": [text(sentence) for sentence in explain(trace.out_of_memory(m))],
            }
            for m in trace.oom_moments[:MAX_OOMS]
        ],
        "start_us": int(times[0]) if trace.has_time and len(times) else 0,
        "has_time": bool(trace.has_time),
        "no_history": without_history(trace),
        "notes": [text(note) for note in trace.notes],
        "streams": stream_labels(trace.recording.streams),
        "pools": [pool_label(pool) for pool in trace.recording.pools],
        "settings": plain_json(trace.recording.settings),
        "facts": plain_json(trace.recording.facts),
        "no_stack": {f"reason_{code}": reason for code, reason in enumerate(NO_STACK)},
        "categories": [text(name) for name in trace.categories],
        "has_labels": trace.has_labels,
        "palette": palette_with(trace.categories, phases),
    }


def stream_labels(streams: list[int]) -> list[str]:
    """Names of the streams: the default one, the others by number and pointer."""
    labels, number = [], 0
    for pointer in streams:
        if pointer == 0:
            labels.append("default")
        else:
            number += 1
            labels.append(f"stream {number} (0x{pointer:x})")
    return labels


def pool_label(pool: tuple[int, int]) -> str:
    """Name of a pool: a graph capture's is (n, 0), a MemPool's (0, n)."""
    first, second = pool
    kind = "graph" if second == 0 else "MemPool" if first == 0 else "pool"
    return "default" if (first, second) == (0, 0) else f"{kind} ({first}, {second})"


def _event_columns(trace: Trace) -> list[tuple[str, str, Array]]:
    columns: list[tuple[str, str, Array]] = [("action", "u1", trace.events.action)]
    if trace.has_time:
        times = trace.event_times_us
        columns.append(("time_us", "f8", times - times[0]))
    return columns


def _loose_columns(trace: Trace, used: Array) -> list[tuple[str, str, Array]]:
    """Events that no block tells of: segments coming and going, failures, snapshots, frees of nothing.

    All others are the alloc, the request or the completion of a block, whose columns say the rest.
    """
    events, at = trace.events, _loose(trace)
    address = events.address[at]
    return [
        ("loose_event", "i4", at),
        ("loose_size", "f8", events.size[at]),
        ("loose_address_lo", "u4", address & np.uint64(0xFFFFFFFF)),
        ("loose_address_hi", "u4", address >> np.uint64(32)),
        ("loose_stream", "i4", events.stream[at]),
        ("loose_pool", "i4", events.pool[at]),
        ("loose_stack", "i4", _renumber(events.stack[at], used)),
    ]


def _loose(trace: Trace) -> Array:
    told = np.zeros(trace.n_events, bool)
    for column in ("alloc_event", "free_requested_event", "free_event"):
        rows = trace.blocks[column]
        told[rows[rows >= 0]] = True
    return np.flatnonzero(~told)


def _segment_columns(trace: Trace, used: Array) -> list[tuple[str, str, Array]]:
    segments = trace.segments
    return [
        ("seg_address_lo", "u4", segments["address"] & np.uint64(0xFFFFFFFF)),
        ("seg_address_hi", "u4", segments["address"] >> np.uint64(32)),
        ("seg_size", "f8", segments["size"]),
        ("seg_stream", "i4", segments["stream"]),
        ("seg_pool", "i4", segments["pool"]),
        ("seg_kind", "u1", segments["kind"]),
        ("seg_alloc_event", "i4", segments["alloc_event"]),
        ("seg_free_event", "i4", segments["free_event"]),
        ("seg_stack", "i4", _renumber(segments["stack"], used)),
    ]


def _block_columns(trace: Trace, strings: _Strings, used: Array, phase: Array) -> list[tuple[str, str, Array]]:
    blocks, address = trace.blocks, trace.blocks["address"]
    metadata = np.full(len(blocks), -1, np.int32)
    seen = blocks["alloc_event"] >= 0
    metadata[seen] = trace.events.metadata[blocks["alloc_event"][seen]]
    return [
        ("size", "f8", blocks["size"]),
        ("requested", "f8", blocks["requested"]),
        ("alloc_event", "i4", blocks["alloc_event"]),
        ("free_requested_event", "i4", blocks["free_requested_event"]),
        ("free_event", "i4", blocks["free_event"]),
        ("stack", "i4", _renumber(blocks["stack"], used)),
        ("free_stack", "i4", _renumber(blocks["free_stack"], used)),
        ("stream", "i4", blocks["stream"]),
        ("pool", "i4", blocks["pool"]),
        ("category", "u1", blocks["category"]),
        ("reason", "u1", blocks["reason"]),
        ("phase", "i4", phase),
        ("step", "i4", _band_names(trace, blocks["step"], strings)),
        ("flags", "u1", blocks["flags"]),
        ("address_lo", "u4", address & np.uint64(0xFFFFFFFF)),
        ("address_hi", "u4", address >> np.uint64(32)),
        ("use", "u4", trace.block_uses),
        ("metadata", "i4", strings.take(metadata)),
        ("no_stack", "u1", trace.no_stack),
        ("label", "i4", strings.take(trace.block_label)),
        ("forward_stack", "i4", _renumber(trace.forward_stack, used)),
    ]


def phases_of(trace: Trace) -> tuple[list[str], Array]:
    """Names of the phases that made blocks, and the place of each block's among them, -1 for none.

    First those of a training step, in its order, then the user's own in order of beginning.
    """
    rows = trace.blocks["phase"]
    names = list(dict.fromkeys(trace.bands[row].name for row in np.unique(rows[rows >= 0]).tolist()))
    order = list(PHASES)
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    place = {name: i for i, name in enumerate(names)}
    return names, np.array([place.get(band.name, -1) for band in trace.bands] + [-1], np.int32)[rows]


def _band_names(trace: Trace, rows: Array, strings: _Strings) -> Array:
    names = np.array([strings.add(band.name) for band in trace.bands] + [-1], np.int32)
    return names[rows]


def _used_stacks(trace: Trace) -> Array:
    blocks = trace.blocks
    mask = np.zeros(trace.recording.n_stacks + 1, bool)  # the last entry takes the -1s
    mask[blocks["stack"]] = True
    mask[trace.forward_stack] = True
    mask[blocks["free_stack"]] = True
    mask[trace.segments["stack"]] = True
    mask[trace.events.stack[_loose(trace)]] = True
    return np.flatnonzero(mask[:-1])


def _renumber(values: Array, used: Array) -> Array:
    # Every value >= 0 stands in `used`, which is sorted.
    return np.where(values >= 0, np.searchsorted(used, values), -1)


def _stack_columns(trace: Trace, strings: _Strings, used: Array, *, read_sources: bool) -> list[tuple[str, str, Array]]:
    recording, frames = trace.recording, trace.recording.frames
    starts = recording.stacks[used].astype(np.int64)
    lengths = recording.stacks[used + 1] - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # Row i of the joined frames is row i - offset of its stack.
    rows = recording.stack_frames[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]
    sites = trace.stack_site[used]
    used_frames = np.unique(np.concatenate([rows, sites[sites >= 0]]))
    is_site = np.isin(used_frames, sites)
    users = used_frames[~is_site & (trace.frame_kind[used_frames] == USER)]
    # The tree of what is live also names the user's lines that only lead to a call site.
    leading = site_labels(recording, users, cell_names(trace))
    labels = [
        strings.add(trace.site_label(row)) if named else strings.add(leading[row]) if row in leading else -1
        for row, named in zip(used_frames.tolist(), is_site.tolist(), strict=True)
    ]
    colors = {
        int(row): site_color(
            recording.strings[frames.filename[row]],
            int(frames.line[row]),
            recording.strings[frames.name[row]],
            recording.strings[frames.source[row]] if frames.source[row] >= 0 else None,
        )
        for row in np.unique(sites[sites >= 0])
    }
    source = strings.take(frames.source[used_frames])
    looked_up = np.zeros(len(used_frames), np.uint8)
    if read_sources:
        for i in np.flatnonzero((source < 0) & (trace.frame_kind[used_frames] == 0))[:MAX_LOOKUPS].tolist():
            line = _line_of(trace.recording.strings[frames.filename[used_frames[i]]], int(frames.line[used_frames[i]]))
            if line:
                source[i], looked_up[i] = strings.add(line), 1
    return [
        ("stack_offset", "i4", offsets),
        ("stack_frame", "i4", _renumber(rows, used_frames)),
        ("stack_site", "i4", _renumber(sites, used_frames)),
        ("stack_color", "u1", np.array([colors.get(int(site), NO_COLOR) for site in sites], np.uint8)),
        ("frame_file", "i4", strings.take(frames.filename[used_frames])),
        ("frame_line", "i4", frames.line[used_frames]),
        ("frame_name", "i4", strings.take(frames.name[used_frames])),
        ("frame_source", "i4", source),
        ("frame_source_now", "u1", looked_up),
        ("frame_label", "i4", np.array(labels, np.int32)),
        ("frame_kind", "u1", trace.frame_kind[used_frames]),
    ]


def _line_of(filename: str, line: int) -> str:
    """Text of a line of Python on this machine, empty where there is none."""
    if not filename.endswith(".py") or "\0" in filename:
        return ""
    return linecache.getline(filename, line).strip()


def _curve_columns(trace: Trace) -> list[tuple[str, str, Array]]:
    reserved = trace.curve("reserved")[: None if trace.has_reserved else 0]
    steps = np.concatenate([[0], np.flatnonzero(np.diff(reserved)) + 1])[: len(reserved)]
    return [("reserved_moment", "i4", steps), ("reserved", "f8", reserved[steps])]


def _band_columns(trace: Trace, strings: _Strings) -> list[tuple[str, str, Array]]:
    bands = trace.bands
    return [
        ("band_kind", "u1", np.array([_BAND_KINDS[band.kind] for band in bands], np.uint8)),
        ("band_name", "i4", np.array([strings.add(band.name) for band in bands], np.int32)),
        ("band_lo", "i4", np.array([band.lo for band in bands], np.int32)),
        ("band_hi", "i4", np.array([band.hi for band in bands], np.int32)),
        ("band_depth", "u1", np.array([min(band.depth, 255) for band in bands], np.uint8)),
    ]


class _Strings:
    """The strings that travel, each once, within `MAX_STRINGS_BYTES`."""

    def __init__(self, source: list[str]) -> None:
        self.texts: list[str] = []
        self.dropped = 0
        self._source = source
        self._rows: dict[str, int] = {}
        self._bytes = 0

    def add(self, value: str) -> int:
        """Row of a text; the row of an ellipsis once the room is used up."""
        short = text(value)
        row = self._rows.get(short)
        if row is not None:
            return row
        size = len(short.encode())
        if self._bytes + size > MAX_STRINGS_BYTES and short != "…":
            self.dropped += 1
            return self.add("…")
        self._bytes += size
        self._rows[short] = row = len(self.texts)
        self.texts.append(short)
        return row

    def take(self, indices: Array) -> Array:
        """Rows of the recording's strings `indices`; -1 stays -1."""
        unique, inverse = np.unique(indices, return_inverse=True)
        rows = np.array([self.add(self._source[i]) if i >= 0 else -1 for i in unique.tolist()], np.int32)
        return rows[inverse] if len(rows) else np.zeros(0, np.int32)


def text(value: str, limit: int = MAX_STRING) -> str:
    """A string that every JSON writer and reader takes: at most `limit` long, without lone surrogates."""
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode()
    return value


def plain_json(value: Any, depth: int = 4) -> Any:
    """`value` as plain JSON values, bounded: what a file says of itself may hold anything."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, np.integer)):
        # JavaScript counts exactly up to 2**53; what is beyond travels as text, in hex because Python refuses to
        # write more than 4,300 decimal digits.
        return int(value) if abs(int(value)) <= 1 << 53 else text(f"{int(value):#x}", 200)
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return text(value)
    if depth and isinstance(value, dict):
        return {text(str(k), 200): plain_json(v, depth - 1) for k, v in list(value.items())[:200]}
    if depth and isinstance(value, (list, tuple)):
        return [plain_json(v, depth - 1) for v in value[:200]]
    return text(str(value), 200)


def to_json(value: Any) -> str:
    """JSON that may stand inside an HTML script element: no ``<``, no line separators, no NaN."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return written
