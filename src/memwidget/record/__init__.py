"""Recording what runs now: the options, the choice of a recorder, and what every recorder promises.

The modules in here are the only ones that import torch, and they do so on use: importing memwidget stays cheap, and
reading a file needs no torch at all. A recorder is started once and finished once; it returns a `Recording`, leaves
the process as it found it, and keeps no tensor, exception or frame alive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Protocol

from memwidget.recording import Recording

STACKS = ("python", "all")
CONTEXTS = ("alloc", "all", "state", "none")
BACKENDS = ("auto", "cuda", "xpu", "cpu")


class RecorderError(RuntimeError):
    """Recording is not possible here; the message names the cause and the way out."""


@dataclass(frozen=True)
class Options:
    """What to record.

    Attributes
    ----------
    stacks : {"python", "all"}
        Python frames only, or C++ frames as well (CUDA on Linux; slow to turn into text).
    context : {"alloc", "all", "state", "none"}
        Which events carry a stack: allocations; frees as well; only blocks still alive at the end; none.
    max_entries : int
        Events kept. CUDA's history is a ring and keeps the last ones; the CPU recorder keeps the first ones.
    device : int or None
        The device to show; every device is recorded.
    backend : {"auto", "cuda", "xpu", "cpu"}
        The allocator to record; "auto" takes a GPU where there is one.
    """

    stacks: str = "python"
    context: str = "alloc"
    max_entries: int = 200_000
    device: int | None = None
    backend: str = "auto"

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("stacks", self.stacks, STACKS),
            ("context", self.context, CONTEXTS),
            ("backend", self.backend, BACKENDS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(allowed)}.")
        if isinstance(self.max_entries, bool) or not isinstance(self.max_entries, int) or self.max_entries < 1:
            raise ValueError(f"max_entries={self.max_entries!r} must be a whole number of at least 1.")
        if self.device is not None and (not isinstance(self.device, int) or self.device < 0):
            raise ValueError(f"device={self.device!r} must be the ordinal of a device, such as 0.")
        if self.stacks == "all" and self.context == "none":
            raise ValueError("stacks='all' asks for C++ frames and context='none' for no frames at all; leave one out.")
        if self.backend == "cpu":
            if self.stacks == "all":
                raise ValueError("backend='cpu' records Python frames only; leave stacks='all' out.")
            if self.device:
                raise ValueError(f"backend='cpu' has device 0 only; device={self.device} does not exist there.")


FORKED = (
    "This process was forked from the one that records, and records nothing itself: end the recording there, or start "
    "one of its own here."
)


class Recorder(Protocol):
    """Started once, finished once."""

    #: "cuda", "xpu" or "cpu".
    kind: str
    #: What torch gave, as it gave it (CUDA and XPU); None before `finish` and for the CPU recorder.
    snapshot: dict[str, Any] | None

    def start(self) -> None:
        """Begin; `RecorderError` where that is not possible, with nothing left switched on."""

    def check(self) -> None:
        """Raise `RecorderError` where it may not be finished now, in this thread; it then goes on."""

    def abandon(self) -> None:
        """In a forked child: let go of everything; the recording belongs to the parent, which goes on with it."""

    def finish(self) -> Recording:
        """End, restore what was found, and return what was recorded. Restores even where it raises."""


def choose(options: Options) -> Recorder:
    """The recorder for this process.

    Raises
    ------
    RecorderError
        Nothing here can be recorded as asked.
    """
    if find_spec("torch") is None:
        raise RecorderError(
            "Recording needs PyTorch, which is not installed here: run `pip install torch` and try again "
            "(opening snapshot files works without it)."
        )
    from memwidget.record import cuda

    backend = options.backend
    if backend in ("auto", "cuda", "xpu"):
        kind = cuda.available(backend)
        if kind is not None:
            return cuda.DeviceRecorder(kind, options)
        if backend != "auto":
            raise RecorderError(cuda.why_not(backend))
    from memwidget.record.cpu import CpuRecorder

    notes = []
    if backend == "auto":
        notes.append(cuda.why_cpu())
        if options.stacks == "all":
            notes.append("The CPU recorder has Python stacks only: stacks='all' was taken as 'python'.")
        if options.device:
            notes.append(f"The CPU has device 0 only: device={options.device} was taken as 0.")
        options = replace(options, backend="cpu", stacks="python", device=None)
    return CpuRecorder(options, notes)
