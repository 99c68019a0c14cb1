"""``%%memtrace`` in a real kernel: a cell does what it does without the magic, and the trace comes on top."""

import re
from queue import Empty

import pytest
from jupyter_client.manager import start_new_kernel

#: A kernel that answers slower than this hangs.
TIMEOUT = 120


class Kernel:
    """One cell after another, with everything that came of it."""

    def __init__(self, client):
        self.client = client

    def start(self, code):
        return self.client.execute(code)

    def collect(self, request):
        reply = self.client.get_shell_msg(timeout=TIMEOUT)["content"]
        out = {
            "status": reply["status"],
            "value": None,
            "stdout": "",
            "stderr": "",
            "shown": [],
            "order": [],
            "error": (),
            "traceback": "",
        }
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=TIMEOUT)
            except Empty:  # pragma: no cover
                pytest.fail("the kernel fell silent")
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            out["order"].append(kind)
            if kind == "status" and content["execution_state"] == "idle":
                return out
            if kind == "stream":
                out[content["name"]] += content["text"]
            elif kind == "execute_result":
                out["value"] = content["data"]["text/plain"]
            elif kind == "display_data":
                out["shown"].append(content["data"])
            elif kind == "error":
                out["error"] = (content["ename"], content["evalue"])
                out["traceback"] = "\n".join(content["traceback"])

    def run(self, code):
        return self.collect(self.start(code))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIMEOUT)
    kernel = Kernel(client)
    try:
        assert kernel.run("%load_ext memwidget\nimport torch")["status"] == "ok"
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        patch.undo()


def plain(text):
    """An error without colours and without what differs between two cells: number, file, first line."""
    if isinstance(text, tuple):
        return tuple(map(plain, text))
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(r"\(\d+\.py,", "(<cell>.py,", text)
    text = re.sub(r"In\[\d+\]", "In[N]", text)
    return re.sub(r"^( *1 ).*$", r"\1<first line>", text, flags=re.MULTILINE)


SAME = {
    "last expression": "x = torch.ones(3)\nx.sum()",
    "no value": "x = torch.ones(3)",
    "semicolon": "x = 3\nx + 1;",
    "None": "print('printed')\nNone",
    "a string alone": "'a docstring that is the value'",
    "await": "import asyncio\nawait asyncio.sleep(0, 'slept')",
    "async for": "async def f():\n    yield 1\n[i async for i in f()]",
    "line magics": "%xmode\n%xmode Context\na = !echo shell\n!echo out\nprint(a)\n%who_ls nothing_like_this",
    "line magic last": "%pwd",
    "future": '"""A docstring."""\nfrom __future__ import annotations\ndef f(a: undefined_name): return 5\nf(1)',
    "exception": "x = 1\n\ndef fail():\n    raise KeyError('gone')\n\nfail()",
    "exception in the last line": "x = [1]\nx[5]",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise ValueError('second') from error",
    "syntax error": "x = 1\nx = = 2",
    "error of the compiler": "x = 1\nreturn x",
    "system exit caught": "try:\n    raise SystemExit(3)\nexcept SystemExit as stop:\n    code = stop.code\ncode",
    "star import": "from math import *\nfloor(2.5)",
    "names": "del x, code\nsorted(n for n in globals() if 'memwidget' in n.lower() or 'door' in n)",
    "another cell magic": "%%capture captured\nprint('inside')",
    "a loop": "for i in range(3):\n    print(i)\nelse:\n    print('done')",
}


@pytest.mark.parametrize("code", SAME.values(), ids=SAME)
def test_a_cell_behaves_as_without_the_magic(kernel, code):
    setup = "x = code = 0"
    kernel.run(setup)
    without = kernel.run("# the magic's line\n" + code if not code.startswith("%%") else code)
    kernel.run(setup)
    recorded = kernel.run("%%memtrace --quiet\n" + code)
    for part in ("status", "value", "stdout", "stderr", "shown"):
        assert recorded[part] == without[part], part
    for part in ("error", "traceback"):
        assert plain(recorded[part]) == plain(without[part]), part


def test_out_history_and_underscore(kernel):
    kernel.run("%%memtrace --quiet\n11 * 11")
    assert kernel.run("_")["value"] == "121"
    assert kernel.run("%%memtrace t --quiet\n_ + 1")["value"] == "122"
    assert kernel.run("Out[max(Out)]")["value"] == "122"


def test_the_view_comes_before_the_value(kernel):
    out = kernel.run("%%memtrace\nkept = torch.ones(1000)\nkept.shape")
    assert [kind for kind in out["order"] if kind in ("display_data", "execute_result")] == [
        "display_data",
        "execute_result",
    ]
    (shown,) = out["shown"]
    assert "application/vnd.jupyter.widget-view+json" in shown
    assert "peak 3.91 KiB" in shown["text/plain"]
    assert re.search(r"cell \d+, line 2", shown["text/plain"])
    assert "recording cost" in shown["text/plain"]
    assert out["value"] == "torch.Size([1000])"
    assert out["stderr"] == ""


def test_static_shows_a_page_and_no_widget(kernel):
    (shown,) = kernel.run("%%memtrace --static\nkept = torch.ones(1000)")["shown"]
    assert "text/html" in shown
    assert "application/vnd.jupyter.widget-view+json" not in shown


def test_an_exception_leaves_the_trace_first_and_is_not_kept(kernel):
    out = kernel.run("%%memtrace t\ndef hold():\n    big = torch.ones(1_000_000)\n    raise ValueError('late')\nhold()")
    assert out["error"] == ("ValueError", "late")
    assert [kind for kind in out["order"] if kind in ("display_data", "error")] == ["display_data", "error"]
    assert kernel.run("t.allocated, t.site(0).line")["value"] == "(4000000, 3)"
    # IPython itself holds the last traceback; once the next one has replaced it, nobody does.
    kernel.run("1 / 0")
    kernel.run("import gc\ngc.collect()")
    alive = kernel.run("len([o for o in gc.get_objects() if type(o) is torch.Tensor and o.numel() == 1_000_000])")
    assert alive["value"] == "0"


def test_an_interrupt_ends_the_recording_and_goes_on(kernel):
    request = kernel.start(
        "%%memtrace t --quiet\n"
        "import os, signal, time\n"
        "kept = torch.ones(10)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "for _ in range(10**6): time.sleep(0.01)"
    )
    assert kernel.collect(request)["error"][0] == "KeyboardInterrupt"
    assert kernel.run("t.allocated, torch._C._autograd._profiler_enabled()")["value"] == "(40, False)"


def test_a_recording_inside_a_recording_says_so_and_the_outer_one_goes_on(kernel):
    out = kernel.run("%%memtrace t --quiet\nimport memwidget as mw\nkept = torch.ones(10)\nwith mw.memtrace(): pass")
    assert out["error"][0] == "RecorderError"
    assert "already runs in this thread" in out["error"][1]
    assert kernel.run("t.allocated")["value"] == "40"


def test_several_cells(kernel):
    kernel.run("%memtrace_start --name several")
    kernel.run("first = torch.ones(10)")
    kernel.run("second = torch.ones(20)")
    (shown,) = kernel.run("%memtrace_stop t")["shown"]
    assert shown["text/plain"].startswith("several on cpu")
    found = kernel.run("t.name, [(t.site(b).line, int(t.blocks['size'][b])) for b in t.live_at('end')]")["value"]
    assert found == "('several', [(1, 40), (1, 80)])"


def test_the_line_magic_gives_the_value_of_its_statement(kernel):
    out = kernel.run("%memtrace {'a': torch.ones(5).sum().item()}['a']")
    assert out["value"] == "5.0"
    assert len(out["shown"]) == 1


def test_await_with_a_task_beside_it(kernel):
    code = (
        "import asyncio\n"
        "async def work():\n"
        "    await asyncio.sleep(0)\n"
        "    return torch.ones(25)\n"
        "kept = await asyncio.gather(work(), work())\n"
        "len(kept)"
    )
    assert kernel.run("%%memtrace t --quiet\n" + code)["value"] == "2"
    assert kernel.run("t.allocated, t.site(0).line")["value"] == "(200, 5)"
