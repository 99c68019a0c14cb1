"""Hostile input by the million: real recordings, broken in every way that a seeded generator knows.

Owns what is fed to the readers. A case is made from its number alone, so that it can be made again. Some breaks are
blind (bytes), some know the format: values of the snapshot, columns of a Recording, tokens of JSON, opcodes that call.
"""

import copy
import gzip
import json
import lzma
import os
import pickle
import random
import zipfile
from dataclasses import fields
from io import BytesIO
from pathlib import Path

import numpy as np

from fuzz_checks import EVIL
from fuzz_many import many
from memwidget.read import archive, load_recording
from memwidget.read.torchfile import to_snapshot
from memwidget.recording import ACTION, Annotations, Labels, Spans, Table
from recordings import random_snapshot

DATA = Path(__file__).resolve().parent / "data"
#: Events kept of a recording: a case takes milliseconds, and what breaks breaks with few events too.
EVENTS = 300

#: Of the cases are large; each takes as long as a hundred small ones.
MANY_SHARE = 0.005

NUMBERS = [0, 1, -1, 7, 255, 512, 4096, 1 << 20, (2 << 20) + 1, 24 << 20, 2**31 - 1, 2**31, 2**32, 2**47, 2**53 - 1]
NUMBERS += [2**53, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), 10**30, 10**9]
ODD = [
    None,
    True,
    False,
    1.5,
    float("nan"),
    float("inf"),
    -0.0,
    "",
    "x",
    "a\0b",
    "\ud800",
    "é" * 500,
    f"</script>{EVIL}>\n",
    "…",
]
ODD += [[], {}, (), [[]], [0], {"a": 1}, (0, 0), (1, 0), [-1, 2**64], "START", "END", "alloc", "oom", "segment_map"]
ODD += ["segment_unmap", "free_completed", "active_pending_free", "inactive", "small", b"bytes"]

CHROME = {
    "schemaVersion": 1,
    "baseTimeNanoseconds": 1700000000000000000,
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": 1.0, "dur": 60.5},
        {"ph": "X", "cat": "python_function", "name": "train.py(7): step", "pid": 1, "tid": 1, "ts": 2.0, "dur": 50},
        {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "tid": 1, "ts": 3, "dur": 4.25},
        *(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": 1,
                "tid": 1,
                "ts": 4 + i,
                "s": "t",
                "args": {
                    "Device Type": i % 2,
                    "Device Id": -1 if i % 2 == 0 else 0,
                    "Addr": 4096 * (1 + i % 6),
                    "Bytes": 512 * (i % 6 + 1) * (1 if i % 12 < 6 else -1),
                    "Total Allocated": 4096 * (i % 12),
                    "Total Reserved": 1 << 20,
                },
            }
            for i in range(36)
        ),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ],
}
TIMELINE = [
    [1700000000000000 + 5 * i for i in range(20)],
    [[0, 4096, 0, 512 * (i % 4), 0, 2048 * min(i, 20 - i), 0, 0, 512] for i in range(20)],
]
RAW = [[-1, 1, 4096, 0], [5000, 1, 2048, 2]]
RAW += [row for i in range(12) for row in ([6000 + 90 * i, 2, 512 * (1 + i % 3), 4], [6050 + 90 * i, 3, -512, i % 8])]
RAW += [[9000, 4, -4096, 0]]


def calls(folder):
    """Pickles that would make a folder in `folder` if anybody ran them, by every opcode that can call."""
    path = f"{folder}/ran"

    class Runs:
        def __init__(self, number):
            self.number = number

        def __reduce__(self):
            return os.mkdir, (f"{path}{self.number}",)

    found = [pickle.dumps(Runs(protocol), protocol) for protocol in range(6)]
    found.append(f"(S'{path}i'\nios\nmkdir\n.".encode())
    found.append(f"(cos\nmkdir\nS'{path}o'\no.".encode())
    return found


class Cases:
    """Makes the case of any number.

    Parameters
    ----------
    seed : str
    folder : path
        Where a file would appear if anything in a case were run.
    """

    def __init__(self, seed, folder):
        self.seed = seed
        self.calls = calls(folder)
        self.recordings = [short(load_recording(path)) for path in sorted(DATA.glob("*.pickle.xz")) if small(path)]
        self.snapshots = [to_snapshot(recording) for recording in self.recordings]
        self.json = [CHROME, CHROME["traceEvents"], TIMELINE, RAW]
        self.kinds = [getattr(self, name) for name in dir(type(self)) if name.startswith("make_")]

    def case(self, number):
        """Source of a case (bytes or a snapshot dict) and the kind of break."""
        rng = random.Random(f"{self.seed}/{number}")
        if rng.random() < MANY_SHARE:
            return archive.to_bytes(many(rng)), "many"
        make = rng.choice(self.kinds)
        return make(rng), make.__name__.removeprefix("make_")

    # -- bytes -------------------------------------------------------------------------------------------------------

    def make_bytes(self, rng):
        """Blind damage to a file of any sort."""
        content = bytearray(self.file(rng))
        for _ in range(rng.choice([1, 1, 2, 4, 30])):
            damage(content, rng)
        return bytes(content)

    def make_wrapped(self, rng):
        """Damage beneath, or of, a compression."""
        content = bytearray(self.file(rng))
        if rng.random() < 0.5:
            damage(content, rng)
        content = bytearray(rng.choice([gzip.compress, lambda c: lzma.compress(c, preset=0), zstd])(bytes(content)))
        if rng.random() < 0.5:
            damage(content, rng)
        return bytes(content) * rng.choice([1, 1, 2])

    def file(self, rng):
        """A file that nothing is wrong with."""
        kind = rng.randrange(4)
        if kind == 0:
            return archive.to_bytes(rng.choice(self.recordings))
        if kind == 1:
            return json.dumps(rng.choice(self.json)).encode()
        return pickle.dumps(rng.choice(self.snapshots), rng.randrange(6))

    def make_calls(self, rng):
        """A pickle that calls something, somewhere in a snapshot."""
        call = rng.choice(self.calls)
        if rng.random() < 0.3:
            return call
        content = pickle.dumps(rng.choice(self.snapshots), rng.choice([2, 3, 4, 5]))
        at = rng.randrange(2, len(content))
        return content[:at] + call.removesuffix(b".")[2 * (call[:1] == b"\x80") :] + content[at:]

    # -- values ------------------------------------------------------------------------------------------------------

    def make_values(self, rng):
        """Other values in a snapshot's places, as a file."""
        return pickle.dumps(self._values(rng), rng.randrange(6))

    def make_snapshot(self, rng):
        """The same, handed over as it is."""
        return self._values(rng)

    def _values(self, rng):
        found = copy.deepcopy(rng.choice(self.snapshots))
        places = list(containers(found))
        for _ in range(rng.choice([1, 2, 5, 40])):
            change(rng.choice(places), rng)
        return found

    def make_numbers(self, rng):
        """A sound layout with numbers from nowhere: overlaps, holes, time that runs backward, sizes past any device."""
        found = copy.deepcopy(rng.choice(self.snapshots))
        key = rng.choice(
            ["addr", "address", "size", "total_size", "time_us", "requested_size", "device", "stream", "line"]
        )
        places = [place for place in containers(found) if isinstance(place, dict) and key in place]
        for place in rng.sample(places, min(len(places), rng.choice([1, 3, 1000]))):
            other = rng.choice(places)
            place[key] = rng.choice(
                [other[key], abs(rng.choice(NUMBERS)) % 2**53, place[key] + rng.choice([-512, 1, 512, 1 << 20])]
            )
        for trace in found["device_traces"] * (rng.random() < 0.3):
            rng.shuffle(trace)
        found["device_traces"] *= rng.choice([1, 1, 1, 3])
        return pickle.dumps(found, 4) if rng.random() < 0.5 else found

    def make_random(self, rng):
        """A snapshot as no allocator made it."""
        return pickle.dumps(random_snapshot(rng, 60, odd=rng.choice([0, 0, 0.02])), 4)

    # -- columns -----------------------------------------------------------------------------------------------------

    def make_columns(self, rng):
        """An archive whose columns hold anything."""
        recording = copy.deepcopy(rng.choice(self.recordings))
        add_tables(recording, rng)
        tables = [*recording.events.values(), *(t for t in vars(recording).values() if isinstance(t, Table) and len(t))]
        for _ in range(rng.choice([1, 2, 5])):
            table = rng.choice(tables)
            spoil(getattr(table, rng.choice(fields(table)).name), rng)
        if rng.random() < 0.2:
            spoil(rng.choice([recording.stacks, recording.stack_frames]), rng)
        if rng.random() < 0.2:
            recording.events = {rng.choice([*NUMBERS, d]): e for d, e in recording.events.items()}
        if rng.random() < 0.3:
            name = rng.choice(["settings", "facts", "capacities"])
            known = ["max_entries", "cells", "phases", "steps", "gc", "device_free", "max_split_size", "started_us"]
            known += ["expandable_segments", "roundup_power2_divisions", "seconds_x", "sizes", "source", "history"]
            for key in rng.sample(known, 4):
                value = rng.choice(
                    [*ODD[:-1], *NUMBERS, {"1": rng.choice(NUMBERS), "0": "x"}, [rng.choice(NUMBERS)] * 3]
                )
                getattr(recording, name)[key if name != "capacities" else rng.choice([0, 1])] = value
        if rng.random() < 0.2:
            recording.device_type = rng.choice(["cpu", "xpu", "", "<b>", "cuda"])
        return archive.to_bytes(recording)

    def make_header(self, rng):
        """An archive with another header."""
        source = zipfile.ZipFile(BytesIO(archive.to_bytes(rng.choice(self.recordings))))
        header = json.loads(source.read(archive.HEADER))
        places = list(containers(header))
        for _ in range(rng.choice([1, 2, 5])):
            change(rng.choice(places), rng)
        out = BytesIO()
        with zipfile.ZipFile(out, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as target:
            target.writestr(archive.HEADER, json.dumps(header, default=str))
            for name in source.namelist()[1:]:
                content = bytearray(source.read(name))
                if rng.random() < 0.02:
                    damage(content, rng)
                target.writestr(name, bytes(content))
        return out.getvalue()

    # -- JSON --------------------------------------------------------------------------------------------------------

    def make_json(self, rng):
        """A profiler's file with other values."""
        found = copy.deepcopy(rng.choice(self.json))
        places = list(containers(found))
        for _ in range(rng.choice([1, 1, 3, 20])):
            change(rng.choice(places), rng)
        return json.dumps(found, default=str).encode()


def small(path):
    """Whether a recording of the tests is read in milliseconds."""
    return path.stat().st_size < 30_000


def short(recording):
    """The first events of a recording."""
    for device, events in recording.events.items():
        kept = {field.name: getattr(events, field.name)[:EVENTS] for field in fields(events)}
        recording.events[device] = type(events)(**kept)
    return recording


def zstd(content):
    import zstandard

    return zstandard.compress(content)


def damage(content, rng):
    """Break some bytes in place."""
    if not content:
        return
    at, n = rng.randrange(len(content)), rng.choice([1, 1, 2, 8, 64, 1000])
    how = rng.randrange(7)
    if how == 0:
        content[at] ^= 1 << rng.randrange(8)
    elif how == 1:
        content[at : at + n] = rng.randbytes(n)
    elif how == 2:
        del content[at : at + n]
    elif how == 3:
        content[at:at] = content[at : at + n] * rng.choice([1, 2, 50])
    elif how == 4:
        del content[at:]
    elif how == 5:
        other = rng.randrange(len(content))
        content[at : at + n] = content[other : other + n]
    else:
        content[at : at + n] = bytes([rng.choice([0, 255, 0x28, 0x5B, 0x94])]) * n


def containers(found, depth=0):
    """Every dict and list in plain data."""
    if isinstance(found, (dict, list)) and found and depth < 8:
        yield found
        for inner in found.values() if isinstance(found, dict) else found:
            yield from containers(inner, depth + 1)


def change(place, rng):
    """Put another value somewhere, take one out, or put one in twice."""
    if not place:
        return
    key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
    how = rng.random()
    if how < 0.3:
        place[key] = rng.choice(NUMBERS)
    elif how < 0.6:
        place[key] = copy.deepcopy(rng.choice(ODD))
    elif how < 0.7:
        del place[key]
    elif how < 0.8 and isinstance(place, list):
        place[key:key] = place[key : key + 1] * rng.choice([1, 3, 40])
    elif how < 0.9:
        place[key] = place[rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))]
    elif isinstance(place, dict):
        place[rng.choice(["", "new", "\ud800", "device", "pool_id", "history", "frames"])] = rng.choice(NUMBERS)


def spoil(column, rng):
    """Other numbers in a column, in place."""
    if not len(column):
        return
    limits, n = np.iinfo(column.dtype), len(column)
    how = rng.randrange(5)
    rows = [rng.randrange(n) for _ in range(rng.choice([1, 2, n]))]
    if how == 0:
        column[rows] = [min(max(rng.choice(NUMBERS), limits.min), limits.max) for _ in rows]
    elif how == 1:
        column[rows] = [int(column[rng.randrange(n)]) for _ in rows]
    elif how == 2:
        column[:] = column[::-1].copy()
    elif how == 3:
        column[:] = column[0]
    else:
        column[rows] = [rng.randrange(max(limits.min, -2), min(limits.max, rng.choice([3, 50, 2**53]))) for _ in rows]


def add_tables(recording, rng):
    """What our own recorder adds: annotations, labels, spans."""
    events = next(iter(recording.events.values()))
    n, names = rng.choice([1, 5, 200]), max(len(recording.strings), 1)
    times = [int(t) for t in events.time_us] or [0]

    def time():
        return rng.choice(times) + rng.randrange(-3, 4) if rng.random() < 0.9 else abs(rng.choice(NUMBERS)) % 2**53

    recording.annotations = Annotations(
        name=[rng.randrange(names) for _ in range(n)],
        device=[0] * n,
        start_us=[max(time(), -1) for _ in range(n)],
        end_us=[max(time(), -1) for _ in range(n)],
    )
    recording.labels = Labels(
        time_us=[max(time(), 0) for _ in range(n)],
        device=[0] * n,
        address=[int(rng.choice(events.address)) if len(events) else 0 for _ in range(n)],
        nbytes=[abs(rng.choice(NUMBERS)) % 2**53 for _ in range(n)],
        category=[rng.randrange(11) for _ in range(n)],
        name=[rng.randrange(-1, names) for _ in range(n)],
        how=[rng.randrange(5) for _ in range(n)],
    )
    recording.spans = Spans(
        kind=[rng.randrange(4) for _ in range(n)],
        name=[rng.randrange(-1, names) for _ in range(n)],
        thread=[rng.choice([0, 0, 1, 2**31 - 1]) for _ in range(n)],
        start_us=[max(time(), 0) for _ in range(n)],
        end_us=[max(time(), 0) for _ in range(n)],
        flags=[rng.randrange(4) for _ in range(n)],
    )
    if len(events) and rng.random() < 0.3:
        events.action[rng.randrange(len(events))] = ACTION["oom"]
