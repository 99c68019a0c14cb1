"""torch's snapshot dict, every layout -> Recording.

Owns what the fields of a snapshot mean, since the first torch that wrote one: there is no version key in the files, so
features are told by the presence of keys. Required fields of a wrong type are a `SnapshotError` that names the field;
what is unknown is kept out and named in one note.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.read.events import MAX_KEYS, Rows, plain_rows
from memwidget.read.intern import Tables, wrong
from memwidget.read.unpickle import Run
from memwidget.recording import (
    ACTIONS,
    I64,
    LAST_SIZED,
    MAX_DEVICE,
    MAX_TOTAL,
    STATES,
    Annotations,
    Events,
    Recording,
    SegmentBlocks,
    Segments,
    SnapshotError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwidget.read.bulk import Bulk

#: No device has 8 PiB; past 2**53 a browser's numbers would no longer be exact.
MAX_BYTES = 2**53

_TOP_KEYS = {
    "segments",
    "device_traces",
    "allocator_settings",
    "external_annotations",
    "host_segments",
    "host_traces",
    "trace_alloc_max_entries",
    "trace_alloc_overflowed",
    # The official viewer adds these.
    "categories",
    "block_version",
    "segment_version",
}
_SEGMENT_KEYS = {
    "device",
    "address",
    "total_size",
    "allocated_size",
    "active_size",
    "requested_size",
    "stream",
    "segment_type",
    "segment_pool_id",
    "pool_id",
    "is_expandable",
    "frames",
    "blocks",
    "registration_counter",
}
_BLOCK_KEYS = {"address", "addr", "size", "requested_size", "state", "frames", "history"}
#: torch documents "active_awaiting_free" and writes "active_pending_free".
_STATE = {**{name: code for code, name in enumerate(STATES)}, "active_awaiting_free": 1}
#: What a build without recording leaves behind: one stale event a device.
_STRAY = {"free_completed", "segment_free", "snapshot"}
_CHUNK = 1 << 13  # events whose dicts stay in the cache from one field to the next


def recording_from_snapshot(
    snapshot: object,
    *,
    name: str = "",
    max_rows: int | None = None,
    bulk: Bulk | None = None,
    progress: Callable[[float], None] | None = None,
) -> Recording:
    """Turn torch's snapshot into a Recording.

    Parameters
    ----------
    snapshot : dict or list
        What ``torch.cuda.memory._snapshot()`` returns, or the bare list of segments of ``memory_snapshot()``. It is
        neither changed nor kept.
    name : str
        What to call the recording.
    max_rows : int, optional
        More events, segments and blocks than this are refused: a small file can name one list a million times.
    bulk : Bulk, optional
        What a `Run` in a trace stands for.
    progress : callable, optional
        Called with the fraction of the events done.

    Raises
    ------
    SnapshotError
        Where it is no snapshot, or a required field has a wrong type.
    """
    if isinstance(snapshot, (list, tuple)):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not ("segments" in snapshot or "device_traces" in snapshot):
        raise SnapshotError(
            "This is no memory snapshot, as it has neither segments nor device_traces: "
            "use what torch.cuda.memory._dump_snapshot() or _snapshot() gives."
        )
    try:
        with no_collector():
            return _Reading(snapshot, name, max_rows, bulk, progress).recording()
    except (MemoryError, RecursionError) as error:
        raise SnapshotError("The snapshot needs more memory than there is; read it on a larger machine.") from error


@contextmanager
def no_collector() -> Iterator[None]:
    """No garbage collection meanwhile: it would walk millions of new objects again and again (3 to 5 times slower)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Reading:
    def __init__(
        self,
        snapshot: dict[str, Any],
        name: str,
        max_rows: int | None,
        bulk: Bulk | None,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.snapshot = snapshot
        self.result = Recording(name=name)
        self.tables = Tables()
        self.rows_left = max_rows
        self.bulk = bulk
        self.progress = progress
        self.streams: dict[str, Any] = {}
        self.no_stream: dict[str, Any] = {}
        self.unknown: set[str] = set()
        self.unknown_actions: set[str] = set()

    def recording(self) -> Recording:
        result = self.result
        self._segments(_listed(self.snapshot, "segments"))
        self._traces(_listed(self.snapshot, "device_traces"))
        self._annotations(_listed(self.snapshot, "external_annotations"))
        self._settings()
        self._history()
        self.tables.finish(result, self.streams, self.no_stream)
        self._notes()
        return result

    def _spend(self, rows: int) -> None:
        if self.rows_left is not None:
            self.rows_left -= rows
            if self.rows_left < 0:
                raise SnapshotError(
                    "The file is damaged or hostile, as it names more events than fit into it; "
                    "record the snapshot again."
                )

    # Segments.

    def _segments(self, segments: list[Any] | tuple[Any, ...]) -> None:
        self._spend(len(segments))
        table = []
        streams = []
        blocks: list[tuple[int, ...]] = []
        for i, segment in enumerate(segments):
            where = f"segments[{i}]"
            if not isinstance(segment, dict):
                raise wrong(where, "a dict", segment)
            self._unknown(segment, _SEGMENT_KEYS, "segments")
            size = _number(segment, "total_size", where, MAX_BYTES)
            address = _address(segment, "address", where)
            pool = segment.get("segment_pool_id", segment.get("pool_id"))
            kind = segment.get("segment_type")
            streams.append(_address(segment, "stream", where, 0))
            row = (
                _number(segment, "device", where, MAX_DEVICE, 0),
                address,
                size,
                -1,
                -1 if pool is None else self.tables.pool(pool, f"{where}.segment_pool_id"),
                self.tables.stack(segment.get("frames"), f"{where}.frames"),
                kind == "small" if kind is not None else size == 2 << 20,
                bool(segment.get("is_expandable", False)),
            )
            table.append(row)
            self._blocks(blocks, i, _listed(segment, "blocks", f"{where}."), address, where)
        self._sort_segments(table, blocks, streams)

    def _blocks(self, out: list[tuple[int, ...]], segment: int, blocks: Any, address: int, where: str) -> None:
        self._spend(len(blocks))
        for j, block in enumerate(blocks):
            here = f"{where}.blocks[{j}]"
            if not isinstance(block, dict):
                raise wrong(here, "a dict", block)
            self._unknown(block, _BLOCK_KEYS, "blocks")
            size = _number(block, "size", here, MAX_BYTES)
            state = block.get("state")
            if type(state) is not str:
                raise wrong(f"{here}.state", "text", state)
            if state not in _STATE:
                self.unknown.add(f"block state {state[:40]}")
            frames, requested = block.get("frames"), block.get("requested_size")
            history = block.get("history")
            if history:  # until torch 2.0; the first entry is the latest use
                if not isinstance(history, (list, tuple)) or not isinstance(history[0], dict):
                    raise wrong(f"{here}.history", "a list of dicts", history)
                frames = history[0].get("frames") if frames is None else frames
                requested = history[0].get("real_size") if requested is None else requested
            if requested is None:
                requested = size
            if type(requested) is not int or not 0 <= requested <= MAX_BYTES:
                raise wrong(f"{here}.requested_size", "a number of bytes", requested)
            # Files from before 2.1 give no addresses: the blocks cover their segment without gaps.
            address = _address(block, "address", here, address)
            out.append(
                (
                    segment,
                    address,
                    size,
                    requested,
                    _STATE.get(state, 0 if state.startswith("active") else 2),
                    self.tables.stack(frames, f"{here}.frames"),
                )
            )
            address = min(address + size, 2**64 - 1)

    def _sort_segments(self, table: list[Any], blocks: list[tuple[int, ...]], streams: list[int]) -> None:
        columns: list[Any] = list(zip(*table, strict=True)) if table else [[]] * 8
        for sizes in (columns[2], [block[2] for block in blocks], [block[3] for block in blocks]):
            _check_total(np.array(sizes, np.int64), "segments")
        order = np.lexsort((np.array(columns[1], np.uint64), np.array(columns[0], np.int32)))
        names = [column.name for column in Segments.columns()]
        dtypes = [column.dtype for column in Segments.columns()]
        self.result.segments = Segments(
            **{name: np.array(c, dtype)[order] for name, dtype, c in zip(names, dtypes, columns, strict=True)}
        )
        self.streams["segments"] = np.array(streams, np.uint64)[order]
        place = np.empty(len(order), np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        columns = list(zip(*blocks, strict=True)) if blocks else [[]] * 6
        segment = place[np.array(columns[0], np.int32)]
        order = np.lexsort((np.array(columns[1], np.uint64), segment))
        names = [column.name for column in SegmentBlocks.columns()]
        dtypes = [column.dtype for column in SegmentBlocks.columns()]
        arrays = {name: np.array(c, dtype)[order] for name, dtype, c in zip(names, dtypes, columns, strict=True)}
        arrays["segment"] = segment[order]
        self.result.segment_blocks = SegmentBlocks(**arrays)

    # Events.

    def _traces(self, traces: list[Any] | tuple[Any, ...]) -> None:
        counts = []
        if len(traces) > MAX_DEVICE + 1:
            raise SnapshotError(
                f"The snapshot names {len(traces):,} devices, more than any machine has; record the snapshot again."
            )
        for device, trace in enumerate(traces):
            if not isinstance(trace, (list, tuple)):
                raise wrong(f"device_traces[{device}]", "a list of events", trace)
            self._spend(len(trace) + 1)  # before they are walked: one trace may be named a million times
            more = sum(item.last - item.first - 1 for item in trace if type(item) is Run)
            self._spend(more)
            counts.append(len(trace) + more)
        done = 0
        for device, (trace, n) in enumerate(zip(traces, counts, strict=True)):
            if not n:
                continue
            rows = Rows.empty(n)
            self._plain(rows, trace, f"device_traces[{device}]", done, sum(counts))
            if self.bulk is not None:
                self._note(self.bulk.fill(rows, trace, self.tables, f"device_traces[{device}]"))
            done += n
            self._add_events(device, rows)

    def _plain(self, rows: Rows, trace: Any, where: str, done: int, total: int) -> None:
        """Fill in the events that are there as dicts; runs are `Bulk.fill`'s."""
        at = 0
        for lo in range(0, len(trace), _CHUNK):
            chunk = trace[lo : lo + _CHUNK]
            places: list[int] | range
            if Run in map(type, chunk):
                places = []
                for item in chunk:
                    if type(item) is Run:
                        at += item.last - item.first
                    else:
                        places.append(at)
                        at += 1
                chunk = [item for item in chunk if type(item) is not Run]
            else:
                places = range(at, at + len(chunk))
                at += len(chunk)
            if not chunk:
                continue
            self._note(plain_rows(rows, chunk, places, self.tables, where))
            if self.progress is not None:
                self.progress((done + at) / total)

    def _note(self, unknown: tuple[set[str], set[str]]) -> None:
        keys, actions = unknown
        self.unknown |= {f"{key} in events" for key in keys}
        self.unknown_actions |= actions

    def _add_events(self, device: int, rows: Rows) -> None:
        where = f"device_traces[{device}]"
        for column, low, field in ((rows.size, 0, "size"), (rows.time_us, 0, "time_us")):
            bad = (column < low) | (column > MAX_BYTES)
            if bad.any():
                i = int(bad.argmax())
                raise wrong(f"{where}[{i}].{field}", "a number of its kind", int(column[i]))
        _check_total(rows.size[rows.action <= LAST_SIZED], where)
        self.streams[f"events {device}"] = rows.stream
        self.no_stream[f"events {device}"] = rows.no_stream
        self.result.events[device] = Events(
            action=rows.action,
            address=rows.address,
            size=rows.size,
            stream=np.zeros(len(rows.action), np.int32),
            stack=rows.stack,
            time_us=rows.time_us,
            pool=rows.pool,
            metadata=rows.metadata,
            compile_context=rows.compile_context,
        )

    # The rest.

    def _annotations(self, marks: list[Any] | tuple[Any, ...]) -> None:
        self._spend(len(marks))
        table: list[list[int]] = []
        open_: dict[tuple[int, int], list[int]] = {}
        for i, mark in enumerate(marks):
            where = f"external_annotations[{i}]"
            if not isinstance(mark, dict):
                raise wrong(where, "a dict", mark)
            self._unknown(mark, {"name", "stage", "device", "time_us"}, "annotations")
            name = self.tables.string(mark.get("name"), f"{where}.name")
            device = _number(mark, "device", where, 2**31 - 1, 0)
            time = _number(mark, "time_us", where, MAX_BYTES)
            stage = mark.get("stage")
            waiting = open_.setdefault((name, device), [])
            if stage == "START":
                waiting.append(len(table))
                table.append([name, device, time, -1])
            elif stage == "END" and waiting:
                table[waiting.pop()][3] = time
            elif stage == "END":
                table.append([name, device, -1, time])
            else:
                raise wrong(f"{where}.stage", "START or END", stage)
        columns = np.array(table, np.int64).reshape(-1, 4).T
        self.result.annotations = Annotations(*columns)

    def _settings(self) -> None:
        settings = self.snapshot.get("allocator_settings")
        if isinstance(settings, dict):
            for key, value in list(settings.items())[:1000]:
                if isinstance(value, dict):
                    plain = {k: v for k, v in list(value.items())[:1000] if type(k) is str and _is_plain(v)}
                    self.result.settings[str(key)] = plain
                elif type(key) is str and _is_plain(value):
                    self.result.settings[key] = value
        for source in (self.snapshot, settings if isinstance(settings, dict) else {}):
            limit = source.get("trace_alloc_max_entries")
            if type(limit) is int and 0 < limit < 2**63 - 1:
                self.result.facts["max_entries"] = limit

    def _history(self) -> None:
        """Tell a recording from what a build without one leaves behind: at most one stale event a device."""
        result, notes = self.result, self.result.notes
        stray = all(len(events) == 1 and ACTIONS[int(events.action[0])] in _STRAY for events in result.events.values())
        if stray and len(result.segments):
            result.events = {}
            result.facts["history"] = "none"
            notes.append(
                "The history was not recorded: only the memory that was held when the snapshot was taken is known. "
                "Record with %%memtrace, or call torch.cuda.memory._record_memory_history() first."
            )
        elif not result.events:
            notes.append("The snapshot is empty: it has no segments and no events.")
        elif not len(result.segments):
            notes.append("The snapshot has no segments: what was there before the first event is not known.")

    def _notes(self) -> None:
        notes = self.result.notes
        if self.unknown_actions:
            names = _some(self.unknown_actions)
            notes.append(f"Events of a kind that this version does not know are left out of every sum: {names}.")
        if self.snapshot.get("host_segments") or any(_listed(self.snapshot, "host_traces")):
            notes.append("The snapshot also covers pinned host memory, which is not shown.")
        self._unknown(self.snapshot, _TOP_KEYS, "the snapshot")
        if self.unknown:
            notes.append(f"The snapshot holds more than this version uses: {_some(self.unknown)}.")

    def _unknown(self, found: dict[str, Any], known: set[str], where: str) -> None:
        if len(found) > MAX_KEYS:
            raise wrong(where, f"dicts of at most {MAX_KEYS} keys", found)
        if not found.keys() <= known:
            self.unknown |= {f"{str(key)[:40]} in {where}" for key in found.keys() - known}


def _check_total(sizes: I64, where: str) -> None:
    if float(sizes.sum(dtype=np.float64)) > MAX_TOTAL:
        raise SnapshotError(f"The sizes in {where} add up to more than any device moves; record the snapshot again.")


def _some(names: set[str]) -> str:
    listed = sorted("".join(c if c.isprintable() else "?" for c in name)[:80] for name in names)
    more = f" and {len(listed) - 8} more" if len(listed) > 8 else ""
    return ", ".join(listed[:8]) + more


def _is_plain(value: object) -> bool:
    return value is None or type(value) in {bool, int, float, str}


def _listed(found: dict[str, Any], key: str, where: str = "") -> list[Any] | tuple[Any, ...]:
    """A list that may be missing."""
    value = found.get(key)
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise wrong(where + key, "a list", value)
    return value


def _number(found: dict[str, Any], key: str, where: str, most: int, default: int | None = None) -> int:
    value = found.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise wrong(f"{where}.{key}", "a number", value)
    return value


def _address(found: dict[str, Any], key: str, where: str, default: int | None = None) -> int:
    """An address or stream pointer; writers that know only signed numbers give the upper half as negative."""
    value = found.get(key, default)
    if type(value) is not int or not -(2**63) <= value < 2**64:
        raise wrong(f"{where}.{key}", "an address", value)
    return value % 2**64
