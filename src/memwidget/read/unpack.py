"""Compressed bytes -> bytes, within bounds.

Owns decompression: gzip, xz and zstd, told by their first bytes. A few kilobytes can unpack to terabytes, so the
result may take half of the memory that is free, and no more than real snapshots ever gained.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Callable
from typing import Any

from memwidget.recording import SnapshotError

#: xz makes real snapshots 25 to 50 times smaller; a run of zeros becomes 7000 times smaller.
MAX_RATIO = 400
#: Always allowed, whatever the ratio.
FREE_BYTES = 16 << 20
_STEP = 1 << 22

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"


def unpacked(data: bytes) -> bytes:
    """`data`, decompressed if it is compressed.

    Raises
    ------
    SnapshotError
        Where it is damaged, or unpacks to more than a snapshot would.
    """
    if data[:2] == _GZIP:
        return _unpack(data, lambda: zlib.decompressobj(wbits=31), zlib.error, "gzip")
    if data[:6] == _XZ:
        limit = max(64 << 20, available() // 4)
        return _unpack(data, lambda: lzma.LZMADecompressor(memlimit=limit), lzma.LZMAError, "xz")
    if data[:4] == _ZSTD:
        return _unpack(data, *_zstd(), "zstd")
    return data


def most_bytes(packed: int, ratio: int = MAX_RATIO) -> int:
    """What `packed` bytes may unpack to."""
    return min(max(FREE_BYTES, packed * ratio), max(FREE_BYTES, available() // 2))


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    try:
        import zstandard
    except ImportError:
        raise SnapshotError("The file is compressed with zstd, which needs a package: pip install zstandard.") from None
    # A window larger than this is no normal file's (`zstd --ultra --long` has to be asked for).
    return lambda: zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(), zstandard.ZstdError


def _unpack(data: bytes, start: Callable[[], Any], error: type[Exception], kind: str) -> bytes:
    limit = most_bytes(len(data))
    parts: list[bytes] = []
    size = 0
    try:
        for part in _parts(data, start, kind):
            size += len(part)
            if size > limit:
                raise SnapshotError(
                    f"The {kind} file unpacks to more than {limit >> 20} MiB, which no snapshot of its size would: "
                    "unpack it yourself and load the result if you trust it."
                )
            parts.append(part)
        return b"".join(parts)
    except (error, EOFError) as cause:
        raise SnapshotError(f"The {kind} file is damaged; copy it again.") from cause
    except MemoryError as cause:
        raise SnapshotError(f"The {kind} file unpacks to more than there is memory; use a larger machine.") from cause


def _parts(data: bytes, start: Callable[[], Any], kind: str) -> Any:
    """Decompress piece by piece; files may be several compressed ones in a row."""
    rest = data
    while rest:
        unit = start()
        if kind == "zstd":  # has no bound on its output: feed little, 4 KiB may grow to at most a few dozen MiB
            view = memoryview(rest)
            for at in range(0, len(rest), 4096):
                yield unit.decompress(view[at : at + 4096])
                if unit.eof:
                    rest = unit.unused_data + rest[at + 4096 :]
                    break
            else:
                raise EOFError
        else:
            feed = rest
            while not unit.eof:
                part = unit.decompress(feed, _STEP)
                feed = unit.unconsumed_tail if kind == "gzip" else b""
                if not part and not feed and (kind == "gzip" or unit.needs_input) and not unit.eof:
                    raise EOFError
                yield part
            rest = unit.unused_data
        rest = rest.lstrip(b"\0")  # both may be padded with zeros


def available() -> int:
    """Bytes of memory that are free, or a careful guess."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30
