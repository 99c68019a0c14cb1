"""Trials: a real step run in a clean state, recorded and counted.

Owns all of torch that finding a batch size needs: cleaning up between trials, telling an out-of-memory error from any
other and letting go of it, counters, what a model holds where the recorder cannot see it (CPU), and how much memory
the device has for torch. It must not know what a trial is for.

A trial that runs out of memory leaves nothing behind: frames hold tensors, exceptions hold frames.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import time
import traceback
import weakref
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwidget.record import Options, RecorderError, choose
from memwidget.record.sources import cell_names
from memwidget.recording import ACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memwidget.recording import Recording

#: Parts of messages by which allocators say that there is no room; torch has no common type for them. (A convolution
#: tries one algorithm after the other, and says in the end that it found none.)
_NO_ROOM = (
    "out of memory",
    "ALLOC_FAILED",
    "can't allocate memory",
    "not enough memory",
    "unable to find an engine to execute",
)


@dataclass
class Measured:
    """What one trial came to, all in bytes.

    Attributes
    ----------
    allocated, reserved : int
        Peaks as the allocator counts them; -1 where there are no counters (CPU).
    held : dict of str to int
        By category: alive from before the trial to its end, and not in the recording's curve (CPU only).
    failed : str
        The error of a trial that ran out of memory, one line; empty for one that fit.
    """

    recording: Recording | None = None
    allocated: int = -1
    reserved: int = -1
    held: dict[str, int] = field(default_factory=dict)
    failed: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Stand:
    """Runs trials on one device.

    Parameters
    ----------
    options : Options
        How to record.
    given : list of weak references
        Models and optimizers handed over (see `models`); others are found as the warm-up calls them.
    """

    def __init__(self, options: Options, given: list[weakref.ref[Any]]) -> None:
        recorder = choose(options)
        import torch

        self.kind: str = recorder.kind
        self._torch: Any = torch
        self._device: Any = None if self.kind == "cpu" else getattr(torch, self.kind)
        if self._device is None and options.device:
            raise ValueError(f"device={options.device!r}: the CPU is one device, so leave device= out.")
        self.device = 0 if self._device is None else options.device
        if self.device is None:
            self.device = int(getattr(torch, self.kind).current_device())
        self._options = (
            options if self.kind == "cpu" or options.backend != "auto" else replace(options, backend=self.kind)
        )
        from memwidget.record.watch import Watch

        self._watch_type = Watch
        self._known = list(given)

    @property
    def device_name(self) -> str:
        """What the device calls itself."""
        return "CPU" if self._device is None else str(self._device.get_device_name(self.device))

    # -- how much there is -------------------------------------------------------------------------------------------

    def limit(self) -> int:
        """Bytes that torch can have here: what it reserved and what is free; what lies outside it is taken off."""
        if self._device is None:
            return _memory_of_machine() + sum(size for size, _ in self._storages().values())
        free, total = self._device.mem_get_info(self.device)
        limit = int(free) + int(self._device.memory_reserved(self.device))
        fraction = self._fraction()
        return limit if fraction is None else min(limit, int(fraction * total))

    def _fraction(self) -> float | None:
        """The share of the device that this process may take; None where torch cannot be asked."""
        ask = getattr(getattr(self._device, "memory", None), "get_per_process_memory_fraction", None)
        return None if ask is None else float(ask(self.device))

    @contextlib.contextmanager
    def _within(self, limit: int | None) -> Iterator[None]:
        """Let the allocator itself keep a limit for a while, where the old one can be put back."""
        before = None if limit is None or self._device is None else self._fraction()
        if before is None or limit is None:
            yield
            return
        _, total = self._device.mem_get_info(self.device)
        self._device.set_per_process_memory_fraction(min(before, limit / total), self.device)
        try:
            yield
        finally:
            self._device.set_per_process_memory_fraction(before, self.device)

    def _threads(self) -> int:
        """How many threads the device runs at once; 0 where torch does not say."""
        ask = getattr(self._device, "get_device_properties", None)
        properties = None if ask is None else ask(self.device)
        each = getattr(properties, "max_threads_per_multi_processor", 0)
        return int(each) * int(getattr(properties, "multi_processor_count", 0))

    @contextlib.contextmanager
    def same_luck(self) -> Iterator[None]:
        """Put torch's random numbers back as they were: what is computed afterwards hangs on no trial."""
        torch = self._torch
        states = [(torch, torch.get_rng_state())]
        if self._device is not None:
            states.append((self._device, self._device.get_rng_state(self.device)))
        try:
            yield
        finally:
            torch.set_rng_state(states[0][1])
            for module, state in states[1:]:
                module.set_rng_state(state, self.device)

    # -- running -----------------------------------------------------------------------------------------------------

    def warm_up(self, run: Callable[[], object]) -> str:
        """Run a step that is thrown away: optimizer state, libraries' handles and workspaces are there afterwards.

        Returns
        -------
        str
            Empty, or the error of a step that ran out of memory.
        """
        watch = self._watch_type(self.kind, list(self._known))
        watch.start()
        try:
            failed = self._attempt(run)
        finally:
            watch.stop()
        met = watch.sampler
        each: Any
        for each in (*met._known.values(), *met._steppers.values()):
            found = each.ref()
            if found is not None and not any(ref() is found for ref in self._known):
                self._known.append(weakref.ref(found))
        self.clean()  # what is free is asked next
        return failed

    def trial(self, run: Callable[[], object], repeats: int = 2, limit: int | None = None) -> Measured:
        """Run a step `repeats` times from a clean state.

        Parameters
        ----------
        limit : int, optional
            Bytes that the allocator may reserve meanwhile, where torch can be told and the old limit put back.
        """
        self.clean()
        measured = Measured()
        recorder = self._start(measured)
        watch = None if recorder is None else self._watch_type(self.kind, list(self._known))
        before = self._storages()
        seen = _Seen(self._torch)
        if self._device is None and recorder is not None:
            recorder.look = seen.look
            recorder.start()
        marks: list[int] = []
        try:
            if watch is not None:
                watch.start()
            with self._within(limit):
                began = time.perf_counter()
                for _ in range(repeats):
                    measured.failed = self._attempt(run)
                    if measured.failed:
                        break
                    marks.append(time.time_ns() // 1000)
                measured.seconds = (time.perf_counter() - began) / repeats
        finally:
            if watch is not None:
                watch.stop()
            if recorder is not None:
                measured.recording = recorder.finish()
        if self._device is not None:
            measured.allocated = int(self._device.max_memory_allocated(self.device))
            measured.reserved = int(self._device.max_memory_reserved(self.device))
        recording = measured.recording
        if recording is not None and watch is not None:
            recording.facts["steps"] = marks
            recording.facts["cells"] = cell_names(recording)
            recording.facts["threads"] = self._threads()
            watch.store(recording)
            if self._device is None:
                measured.held = _held(before, self._storages(), _left(recording))
                others = seen.held({*before, *recording.events[0].address.tolist()})
                if others:
                    measured.held["preexisting"] = measured.held.get("preexisting", 0) + others
        if measured.failed:
            self.clean()
        return measured

    def _start(self, measured: Measured) -> Any:
        recorder = choose(self._options)
        if self._device is None:
            return recorder  # started when all is ready
        try:
            recorder.start()
        except RecorderError as error:
            measured.notes.append(f"Counters only: {error}")
            return None
        return recorder

    def _attempt(self, run: Callable[[], object]) -> str:
        try:
            _refuse_unrun(run())
            if self._device is not None:
                self._device.synchronize(self.device)
        except Exception as error:
            if not out_of_memory(error):
                raise
            failed = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
            forget(error)
            return failed
        return ""

    def clean(self) -> None:
        """Give back what nobody needs, and begin to count anew."""
        gc.collect()
        if self._device is None:
            return
        self._device.synchronize(self.device)
        self._device.empty_cache()
        self._device.reset_peak_memory_stats(self.device)

    # -- what a model holds ------------------------------------------------------------------------------------------

    def _given(self) -> list[Any]:
        return [value for value in (ref() for ref in self._known) if value is not None]

    def _storages(self) -> dict[int, tuple[int, str]]:
        """Start of each storage of the known models and optimizers -> bytes and category; CPU only."""
        found: dict[int, tuple[int, str]] = {}
        if self._device is not None:
            return found
        torch = self._torch

        def add(tensor: Any, category: str) -> None:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and tensor.layout == torch.strided:
                with contextlib.suppress(Exception):  # a subclass without storage
                    storage = tensor.untyped_storage()
                    found.setdefault(storage.data_ptr(), (storage.nbytes(), category))

        for value in self._given():
            if isinstance(value, torch.nn.Module):
                parameters = list(value.parameters())
                for buffer in value.buffers():
                    add(buffer, "buffer")
            else:
                parameters = [each for group in value.param_groups for each in group["params"]]
                for of_one in value.state.values():
                    for each in of_one.values() if isinstance(of_one, dict) else (of_one,):
                        add(each, "optimizer_state")
            for parameter in parameters:
                add(parameter, "parameter")
                add(parameter.grad, "gradient")
        return found


class _Seen:
    """Storages that operators were shown: address, bytes and a weak reference, never a tensor (CPU).

    Averages of weights, weights that no module was called with, a data set: nobody names them, but what lies there
    from before the trial to its end is taken all the while.
    """

    def __init__(self, torch: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._tensor, self._strided, self._ref = torch.Tensor, torch.strided, StorageWeakRef
        self._found: dict[int, tuple[int, Any]] = {}

    def look(self, args: Any, kwargs: Any) -> None:
        """Note what lies under the arguments of an operator."""
        pending = [*args, *kwargs.values()] if kwargs else list(args)
        while pending:
            each = pending.pop()
            if isinstance(each, self._tensor):
                if each.device.type == "cpu" and each.layout == self._strided:
                    with contextlib.suppress(Exception):  # a subclass without storage
                        storage = each.untyped_storage()
                        known = self._found.get(storage.data_ptr())
                        # Not resizable: a NumPy array's or a file's memory, which torch did not take.
                        if (known is None or known[1].expired()) and storage.resizable():
                            self._found[storage.data_ptr()] = (storage.nbytes(), self._ref(storage))
            elif isinstance(each, (list, tuple)):
                pending += each

    def held(self, known: set[int]) -> int:
        """Bytes of those that are still there, but for known addresses: counted otherwise, or made meanwhile."""
        return sum(size for address, (size, ref) in self._found.items() if address not in known and not ref.expired())


def models(*given: Any) -> list[weakref.ref[Any]]:
    """Weak references to models and optimizers as handed over: one, or a list or dict of them."""
    from memwidget.record.watch import flat

    return flat(*given)


def _held(before: dict[int, tuple[int, str]], after: dict[int, tuple[int, str]], recorded: set[int]) -> dict[str, int]:
    """Bytes by category of what was there before and still is; `recorded` addresses are counted by the curve."""
    sums: dict[str, int] = {}
    for address, (size, category) in before.items():
        if address not in recorded and after.get(address, (-1, ""))[0] == size:
            sums[category] = sums.get(category, 0) + size
    return sums


def _left(recording: Recording) -> set[int]:
    """Addresses that were allocated while recording and are still taken at the end."""
    left: set[int] = set()
    for events in recording.events.values():
        for action, address in zip(events.action.tolist(), events.address.tolist(), strict=True):
            if action == ACTION["alloc"]:
                left.add(address)
            elif action == ACTION["free_completed"]:
                left.discard(address)
    return left


def _refuse_unrun(result: object) -> None:
    """Say that a call of a generator or coroutine ran nothing of it."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result):
        result.close()
        raise TypeError("step() is a generator or a coroutine, so calling it runs nothing of it: give one that runs.")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no room; CUDA's libraries and the CPU say so in RuntimeErrors."""
    import torch

    known = getattr(torch, "OutOfMemoryError", getattr(torch.cuda, "OutOfMemoryError", MemoryError))
    if isinstance(error, (MemoryError, known)):
        return True
    return isinstance(error, RuntimeError) and any(part in str(error) for part in _NO_ROOM)


def forget(error: BaseException) -> None:
    """Empty the frames that an error and those behind it hold, so that their tensors go."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = None
        pending += [each.__cause__, each.__context__]


def _memory_of_machine() -> int:
    """Bytes that a process can still take here, the limit of its container included (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        raise RecorderError(
            "How much memory this machine has free could not be found out: give it, as limit='8 GiB' for instance."
        ) from None
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit ("max")
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="ascii"))
        free = min(free, most - int((group / "memory.current").read_text(encoding="ascii")))
    return free
