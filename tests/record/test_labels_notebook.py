"""Labels in a notebook: the variables are looked at, and `--deep` reaches the recorder."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

import memwidget as mw


@pytest.fixture
def shell():
    shell = InteractiveShell.instance()
    mw.load_ipython_extension(shell)
    before = set(shell.user_ns)
    yield shell
    mw.unload_ipython_extension(shell)
    for name in set(shell.user_ns) - before:
        del shell.user_ns[name]
    InteractiveShell.clear_instance()


def run(shell, *lines):
    result = shell.run_cell("\n".join(lines))
    result.raise_error()
    return result


def names(trace, category):
    return {
        trace.label(b)
        for b in range(trace.n_blocks)
        if trace.categories[trace.blocks["category"][b]] == category and trace.label(b)
    }


def test_variables_are_found_without_a_word(shell):
    run(shell, "import torch")
    run(
        shell,
        "%%memtrace trace --quiet",
        "nets = {'g': torch.nn.Linear(4, 40), 'd': torch.nn.Linear(4, 40)}",
        "own = torch.ones(100, requires_grad=True)",
        "opt = torch.optim.Adam([*nets['g'].parameters(), own])",
        "(nets['g'](torch.ones(2, 4)).sum() + own.sum()).backward()",
        "opt.step()",
        "_hidden = torch.ones(300, requires_grad=True)",
    )
    trace = shell.user_ns["trace"]
    assert names(trace, "parameter") == {
        *("nets['g'].weight", "nets['g'].bias", "nets['d'].weight", "nets['d'].bias", "own"),
    }
    assert names(trace, "gradient") == {"nets['g'].weight", "nets['g'].bias", "own"}
    assert {"nets['g'].weight / exp_avg", "own / exp_avg"} <= names(trace, "optimizer_state")


def test_deep_reaches_the_recorder(shell):
    run(shell, "import torch", "net = torch.nn.Linear(4, 40)")
    run(shell, "%%memtrace trace --quiet --deep", "net(torch.ones(2, 4)).sum().backward()")
    trace = shell.user_ns["trace"]
    gradients = [b for b in range(trace.n_blocks) if trace.label(b) == "net.weight" or trace.label(b) == "weight"]
    assert gradients
    assert all(trace.forward_frames(b) for b in gradients)
    run(shell, "%%memtrace trace --quiet", "net(torch.ones(2, 4)).sum().backward()")
    assert (shell.user_ns["trace"].forward_stack < 0).all()
