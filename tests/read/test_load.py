"""Sources: paths, bytes, files, dicts; plain or compressed; told by content."""

import gzip
import io
import lzma
import pickle
import subprocess
import sys

import pytest
import zstandard

from memwidget import SnapshotError, read
from memwidget.read import load_recording, recording_from_snapshot, unpickle
from recordings import difference


@pytest.fixture(scope="module")
def snapshot(data):
    return pickle.loads(lzma.decompress((data / "oom.pickle.xz").read_bytes()))


@pytest.fixture(scope="module")
def expected(snapshot):
    return recording_from_snapshot(snapshot)


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol(protocol, snapshot, expected):
    assert difference(load_recording(pickle.dumps(snapshot, protocol)), expected) == []


@pytest.mark.parametrize("protocol", range(6))
def test_the_python_pickler_too(protocol, snapshot, expected):
    out = io.BytesIO()
    pickle._Pickler(out, protocol).dump(snapshot)
    assert difference(load_recording(out.getvalue()), expected) == []


@pytest.mark.parametrize(
    "compress", [gzip.compress, lzma.compress, zstandard.compress, bytes], ids=lambda c: c.__module__
)
def test_compressed_under_any_name(compress, snapshot, expected, tmp_path):
    content = compress(pickle.dumps(snapshot))
    path = tmp_path / "run.7.dat"
    path.write_bytes(content)
    with path.open("rb") as file:
        sources = [content, bytearray(content), memoryview(content), path, str(path), io.BytesIO(content), file]
        for source in sources:
            assert difference(load_recording(source), expected, skip={"name"}) == []


def test_several_compressed_parts_in_a_row(snapshot, expected):
    content = pickle.dumps(snapshot)
    for compress in (gzip.compress, lzma.compress, zstandard.compress):
        parts = compress(content[:1000]) + compress(content[1000:])
        assert difference(load_recording(parts), expected) == []
    streamed = zstandard.ZstdCompressor().compressobj()  # without the size in its header
    assert difference(load_recording(streamed.compress(content) + streamed.flush()), expected) == []


def test_names(snapshot, tmp_path, monkeypatch):
    for file_name, name in [("a.pickle", "a"), ("b.v2.pkl.gz", "b.v2"), ("c", "c"), (".pickle", ".pickle")]:
        path = tmp_path / file_name
        path.write_bytes(pickle.dumps(snapshot))
        assert load_recording(path).name == name
        with path.open("rb") as file:
            assert load_recording(file).name == name
    assert load_recording(path, name="mine").name == "mine"
    assert load_recording(snapshot, name="mine").name == "mine"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_recording("~/a.pickle").name == "a"


def test_sources_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_recording(tmp_path / "missing.pickle")
    with pytest.raises(SnapshotError, match="is a folder"):
        load_recording(tmp_path)
    with pytest.raises(SnapshotError, match="mode 'rb'"):
        load_recording(io.StringIO("text"))
    with pytest.raises(SnapshotError, match="Cannot read a recording from int"):
        load_recording(3)


@pytest.mark.parametrize("protocol", [2, 4])
def test_progress(protocol, data, monkeypatch):
    monkeypatch.setattr(read, "PROGRESS_FROM", 1 << 20)
    monkeypatch.setattr(unpickle, "REPORT_EVERY", 1 << 18)
    content = pickle.dumps(pickle.loads(lzma.decompress((data / "gpt2_small.pickle.xz").read_bytes())), protocol)
    seen = []
    load_recording(content, progress=lambda fraction, text: seen.append((fraction, text)))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert len(seen) > 4
    assert seen[-1][0] == 1.0
    assert all(0 < fraction <= 1 and text for fraction, text in seen)


def test_small_files_report_nothing(snapshot):
    load_recording(pickle.dumps(snapshot), progress=lambda *_: pytest.fail("too small for progress"))


def test_zstd_missing_is_one_sentence(snapshot, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(SnapshotError, match="pip install zstandard"):
        load_recording(zstandard.compress(pickle.dumps(snapshot)))


def test_reading_needs_neither_torch_nor_widgets(data):
    code = """
import sys
from memwidget.read import load_recording
load_recording(sys.argv[1])
print(sorted({"torch", "anywidget", "bokeh", "IPython", "zstandard"} & set(sys.modules)))
"""
    path = data / "streams.pickle.xz"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_collector_is_left_as_found(snapshot):
    import gc

    content = pickle.dumps(snapshot)
    load_recording(content)
    assert gc.isenabled()
    gc.disable()
    try:
        load_recording(content)
        assert not gc.isenabled()
    finally:
        gc.enable()
