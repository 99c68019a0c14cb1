"""Hostile JSON: it ends in a SnapshotError, in memory that its size allows."""

import contextlib
import gzip
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memwidget as mw
from memwidget.read import load_recording
from memwidget.read.unpack import FREE_BYTES

GOOD = {
    "ph": "i",
    "name": "[memory]",
    "pid": 1,
    "tid": 1,
    "ts": 5,
    "args": {"Device Type": 1, "Device Id": 0, "Addr": 512, "Bytes": 512},
}
SPAN = {"ph": "X", "cat": "cpu_op", "name": "aten::a", "pid": 1, "tid": 1, "ts": 1, "dur": 10}


def trace(*events, **more):
    return json.dumps({**more, "traceEvents": list(events)}).encode()


def test_the_plain_one_reads():
    assert mw.load(trace(GOOD, SPAN)).allocated == 512


def changed(event, **changes):
    return {**event, **changes}


def args(**changes):
    return {**GOOD, "args": {**GOOD["args"], **{name.replace("_", " "): value for name, value in changes.items()}}}


@pytest.mark.parametrize(
    "event",
    [
        args(Addr="512"),
        args(Addr=-1),
        args(Addr=2**64),
        args(Addr=None),
        args(Bytes=1.5),
        args(Bytes=True),
        args(Bytes=2**63),
        args(Device_Id=2**31),
        args(Device_Type="cuda"),
        changed(GOOD, args=[]),
        changed(GOOD, args=None),
        changed(GOOD, ts="5"),
        changed(GOOD, ts=-5),
        changed(GOOD, ts=1e300),
        changed(GOOD, ts=10**400),
        changed(GOOD, pid=[1]),
        changed(SPAN, ts=None),
        changed(SPAN, dur=-20),
        changed(SPAN, dur=1e300),
        changed(SPAN, name=7),
        changed(SPAN, tid={}),
        {"name": "no phase"},
        {"ph": 7},
        [],
        7,
        None,
    ],
    ids=lambda event: str(event)[:60],
)
def test_wrong_values(event):
    with pytest.raises(mw.SnapshotError, match=r"Chrome trace should be|damaged"):
        mw.load(trace(GOOD, event))


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[",
        b'{"traceEvents"',
        b'{"traceEvents":',
        b'{"traceEvents":[',
        b'{"traceEvents":[{"ph":"M"}',
        b'{"traceEvents":[{"ph":"M"},]}',
        b'{"traceEvents":[{"ph":"M"} {"ph":"M"}]}',
        b'{"traceEvents":[{"ph":"M"}]} more',
        b'{"traceEvents":{}}',
        b'{"traceEvents":[{"ph":"M"}],"traceEvents":[{"ph":"M"}]}',
        b'{"baseTimeNanoseconds":1e5,"traceEvents":[]}',
        b'{"baseTimeNanoseconds":-1,"traceEvents":[]}',
        b'{"baseTimeNanoseconds":99999999999999999999999,"traceEvents":[]}',
        b'{"a":1}',
        b"{}",
        b"{1:2}",
        b"[1, 2]",
        b"[[",
        b"[[]",
        b"[[[",
        b"[[1],",
        b"[[1],[[",
        b"[[NaN],[[0,0,0,0,0,0,0,0,0]]]",
        b"[[1],[[0,NaN,0,0,0,0,0,0,0]]]",
        b"[[1],[[0,Infinity,0,0,0,0,0,0,0]]]",
        b'{"traceEvents":[{"ph":"i","name":"[memory]","ts":NaN}]}',
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_damaged(content):
    with pytest.raises(mw.SnapshotError):
        mw.load(content)


def test_names_may_be_anything():
    content = b'{"traceEvents":[' + json.dumps(GOOD).encode()
    content += b',{"ph":"X","cat":"cpu_op","name":"\xff\xfe \\ud800 \x01","pid":1,"tid":1,"ts":1,"dur":10}]}'
    (frame,) = mw.load(content).stack(0)
    assert frame.name.encode("utf-8")
    assert "<!doctype html>" in mw.load(content).to_html().lower()


def test_other_json_is_told_from_a_profilers():
    with pytest.raises(mw.SnapshotError, match=r"no file of torch\.profiler.*_dump_snapshot"):
        mw.load(b'{"name": "package", "dependencies": [1, 2, {"a": []}]}')


#: What each may cost, in MiB beyond what the reader itself takes, and in seconds of computing.
LIMITS = """
import resource, sys
sys.path[:0] = ["tests/read"]
import numpy, memwidget
from memwidget.read import load_recording
content = {content}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
try:
    load_recording(content)
    print("read")
except memwidget.SnapshotError as error:
    print("refused:", error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(
    ("content", "most"),
    [
        ("b'[' * 30_000_000", 64),  # deep
        ("b'{\"traceEvents\":' + b'[' * 30_000_000", 64),
        ("b'{\"a\":' * 5_000_000", 64),
        ("b'[' + b'9' * 30_000_000", 64),  # a number without end
        ("b'{\"' + b'x' * 30_000_000", 64),  # a name without end
        ('b\'{"traceEvents":[{"ph":"M","args":[\' + b\'[],\' * 10_000_000 + b\'[]]}]}\'', 300),  # one huge event
        ("b'[[' + b'1,' * 6_000_000 + b'1],[[]]]'", 200),  # times without rows
        ("b'[[1],[[' + b'[],' * 10_000_000 + b'[]]]]'", 300),
        ("b'[[1,2,3,4],' + b'[],' * 10_000_000 + b'[]]'", 64),
        ("__import__('gzip').compress(b'[' + b'[1,2,3,4],' * 30_000_000)", 300),  # a bomb
        ("__import__('gzip').compress(b' ' * 200_000_000)", 300),
    ],
)
def test_memory_is_bounded(content, most, root):
    said = subprocess.run(
        [sys.executable, "-c", LIMITS.format(content=content)], capture_output=True, text=True, cwd=root, check=True
    ).stdout.splitlines()
    assert said[0].startswith("refused:")
    assert int(said[-1]) < most


def test_sums_stay_within_64_bits():
    with pytest.raises(mw.SnapshotError, match="more than any machine"):
        mw.load(trace(*[args(Bytes=2**44, Addr=i) for i in range(2**17 + 1)]))


def test_a_file_that_unpacks_to_far_more_than_traces_do():
    event = json.dumps({"ph": "M"}).encode() + b","
    content = b'{"traceEvents":[' + event * (FREE_BYTES // len(event) + 10) + event[:-1] + b"]}"
    with pytest.raises(mw.SnapshotError, match="unpack it yourself"):
        mw.load(gzip.compress(content))
    with pytest.raises(mw.SnapshotError, match="profile_memory=True"):
        mw.load(content)


def test_spans_that_lie_deep_or_across_each_other_cost_no_more_than_their_number():
    """N spans within each other under N allocations, and N that each outlive all before them: not N squared."""
    n = 16_000
    deep = [changed(SPAN, name=f"f{i}", ts=i, dur=2 * n - 2 * i) for i in range(n)]
    across = [changed(SPAN, name="g", ts=4 * n + i, dur=2 * n) for i in range(n)]
    for spans in (deep, across):
        events = [changed(GOOD, ts=span["ts"] + 0.5, args={**GOOD["args"], "Addr": i}) for i, span in enumerate(spans)]
        found = load_recording(trace(*spans, *events))
        assert len(found.events[0]) == n
        assert len(found.stack_frames) <= 1 << 23


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_byte_gives_a_recording_or_a_sentence(data):
    content = bytearray(trace(GOOD, SPAN, args(Bytes=-512), baseTimeNanoseconds=10**18))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(mw.SnapshotError):
        mw.load(bytes(content))


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    )
)
def test_any_json_gives_a_recording_or_a_sentence(value):
    for content in (json.dumps(value), json.dumps([value]), json.dumps({"traceEvents": value})):
        with contextlib.suppress(mw.SnapshotError):
            mw.load(content.encode())
