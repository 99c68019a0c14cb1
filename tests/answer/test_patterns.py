"""Patterns that people hit, on the CPU recorder: each alarm, and the false alarm beside it. KiB stand for MiB."""

import functools
import gc
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import memwidget as mw

KiB = 1024
MOMENTS = ("exp_avg", "exp_avg_sq")
UNUSUAL = {"growth", "held", "spike", "fragmentation", "pending_free"}


def buf(n):
    return torch.empty(n * KiB, dtype=torch.uint8)


def traced(code, **options):
    """Trace of a function, with what it returns kept until the recording has ended."""
    with mw.memtrace(backend="cpu", **options) as rec:
        kept = code(rec) if code.__code__.co_argcount else code()
    del kept
    return rec.trace


def record(code, **options):
    """Findings of a function, with what it returns kept until the recording has ended."""
    return traced(code, **options).findings()


def of_kind(found, *kinds):
    return [f for f in found if f.kind in kinds]


def the_line(finding):
    """Source of the line, as stored with the recording."""
    return finding.site.source


# -- graphs and references --------------------------------------------------------------------------------------------


def test_a_loss_summed_with_its_graph():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            total = total + ((w * x) ** 2).mean()
        return total

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.kind == "growth"
    assert growth.bytes_per_step == 16 * KiB  # x, and w * x saved by pow
    assert the_line(growth) in {"x = torch.rand(2 * KiB)", "total = total + ((w * x) ** 2).mean()"}
    assert len(growth.lines) == 2
    assert ".item()" in growth.advice or ".detach()" in growth.advice


def test_the_allocation_is_named_though_the_name_is_deleted():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            total = total + ((w * x) ** 2).mean()
            del x
        return total

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 16 * KiB
    assert len(growth.lines) == 2  # that of x too, whose name is gone


def test_a_loss_summed_after_backward_leaves_next_to_nothing():
    def code():
        w, total = torch.ones(2 * KiB, requires_grad=True), 0
        for _ in range(20):
            x = torch.rand(2 * KiB)
            loss = ((w * x) ** 2).mean()
            loss.backward()
            w.grad = None
            total = total + loss
        return total

    assert all(f.bytes_per_step <= 512 for f in of_kind(record(code), "growth"))
    assert of_kind(record(code), "spike") == []


def test_a_list_of_losses_grows_by_one_number_a_step():
    def code():
        w, losses = torch.ones(2 * KiB, requires_grad=True), []
        for _ in range(20):
            loss = ((w * torch.rand(2 * KiB)) ** 2).mean()
            loss.backward()
            w.grad = None
            losses.append(loss)
        return losses

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == 4  # one float; one block of 512 B on a GPU
    assert ".item()" in growth.advice


@pytest.mark.parametrize("grad", [True, False])
def test_outputs_kept_with_and_without_their_graph(grad):
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(64, 64), nn.ReLU())])

    def code():
        outs = []
        with torch.set_grad_enabled(grad):
            for _ in range(12):
                outs.append(net(torch.rand(64, 64)))  # noqa: PERF401
        return outs

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == (5 if grad else 1) * 16 * KiB  # the input and four outputs, or the last one alone
    assert the_line(growth).startswith("outs.append(net(")
    assert ("no_grad" in growth.advice) == grad


def test_a_ring_of_gradients_is_not_cured_by_collecting():
    def one():
        x = torch.rand(4 * KiB, requires_grad=True)
        y = x.tanh()
        y.backward(torch.ones_like(y), create_graph=True)

    def code():
        for _ in range(10):
            one()
        gc.collect()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of just this
        (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step >= 16 * KiB
    assert "collector cannot see" in " ".join(growth.evidence)


def test_a_retained_graph_is_flat_across_its_backwards():
    def code(rec):
        h = torch.rand(8 * KiB, requires_grad=True)
        for _ in range(8):
            h = h.tanh()
        heads = [torch.rand(8 * KiB, requires_grad=True) for _ in range(4)]
        for i, head in enumerate(heads):
            loss = (h * head).sum()
            with rec.phase(f"backward {i}"):
                loss.backward(retain_graph=True)

    trace = traced(code)
    assert of_kind(trace.findings(), *UNUSUAL) == []
    ends = [trace.live_at(band.hi) for band in trace.bands if band.name.startswith("backward ")]
    kept = [sum(trace.blocks["size"][b] for b in live if trace.site(b).source == "h = h.tanh()") for live in ends]
    assert kept == [8 * 32 * KiB] * 4


class Trainer:
    """Keeps what validation gives until the next validation."""

    def __init__(self):
        self.outs = []

    def validate(self):
        self.outs.clear()
        for _ in range(20):
            self.outs.append(buf(8))

    def train(self):
        for _ in range(20):
            one, other = buf(4), buf(4)
            del one, other


def test_outputs_kept_from_one_validation_to_the_next_are_held_and_bounded():
    def code():
        trainer = Trainer()
        for _ in range(3):
            trainer.validate()
            trainer.train()
        return trainer

    (held,) = of_kind(record(code), *UNUSUAL)
    assert (held.kind, held.bytes) == ("held", 160 * KiB)
    assert "in validate" in " ".join(held.evidence)


# -- cycles, hooks, caches --------------------------------------------------------------------------------------------


class Node:
    """Refers to itself."""

    def __init__(self):
        self.data, self.me = buf(100), self


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
def test_cycles_grow_until_the_collector_comes():
    def code():
        for _ in range(20):
            Node()
        gc.collect()

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 100 * KiB
    assert "garbage collector ran" in " ".join(growth.evidence)
    assert "cycle" in growth.advice


class Hooked(nn.Module):
    """Its hook closes over it."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(16 * KiB))
        self.register_forward_hook(lambda *_: self.w)


@pytest.mark.usefixtures("no_gc")
def test_a_hook_that_closes_over_its_module_grows_until_the_collector_comes():
    def code():
        for _ in range(10):
            Hooked()
        gc.collect()

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 64 * KiB
    assert "garbage collector ran" in " ".join(growth.evidence)


def test_a_hook_that_appends_grows_under_no_grad():
    net, acts = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), []
    net[0].register_forward_hook(lambda _, __, out: acts.append(out))

    def code():
        with torch.no_grad():
            for _ in range(20):
                net(torch.rand(32, 64))

    (growth,) = of_kind(record(code), "growth")
    assert growth.bytes_per_step == 8 * KiB
    assert the_line(growth) == "net(torch.rand(32, 64))"


def test_a_dict_that_grows_and_one_that_fills():
    def grows():
        cache = {}
        for i in range(30):
            cache[i] = torch.rand(KiB)
        return cache

    def fills():
        cache = {}
        for i in range(30):
            x = torch.rand(4 * KiB)
            if i < 5:
                cache[i] = torch.rand(KiB)
            del x
        return cache

    (growth,) = of_kind(record(grows), "growth")
    assert growth.bytes_per_step == 4 * KiB
    assert of_kind(record(fills), "growth") == []


def test_autocasts_copies_of_the_weights_are_a_step():
    net, x = nn.Sequential(*[nn.Linear(128, 128) for _ in range(16)]), torch.rand(4, 128)

    def code():
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            for _ in range(2):
                net(x)

    found = record(code)
    assert of_kind(found, *UNUSUAL) == []
    (step,) = of_kind(found, "step")
    assert step.bytes == pytest.approx(16 * 2 * (128 * 128 + 128), rel=0.02)


def test_outputs_that_are_gathered_and_joined_are_nothing_unusual():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def code():
        outs = []
        with torch.no_grad():
            for _ in range(20):
                outs.append(net(torch.rand(64, 64)))  # noqa: PERF401
        return float(torch.cat(outs).mean())

    assert of_kind(record(code), "growth", "held", "step") == []


def test_features_in_an_unbounded_cache_grow_and_in_a_bounded_one_do_not():
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).eval()

    def code(size):
        @functools.lru_cache(maxsize=size)
        def features(i):
            with torch.no_grad():
                return net(torch.rand(64, 64) + i)

        def code():
            for i in range(30):
                features(i).sum().item()
            return features

        return code

    (growth,) = of_kind(record(code(None)), *UNUSUAL)
    assert (growth.kind, growth.bytes_per_step) == ("growth", 4 * 64 * 8)
    assert the_line(growth).startswith("return net(")
    assert of_kind(record(code(4)), "growth") == []


def test_a_tensor_extended_by_cat_grows_and_may_be_meant_to():
    def code():
        w, keys = torch.rand(64, 64), torch.rand(1, 64)
        for _ in range(30):
            new = keys[-1:] @ w
            keys = torch.cat([keys, new])
            del new
        return keys

    (growth,) = of_kind(record(code), "growth")
    assert (growth.bytes_per_step, growth.certain, growth.saves) == (4 * 64, False, 0)
    assert the_line(growth) == "keys = torch.cat([keys, new])"
    assert "KV cache" in growth.advice

    def generations():
        for _ in range(3):
            code()

    assert of_kind(record(generations), "growth") == []


@pytest.mark.parametrize("kept", [True, False])
def test_models_that_come_one_after_the_other(kept):
    def code():
        results = []
        for _ in range(6):
            net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
            opt = torch.optim.Adam(net.parameters())
            for _ in range(4):
                net(torch.rand(32, 64)).mean().backward()
                opt.step()
                opt.zero_grad()
            results.append(opt if kept else net[2].weight.sum().item())
        return results

    found = of_kind(record(code), *UNUSUAL)
    if not kept:
        assert found == []
        return
    (growth,) = found
    numbers = 64 * 64 + 64 + 64 * 4 + 4
    assert growth.bytes_per_step == pytest.approx(3 * 4 * numbers / 4, rel=0.25)  # told by the optimizer's steps
    assert "models and optimizers" in " ".join(growth.evidence)


def test_what_is_logged_in_inference_mode_is_merely_kept():
    net, log = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16)), []

    def code():
        with torch.inference_mode():
            for _ in range(20):
                log.append((x := torch.rand(8, 64), net(x)))  # noqa: PERF401

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert growth.bytes_per_step == 4 * 8 * (64 + 16)
    assert "autograd" not in " ".join((*growth.evidence, growth.advice))
    assert "clear or cap" in growth.advice


def test_one_large_thing_before_the_loop_is_a_spike_there():
    def code():
        raw = torch.rand(1024 * KiB)
        data = ((raw - raw.mean()) / raw.std())[: 64 * 64].clone().view(64, 64)
        del raw
        net = nn.Linear(64, 64)
        for _ in range(10):
            net(data).mean().backward()
            net.zero_grad()

    (spike,) = of_kind(record(code), *UNUSUAL)
    assert (spike.kind, the_line(spike)) == (
        "spike",
        "data = ((raw - raw.mean()) / raw.std())[: 64 * 64].clone().view(64, 64)",
    )
    assert spike.bytes == pytest.approx(8 * 1024 * KiB, rel=0.01)  # the difference and the quotient


def test_operations_one_after_the_other_are_no_spike():
    def code():
        def transform(x):
            h = x * 2
            g = torch.relu(h)
            return (g @ torch.rand(64, 64)).sum().item()

        return transform(torch.rand(1024, 64))

    assert of_kind(record(code), *UNUSUAL) == []


def test_a_name_that_is_bound_to_as_much_again_is_no_spike():
    def code():
        x = torch.rand(64 * KiB)
        for _ in range(10):
            x = x * 0.99
        return x

    assert of_kind(record(code), "spike", "growth") == []


class Initialized(nn.Module):
    """Takes memory for a moment as it is made."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(64, 64) * 0.02)
        nn.init.orthogonal_(self.w)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.zeros(64, 64) for _ in range(12)],
        lambda: nn.Sequential(*[nn.Linear(64, 64) for _ in range(12)]),
        lambda: [Initialized() for _ in range(12)],
        lambda: {i: torch.rand(64, 64).to(torch.bfloat16) for i in range(12)}.popitem() and None,
    ],
)
def test_a_list_that_is_made_at_once_does_not_grow(make):
    def code():
        net = nn.Linear(64, 64)
        for _ in range(4):
            net(torch.rand(64, 64)).mean().backward()
        return net, make()

    assert of_kind(record(make), "growth") == []
    assert of_kind(record(code), "growth") == []


# -- training ---------------------------------------------------------------------------------------------------------


def training(steps, clear, rows=8, layers=2, make=torch.optim.AdamW):
    net = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(256, 256), nn.Tanh())])
    opt = make(net.parameters(), lr=0.01)

    def code():
        history = []
        for _ in range(steps):
            loss = net(torch.rand(rows, 256)).pow(2).mean()
            if clear == "before backward":
                opt.zero_grad()
            loss.backward()
            opt.step()
            if clear in {"after step", "in place"}:
                opt.zero_grad(set_to_none=clear != "in place")
            history.append(loss.item())
        return history

    parameters = sum(p.numel() * 4 for p in net.parameters())
    return record(code), parameters


def test_optimizer_state_comes_once():
    found, parameters = training(4, "after step")
    assert of_kind(found, *UNUSUAL) == []
    (state,) = of_kind(found, "step")
    assert state.bytes == pytest.approx(2 * parameters, rel=0.01)
    assert "first step" in state.title


@pytest.mark.parametrize("clear", ["before backward", "in place"])
def test_gradients_that_stand_through_the_forward_pass_where_the_peak_is(clear):
    # 16 layers of 257 KiB of weights, 512 KiB of activations each: the peak is where forward ends.
    found, parameters = training(6, clear, rows=512, layers=16, make=torch.optim.SGD)
    (held,) = of_kind(found, *UNUSUAL)
    assert (held.kind, held.bytes) == ("held", parameters)
    assert "zero_grad(set_to_none=True)" in held.advice
    # Dropped before backward they are not at its peak, which is lower by half; left in place they are.
    assert 0.5 * parameters < held.saves <= parameters
    assert (held.saves == parameters) == (clear == "in place")
    found, _ = training(6, "after step", rows=512, layers=16, make=torch.optim.SGD)
    assert of_kind(found, *UNUSUAL) == []


def test_gradients_dropped_before_backward_are_nothing_unusual_where_the_optimizer_has_the_peak():
    found, _ = training(6, "before backward")
    assert of_kind(found, *UNUSUAL) == []


def test_an_ordinary_loop_is_nothing_unusual():
    found, _ = training(12, "after step")
    assert of_kind(found, *UNUSUAL) == []


def test_recomputation_under_checkpointing_is_no_leak():
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()) for _ in range(8))
    x = torch.rand(256, 64, requires_grad=True)

    def code():
        for _ in range(6):
            h = x
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=False)
            h.sum().backward()
            blocks.zero_grad()
            x.grad = None

    assert of_kind(record(code), "growth", "held") == []


class Deep(nn.Module):
    """Numbered layers, which may be checkpointed."""

    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh()) for _ in range(8)
        )

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


def test_what_checkpointing_a_group_of_modules_should_save_is_saved():
    def trained(checkpointed):
        net = Deep(checkpointed)

        def code():
            for _ in range(4):
                net(torch.rand(1024, 64)).pow(2).mean().backward()
                net.zero_grad()

        return traced(code)

    plain, less = trained(checkpointed=False), trained(checkpointed=True)
    (fact,) = plain.findings()
    assert fact.kind == "step"
    # Of each layer's 2 1/4 MiB the quarter is kept, and one layer's 2 MiB are there while they are made again; at the
    # peak the last layer has given back its quarter.
    assert "checkpoint each of the 8 modules layers.* (up to 13.8 MiB less)" in fact.advice
    assert plain.peak_allocated - less.peak_allocated == pytest.approx(13.75 * 2**20, rel=0.1)


# -- what memory is made of -------------------------------------------------------------------------------------------


def by_source(trace, at):
    """Live bytes by the source of the user's line."""
    sums = {}
    for block in trace.live_at(at):
        source = trace.site(block).source
        sums[source] = sums.get(source, 0) + int(trace.blocks["size"][block])
    return sums


@pytest.mark.parametrize("resumed", [False, True])
def test_mixed_precision_splits_in_two_four_and_eight_bytes_a_parameter(resumed):
    def code():
        net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).to(torch.bfloat16)
        master = [p.detach().float().requires_grad_() for p in net.parameters()]
        opt = torch.optim.AdamW(master)
        if resumed:
            moments = [{"step": torch.tensor(1.0), **{k: torch.zeros_like(m) for k in MOMENTS}} for m in master]
            opt.load_state_dict({**opt.state_dict(), "state": dict(enumerate(moments))})
            del moments
        for _ in range(6):
            net(torch.rand(8, 256, dtype=torch.bfloat16)).pow(2).mean().backward()
            for p, m in zip(net.parameters(), master, strict=True):
                m.grad = p.grad.float()
            net.zero_grad()
            opt.step()
            opt.zero_grad()
            with torch.no_grad():
                for p, m in zip(net.parameters(), master, strict=True):
                    p.copy_(m)
        return net, master, opt

    trace, n = traced(code), 2 * (256 * 256 + 256)
    assert dict(trace.by_category("end")) == {"optimizer_state": 8 * n + 4 * 4, "parameter": (2 + 4) * n}  # 4 counters
    assert by_source(trace, "end")["master = [p.detach().float().requires_grad_() for p in net.parameters()]"] == 4 * n
    at_peak = trace.by_category("peak")
    assert (at_peak["parameter"], at_peak["optimizer_state"]) == (6 * n, 8 * n + 16)
    found = trace.findings()
    assert of_kind(found, *UNUSUAL) == []
    (state,) = of_kind(found, "step")
    assert state.bytes == 8 * n + 16
    assert state.title.endswith("before the first step" if resumed else "in the first step")
    assert ("allocated before the first optimizer step" in state.evidence[0]) == resumed


def test_a_flat_buffer_for_gradients_stays_and_is_no_activation():
    def code():
        net = nn.Sequential(*[nn.Linear(128, 128) for _ in range(4)])
        flat = torch.zeros(sum(p.numel() for p in net.parameters()))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(8):
            net(torch.rand(8, 128)).pow(2).mean().backward()
            at = 0
            for p in net.parameters():
                flat[at : at + p.numel()].copy_(p.grad.view(-1))
                at += p.numel()
            opt.step()
            opt.zero_grad()
        return net, flat, opt

    trace, parameters = traced(code), 4 * 4 * (128 * 128 + 128)
    (flat,) = [b for b in trace.live_at("end") if trace.site(b).source.startswith("flat = torch.zeros(")]
    assert trace.blocks["size"][flat] == parameters
    for at in ("peak", "end"):
        assert flat in trace.live_at(at)
        assert trace.by_category(at)["parameter"] == parameters
    assert sum(trace.by_category("end").values()) == 2 * parameters
    assert trace.by_category("peak").get("activation", 0) < parameters / 10  # eight rows, not the buffer
    assert "activation" not in trace.by_category("end")
    assert of_kind(trace.findings(), *UNUSUAL) == []


class Adapted(nn.Module):
    """A frozen layer with a narrow way past it."""

    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(requires_grad=False)
        self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def test_adapters_cut_the_optimizers_state_and_no_activations():
    width, rank, rows, layers = 128, 4, 2048, 4

    def tuned(make):
        def code():
            net = nn.Sequential(*[m for _ in range(layers) for m in (make(), nn.Tanh())])
            opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
            for _ in range(6):
                net(torch.rand(rows, width)).mean().backward()
                opt.step()
                opt.zero_grad()
            return net, opt

        return traced(code)

    full, lora = tuned(lambda: nn.Linear(width, width, bias=False)), tuned(lambda: Adapted(width, rank))
    weights, adapters, hidden = (4 * layers * n for n in (width * width, 2 * width * rank, rows * width))
    assert dict(full.by_category("end")) == {"parameter": weights, "optimizer_state": 2 * weights + 4 * layers}
    assert dict(lora.by_category("end")) == {
        "parameter": weights + adapters,
        "optimizer_state": 2 * adapters + 4 * 2 * layers,
    }
    assert full.by_category("peak")["activation"] == pytest.approx(hidden, abs=64)  # outputs of tanh; the mean
    narrow = 4 * rows * rank * layers  # what a gives to b
    assert lora.by_category("peak")["activation"] == pytest.approx(hidden + narrow, abs=64)
    for trace in (full, lora):
        assert next(iter(trace.by_category("peak"))) == "activation"
        assert of_kind(trace.findings(), "growth", "held") == []
    assert lora.by_category("peak")["optimizer_state"] < 0.01 * lora.peak_allocated
    (fact,) = of_kind(lora.findings(), "step", "spike")
    assert fact.title.startswith("Activations make")


class Scaled(nn.Module):
    """Gives what it scaled to a function."""

    def __init__(self, function):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(KiB))

    def forward(self, x):
        return self.function(x * self.w)


NUMBERS = 64 * KiB


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        pytest.param(lambda x: torch.native_dropout(x, 0.5, train=True)[0], NUMBERS, id="a mask of one byte"),
        pytest.param(lambda x: functional.dropout(x, 0.5), 4 * NUMBERS, id="a CPU's mask in the input's dtype"),
        pytest.param(lambda x: functional.dropout(x, 0.5, training=False), 0, id="no mask outside training"),
        pytest.param(
            lambda x: functional.layer_norm(x, (KiB,)), 4 * NUMBERS + 2 * 4 * 64, id="the input and statistics"
        ),
        pytest.param(lambda x: x.neg(), 0, id="nothing"),
    ],
)
def test_what_dropout_and_a_norm_save_for_backward(function, kept):
    def code():
        net = Scaled(function)
        for _ in range(5):
            net(torch.rand(64, KiB)).sum().backward()
            net.zero_grad()
        return net, net(torch.rand(64, KiB))

    trace = traced(code)
    now = trace.by_category("end")
    assert now["activation"] == 4 * NUMBERS + kept  # its output, and what it saved
    assert now["parameter"] == 4 * KiB
    assert now["input"] == 4 * NUMBERS
    assert of_kind(trace.findings(), "growth") == []


# -- spikes -----------------------------------------------------------------------------------------------------------


def test_logits_are_a_spike_at_the_users_line():
    state = SimpleNamespace(
        logits=torch.rand(64, 1024, dtype=torch.bfloat16, requires_grad=True), y=torch.zeros(64, dtype=torch.long)
    )

    def code():
        full = (state.logits * 1).float()
        loss = functional.cross_entropy(full, state.y)
        del full
        loss.backward()

    (spike,) = of_kind(record(code), "spike")
    assert the_line(spike) in {
        "full = (state.logits * 1).float()",
        "loss = functional.cross_entropy(full, state.y)",
    }
    assert "chunks" in spike.advice
    assert spike.bytes >= 256 * KiB


def ordinary(net, *, backward):
    x = torch.rand(4096, 64)

    def code():
        with torch.set_grad_enabled(backward):
            loss = net(x).pow(2).mean()
        if backward:
            loss.backward()
        return net

    return record(code)


@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)),
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)),
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 8),
        ),
    ],
    ids=["equal layers", "a wide layer", "convolutions"],
)  # fmt: skip
def test_a_large_batch_through_layers_is_no_spike(make, backward):
    assert of_kind(ordinary(make(), backward=backward), *UNUSUAL) == []


def test_logits_in_the_middle_of_training_are_a_spike_at_the_loss():
    words, width = 4096, 32
    embed, layer, head = nn.Embedding(words, width), nn.Linear(width, width), nn.Linear(width, words)
    parameters = [*embed.parameters(), *layer.parameters(), *head.parameters()]
    opt = torch.optim.SGD(parameters, lr=0.1)

    def code():
        for _ in range(5):
            ids = torch.randint(words, (512,))
            h = embed(ids)
            for _ in range(20):
                h = layer(h).tanh()
            loss = functional.cross_entropy(head(h), ids)
            loss.backward()
            opt.step()
            opt.zero_grad()

    (spike,) = of_kind(record(code), *UNUSUAL)
    assert the_line(spike) == "loss = functional.cross_entropy(head(h), ids)"
    assert spike.bytes == pytest.approx(4 * words * 512, rel=0.01)
    assert "loss in chunks" in spike.advice


def attention(length):
    def code():
        q, k, v = (torch.rand(4, length, 8) for _ in range(3))
        out = (q @ k.mT).softmax(-1) @ v
        del out

    return record(code)


def test_attention_spikes_by_four_for_twice_the_length():
    (short,), (long,) = (of_kind(attention(n), "spike") for n in (64, 128))
    assert the_line(short) == the_line(long) == "out = (q @ k.mT).softmax(-1) @ v"
    assert long.bytes / short.bytes == pytest.approx(4, rel=0.15)


def test_a_workspace_tried_in_the_first_step_only():
    def code(rec):
        for i in range(6):
            x = buf(64)
            work = torch.empty((400 if i == 0 else 20) * KiB, dtype=torch.uint8)
            del work
            y = buf(64)
            del x, y
            for _ in range(6):
                z = buf(16)
                del z
            rec.step()

    (spike,) = of_kind(record(code), "spike")
    assert "first" in " ".join(spike.evidence)
    assert spike.bytes == 400 * KiB
