"""Batch sizes: predictions against arithmetic, against the toy allocator, against torch's counters, and real steps."""

import gc
import json
import random
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import memwidget as mw
from memwidget.answer.batch_size import as_sizes, tune
from memwidget.answer.batch_size.limits import bytes_of, margin_of
from memwidget.answer.batch_size.replay import replay
from memwidget.answer.batch_size.trials import read_trial
from memwidget.read.snapshot import recording_from_snapshot
from memwidget.record import Options
from memwidget.record.trials import Measured, Stand
from toy_allocator import ToyAllocator

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
DATA = Path(__file__).resolve().parent.parent / "data"


class Counters:
    """A device that can only count: `need` says what a size takes; beyond `room` it runs out of memory."""

    kind, device, device_name = "cuda", 0, "a card"

    def __init__(self, need, room=80 * GiB):
        self.need, self.room, self.ran = need, room, []

    def limit(self):
        return self.room

    def warm_up(self, run):
        return "" if self.need(*run()) <= self.room else "out of memory"

    def trial(self, run, _repeats=2, limit=None):
        size = run()
        self.ran.append(size)
        need = self.need(*size)
        if need > min(self.room, limit or self.room):
            return Measured(failed="CUDA out of memory. Tried to allocate")
        return Measured(allocated=need, reserved=need)


def tuned(need, sizes=(1, 2, 4, 8), room=80 * GiB, **options):
    stand = Counters(need, room)
    return tune(stand, lambda size: lambda: size, as_sizes(sizes), **options), stand


@pytest.mark.parametrize(
    ("a", "b", "c"), [(3 * GiB, 100 * MiB, 0), (0, 7 * MiB, 0), (1 * GiB, 5 * MiB, 2 * MiB), (200 * MiB, 0, 3 * MiB)]
)
def test_constant_linear_and_quadratic_needs_are_found(a, b, c):
    def need(n):
        return a + b * n + c * n * n

    fit, stand = tuned(need, (4, 8, 12, 16))
    limit = 80 * GiB
    # By hand: the largest n with a + bn + cn2 under 95 % of the limit.
    truth = max(n for n in range(1, 20_000) if need(n) <= 0.95 * limit)
    assert truth * 0.96 <= fit.size <= truth  # 0.4 % of the growth for each doubling, up to 11264
    for n in (16, 50, fit.size):
        expected, low, high = fit.predict(n)
        assert abs(expected - need(n)) <= 1e-6 * need(n)
        assert low <= need(n) <= high
    # Warm-up apart, only the trials and the proposal ran, and the proposal was right.
    assert stand.ran == [(4,), (8,), (12,), (16,), (fit.size,)]
    assert "fits" in fit.summary
    assert fit.largest("40 GiB", 0) == pytest.approx(max(n for n in range(20_000) if need(n) <= 40 * GiB), rel=0.04)
    assert fit.predict(fit.size)[2] <= limit * 0.95 < fit.predict(fit.size + 1)[2]


def test_an_interval_is_honest_about_noise():
    random.seed(1)
    inside = 0
    for _ in range(40):
        noise = {n: random.randint(-8 * MiB, 8 * MiB) for n in (2, 4, 6, 8)}
        fit, _ = tuned(lambda n, noise=noise: GiB + 100 * MiB * n + noise.get(n, 0), (2, 4, 6, 8), verify=False)
        _, low, high = fit.predict(64)
        inside += low <= GiB + 6400 * MiB <= high
        assert high - low < 3 * GiB
    assert inside >= 36  # of 38 that a 95 % interval promises on average


def test_two_numbers_a_size_and_terms_only_where_they_pay():
    def need(b, s):
        return GiB + 2 * MiB * b * s + 10 * KiB * b * s * s

    sizes = [(1, 64), (2, 64), (4, 64), (1, 128), (2, 128), (4, 128), (2, 256)]
    fit, _ = tuned(need, sizes)
    expected, low, high = fit.predict((16, 512))
    assert abs(expected / need(16, 512) - 1) < 0.01
    assert low <= need(16, 512) <= high
    truth = max(b for b in range(1, 1000) if need(b, 256) <= 0.95 * 80 * GiB)
    assert fit.size[1] == 256
    assert truth * 0.97 <= fit.size[0] <= truth
    assert fit.largest(fixed=(4, None))[0] == 4
    with pytest.raises(ValueError, match="None for the one"):
        fit.largest(fixed=(4, 5))


def test_a_proposal_that_was_wrong_is_bisected():
    def need(n):
        return 10 * GiB + n * GiB if n <= 40 else 200 * GiB  # a cliff that no small trial shows

    fit, stand = tuned(need)
    assert 38 <= fit.size <= 40
    assert stand.ran[4][0] > 40
    assert any("did not fit" in note for note in fit.notes)
    assert "ran out of memory" in fit.summary
    assert str(fit.table()).count("does not fit") >= 1


def test_a_trial_that_runs_out_of_memory_is_a_point_and_not_the_end():
    fit, stand = tuned(lambda n: n * GiB, (1, 2, 4, 200, 400))
    assert [trial.fits for trial in fit.trials] == [True, True, True, False]
    assert any("Not run, since size 200 ran out of memory: 400" in note for note in fit.notes)
    assert 74 <= fit.size <= 76
    assert stand.ran[-1] == (fit.size,)
    # Nothing that failed here is proposed, whatever the fit says: 150 GiB would be within a limit of 160.
    assert fit.largest("75 GiB", 0) < 200
    with pytest.raises(ValueError, match="At least two sizes must run"):
        tuned(lambda n: n * GiB, (1, 200, 400))
    with pytest.raises(ValueError, match="Even the smallest size, 90, runs out of memory"):
        tuned(lambda n: n * GiB, (90, 100))


def test_a_run_that_would_take_hours_is_left_out():
    class Slow(Counters):
        kind = "cpu"

        def trial(self, run, _repeats=2, limit=None):
            measured = super().trial(run, limit=limit)
            measured.seconds = 2.0 * run()[0]
            return measured

    stand = Slow(lambda n: n * GiB)
    fit = tune(stand, lambda size: lambda: size, as_sizes((1, 2, 4)))
    assert stand.ran == [(1,), (2,), (4,)]
    assert 70 <= fit.size <= 76
    assert any("was not run: on this CPU that would take about" in note for note in fit.notes)
    assert "That size was not run." in fit.summary


def test_nothing_fits():
    fit, _ = tuned(lambda n: 20 * GiB + n * GiB, limit="8 GiB")
    assert fit.size is None
    assert "No size fits" in fit.summary


# -- the allocator replayed -------------------------------------------------------------------------------------------


class Toy:
    """A CUDA device made of the toy allocator: `program(toy, n)` is a step, `self.kept` what it leaves behind."""

    kind, device, device_name = "cuda", 0, "a toy"

    def __init__(self, program, room=24 * GiB, threads=0):
        self.toy, self.program, self.room, self.threads = ToyAllocator(), program, room, threads

    def limit(self):
        return self.room

    def warm_up(self, run):
        self.program(self.toy, *run())
        return ""

    def trial(self, run, repeats=2, _limit=None):
        self.toy.empty_cache()
        first = len(self.toy.events)
        marks = []
        for _ in range(repeats):
            self.program(self.toy, *run())
            marks.append(self.toy._clock)
        seen = self.toy.counters[first:]
        recording = recording_from_snapshot(self.toy.snapshot(len(self.toy.events) - first))
        recording.device_type = "cuda"
        recording.facts.update(steps=marks, threads=self.threads)
        return Measured(recording, *(max(c[name] for c in seen) for name in ("allocated", "reserved")))


def network(toy, n, layers=6):
    """Weights and state once; activations up, gradients down, an optimizer that needs as much again for a moment."""
    if not hasattr(toy, "weights"):
        toy.weights = [toy.alloc(size) for size in (40 * MiB, 3 * MiB, 700 * KiB) for _ in range(2)]
    given = toy.alloc(600 * KiB * n)
    held = []
    for layer in range(layers):
        held.append(toy.alloc((900 * KiB + layer * 130_000) * n))
        toy.free(toy.alloc(4 * MiB + 50_000 * n))
    gradients = []
    for block in reversed(held):
        working = toy.alloc(1_300_000 * n)
        gradients.append(toy.alloc(11 * MiB))
        toy.free(block)
        toy.free(working)
    moment = toy.alloc(90 * MiB)
    for block in (moment, *gradients, given):
        toy.free(block)


def test_reserved_memory_of_sizes_that_never_ran_is_replayed():
    fit = tune(Toy(network), lambda size: lambda: size, as_sizes((2, 4, 8, 16)), verify=False)
    assert fit.method == "requests"
    for n in (16, 40, 128, 400):
        toy = ToyAllocator()
        network(toy, 2)  # the warm-up
        toy.empty_cache()
        first = len(toy.counters)
        network(toy, n)
        network(toy, n)
        truth = [max(c[name] for c in toy.counters[first:]) for name in ("allocated", "reserved")]
        both = fit.predict_both(n)
        assert both.allocated[0] == truth[0], n
        assert both.reserved[0] == pytest.approx(truth[1], rel=0.002), n
        assert both.reserved[1] <= truth[1] <= both.reserved[2]
    # At the smallest trial the optimizer is the peak, later the activations: no straight line goes through both.
    split = fit.split(400)
    assert sum(split.values()) == pytest.approx(fit.predict_both(400).allocated[0], rel=0.01)


def test_workspaces_that_come_and_go_with_the_size_do_not_part_the_steps():
    def chosen_by_size(toy, n):
        held = []
        for layer in range(5):
            if n >= 6 or layer == 2:
                toy.free(toy.alloc(3 * MiB))  # a library takes another algorithm
            held.append(toy.alloc(5 * MiB * n))
        for block in reversed(held):
            if n < 6:
                first, second = toy.alloc(512 * KiB), toy.alloc(256 * KiB)
                toy.free(first)
                toy.free(second)
            toy.free(block)

    fit = tune(Toy(chosen_by_size), lambda size: lambda: size, as_sizes((2, 4, 6, 8)), verify=False)
    assert fit.method == "requests"
    assert fit.predict_both(64).allocated[0] == pytest.approx(5 * 5 * MiB * 64, rel=0.03)


def test_the_buffer_of_a_reduction_stops_growing_when_all_threads_are_busy():
    threads = 132 * 2048

    def reduced(toy, rows, outputs=256):
        """What torch asks for to sum rows of floats (Reduce.cuh): 4 outputs a thread, 128 threads a block."""
        held = toy.alloc(6 * MiB * rows // 1000)
        result = toy.alloc(4 * outputs)
        columns = outputs // 128
        at_once = threads // 128
        each = rows // 4  # four rows of threads a block
        blocks = max(min(-(-at_once // columns), -(-each // 16)), -(-each // 256))
        buffer = toy.alloc(4 * outputs * 128 * blocks)
        toy.free(toy.alloc(4 * columns))
        for block in (buffer, result, held):
            toy.free(block)
        return 4 * outputs * 128 * blocks

    fit = tune(Toy(reduced, threads=threads), lambda s: lambda: s, as_sizes((4096, 8192, 16384)), verify=False)
    unknown = tune(Toy(reduced), lambda s: lambda: s, as_sizes((4096, 8192, 16384)), verify=False)
    for rows in (16384, 100_000, 400_000, 3_000_000):
        buffer = reduced(ToyAllocator(), rows)
        truth = buffer + 6 * MiB * rows // 1000
        assert fit.predict_both(rows).allocated[0] == pytest.approx(truth, rel=0.01), rows
        assert buffer == 138_412_032 or rows in (16384, 3_000_000)
    # A device that does not say how many threads it has: as if it had no end of them.
    assert unknown.predict_both(400_000).allocated[0] > 1.2 * fit.predict_both(400_000).allocated[0]


def test_scratch_that_libraries_choose_by_size():
    def chosen(toy, n, layers=8):
        held = []
        for layer in range(layers):
            held.append(toy.alloc(5 * MiB * n))
            # An algorithm for small sizes, one for some size in the middle, one for the others.
            scratch = 30 * MiB if n < 4 else 9 * MiB * n if n == 6 else 2 * MiB + 3 * MiB * n // 2
            toy.free(toy.alloc(scratch + layer * 40_000))
        for block in reversed(held):
            toy.free(block)

    fit = tune(Toy(chosen), lambda size: lambda: size, as_sizes((2, 4, 5, 6, 8)), verify=False)
    assert fit.method == "requests"
    toy = ToyAllocator()
    chosen(toy, 64)
    truth = [max(c[name] for c in toy.counters) for name in ("allocated", "reserved")]
    both = fit.predict_both(64)
    # Most trials, the largest among them, ask for 2 MiB and 1.5 for each of n: neither the first nor the third counts.
    assert both.allocated[0] == pytest.approx(truth[0], rel=0.002)
    assert both.reserved[0] == pytest.approx(truth[1], rel=0.06)
    assert both.reserved[1] <= truth[1] <= both.reserved[2]
    # What will be chosen there is not known, and said so.
    assert both.reserved[2] - both.reserved[1] > 4 * (both.allocated[2] - both.allocated[1])
    assert fit.predict_both(64) == both

    def one_more(toy, n):
        """Scratch that only the largest trial asks for, all else in proportion."""
        held = toy.alloc(7 * MiB * n)
        toy.free(toy.alloc(3 * MiB * n))
        if n >= 8:
            toy.free(toy.alloc(2 * MiB))
        toy.free(held)

    fit = tune(Toy(one_more), lambda size: lambda: size, as_sizes((2, 4, 6, 8)), verify=False)
    toy = ToyAllocator()
    one_more(toy, 64)
    # That says nothing of the others: 448 and 192 MiB, as they are.
    assert fit.predict_both(64).reserved[0] == max(c["reserved"] for c in toy.counters) == 640 * MiB


def test_the_replay_is_what_torch_did():
    for name in ("truth_transformer", "seed_transformer", "leak_features", "fragment"):
        truth = json.loads((DATA / f"{name}.truth.json").read_text("utf-8"))["after"]
        trace = mw.load(DATA / f"{name}.pickle.xz")
        recording = trace.recording
        recording.facts["steps"] = []
        trial = read_trial((1,), Measured(recording, trace.peak_allocated, trace.peak_reserved))
        outcome = replay(trial.program, trial.program.sizes)
        assert outcome.allocated == truth["allocated_bytes.all.peak"], name
        assert outcome.reserved == truth["reserved_bytes.all.peak"], name


def test_the_replay_and_the_toy_agree_on_any_program():
    random.seed(7)
    for _ in range(30):
        toy, live, sizes, ops = ToyAllocator(), {}, [], []
        for _ in range(120):
            if live and random.random() < 0.45:
                block = random.choice(list(live))
                toy.free(live.pop(block))
                ops.append(-(block + 1))
            else:
                size = random.choice([random.randint(1, 4096), random.randint(1, 3 * MiB), random.randint(1, 60 * MiB)])
                live[len(sizes)] = toy.alloc(size)
                sizes.append(size)
                ops.append(len(sizes))
        recording = recording_from_snapshot(toy.snapshot())
        recording.device_type = "cuda"
        peaks = [max(c[name] for c in toy.counters) for name in ("allocated", "reserved")]
        program = read_trial((1,), Measured(recording, *peaks)).program
        assert program.ops.tolist() == ops
        found = replay(program, np.array(sizes))
        assert [found.allocated, found.reserved] == peaks
        # Just enough runs; less than what is allocated at once cannot.
        assert replay(program, np.array(sizes), peaks[1]).fits
        assert not replay(program, np.array(sizes), peaks[0] - 1).fits


def test_cached_segments_are_given_back_before_a_limit_fails():
    toy = ToyAllocator()
    for size in (30 * MiB, 40 * MiB, 50 * MiB):  # each too large for the segment before it
        toy.free(toy.alloc(size))
    recording = recording_from_snapshot(toy.snapshot())
    recording.device_type = "cuda"
    program = read_trial((1,), Measured(recording, 50 * MiB, 120 * MiB)).program
    assert replay(program, program.sizes).reserved == 120 * MiB
    assert replay(program, program.sizes, 50 * MiB).fits
    assert not replay(program, program.sizes, 48 * MiB).fits


def test_steps_that_differ_are_told_and_still_predicted():
    def uneven(toy, n):
        # A loop over samples: more requests, the larger the batch.
        blocks = [toy.alloc(25 * MiB) for _ in range(n)]
        for block in blocks:
            toy.free(block)

    fit = tune(Toy(uneven), lambda size: lambda: size, as_sizes((4, 8, 12, 16)), verify=False)
    assert fit.method == "totals"
    assert any("run different steps" in note for note in fit.notes)
    # 25 MiB are handed out whole from segments of 26 MiB.
    assert fit.predict(100)[0] == pytest.approx(100 * 26 * MiB, rel=0.001)

    calls = []

    def accumulating(toy, n):
        calls.append(n)
        blocks = [toy.alloc(30 * MiB * n)]
        if len(calls) % 2:
            blocks += [toy.alloc(100 * MiB) for _ in range(4)]
        for block in blocks:
            toy.free(block)

    fit = tune(Toy(accumulating), lambda size: lambda: size, as_sizes((1, 2, 3)), verify=False)
    assert any("differ from call to call" in note for note in fit.notes)


# -- real steps on the CPU --------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self, words=200, width=32):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 64, batch_first=True, dropout=0.0) for _ in range(3)
        )
        self.head = nn.Linear(width, words)

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def make_step(net):
    optimizer = torch.optim.Adam(net.parameters())

    def step(words):
        nn.functional.cross_entropy(net(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def test_a_transformer_on_the_cpu():
    net = Small()
    step = make_step(net)
    fit = mw.tune_batch_size(
        step, (2, 3, 4), "16 MiB", batch=lambda n: torch.randint(0, 200, (n, 32)), backend="cpu", model=net
    )
    (check,) = fit.checks
    assert fit.size >= 6 * 4
    assert check.size == (fit.size,)
    assert fit.predict(fit.size)[0] == pytest.approx(check.allocated, rel=0.02)
    assert check.allocated <= 16 * MiB
    # What the model holds is in it: parameters and Adam's two numbers each, made in the warm-up.
    held = sum(p.nbytes for p in net.parameters())
    split = fit.split(4)
    assert split["parameter"] == held
    assert split["optimizer_state"] == pytest.approx(2 * held, rel=0.02)
    fixed = fit.fixed()
    assert fixed["parameter"] == held
    assert "activation" not in fixed
    assert sum(fixed.values()) == pytest.approx(3 * held, rel=0.02)
    top = fit.grows()[0]
    assert top.line.startswith("test_batch_size.py:")
    assert sum(each.share for each in fit.grows()) == pytest.approx(1, abs=0.02)
    assert any("layers.*" in advice.text and advice.after > advice.before for advice in fit.advice())


def test_advice_holds_under_autocast():
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)))

    def step(n):
        with torch.autocast("cpu", torch.bfloat16):
            # More than the layers hold: the peak is here, before the copies of the weights are gone.
            loss = net(torch.ones(n, 64)).repeat(1, 20).square().mean()
        loss.backward()
        net.zero_grad()

    fit = mw.tune_batch_size(step, (64, 128, 256), "64 MiB", backend="cpu", model=net, verify=False)
    (advice,) = fit.advice()
    # Of each layer but the last its inside goes, 2 x 2 x 256 + 2 x 64 bytes a sample, until its backward.
    assert advice.after > 1.3 * advice.before


def test_batch_and_length_on_the_cpu():
    step = make_step(Small())
    sizes = [(2, 16), (2, 24), (3, 24), (4, 32)]
    fit = mw.tune_batch_size(step, sizes, "10 MiB", batch=lambda b, s: torch.randint(0, 200, (b, s)), backend="cpu")
    (check,) = fit.checks
    assert check.size == (fit.size[0], 32)
    assert fit.predict(check.size)[0] == pytest.approx(check.allocated, rel=0.02)


def test_a_step_that_runs_out_of_memory_leaves_nothing_alive():
    refs = []

    class Held(nn.Module):
        def forward(self, x):
            big = x.expand(1000, -1).clone()
            refs.append(weakref.ref(big))
            return fails(big) if len(x) > 3000 else big.sum()

    def fails(big):
        kept = big * 2
        refs.append(weakref.ref(kept))
        try:
            return kept[len(kept)]
        except IndexError as error:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.") from error

    nets = [Held()]
    fit = mw.tune_batch_size(
        lambda n: nets[0](torch.zeros(n)), (1000, 2000, 4000), "64 MiB", backend="cpu", verify=False
    )
    assert [trial.fits for trial in fit.trials] == [True, True, False]
    assert "Tried to allocate 2.00 GiB" in fit.trials[-1].failed
    net_ref = weakref.ref(nets.pop())
    gc.collect()
    assert net_ref() is None
    assert all(ref() is None for ref in refs)
    # (1000 + 1) floats for each of n, and the sum's 4 bytes
    assert fit.trials[0].allocated == pytest.approx(4 * 1001 * 1000, abs=64)
    assert not torch._C._autograd._profiler_enabled()


def test_other_errors_go_on_and_the_recorder_is_off():
    def step(n):
        if n > 1:
            raise ZeroDivisionError
        torch.ones(n)

    with pytest.raises(ZeroDivisionError):
        mw.tune_batch_size(step, (1, 2), "1 GiB", backend="cpu")
    assert not torch._C._autograd._profiler_enabled()
    with pytest.raises(TypeError, match="must be a function"):
        mw.tune_batch_size(3)
    with pytest.raises(ValueError, match="two different"):
        mw.tune_batch_size(step, (4, 4))
    with pytest.raises(ValueError, match="whole numbers"):
        mw.tune_batch_size(step, (0, 4))


# -- limits ------------------------------------------------------------------------------------------------------------


def test_limits_in_words():
    assert bytes_of("24 GiB") == 24 * GiB
    assert bytes_of("24GB") == 24 * 10**9
    assert bytes_of("1.5 gib") == 3 * GiB // 2
    assert bytes_of(5) == 5
    for name in ("RTX 4090", "NVIDIA GeForce RTX 4090", "rtx4090"):
        assert 22 * GiB < bytes_of(name) < 23.5 * GiB
    assert bytes_of("NVIDIA A100-SXM4-80GB") == bytes_of("A100 80GB")
    assert bytes_of("Tesla T4") == bytes_of("T4")
    with pytest.raises(ValueError, match=r"did you mean 'A100 40GB', 'A100 80GB'"):
        bytes_of("A100")
    with pytest.raises(ValueError, match="neither bytes"):
        bytes_of("a lot")
    with pytest.raises(ValueError, match="more than 0"):
        bytes_of(-1)
    assert margin_of(0.05, 1000) == 50
    assert margin_of("1 MiB", GiB) == margin_of(MiB, GiB) == MiB
    for margin in (-1, 5, 1.0):
        with pytest.raises(ValueError, match="must be a share"):
            margin_of(margin, GiB)


class Device:
    """torch.cuda, as far as limits go."""

    def __init__(self, fraction=1.0):
        self.fraction, self.set, self.memory = fraction, [], self

    def mem_get_info(self, _):
        return 50 * GiB, 80 * GiB

    def memory_reserved(self, _):
        return 20 * GiB  # 10 of the 80 GiB are somebody else's

    def get_per_process_memory_fraction(self, _):
        return self.fraction

    def set_per_process_memory_fraction(self, fraction, _):
        self.fraction = fraction
        self.set.append(fraction)


def test_the_limit_is_what_the_device_has_for_torch():
    stand = Stand(Options(backend="cpu"), [])
    stand._device = Device()
    assert stand.limit() == 70 * GiB
    stand._device.fraction = 0.5
    assert stand.limit() == 40 * GiB
    with stand._within(20 * GiB):
        assert stand._device.fraction == 0.25
    with stand._within(60 * GiB):  # never more than it was
        assert stand._device.fraction == 0.5
    assert stand._device.fraction == 0.5


# -- shown -------------------------------------------------------------------------------------------------------------


def test_the_chart_and_the_sliders_say_what_the_fit_says():
    fit, _ = tuned(lambda n: GiB + n * GiB)
    chart = fit.plot(["40 GiB"])
    (curve,) = [r for r in chart.renderers if getattr(r.glyph, "line_width", 0) == 1.5]
    data = curve.data_source.data
    assert data["need"] == pytest.approx([fit.predict(n)[0] / GiB for n in data["x"]])
    spans = {each.location for each in chart.select({"dimension": "width"})}
    assert {80.0, 40.0} <= spans
    shown = chart._repr_mimebundle_()[0]
    assert shown["text/plain"] == fit.summary
    assert "cdn.bokeh.org" not in shown["text/html"]
    box = fit.sliders()
    assert f"<b>{fit.size}</b> fits" in box.children[2].value
    box.children[0].value = 40.0
    assert f"<b>{fit.largest('40 GiB')}</b> fits" in box.children[2].value
    assert "<script" not in fit.table()._repr_html_()
    wide, _ = tuned(lambda n: GiB + n * GiB, margin="32 GiB")
    assert wide.size < fit.size
    assert f"<b>{wide.size}</b> fits" in wide.sliders().children[2].value
