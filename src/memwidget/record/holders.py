"""Who holds memory when a notebook cell has ended.

Owns the look at the places where notebooks keep things without being asked: displayed values (``Out``, ``_``, ``_7``),
the last error's traceback (``sys.last_value``, IPython's own copy), names, and reference cycles that wait for the
garbage collector. Only numbers and texts are kept: the address and size of a storage, who holds it, and the line that
lets go. The shell's namespaces come in as plain mappings.

Nothing is collected and no tensor is changed. A frame's locals are read through the collector's own view of the frame:
asking for ``f_locals`` would make a copy that keeps them alive.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Thread
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from memwidget.record.sources import user_file

if TYPE_CHECKING:
    from memwidget.recording import Recording

#: Looking for cycles asks the collector for referrers, which walks every object of the process each time: 0.1 s a
#: million objects. The largest tensors come first, and this is all the time it gets, seconds.
CYCLES_WITHIN = 0.3
#: The largest ones are looked at however long it takes.
CYCLES_AT_LEAST = 8
#: Storages told of, objects walked in one place, objects walked around a suspected cycle.
MAX_ROWS, MAX_TENSORS, MAX_AROUND = 5_000, 20_000, 2_000

# `%reset -f out` leaves what `__` and `___` were in the hidden namespace (IPython 9.18).
CLEAR_OUT = "get_ipython().displayhook.flush(); get_ipython().push({'_': '', '__': '', '___': ''}, interactive=False)"
# Clearing the frames is not enough: IPython has asked for their f_locals to show the error, and that copy stays. The
# result of the cell is in a cycle with IPython's own frames, so the collector has to come.
CLEAR_ERROR = (
    "import gc, sys; sys.last_value = sys.last_exc = sys.last_traceback = get_ipython().InteractiveTB.tb = "
    "get_ipython().last_execution_result = None; gc.collect()"
)
COLLECT = "import gc; gc.collect()"

_SHELL = re.compile(r"/(IPython|ipykernel|memwidget)/")
#: Objects of these lead to all that the shell knows.
_SHELL_PACKAGES = {"IPython", "ipykernel", "memwidget", "traitlets"}
#: Names of the last displayed values, and the others that IPython itself puts into a namespace.
_LAST = {"_", "__", "___"}
_PLUMBING = {"In", "Out", "exit", "quit", "get_ipython", "open", "_oh", "_ih", "_dh", "_i", "_ii", "_iii"}


@dataclass
class Notebook:
    """What a shell holds, for one look.

    Attributes
    ----------
    names : mapping
        The user's namespace.
    out : mapping
        ``Out``: cell number -> displayed value.
    number : int
        Of the cell that ends.
    last : list
        What the shell itself calls ``_``, ``__`` and ``___``; under these names the user may keep something else.
    value : list
        The cell's last value, if it has one; else empty.
    shown : bool
        Whether that value is about to be displayed, hence kept; behind a ``;`` it goes.
    tracebacks : list of (holder, traceback)
        Those of the last error.
    """

    names: Mapping[str, Any]
    out: Mapping[Any, Any] = field(default_factory=dict)
    number: int = 0
    last: list[Any] = field(default_factory=list)
    value: list[Any] = field(default_factory=list)
    shown: bool = True
    tracebacks: list[tuple[str, TracebackType | None]] = field(default_factory=list)


def find_holders(notebook: Notebook, kind: str, cycles_of: Container[int] | None = None) -> list[dict[str, Any]]:
    """Storages of one kind of device ("cpu", "cuda", "xpu") that something in the notebook holds.

    Parameters
    ----------
    cycles_of : container of int, optional
        Look for reference cycles only around storages at these addresses; everywhere if left out.

    Returns
    -------
    list of dict
        ``address``, ``bytes``, ``holder`` ("Out[3]", "name", "the last error's traceback"), ``kind`` ("out", "name",
        "error", "cycle"; "passing": it goes as the cell ends), ``fix`` (the line that lets go; "" where none does);
        ``graph`` is there, and true, where an autograd graph hangs on it.
    """
    if "torch" not in sys.modules:
        return []
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, int]] = set()
    held: set[int] = set()
    for holder, sort, fix, values in _places(notebook):
        for address, size, graph in _storages(values, kind):
            held.add(address)
            if (holder, address) not in seen and len(rows) < MAX_ROWS:
                seen.add((holder, address))
                row = {"address": address, "bytes": size, "holder": holder, "kind": sort, "fix": fix}
                rows.append({**row, "graph": True} if graph else row)
    for address, size, name in _cycles(kind, held, cycles_of):
        if len(rows) < MAX_ROWS:
            holder = f"a reference cycle through {name}"
            rows.append({"address": address, "bytes": size, "holder": holder, "kind": "cycle", "fix": COLLECT})
    return rows


def look(
    recording: Recording,
    shell: Any,
    around: Callable[[], Container[int]],
    value: Iterable[Any] = (),
    number: int = 0,
) -> list[dict[str, Any]] | None:
    """Add to a recording who holds its memory now, in a shell of IPython's.

    Whatever goes wrong becomes a note: a look at the user's objects must not cost the trace.

    Parameters
    ----------
    around : callable
        Gives the addresses around which to look for cycles.
    value, number
        The cell's last value, in a list, and the cell's number, where they are known.

    Returns
    -------
    list of dict or None
        The rows of `find_holders`; None where they could not be had.
    """
    error = sys.exc_info()
    tracebacks = tracebacks_of("the error's traceback", error[1])
    if error[2] is None:
        tracebacks = [
            *tracebacks_of("sys.last_value", getattr(sys, "last_value", None)),
            ("IPython's last traceback", getattr(getattr(shell, "InteractiveTB", None), "tb", None)),
        ]
    display = getattr(shell, "displayhook", None)
    notebook = Notebook(
        names=shell.user_ns,
        out=shell.user_ns.get("Out", {}),
        number=number,
        last=[getattr(display, name, None) for name in ("_", "__", "___")],
        value=list(value),
        shown=display is None or not display.quiet(),
        tracebacks=tracebacks,
    )
    rows = None
    try:
        if error[0] is not None:
            recording.facts["error"] = error[0].__name__
        rows = find_holders(notebook, recording.device_type, around())
        recording.facts["holders"] = rows
    except Exception as failure:  # noqa: BLE001
        recording.notes.append(f"Who holds the memory could not be found out: {type(failure).__name__}.")
    finally:
        del error, tracebacks, notebook
    return rows


def tracebacks_of(holder: str, error: BaseException | None) -> list[tuple[str, TracebackType | None]]:
    """The tracebacks of an error and of those it was raised from: each holds the frames that it passed."""
    found: list[tuple[str, TracebackType | None]] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        found.append((holder, error.__traceback__))
        error = error.__cause__ or error.__context__
    return found


def _places(notebook: Notebook) -> Iterator[tuple[str, str, str, Iterable[Any]]]:
    """(holder, kind, fix, values) of every place."""
    shown = set()
    for number, value in list(notebook.out.items()):
        shown.add(id(value))
        yield f"Out[{number}]", "out", CLEAR_OUT, [value]
    for value in notebook.value:
        shown.add(id(value))
        if notebook.shown:
            yield f"Out[{notebook.number}]", "out", CLEAR_OUT, [value]
        else:
            yield "the value behind the semicolon", "passing", "", [value]
    for holder, traceback in notebook.tracebacks:
        yield holder, "error", CLEAR_ERROR, list(_locals(traceback, notebook.names))
    for name, value in list(notebook.names.items()):
        if name in _PLUMBING or (name.startswith("_") and id(value) in shown):
            continue
        if name in _LAST:
            if any(value is own for own in notebook.last):
                yield name, "out", CLEAR_OUT, [value]  # Out was cleared, and this was not
                continue
        elif name.strip("_0123456789i") == "":
            continue
        yield from _named(name, value)


def _named(name: str, value: Any) -> Iterator[tuple[str, str, str, Iterable[Any]]]:
    """The places that one name leads to: what is to be let go need not be what the name stands for."""
    if isinstance(value, ModuleType):
        if user_file(getattr(value, "__file__", "") or ""):
            for part, inner in list(vars(value).items()):
                if not isinstance(inner, ModuleType) and not part.startswith("__"):
                    yield f"{name}.{part}", "name", f"del {name}.{part}", [inner]
    elif isinstance(value, type):
        if value.__module__ == "__main__":
            for part, inner in list(vars(value).items()):
                if not part.startswith("__"):
                    yield f"{name}.{part}", "name", f"del {name}.{part}", [inner]
    elif issubclass(type(value), Thread) and value.is_alive():
        yield f"the running thread {name}", "name", "", [value]  # its own frames hold what it was given
    elif _is_cache(value):
        yield f"the cache of {name}", "name", f"{name}.cache_clear()", gc.get_referents(value)
    elif _is_module(value):
        yield name, "name", f"del {name}", [value]
        hooks = [part for module in value.modules() for part in _hooks(module)]
        # An expression: it may stand behind a semicolon. clear() gives None, so that any() goes through all.
        clear = f"any(m._forward_hooks.clear() or m._forward_pre_hooks.clear() for m in {name}.modules())"
        yield f"a hook of {name}", "name", clear, hooks
    else:
        yield name, "name", f"del {name}", [value]


def _locals(traceback: TracebackType | None, names: Mapping[str, Any]) -> Iterator[Any]:
    """What the frames of a traceback hold, but for the user's namespace itself."""
    while traceback is not None:
        # The shell's own frames hold the shell, and with it everything.
        mine = not _SHELL.search(traceback.tb_frame.f_code.co_filename.replace("\\", "/"))
        for value in gc.get_referents(traceback.tb_frame) if mine else ():
            if value is not names and not isinstance(value, (FrameType, ModuleType)):
                if isinstance(value, dict) and "__builtins__" in value:
                    continue  # a module's globals
                yield value
        traceback = traceback.tb_next


# -- tensors in values ------------------------------------------------------------------------------------------------


def _storages(values: Iterable[Any], kind: str) -> Iterator[tuple[int, int, bool]]:
    """(address, bytes, whether a graph hangs on it) of the tensors in values."""
    for tensor in _tensors(values):
        found = _storage(tensor, kind)
        if found is not None:
            yield (*found, tensor.grad_fn is not None)


def _storage(tensor: Any, kind: str) -> tuple[int, int] | None:
    with contextlib.suppress(Exception):  # fake, functional or sparse tensors have no storage to tell of
        if tensor.device.type == kind:
            storage = tensor.untyped_storage()
            address, size = int(storage.data_ptr()), int(storage.nbytes())
            if address and size:
                return address, size
    return None


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Tensors in values, and their gradients: all that the garbage collector can reach from them, nearest first.

    Not through what everything is reached from: modules, namespaces, library classes, the shell; nor through hooks of
    modules, which are places of their own.
    """
    import torch

    left = MAX_TENSORS
    pending = deque(values)
    seen: set[int] = set()
    while pending and left > 0:
        value = pending.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        left -= 1
        # type(): isinstance asks an object for its __class__, and some answer with a warning.
        if issubclass(type(value), torch.Tensor):
            yield value
            with contextlib.suppress(Exception):
                if value.is_leaf and value.grad is not None:
                    yield value.grad
        if type(value).__module__ == "numpy":  # not the collector's: an array of a tensor's memory has it as its base
            base = getattr(value, "base", None)
            if base is not None:
                pending.append(base)
        if _is_module(value):
            seen.update(id(part) for part in _hooks(value))
        pending.extend(part for part in gc.get_referents(value)[:MAX_TENSORS] if _leads_on(part))


def _leads_on(value: Any) -> bool:
    """Whether tensors may be reached through an object that are its own, not everybody's."""
    kind = type(value)
    if not gc.is_tracked(value):
        return kind.__module__ == "numpy"
    if issubclass(kind, (type, ModuleType, CodeType)) or kind.__module__.partition(".")[0] in _SHELL_PACKAGES:
        return False
    if kind is FrameType:
        return not _SHELL.search(value.f_code.co_filename.replace("\\", "/"))
    return not (kind is dict and "__builtins__" in value)


def _is_cache(value: Any) -> bool:
    return type(value).__name__ == "_lru_cache_wrapper"


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.nn.Module)


def _hooks(module: Any) -> list[Any]:
    return [part for name, part in vars(module).items() if name.endswith("_hooks")]


# -- reference cycles -------------------------------------------------------------------------------------------------


def live_storages(kind: str) -> dict[int, int]:
    """Address -> bytes of the storage of every tensor object that lives, wherever it is held."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = (_storage(t, kind) for t in gc.get_objects() if issubclass(type(t), torch.Tensor))
    return dict(pair for pair in found if pair is not None)


def _cycles(kind: str, held: set[int], among: Container[int] | None) -> list[tuple[int, int, str]]:
    """Storages of tensors that nothing outside a cycle refers to: (address, bytes, class of an object in the cycle)."""
    # No generator: one would itself refer to the tensors it goes through.
    import torch

    found = []
    # type(): isinstance asks an object for its __class__, and some answer with a warning.
    tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
    tensors.sort(key=_weight, reverse=True)
    deadline = time.perf_counter() + CYCLES_WITHIN
    looked = 0
    for tensor in tensors:
        if looked >= CYCLES_AT_LEAST and time.perf_counter() > deadline:
            break
        storage = _storage(tensor, kind)
        if storage is None or storage[0] in held or (among is not None and storage[0] not in among):
            continue
        looked += 1
        name, members = _closed(tensor, id(tensors))
        if not name:
            continue
        for other in tensors:  # all that the cycle holds: each look is dear
            storage = _storage(other, kind) if id(other) in members else None
            if storage is not None and storage[0] not in held and (among is None or storage[0] in among):
                held.add(storage[0])
                found.append((*storage, name))
    return found


def _weight(tensor: Any) -> int:
    """Bytes of a tensor, for the order in which they are looked at."""
    try:
        return int(tensor.nbytes)
    except Exception:  # noqa: BLE001  (a tensor without storage, or of another library's making)
        return 0


def _closed(start: Any, caller: int) -> tuple[str, set[int]]:
    """Name a class in the closed group of objects around `start` that only refer to each other; "" where it is open.

    With it come the ids of all that they refer to.

    The group of everything that refers to it, directly or not, is closed if it holds no frame and no module and every
    reference that an object counts comes from inside the group. `caller` is the id of the caller's list of tensors.
    """
    group: dict[int, Any] = {id(start): start}
    fresh = [start]
    own = {id(group), caller}
    while fresh:
        around = gc.get_referrers(*fresh)
        skip = own | {id(fresh), id(around)}
        fresh = []
        for other in around:
            if id(other) in skip or id(other) in group:
                continue
            if isinstance(other, FrameType) and other.f_code.co_filename == __file__:
                continue
            if isinstance(other, (FrameType, ModuleType, type)):
                return "", set()
            group[id(other)] = other
            fresh.append(other)
        around = other = None  # type: ignore[assignment]
        if len(group) > MAX_AROUND:
            return "", set()
    inside: dict[int, int] = dict.fromkeys(group, 0)
    for other in group.values():
        for target in gc.get_referents(other):
            if id(target) in inside:
                inside[id(target)] += 1
    target = None
    for other in group.values():
        # Beside the group: the entry in `group`, the name `other`, getrefcount's own argument; for the first one also
        # this function's argument and the caller's name and list.
        ours = 3 + (3 if other is start else 0)
        if sys.getrefcount(other) - ours > inside[id(other)]:
            return "", set()
    # No comprehension in this function: one that names `start` would put it into a cell, which is one more reference.
    name = type(start).__name__
    held = {id(target) for other in group.values() for target in gc.get_referents(other)}
    for other in group.values():
        if other is not start and not isinstance(other, (dict, list, tuple)):
            return type(other).__name__, held
    return name, held


# -- runs of one cell -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A block that a run of a cell made and left: bytes, the line that made it, whether it is a model's state."""

    size: int
    line: str
    state: bool


class CellRuns:
    """What earlier runs of each cell left behind, by the cell's text: its file is another one at every run."""

    def __init__(self) -> None:
        self._left: dict[str, list[dict[int, Kept]]] = {}

    def addresses(self, text: str) -> set[int]:
        """Where earlier runs of a cell left something."""
        return {address for left in self._left.get(text, ()) for address in left}

    def look(self, text: str, kept: dict[int, Kept], holders: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
        """Note what this run leaves; returns, one row an earlier run, what of it still lives and this run left again.

        Again means: at a line at which this run left about as many bytes, and so did the two runs before it, whose
        blocks all live (what is replaced at the next run, or the one after, does not pile up). After two runs a model's
        state does not count: the first run makes it, once.
        """
        before = self._left.setdefault(text, [])
        found = []
        if before:
            alive = live_storages(kind)
            for run, left in enumerate(before):
                before[run] = {a: k for a, k in left.items() if 0 < alive.get(a, 0) <= k.size and a not in kept}
            if not any(before):
                before.clear()  # all was let go: it starts again
        if before:
            few = len(before) < 2
            now = _by_line(kept, few)
            for left in before[-2:]:
                then = _by_line(left, few)
                now = {x: n for x, n in now.items() if 2 * min(n, then.get(x, 0)) >= max(n, then.get(x, 0))}
            for left in before:
                still = {a: k.size for a, k in left.items() if k.line in now and not (few and k.state)}
                mine = [row for row in holders if row["address"] in still]
                found.append(
                    {
                        "bytes": sum(still.values()),
                        "holders": list(dict.fromkeys(row["holder"] for row in mine))[:5],
                        "fixes": list(dict.fromkeys(row["fix"] for row in mine))[:5],
                    }
                )
            found[-1]["again"] = [a for a, k in kept.items() if k.line in now and not (few and k.state)]
        before.append(kept)
        del before[:-20]
        return found


def _by_line(kept: dict[int, Kept], few: bool) -> dict[str, int]:
    """Bytes by line, without a model's state where there are few runs."""
    sums: dict[str, int] = {}
    for block in kept.values():
        if not (few and block.state):
            sums[block.line] = sums.get(block.line, 0) + block.size
    return sums
