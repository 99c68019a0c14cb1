"""What training keeps: each alarm, the false alarm beside it, and what memory is made of."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from answer.cpu_patterns import UNUSUAL, KiB, of_kind, record, traced

MOMENTS = ("exp_avg", "exp_avg_sq")


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

    def run(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed == "each" else layer(x)
        return x

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False) if self.checkpointed == "whole" else self.run(x)


def test_what_checkpointing_a_group_of_modules_should_save_is_saved():
    def trained(checkpointed):
        net = Deep(checkpointed)

        def code():
            for _ in range(4):
                net(torch.rand(1024, 64)).pow(2).mean().backward()
                net.zero_grad()

        return traced(code)

    plain, less, whole = trained(""), trained("each"), trained("whole")
    (fact,) = plain.findings()
    assert fact.kind == "step"
    # Of each layer's 2 1/4 MiB the quarter is kept, and one layer's 2 MiB are there while they are made again; at the
    # peak the last layer has given back its quarter.
    assert "checkpoint each of the 8 modules layers.* (up to 13.8 MiB less)" in fact.advice
    assert plain.peak_allocated - less.peak_allocated == pytest.approx(13.75 * 2**20, rel=0.1)
    assert whole.peak_allocated > 0.95 * plain.peak_allocated  # all is made again at once
    for trace in (less, whole):
        assert of_kind(trace.findings(), *UNUSUAL) == []


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


def test_outputs_kept_by_a_line_that_also_makes_gradients_are_no_models():
    net = nn.Linear(512, 512)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def code():
        kept = []
        for _ in range(12):  # all on one line: the last step's gradients are half of what stands there
            y = net(torch.rand(16, 512)); opt.zero_grad(); y.sum().backward(); opt.step(); kept.append(y.detach())  # noqa: E702  # fmt: skip
        return kept

    (growth,) = of_kind(record(code), *UNUSUAL)
    assert (growth.kind, growth.bytes_per_step) == ("growth", 16 * 512 * 4)
    assert "made of models" not in " ".join(growth.evidence)
    assert "clear or cap" in growth.advice
