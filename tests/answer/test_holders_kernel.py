"""Who holds a cell's memory, in a real kernel: what is said is true, and what is advised frees it."""

import pytest
from jupyter_client.manager import start_new_kernel

from test_magic_kernel import TIMEOUT, Kernel

KIB = 1024
ALIVE = "sum(t.numel() for t in gc.get_objects() if issubclass(type(t), torch.Tensor)) // 1024"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=TIMEOUT)
    try:
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        patch.undo()


@pytest.fixture
def kernel(running):
    """Give a kernel in which nothing is left of the test before, and in which the collector comes only when called."""
    running.run("%reset -f")
    running.run("1 / 0")  # lets the last error of the test before go
    running.run("%load_ext memwidget\nimport gc, torch\nfrom memwidget.record.holders import CLEAR_ERROR, CLEAR_OUT")
    running.run("exec(CLEAR_OUT)")
    running.run("gc.disable()\ngc.collect()\nbuf = lambda n: torch.empty(n * 1024, dtype=torch.uint8)")
    assert alive(running) == 0
    return running


def alive(kernel):
    return int(kernel.run(ALIVE)["value"])


def findings(kernel):
    out = kernel.run("[(f.kind, f.bytes, f.bytes_per_step, f.advice, ' '.join(f.evidence)) for f in t.findings()]")
    return eval(out["value"])


def follow(kernel, advice):
    """Run what stands behind "Run:" as the reader would."""
    assert advice.startswith("Run: ")
    code = advice.removeprefix("Run: ").split(": that frees")[0].split(". That")[0]
    out = kernel.run(code)
    assert out["status"] == "ok", out["error"]


def test_the_traceback_of_the_last_error(kernel):
    kernel.run("%%memtrace t --quiet\ndef f():\n    a = buf(256)\n    raise RuntimeError('x')\nf()")
    ((kind, size, _, advice, evidence),) = findings(kernel)
    assert (kind, size) == ("held", 256 * KIB)
    assert "traceback holds 256 KiB" in evidence
    assert "ended with RuntimeError" in evidence
    kernel.run("gc.collect()")
    assert alive(kernel) == 256  # collecting alone is no help
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_the_next_error_lets_the_last_one_go(kernel):
    kernel.run("%%memtrace t --quiet\ndef f():\n    a = buf(256)\n    raise RuntimeError('x')\nf()")
    kernel.run("1 / 0")
    kernel.run("gc.collect()")
    assert alive(kernel) == 0  # the recorder itself holds nothing of it


@pytest.mark.parametrize(
    "one",
    [
        "sys.last_value = sys.last_exc = None",
        "sys.last_traceback = None",
        "get_ipython().InteractiveTB.tb = None",
        "get_ipython().last_execution_result = None",
    ],
)
def test_one_holder_of_a_traceback_alone_is_not_enough(kernel, one):
    kernel.run("%%memtrace t --quiet\ndef f():\n    a = buf(256)\n    raise RuntimeError('x')\nf()")
    kernel.run(f"import gc, sys\n{one}\ngc.collect()")
    assert alive(kernel) == 256
    kernel.run("exec(CLEAR_ERROR)")
    assert alive(kernel) == 0


def test_a_displayed_value_is_held_by_more_than_out(kernel):
    kernel.run("%%memtrace t --quiet\nbuf(128)")
    kernel.run("Out.clear()\ngc.collect()\nNone")
    assert alive(kernel) == 128  # _ and _7 have it
    ((kind, size, _, advice, _),) = findings(kernel)
    assert (kind, size) == ("held", 128 * KIB)
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_displayed_values_pile_up_from_run_to_run(kernel):
    for run in range(3):
        kernel.run("%%memtrace t --quiet\nbuf(128)")
        found = findings(kernel)
        if run == 0:
            assert [f[:2] for f in found] == [("held", 128 * KIB)]
    ((kind, size, per_run, advice, evidence),) = found
    assert (kind, size, per_run) == ("growth", 3 * 128 * KIB, 128 * KIB)
    assert "ran 3 times" in evidence
    assert "Out[" in evidence
    assert alive(kernel) == 3 * 128
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_a_name_that_holds_the_last_turn_alone_is_no_cause_of_growth(kernel):
    kernel.run(
        "%%memtrace t --quiet\nw = torch.ones(16384, requires_grad=True)\ntotal = 0.0\n"
        "for _ in range(8):\n    out = w.sin()\n    loss = out.cos().sum()\n    total = total + loss"
    )
    ((_, _, per_step, advice, _),) = [f for f in findings(kernel) if f[0] == "growth"]
    assert per_step == 64 * KIB  # what sin makes and cos keeps: all turns' through total, the last one's as out, too
    assert "loss.item()" in advice


def test_a_value_behind_a_semicolon(kernel):
    for _ in range(3):
        kernel.run("%%memtrace t --quiet\nbuf(128);")
    # IPython 8.12 and earlier kept it in Out all the same; then it is a pile, else nothing.
    kept = alive(kernel)
    assert [f[:3] for f in findings(kernel)] == ([("growth", 3 * 128 * KIB, 128 * KIB)] if kept else [])


def test_names_lists_and_attributes(kernel):
    kernel.run(
        "%%memtrace t --quiet\nclass Trainer: pass\nmine = Trainer()\nmine.outs = {'last': buf(50)}\nkeep = [buf(100)]"
    )
    ((kind, size, _, advice, evidence),) = findings(kernel)
    assert (kind, size) == ("held", 150 * KIB)
    assert "keep holds 100 KiB" in evidence
    assert "mine holds 50.0 KiB" in evidence
    follow(kernel, advice)
    assert alive(kernel) == 0


@pytest.mark.parametrize(
    ("cell", "holder"),
    [
        ("@functools.cache\ndef features(i): return buf(100)\nfeatures(0).sum().item()", "the cache of features"),
        ("class Config: store = {}\nConfig.store[0] = buf(100)", "Config.store"),
        ("def note(x, seen=[]): seen.append(x)\nnote(buf(100))", "note"),
        ("def stream():\n    x = buf(100)\n    while True: yield x.numel()\nit = stream(); next(it)\nNone", "it"),
        ("part = functools.partial(torch.add, buf(100))", "part"),
        ("deep = {'a': {'b': [[({'c': buf(100)},)]]}}", "deep"),
        ("array = buf(100).numpy()[::2]", "array"),
        ("try: raise ValueError(buf(100))\nexcept ValueError as error: caught = error", "caught"),
        (
            (
                "class Keeper:\n    def __init__(self): self.kept = []\n"
                "    def see(self, m, i, out): self.kept.append(out)\n"
                "net = torch.nn.Identity()\nnet.register_forward_hook(Keeper().see)\nnet(buf(100)).numel()\nNone"
            ),
            "a hook of net",
        ),
    ],
    ids=["lru", "class", "default", "generator", "partial", "nested", "numpy", "exception", "hook"],
)
def test_places_that_one_forgets(kernel, cell, holder):
    kernel.run("import functools")
    kernel.run("%%memtrace t --quiet\n" + cell)
    (found,) = [f for f in findings(kernel) if f[0] == "held"]
    assert found[1] == 100 * KIB
    assert f"{holder} holds 100 KiB" in found[4]
    assert found[4].count(" holds ") == 1
    follow(kernel, found[3])
    kernel.run("gc.collect()\nNone")
    assert alive(kernel) == 0


def test_a_graph_is_held_through_its_end(kernel):
    kernel.run("w = torch.ones(65536, requires_grad=True)")
    before = alive(kernel)
    kernel.run("%%memtrace t --quiet\nloss = (w.sin().cos() * 2).sum()")
    (found,) = [f for f in findings(kernel) if f[0] == "held"]
    assert 256 * KIB <= found[1] < 257 * KIB  # cos keeps w.sin(); sin keeps w itself, the others nothing
    assert "loss has a grad_fn" in found[4]
    follow(kernel, found[3])
    assert alive(kernel) == before


def test_an_underscore_of_the_users_is_a_name(kernel):
    kernel.run("%%memtrace t --quiet\nvalues, _ = torch.arange(32768).sort()")
    (found,) = [f for f in findings(kernel) if f[0] == "held"]
    assert found[1] == 2 * 256 * KIB
    assert "_ holds 256 KiB" in found[4]
    assert "that frees 512 KiB" in found[3]
    follow(kernel, found[3])
    assert alive(kernel) == 0


def test_no_more_is_promised_than_the_names_that_were_found_hold(kernel):
    kernel.run("import sys")
    kernel.run("%%memtrace t --quiet\nmine, sys.other = buf(100), buf(200)")
    ((_, size, _, advice, _),) = findings(kernel)
    kernel.run("del sys.other")
    assert size == 300 * KIB
    assert advice == "Run: del mine: that frees up to 100 KiB."


def test_a_graph_from_before_holds_nothing_that_came_later(kernel):
    kernel.run("import sys\nloss = torch.ones(4, requires_grad=True).sin().sum()")
    kernel.run("%%memtrace t --quiet\nsys.other = buf(100)")
    ((_, _, _, advice, evidence),) = findings(kernel)
    kernel.run("del sys.other")
    assert "loss" not in advice + evidence


def test_an_error_raised_from_another_holds_the_frames_of_both(kernel):
    kernel.run(
        "%%memtrace t --quiet\ndef inner():\n    a = buf(256)\n    raise KeyError('x')\n"
        "def outer():\n    try: inner()\n    except KeyError: raise RuntimeError('y')\nouter()"
    )
    ((kind, size, _, advice, evidence),) = findings(kernel)
    assert (kind, size) == ("held", 256 * KIB)
    assert "the error's traceback holds 256 KiB" in evidence
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_a_reference_cycle_is_found_without_collecting(kernel):
    kernel.run(
        "%%memtrace t --quiet\nclass Node: pass\ndef make():\n    for _ in range(8):\n"
        "        node = Node()\n        node.data = buf(100)\n        node.me = node\nmake()"
    )
    assert alive(kernel) == 800
    ((kind, _, per_step, advice, evidence),) = findings(kernel)
    assert (kind, per_step) == ("growth", 100 * KIB)
    assert "a reference cycle through Node" in evidence
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_a_loop_of_cycles_at_top_level_is_told_by_those_that_were_looked_at(kernel):
    kernel.run(
        "%%memtrace t --quiet\nclass Node: pass\nfor _ in range(40):\n    node = Node()\n    node.data = buf(64)\n"
        "    node.twice = node.data * 2\n    node.me = node\ndel node"
    )
    ((kind, _, per_step, advice, evidence),) = findings(kernel)
    assert (kind, per_step) == ("growth", 128 * KIB)
    assert "a reference cycle through Node" in evidence
    assert "no_grad" not in advice
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_pairs_that_a_list_keeps_are_no_graph(kernel):
    kernel.run(
        "%%memtrace t --quiet\nkept = []\nfor _ in range(12):\n    a = buf(64)\n    b = a * 2\n    kept.append((a, b))"
    )
    ((kind, _, per_step, advice, evidence),) = findings(kernel)
    assert (kind, per_step) == ("growth", 128 * KIB)
    assert "kept holds" in evidence
    assert "no_grad" not in advice
    assert "clear or cap what keeps it" in advice


TRAIN = (
    "for _ in range(4):\n    loss = net(torch.rand(16, 256)).pow(2).mean()\n    opt.zero_grad()\n"
    "    loss.backward()\n    opt.step()"
)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_an_ordinary_training_cell_is_nothing_unusual(kernel, optimizer):
    kernel.run(f"net = torch.nn.Linear(256, 256); opt = torch.optim.{optimizer}(net.parameters(), lr=0.1)")
    for _ in range(2):
        kernel.run("%%memtrace t --quiet\n" + TRAIN)
        assert {f[0] for f in findings(kernel)} <= {"step", "baseline"}


def test_a_gradient_without_an_optimizer_is_told_without_a_step(kernel):
    kernel.run("%%memtrace t --quiet\nleaf = torch.rand(256, 256, requires_grad=True)\n(leaf * 2).sum().backward()")
    held = [f for f in findings(kernel) if f[0] == "held"]
    assert any("Set .grad to None" in f[3] and "leaf" in f[4] for f in held)
    assert not any("step()" in f[3] for f in held)


@pytest.mark.parametrize("spread", [True, False], ids=["start and stop", "with"])
def test_a_recording_without_a_magic_names_the_holder_too(kernel, spread):
    if spread:
        kernel.run("import memwidget as mw\nmw.start()")
        kernel.run("mine = buf(100)")
        kernel.run("t = mw.stop()")
    else:
        kernel.run("import memwidget as mw\nwith mw.memtrace() as rec:\n    mine = buf(100)\nt = rec.trace")
    ((kind, size, _, advice, evidence),) = findings(kernel)
    assert (kind, size) == ("held", 100 * KIB)
    assert "mine holds 100 KiB" in evidence
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_what_the_collector_frees_in_the_cell_was_in_cycles(kernel):
    kernel.run(
        "%%memtrace t --quiet\nclass Node: pass\nfor _ in range(10):\n"
        "    node = Node(); node.data = buf(100); node.me = node\ndel node\ngc.collect()\nNone"
    )
    ((kind, _, per_step, advice, evidence),) = findings(kernel)
    assert (kind, per_step) == ("growth", 100 * KIB)
    assert "while Python's garbage collector ran" in evidence
    assert "cycle" in advice


def test_a_model_that_is_built_again_and_kept(kernel):
    kernel.run("kept = []")
    for _ in range(2):
        kernel.run("%%memtrace t --quiet\nmodel = [buf(64) for _ in range(4)]\nopt = list(model)\nkept.append(model)")
        found = findings(kernel)
    ((kind, size, per_run, advice, evidence),) = found
    assert (kind, size, per_run) == ("growth", 512 * KIB, 256 * KIB)
    assert "kept" in evidence
    follow(kernel, advice)
    assert alive(kernel) == 0


def test_a_model_that_is_built_again_in_its_place_does_not_grow(kernel):
    for _ in range(3):
        kernel.run("%%memtrace t --quiet\nmodel = [buf(64) for _ in range(4)]\nopt = list(model)")
        assert [f[0] for f in findings(kernel)] == ["held"]
    assert alive(kernel) == 256


def test_a_cell_that_leaves_nothing_has_nothing_unusual(kernel):
    for _ in range(2):
        kernel.run("%%memtrace t --quiet\nsum(buf(8).numel() for _ in range(20))")
    assert findings(kernel) == []


TRAIN = """%%memtrace t --backend cpu --quiet
for i in range(4):
    x = torch.randn(16, 512)
    loss = net(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()"""


@pytest.mark.parametrize(
    "cell",
    [
        TRAIN,
        TRAIN.replace("for i", "if 'md' not in globals(): md = torch.nn.Linear(512, 512)\nfor i", 1),
        "%%memtrace t --quiet\nif 'once' not in globals(): once = buf(256)\nsum(buf(8).numel() for _ in range(5))",
    ],
    ids=["train", "model", "cache"],
)
def test_what_the_first_run_alone_made_does_not_grow(kernel, cell):
    kernel.run("net = torch.nn.Linear(512, 512); opt = torch.optim.AdamW(net.parameters())")
    for _ in range(3):
        kernel.run(cell)
        assert [f[:2] for f in findings(kernel) if f[0] == "growth"] == []


def test_two_at_a_time_do_not_grow(kernel):
    for run in range(4):
        kernel.run("%%memtrace t --quiet\nprev = globals().get('cur')\ncur = buf(128)")
        if run > 1:
            assert [f[0] for f in findings(kernel)] == ["held"]
    assert alive(kernel) == 2 * 128
