"""Our own .memtrace file, both ways.

Owns its layout: a zip with ``memwidget.json`` first (a format version, names, notes, strings, and how each column is
coded) and then plain ``.npy`` arrays. No pickle. A file may come from a stranger, so every length, type and index is
checked before a Recording exists, and what it unpacks to is bounded.
"""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import zipfile
import zlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memwidget.read.coding import decode, encode
from memwidget.read.facts import check_facts
from memwidget.read.unpack import available, most_bytes
from memwidget.recording import (
    ACTIONS,
    CATEGORIES,
    LAST_SIZED,
    MAX_DEVICE,
    MAX_TOTAL,
    SAMPLED,
    SPANS,
    STATES,
    Annotations,
    Counters,
    Events,
    Frames,
    Labels,
    Operators,
    Recording,
    Saved,
    SegmentBlocks,
    Segments,
    SnapshotError,
    Spans,
    Table,
    Uses,
)

HEADER = "memwidget.json"
VERSION = 1
_MAX_HEADER = 1 << 30
#: No device has more bytes; see snapshot.py.
_MAX_BYTES = 2**53
_TABLES: dict[str, type[Table]] = {
    "segments": Segments,
    "segment_blocks": SegmentBlocks,
    "annotations": Annotations,
    "frames": Frames,
    "labels": Labels,
    "spans": Spans,
    "saved": Saved,
    "uses": Uses,
    "operators": Operators,
    "counters": Counters,
}
#: Tables that the first archives did not have.
_LATER = {"labels", "spans", "saved", "uses", "operators", "counters"}
_ARRAYS = ("stacks", "stack_frames")
#: Version 1.0 of the format: magic, length of the header, header, bytes in one or two dimensions.
_NPY = re.compile(
    rb"\x93NUMPY\x01\x00(..)\{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d{1,12}), ?(\d{1,12})?\), \} *\n",
    re.DOTALL,
)
_BROKEN = "The archive is damaged: {}; save it again."


def is_archive(data: bytes) -> bool:
    """Whether `data` starts as our archives do."""
    return data[:4] == b"PK\x03\x04" and data[30 : 30 + len(HEADER)] == HEADER.encode()


def save(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Write a recording.

    Parameters
    ----------
    recording : Recording
        What to write.
    path : path
        ``.memtrace`` writes our own archive, which holds everything and is small; ``.pickle`` or ``.pkl`` torch's own
        snapshot, which other tools open.
    """
    target = Path(path).expanduser()
    suffix = target.suffix.lower()
    if suffix == ".memtrace":
        content = to_bytes(recording)
    elif suffix in {".pickle", ".pkl"}:
        from memwidget.read.torchfile import pickled

        content = pickled(recording)
    else:
        raise ValueError(f"Cannot save as {target.name}: name it .memtrace (ours) or .pickle (for other tools).")
    _write(target, content)


def _write(target: Path, content: bytes) -> None:
    """Write all or nothing: a full disk must not leave half a file, nor destroy the one that was there."""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    except OSError as error:  # it names the temporary file, which nobody asked for
        raise OSError(error.errno, error.strerror, str(target)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def to_bytes(recording: Recording) -> bytes:
    """The bytes of a .memtrace file."""
    columns: dict[str, Any] = {}
    members: list[tuple[str, bytes]] = []

    def add(name: str, column: NDArray[Any]) -> None:
        how, parts = encode(column)
        columns[name] = {**how, "parts": len(parts)}
        for i, part in enumerate(parts):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, part, allow_pickle=False)
            members.append((f"{name}.{i}.npy", buffer.getvalue()))

    tables: dict[str, Table] = {f"events.{device}": events for device, events in recording.events.items()}
    tables |= {name: getattr(recording, name) for name in _TABLES}
    for name, table in tables.items():
        for column in fields(table):
            add(f"{name}.{column.name}", getattr(table, column.name))
    for name in _ARRAYS:
        add(name, np.asarray(getattr(recording, name), np.int32))
    header = {
        "format": "memwidget",
        "version": VERSION,
        "name": recording.name,
        "device_type": recording.device_type,
        "devices": list(recording.events),
        "streams": recording.streams,
        "pools": recording.pools,
        "capacities": {str(device): size for device, size in recording.capacities.items()},
        "settings": recording.settings,
        "facts": recording.facts,
        "notes": recording.notes,
        "strings": recording.strings,
        "columns": columns,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as file:
        for name, content in [(HEADER, json.dumps(header, default=_plain).encode()), *members]:
            file.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # no date: equal content, equal file
    return out.getvalue()


def _plain(value: object) -> Any:
    """Numpy's numbers among the facts."""
    if isinstance(value, np.generic):
        return value.item()
    return str(value)


def load(source: str | os.PathLike[str] | bytes) -> Recording:
    """Read a .memtrace file.

    Raises
    ------
    SnapshotError
        Where anything in it is not as `save` writes it.
    """
    data = source if isinstance(source, bytes) else Path(source).expanduser().read_bytes()
    if not is_archive(data):
        raise SnapshotError("This is no .memtrace file; save it again with trace.save().")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            return _Archive(file, len(data)).recording()
    except SnapshotError:
        raise
    except (MemoryError, RecursionError) as error:
        raise SnapshotError("The archive asks for more memory than there is; read it on a larger machine.") from error
    except (
        ValueError,  # of JSON, numpy and the codings; UnicodeDecodeError too
        KeyError,
        TypeError,
        IndexError,
        OverflowError,
        AttributeError,
        NotImplementedError,  # zip features
        RuntimeError,  # encrypted members
        EOFError,
        OSError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise SnapshotError(_BROKEN.format("its parts do not fit together")) from error


class _Archive:
    def __init__(self, file: zipfile.ZipFile, packed: int) -> None:
        self.file = file
        self.left = most_bytes(packed, ratio=1100)  # deflate's own limit is 1032
        # Columns may be longer than what they unpack from, up to 80 times in real archives.
        self.bytes_left = min(max(64 << 20, 2000 * packed), max(64 << 20, available() // 2))
        header = json.loads(self._member(HEADER, _MAX_HEADER))
        if (
            not isinstance(header, dict)
            or header.get("format") != "memwidget"
            or type(header.get("version")) is not int
        ):
            raise SnapshotError("This is no .memtrace file; save it again with trace.save().")
        if header["version"] > VERSION:
            raise SnapshotError("The archive was saved by a newer memwidget: pip install --upgrade memwidget.")
        self.header: dict[str, Any] = header

    def recording(self) -> Recording:
        header = self.header
        devices = _list_of(header["devices"], int)
        result = Recording(
            name=_typed(header["name"], str),
            device_type=_typed(header["device_type"], str),
            events={device: self._table(f"events.{device}", Events) for device in devices},
            stacks=self._column("stacks", np.dtype(np.int32)),
            stack_frames=self._column("stack_frames", np.dtype(np.int32)),
            strings=_list_of(header["strings"], str),
            streams=_list_of(header["streams"], int),
            pools=[(a, b) for a, b in (_list_of(pool, int) for pool in _typed(header["pools"], list))],
            capacities={int(k): _typed(v, int) for k, v in _typed(header["capacities"], dict).items()},
            settings=_typed(header["settings"], dict),
            facts=_typed(header["facts"], dict),
            notes=_list_of(header["notes"], str),
            **{name: self._table(name, table) for name, table in _TABLES.items()},
        )
        check(result)
        return result

    def _member(self, name: str, most: int) -> bytes:
        most = min(most, self.left)
        if self.file.getinfo(name).compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise ValueError(name)  # the other methods have no bound on memory
        with self.file.open(name) as member:
            content = member.read(most + 1)
        if len(content) > most:
            raise SnapshotError(_BROKEN.format("it unpacks to more than a recording of its size would"))
        self.left -= len(content)
        return content

    def _table(self, name: str, table: type[Table]) -> Any:
        if name in _LATER and f"{name}.{table.columns()[0].name}" not in self.header["columns"]:
            return table.empty()
        return table(**{c.name: self._column(f"{name}.{c.name}", np.dtype(c.dtype)) for c in table.columns()})

    def _column(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        how = _typed(self.header["columns"][name], dict)
        rows = _typed(how["rows"], int)
        # A constant column costs a file nothing and us its full length.
        self.bytes_left -= rows * dtype.itemsize
        if not 0 <= rows < 2**31 or self.bytes_left < 0:
            raise SnapshotError(_BROKEN.format("it has more rows than an archive of its size would"))
        if how["dtype"] != dtype.str or not 0 <= _typed(how["parts"], int) <= 2:
            raise ValueError(name)
        return decode(how, [self._array(f"{name}.{i}.npy") for i in range(how["parts"])])

    def _array(self, name: str) -> NDArray[Any]:
        """One .npy member; all of ours are bytes, in one or two dimensions."""
        content = self._member(name, self.left)
        # numpy's own reader evaluates the header as Python; ours has one form, and anything else is refused.
        header = _NPY.match(content)
        if header is None:
            raise ValueError(name)
        at = 10 + int.from_bytes(header[1], "little")
        shape = tuple(int(number) for number in (header[2], header[3]) if number)
        return np.frombuffer(content, np.uint8, -1, at).reshape(shape)


def check(recording: Recording) -> None:
    """Every index in its range, or SnapshotError."""
    r = recording
    n_strings, n_frames = len(r.strings), len(r.frames)
    stacks = r.stacks
    if not len(stacks) or stacks[0] != 0 or int(stacks[-1]) != len(r.stack_frames) or bool((np.diff(stacks) < 0).any()):
        raise SnapshotError(_BROKEN.format("its stacks do not add up"))
    many: list[tuple[str, NDArray[Any], int, int]] = [
        ("stack_frames", r.stack_frames, 0, n_frames),
        ("frames.filename", r.frames.filename, 0, n_strings),
        ("frames.name", r.frames.name, 0, n_strings),
        ("frames.source", r.frames.source, -1, n_strings),
        ("annotations.name", r.annotations.name, 0, n_strings),
        ("labels.category", r.labels.category, 0, len(CATEGORIES)),
        ("labels.name", r.labels.name, -1, n_strings),
        ("labels.how", r.labels.how, 0, len(SAMPLED)),
        ("labels.nbytes", r.labels.nbytes, 0, _MAX_BYTES + 1),
        ("labels.time_us", r.labels.time_us, 0, _MAX_BYTES + 1),
        ("spans.kind", r.spans.kind, 0, len(SPANS)),
        ("spans.name", r.spans.name, -1, n_strings),
        ("spans.start_us", r.spans.start_us, 0, _MAX_BYTES + 1),
        ("spans.end_us", r.spans.end_us, 0, _MAX_BYTES + 1),
        ("saved.time_us", r.saved.time_us, 0, _MAX_BYTES + 1),
        ("saved.stack", r.saved.stack, -1, r.n_stacks),
        ("uses.time_us", r.uses.time_us, 0, _MAX_BYTES + 1),
        ("uses.saved", r.uses.saved, -len(r.saved), len(r.saved)),
        ("operators.name", r.operators.name, 0, n_strings),
        ("counters.event", r.counters.event, 0, 2**31),
        ("counters.reserved", r.counters.reserved, 0, _MAX_BYTES + 1),
        ("segments.size", r.segments.size, 0, _MAX_BYTES + 1),
        ("segments.device", r.segments.device, 0, MAX_DEVICE + 1),
        ("segment_blocks.segment", r.segment_blocks.segment, 0, len(r.segments)),
        ("segment_blocks.state", r.segment_blocks.state, 0, len(STATES)),
        ("segment_blocks.size", r.segment_blocks.size, 0, _MAX_BYTES + 1),
        ("segment_blocks.requested", r.segment_blocks.requested, 0, _MAX_BYTES + 1),
        ("segment_blocks.stack", r.segment_blocks.stack, -1, r.n_stacks),
    ]
    tables: list[tuple[str, Any]] = [("segments", r.segments)]
    for device, events in r.events.items():
        name = f"events.{device}"
        tables.append((name, events))
        many += [
            (f"{name}.action", events.action, 0, len(ACTIONS)),
            (f"{name}.size", events.size, 0, _MAX_BYTES + 1),
            (f"{name}.time_us", events.time_us, 0, _MAX_BYTES + 1),
            (f"{name}.metadata", events.metadata, -1, n_strings),
            (f"{name}.compile_context", events.compile_context, -1, n_strings),
        ]
    for name, table in tables:
        many += [
            (f"{name}.stream", table.stream, -1, len(r.streams)),
            (f"{name}.pool", table.pool, -1, len(r.pools)),
            (f"{name}.stack", table.stack, -1, r.n_stacks),
        ]
    for name, column, low, high in many:
        if len(column) and (int(column.min()) < low or int(column.max()) >= high):
            raise SnapshotError(_BROKEN.format(f"{name} is out of range"))
    _check_values(r)


def _check_values(r: Recording) -> None:
    """What is no index into something."""
    numbers = [*r.streams, *(part for pool in r.pools for part in pool), *r.capacities.values()]
    if not all(0 <= number < 2**64 for number in numbers):
        raise SnapshotError(_BROKEN.format("a stream, pool or capacity is out of range"))
    ordinals = [*r.events, *r.capacities]
    if len(set(r.events)) != len(r.events) or not all(0 <= ordinal <= MAX_DEVICE for ordinal in ordinals):
        raise SnapshotError(_BROKEN.format("a device is out of range"))
    sums = [r.segments.size, r.segment_blocks.size, r.segment_blocks.requested]
    sums += [events.size[events.action <= LAST_SIZED] for events in r.events.values()]
    if any(float(sizes.sum(dtype=np.float64)) > MAX_TOTAL for sizes in sums):
        raise SnapshotError(_BROKEN.format("its sizes add up to more than any device moves"))
    if not check_facts(r.facts, len(r.annotations)):
        raise SnapshotError(_BROKEN.format("its facts are no facts"))
    for major, minor in (
        (r.segments.device, r.segments.address),
        (r.segment_blocks.segment, r.segment_blocks.address),
    ):
        if bool((np.lexsort((minor, major)) != np.arange(len(major))).any()):
            raise SnapshotError(_BROKEN.format("its segments are out of order"))


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError
    return value


def _list_of(value: Any, kind: type) -> list[Any]:
    if type(value) is not list or not set(map(type, value)) <= {kind}:
        raise TypeError
    return value
