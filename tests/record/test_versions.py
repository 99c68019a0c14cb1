"""Each row of the table of torch's differences: found by what is there, and said where something is lost."""

import sys
import types
from pathlib import Path

import pytest

import memwidget as mw
import memwidget.record.watch  # with the real torch: the stand-in below is for the recorder alone
from fake_torch import PARAMETERS, make, number
from memwidget.record import RecorderError
from memwidget.record.versions import DIFFERENCES, has
from memwidget.recording import ACTIONS

HAS_FROM = {
    "words": "2.1",
    "c++ stacks": "2.0",
    "cleared on start": "2.8",
    "asked whether on": "2.2",
    "times": "2.2",
    "light snapshot": "2.11",
}


@pytest.fixture
def torch_is(monkeypatch):
    def install(*args, **options):
        torch = make(*args, **options)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    return install


def recorded(torch, **options):
    with mw.memtrace(**options) as rec:
        torch.alloc(0, 512)
    return rec.trace


@pytest.mark.parametrize("version", PARAMETERS)
@pytest.mark.parametrize("what", HAS_FROM)
def test_what_a_version_has_is_found_without_its_number(torch_is, version, what):
    torch = torch_is(version)
    torch.__version__ = "9.9"
    assert has(what, torch, "cuda") == (number(version) >= number(HAS_FROM[what]))


def test_every_row_has_a_test_here():
    text = Path(__file__).read_text("utf-8")
    assert [what for what in DIFFERENCES if f'"{what}"' not in text] == []


def test_no_history(torch_is):
    torch = torch_is()
    del torch.cuda.memory._record_memory_history
    assert not has("history", torch, "cuda")
    with pytest.raises(RecorderError, match=r"keeps no memory history for CUDA: update to 2\.1 or newer"):
        mw.memtrace(backend="cuda").begin()
    torch = torch_is("2.8", "xpu")
    del torch.xpu.memory._record_memory_history
    with pytest.raises(RecorderError, match=r"keeps no memory history for XPU: update to 2\.11 or newer"):
        mw.memtrace(backend="xpu").begin()


def test_words_that_a_version_lacks_are_said_and_left_out(torch_is):
    torch = torch_is(takes=("enabled", "stacks", "context"))
    assert has("words", torch, "cuda")
    trace = recorded(torch)
    assert torch.calls[0] == {"enabled": "all", "stacks": "python", "context": "alloc"}
    assert "This PyTorch's history has no option 'max_entries': it was left out." in trace.notes


def test_no_cpp_stacks(torch_is):
    torch = torch_is("2.0", takes=PARAMETERS["2.0"][:-1])
    assert not has("c++ stacks", torch, "cuda")
    trace = recorded(torch, stacks="all")
    assert DIFFERENCES["c++ stacks"].missing in trace.notes
    assert trace.recording.facts["stacks"] == "python"


def test_a_torch_that_cannot_be_asked_whether_it_records_is_looked_at(torch_is):
    torch = torch_is("2.1")
    assert not has("asked whether on", torch, "cuda")
    torch.cuda.memory._record_memory_history(enabled="all")
    torch.alloc(512, 512)
    del torch.calls[:]
    assert recorded(torch).allocated == 1024
    assert torch.calls == []  # somebody else's: neither cleared nor switched off


def test_a_history_is_cleared_only_where_torch_can(torch_is):
    for version in ("2.7", "2.8"):
        torch = torch_is(version)
        recorded(torch)
        assert ("clear_history" in torch.calls[0]) == has("cleared on start", torch, "cuda") == (version == "2.8")


def test_events_without_time_are_told(torch_is):
    assert any("gives its events no time" in note for note in recorded(torch_is("2.1")).notes)
    assert not any("gives its events no time" in note for note in recorded(torch_is("2.7")).notes)


@pytest.mark.parametrize("version", ["2.8", "2.11"])
def test_a_light_snapshot_marks_the_place_where_there_is_one(torch_is, monkeypatch, version):
    torch = torch_is(version)
    assert has("light snapshot", torch, "cuda") == (version == "2.11")
    torch.cuda.memory._record_memory_history(enabled="all")
    taken = []
    full = torch.cuda.memory._snapshot
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: taken.append(1) or full())
    recorded(torch)
    assert len(taken) == (1 if version == "2.11" else 2)


@pytest.mark.parametrize(
    ("what", "name"),
    [("allocator's name", "get_allocator_backend"), ("counters", "memory_stats"), ("free memory", "mem_get_info")],
)
def test_what_is_only_looked_at_may_be_missing(torch_is, what, name):
    torch = torch_is()
    torch.cuda.mem_get_info = lambda _=0: (10, 20)
    assert has(what, torch, "cuda")
    delattr(torch.cuda.memory if what == "allocator's name" else torch.cuda, name)
    assert not has(what, torch, "cuda")
    assert recorded(torch).allocated == 512


def test_xpu_takes_its_own_options(torch_is):
    torch = torch_is("2.11", "xpu")
    trace = recorded(torch)
    assert torch.calls[0] == {
        "enabled": "all",
        "context": "alloc",
        "stacks": "python",
        "max_entries": 200_000,
        "clear_history": True,
    }
    assert (trace.device_type, trace.allocated, trace.has_time) == ("xpu", 512, True)
    assert not has("asked whether on", torch, "xpu")


def test_several_devices_have_their_own_history_and_capacity(torch_is):
    torch = torch_is()
    torch.second = [
        {"action": "alloc", "addr": 4096, "size": 2048, "stream": 0, "time_us": 5, "frames": []},
        {"action": "alloc", "addr": 8192, "size": 2048, "stream": 0, "time_us": 6, "frames": []},
    ]
    with mw.memtrace(device=1) as rec:
        torch.alloc(0, 512)
    assert (rec.trace.device, rec.trace.devices, rec.trace.allocated) == (1, (0, 1), 4096)
    assert rec.trace.capacity == rec.trace.for_device(0).capacity + 1


@pytest.mark.parametrize("first", ["free, then alloc", "alloc elsewhere", "both, and again at the same place"])
def test_a_thread_that_allocates_while_the_snapshot_is_taken_loses_nothing(torch_is, first):
    torch = torch_is()
    once = []

    def meanwhile():
        if once:
            return
        once.append(1)
        if first != "alloc elsewhere":
            torch.free(0)
        torch.alloc(1024 if first != "both, and again at the same place" else 0, 512)

    with mw.memtrace() as rec:
        torch.alloc(0, 512)
        torch.alloc(512, 512)
        torch.meanwhile = meanwhile
    trace = rec.trace
    live = {0: 512, 512: 512, 1024: 512}
    if first == "free, then alloc":
        del live[0]
    elif first == "both, and again at the same place":
        del live[1024]
    blocks = trace.blocks[trace.live_at("end")]
    assert dict(zip(blocks["address"].tolist(), blocks["size"].tolist(), strict=True)) == live
    assert (blocks["alloc_event"] >= 0).all()  # none that "existed before"
    assert any("Another thread allocated while" in note for note in trace.notes)
    assert not any("live by the history but not" in note for note in trace.notes)
    assert "snapshot" not in [ACTIONS[code] for code in trace.events.action]


def test_the_gap_is_cut_where_segments_agree(torch_is):
    """What comes after the segments were written down is not part of the recording."""
    torch = torch_is()
    with mw.memtrace() as rec:
        torch.alloc(0, 512)
        calls = []

        def meanwhile():
            calls.append(1)
            torch.alloc(512 * len(calls), 512)  # before the first segments, and again before the second

        torch.meanwhile = meanwhile
    assert rec.trace.allocated == 1024
    assert rec.trace.n_events == 2


def test_a_second_failure_of_the_snapshot_is_one_sentence(torch_is):
    torch = torch_is()
    torch.cuda.memory.memory_snapshot = types.FunctionType(
        (lambda include_traces: 1 / include_traces).__code__, {}, "memory_snapshot"
    )
    rec = mw.memtrace(stacks="all")
    rec.begin()
    torch.snapshot_error = RuntimeError("stoi\nmore")
    with pytest.raises(RecorderError, match=r"could not give its memory history: stoi$") as caught:
        rec.end()
    assert caught.value.__context__ is None
    assert not torch.on
