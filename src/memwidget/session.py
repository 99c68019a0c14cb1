"""Record code, reduce what it did, show it: the rooms of the house put together for a Python user.

Owns the life of one recording (`memtrace`, `start`, `stop`), what is added to it from here (steps, phases, the names
of notebook cells), and `load`. It keeps no exception, traceback or frame of the recorded code: each of them would
hold that code's tensors.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwidget.record import FORKED, Options, Recorder, RecorderError, choose
from memwidget.record.garbage import GarbageWatch
from memwidget.record.holders import Kept
from memwidget.record.sources import cell_names
from memwidget.record.tracebacks import without_recorder
from memwidget.recording import CATEGORIES
from memwidget.trace.sites import is_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType

    from memwidget.record.watch import Watch
    from memwidget.recording import Recording
    from memwidget.trace.rules import Rule
    from memwidget.trace.trace import Trace

_SUFFIXES = (".memtrace", ".pickle")


class memtrace:  # noqa: N801  (used like a function: `with mw.memtrace() as rec:`)
    """Record the memory of a block of code.

    Parameters
    ----------
    name : str, optional
        What to call it.
    enabled : bool
        False makes everything here do nothing, so that the line can stay in the code.
    stacks : {"python", "all"}
        "all" adds C++ frames (CUDA only; slow to turn into text).
    context : {"alloc", "all", "state", "none"}
        Which events carry a stack.
    max_entries : int
        Events kept: the last ones on CUDA, the first ones on the CPU.
    device : int, optional
        The device to show; by default the one with most bytes.
    backend : {"auto", "cuda", "xpu", "cpu"}
        The allocator to record; "auto" takes a GPU where there is one.
    model, optimizer : module, optimizer, or lists of them, optional
        What to label by name; others are found in the notebook's variables and as they are called.
    schedule : callable, optional
        ``torch.profiler.schedule(wait=, warmup=, active=, repeat=)``: record only the steps it names, by the calls of
        ``rec.step()``; each repeat is a trace of its own in ``rec.traces``.
    deep : bool
        Follow the tensors that autograd saves: blocks made in backward then show the line of the forward that they
        belong to. Slower: each saved tensor notes its stack.
    labels : bool
        False leaves out what blocks were for: no hooks on modules, optimizers and backward.
    save : path, optional
        Written when the block ends: ``.memtrace`` (ours) or ``.pickle`` (torch's own, for other tools). With a
        schedule, one file a repeat, numbered.
    static : bool
        Show a page in a frame instead of a widget; it stays interactive in a saved notebook, and stores the data there.

    Attributes
    ----------
    recording : Recording or None
        What was recorded.
    snapshot : dict or None
        What torch gave, kept also when a later stage fails; None for the CPU recorder.

    Examples
    --------
    >>> with mw.memtrace("step") as rec:  # doctest: +SKIP
    ...     train_step()
    >>> rec.trace.peak_allocated  # doctest: +SKIP
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        enabled: bool = True,
        stacks: str = "python",
        context: str = "alloc",
        max_entries: int = 200_000,
        device: int | None = None,
        backend: str = "auto",
        model: Any = None,
        optimizer: Any = None,
        schedule: Callable[[int], Any] | None = None,
        deep: bool = False,
        labels: bool = True,
        save: str | os.PathLike[str] | None = None,
        static: bool = False,
    ) -> None:
        if deep and not labels:
            raise ValueError("deep=True follows tensors for their labels and labels=False has none; leave one out.")
        if schedule is not None and not callable(schedule):
            raise ValueError("schedule= takes torch.profiler.schedule(...), a function of the step's number.")
        self.name = name or ""
        self.options = Options(stacks, context, max_entries, device, backend)
        self.static = static
        self.recording: Recording | None = None
        self.snapshot: dict[str, Any] | None = None
        self._enabled = enabled
        self._save = None if save is None else save_target(save)
        self._recorder: Recorder | None = None
        self._watch: Watch | None = None
        self._garbage = GarbageWatch()
        #: Called with this recorder when its recording is complete and before it is written; may add facts to it.
        self.on_end: Callable[[memtrace], None] | None = None
        self._wants: tuple[bool, bool] = (labels, deep)
        self._given = _weakly(model, optimizer) if enabled and labels else []
        self._schedule = schedule
        self._forked = False
        self._step = -1  # of the schedule; -1: not under way
        self._recordings: list[Recording] = []
        self._traces: tuple[Trace, ...] = ()
        self._steps: list[int] = []
        self._first = 0  # number of the step at which the recording was begun
        self._phases: list[tuple[str, int, int]] = []

    # -- the block ---------------------------------------------------------------------------------------------------

    def __enter__(self) -> memtrace:  # noqa: PYI034  (typing.Self is newer than Python 3.10)
        if self._enabled:
            self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._recorder is None and self._step < 0:
            return
        try:
            self.end()
        except Exception as failure:
            if kind is None:
                raise
            # The block's own error is the one to see; nothing of it is kept here.
            print(f"memwidget could not keep the recording: {failure}", file=sys.stderr)  # noqa: T201

    def begin(self) -> None:
        """Start to record; `RecorderError` says what stands in the way."""
        if self._recorder is not None or self._step >= 0:
            raise RuntimeError("This memtrace already records; end it first, or make a second one.")
        if self.recording is not None:
            raise RuntimeError("This memtrace was used before; make a new one for each recording.")
        if self._schedule is None:
            self._open()
            return
        self._step = 0
        if _records(self._schedule(0)):
            self._open()

    def _open(self) -> None:
        recorder = choose(self.options)
        _check_save(self._save, recorder.kind)
        watch = self._watcher(recorder.kind)
        recorder.start()
        self._recorder, self._watch, self._first = recorder, watch, max(self._step, 0)
        _running.add(self)
        self._garbage.start()
        if watch is not None:
            watch.start()

    def _watcher(self, kind: str) -> Watch | None:
        labels, deep = self._wants
        if not labels:
            return None
        from memwidget.record.watch import Watch

        return Watch(kind, self._given, _notebook_variables(), deep=deep)

    @property
    def recording_now(self) -> bool:
        """Whether it has begun and not ended."""
        return self._recorder is not None

    def save_as(self, path: str | os.PathLike[str]) -> None:
        """Have the recording that runs written to `path` when it ends."""
        target = save_target(path)
        if self._recorder is not None:
            _check_save(target, self._recorder.kind)
        self._save = target

    def end(self) -> None:
        """Stop, restore what was found, and read what was recorded."""
        if self._recorder is None and self._step < 0:
            raise RuntimeError(FORKED if self._forked else "This memtrace does not record; begin it first.")
        without_recorder(sys.exc_info()[1])
        if self._recorder is not None:
            self._close()
        self._step = -1

    def check(self) -> None:
        """Raise `RecorderError` where the recording may not be ended now, in this thread; it then goes on."""
        if self._recorder is not None:
            self._recorder.check()

    def _close(self) -> None:
        self.check()
        recorder, self._recorder = self._recorder, None
        watch, self._watch = self._watch, None
        _running.discard(self)
        assert recorder is not None  # noqa: S101
        self._garbage.stop()
        try:
            if watch is not None:
                watch.stop()
            recording = recorder.finish()
        finally:
            self.snapshot = recorder.snapshot
        if self._recordings and not any(map(len, recording.events.values())):
            self._steps, self._phases = [], []
            return  # a repeat that a schedule began as the loop ended
        number = len(self._recordings) + 1
        recording.name = self.name if self._schedule is None else f"{self.name} repeat {number}".strip()
        self._add_marks(recording)
        if watch is not None:
            watch.store(recording)
        cells = cell_names(recording)
        if cells:
            recording.facts["cells"] = cells
        recording.facts["gc"], self._garbage.runs = self._garbage.runs, []
        self.recording = recording
        self._recordings.append(recording)
        self._traces = ()
        shell = _shell()
        if self.on_end is not None:
            self.on_end(self)
        elif shell is not None:
            from memwidget.record.holders import look

            look(recording, shell, self.kept)
        if self._save is not None:
            target = self._save
            if self._schedule is not None:
                target = target.with_name(f"{target.stem}-{number}{target.suffix}")
            self._write(recording, target)

    def _abandon(self) -> None:
        """In a forked child: the recording is the parent's."""
        recorder, self._recorder = self._recorder, None
        watch, self._watch = self._watch, None
        self._step, self._forked = -1, True
        self._garbage.stop()
        with suppress(Exception):  # a child must live, whatever state the fork met
            if watch is not None:
                watch.abandon()
            if recorder is not None:
                recorder.abandon()

    def _add_marks(self, recording: Recording) -> None:
        if self._steps:
            recording.facts["steps"] = list(self._steps)
            recording.facts["first_step"] = self._first
        if self._phases:
            from memwidget.record.ranges import add_ranges

            recording.facts["phases"] = add_ranges(recording, self._phases)
        self._steps, self._phases = [], []

    def _write(self, recording: Recording, path: Path) -> None:
        if path.suffix == ".pickle":
            with path.open("wb") as file:
                # Protocol 4: torch's own viewer stumbles over 5.
                pickle.dump(self.snapshot, file, protocol=4)
        else:
            from memwidget.read.archive import save

            save(recording, path)

    # -- marks -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Mark the boundary between two steps; with a schedule, go on in it."""
        if self._recorder is not None:
            self._steps.append(time.time_ns() // 1000)
        if self._schedule is None or self._step < 0:
            return
        saves = getattr(self._schedule(self._step), "name", "") == "RECORD_AND_SAVE"
        self._step += 1
        goes_on = _records(self._schedule(self._step))
        if self._recorder is not None and (saves or not goes_on):
            self._close()
        if self._recorder is None and goes_on:
            self._open()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name what the block inside does, "forward" for instance."""
        began = time.time_ns() // 1000
        try:
            yield
        finally:
            if self._recorder is not None:
                self._phases.append((str(name), began, time.time_ns() // 1000))

    # -- what came of it ---------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """The (last) trace: of the device asked for, else of the one with most bytes."""
        return self.traces[-1]

    @property
    def traces(self) -> tuple[Trace, ...]:
        """All traces of this recorder: one, or with a schedule one a repeat."""
        if not self._traces:
            if self._recorder is not None and not self._recordings:
                raise RuntimeError("The recording still runs; its trace is there when the block has ended.")
            if not self._enabled:
                raise RuntimeError("Nothing was recorded, because of enabled=False.")
            if not self._recordings and self._forked:
                raise RuntimeError(FORKED)
            if not self._recordings:
                why = "the schedule named no step that was reached" if self._schedule else ""
                raise RuntimeError(f"Nothing was recorded; {why or 'use it as `with mw.memtrace() as rec:`'}.")
            from memwidget.trace.trace import Trace

            self._traces = tuple(
                Trace(recording, self.options.device if recording.device_type != "cpu" else None)
                for recording in self._recordings
            )
        return self._traces

    def kept(self) -> dict[int, Kept]:
        """What the recording made and left, by address: at most the 2,000 largest blocks."""
        trace = self.trace
        blocks = trace.live_at("end")
        blocks = blocks[trace.blocks["alloc_event"][blocks] >= 0]
        blocks = blocks[trace.blocks["size"][blocks].argsort()[::-1][:2_000]]
        rows = trace.blocks[blocks]
        lines = [_line(trace, site) for site in trace.block_site[blocks].tolist()]
        state = [CATEGORIES[c] in {"parameter", "gradient", "optimizer_state"} for c in rows["category"].tolist()]
        sizes = rows["requested"].tolist()
        return dict(zip(rows["address"].tolist(), map(Kept, sizes, lines, state), strict=True))

    def view(self) -> Any:
        """The trace as a widget, or as a page in a frame with ``static=True``; after an OOM it opens at that moment."""
        if self.static:
            from memwidget.show.export import StaticView

            return StaticView(self.trace)
        from memwidget.show.view import MemView

        return MemView(self.trace)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if self.recording is None:
            return {"text/plain": repr(self)}, {}
        return self.view()._repr_mimebundle_(**kwargs)

    def __repr__(self) -> str:
        label = f"memtrace({self.name!r})" if self.name else "memtrace()"
        if self._recorder is not None:
            return f"<{label}: recording>"
        if self.recording is None:
            return f"<{label}: {'nothing recorded yet' if self._enabled else 'off (enabled=False)'}>"
        events = sum(map(len, self.recording.events.values()))
        return f"<{label}: {events:,} events on {self.recording.device_type}>"


def _line(trace: Trace, site: int) -> str:
    """A call site as it is named in every run of a cell, whose file is another one each time."""
    if site < 0:
        return ""
    frame = trace.frame(site)
    return f"{'' if is_cell(frame.filename) else frame.filename}:{frame.line} {frame.name}"


_started: memtrace | None = None
#: What records now, so that a forked child can let go of it.
_running: weakref.WeakSet[memtrace] = weakref.WeakSet()


def _in_child() -> None:
    for each in list(_running):
        each._abandon()  # noqa: SLF001
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def start(name: str | None = None, **options: Any) -> memtrace:
    """Start to record code that is spread over several cells; takes the options of `memtrace`.

    Returns
    -------
    memtrace
        For its ``step()`` and ``phase()``; `stop` ends it.
    """
    global _started  # noqa: PLW0603
    if _started is not None and not _started._forked:  # noqa: SLF001
        raise RuntimeError("A recording already runs, from an earlier start(): end it with stop() first.")
    recorder = memtrace(name, **options)
    recorder.__enter__()
    _started = recorder
    return recorder


def stop() -> Trace | None:
    """End the recording that `start` began; returns its trace (None with ``enabled=False``)."""
    recorder = started()
    recorder.__exit__(None, None, None)
    return recorder.trace if recorder.recording is not None else None


def started() -> memtrace:
    """Hand over the recording that `start` began, still running; the caller ends it."""
    global _started
    if _started is None:
        raise RuntimeError("No recording runs: start() begins one.")
    _started.check()
    recorder, _started = _started, None
    if recorder._forked:  # noqa: SLF001
        raise RuntimeError(FORKED)
    return recorder


def load(
    source: Any,
    device: int | str | None = None,
    capacity: int | str | None = None,
    rules: Iterable[Rule | Mapping[str, str]] = (),
) -> Trace:
    """Read a recording from a file or an object.

    Parameters
    ----------
    source : path, bytes, file object or snapshot
        torch's ``.pickle`` (also .gz .xz .zst), a ``.memtrace`` archive, what ``torch.cuda.memory._snapshot()`` gave,
        torch.profiler's files (a Chrome trace, a memory timeline as ``.json`` or ``.raw.json``), or a finished
        ``torch.profiler.profile``.
    device : int or str, optional
        The device to look at; by default the one with most bytes. A profile may hold several kinds: "cpu", "cuda:1".
    capacity : int or str, optional
        Bytes that the device has, which torch's files do not say.
    rules : list of Rule, optional
        Your own names for blocks, in place of their categories; see `Trace.with_rules`.

    Raises
    ------
    SnapshotError
        The source is no such recording; the message names the cause and the fix.
    """
    from memwidget.read import load_recording
    from memwidget.trace.trace import Trace

    device_type = ""
    if isinstance(device, str):
        device_type, _, ordinal = device.partition(":")
        if device_type not in {"cpu", "cuda", "xpu"} or not (ordinal or "0").isdecimal():
            raise ValueError(f'device={device!r} should be a number, or "cpu", "cuda", "cuda:1", "xpu".')
        device = int(ordinal) if ordinal else None
    progress = Progress(sys.stderr)
    try:
        recording = load_recording(source, progress=progress, device_type=device_type)
    finally:
        progress.close()
    if device_type and recording.device_type != device_type:
        raise ValueError(f"This recording is of {recording.device_type}, and holds nothing of {device_type}.")
    return Trace(recording, device, capacity, rules)


class Progress:
    """One line that is written over, on a terminal or under a notebook cell; nothing anywhere else."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._shown = ""
        self._on = stream is not None and (stream.isatty() or "ipykernel" in type(stream).__module__)

    def __call__(self, fraction: float, text: str) -> None:
        """Show how far the work is."""
        line = f"memwidget: {text} {fraction:.0%}"
        if self._on and line != self._shown:
            self._stream.write(f"\r{line:<{len(self._shown)}}")
            self._stream.flush()
            self._shown = line

    def close(self) -> None:
        """Take the line away again."""
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._stream.flush()
            self._shown = ""


def save_target(path: str | os.PathLike[str]) -> Path:
    """The path to write to, checked before anything is recorded."""
    target = Path(path).expanduser()
    if target.suffix not in _SUFFIXES:
        raise ValueError(f"save={str(path)!r} must end in .memtrace (ours) or .pickle (torch's own).")
    if not target.parent.is_dir():
        raise ValueError(f"save={str(path)!r}: the folder {str(target.parent)!r} does not exist; make it first.")
    return target


def _check_save(target: Path | None, kind: str) -> None:
    if target is not None and target.suffix == ".pickle" and kind == "cpu":
        raise RecorderError(
            "A .pickle holds torch's own snapshot, which there is for GPUs only: save a CPU recording as .memtrace."
        )


def _weakly(model: Any, optimizer: Any) -> list[Any]:
    if model is None and optimizer is None:
        return []
    from memwidget.record.watch import flat

    return flat(model, optimizer)


def _records(action: Any) -> bool:
    """Whether a step of a torch.profiler.schedule is to be recorded (its warm-up needs none here)."""
    return getattr(action, "name", "") in ("RECORD", "RECORD_AND_SAVE")


def _shell() -> Any:
    """IPython's shell, where this runs in one."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _notebook_variables() -> dict[str, Any] | None:
    """The user's variables, where this runs in IPython."""
    return getattr(_shell(), "user_ns", None)
