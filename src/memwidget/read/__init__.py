"""From any source to a Recording: the one door of this room.

Owns the decision what a source is. The content decides, never the suffix: files are renamed and downloaded without one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memwidget.read import archive, profiler, unpickle
from memwidget.read.bulk import Bulk
from memwidget.read.records import Records
from memwidget.read.snapshot import no_collector, recording_from_snapshot
from memwidget.read.unpack import unpacked
from memwidget.recording import Recording, SnapshotError

__all__ = ["load_recording", "recording_from_snapshot"]

Progress = Callable[[float, str], None]

#: Smaller sources are read before anyone could look at a progress bar.
PROGRESS_FROM = 50 << 20
#: Below, the plain road takes less than 10 ms.
FAST_FROM = 1 << 16
#: torch spends at least this many bytes of pickle on one event, segment or block.
BYTES_PER_ROW = 8
#: PROTO; without it (protocols 0 and 1): MARK, EMPTY_LIST, EMPTY_DICT.
_PICKLE_STARTS = {b"\x80", b"(", b"]", b"}"}
_SUFFIXES = {".gz", ".xz", ".zst", ".pickle", ".pkl", ".memtrace", ".json", ".raw"}


def load_recording(
    source: Any, *, name: str | None = None, progress: Progress | None = None, device_type: str = ""
) -> Recording:
    """Read a memory recording.

    Parameters
    ----------
    source : path, bytes, binary file object, dict, list or torch.profiler.profile
        A file from ``torch.cuda.memory._dump_snapshot()`` (plain or compressed with gzip, xz or zstd), a ``.memtrace``
        archive, a Chrome trace or memory timeline from torch.profiler, what such a file holds, the snapshot itself, or
        a finished profile.
    name : str, optional
        What to call it; otherwise the file's stem.
    progress : callable, optional
        Called as ``progress(fraction, text)`` while more than 50 MB are read.
    device_type : str, optional
        "cpu", "cuda" or "xpu": what to read of a profile that has several; by default a GPU before the CPU.

    Raises
    ------
    SnapshotError
        Where the source cannot be read as a memory recording; the message says why and what to do.
    FileNotFoundError
        Where the path does not exist.
    """
    if isinstance(source, (dict, list, tuple)):
        return recording_from_snapshot(source, name=name or "")
    if profiler.is_profile(source):
        return profiler.recording_from_profile(source, name=name or "", device_type=device_type)
    raw, found = _raw(source)
    return _from_bytes(raw, found if name is None else name, progress, device_type)


def _raw(source: Any) -> tuple[bytes, str]:
    """All bytes of the source, and its name."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source), ""
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fsdecode(source)).expanduser()
        if path.is_dir():
            raise SnapshotError(f"{path} is a folder; name the file in it.")
        # Read, not mapped: a mapped file that another process cuts short would kill the kernel.
        return path.read_bytes(), _stem(path)
    read = getattr(source, "read", None)
    if read is None:
        raise SnapshotError(
            f"Cannot read a recording from {type(source).__name__}; "
            "give a path, bytes, a binary file, the snapshot dict or a finished profile."
        )
    content = read()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise SnapshotError("The file is open as text; open it with mode 'rb'.")
    path_like = getattr(source, "name", "")
    return bytes(content), _stem(Path(path_like)) if isinstance(path_like, str) else ""


def _stem(path: Path) -> str:
    while path.suffix in _SUFFIXES and path.stem:
        path = path.with_suffix("")
    return path.name


def _from_bytes(raw: bytes, name: str, progress: Progress | None, device_type: str) -> Recording:
    data, packed = unpacked(raw), len(raw)
    del raw
    if archive.is_archive(data):
        recording = archive.load(data)
        recording.name = recording.name or name
        return recording
    _recognise(data)
    if len(data) < PROGRESS_FROM:
        progress = None
    if profiler.is_json(data):
        return profiler.recording_from_json(data, packed=packed, name=name, device_type=device_type, progress=progress)
    with no_collector():
        return _from_pickle(data, name, progress)


def _recognise(data: bytes) -> None:
    """Say what a file is that cannot be a snapshot."""
    start = data[:512].lstrip()
    what = ""
    if not data:
        what = "The file is empty; record the snapshot again."
    elif data[:2] == b"PK":
        what = (
            "This is a zip file, as torch.save() writes checkpoints, and no memory snapshot: "
            "use a file from torch.cuda.memory._dump_snapshot()."
        )
    elif start[:1] == b"<":
        what = "This is an HTML or XML page; download the file itself."
    elif start[:7] == b"version":
        what = "This is a git-lfs pointer; fetch the file itself with `git lfs pull`."
    elif data[:1] not in _PICKLE_STARTS and not profiler.is_json(data):
        what = "This is no pickle, so no memory snapshot: use a file from torch.cuda.memory._dump_snapshot()."
    if what:
        raise SnapshotError(what)


def _from_pickle(data: bytes, name: str, progress: Progress | None) -> Recording:
    def reading(fraction: float) -> None:
        if progress is not None:
            progress(0.7 * fraction, "reading")

    def sorting(fraction: float) -> None:
        if progress is not None:
            progress(0.7 + 0.3 * fraction, "sorting")

    most = 1000 + len(data) // BYTES_PER_ROW
    recording = _fast_road(data, name, most, reading) if len(data) >= FAST_FROM else None
    if recording is None:
        snapshot = unpickle.loads(data, reading)
        recording = recording_from_snapshot(snapshot, name=name, max_rows=most, progress=sorting)
    if progress is not None:
        progress(1.0, "read")
    return recording


def _fast_road(data: bytes, name: str, most: int, progress: Callable[[float], None]) -> Recording | None:
    """Read in bulk; None where the other road has to decide, be it on a file that is no good."""
    try:
        records = Records(data)
        machine = unpickle.Machine(data, progress, records)
        snapshot = machine.load()
        return recording_from_snapshot(snapshot, name=name, max_rows=most, bulk=Bulk(machine, records))
    except (SnapshotError, unpickle.NeedsSlowRoadError, LookupError, TypeError, ValueError, ArithmeticError):
        return None
