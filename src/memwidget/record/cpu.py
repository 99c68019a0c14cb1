"""The CPU recorder: what torch's CPU allocator did in this thread, for machines without a GPU and for tests.

torch keeps no CPU history. Its profiler reports every CPU allocation and free with address, size and time, but its own
Python stacks carry the line of each function's `def`. So a dispatch mode runs every operator inside a mark whose name
is the number of the Python stack that called it; in the profiler's event tree each allocation then hangs below the
mark of the operator that made it. (Joining by that tree is exact; joining by time is not, where two clocks differ by
a microsecond.) Held while recording: ints, strings and code objects, never a tensor, a frame or an exception.

Limits, said in the notes: the calling thread only; the curve counts bytes since the start; no ring, so the first
events are kept and the rest is left out.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memwidget.record import Options, RecorderError
from memwidget.record.ranges import add_ranges
from memwidget.record.sources import store_sources
from memwidget.recording import ACTION, Events, Frames, Recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

#: Time in ns, address, bytes (negative: a free), stack.
Row = tuple[int, int, int, int]

_MARK = "memwidget:"
#: Frames that are left out of a stack, and frames that end it.
SKIP, STOP = -1, -2
_PACKAGE = str(Path(__file__).absolute().parent.parent) + os.sep
#: They stand between the user's backward() and the engine, and between autograd and a saved tensor.
_BETWEEN = tuple(str(Path(__file__).absolute().parent / name) for name in ("watch.py", "deep.py"))
#: Below the cell's own frame there is only the machinery that ran it.
_SHELL = os.path.join("IPython", "core", "interactiveshell.py")  # noqa: PTH118
#: torch's own wrappers around a dispatch mode, in the versions that have them.
_WRAPPERS = (os.path.join("torch", "_dynamo", "eval_frame.py"), os.path.join("torch", "_compile.py"))  # noqa: PTH118


class Stacks:
    """Python stacks as numbers; a frame is interned by code object and instruction: a repeat costs one look-up."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self._frames: dict[tuple[str, int, str], int] = {}
        self._codes: list[CodeType] = []  # held, so that no id() is used twice

    def number(self, frame: FrameType | None) -> int:
        """The number of the stack that starts at `frame`, innermost."""
        rows, found = self._rows, []
        while frame is not None:
            row = rows.get((id(frame.f_code), frame.f_lasti))
            if row is None:
                row = self._add(frame)
            if row >= 0:
                found.append(row)
            elif row == STOP:
                break
            frame = frame.f_back
        key = tuple(found)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self.marks.append(f"{_MARK}{number}")
        return number

    def _add(self, frame: FrameType) -> int:
        code = frame.f_code
        row = self._rows[id(code), frame.f_lasti] = self.row(code.co_filename, frame.f_lineno or 0, code.co_name)
        self._codes.append(code)
        return row

    def row(self, file: str, line: int, name: str) -> int:
        """The number of a frame; SKIP for one to leave out, STOP where what lies outside is none of the user's."""
        if file.endswith(_WRAPPERS) or file in _BETWEEN:
            return SKIP
        if (file.endswith(_SHELL) and name == "run_code") or file.startswith(_PACKAGE):
            return STOP
        return self._frames.setdefault((file, line, name), len(self._frames))

    def store(self, recording: Recording) -> None:
        """Write frames and stacks into `recording`."""
        strings: dict[str, int] = {}
        frames = Frames.empty(len(self._frames))
        for row, (file, line, name) in enumerate(self._frames):
            frames.filename[row] = strings.setdefault(file, len(strings))
            frames.line[row] = line
            frames.name[row] = strings.setdefault(name, len(strings))
        recording.frames, recording.strings = frames, list(strings)
        recording.stacks = np.array([0, *accumulate(map(len, self._numbers))], np.int32)
        recording.stack_frames = np.array([row for stack in self._numbers for row in stack], np.int32)


def _noting_mode(stacks: Stacks, keep_stacks: bool, limit: int, on_limit: Any, look: Any = None) -> Any:
    """A dispatch mode that runs each operator inside a mark named after its stack; `look` is shown its arguments."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    mark = getattr(torch._C._profiler, "_RecordFunctionFast", None) or torch.profiler.record_function
    in_backward = getattr(torch._C, "_current_graph_task_id", lambda: 0)
    aten = torch.ops.aten
    # Made outside the dispatcher and only then shown to it: their memory is told by its address.
    adopts = {aten.lift_fresh.default: 0}
    adopts.update(
        dict.fromkeys(
            (getattr(aten.set_, name) for name in aten.set_.overloads() if name.startswith("source_Storage")), 1
        )
    )
    left = limit

    def __torch_dispatch__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ARG001, N807
        nonlocal left
        if look is not None:
            look(args, kwargs)
        left -= 1
        if left < 0 and in_backward() == -1:
            # Not inside backward: the engine would put the profiler's state back when it returns.
            left = sys.maxsize
            on_limit()
        if not keep_stacks or left > limit:
            return func(*args, **(kwargs or {}))
        name = stacks.marks[stacks.number(sys._getframe(1))]
        if func in adopts:
            with contextlib.suppress(Exception):  # a subclass without storage: its memory stays without a stack
                source = args[adopts[func]]
                source = source.untyped_storage() if isinstance(source, torch.Tensor) else source
                name = f"{name}:{source.data_ptr()}"
        with mark(name):
            return func(*args, **(kwargs or {}))

    def rest() -> None:
        nonlocal left
        left = sys.maxsize

    class NotingMode(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True would wrap the function below in torch._dynamo.disable: 1.2 s of import, two more frames a call.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # False would make torch.compile fall back to eager, or trace the recorder.
            return True

    NotingMode.__torch_dispatch__ = __torch_dispatch__
    NotingMode.rest = staticmethod(rest)
    with contextlib.suppress(ImportError, AttributeError):
        # torch.compile inside the recording must not try to compile the recorder.
        from torch._C._dynamo.eval_frame import skip_code

        for function in (__torch_dispatch__, Stacks.number, Stacks._add):
            skip_code(function.__code__)
    return NotingMode()


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Hold the process's stderr for a moment and drop what the profiler itself writes there.

    Its C++ side announces start and stop, and warns at the first free of memory it has not seen allocated; in a
    notebook that would stand in red under the cell. What anybody else wrote meanwhile is passed on.
    """
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            held.seek(0)
            for line in held:
                if (
                    not line.startswith(b"USDT:")
                    and b"CPUAllocator.cpp" not in line
                    and b"ActivityProfiler" not in line
                ):
                    os.write(2, line)


#: Two profilers in two threads crash the process (seen with torch 2.13, also without memwidget).
_ONE = threading.Lock()


_THREAD = "A CPU recording must be stopped in the thread that started it: its profiler belongs to that thread."


class CpuRecorder:
    """Records the CPU allocator around code, in the calling thread."""

    kind = "cpu"
    snapshot: dict[str, Any] | None = None
    #: Called with the arguments of each operator, if set before the start.
    look: Any = None

    def __init__(self, options: Options, notes: list[str] | None = None) -> None:
        self._options = options
        self._notes = list(notes or [])
        self._facts: dict[str, Any] = {}
        self._stacks = Stacks()
        self._result: Any = None
        self._mode: Any = None
        self._thread = self._decoy = 0
        self._owns = False

    def start(self) -> None:
        """Switch the profiler and the dispatch mode on."""
        began = time.perf_counter()
        from torch._C import _autograd as profiler

        if profiler._profiler_enabled():
            raise RecorderError(
                "A torch.profiler (or another CPU recording) already runs in this thread, and a second one would "
                "empty it: stop that one first, or take memtrace out of its block."
            )
        if not _ONE.acquire(blocking=False):
            raise RecorderError(
                "A CPU recording already runs in another thread, and torch's profiler serves one thread at a time: "
                "end that one first."
            )
        self._owns = True
        try:
            self._begin(began)
        except BaseException:
            self._release()
            raise

    def _begin(self, began: float) -> None:
        import torch
        from torch._C import _autograd as profiler
        from torch.autograd.profiler import profile

        options = self._options
        self._thread = threading.get_ident()
        setting = profile(use_cpu=True, profile_memory=True)
        activities = setting.kineto_activities
        config = setting.config()
        self._mode = _noting_mode(
            self._stacks, options.context != "none", options.max_entries, self._stop_early, self.look
        )
        decoy = torch.empty(16)
        self._decoy = decoy.data_ptr()
        with _without_chatter():
            profiler._prepare_profiler(config, activities)
            profiler._enable_profiler(config, activities)
            del decoy  # draws the warning about unseen memory here, where it is held back
        self._mode.__enter__()
        self._facts["started_us"] = time.time_ns() // 1000
        self._facts["seconds_start"] = time.perf_counter() - began

    def _release(self) -> None:
        if self._owns:
            self._owns = False
            _ONE.release()

    def _stop_early(self) -> None:
        self._disable()
        self._notes.append(
            f"The recording stopped by itself after {self._options.max_entries} operators (max_entries); "
            "what came later is not in it."
        )

    def _disable(self) -> None:
        from torch._C import _autograd as profiler

        if self._result is None and profiler._profiler_enabled():
            with _without_chatter():
                self._result = profiler._disable_profiler()

    def abandon(self) -> None:
        """Switch the child's copy of the profiler off; the mode, which may lie below others, only passes on."""
        if self._mode is not None:
            self._mode.rest()
        self._disable()
        self._release()

    def check(self) -> None:
        """Refuse to be stopped in another thread, as long as its own lives."""
        if threading.get_ident() != self._thread and self._thread in {thread.ident for thread in threading.enumerate()}:
            raise RecorderError(_THREAD)

    def finish(self) -> Recording:
        """Switch both off and put allocations and stacks together."""
        import torch

        self.check()
        if threading.get_ident() != self._thread:
            self._release()  # the thread took its profiler along; others may record again
            raise RecorderError(_THREAD)
        try:
            self._mode.__exit__(None, None, None)
        finally:
            self._mode = None
            began = time.perf_counter()
            self._disable()
            self._release()
        result, self._result = self._result, None
        recording = Recording(device_type="cpu", streams=[0], pools=[(0, 0)])
        self._stacks.store(recording)
        if result is None:
            self._notes.append(
                "A profiler that was started inside the recording replaced it, so nothing was recorded: "
                "leave that profiler out."
            )
            recording.events[0] = Events.empty()
        else:
            _read_tree(result.experimental_event_tree(), self._decoy, recording, self._options, self._notes)
        store_sources(recording)
        options = self._options
        recording.notes = self._notes
        recording.facts = {
            **self._facts,
            "backend": "cpu",
            "torch": str(torch.__version__),
            "device_name": "CPU",
            "stacks": options.stacks,
            "context": options.context,
            "seconds_reading": time.perf_counter() - began,
        }
        return recording


def _read_tree(roots: Any, decoy: int, recording: Recording, options: Options, notes: list[str]) -> None:
    """Fill events and annotations from the profiler's event tree."""
    from torch._C._profiler import RecordScope, _EventType

    allocation, operator, user = _EventType.Allocation, _EventType.TorchOp, RecordScope.USER_SCOPE
    found: list[Row] = []
    marks: list[tuple[int, int, int]] = []  # time in ns, address adopted there (0: none), stack
    ranges: list[tuple[str, int, int]] = []
    pending = [(node, -1) for node in roots]
    while pending:
        node, stack = pending.pop()
        if node.tag == allocation:
            fields = node.extra_fields
            if fields.device.type == "cpu":
                if stack < 0:
                    stack = _stack_around(node, user)
                found.append((node.start_time_ns, fields.ptr, fields.alloc_size, stack))
            continue
        if node.tag == operator:
            name = node.name
            if name.startswith(_MARK):
                number, _, address = name[len(_MARK) :].partition(":")
                stack = int(number)
                marks.append((node.start_time_ns, int(address or 0), stack))
            elif node.extra_fields.scope == user:
                ranges.append((name, node.start_time_ns // 1000, node.end_time_ns // 1000))
        pending += [(child, stack) for child in node.children]
    found.sort(key=lambda row: row[0])
    if found and found[0][1] == decoy and found[0][2] < 0:
        del found[0]
    recording.events[0] = _events(found, marks, options, notes)
    add_ranges(recording, ranges)


def _stack_around(node: Any, user: Any) -> int:
    """The stack of memory that an operator took before it came to the dispatch mode (a number as a tensor, say).

    One operator is one call from Python, so any mark below the same operator tells the stack.
    """
    above = node.parent
    while above is not None and getattr(above.extra_fields, "scope", user) != user:
        pending = list(above.children)
        while pending:
            below = pending.pop()
            if below.name.startswith(_MARK):
                return int(below.name[len(_MARK) :].partition(":")[0])
            pending += below.children
        above = above.parent
    return -1


def _events(found: list[Row], marks: list[tuple[int, int, int]], options: Options, notes: list[str]) -> Events:
    """Rows of the profiler as events; a free is requested and completed at once.

    Memory made outside the dispatcher gets its stack from a later mark: a tensor or file contents (``torch.tensor``,
    ``torch.load``) from the operator that first shows it to the dispatcher, told by its address; a number made into
    a tensor, 16 bytes at most, from the operator that it is an argument of, which is the next to start.
    """
    alloc, frees = ACTION["alloc"], (ACTION["free_requested"], ACTION["free_completed"])
    rows: list[list[int]] = []  # action, address, size, stack, time in us
    live: dict[int, list[int]] = {}  # address -> row of its allocation
    numbers: list[list[int]] = []
    unseen = 0
    in_order = sorted([*found, *((at, address, 0, stack) for at, address, stack in marks)], key=lambda row: row[0])
    for at, address, size, stack in in_order:
        if size > 0:
            live[address] = born = [alloc, address, size, stack, at // 1000]
            rows.append(born)
            if stack < 0 and size <= 16:
                numbers.append(born)
        elif size == 0:
            for born in numbers:
                born[3] = stack
            numbers.clear()
            if address in live and live[address][3] < 0:
                live[address][3] = stack
        elif (gone := live.pop(address, None)) is None:
            unseen += 1
        else:
            if options.context == "state":
                gone[3] = -1
            rows += [[free, address, -size, stack if options.context == "all" else -1, at // 1000] for free in frees]
        if len(rows) >= options.max_entries:
            notes.append(
                f"The first {len(rows)} events are kept (max_entries); what came later is not in the recording."
            )
            break
    notes.append("CPU memory of the calling thread only; the curve counts bytes since the start of the recording.")
    if unseen:
        notes.append(f"{unseen} frees of memory that was allocated before the start are left out.")
    events: Events = Events.empty(len(rows))
    events.stream[:] = events.pool[:] = 0
    if rows:
        action, addresses, sizes, stacks, times = zip(*rows, strict=True)
        events.action[:], events.size[:], events.stack[:], events.time_us[:] = action, sizes, stacks, times
        events.address[:] = np.array(addresses, np.uint64)
    return events
