"""Deep mode: what autograd saved, and the forward line of what backward makes."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import memwidget as mw

SOURCE = Path(__file__).read_text(encoding="utf-8").splitlines()


def line(tag):
    (found,) = [number for number, text in enumerate(SOURCE, 1) if text.rstrip().endswith(f"# {tag}")]
    return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 640), nn.Linear(640, 8)

    def forward(self, x):
        hidden = self.up(x)  # up
        hidden = torch.tanh(hidden)  # tanh
        return self.down(hidden)  # down


def forward_site(trace, block):
    stack = trace.forward_stack[block]
    return trace.frame(trace.stack_site[stack]).line if stack >= 0 else None


def test_blocks_made_in_backward_name_the_forward_line():
    net = Net()
    with mw.memtrace(deep=True) as rec:
        loss = net(torch.randn(16, 32)).square().sum()
        loss.backward()
    trace = rec.trace
    made = [
        b
        for b in range(trace.n_blocks)
        if trace.blocks["phase"][b] >= 0 and trace.bands[trace.blocks["phase"][b]].name == "backward"
    ]
    sizes = trace.blocks["requested"]
    with_line = sum(int(sizes[b]) for b in made if forward_site(trace, b) is not None)
    assert with_line == sum(int(sizes[b]) for b in made) > 0
    by_size = {}
    for b in made:
        by_size.setdefault(int(sizes[b]), set()).add(forward_site(trace, b))
    assert by_size[32 * 640 * 4] == {line("up")}  # the gradient of up's weight
    assert by_size[640 * 8 * 4] == {line("down")}  # that of down's
    # Two of 16 rows of 640: the gradient of tanh's output is made for down, that of its input for tanh.
    assert by_size[16 * 640 * 4] == {line("tanh"), line("down")}


def test_operators_that_save_nothing_have_their_own_line():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(32)

        def forward(self, x):
            x = x.bfloat16()  # cast
            x = x.float() + torch.ones(7, 1, 32)  # add
            return self.norm(x).exp()  # norm

    x = torch.randn(1, 32, requires_grad=True)
    net = Branches()
    with mw.memtrace(deep=True) as rec:
        net(x).sum().backward()
    trace = rec.trace
    found = {}
    for b in range(trace.n_blocks):
        if trace.blocks["phase"][b] >= 0 and trace.bands[trace.blocks["phase"][b]].name == "backward":
            found.setdefault(forward_site(trace, b), []).append(int(trace.blocks["requested"][b]))
    # The addition made 7 rows of one: its backward sums them up again.
    assert 32 * 4 in found[line("add")]
    assert 7 * 32 * 4 in found[line("norm")]
    assert 7 * 32 * 4 not in found[line("add")]


def test_the_same_module_called_from_two_lines_keeps_them_apart():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.inner = nn.Tanh(), nn.Sequential(nn.Linear(32, 640), nn.Tanh())

        def forward(self, x):
            first = self.inner(x)  # first
            second = self.inner(x[:3])  # second
            return self.act(first).sum() + self.act(second).sum()  # both

    net = Twice()
    with mw.memtrace(deep=True) as rec:
        net(torch.randn(16, 32)).backward()
    trace = rec.trace
    sites = {}
    for b in range(trace.n_blocks):
        if trace.blocks["phase"][b] >= 0 and trace.bands[trace.blocks["phase"][b]].name == "backward":
            sites.setdefault(int(trace.blocks["requested"][b]), set()).add(forward_site(trace, b))
    # Rows of 640 tell the calls apart: 16 in the first, 3 in the second.
    assert sites[16 * 640 * 4] == {line("first"), line("both")}
    assert sites[3 * 640 * 4] == {line("second"), line("both")}


def test_saved_and_merely_held_are_told_apart():
    net = Net()
    kept = []
    with mw.memtrace(deep=True) as rec:
        x = torch.randn(16, 32)
        hidden = net.up(x)
        kept.append(hidden)  # add saves nothing of it
        (hidden + 1).sum().backward()
        saved = torch.tanh(net.up(x))  # tanh saves its output
        saved.sum().backward()
    trace = rec.trace
    found = {}
    for name, tensor in (("saved", saved), ("held", hidden)):
        (block,) = trace.live_at("end")[
            trace.blocks["address"][trace.live_at("end")] == tensor.untyped_storage().data_ptr()
        ]
        found[name] = trace.categories[trace.blocks["category"][block]]
    assert found == {"saved": "activation", "held": "output"}


class Inner(torch.autograd.Function):
    """A Function that makes nodes of its own between its own making and what it saves."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            (x.detach().requires_grad_().exp() * 3).sin()
        out = x * 2
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        return gradient * 2


@pytest.mark.parametrize(
    "makes",
    [
        torch.tanh,
        Inner.apply,
        lambda x: x.clone().sigmoid_(),
        lambda x: torch._foreach_exp([x, x * 2, x])[1],
        lambda x: torch.softmax(torch.relu(x), 0),
        lambda x: torch.nn.functional.gelu(x * x + x),
    ],
    ids=["output", "function", "in place", "foreach", "chain", "silent"],
)
def test_graphs_are_freed_as_ever(makes):
    net = Net()
    with mw.memtrace(deep=True):
        hidden = net(torch.randn(16, 32))
        out = makes(hidden)
        refs = weakref.ref(out), weakref.ref(hidden)
        gc.disable()
        try:
            del out, hidden
            assert [ref() for ref in refs] == [None, None], "a saved tensor must not hold itself"
        finally:
            gc.enable()


def test_a_change_in_place_is_still_an_error():
    x = torch.randn(8, requires_grad=True)
    with mw.memtrace(deep=True):
        y = x.exp()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_graph_that_outlives_the_recording_still_works():
    net = Net()
    with mw.memtrace(deep=True):
        loss = net(torch.ones(2, 32)).sum()
    loss.backward()
    assert torch.equal(net.down.bias.grad, torch.full((8,), 2.0))


def test_where_hooks_are_refused_a_note_says_so():
    net = Net()
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"), mw.memtrace(deep=True) as rec:
        net(torch.ones(2, 32)).sum().backward()
    assert any("Deep mode is off" in note and "not here" in note for note in rec.trace.notes)
    assert rec.trace.by_category()


def test_a_function_transform_ends_deep_mode_not_the_users_code():
    x = torch.arange(4.0)
    disable = torch._C._autograd._saved_tensors_hooks_disable
    with mw.memtrace(deep=True) as rec:
        found = torch.func.grad(lambda v: (v**2).sum())(x)
        Net()(torch.ones(2, 32)).sum().backward()
    assert torch.equal(found, 2 * x)
    assert any("Deep mode is off" in note for note in rec.trace.notes)
    assert torch._C._autograd._saved_tensors_hooks_disable is disable


def test_a_compiled_model_in_deep_mode():
    net = Net()
    compiled = torch.compile(net, backend="aot_eager")
    with mw.memtrace(deep=True) as rec:
        compiled(torch.ones(2, 32)).sum().backward()
    assert net.up.weight.grad is not None
    assert rec.trace.by_category("end")["gradient"] > 0


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_region_has_the_lines_of_its_forward(reentrant):
    from torch.utils.checkpoint import checkpoint

    net = Net()
    after = nn.Linear(8, 9)
    with mw.memtrace(deep=True) as rec:
        x = torch.randn(16, 32, requires_grad=True)
        hidden = checkpoint(net, x, use_reentrant=reentrant)
        after(hidden).square().sum().backward()  # after
    trace = rec.trace
    sites = {}
    for b in range(trace.n_blocks):
        if trace.blocks["phase"][b] >= 0 and trace.bands[trace.blocks["phase"][b]].name == "backward":
            sites.setdefault(int(trace.blocks["requested"][b]), set()).add(forward_site(trace, b))
    # Weights' gradients; then 16 rows of 640, made again by up and tanh, whose own stacks tell, and by backward.
    assert sites[32 * 640 * 4] == {line("up")}
    assert sites[640 * 8 * 4] == {line("down")}
    assert sites[8 * 9 * 4] == {line("after")}
    assert sites[16 * 640 * 4] <= {line("tanh"), line("down"), None}


def test_hooks_of_the_users_own_save_and_take_back_as_ever():
    net, x = Net(), torch.randn(16, 32)
    net(x).square().sum().backward()
    plain = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    taken = []
    with mw.memtrace(deep=True) as rec:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (tensor.numel(), tensor.detach().clone()), lambda pair: taken.append(pair[0]) or pair[1]
        ):
            loss = net(x).square().sum()
        with torch.autograd.graph.save_on_cpu():
            torch.ones(3, requires_grad=True).exp().sum().backward()
    loss.backward()  # packed within the recording, taken back after it
    assert 16 * 640 in taken
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, net.parameters(), strict=True))
    assert not rec.trace.notes or not any("Deep" in note for note in rec.trace.notes)


def test_gradients_are_the_same():
    torch.manual_seed(0)
    net, x = Net(), torch.randn(16, 32)
    net(x).square().sum().backward()
    plain = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    with mw.memtrace(deep=True):
        net(x).square().sum().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, net.parameters(), strict=True))


def test_second_derivatives_are_the_same():
    x = torch.linspace(-1, 1, 8, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad((x.tanh() * x.exp()).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(first.square().sum(), x)
        return again

    plain = second()
    with mw.memtrace(deep=True) as rec:
        found = second()
    assert torch.equal(found, plain)
    assert [band.name for band in rec.trace.bands if band.kind == "phase"] == ["backward", "backward"]
