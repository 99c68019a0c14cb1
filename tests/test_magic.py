"""The magics' options and manners, in a plain shell; what needs a kernel is in test_magic_kernel.py."""

import sys

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

import memwidget as mw
from memwidget.record import cpu


@pytest.fixture(scope="module")
def the_shell(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    # A shell replaces it, and pytest has its own.
    patch.setattr(sys, "excepthook", sys.excepthook)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    yield InteractiveShell.instance(config=config)
    InteractiveShell.clear_instance()
    patch.undo()


@pytest.fixture
def shell(the_shell):
    the_shell.run_line_magic("load_ext", "memwidget")
    the_shell.user_ns["torch"] = torch
    before = set(the_shell.user_ns)
    yield the_shell
    the_shell.run_line_magic("unload_ext", "memwidget")
    the_shell.ast_node_interactivity = "last_expr"
    the_shell.set_custom_exc((), None)
    for name in set(the_shell.user_ns) - before:
        del the_shell.user_ns[name]


def run(shell, code):
    with capture_output() as out:
        result = shell.run_cell(code, store_history=True)
    return result, out.stdout + out.stderr, out.outputs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--bad", "unrecognized arguments: --bad"),
        ("a b", "unrecognized arguments: b"),
        ("--stacks some", "invalid choice: 'some'"),
        ("--max-entries 0", "max_entries=0 must be a whole number of at least 1"),
        ("--max-entries many", "invalid int value: 'many'"),
        ("2nd", "'2nd' cannot be the name of a variable"),
        ("class", "'class' cannot be the name of a variable"),
        ("--static --quiet", "leave one out"),
        ("--backend cpu --stacks all", "Python frames only"),
        ("--backend cpu --device 1", "device=1 does not exist there"),
        ("--context none --stacks all", "leave one out"),
        ("--save trace.txt", "must end in .memtrace (ours) or .pickle (torch's own)"),
        ("--save no/such/folder/t.memtrace", "the folder 'no/such/folder' does not exist"),
        ("--name 'open", "No closing quotation"),
        ("--backend xpu", "finds no XPU device here"),
        ("--save t.pickle --backend cpu", "save a CPU recording as .memtrace"),
    ],
)
def test_a_wrong_first_line_says_why_and_runs_nothing(shell, line, words):
    result, text, _ = run(shell, f"%%memtrace {line}\nran = True")
    assert type(result.error_in_exec).__name__ == "UsageError"
    assert words in text
    assert "Traceback" not in text
    assert "ran" not in shell.user_ns
    assert not torch._C._autograd._profiler_enabled()


def test_help_runs_nothing(shell):
    result, text, _ = run(shell, "%%memtrace --help\nran = True")
    assert result.success
    assert "usage: %%memtrace" in text
    assert "receives the Trace" in text
    assert "ran" not in shell.user_ns


def test_help_by_question_mark(shell, monkeypatch):
    pages = []
    monkeypatch.setattr(shell, "showtraceback", lambda *_, **__: pytest.fail("an error"))
    shell.set_hook("show_in_pager", lambda _, data, **__: pages.append(data["text/plain"]))
    run(shell, "%%memtrace?")
    run(shell, "%memtrace_start?")
    assert "usage: %%memtrace" in pages[0]
    assert "usage: %memtrace_start" in pages[1]


def test_an_empty_cell_is_told(shell):
    for code in ("%%memtrace", "%%memtrace t\n", "%%memtrace t\n\n  \n"):
        result, text, _ = run(shell, code)
        assert "this cell is empty" in text
        assert not result.success


def test_names_go_into_the_first_line(shell, tmp_path):
    shell.user_ns["folder"] = tmp_path
    run(shell, "%%memtrace t --quiet --name 'my step' --save {folder}/x.memtrace\nkept = torch.ones(10)")
    assert shell.user_ns["t"].name == "my step"
    again = mw.load(tmp_path / "x.memtrace")
    assert (again.name, again.peak_allocated) == ("my step", 40)


@pytest.mark.parametrize("style", ["all", "last", "last_expr", "last_expr_or_assign", "none"])
@pytest.mark.parametrize("body", ["1 + 1\n2 + 2", "3 + 3\nx = 4 + 4", "5;"])
def test_every_way_of_showing_values(shell, style, body):
    shell.ast_node_interactivity = style

    def shown(code):
        values = []
        original = shell.displayhook.write_format_data
        shell.displayhook.write_format_data = lambda data, *_: values.append(data["text/plain"])
        try:
            run(shell, code)
        finally:
            shell.displayhook.write_format_data = original
        return values

    assert shown("%%memtrace --quiet\n" + body) == shown("#\n" + body)


def test_another_magic_around_it_and_below_it(shell):
    result, text, _ = run(shell, "%%time\n%%memtrace t --quiet\nkept = torch.ones(10)\nkept.sum()")
    assert "Wall time" in text
    assert result.result == 10
    assert shell.user_ns["t"].allocated == 40 + 4
    result, text, _ = run(shell, "%%memtrace t --quiet\n%%time\nkept = torch.ones(20)\nkept.sum()")
    assert "Wall time" in text
    assert result.result == 20
    assert shell.user_ns["t"].peak_allocated >= 80


def test_future_lines_below_a_docstring_are_recorded(shell):
    future = "from __future__ import annotations"
    result, _, _ = run(
        shell, f'%%memtrace t --quiet\n"""Words."""\n{future}\nkept: nowhere = torch.ones(30)\nkept.sum()'
    )
    assert result.result == 30
    assert shell.user_ns.pop("t").peak_allocated >= 120


def test_called_by_another_tool(shell):
    with capture_output():
        value = shell.run_cell_magic("memtrace", "t --quiet", "kept = torch.ones(10)\nkept.sum()\n")
    assert value == 10
    assert shell.user_ns["t"].site(0).source == "kept = torch.ones(10)"
    with capture_output(), pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("memtrace", "t --quiet", "kept = torch.ones(30)\n1 / 0\n")
    assert shell.user_ns["t"].allocated == 120
    assert not torch._C._autograd._profiler_enabled()


def test_an_error_that_the_cell_itself_shows_does_not_end_it(shell):
    _, text, _ = run(
        shell,
        "%%memtrace t --quiet\nget_ipython().run_cell('1 / 0')\nkept = torch.ones(10)\nget_ipython().run_cell('5')\n",
    )
    assert "ZeroDivisionError" in text
    assert shell.user_ns["t"].allocated == 40
    assert "showtraceback" not in vars(shell) or shell.showtraceback == shell.__class__.showtraceback.__get__(shell)


def test_an_error_shown_by_a_custom_handler_still_ends_it(shell):
    seen = []
    shell.set_custom_exc((KeyError,), lambda _self, kind, *_, **__: seen.append(kind))
    run(shell, "%%memtrace t --quiet\nkept = torch.ones(10)\n{}['missing']")
    assert seen == [KeyError]
    assert shell.user_ns["t"].allocated == 40
    assert not torch._C._autograd._profiler_enabled()


def test_starting_and_stopping_in_the_wrong_order(shell):
    _, text, _ = run(shell, "%memtrace_stop")
    assert "No recording runs: %memtrace_start begins one." in text
    run(shell, "%memtrace_start --quiet")
    _, text, _ = run(shell, "%memtrace_start")
    assert "A recording already runs, from an earlier %memtrace_start: end it with %memtrace_stop first." in text
    run(shell, "kept = torch.ones(10)")
    _, text, outputs = run(shell, "%memtrace_stop t")
    assert (text, outputs) == ("", [])
    assert shell.user_ns["t"].live_at("end").size == 1


def test_a_later_stage_that_fails_is_told_and_the_cell_goes_on(shell, monkeypatch):
    def broken(*_):
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(cpu, "store_sources", broken)
    result, text, _ = run(shell, "%%memtrace\nkept = torch.ones(10)\nkept.sum()")
    assert result.result == 10
    assert "memwidget: the disk is full" in text
    assert not torch._C._autograd._profiler_enabled()


def test_unloading_takes_everything_away(shell):
    run(shell, "%memtrace_start")
    shell.run_line_magic("unload_ext", "memwidget")
    assert not torch._C._autograd._profiler_enabled()
    assert not [t for t in shell.ast_transformers if "memwidget" in type(t).__module__]
    assert not [t for t in shell.input_transformers_cleanup if "memwidget" in getattr(t, "__module__", "")]
    assert not [n for kind in shell.magics_manager.magics.values() for n in kind if n.startswith("memtrace")]
    _, text, _ = run(shell, "%%memtrace\n1")
    assert "not found" in text
    shell.run_line_magic("load_ext", "memwidget")
    run(shell, "%%memtrace t --quiet\nkept = torch.ones(10)")
    assert shell.user_ns["t"].blocks["size"].tolist() == [40]
