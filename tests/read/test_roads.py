"""The fast road through large pickles ends where plain dicts end."""

import pickle
import random

import pytest

from memwidget import read
from memwidget.read import load_recording, recording_from_snapshot, unpickle
from recordings import DECOY, assert_alike, difference, outcome, random_snapshot

FILES = [
    "annotated_transformer",
    "cuda_graph",
    "fragment",
    "gpt2_100k",
    "gpt2_small",
    "leak_features",
    "leak_loss",
    "no_leak_accumulate",
    "oom",
    "overflow",
    "seed_transformer",
    "segments_freed",
    "streams",
    "truth_transformer",
]


@pytest.fixture
def fast_only(monkeypatch):
    """Take the fast road for small pickles too, and no other."""

    def other_road(*_):
        pytest.fail("the fast road gave up")

    monkeypatch.setattr(read, "FAST_FROM", 0)
    monkeypatch.setattr(unpickle, "loads", other_road)


@pytest.fixture
def both(monkeypatch):
    """Take the fast road for small pickles too."""
    monkeypatch.setattr(read, "FAST_FROM", 0)


@pytest.mark.usefixtures("fast_only")
@pytest.mark.parametrize("name", FILES)
def test_real_files(name, data):
    content = read.unpacked((data / f"{name}.pickle.xz").read_bytes())
    assert difference(load_recording(content), recording_from_snapshot(pickle.loads(content))) == []


@pytest.mark.usefixtures("fast_only")
@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("seed", range(12))
def test_random_snapshots(seed, protocol):
    snapshot = random_snapshot(random.Random(seed), 1500 if seed < 4 else 300)
    assert difference(load_recording(pickle.dumps(snapshot, protocol)), recording_from_snapshot(snapshot)) == []


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("seed", range(60))
def test_odd_events_fare_alike(seed):
    snapshot = random_snapshot(random.Random(seed), 200, odd=0.002 * (seed % 5))
    assert_alike(outcome(pickle.dumps(snapshot, 4)), outcome(snapshot))


@pytest.mark.usefixtures("both")
def test_decoys_and_references_out_of_runs():
    # Whole records inside a string, lists of a trace that other places refer to, and the same trace twice.
    rows = [{"action": "alloc", "addr": 512 * i, "size": 512, "stream": 0, "frames": [{"line": i}]} for i in range(64)]
    inner = pickle.dumps(rows, 4)
    assert inner.count(DECOY) >= 64
    rows[40]["user_metadata"] = inner.decode("latin-1")
    rows += [{**rows[5], "action": "free_completed"} for _ in range(64)]
    segment = {"address": 0, "total_size": 512, "blocks": [], "frames": rows[7]["frames"]}
    for snapshot in (
        {"device_traces": [rows], "segments": [segment]},
        {"device_traces": [rows, rows], "segments": []},
        {"device_traces": [rows], "external_annotations": [], "segments": [segment], "allocator_settings": {"a": rows}},
    ):
        fast = load_recording(pickle.dumps(snapshot, 4))
        assert difference(fast, recording_from_snapshot(snapshot)) == []
        assert "alloc" in fast.strings[fast.events[0].metadata[40]]


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("seed", range(30))
def test_damaged_files_fare_alike(seed, monkeypatch):
    """Bytes changed at random: where the fast road gives a Recording, it is the plain road's."""
    random_ = random.Random(seed)
    content = bytearray(pickle.dumps(random_snapshot(random_, 60), 4))
    for _ in range(random_.choice([1, 1, 3])):
        content[random_.randrange(len(content))] = random_.choice([0, 0x28, 0x68, 0x75, 0x94, random_.randrange(256)])
    fast = outcome(bytes(content))
    monkeypatch.setattr(read, "FAST_FROM", 1 << 60)
    assert_alike(fast, outcome(bytes(content)))
