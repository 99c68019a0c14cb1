"""Deep mode: the tensors that autograd saves, with the stack of the forward that saved each.

Owns the pair of saved-tensor hooks. Packing notes time, storage and stack, and hands autograd a detached alias: the
tensor itself would hold its own graph in a circle. Unpacking notes the time, in whichever thread runs backward. With
hooks autograd no longer sees that a saved tensor was changed in place; so that is looked after here.
"""

from __future__ import annotations

import sys
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from memwidget.record.cpu import Stacks
from memwidget.record.labels import now
from memwidget.record.sources import store_sources
from memwidget.recording import Frames, Recording, Saved, Uses

if TYPE_CHECKING:
    from memwidget.recording import I32

#: Saved tensors kept: a GPT-2-small step saves about 500.
MAX_SAVED = 1_000_000


class SavedTensors:
    """Notes of what autograd saves and takes back, in the thread that starts it."""

    def __init__(self, kind: str) -> None:
        self.notes: list[str] = []
        self._kind = kind
        self._stacks = Stacks()
        self._saved: list[tuple[int, int, int, int]] = []  # time, device, address, stack
        self._uses: list[tuple[int, int]] = []  # time, row of saved
        self._hooks: Any = None
        self._refuse: tuple[Any, Any] | None = None
        self._on = False

    def start(self) -> None:
        """Put the hooks on; where they are refused, say so and go on without."""
        try:
            hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
            hooks.__enter__()
        except Exception as error:  # noqa: BLE001
            self._refused(error)
            return
        self._hooks, self._on = hooks, True
        self._stand_in()

    def stop(self) -> None:
        """Take the hooks off. Graphs that outlive the recording still unpack, without notes."""
        if self._refuse is not None:
            original, ours = self._refuse
            if torch._C._autograd._saved_tensors_hooks_disable is ours:
                torch._C._autograd._saved_tensors_hooks_disable = original
            self._refuse = None
        hooks, self._hooks = self._hooks, None
        self._on = False
        if hooks is not None:
            hooks.__exit__(None, None, None)

    def _stand_in(self) -> None:
        """Step aside where somebody (a function transform) is about to refuse all hooks, ours included."""
        original = getattr(torch._C._autograd, "_saved_tensors_hooks_disable", None)
        top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        if original is None or top is None:
            return

        def disable(message: str, *args: Any, **kwargs: Any) -> Any:
            pair = top(True) if self._hooks is not None else None
            if pair is not None and pair[0] == self._pack:
                hooks, self._hooks = self._hooks, None
                self._on = False
                hooks.__exit__(None, None, None)
                self._refused(RuntimeError(message))
            return original(message, *args, **kwargs)

        self._refuse = (original, disable)
        torch._C._autograd._saved_tensors_hooks_disable = disable

    def _refused(self, error: Exception) -> None:
        words = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        self.notes.append(
            f"Deep mode is off, as saved-tensor hooks were refused ({words}): blocks made in backward have no forward "
            "line."
        )

    def _pack(self, tensor: torch.Tensor) -> Any:
        row = -1
        version = _version(tensor)
        if self._on and len(self._saved) < MAX_SAVED:
            address, device = 0, -1
            try:
                where = tensor.device
                if where.type == self._kind:
                    address, device = tensor.untyped_storage().data_ptr(), where.index or 0
            except Exception:  # noqa: BLE001  (a subclass without storage)
                address = 0
            row = len(self._saved)
            self._saved.append((now(), device if address else -1, address, self._stacks.number(sys._getframe(1))))
        try:
            kept = tensor.detach()
        except Exception:  # noqa: BLE001  (a subclass without it: its graph may then hold itself, as with any such hook)
            kept = tensor
        return row, kept, version

    def recomputes(self) -> None:
        """Say that backward runs a forward again: what follows belongs to that, until a tensor is taken back."""
        if self._on and len(self._saved) < MAX_SAVED:
            row = len(self._saved)
            self._saved.append((now(), -1, 0, -1))
            self._uses.append((now(), row))

    def _unpack(self, packed: Any) -> torch.Tensor:
        row, tensor, version = packed
        if row >= 0 and self._on:
            self._uses.append((now(), row))
        changed = _version(tensor)
        if changed != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.dtype} {list(tensor.shape)}] is at version {changed}; expected version {version} instead."
            )
        return tensor

    def store(self, recording: Recording) -> None:
        """Write saved tensors, uses and their stacks into a recording."""
        first = _add_stacks(recording, self._stacks)
        saved: Saved = Saved.empty(len(self._saved))
        if self._saved:
            times, devices, addresses, stacks = zip(*self._saved, strict=True)
            saved.time_us[:], saved.device[:] = times, devices
            saved.address[:] = np.array(addresses, np.uint64)
            numbers = np.array(stacks, np.int32)
            saved.stack[:] = np.where(numbers >= 0, numbers + first, -1)
        uses: Uses = Uses.empty(len(self._uses))
        if self._uses:
            uses.time_us[:], uses.saved[:] = zip(*self._uses, strict=True)
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
