"""The house keeps its order: which room may import which, and where each third-party package comes in.

Read from the syntax tree, so that an import hidden in a function counts as well.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "memwidget"
MODULES = sorted(PACKAGE.rglob("*.py"))

LEAVES = {"recording", "units"}
#: What each room may import of the house, beside itself; data walks from left to right, imports point left.
ROOMS = {
    "recording": set(),
    "units": set(),
    "record": {*LEAVES, "read"},  # torch's dict becomes a Recording in read/snapshot.py, live or from a file
    "read": LEAVES,
    "trace": LEAVES,
    "answer": {*LEAVES, "read", "record", "trace"},
    "show": {*LEAVES, "read", "trace", "answer"},
}
#: These put the rooms together and may import every one.
ENTRANCES = {"__init__", "__main__", "session", "guard", "magic", "cli", "pytest_plugin"}
#: The only imports to the right: one line inside a function, so that a Trace can show and save itself.
DEFERRED = {
    ("trace/trace.py", "save"): "read",
    ("trace/trace.py", "findings"): "answer",
    ("trace/trace.py", "to_html"): "show",
    ("trace/trace.py", "to_timeline_json"): "show",
    ("trace/trace.py", "to_timeline_html"): "show",
    ("trace/trace.py", "to_flamegraph"): "show",
    ("trace/trace.py", "to_perfetto"): "show",
    ("trace/trace.py", "plot"): "show",
    ("trace/trace.py", "_repr_mimebundle_"): "show",
    ("answer/compare.py", "to_html"): "show",
    ("answer/compare.py", "_repr_mimebundle_"): "show",
    ("answer/batch_size/fit.py", "plot"): "show",
    ("answer/batch_size/fit.py", "sliders"): "show",
}
#: Third-party package -> the only places that may import it; numpy may come in anywhere.
DOORS = {
    "torch": ("record/",),
    "IPython": ("magic.py",),
    "anywidget": ("show/view.py",),
    "traitlets": ("show/view.py",),
    "ipywidgets": ("show/sliders.py",),
    "bokeh": ("show/figures",),
    "pandas": ("trace/",),
    "pytest": ("pytest_plugin.py",),
    "zstandard": ("read/",),
}


def relative(module):
    return module.relative_to(PACKAGE).as_posix()


def room_of(path):
    return path.split("/")[0].removesuffix(".py")


def imports(tree, path):
    """Yield (dotted name, line, names of the functions around it) of each import that runs."""

    def walk(node, functions):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children = node.orelse
        else:
            children = list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions = (*functions, node.name)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, functions
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = ["memwidget", *path.split("/")[:-1]]
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            for alias in node.names if base == "memwidget" else [None]:
                yield f"{base}.{alias.name}" if alias else base, node.lineno, functions
        for child in children:
            yield from walk(child, functions)

    yield from walk(tree, ())


def all_imports():
    for module in MODULES:
        path = relative(module)
        for name, line, functions in imports(ast.parse(module.read_text("utf-8")), path):
            yield path, name, line, functions


def test_imports_point_left_along_the_road():
    wrong, used = [], set()
    for path, name, line, functions in all_imports():
        room, parts = room_of(path), name.split(".")
        if room in ENTRANCES or parts[0] != "memwidget":
            continue
        target = parts[1] if len(parts) > 1 else "__init__"
        if target in {room, "__version__"} or target in ROOMS[room]:
            continue
        allowed = [key for key in ((path, function) for function in functions) if DEFERRED.get(key) == target]
        if allowed:
            used.update(allowed)
        else:
            wrong.append(f"{path}:{line} imports {name}")
    assert not wrong
    assert used == set(DEFERRED), "a deferred import is listed that nobody needs"


def test_every_module_lives_in_a_room():
    assert {room_of(relative(m)) for m in MODULES} <= ENTRANCES | set(ROOMS)


def test_each_third_party_package_has_one_door():
    wrong, homes = [], {name: set() for name in DOORS}
    for path, name, line, _ in all_imports():
        package = name.split(".")[0]
        if package in {"memwidget", "numpy"} or package in sys.stdlib_module_names:
            continue
        if path.startswith(DOORS.get(package, ("nowhere",))):
            homes[package].add(path)
        else:
            wrong.append(f"{path}:{line} imports {name}")
    assert not wrong
    assert len(homes["zstandard"]) <= 1, "zstandard is opened in one file"


@pytest.mark.parametrize("module", MODULES, ids=relative)
def test_every_module_says_what_it_owns(module):
    assert ast.get_docstring(ast.parse(module.read_text("utf-8")))


def test_importing_memwidget_is_cheap():
    code = (
        "import sys, memwidget; print(sorted({'torch', 'bokeh', 'anywidget', 'IPython', 'pandas'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
