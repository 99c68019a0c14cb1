"""Deep mode: the tensors that autograd saves, with the stack of the forward that saved each.

Owns the pair of saved-tensor hooks. Packing notes time, storage and stack, and hands autograd a detached alias of what
has a graph: the tensor itself would hold its own graph in a circle. Unpacking notes the time, in whichever thread runs
backward. With hooks autograd no longer sees that a saved tensor was changed in place; so that is looked after here.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from memwidget.record.captured import CapturedStacks, gather
from memwidget.record.sources import store_sources
from memwidget.record.standins import StandIns, compiling
from memwidget.recording import Frames, Recording, Saved, Uses

if TYPE_CHECKING:
    from memwidget.record.cpu import Stacks
    from memwidget.recording import I32, I64

#: Saved tensors kept: a GPT-2-small step saves about 300. Half of them have a stack of their own, 130 MB in all.
MAX_SAVED = 400_000
_FULL = 4 * MAX_SAVED
#: Nodes whose backward is a view, as a rule. To follow one costs 10 us, and a linear layer makes two of them.
_MAKE_NOTHING = (
    "AliasBackward",
    "PermuteBackward",
    "ReshapeAliasBackward",
    "SqueezeBackward",
    "TBackward",
    "TransposeBackward",
    "UnsafeViewBackward",
    "UnsqueezeBackward",
    "ViewBackward",
)
#: What torch's operators call their nodes; they take a number when their saved tensors are packed, or just before.
_GENERATED = re.compile(r"Backward\d+$")
_PythonNode = getattr(torch._C, "_FunctionBase", torch.autograd.Function)
#: The number that the next node of this thread will bear (torch before 2.0 does not say).
_sequence = getattr(torch._C._autograd, "_get_sequence_nr", None) or (lambda: -1)
#: The stack of no use.
_NONE = -2


class SavedTensors:
    """Notes of what autograd saves and takes back, in the thread that starts it."""

    def __init__(self, kind: str) -> None:
        self.notes: list[str] = []
        self._kind = kind
        self._stacks = CapturedStacks()
        self._saved: list[int] = []  # four each: time in ns, device, address, stack
        self._uses: list[int] = []  # two each: time in ns, row of saved (~row: its maker)
        self._hooks: Any = None
        self._stand_ins = StandIns()
        self._on = [False]  # lists, as the hooks share them
        self._last = [_NONE]  # the stack of the last use
        self._silent: dict[type, bool] = {}  # class of node -> whether it saves no tensors
        self._generated: dict[type, bool] = {}  # class of node -> whether it is an operator's of torch's own
        self._pair = self._hook_pair()

    def start(self) -> None:
        """Put the hooks on; where they are refused, say so and go on without."""
        if gather is None:
            self._refused(RuntimeError("this takes PyTorch 2.1"))
            return
        try:
            hooks = torch.autograd.graph.saved_tensors_hooks(*self._pair)
            hooks.__enter__()
        except Exception as error:  # noqa: BLE001
            self._refused(error)
            return
        self._hooks = hooks
        self._on[0] = True
        self._stand_in()
        self._stand_ins.place(torch.autograd.graph.saved_tensors_hooks, "__init__", self._join)

    def stop(self) -> None:
        """Take the hooks off. Graphs that outlive the recording still unpack, without notes."""
        self._stand_ins.remove()
        hooks, self._hooks = self._hooks, None
        self._on[0] = False
        if hooks is not None:
            hooks.__exit__(None, None, None)

    def _stand_in(self) -> None:
        """Step aside where somebody (a function transform) is about to refuse all hooks, ours included."""
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if top is None or not hasattr(torch._C._autograd, "_saved_tensors_hooks_disable"):
            return

        def around(original: Any) -> Any:
            def disable(message: str, *args: Any, **kwargs: Any) -> Any:
                pair = top(True) if self._hooks is not None else None
                if pair is not None and pair[0] is self._pair[0]:
                    hooks, self._hooks = self._hooks, None
                    self._on[0] = False
                    hooks.__exit__(None, None, None)
                    self._refused(RuntimeError(message))
                return original(message, *args, **kwargs)

            return disable

        self._stand_ins.place(torch._C._autograd, "_saved_tensors_hooks_disable", around)

    def _join(self, original: Any) -> Any:
        """Note, too, what hooks of others save and take back: autograd calls the innermost pair alone.

        Checkpointing is such a pair. What it saves it drops and makes again, and the line of that is the forward's.
        """
        (note, _), uses, on, last, clock = self._pair, self._uses, self._on, self._last, time.time_ns

        def __init__(hooks: Any, pack: Any, unpack: Any) -> None:  # noqa: N807
            within = getattr(pack, "__module__", "") == __name__  # of a recording within this one
            if within or not on[0] or compiling():
                original(hooks, pack, unpack)
                return

            def use(row: int, stack: int) -> None:
                if stack != last[0] and row >= 0 and on[0]:
                    last[0] = stack
                    uses.extend((clock(), row))

            def noting_pack(tensor: torch.Tensor) -> Any:
                row, stack, *_ = note(tensor)
                return row, stack, pack(tensor)

            def noting_unpack(packed: Any) -> torch.Tensor:
                row, stack, theirs = packed
                use(row, stack)
                tensor = unpack(theirs)
                use(row, stack)  # again, if others were used on the way: a region was made again
                return tensor

            original(hooks, noting_pack, noting_unpack)

        return __init__

    def _refused(self, error: Exception) -> None:
        words = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self.notes.append(
            f"Deep mode is off, as saved-tensor hooks were refused ({words}): blocks made in backward have no forward "
            "line."
        )

    def _hook_pair(self) -> tuple[Any, Any]:
        """The two hooks. A GPT-2 small runs each 325 times a step: so closures, flat integers, few calls."""
        kind, ours = self._kind, f"is_{self._kind}"
        saved, uses, taken, on, last = self._saved, self._uses, self._stacks.taken, self._on, self._last
        clock, silent, generated = time.time_ns, self._silent, self._generated

        sequence, ident = _sequence, threading.get_ident
        # `floor`: no node that had its tensors packed since bears a smaller number.
        node, thread, floor, known, row, alone = -1, 0, -1, -1, -1, False

        def pack(tensor: torch.Tensor) -> Any:
            nonlocal node, thread, floor, known, row, alone
            leaf = tensor.is_leaf
            if on[0] and len(saved) < _FULL:
                # What one node saves has one stack: no other node of this thread bears its number.
                number = sequence()
                if number != node or number < 0 or thread != ident():
                    floor = node if thread == ident() else -1
                    node, thread, known = number, ident(), len(taken)
                    taken.append(gather(python=True, script=False, cpp=False))
                    alone = True
                elif leaf and tensor.requires_grad:  # a parameter: known by its name, and of this line
                    return row, known, tensor, _version(tensor)
                at, address, device = clock(), 0, -1
                try:
                    if getattr(tensor, ours):
                        address = tensor.untyped_storage().data_ptr()
                        device = -1 if not address else 0 if kind == "cpu" else tensor.get_device()
                except Exception:  # noqa: BLE001  (a subclass without storage)
                    address = 0
                row = len(saved) // 4
                saved.extend((at, device, address, known))
                if not leaf:
                    maker = tensor.grad_fn
                    if alone:
                        alone = False  # the first tensor that has a maker will do: its maker runs next, as a rule
                        if silent.get(type(maker), True):
                            self._follow(maker, row)
                    # Autograd by itself keeps an argument as it is. Only what this node itself makes (or one of many
                    # made at once, as by a foreach operator) would hold its own graph. A Function of the user's may
                    # have been made long before what it saves.
                    if generated.get(type(maker)) and maker._sequence_nr() < floor:
                        return row, known, tensor, tensor._version
                mine, stack = row, known
            else:
                mine = stack = -1
            if leaf:  # it has no graph that it could hold; autograd by itself keeps it, too
                return mine, stack, tensor, _version(tensor)
            try:
                kept = tensor.detach()  # 0.9 us
                return mine, stack, kept, kept._version  # noqa: TRY300
            except Exception:  # noqa: BLE001
                # A subclass without it: its graph may then hold itself, as with any such hook.
                return mine, stack, tensor, _version(tensor)

        def unpack(packed: Any) -> torch.Tensor:
            row, stack, tensor, version = packed
            # One operator takes several back, all of one line: the first tells.
            if stack != last[0] and row >= 0 and on[0]:
                last[0] = stack
                uses.extend((clock(), row))
            if version >= 0 and tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"[{tensor.dtype} {list(tensor.shape)}] is at version {tensor._version}; "
                    f"expected version {version} instead."
                )
            return tensor

        with contextlib.suppress(ImportError, AttributeError):
            # Code that torch.compile has left in Python must not have it compile the recorder.
            from torch._C._dynamo.eval_frame import skip_code

            for function in (pack, unpack, SavedTensors._follow):
                skip_code(function.__code__)
        return pack, unpack

    def _follow(self, maker: Any, row: int) -> None:
        """Note when the node that made a saved tensor runs, if it saves no tensor that would tell.

        What an addition, a view, a cast or a concatenation makes in backward would else belong to the node before. Of
        the 38 of a GPT-2 small, each takes 18 us; to ask first whether one hands its gradient on as it is, took 21.
        """
        kind = type(maker)
        silent = self._silent.get(kind)
        if silent is None:
            saves = any(name.startswith("_raw_saved") for name in dir(kind))
            silent = self._silent[kind] = not saves and not kind.__name__.startswith(_MAKE_NOTHING)
            self._generated[kind] = bool(_GENERATED.search(kind.__name__)) and not issubclass(kind, _PythonNode)
        if silent:
            uses, on, last = self._uses, self._on, self._last

            def runs(gradients: Any) -> None:  # noqa: ARG001
                if on[0]:
                    last[0] = _NONE
                    uses.extend((time.time_ns(), ~row))

            maker.register_prehook(runs)

    def begins(self) -> None:
        """Say that a backward begins: its first use is noted whatever the last one was."""
        self._last[0] = _NONE

    def recomputes(self) -> None:
        """Say that backward runs a forward again: what follows belongs to that, until a tensor is taken back."""
        if self._on[0] and len(self._saved) < _FULL:
            row, at = len(self._saved) // 4, time.time_ns()
            self._saved.extend((at, -1, 0, -1))
            self._uses.extend((at, row))
            self._last[0] = _NONE

    def store(self, recording: Recording) -> None:
        """Write saved tensors, uses and their stacks into a recording."""
        rows: I64 = np.array(self._saved, np.int64).reshape(-1, 4)
        saved: Saved = Saved.empty(len(rows))
        saved.time_us[:], saved.device[:], saved.address[:] = rows[:, 0] // 1000, rows[:, 1], rows[:, 2]
        numbers = np.append(self._stacks.resolve(), -1)  # -1 takes the last
        first = _add_stacks(recording, self._stacks)
        saved.stack[:] = np.where(rows[:, 3] >= 0, numbers[rows[:, 3]] + first, -1)
        noted: I64 = np.array(self._uses, np.int64).reshape(-1, 2)
        uses: Uses = Uses.empty(len(noted))
        uses.time_us[:], uses.saved[:] = noted[:, 0] // 1000, noted[:, 1]
        recording.saved, recording.uses = saved, uses
        store_sources(recording)


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place; inference tensors do not count."""
    try:
        return int(tensor._version)
    except Exception:  # noqa: BLE001
        return -1


def _add_stacks(recording: Recording, stacks: Stacks) -> int:
    """Append the stacks, and frames that the recording does not have yet; returns the number of the first."""
    mine = Recording()
    stacks.store(mine)
    strings = {text: row for row, text in reversed(list(enumerate(recording.strings)))}
    place = []
    for text in mine.strings:
        if text not in strings:
            strings[text] = len(recording.strings)
            recording.strings.append(text)
        place.append(strings[text])
    old = recording.frames
    known = {
        key: row
        for row, key in reversed(
            list(enumerate(zip(old.filename.tolist(), old.line.tolist(), old.name.tolist(), strict=True)))
        )
    }
    added: list[tuple[int, int, int]] = []
    rows = []
    for file, line, name in zip(
        mine.frames.filename.tolist(), mine.frames.line.tolist(), mine.frames.name.tolist(), strict=True
    ):
        key = (place[file], line, place[name])
        if key not in known:
            known[key] = len(old) + len(added)
            added.append(key)
        rows.append(known[key])
    if added:
        more: Frames = Frames.empty(len(added))
        more.filename[:], more.line[:], more.name[:] = zip(*added, strict=True)
        recording.frames = Frames(
            **{c.name: np.concatenate([getattr(old, c.name), getattr(more, c.name)]) for c in Frames.columns()}
        )
    first = recording.n_stacks
    numbers: I32 = np.array(rows, np.int32)[mine.stack_frames] if rows else mine.stack_frames
    lengths = np.diff(mine.stacks).tolist()
    offsets = list(accumulate(lengths, initial=int(recording.stacks[-1])))[1:]
    recording.stacks = np.append(recording.stacks, np.array(offsets, np.int32)).astype(np.int32)
    recording.stack_frames = np.append(recording.stack_frames, numbers).astype(np.int32)
    return first
