"""What other tools read: flame graphs, Perfetto, DataFrames. The sums are the trace's own, read back from the files."""

import gzip
import json

import numpy as np
import pytest

import memwidget as mw
from memwidget.read import load_recording
from memwidget.trace.trace import Trace
from show.hand_made import first, hostile, labelled, without_time
from text_snapshot import snapshot

MIB = 1 << 20
PROGRAM = """
alloc a 3MiB @ torch/nn/init.py:7 init <- train.py:4 build <- train.py:90 <module>
alloc b 2MiB @ train.py:31 step <- train.py:91 <module>
alloc c 1MiB @ train.py:31 step <- train.py:91 <module>
free b
alloc d 512
"""


def test_folded_stacks_run_from_the_outside_in(tmp_path):
    trace = Trace(load_recording(snapshot(PROGRAM)))
    assert trace.to_flamegraph(tmp_path / "x.txt", at="end").read_text().splitlines() == [
        "(no Python stack) 512",
        f"<module> (train.py:90);build (train.py:4);init (init.py:7) {3 * MIB}",
        f"<module> (train.py:91);step (train.py:31) {MIB}",
    ]
    with pytest.raises(ValueError, match="Moments run"):
        trace.to_flamegraph(tmp_path / "y.txt", at=99)


@pytest.mark.parametrize("make", [first, labelled, hostile, without_time])
@pytest.mark.parametrize("at", ["peak", "end"])
def test_folded_stacks_add_up_to_allocated(make, at, tmp_path):
    trace = Trace(make())
    lines = trace.to_flamegraph(tmp_path / "x.txt", at).read_text(encoding="utf-8").splitlines()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == trace.curve("allocated")[trace.moment(at)]


@pytest.mark.parametrize("make", [first, labelled, hostile, without_time])
def test_perfetto_has_the_curves_the_bands_and_the_blocks(make, tmp_path):
    trace = Trace(make())
    content = json.loads(gzip.decompress(trace.to_perfetto(tmp_path / "x.json.gz").read_bytes()))
    events = content["traceEvents"]
    known = ["allocated", "reserved"] if trace.has_reserved else ["allocated"]
    assert trace.has_reserved == any(event["name"] == "reserved" for event in events)
    for name in known:
        values = [event["args"]["bytes"] for event in events if event["ph"] == "C" and event["name"] == name]
        curve = trace.curve(name)
        assert values == [curve[0], *curve[1:][np.diff(curve) != 0]]
    if trace.has_labels:
        finals = {event["name"]: event["args"]["bytes"] for event in events if event["ph"] == "C"}
        for name in known:
            del finals[name]
        assert {name: size for name, size in finals.items() if size} == {
            name.replace("_", " "): size for name, size in trace.by_category("end").items()
        }
    bands = [(event["cat"], event["name"]) for event in events if event["ph"] == "X"]
    assert bands == [(band.kind, band.name) for band in trace.bands]
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    starts, ends = ({e["id"]: e["ts"] for e in events if e["ph"] == phase} for phase in "be")
    assert starts.keys() == ends.keys() == {*range(trace.n_blocks)}
    assert all(0 <= starts[block] <= ends[block] for block in starts)
    assert sum(event["ph"] == "i" for event in events) == len(trace.oom_moments)


def test_a_long_history_keeps_its_peak_in_perfetto(data, tmp_path, monkeypatch):
    monkeypatch.setattr("memwidget.show.perfetto.MAX_VALUES", 100)
    monkeypatch.setattr("memwidget.show.perfetto.MAX_BLOCKS", 10)
    trace = mw.load(data / "gpt2_small.pickle.xz")
    events = json.loads(trace.to_perfetto(tmp_path / "x.json").read_text())["traceEvents"]
    assert (
        max(e["args"]["bytes"] for e in events if e["ph"] == "C" and e["name"] == "allocated") == trace.peak_allocated
    )
    sizes = sorted(e["args"]["bytes"] for e in events if e["ph"] == "b")
    assert sizes == np.sort(trace.blocks["size"])[-10:].tolist()


@pytest.mark.parametrize("make", [first, labelled, hostile, without_time])
def test_a_data_frame_has_a_row_a_block_and_words(make):
    trace = Trace(make())
    frame = trace.to_dataframe()
    assert len(frame) == trace.n_blocks
    live = frame.loc[trace.live_at("peak")]
    assert live["size"].sum() == trace.peak_allocated
    for column, ranking in (("category", trace.by_category()), ("site", trace.by_site())):
        sums = live["size"].groupby(live[column].astype(object).fillna("(no Python stack)"), observed=True).sum()
        assert sums.to_dict() == dict(ranking)
    names = ["" if name is None else name for name in frame["name"].astype(object).where(frame["name"].notna(), None)]
    assert names == [trace.label(block) for block in range(trace.n_blocks)]
    phases = [trace.bands[row].name if row >= 0 else None for row in trace.blocks["phase"]]
    assert [None if value != value else value for value in frame["phase"].tolist()] == phases  # noqa: PLR0124
