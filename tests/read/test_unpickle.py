"""Files from strangers: one clear exception, within a bounded memory, and nothing in them runs."""

import gzip
import io
import json
import lzma
import os
import pickle
import pickletools
import subprocess
import sys
import zipfile

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from memwidget import SnapshotError, read
from memwidget.read import load_recording
from memwidget.recording import Recording
from recordings import outcome

EVENT = {
    "action": "alloc",
    "addr": 512,
    "size": 500,
    "stream": 0,
    "frames": [{"name": "f", "filename": "a.py", "line": 3}],
}
SMALL = {"segments": [], "device_traces": [[EVENT, {**EVENT, "addr": 2**63 + 5, "time_us": 7}]]}


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_runs(protocol, tmp_path):
    with pytest.raises(SnapshotError, match=r"asks for the global (posix|nt|os)\.mkdir; a memory snapshot needs none"):
        load_recording(pickle.dumps({"segments": [Runs(tmp_path / "ran")]}, protocol))
    assert list(tmp_path.iterdir()) == []


#: All that plain data needs; whatever else the pickle language has is refused.
ALLOWED = {
    "PROTO",
    "FRAME",
    "STOP",
    "MARK",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "INT",
    "LONG",
    "FLOAT",
    "UNICODE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
    "EMPTY_LIST",
    "EMPTY_DICT",
    "EMPTY_TUPLE",
    "LIST",
    "DICT",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "APPEND",
    "APPENDS",
    "SETITEM",
    "SETITEMS",
    "PUT",
    "BINPUT",
    "LONG_BINPUT",
    "GET",
    "BINGET",
    "LONG_BINGET",
    "MEMOIZE",
}


@pytest.mark.parametrize("opcode", [op for op in pickletools.opcodes if op.name not in ALLOWED], ids=lambda op: op.name)
def test_other_opcodes_are_named(opcode):
    content = b"\x80\x04N" + opcode.code.encode("latin-1") + b"\x01\0\0\0\0\0\0\0\nos\nsystem\n."
    name = "asks for the global" if opcode.name in {"GLOBAL", "STACK_GLOBAL", "INST"} else opcode.name
    with pytest.raises(SnapshotError, match=name):
        load_recording(content)


@pytest.mark.parametrize("protocol", range(6))
def test_cut_at_every_byte(protocol):
    content = pickle.dumps(SMALL, protocol)
    for end in range(len(content)):
        with pytest.raises(SnapshotError):
            load_recording(content[:end])


def test_cut_at_every_byte_on_the_fast_road(monkeypatch):
    monkeypatch.setattr(read, "FAST_FROM", 0)
    content = pickle.dumps({"segments": [], "device_traces": [[{**EVENT, "addr": i} for i in range(300, 330)]]}, 4)
    for end in range(len(content)):
        with pytest.raises(SnapshotError):
            load_recording(content[:end])


def checkpoint():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"weight": 1}))
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file is empty"),
        (checkpoint(), "zip file, as torch.save"),
        (json.dumps(SMALL).encode(), "JSON"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"epoch,loss\n1,0.5\n", "no pickle"),
        (pickle.dumps({"model": {}, "optimizer": {}}), "neither segments nor device_traces"),
        (pickle.dumps(3), "neither segments nor device_traces"),
        (pickle.dumps({1: 2}), "dict key of type int"),
        (b"\x80\x09N.", "protocol 9"),
        (gzip.compress(pickle.dumps(SMALL))[:-4], "gzip file is damaged"),
        (lzma.compress(pickle.dumps(SMALL))[:-4], "xz file is damaged"),
        (zstandard.compress(pickle.dumps(SMALL))[:-4], "zstd file is damaged"),
    ],
)
def test_says_what_is_wrong(content, message):
    with pytest.raises(SnapshotError, match=message):
        load_recording(content)


def shared(times):
    """One trace named again and again: rows by the billion out of a small file."""
    trace = [EVENT] * 20_000
    return pickle.dumps({"segments": [], "device_traces": [trace] * times}, 4)


ZEROS = bytes(1 << 28)
BOMBS = {
    "a memo index": lambda: bytes.fromhex("80045d72ffffff0f2e"),
    "a memo index as text": lambda: b"(dp99999999999999\n.",
    "a length": lambda: b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f" + b"abc.",
    "an integer": lambda: b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\1" * 64 + b".",
    "digits": lambda: b"L" + b"9" * 3_000_000 + b"L\n.",
    "marks": lambda: b"\x80\x04" + b"(" * 3_000_000,
    "lists": lambda: b"\x80\x04" + b"]" * 30_000_000,
    "lists in lists": lambda: b"\x80\x04" + b"]" * 3_000_000 + b"a" * 3_000_000 + b".",
    "memos": lambda: b"\x80\x04N" + b"\x94" * 30_000_000 + b".",
    "a list in itself": lambda: b"\x80\x04}\x94\x8c\x08segments\x94]\x94h\x02as.",
    "one trace a million times": lambda: shared(1_000_000),
    "one event a million times": lambda: pickle.dumps({"device_traces": [[EVENT] * 3_000_000], "segments": []}, 4),
    "one dict of many keys": lambda: pickle.dumps({"segments": [dict.fromkeys(map(str, range(99_999)))] * 99_999}, 4),
    "one event of many keys": lambda: pickle.dumps(
        {"segments": [], "device_traces": [[{**EVENT, **dict.fromkeys(map(str, range(99_999)))}] * 99_999]}, 4
    ),
    "gzip": lambda: gzip.compress(ZEROS),
    "xz": lambda: lzma.compress(ZEROS, preset=0),
    "zstd": lambda: zstandard.compress(ZEROS),
}
LIMITED = """
import resource, sys
from memwidget import SnapshotError
from memwidget.read import load_recording
import zstandard  # beforehand: what is measured is the reading
content = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[1]),) * 2)
try:
    load_recording(content)
except SnapshotError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the address space as Linux does")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_small(name):
    content = BOMBS[name]()
    room = (192 << 20) + 30 * len(content)  # what is refused by counting may first use some bytes for each of its own
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(room)], input=content, capture_output=True, timeout=60, check=False
    )
    text = done.stdout.decode()
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert text.endswith(".\n")
    assert text.count("\n") == 1
    assert "more memory than there is" not in text


# Recipes for pickles that no pickler writes, from pieces that make sense on their own.
PIECES = st.sampled_from(
    [
        b"]",
        b"}",
        b"(",
        b"\x94",
        b"a",
        b"e",
        b"s",
        b"u",
        b"t",
        b"\x86",
        b"N",
        b"K\x01",
        b"h\0",
        b"h\1",
        b"j\0\0\0\0",
        b"0",
    ]
    + [b"\x8c" + bytes([len(word)]) + word for word in (b"segments", b"device_traces", b"action", b"alloc", b"frames")]
    + [b"\x95" + bytes(8), b"\x8a\x02\0\1", b"q\0", b"p1\n", b"I5\n", b"X\1\0\0\0a", b"G" + bytes(8), b"."]
)


@settings(deadline=None, max_examples=300)
@given(st.lists(PIECES, max_size=60), st.booleans())
def test_any_bytes_give_a_recording_or_a_snapshot_error(pieces, fast):
    content = b"\x80\x04" + b"".join(pieces) + b"."
    before, read.FAST_FROM = read.FAST_FROM, 0 if fast else 1 << 16
    try:
        found = outcome(content)
    finally:
        read.FAST_FROM = before
    assert isinstance(found, Recording) or found.endswith(".")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_changed_bytes_give_a_recording_or_a_snapshot_error(data):
    content = bytearray(pickle.dumps(SMALL, data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = outcome(bytes(content))
    assert isinstance(found, Recording) or found.endswith(".")
