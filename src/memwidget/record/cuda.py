"""torch's own allocator history, switched on around code: CUDA (ROCm too) and XPU.

Which torch can do what stands in versions.py; here a missing option becomes a note and not a crash. What was found
running is left running: a history that somebody else
switched on is read and cut to the window, never changed and never cleared.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from memwidget.read.snapshot import recording_from_snapshot
from memwidget.record import Options, RecorderError, race
from memwidget.record.sources import store_sources
from memwidget.record.versions import DIFFERENCES, has, parameters, sentence

if TYPE_CHECKING:
    from memwidget.recording import Recording

#: Each of these switches the caching allocator off, and with it the history.
NO_CACHING = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
#: How far the allocator's clock may be from the process's, in us: 1 to 8 were measured on an H200, torch 2.11.
CLOCK_SLACK_US = 100


def available(backend: str) -> str | None:
    """The kind of device that `backend` ("auto", "cuda" or "xpu") can record here, None where there is none."""
    import torch

    for kind in ("cuda", "xpu") if backend == "auto" else (backend,):
        device = getattr(torch, kind, None)
        if device is not None and device.is_available() and has("history", torch, kind):
            return kind
    return None


def why_not(backend: str) -> str:
    """Why `backend` cannot be recorded here, and the way out."""
    import torch

    name = backend.upper()
    device = getattr(torch, backend, None)
    if device is not None and device.is_available():
        return sentence("history", torch, backend)
    return (
        f"PyTorch {torch.__version__} finds no {name} device here: use backend='cpu' to record the CPU allocator, "
        "or check the driver and that this PyTorch was built for the device."
    )


def why_cpu() -> str:
    """Why "auto" came to the CPU."""
    import torch

    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        return "PyTorch keeps no memory history on Apple GPUs (MPS): the CPU allocator was recorded instead."
    for kind in ("cuda", "xpu"):
        device = getattr(torch, kind, None)
        if device is not None and device.is_available():
            return f"{sentence('history', torch, kind)} The CPU allocator was recorded instead."
    return "No CUDA device here: the CPU allocator was recorded instead."


def history_arguments(known: frozenset[str], options: Options) -> tuple[dict[str, Any], list[str]]:
    """Arguments that switch a history on, for a ``_record_memory_history`` with the parameters `known`, and notes.

    Two forms exist: words (torch 2.1 and later) and booleans (before).
    """
    context = None if options.context == "none" else options.context
    if "stacks" in known:
        arguments = {"enabled": "all", "context": context, "stacks": options.stacks, "max_entries": options.max_entries}
        if "clear_history" in known:
            arguments["clear_history"] = True
        return _known(arguments, known)
    arguments = {
        "enabled": True,
        "record_context": context is not None,
        "trace_alloc_max_entries": options.max_entries,
        "trace_alloc_record_context": context in ("alloc", "all"),
    }
    cpp = next((name for name in ("record_context_cpp", "_enable_expensive_cpp") if name in known), None)
    if cpp:
        arguments[cpp] = options.stacks == "all"
    given, notes = _known(arguments, known)
    if not cpp and options.stacks == "all":
        notes.append(DIFFERENCES["c++ stacks"].missing)
    return given, notes


def _known(arguments: dict[str, Any], known: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """The arguments that a function takes, and what to say of the others."""
    return {k: v for k, v in arguments.items() if k in known}, [
        f"This PyTorch's history has no option {k!r}: it was left out." for k in arguments if k not in known
    ]


class DeviceRecorder:
    """Records torch.cuda's or torch.xpu's allocator around code."""

    def __init__(self, kind: str, options: Options) -> None:
        self.snapshot: dict[str, Any] | None = None
        self.kind = kind
        self._options = options
        self._notes: list[str] = []
        self._facts: dict[str, Any] = {}
        self._foreign = False
        self._started_us = 0
        self._seen: list[int] = []

    # -- on ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Switch the history on, or mark the place in one that already runs."""
        began = time.perf_counter()
        device = self._device()
        self._refuse(device)
        device.init()
        self._foreign = self._already_on(device.memory)
        if self._foreign:
            self._notes.append(
                "A memory history was already on (another tool's, or a recording around this one): it was left as it "
                "is and cut to this recording, so its own options (stacks, context, max_entries) apply."
            )
            self._mark(device.memory)
        else:
            self._switch_on(device.memory)
        self._started_us = self._facts["started_us"] = time.time_ns() // 1000
        self._facts["seconds_start"] = time.perf_counter() - began

    def _device(self) -> Any:
        import torch

        return getattr(torch, self.kind)

    def _refuse(self, device: Any) -> None:
        """Say at once what would otherwise end in an empty recording."""
        if self.kind != "cuda":
            return
        import torch

        allocator = device.memory.get_allocator_backend() if has("allocator's name", torch, self.kind) else "native"
        if allocator == "cudaMallocAsync":
            raise RecorderError(
                "The allocator cudaMallocAsync keeps no history: take backend:cudaMallocAsync out of "
                "PYTORCH_CUDA_ALLOC_CONF and restart the kernel."
            )
        if allocator != "native":
            raise RecorderError(
                f"The allocator in use ({allocator}) keeps no history: run without "
                "torch.cuda.memory.change_current_allocator (inside a MemPool such an allocator is recorded)."
            )
        for name in NO_CACHING:
            # torch looks whether it is set, not to what: "0" switches caching off as well.
            if name in os.environ:
                raise RecorderError(
                    f"{name} is set, so PyTorch's allocator sees nothing to record: unset it and restart the kernel."
                )

    def _already_on(self, memory: Any) -> bool:
        known = _is_on(self.kind)
        # A history that is off is empty.
        return any(memory._snapshot().get("device_traces", ())) if known is None else known

    def _switch_on(self, memory: Any) -> None:
        import torch

        known = parameters(memory._record_memory_history)
        arguments, notes = history_arguments(known, self._options)
        stacks = self._options.stacks if has("c++ stacks", torch, self.kind) else "python"
        try:
            memory._record_memory_history(**arguments)
        except Exception as error:  # noqa: BLE001
            why = _first_line(error)
            if self._options.stacks != "all":
                raise RecorderError(f"PyTorch could not switch its memory history on: {why}") from None
            # The C++ unwinder fails on some builds and platforms; Python stacks need none of it.
            stacks = "python"
            arguments, more = history_arguments(
                known, Options(stacks, self._options.context, self._options.max_entries)
            )
            try:
                memory._record_memory_history(**arguments)
            except Exception as second:  # noqa: BLE001
                raise RecorderError(f"PyTorch could not switch its memory history on: {_first_line(second)}") from None
            notes += [*more, f"C++ stacks are not to be had here ({why}): Python stacks were recorded."]
        if not has("times", torch, self.kind):
            notes.append(sentence("times", torch, self.kind))
        self._notes += notes
        self._facts.update(stacks=stacks, context=self._options.context, max_entries=self._options.max_entries)

    def _mark(self, memory: Any) -> None:
        """Leave a "snapshot" entry in the running history; cheaply where torch can (2.11: 0.2 ms at any length)."""
        import torch

        if has("light snapshot", torch, self.kind):
            memory.memory_snapshot(include_traces=False)
        else:
            with contextlib.suppress(Exception):  # C++ stacks that do not become text; the time will tell the place
                self._seen = [len(trace) for trace in memory._snapshot().get("device_traces", ())]

    # -- off ---------------------------------------------------------------------------------------------------------

    def finish(self) -> Recording:
        """Take the history, switch it off if it is ours, and read it."""
        device = self._device()
        memory = device.memory
        began = time.perf_counter()
        try:
            taken = self._take(device)
            if _is_on(self.kind) is False:
                self._notes.append("The memory history was switched off inside the recording: what it held is lost.")
        finally:
            if not self._foreign:
                _switch_off(memory)
        self._facts["seconds_snapshot"] = time.perf_counter() - began
        began = time.perf_counter()
        if self._foreign:
            taken = self._cut(taken)
        self.snapshot = taken
        recording = recording_from_snapshot(taken)
        recording.device_type = self.kind
        self._describe(device, recording)
        store_sources(recording)
        self._facts["seconds_reading"] = time.perf_counter() - began
        recording.facts.update(self._facts)
        recording.notes += self._notes
        return recording

    def check(self) -> None:
        """Any thread may end a CUDA recording."""

    def abandon(self) -> None:
        """Nothing to do: CUDA does not work in a forked child, and its history is not the child's."""

    def _take(self, device: Any) -> dict[str, Any]:
        memory = device.memory
        before, since = race.counts(device), time.time_ns() // 1000 - CLOCK_SLACK_US
        try:
            taken: dict[str, Any] = memory._snapshot()
            if race.counts(device) != before:
                taken = race.joined(taken, memory._snapshot(), since)
                self._notes.append(
                    "Another thread allocated while the recording was taken: it ends where that began to be written "
                    "down, and is whole up to there."
                )
        except Exception as error:  # noqa: BLE001
            why = _first_line(error)
        else:
            return taken
        return self._take_lightly(memory, why)

    def _take_lightly(self, memory: Any, why: str) -> dict[str, Any]:
        """Without the history: turning C++ frames into text can fail (generated code, unusual debug data)."""
        import torch

        if has("light snapshot", torch, self.kind):
            with contextlib.suppress(Exception):  # blocks have C++ frames as well
                found = {"segments": memory.memory_snapshot(include_traces=False), "device_traces": []}
                self._notes.append(
                    f"PyTorch could not give its history ({why}): only the state at the end is shown; "
                    "stacks='python' avoids this."
                )
                return found
        raise RecorderError(f"PyTorch could not give its memory history: {why}")

    def _cut(self, snapshot: dict[str, Any]) -> dict[str, Any]:
        """The part of a running history that belongs to this recording; the lists that torch gave stay as they are."""
        traces = []
        for device, trace in enumerate(snapshot.get("device_traces", ())):
            first = self._first(trace, self._seen[device] if device < len(self._seen) else 0)
            if first == 0 and trace and trace[0].get("time_us", 0) > self._started_us:
                self._notes.append(
                    f"Device {device}: the running history was too short for this recording or began after it; "
                    "its start may be missing."
                )
            traces.append(trace[first:])
        cut = {**snapshot, "device_traces": traces}
        marks = snapshot.get("external_annotations")
        if marks:
            cut["external_annotations"] = [m for m in marks if m.get("time_us", 0) >= self._started_us - CLOCK_SLACK_US]
        return cut

    def _first(self, trace: list[dict[str, Any]], seen: int) -> int:
        """Index of the first entry after the start: by our mark, else by time, else by the number of entries before."""
        if trace and "time_us" not in trace[0]:
            return min(seen, len(trace))
        first = len(trace)
        while first and trace[first - 1]["time_us"] >= self._started_us - CLOCK_SLACK_US:
            first -= 1
        for index in range(first, len(trace)):
            if trace[index]["time_us"] > self._started_us + CLOCK_SLACK_US:
                break
            if trace[index]["action"] == "snapshot":
                return index + 1
        while first < len(trace) and trace[first]["time_us"] < self._started_us:
            first += 1
        return first

    def _describe(self, device: Any, recording: Recording) -> None:
        import torch

        self._facts |= {"backend": self.kind, "torch": str(torch.__version__)}
        shown = recording.devices[0] if recording.devices else 0
        free: dict[str, int] = {}
        for ordinal in {*recording.devices, shown}:
            if ordinal < device.device_count():
                recording.capacities[ordinal] = int(device.get_device_properties(ordinal).total_memory)
                if hasattr(device, "mem_get_info"):  # what others than torch use on the device follows from it
                    free[str(ordinal)] = int(device.mem_get_info(ordinal)[0])
        if free:
            self._facts["device_free"] = free
        if shown < device.device_count():
            self._facts["device_name"] = str(device.get_device_name(shown))
        if not any(len(events) for events in recording.events.values()):
            self._notes.append("Nothing was allocated on the device while recording.")


def _is_on(kind: str) -> bool | None:
    """Whether a history is on; None where torch cannot be asked (CUDA before 2.2, XPU)."""
    import torch

    query = getattr(torch._C, f"_{kind}_isHistoryEnabled", None)
    return None if query is None else bool(query())


def _switch_off(memory: Any) -> None:
    words = "stacks" in parameters(memory._record_memory_history)
    memory._record_memory_history(enabled=None if words else False)


def _first_line(error: BaseException) -> str:
    """The error's own words, one line, so that nothing of it needs to be kept."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
