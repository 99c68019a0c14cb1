"""Our own archive and torch's pickle: what is saved comes back; what is forged does not."""

import io
import json
import pickle
import random
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memwidget import SnapshotError
from memwidget.read import archive, load_recording, recording_from_snapshot
from memwidget.read.coding import decode, encode
from memwidget.recording import Recording
from recordings import difference, outcome, random_snapshot

FILES = ["annotated_transformer", "cuda_graph", "gpt2_100k", "leak_loss", "oom", "overflow", "streams"]


@pytest.fixture(scope="module")
def oom(data):
    recording = load_recording(data / "oom.pickle.xz")
    recording.capacities = {0: 80 << 30}
    recording.facts = {"torch": "2.13.0", "seconds_dump": np.float64(0.5), "cell": 3, "max_entries": np.int64(7)}
    return recording


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", [".memtrace", ".pickle"])
def test_real_files_come_back(name, suffix, data, tmp_path):
    recording = load_recording(data / f"{name}.pickle.xz")
    archive.save(recording, tmp_path / (name + suffix))
    assert difference(load_recording(tmp_path / (name + suffix)), recording) == []


@pytest.mark.parametrize("seed", range(20))
def test_random_recordings_come_back(seed, tmp_path):
    recording = recording_from_snapshot(random_snapshot(random.Random(seed), 100), name="x")
    archive.save(recording, tmp_path / "x.memtrace")
    assert difference(load_recording(tmp_path / "x.memtrace"), recording) == []
    archive.save(recording, tmp_path / "x.pkl")
    assert difference(load_recording(tmp_path / "x.pkl"), recording) == []


def test_what_torch_has_no_place_for_comes_back(oom, tmp_path):
    archive.save(oom, str(tmp_path / "renamed.memtrace"))
    again = load_recording(tmp_path / "renamed.memtrace")
    assert again.capacities == {0: 80 << 30}
    assert again.facts == {"torch": "2.13.0", "seconds_dump": 0.5, "cell": 3, "max_entries": 7}
    assert again.name == "oom"


def test_the_official_tools_read_our_pickle(oom, tmp_path):
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    archive.save(oom, tmp_path / "x.pickle")
    content = (tmp_path / "x.pickle").read_bytes()
    assert content[:2] == b"\x80\x04"
    snapshot = pickle.loads(content)
    text = _memory_viz.trace(snapshot)
    assert f"{len(oom.events[0])} entries" in text


def test_archives_are_small_and_equal_for_equal_recordings(data, tmp_path):
    recording = load_recording(data / "gpt2_100k.pickle.xz")
    archive.save(recording, tmp_path / "x.memtrace")
    content = (tmp_path / "x.memtrace").read_bytes()
    assert len(content) < 32_626_282 / 25  # the pickle's size
    assert archive.to_bytes(load_recording(content)) == content


def test_other_suffixes_and_failures_leave_no_file(oom, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"name it \.memtrace"):
        archive.save(oom, tmp_path / "x.json")
    with pytest.raises(FileNotFoundError, match=r"nowhere/x\.memtrace'$"):
        archive.save(oom, tmp_path / "nowhere" / "x.memtrace")
    (tmp_path / "x.memtrace").write_text("old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        archive.save(oom, tmp_path / "x.memtrace")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.memtrace", "old")]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.uint64])
@settings(deadline=None)
@given(data=st.data())
def test_columns_come_back(dtype, data):
    few = data.draw(hnp.arrays(dtype, st.integers(1, 5)))
    for column in (
        data.draw(hnp.arrays(dtype, st.integers(0, 40))),
        np.resize(few, 600),
        np.sort(data.draw(hnp.arrays(dtype, st.integers(0, 300)))),
    ):
        how, parts = encode(column)
        again = decode(how, parts)
        assert again.dtype == column.dtype
        assert again.tolist() == column.tolist()


def members(recording):
    with zipfile.ZipFile(io.BytesIO(archive.to_bytes(recording))) as file:
        return {name: file.read(name) for name in file.namelist()}


def packed(files, method=zipfile.ZIP_DEFLATED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, content in files.items():
            file.writestr(zipfile.ZipInfo(name), content, method)
    return out.getvalue()


def npy(array, *, pickled=False):
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=pickled)
    return out.getvalue()


def test_cut_archives(oom):
    content = archive.to_bytes(oom)
    for end in [*range(200), *range(200, len(content), 97)]:
        with pytest.raises(SnapshotError):
            load_recording(content[:end])


class Evil:
    def __reduce__(self):
        return pytest.fail, ("an array was unpickled",)


def header_with(**changes):
    def change(files):
        header = json.loads(files[archive.HEADER])
        files[archive.HEADER] = json.dumps({**header, **changes}).encode()

    return change


def column_with(name, **changes):
    def change(files):
        header = json.loads(files[archive.HEADER])
        header["columns"][name].update(changes)
        files[archive.HEADER] = json.dumps(header).encode()

    return change


def array_with(name, content):
    return lambda files: files.update({name: content})


FORGED = {
    "newer": (header_with(version=2), "newer memwidget"),
    "foreign": (header_with(format="other"), "no .memtrace"),
    "no strings": (header_with(strings=[]), "out of range"),
    "strings of another type": (header_with(strings=[1]), "do not fit"),
    "streams of another type": (header_with(streams=["0"]), "do not fit"),
    "a missing device": (header_with(devices=[0, 1]), "do not fit"),
    "deep header": (array_with(archive.HEADER, b"[" * 100_000), "memory than there is"),
    "no json": (array_with(archive.HEADER, b"\xff"), "do not fit"),
    "a bomb of rows": (
        column_with("frames.source", rows=2**31 - 1, coding="constant", value=-1, parts=0),
        "more rows",
    ),
    "negative rows": (column_with("frames.source", rows=-1, coding="constant", value=-1, parts=0), "more rows"),
    "a state beyond": (
        column_with("segment_blocks.state", coding="constant", value=9, parts=0),
        "segment_blocks.state is out of range",
    ),
    "a stack beyond": (
        column_with("segments.stack", coding="constant", value=10**6, parts=0),
        "segments.stack is out of range",
    ),
    "another dtype": (column_with("segments.size", dtype="<f8"), "do not fit"),
    "objects": (array_with("events.0.address.0.npy", npy(np.array([Evil()]), pickled=True)), "do not fit"),
    "a shape that is not there": (
        array_with("events.0.address.0.npy", npy(np.zeros(4, np.uint8)).replace(b"(4,)", b"(9**9,)")),
        "do not fit",
    ),
    "a member that is missing": (lambda files: files.pop("events.0.address.0.npy"), "do not fit"),
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_archives(name, oom):
    files = members(oom)
    change, message = FORGED[name]
    change(files)
    with pytest.raises(SnapshotError, match=message):
        load_recording(packed(files))


def test_methods_without_a_bound_are_refused(oom):
    with pytest.raises(SnapshotError, match="do not fit"):
        load_recording(packed(members(oom), zipfile.ZIP_LZMA))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_changed_archives_give_a_recording_or_a_snapshot_error(oom, data):
    content = bytearray(archive.to_bytes(oom)) if data.draw(st.booleans()) else None
    if content is None:  # inside, where no checksum catches it
        files = members(oom)
        name = data.draw(st.sampled_from(sorted(files)))
        inner = bytearray(files[name])
        inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(st.integers(0, 255))
        content = bytearray(packed({**files, name: bytes(inner)}))
    else:
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    found = outcome(bytes(content))
    assert isinstance(found, Recording) or found.endswith(".")


LIMITED = """
import resource, sys
from memwidget import SnapshotError
from memwidget.read import load_recording
content = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20),) * 2)
try:
    load_recording(content)
except SnapshotError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the address space as Linux does")
def test_an_archive_of_zeros_is_refused(oom):
    files = members(oom)
    files["events.0.address.0.npy"] = npy(np.zeros(1 << 29, np.uint8))
    content = packed(files)
    done = subprocess.run([sys.executable, "-c", LIMITED], input=content, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert done.stdout.decode().endswith(".\n")
