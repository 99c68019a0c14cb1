"""torch.profiler's files and its finished objects -> Recording: the door to all four of them.

Owns the decision which one a source is, by content: ``[times, sizes]`` and raw rows (timeline.py), a Chrome trace
(chrome.py), or a ``torch.profiler.profile`` object, which is recognised by what it has, without torch (live.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from memwidget.read import live
from memwidget.read.chrome import read_chrome
from memwidget.read.jsonstream import Stream
from memwidget.read.snapshot import no_collector
from memwidget.read.timeline import read_raw, read_timeline
from memwidget.read.unpack import FREE_BYTES
from memwidget.recording import Recording, SnapshotError

#: gzip makes real traces 10 to 20 times smaller. More cannot be read in seconds, and is no trace.
MAX_JSON_RATIO = 60

_JSON = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*[\[{]")
_LIST_OF_LISTS = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*\[[ \t\r\n]*\[")
_SECOND = re.compile(rb"\][ \t\r\n]*,[ \t\r\n]*\[[ \t\r\n]*[\[\]]")

is_profile = live.is_profile


def is_json(data: bytes) -> bool:
    """Whether `data` starts as a profiler's JSON does (no pickle does)."""
    return _JSON.match(data[:4096]) is not None


def recording_from_json(
    data: bytes, *, packed: int, name: str, device_type: str, progress: Callable[[float, str], None] | None
) -> Recording:
    """Read one of torch.profiler's JSON files.

    Parameters
    ----------
    data : bytes
        The text.
    packed : int
        Bytes that the file had, compressed or not.
    device_type : str
        "cpu", "cuda" or "xpu": of which to tell where the file has several, or does not say; "" for no wish.
    """
    if len(data) > max(FREE_BYTES, MAX_JSON_RATIO * packed):
        raise SnapshotError(
            f"The file unpacks to {len(data) >> 20} MiB of JSON, which no profiler's file of its size would: "
            "unpack it yourself and load the result if you trust it."
        )
    stream = Stream(data, None if progress is None else lambda fraction: progress(0.9 * fraction, "reading"))
    try:
        with no_collector():
            recording = _read(stream, data, name, device_type)
    except (MemoryError, OverflowError) as error:
        raise SnapshotError("The file needs more memory than there is; read it on a larger machine.") from error
    if progress is not None:
        progress(1.0, "read")
    return recording


def _read(stream: Stream, data: bytes, name: str, device_type: str) -> Recording:
    if _LIST_OF_LISTS.match(data[:4096]):
        first = data.find(b"]")
        reader = read_timeline if _SECOND.match(data, first) else read_raw
        return reader(stream, name, device_type)
    if stream.peek() == "[" and data.lstrip(b"\xef\xbb\xbf[ \t\r\n").startswith(b"]"):
        raise SnapshotError(
            "The file holds an empty list: torch.profiler saw no memory on the device that it was exported for; "
            "export it for another device."
        )
    return read_chrome(stream).recording(name, device_type, [])


def recording_from_profile(profile: Any, *, name: str, device_type: str) -> Recording:
    """Read a finished ``torch.profiler.profile``, with the categories that torch finds where it was given the means."""
    return live.read(profile, name, device_type)
