"""Frames -> the user's line.

Owns the rules that tell the user's own code from libraries, C++ and plumbing, the words a call site is called by, and
why a block has no stack. Works on whole tables of frames and stacks, never on one block. It must not know about events.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memwidget.recording import I32, U8, Recording

#: Kinds of frame.
USER, LIBRARY, CPP, PLUMBING = 0, 1, 2, 3

#: Why a block has no stack, by code; 0 stands for "it has one".
NO_STACK = (
    "",
    "It existed before the recording began, so its allocation was not seen.",
    'Allocated in backward, on autograd\'s own thread, which has no Python stack; stacks="all" shows the C++ side.',
    "The recording kept no stacks at all (context=None).",
    "The recording kept no stack for this allocation.",
    "Allocated outside any operator (a bare storage, say), where the CPU recorder sees no line.",
)
_STACK, _EARLIER, _BACKWARD, _NO_STACKS, _NOT_KEPT, _NO_OPERATOR = range(len(NO_STACK))

#: Label of blocks whose stack names no line of Python.
NO_SITE = "(no Python stack)"

# Installed packages, the standard library, code that torch wrote (inductor, fx), frozen modules.
_LIBRARY = re.compile(
    r"(/site-packages/|/dist-packages/|/lib/python\d[\d.]*/|/python\d[\d.]*/lib/|/torchinductor_[^/]*/"
    r"|/torch/(nn|autograd|optim|utils|_dynamo|_inductor|_functorch|fx|cuda|distributed|amp|_prims|_refs)/"
    r"|^<frozen|^<eval_with_key>|^<__array_function__|^<string>$)",
    re.IGNORECASE,
)
# torch.profiler takes what is on sys.path off its file names: ``torch/nn/modules/linear.py``, ``contextlib.py``.
_STRIPPED = re.compile(
    r"^((torch|torchvision|torchaudio|functorch|numpy|transformers|accelerate|lightning|pytorch_lightning|deepspeed"
    r"|IPython|ipykernel|asyncio|concurrent|importlib|multiprocessing|unittest|_pytest|pluggy)/"
    r"|(_?abc|contextlib|copy|dataclasses|enum|functools|inspect|os|pathlib|random|re|runpy|tempfile|threading|typing"
    r"|warnings|weakref|_weakrefset)\.py$)"
)
# What runs a notebook cell: everything outward of these frames is the notebook's own machinery.
_NOTEBOOK = re.compile(r"/(IPython/core|ipykernel|traitlets|tornado|marimo|google/colab)/|/(ipykernel_launcher)\.py$")
_CELL_FILE = re.compile(r"/ipykernel_\d+/[^/]+\.py$|^<ipython-input-(\d+)-[0-9a-f]*>$|^(<|/)?marimo[^/]*cell")
# The recorder's own frames never made a block that a user asked for.
_OWN = re.compile(r"/memwidget/(session|magic|record/[a-z_]+)\.py$")
# The interpreter calling itself, seen only in C++ stacks.
_INTERPRETER = re.compile(r"^(_?Py[A-Z_]|__libc_|_start$|PyInit|clone3?$|start_thread$)")


def normal_path(filename: str) -> str:
    """A path with forward slashes, so that one rule serves Windows recordings too."""
    return filename.replace("\\", "/")


def is_cell(filename: str) -> bool:
    """Whether this is a notebook cell's file, as IPython names them."""
    return bool(_CELL_FILE.search(normal_path(filename)))


def frame_kinds(recording: Recording) -> U8:
    """USER, LIBRARY, CPP or PLUMBING for every frame.

    Returns
    -------
    ndarray of uint8, one entry a row of ``recording.frames``
    """
    by_file: dict[int, int] = {}
    kinds = np.empty(len(recording.frames), np.uint8)
    for row, (file, name) in enumerate(
        zip(recording.frames.filename.tolist(), recording.frames.name.tolist(), strict=True)
    ):
        if file not in by_file:
            by_file[file] = _file_kind(recording.strings[file])
        kind = by_file[file]
        if kind == CPP and _INTERPRETER.match(recording.strings[name]):
            kind = PLUMBING
        kinds[row] = kind
    return kinds


def _file_kind(filename: str) -> int:
    path = normal_path(filename)
    if is_cell(path):
        return USER
    if not path.endswith((".py", ".pyx", ".pyw", ".ipynb")) and not path.startswith("<"):
        return CPP
    if _NOTEBOOK.search("/" + path) or _OWN.search("/" + path):
        return PLUMBING
    return LIBRARY if _LIBRARY.search(path) or _STRIPPED.search(path) else USER


def stack_sites(recording: Recording, kinds: U8) -> I32:
    """The frame a stack is named by: the innermost one of the user's.

    Where there is none, the innermost Python frame outside torch, then the innermost Python frame; -1 where the stack
    holds no Python at all.

    Returns
    -------
    ndarray of int32, shape (n_stacks,), rows of ``recording.frames``
    """
    in_torch = np.array(
        ["/torch/" in "/" + normal_path(recording.strings[f]) for f in recording.frames.filename.tolist()], bool
    )
    # Ranks: 0 the user's, 1 a library's, 2 torch's, 3 not Python. The first frame of the lowest rank names the stack.
    rank = np.where(kinds == USER, 0, np.where(kinds == LIBRARY, np.where(in_torch, 2, 1), 3))
    sites = np.full(recording.n_stacks, -1, np.int32)
    frames = recording.stack_frames
    for stack, (start, end) in enumerate(
        zip(recording.stacks[:-1].tolist(), recording.stacks[1:].tolist(), strict=True)
    ):
        if end > start:
            best = start + int(np.argmin(rank[frames[start:end]]))
            if rank[frames[best]] < 3:
                sites[stack] = frames[best]
    return sites


def site_labels(recording: Recording, rows: I32, cells: Mapping[str, str]) -> dict[int, str]:
    """Words for call sites: ``train.py:31 in step``, or ``cell 3, line 5``.

    Parameters
    ----------
    rows : rows of ``recording.frames`` to name
    cells : a notebook cell's file name -> what to call it ("cell 3"), as kept by the recorder

    Returns
    -------
    dict of frame row to label; two files of one name are told apart by their folder.
    """
    wanted = sorted({int(row) for row in rows if row >= 0})
    paths = {row: normal_path(recording.strings[recording.frames.filename[row]]) for row in wanted}
    homes: dict[str, set[str]] = {}
    for path in paths.values():
        homes.setdefault(path.rsplit("/", 1)[-1], set()).add(path)
    labels = {}
    for row, path in paths.items():
        line = int(recording.frames.line[row])
        name = recording.strings[recording.frames.name[row]]
        filename = recording.strings[recording.frames.filename[row]]
        where = " in " + name if name and name != "<module>" else ""
        if filename in cells or is_cell(path):
            labels[row] = f"{cells.get(filename, _cell_name(path))}, line {line}{where}"
            continue
        base = path.rsplit("/", 1)[-1]
        if len(homes[base]) > 1:
            base = "/".join(path.rsplit("/", 2)[-2:])
        labels[row] = f"{base}:{line}{where}"
    return labels


def _cell_name(path: str) -> str:
    """What to call a cell whose number the recording does not know."""
    match = _CELL_FILE.search(path)
    if match and match.group(1):
        return f"cell {match.group(1)}"
    return f"notebook cell {path.rsplit('/', 1)[-1].removesuffix('.py')}"


def no_stack_codes(recording: Recording, stack: I32, born: I32, kinds: U8) -> U8:
    """Why each block has no stack: an index into NO_STACK, 0 where it has one.

    Parameters
    ----------
    stack, born : one entry a block: its stack, and the event that allocated it; -1 for none
    kinds : see `frame_kinds`
    """
    if not (stack >= 0).any():
        ordinary = _NO_STACKS
    elif recording.facts.get("context") == "state":
        ordinary = _NOT_KEPT
    elif recording.device_type == "cpu":
        ordinary = _NO_OPERATOR
    else:
        # Python-only stacks are empty exactly on autograd's own threads. One C++ frame anywhere means that C++
        # stacks were on, and then an empty stack has another reason.
        ordinary = _NOT_KEPT if (kinds >= CPP).any() else _BACKWARD
    codes = np.where(stack < 0, np.where(born < 0, _EARLIER, ordinary), _STACK)
    return codes.astype(np.uint8)
