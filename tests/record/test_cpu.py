"""The CPU recorder against torch itself: lines, sizes, order, and what it must not keep alive."""

import gc
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import memwidget as mw
from memwidget.record import RecorderError
from memwidget.recording import ACTION

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def line(tag):
    (found,) = [number for number, text in enumerate(SOURCE, 1) if text.rstrip().endswith(f"# {tag}")]
    return found


def bytes_by_line(trace):
    """Bytes allocated by each line of this file, over the whole recording."""
    sums = {}
    for block in range(trace.n_blocks):
        site = trace.site(block)
        assert site is not None, f"{trace.blocks['size'][block]} bytes without a line"
        assert Path(site.filename).name == "test_cpu.py"
        sums[site.line] = sums.get(site.line, 0) + int(trace.blocks["requested"][block])
    return sums


def test_every_operator_is_given_the_line_that_ran():
    layer = torch.nn.Linear(256, 128)
    given = torch.ones(64, 256)
    kept = []

    def made_by_a_function():
        return torch.zeros(500)  # made in a function

    with mw.memtrace() as rec:
        kept.append(torch.ones(1000))  # a factory
        kept.append(kept[0] + kept[0])  # an operator
        kept.append(kept[0] + 1)  # an operator with a number
        kept.append(torch.tensor([1.0, 2.0, 3.0, 4.0]))  # data from Python
        kept.append(made_by_a_function())
        kept.append([torch.full((n,), 7.0) for n in (10, 20)])  # two of a comprehension
        out = layer(given)  # forward
        out.backward(torch.ones(64, 128))  # backward
    sums = bytes_by_line(rec.trace)
    # The number becomes a tensor for a moment, and is cast; that is of the same line.
    assert 4000 < sums.pop(line("an operator with a number")) <= 4000 + 32
    assert sums == {
        line("a factory"): 4000,
        line("an operator"): 4000,
        line("data from Python"): 16,
        line("made in a function"): 2000,
        line("two of a comprehension"): 120,
        line("forward"): 64 * 128 * 4,
        # The gradient that is passed in, that of the weight, and that of the bias.
        line("backward"): 64 * 128 * 4 + 256 * 128 * 4 + 128 * 4,
    }
    assert rec.trace.recording.device_type == "cpu"
    source = rec.trace.site(0).source
    assert source == "kept.append(torch.ones(1000))  # a factory"


def test_backward_through_python_code_has_the_line_inside_it():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, gradient):
            return gradient + gradient  # inside backward

    x = torch.ones(1000, requires_grad=True)
    with mw.memtrace() as rec:
        Doubled.apply(x).sum().backward()
    assert bytes_by_line(rec.trace)[line("inside backward")] == 4000


def test_what_lives_at_the_end_is_what_the_tensors_hold():
    torch.manual_seed(0)
    with mw.memtrace() as rec:
        net = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10))
        optimizer = torch.optim.Adam(net.parameters(), foreach=False)
        net(torch.randn(8, 100)).sum().backward()
        optimizer.step()
    tensors = [*net.parameters(), *(p.grad for p in net.parameters())]
    tensors += [v for state in optimizer.state.values() for v in state.values()]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    trace = rec.trace
    live = trace.live_at("end")
    assert (
        dict(zip(trace.blocks["address"][live].tolist(), trace.blocks["size"][live].tolist(), strict=True)) == storages
    )
    assert trace.allocated == trace.active == trace.reserved == sum(storages.values())
    assert trace.peak_allocated > trace.allocated


def test_sums_agree_with_what_torch_profiler_counts():
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    data = torch.ones(32, 64)

    def work():
        net(data).square().mean().backward()

    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    counted = [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    with mw.memtrace() as rec:
        work()
    events = rec.recording.events[0]
    allocated = events.size[events.action == ACTION["alloc"]]
    freed = events.size[events.action == ACTION["free_completed"]]
    assert sorted([*allocated.tolist(), *(-freed).tolist()]) == sorted(counted)
    assert np.array_equal(freed, events.size[events.action == ACTION["free_requested"]])
    assert (np.diff(events.time_us) >= 0).all()


def test_nothing_recorded_is_kept_alive():
    with mw.memtrace() as rec:
        net = torch.nn.Linear(100, 100)
        out = net(torch.ones(1, 100))
        alive = [weakref.ref(net.weight), weakref.ref(out)]
        del net, out
        gc.collect()
        assert [ref() for ref in alive] == [None, None]
    assert rec.trace.allocated == 0


def test_a_freed_block_says_where_only_if_asked():
    def work():
        held = torch.ones(1000, requires_grad=True)
        (held.exp() * 2).sum().backward()  # frees in backward

    with mw.memtrace(context="alloc") as rec:
        work()
    frees = rec.recording.events[0].action == ACTION["free_requested"]
    assert (rec.recording.events[0].stack[frees] == -1).all()
    with mw.memtrace(context="all") as rec:
        work()
    events = rec.recording.events[0]
    freed_inside_an_operator = events.stack[(events.action == ACTION["free_requested"]) & (events.stack >= 0)]
    assert {rec.trace.frame(row).line for row in rec.trace.stack_site[freed_inside_an_operator]} <= {
        line("frees in backward")
    }
    with mw.memtrace(context="none") as rec:
        work()
    assert (rec.trace.blocks["stack"] == -1).all()
    with mw.memtrace(context="state") as rec:
        work()
        kept = torch.ones(77)
    with_stack = rec.trace.blocks["size"][rec.trace.blocks["stack"] >= 0]
    assert with_stack.tolist() == [kept.untyped_storage().nbytes()]


def test_a_bare_storage_has_no_line_and_says_why():
    with mw.memtrace() as rec:
        kept = torch.ones(10)
        bare = torch.UntypedStorage(1000)
    (block,) = (rec.trace.blocks["requested"] == bare.nbytes()).nonzero()[0]
    assert rec.trace.site(block) is None
    assert "outside any operator" in rec.trace.no_stack_reason(block)
    assert kept.numel() == 10


def test_scopes_of_the_user_become_annotations():
    with mw.memtrace() as rec:
        with torch.profiler.record_function("forward"):
            a = torch.ones(10)
        b = torch.ones(20)
    (band,) = [band for band in rec.trace.bands if band.name == "forward"]
    inside = [row for row in range(rec.trace.n_blocks) if band.lo <= rec.trace.blocks["alloc_event"][row] < band.hi]
    assert rec.trace.blocks["size"][inside].tolist() == [a.untyped_storage().nbytes()]
    assert b.numel() == 20


def test_a_recording_that_grows_too_long_stops_by_itself():
    with mw.memtrace(max_entries=30) as rec:
        for _ in range(100):
            torch.ones(10)
        assert not torch._C._autograd._profiler_enabled()
    assert rec.trace.n_events == 30
    assert any("stopped by itself after 30 operators" in note for note in rec.trace.notes)


def test_stopping_by_itself_waits_for_backward_to_end():
    x = torch.ones(10, requires_grad=True)
    for entries in range(1, 30):
        with mw.memtrace(max_entries=entries):
            (x.exp().sin() * 2).sum().backward()
        assert not torch._C._autograd._profiler_enabled()


def test_a_profiler_that_already_runs_is_left_alone():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        with pytest.raises(RecorderError, match=r"profiler .* already runs in this thread"), mw.memtrace(backend="cpu"):
            pass
        torch.ones(1234)
    assert [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"] == [4936, -4936]


def test_a_profiler_inside_the_recording_is_told_of():
    with mw.memtrace(backend="cpu") as rec, torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(10)
    assert any("started inside the recording" in note for note in rec.trace.notes)
    with mw.memtrace(backend="cpu") as rec:
        torch.ones(10)
    assert rec.trace.peak_allocated == 40


def test_torch_compile_inside_is_not_disturbed(recwarn):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="eager")
    with mw.memtrace() as rec:
        compiled(torch.ones(1000))
    assert rec.trace.peak_allocated >= 8000
    assert not [w for w in recwarn if "Dynamo" in str(w.message)]


def test_the_profiler_says_nothing_under_the_cell(capfd):
    old = torch.ones(100)
    with mw.memtrace():
        del old
        torch.ones(10)
    assert capfd.readouterr() == ("", "")


def test_a_second_thread_is_refused_in_one_sentence_instead_of_crashing():
    """Two of torch's CPU profilers in two threads crash the process."""
    said = []

    def other():
        try:
            with mw.memtrace(backend="cpu"):
                torch.ones(1000)
        except RecorderError as refused:
            said.append(str(refused))

    with mw.memtrace(backend="cpu") as rec:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        torch.ones(2000)
    assert len(said) == 1
    assert "another thread" in said[0]
    assert rec.trace.peak_allocated == 8000
    with mw.memtrace(backend="cpu") as again:  # and it is free again
        torch.ones(1000)
    assert again.trace.peak_allocated == 4000


def test_a_stop_in_another_thread_is_refused_and_the_recording_goes_on():
    said = []

    def other():
        try:
            mw.stop()
        except RecorderError as error:
            said.append(str(error))

    mw.start(backend="cpu")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    kept = torch.ones(1000)
    trace = mw.stop()
    assert "in the thread that started it" in said[0]
    assert trace.blocks["requested"][trace.live_at("end")].tolist() == [kept.nbytes]
