"""Labels against what the code itself knows: each tensor's address is asked for in the recorded code."""

import collections
import collections.abc
import contextlib
import gc
import subprocess
import sys
import threading
import traceback
import weakref
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch
from torch import nn

import memwidget as mw
from memwidget.record import Options
from memwidget.record.cpu import CpuRecorder
from memwidget.record.watch import Watch, flat
from memwidget.recording import CATEGORIES, SPANS, Recording
from memwidget.trace.trace import Trace


class Book:
    """Addresses of live tensors, noted by the test, looked up afterwards."""

    def __init__(self):
        self.notes = {}
        self.sizes = {}

    def note(self, name, tensor):
        self.notes[name] = tensor.untyped_storage().data_ptr()
        self.sizes[name] = tensor.untyped_storage().nbytes()
        return tensor

    def block(self, trace, name):
        """The last block of that size at that address."""
        blocks = trace.blocks
        found = (blocks["address"] == self.notes[name]) & (blocks["requested"] == self.sizes[name])
        assert found.any(), f"{name} is not in the recording"
        return int(found.nonzero()[0][-1])

    def __call__(self, trace, name):
        block = self.block(trace, name)
        return trace.categories[trace.blocks["category"][block]], trace.blocks["reason"][block], trace.label(block)


IDENTITY, PHASE, GUESS = 1, 2, 3


@pytest.fixture
def book():
    return Book()


@contextlib.contextmanager
def notebook(space):
    """Record what runs inside beside these variables; what is given gets the recording."""
    recorder, watch, made = CpuRecorder(Options(backend="cpu")), Watch("cpu", [], space), []
    recorder.start()
    watch.start()
    yield made
    watch.stop()
    made.append(recorder.finish())
    watch.store(made[0])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 48))
        self.head = nn.Linear(48, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return self.head(self.encoder(x)) * self.scale


def test_a_training_step_without_a_word_from_the_user(book):
    with mw.memtrace() as rec:
        net = Net()
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            x = book.note("x", torch.randn(16, 32))
            y = book.note("y", torch.randint(0, 8, (16,)))
            scores = book.note("scores", net(x))
            loss = nn.functional.cross_entropy(scores, y)
            loss.backward()
            optimizer.step()
            book.note("weight", net.encoder[0].weight)
            book.note("buffer", net.scale)
            book.note("gradient", net.encoder[0].weight.grad)
            book.note("moment", optimizer.state[net.head.bias]["exp_avg"])
            optimizer.zero_grad()
    trace = rec.trace
    assert book(trace, "weight") == ("parameter", IDENTITY, "encoder.0.weight")
    assert book(trace, "buffer") == ("buffer", IDENTITY, "scale")
    assert book(trace, "gradient") == ("gradient", IDENTITY, "encoder.0.weight")
    assert book(trace, "moment") == ("optimizer_state", IDENTITY, "head.bias / exp_avg")
    assert book(trace, "x") == ("input", IDENTITY, "x")
    assert book(trace, "y") == ("input", GUESS, "")
    assert book(trace, "scores") == ("activation", PHASE, "Net")
    # What the encoder's second layer made carries its path: 16 rows of 48 floats.
    made = [b for b in range(trace.n_blocks) if trace.label(b) == "encoder.2"]
    assert {int(trace.blocks["requested"][b]) for b in made} == {16 * 48 * 4}
    assert {trace.categories[trace.blocks["category"][b]] for b in made} == {"activation"}


def test_phases_and_steps_are_found():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
    with mw.memtrace() as rec:
        for _ in range(3):
            net(torch.randn(4, 32)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    trace = rec.trace
    phases = [band.name for band in trace.bands if band.kind == "phase"]
    # The second and third steps allocate nothing: momentum is there, and SGD works in place.
    assert phases[:3] == ["forward", "backward", "optimizer"]
    assert phases.count("forward") == phases.count("backward") == 3
    steps = trace.by_step()
    assert sorted(steps) == ["0", "1", "2"]
    curve = trace.curve("allocated")
    for row in steps.rows:
        (band,) = [band for band in trace.bands if band.kind == "step" and band.name == row.label]
        assert row.bytes == curve[band.lo : band.hi + 1].max() == curve[row.peak_moment]
        assert (row.end, row.growth) == (curve[band.hi], curve[band.hi] - curve[band.lo])
    state = sum(p.nbytes for p in net.parameters())
    assert trace.by_category("end")["optimizer_state"] == state
    assert trace.by_phase()["backward"] == max(
        curve[band.lo : band.hi + 1].max() for band in trace.bands if band.name == "backward"
    )


def test_the_users_own_marks_come_first():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with mw.memtrace() as rec:
        for _ in range(3):
            with rec.phase("forward"):
                loss = net(torch.randn(4, 32)).sum()
            loss.backward()
            optimizer.step()
            rec.step()
            del loss
    kinds = [(band.kind, band.name) for band in rec.trace.bands]
    assert kinds.count(("phase", "forward")) == 3
    assert kinds.count(("phase", "backward")) == 3
    assert [name for kind, name in kinds if kind == "step"] == ["0", "1", "2"]


def test_nothing_is_kept_alive():
    with mw.memtrace() as rec:
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        x = torch.randn(4, 32)
        net(x).sum().backward()
        optimizer.step()
        gone = [weakref.ref(o) for o in (net, optimizer, x, net.head.weight, net.head.weight.grad, net.scale)]
        del net, optimizer, x
        gc.collect()
        assert [ref() for ref in gone] == [None] * 6
    assert rec.trace.allocated == 0
    assert rec.trace.by_category("peak")["parameter"] == sum(p.nbytes for p in Net().parameters())


def test_a_given_model_is_not_kept_alive_either():
    net = Net()
    ref = weakref.ref(net)
    with mw.memtrace(model=net):
        del net
        gc.collect()
        assert ref() is None


def _places():
    from torch.nn.modules import module
    from torch.optim import optimizer

    hooks = [optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks]
    hooks += [module._global_forward_hooks, module._global_forward_pre_hooks]
    return [nn.Module.__call__, torch.autograd._engine_run_backward, *map(len, hooks)]


def test_hooks_are_gone_afterwards_also_after_an_error():
    before = _places()
    with pytest.raises(ZeroDivisionError), mw.memtrace():  # noqa: PT012
        # Module hooks would make each call go the long way; the other four places are taken.
        assert [now == then for now, then in zip(_places(), before, strict=True)] == [False] * 4 + [True] * 2
        raise ZeroDivisionError
    assert _places() == before


@pytest.mark.parametrize("first", ["watch", "profiler"])
def test_the_profiler_sees_the_modules_that_are_watched(first):
    """Its stacks name modules, which it finds in the frame of Module.__call__, whoever stands there."""
    net = Net()
    watch = Watch("cpu", [])
    profile = torch.profiler.profile(with_stack=True, with_modules=True)
    turns = [(watch.start, watch.stop), (profile.start, profile.stop)]
    for start, _ in turns if first == "watch" else turns[::-1]:
        start()
    net(torch.ones(2, 32))
    for _, stop in turns[::-1] if first == "watch" else turns:
        stop()
    names = {event.name() for event in profile.profiler.kineto_results.events()}
    assert any(name.startswith("nn.Module: Net") for name in names)
    assert {"nn.Module: Linear_0", "nn.Module: ReLU_0"} <= names


def test_watches_may_end_in_any_order():
    before = _places()
    first, second = Watch("cpu", []), Watch("cpu", [])
    first.start()
    second.start()
    first.stop()
    assert Net()(torch.ones(2, 32)).shape == (2, 8)
    second.stop()
    assert _places() == before


COMPILED_FIRST = """
import sys, torch, memwidget as mw
call = torch.nn.Module.__call__
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
with mw.memtrace():
    assert "torch._dynamo.utils" not in sys.modules
    torch.compile(net, backend="eager", fullgraph=True)(torch.ones(2, 3))
    assert torch.nn.Module.__call__ is not call
import torch._dynamo.utils as utils, torch._dynamo.variables.nn_module as variables
assert torch.nn.Module.__call__ is call
assert utils.unpatched_nn_module_call is variables.unpatched_nn_module_call is call
"""


def test_what_was_compiled_first_in_a_recording_knows_plain_modules():
    done = subprocess.run([sys.executable, "-c", COMPILED_FIRST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("deep", [False, True])
def test_an_error_shows_no_frame_of_the_recorder(deep):
    class Wrong(nn.Module):
        def forward(self, x):
            try:
                return x @ x  # 2 x 3: refused by the operator
            except RuntimeError as error:
                raise KeyError("wrong") from error

    def files(error):
        return [Path(frame.f_code.co_filename).name for frame, _ in traceback.walk_tb(error.__traceback__)]

    x = torch.ones(2, 3)
    with pytest.raises(KeyError) as plain:
        nn.Sequential(Wrong())(x)
    with pytest.raises(KeyError) as recorded, mw.memtrace(deep=deep):
        nn.Sequential(Wrong())(x)
    once = [name for name in files(plain.value) if name != "module.py"]
    assert [name for name in files(recorded.value) if name != "module.py"] == once
    assert files(recorded.value.__cause__) == files(plain.value.__cause__) == [Path(__file__).name]


def test_a_wrapper_put_on_since_stays():
    original = torch.autograd._engine_run_backward
    calls = []
    try:
        with mw.memtrace():
            inner = torch.autograd._engine_run_backward

            def theirs(*args, **kwargs):
                calls.append(1)
                return inner(*args, **kwargs)

            torch.autograd._engine_run_backward = theirs
        assert torch.autograd._engine_run_backward is theirs
        torch.ones(3, requires_grad=True).sum().backward()
        assert calls == [1]
    finally:
        torch.autograd._engine_run_backward = original


def test_inference_gives_outputs_and_temporaries(book):
    net = Net()
    with mw.memtrace() as rec, torch.no_grad():
        for _ in range(3):
            x = book.note("x", torch.randn(16, 32))
            book.note("out", out := net(x))
    trace = rec.trace
    assert book(trace, "x") == ("input", IDENTITY, "x")
    assert book(trace, "out") == ("output", PHASE, "Net")
    hidden = [b for b in range(trace.n_blocks) if trace.label(b) == "encoder.0"]
    assert {trace.categories[trace.blocks["category"][b]] for b in hidden} == {"temporary"}
    assert sorted(trace.by_step()) == ["0", "1", "2"]  # by repetition
    del out


def test_keyword_arguments_and_nested_inputs(book):
    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, batch, mask=None):
            return self.layer(batch["x"][0]) * mask

    net = Keyed()
    with mw.memtrace() as rec:
        x = book.note("x", torch.randn(100, 8))
        mask = book.note("mask", torch.ones(100, 8))
        net({"x": [x]}, mask=mask).sum().backward()
    assert book(rec.trace, "x") == ("input", IDENTITY, "batch['x'][0]")
    assert book(rec.trace, "mask") == ("input", IDENTITY, "mask")


def test_what_one_model_made_is_no_input_of_the_next(book):
    first, second = nn.Linear(8, 16), nn.Linear(16, 8)
    with mw.memtrace() as rec, torch.no_grad():
        book.note("between", between := first(torch.randn(100, 8)))
        second(between)
    assert book(rec.trace, "between") == ("output", PHASE, "Linear")


def test_tied_and_flat_parameters(book):
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            flat = book.note("flat", torch.randn(300))
            self.a, self.b, self.c = (nn.Parameter(part) for part in flat.split(100))

        def forward(self, x):
            return x * self.a + self.b - self.c

    with mw.memtrace() as rec:
        tied = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50, bias=False))
        tied[1].weight = tied[0].weight
        book.note("tied", tied[0].weight)
        flat = Flat()
        tied(torch.arange(5)).sum().backward()
        flat(torch.ones(100)).sum().backward()
        kept = [p.grad for p in (*tied.parameters(), *flat.parameters())]
    # Two models in one recording: each name says whose it is.
    assert book(rec.trace, "tied") == ("parameter", IDENTITY, "Sequential.0.weight")
    assert book(rec.trace, "flat") == ("parameter", IDENTITY, "Flat.a (and 2 more)")
    assert rec.trace.by_category("end")["gradient"] == sum(g.nbytes for g in kept)


def test_parameters_replaced_by_a_cast(book):
    with mw.memtrace() as rec:
        net = nn.Linear(64, 64)
        book.note("before", net.weight)
        net(torch.ones(2, 64)).sum().backward()
        net.zero_grad()
        net.to(torch.float64)
        book.note("after", net.weight)
        net(torch.ones(2, 64, dtype=torch.float64)).sum().backward()
    assert book(rec.trace, "before")[0] == "parameter"
    assert book(rec.trace, "after") == ("parameter", IDENTITY, "weight")


def test_models_that_change_between_calls_are_looked_at_again(book):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(50, 40))
            self.register_buffer("cache", torch.ones(1, 3000))

        def forward(self, x):
            self.cache = torch.cat([self.cache, self.cache[:1]])
            return x @ self.weight

    with mw.memtrace(model=None) as rec:
        net, linear = Cached(), nn.ModuleList([nn.Linear(30, 70)])
        for kind in (torch.float32, torch.float64, torch.bfloat16):
            net.to(kind)(torch.ones(2, 50, dtype=kind))
            linear.to(kind)[0](torch.ones(2, 30, dtype=kind))
            book.note(f"weight of {kind}", net.weight)
            book.note(f"inner of {kind}", linear[0].weight)
        net(torch.ones(2, 50, dtype=torch.bfloat16))
    trace = rec.trace
    found = {name: book(trace, name)[:2] for name in book.notes}
    assert set(found.values()) == {("parameter", IDENTITY)}, found
    # The cache grows by a row a call. Two rows of float64 were in place when a call began, as were three of bfloat16;
    # five were there at the end. The third row of float64 was gone before anybody looked.
    sizes = trace.blocks["requested"].tolist()
    found = {
        size: trace.categories[trace.blocks["category"][sizes.index(size)]] for size in (48000, 72000, 18000, 30000)
    }
    assert found == {48000: "buffer", 72000: "activation", 18000: "buffer", 30000: "buffer"}


class Loads(collections.abc.Mapping):
    """Makes its tensors when asked for them, and counts."""

    asked = 0

    def __getitem__(self, key):
        self.asked += 1
        return torch.full((100,), float(self.asked))

    def __iter__(self):
        return iter(["x", "y"])

    def __len__(self):
        return 2


class Once(dict):
    """Gives its items away."""

    def items(self):
        return [self.popitem() for _ in range(len(self))]


def test_looking_changes_nothing(book):
    class Takes(nn.Module):
        def forward(self, first, second, third):
            return first["x"].sum() + len(second) + sum(each.sum() for each in third)

    lazy, once = Loads(), Once(a=torch.ones(70), b=torch.ones(80))
    data = collections.UserDict(z=torch.ones(90))
    point = Point(torch.ones(60), torch.ones(50))
    space = {"lazy": lazy, "once": once, "data": data, "mock": mock.MagicMock(spec=torch.Tensor)}
    space |= {"half": Half.__new__(Half), "auto": mock.create_autospec(torch.optim.Adam), "net": Net(), "point": point}
    with notebook(space) as made:
        space["late"] = nn.Linear(9, 9)
        book.note("late", space["late"].weight)
        # 100 ones from `lazy`, which was asked for them once; 60 and 50 more.
        assert Takes()(lazy, once, point).item() == 100 + 2 + 110
    (recording,) = made
    assert lazy.asked == 1
    assert len(once) == 2
    assert book(Trace(recording), "late") == ("parameter", IDENTITY, "late.weight")
    names = {recording.strings[row] for row in recording.labels.name}
    assert {"once['a']", "data['z']", "point[0]"} <= {name.removeprefix("half.") for name in names}


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Half(nn.Module):
    def __init__(self):
        """Forgets its parent's."""


def test_an_input_that_wants_its_gradient_is_an_input(book):
    net = Net()
    space = {"net": net, "free": torch.ones(5, requires_grad=True)}
    with notebook(space) as made:
        for turn in range(2):
            space["x"] = torch.randn(4 + turn, 32).requires_grad_()
            book.note(f"x {turn}", space["x"])
            net(space["x"]).sum().backward()
        space["theta"] = torch.ones(6, requires_grad=True)
        book.note("theta", space["theta"])
    trace = Trace(made[0])
    assert [book(trace, f"x {turn}")[0] for turn in range(2)] == ["input", "input"]
    assert book(trace, "theta") == ("parameter", IDENTITY, "theta")


def test_one_parameter_has_one_name_whoever_met_it_first(book):
    space = {}
    with notebook(space) as made:
        layers = nn.ModuleList([nn.Linear(32, 64), nn.Linear(64, 8)])
        optimizer = torch.optim.LBFGS(layers.parameters())
        x = torch.randn(4, 32)

        def closure():
            optimizer.zero_grad()
            loss = layers[1](layers[0](x)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        for name, parameter in layers.named_parameters():
            book.note(name, parameter)
            book.note(f"{name}.grad", parameter.grad)
        space["layers"] = layers  # the optimizer and the layers' own calls were seen first
    trace = Trace(made[0])
    for name, _ in layers.named_parameters():
        assert book(trace, name)[2] == book(trace, f"{name}.grad")[2] == f"layers.{name}"


def test_gradients_that_no_sample_met_are_guesses(book):
    net = Net()
    with mw.memtrace() as rec:
        net(torch.randn(4, 32)).sum().backward()
        book.note("gradient", net.encoder[0].weight.grad)
        for parameter in net.parameters():
            parameter.grad = None
    assert book(rec.trace, "gradient")[:2] == ("gradient", GUESS)


def test_optimizer_within_backward():
    net = Net()
    optimizers = {p: torch.optim.Adam([p]) for p in net.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        parameter.grad = None

    handles = [p.register_post_accumulate_grad_hook(update) for p in net.parameters()]
    with mw.memtrace(model=net) as rec:
        net(torch.randn(4, 32)).sum().backward()
    for handle in handles:
        handle.remove()
    found = rec.trace.by_category("end")
    state = sum(v.nbytes for o in optimizers.values() for s in o.state.values() for v in s.values())
    assert found["optimizer_state"] == state
    named = {rec.trace.label(b) for b in rec.trace.live_at("end")}
    assert "encoder.0.weight / exp_avg" in named


def test_gradient_accumulation_keeps_one_gradient():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with mw.memtrace() as rec:
        for turn in range(4):
            net(torch.randn(4, 32)).sum().backward()
            if turn % 2:
                optimizer.step()
                optimizer.zero_grad()
    gradients = [
        b for b in range(rec.trace.n_blocks) if rec.trace.categories[rec.trace.blocks["category"][b]] == "gradient"
    ]
    by_identity = [b for b in gradients if rec.trace.blocks["reason"][b] == IDENTITY]
    assert sum(int(rec.trace.blocks["requested"][b]) for b in by_identity) == 2 * sum(
        p.nbytes for p in net.parameters()
    )
    assert sorted(rec.trace.by_step()) == ["0", "1"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_are_temporary_and_keep_their_module(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(32, 200), nn.Tanh(), nn.Linear(200, 32))

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=reentrant)

    net = Checked()
    with mw.memtrace() as rec:
        net(torch.randn(16, 32, requires_grad=True)).sum().backward()
    trace = rec.trace
    (again,) = [
        b
        for b in range(trace.n_blocks)
        if trace.label(b) == "inner.1" and trace.bands[trace.blocks["phase"][b]].name == "backward"
    ]
    assert trace.blocks["requested"][again] == 16 * 200 * 4
    assert trace.categories[trace.blocks["category"][again]] == "temporary"
    assert [band.name for band in trace.bands if band.kind == "phase"] == ["forward", "backward"]


def test_autocast_copies_belong_to_the_forward_that_made_them():
    net = nn.Linear(64, 64, bias=False)
    with mw.memtrace() as rec, torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.randn(16, 64)).sum().backward()
    trace = rec.trace
    copies = [b for b in range(trace.n_blocks) if trace.blocks["requested"][b] == 64 * 64 * 2]
    made = [trace.categories[trace.blocks["category"][b]] for b in copies if trace.label(b) == "Linear"]
    assert made == ["activation"]


def test_compiled_models_are_labelled_from_outside(book):
    net = Net()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    optimizer = torch.optim.Adam(net.parameters())
    with mw.memtrace(labels=True) as rec:
        x = book.note("x", torch.randn(16, 32))
        compiled(x).sum().backward()
        optimizer.step()
        book.note("moment", optimizer.state[net.head.weight]["exp_avg"])
    assert book(rec.trace, "x") == ("input", IDENTITY, "x")
    assert book(rec.trace, "moment") == ("optimizer_state", IDENTITY, "head.weight / exp_avg")
    assert "forward" in {band.name for band in rec.trace.bands}


@pytest.mark.filterwarnings("ignore")
def test_distributed_tensors_are_known_by_their_local_part(book, tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_module

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        with mw.memtrace() as rec:
            net = distribute_module(nn.Linear(32, 16), mesh)
            assert [type(p.data).__name__ for p in net.parameters()] == ["DTensor"] * 2
            book.note("weight", net.weight._local_tensor)
            x = torch.distributed.tensor.distribute_tensor(torch.ones(4, 32), mesh, [Replicate()])
            net(x)
        assert book(rec.trace, "weight") == ("parameter", IDENTITY, "weight")
    finally:
        dist.destroy_process_group()


def test_wrapper_subclasses_are_known_by_their_inner_tensors(book):
    from torch.testing._internal.two_tensor import TwoTensor

    with mw.memtrace() as rec:
        a, b = book.note("a", torch.ones(100)), book.note("b", torch.zeros(100))
        net = nn.Module()
        net.weight = nn.Parameter(TwoTensor(a, b))
        net.forward = lambda x: x
        net(torch.ones(3))
        del a, b
    assert book(rec.trace, "a") == ("parameter", IDENTITY, "weight")
    assert book(rec.trace, "b") == ("parameter", IDENTITY, "weight")


def test_fake_and_meta_tensors_label_nothing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with mw.memtrace() as rec:
        with FakeTensorMode():
            nn.Linear(4, 4)(torch.ones(2, 4))
        nn.Linear(4, 4, device="meta")(torch.ones(2, 4, device="meta"))
    assert len(rec.recording.labels) == 0
    assert not [note for note in rec.recording.notes if "missing" in note]


def test_modules_made_on_the_fly_do_not_pile_up(book):
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 100)

        def forward(self, x):
            return nn.Softmax(dim=-1)(self.layer(x))

    net = Careless()
    with mw.memtrace() as rec:
        for _ in range(3):
            book.note("out", out := net(torch.ones(4, 8)))
            nn.CrossEntropyLoss()(out, torch.zeros(4, dtype=torch.long)).backward()
    assert book(rec.trace, "out")[2] == "Softmax"
    assert {rec.trace.label(b) for b in range(rec.trace.n_blocks)} <= {
        *("", "Softmax", "CrossEntropyLoss", "layer", "x", "input", "target", "layer.weight", "layer.bias", "Careless"),
    }


def test_two_threads_each_have_their_own_path():
    net = Net()
    both = threading.Barrier(2, timeout=30)

    def work():
        class Meeting(nn.Module):
            def forward(self, x):
                both.wait()  # both are inside a forward now
                return net(x)

        Meeting()(torch.randn(2, 32)).sum().backward()

    watch = Watch("cpu", flat(net))
    watch.start()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.stop()
    recording = Recording()
    watch.store(recording)
    spans = recording.spans
    for thread in (1, 2):
        mine = [
            (SPANS[kind], recording.strings[name].removesuffix(" 2") if name >= 0 else "")
            for kind, name, number in zip(spans.kind, spans.name, spans.thread, strict=True)
            if number == thread
        ]
        assert mine == [
            *(("module", path) for path in ("encoder.0", "encoder.1", "encoder.2", "encoder", "head", "Net")),
            ("module", "Meeting"),
            ("forward", "Meeting"),
            ("backward", ""),
        ]


def test_an_error_inside_a_forward_does_not_shift_the_path(book):
    class Fails(nn.Module):
        def forward(self, _x):
            raise ZeroDivisionError

    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails, self.works = Fails(), nn.Linear(8, 8)

        def forward(self, x):
            try:
                self.fails(x)
            except ZeroDivisionError:
                return self.works(x)

    net = Tries()
    with mw.memtrace() as rec:
        book.note("out", out := net(torch.ones(100, 8)))
        with pytest.raises(ZeroDivisionError):
            Fails()(torch.ones(4))
        book.note("again", again := net(torch.ones(100, 8)))
    assert book(rec.trace, "out")[2] == book(rec.trace, "again")[2] == "works"
    del out, again


def test_plain_tensors_of_a_notebook_are_called_by_their_variables(book):
    space = {"In": ["x"], "_1": 3}
    with notebook(space) as made:
        space["w"] = book.note("w", torch.ones(200, requires_grad=True))
        (space["w"] * 2).sum().backward()
        book.note("w.grad", space["w"].grad)
        space["cache"] = {"k": book.note("k", torch.zeros(300))}
        space["models"] = [nn.Linear(7, 7)]
        book.note("weight", space["models"][0].weight)
    trace = Trace(made[0])
    assert book(trace, "w") == ("parameter", IDENTITY, "w")
    assert book(trace, "w.grad") == ("gradient", IDENTITY, "w")
    assert book(trace, "k") == ("unknown", 0, "cache['k']")
    assert book(trace, "weight") == ("parameter", IDENTITY, "weight")


def test_a_schedule_records_its_active_steps(tmp_path):
    net = Net()
    made = []
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with mw.memtrace("loop", schedule=schedule, save=tmp_path / "x.memtrace") as rec:
        for step in range(10):
            made.append(torch.ones(1000 + step))
            net(torch.ones(2, 32))
            rec.step()
    # Steps 0 and 1 of each cycle of four wait and warm up, 2 and 3 are active; two cycles.
    assert [trace.name for trace in rec.traces] == ["loop repeat 1", "loop repeat 2"]
    for trace, steps in zip(rec.traces, [(2, 3), (6, 7)], strict=True):
        sizes = set(trace.blocks["requested"][trace.live_at("end")].tolist())
        assert {4 * (1000 + step) for step in range(10)} & sizes == {4 * (1000 + step) for step in steps}
        assert [band.name for band in trace.bands if band.kind == "step"] == [str(step) for step in steps]
    assert rec.trace is rec.traces[-1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x-1.memtrace", "x-2.memtrace"]
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_repeat_that_the_loop_never_reached_is_none():
    record, save = torch.profiler.ProfilerAction.RECORD, torch.profiler.ProfilerAction.RECORD_AND_SAVE
    with mw.memtrace(schedule=lambda step: save if step % 2 else record) as rec:
        for _ in range(4):
            torch.ones(1000)
            rec.step()
    assert [[band.name for band in trace.bands] for trace in rec.traces] == [["0", "1"], ["2", "3"]]


def test_a_schedule_that_names_no_step_says_so():
    with mw.memtrace(schedule=torch.profiler.schedule(wait=5, warmup=1, active=1)) as rec:
        rec.step()
    with pytest.raises(RuntimeError, match="named no step"):
        _ = rec.trace


def test_labels_can_be_left_out():
    net = Net()
    with mw.memtrace(labels=False) as rec:
        net(torch.randn(4, 32)).sum().backward()
    assert not len(rec.recording.labels)
    assert not rec.trace.has_labels
    with pytest.raises(ValueError, match="leave one out"):
        mw.memtrace(labels=False, deep=True)


def test_models_are_checked_when_the_recording_begins():
    with pytest.raises(TypeError, match="take torch modules, optimizers"), mw.memtrace(model=3):
        pass


@pytest.mark.parametrize("suffix", ["memtrace"])
def test_an_archive_keeps_it_all(tmp_path, suffix):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    with mw.memtrace() as rec:
        net(torch.randn(4, 32)).sum().backward()
        optimizer.step()
    path = tmp_path / f"x.{suffix}"
    rec.trace.save(path)
    again = mw.load(path)
    assert again.by_category() == rec.trace.by_category()
    assert again.bands == rec.trace.bands
    assert [again.label(b) for b in range(again.n_blocks)] == [rec.trace.label(b) for b in range(again.n_blocks)]
    assert {"gradient", "optimizer_state"} <= set(again.by_category("end")) <= set(CATEGORIES)
