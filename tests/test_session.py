"""`memtrace`, `start`, `stop` and `load`, as a script uses them."""

import gc
import io
import os
import subprocess
import sys
import weakref

import pytest
import torch

import memwidget as mw
from memwidget.session import Progress


def test_the_block_is_recorded_and_its_error_goes_on_unkept():
    with mw.memtrace("step", backend="cpu") as rec:
        kept = torch.ones(10)
    assert (rec.trace.name, rec.trace.allocated) == ("step", kept.untyped_storage().nbytes())
    assert rec.traces == (rec.trace,)
    assert rec.snapshot is None

    class Held(Exception):  # noqa: N818
        pass

    def fails():
        error = Held("out")
        refs.append(weakref.ref(error))
        big = torch.ones(1000)
        refs.append(weakref.ref(big))
        raise error

    refs = []
    rec = mw.memtrace(backend="cpu")
    try:
        with rec:
            fails()
    except Held:
        pass
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    assert rec.trace.peak_allocated == 4000


def test_a_trace_asked_for_too_early_says_when():
    rec = mw.memtrace(backend="cpu")
    with pytest.raises(RuntimeError, match="Nothing was recorded"):
        _ = rec.trace
    with rec, pytest.raises(RuntimeError, match="still runs"):
        _ = rec.trace
    with pytest.raises(RuntimeError, match="used before"):
        rec.__enter__()
    assert "nothing was allocated" in rec._repr_mimebundle_()[0]["text/plain"]


def test_switched_off_it_does_nothing():
    with mw.memtrace(enabled=False) as rec:
        assert not torch._C._autograd._profiler_enabled()
        rec.step()
        with rec.phase("forward"):
            pass
    with pytest.raises(RuntimeError, match="enabled=False"):
        _ = rec.trace
    assert repr(rec) == "<memtrace(): off (enabled=False)>"
    mw.start(enabled=False)
    assert mw.stop() is None


def test_start_and_stop():
    with pytest.raises(RuntimeError, match=r"No recording runs: start\(\) begins one"):
        mw.stop()
    rec = mw.start("both", backend="cpu")
    with pytest.raises(RuntimeError, match=r"already runs, from an earlier start\(\)"):
        mw.start()
    kept = torch.ones(10)
    rec.step()
    trace = mw.stop()
    assert (trace.name, trace.allocated) == ("both", 4 * kept.numel())
    assert len(trace.recording.facts["steps"]) == 1
    with pytest.raises(RuntimeError, match="No recording runs"):
        mw.stop()
    with pytest.raises(ValueError, match="stacks='some'"):
        mw.start(stacks="some")
    mw.start(backend="cpu")
    mw.stop()


def test_phases_end_where_their_block_does_even_by_an_error():
    with mw.memtrace(backend="cpu") as rec:
        with pytest.raises(ZeroDivisionError), rec.phase("forward"):
            kept = [torch.ones(10), 1 / 0]
        kept = torch.ones(20)
    recording = rec.recording
    (row,) = recording.facts["phases"]
    assert recording.strings[recording.annotations.name[row]] == "forward"
    first, *_, last = recording.events[0].time_us
    assert recording.annotations.start_us[row] <= first <= recording.annotations.end_us[row] <= last
    assert kept.numel() == 20


def test_a_saved_recording_opens_again(tmp_path):
    with mw.memtrace("kept", backend="cpu", save=tmp_path / "x.memtrace") as rec:
        kept = torch.ones(10)
    again = mw.load(tmp_path / "x.memtrace")
    assert again.name == "kept"
    assert again.allocated == kept.untyped_storage().nbytes()
    assert again.site(0) == rec.trace.site(0)
    assert again.site(0).source == "kept = torch.ones(10)"
    with pytest.raises(ValueError, match=r"must end in \.memtrace"):
        mw.memtrace(save=tmp_path / "x.txt")


def test_load_takes_device_and_capacity():
    snapshot = {
        "segments": [],
        "device_traces": [
            [{"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": []}],
            [{"action": "alloc", "addr": 512, "size": 2048, "stream": 0, "frames": []}],
        ],
    }
    assert mw.load(snapshot).device == 1
    trace = mw.load(snapshot, device=0, capacity=80 << 30)
    assert (trace.device, trace.peak_allocated, trace.capacity) == (0, 512, 80 << 30)


def test_progress_is_one_line_on_a_terminal_and_nothing_in_a_log():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, expected in (
        (Terminal(), "\rmemwidget: reading 10%\rmemwidget: reading 20%\r" + " " * 22 + "\r"),
        (io.StringIO(), ""),
    ):
        progress = Progress(stream)
        for fraction in (0.1, 0.1, 0.2):
            progress(fraction, "reading")
        progress.close()
        assert stream.getvalue() == expected


def test_reading_a_file_loads_no_torch(root):
    code = (
        "import sys, memwidget as mw\n"
        "assert not {'torch', 'IPython', 'anywidget', 'bokeh'} & set(sys.modules)\n"
        "trace = mw.load(sys.argv[1])\n"
        "assert trace.peak_allocated > 0 and not {'torch', 'IPython', 'bokeh'} & set(sys.modules)\n"
    )
    sample = root / "src" / "memwidget" / "sample.pickle.xz"
    subprocess.run([sys.executable, "-c", code, str(sample)], check=True, timeout=120)


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of forking beside torch's own threads
import torch
import memwidget as mw

rec = mw.start("parent", backend="cpu", deep=True)
with mw.memtrace(enabled=False), torch.no_grad():
    first = torch.ones(1000)
child = os.fork()
if child == 0:
    said = []
    for ask in (mw.stop, lambda: rec.trace, rec.end):
        try:
            ask()
        except RuntimeError as error:
            said.append(str(error))
    with mw.memtrace(backend="cpu") as own:  # and may record for itself
        kept = torch.nn.Linear(4, 4)(torch.ones(10, 4)).sum()
        kept.backward()
    fine = len(said) == 3 and all("was forked from the one that records" in s for s in said)
    os._exit(0 if fine and own.trace.peak_allocated > 0 and not rec.recording_now else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
second = torch.ones(1000)
trace = mw.stop()
print(status, trace.allocated)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_does_not_record_and_the_parent_goes_on():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["0", "8000"], done.stderr
