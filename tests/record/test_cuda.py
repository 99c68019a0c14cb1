"""The CUDA recorder's manners, against a stand-in for torch; tests/gpu has the real thing."""

import sys

import pytest

import memwidget as mw
import memwidget.record.watch  # with the real torch: the stand-in below is for the recorder alone
from fake_torch import CAPACITY, PARAMETERS, make
from memwidget.record import RecorderError
from memwidget.recording import ACTIONS

OFF = {"enabled": None}


@pytest.fixture
def torch_is(monkeypatch):
    def install(*args, **options):
        torch = make(*args, **options)
        monkeypatch.setitem(sys.modules, "torch", torch)
        return torch

    for name in ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"):
        monkeypatch.delenv(name, raising=False)
    return install


def actions(trace):
    return [ACTIONS[code] for code in trace.events.action]


@pytest.mark.parametrize("version", PARAMETERS)
def test_every_version_records_and_is_switched_off_again(torch_is, version):
    torch = torch_is(version)
    torch.alloc(0, 512)  # before
    with mw.memtrace("step") as rec:
        torch.alloc(512, 1024)
        torch.alloc(2048, 512)
        torch.free(512)
    trace = rec.trace
    assert actions(trace) == ["alloc", "alloc", "free_requested", "free_completed"]
    assert (trace.peak_allocated, trace.allocated) == (512 + 1024 + 512, 512 + 512)
    assert trace.capacity == CAPACITY
    assert not torch.on
    first, last = torch.calls
    if version == "2.0":
        assert first == {
            "enabled": True,
            "record_context": True,
            "trace_alloc_max_entries": 200_000,
            "trace_alloc_record_context": True,
            "_enable_expensive_cpp": False,
        }
        assert last == {"enabled": False}
    else:
        clear = {"clear_history": True} if "clear_history" in PARAMETERS[version] else {}
        assert first == {"enabled": "all", "context": "alloc", "stacks": "python", "max_entries": 200_000, **clear}
        assert last == OFF


def test_facts_and_cost_are_kept(torch_is):
    torch = torch_is()
    with mw.memtrace(stacks="all", context="all", max_entries=1000) as rec:
        torch.alloc(0, 512)
    facts = rec.trace.recording.facts
    assert {
        "backend": "cuda",
        "torch": "2.11",
        "device_name": "Fake H200",
        "stacks": "all",
        "context": "all",
        "max_entries": 1000,
    }.items() <= facts.items()
    assert {"seconds_start", "seconds_snapshot", "seconds_reading"} <= facts.keys()
    assert rec.snapshot["device_traces"][0][0]["action"] == "alloc"


def test_context_none_and_state(torch_is):
    torch = torch_is()
    for context, given in (("none", None), ("state", "state")):
        with mw.memtrace(context=context):
            pass
        assert torch.calls[-2]["context"] == given


@pytest.mark.parametrize("version", ["2.1", "2.8", "2.11"])
def test_a_history_that_already_runs_is_only_read(torch_is, version):
    torch = torch_is(version)
    torch.cuda.memory._record_memory_history(enabled="all", max_entries=1000)
    torch.alloc(0, 512)
    torch.alloc(512, 512)
    del torch.calls[:]
    with mw.memtrace() as rec:
        torch.free(512)
        torch.alloc(1024, 2048)
    assert torch.calls == []
    assert torch.on
    assert [e["action"] for e in torch.trace if e["action"] != "snapshot"] == [
        "alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "alloc",
    ]
    assert [a for a in actions(rec.trace) if a != "snapshot"] == ["free_requested", "free_completed", "alloc"]
    assert rec.trace.curve("allocated")[[0, -1]].tolist() == [1024, 512 + 2048]
    assert any("it was left as it is" in note for note in rec.trace.notes)
    assert "max_entries" not in rec.trace.recording.facts


def test_one_recording_inside_another(torch_is):
    torch = torch_is()
    with mw.memtrace("outer") as outer:
        torch.alloc(0, 512)
        with mw.memtrace("inner") as inner:
            torch.alloc(512, 1024)
        assert torch.on
        torch.alloc(2048, 512)
    assert not torch.on
    assert inner.trace.allocated == 512 + 1024
    assert [a for a in actions(inner.trace) if a != "snapshot"] == ["alloc"]
    assert [a for a in actions(outer.trace) if a != "snapshot"] == ["alloc"] * 3


def test_a_running_history_too_short_for_the_window_is_told(torch_is):
    torch = torch_is()
    torch.cuda.memory._record_memory_history(enabled="all", max_entries=3)
    with mw.memtrace() as rec:
        for address in range(0, 5120, 512):
            torch.alloc(address, 512)
    assert actions(rec.trace) == ["alloc"] * 3
    assert rec.trace.allocated == 5120
    assert any("its start may be missing" in note for note in rec.trace.notes)


def test_a_full_ring_is_told(torch_is):
    torch = torch_is()
    with mw.memtrace(max_entries=4) as rec:
        for address in range(0, 5120, 512):
            torch.alloc(address, 512)
    assert rec.trace.n_events == 4
    assert rec.trace.allocated == 5120
    assert any("max_entries=4" in note and "overwritten" in note for note in rec.trace.notes)


def test_an_unwinder_that_fails_gives_python_stacks(torch_is):
    torch = torch_is()

    def fail_on(stacks=None, **_):
        if stacks == "all":
            raise RuntimeError("INTERNAL ASSERT FAILED at unwind.cpp:12\nplease report a bug")

    torch.fail_on = fail_on
    with mw.memtrace(stacks="all") as rec:
        torch.alloc(0, 512)
    assert rec.trace.allocated == 512
    assert rec.trace.recording.facts["stacks"] == "python"
    (note,) = [note for note in rec.trace.notes if "C++ stacks are not to be had here" in note]
    assert "unwind.cpp:12" in note
    assert "please report" not in note
    assert torch.calls[-1] == OFF


def test_a_history_that_cannot_be_switched_on_is_one_sentence(torch_is):
    torch = torch_is()

    def fail_on(enabled=None, **_):
        if enabled:
            raise RuntimeError("no history today")

    torch.fail_on = fail_on
    with pytest.raises(RecorderError, match="could not switch its memory history on: no history today"):
        mw.memtrace().__enter__()
    with mw.memtrace(enabled=False):
        pass


@pytest.mark.parametrize("version", ["2.8", "2.11"])
def test_a_snapshot_that_fails_leaves_the_state_at_the_end(torch_is, version):
    torch = torch_is(version)
    rec = mw.memtrace(stacks="all")
    rec.__enter__()
    torch.alloc(0, 512)
    torch.snapshot_error = ValueError("stoi")
    if version == "2.8":
        with pytest.raises(RecorderError, match="could not give its memory history: stoi"):
            rec.__exit__(None, None, None)
    else:
        rec.__exit__(None, None, None)
        assert rec.trace.allocated == 512
        assert any("only the state at the end is shown" in note for note in rec.trace.notes)
    assert torch.calls[-1] == OFF
    assert not torch.on


def test_what_torch_gave_is_kept_when_reading_it_fails(torch_is, monkeypatch):
    from memwidget.record import cuda

    def broken(_):
        raise MemoryError("too large")

    monkeypatch.setattr(cuda, "recording_from_snapshot", broken)
    torch = torch_is()
    rec = mw.memtrace()
    with pytest.raises(MemoryError), rec:
        torch.alloc(0, 512)
    assert rec.snapshot["device_traces"][0][0]["size"] == 512
    assert not torch.on


def test_the_error_of_the_block_is_the_one_that_goes_on(torch_is, capsys):
    torch = torch_is()
    torch.snapshot_error = RuntimeError("lost")
    torch.cuda.memory.memory_snapshot = list
    with pytest.raises(KeyError), mw.memtrace():
        raise KeyError("the block's own")
    assert (
        "memwidget could not keep the recording: PyTorch could not give its memory history: lost"
        in capsys.readouterr().err
    )


def test_a_history_switched_off_inside_is_told(torch_is):
    torch = torch_is()
    with mw.memtrace() as rec:
        torch.alloc(0, 512)
        torch.cuda.memory._record_memory_history(enabled=None)
    assert rec.trace.allocated == 512
    assert any("switched off inside the recording" in note for note in rec.trace.notes)


def test_allocators_without_history_are_refused(torch_is, monkeypatch):
    for allocator, words in (
        ("cudaMallocAsync", "take backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF"),
        ("pluggable", r"\(pluggable\) keeps no history"),
    ):
        torch = torch_is(allocator=allocator)
        with pytest.raises(RecorderError, match=words), mw.memtrace():
            pass
        assert torch.calls == []
    for name, value in (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"), ("PYTORCH_NO_HIP_MEMORY_CACHING", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)  # torch asks whether it is set, not to what
            torch_is()
            with pytest.raises(RecorderError, match=f"{name} is set.*unset it and restart"), mw.memtrace():
                pass


def test_no_device_and_no_torch(torch_is, monkeypatch):
    torch_is(available=False)
    with (
        pytest.raises(RecorderError, match="finds no CUDA device here: use backend='cpu'"),
        mw.memtrace(backend="cuda"),
    ):
        pass
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RecorderError, match="run `pip install torch`"), mw.memtrace():
        pass


def test_xpu_is_recorded_the_same_way(torch_is):
    torch = torch_is("2.11", "xpu")
    with mw.memtrace() as rec:
        torch.alloc(0, 512)
    assert rec.trace.device_type == "xpu"
    assert rec.trace.allocated == 512


def test_steps_and_phases(torch_is):
    torch = torch_is()
    with mw.memtrace() as rec:
        with rec.phase("forward"):
            torch.alloc(0, 512)
        rec.step()
        torch.alloc(512, 512)
    recording = rec.recording
    (row,) = recording.facts["phases"]
    assert recording.strings[recording.annotations.name[row]] == "forward"
    start, end = recording.annotations.start_us[row], recording.annotations.end_us[row]
    (step,) = recording.facts["steps"]
    times = recording.events[0].time_us
    assert start <= times[0] <= end <= step <= times[1]


def test_a_pickle_opens_again(torch_is, tmp_path):
    torch = torch_is()
    with mw.memtrace("both", save=tmp_path / "t.pickle") as rec:
        torch.alloc(0, 512)
    again = mw.load(tmp_path / "t.pickle")
    assert again.blocks["size"].tolist() == rec.trace.blocks["size"].tolist() == [512]
