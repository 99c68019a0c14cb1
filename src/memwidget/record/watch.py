"""When to sample labels, and what the code does meanwhile: forward, backward, optimizer steps, module calls.

Owns what a recording puts on torch, all global and all taken off again: around every module's call and the entry to the
autograd engine (standins.py), and around every optimizer's step (hooks). They write numbers and times. Whatever goes
wrong in them becomes a note; it must never become an error of the recorded code.

::

    start            sample what is at hand
      module called  outermost: new model -> parameters, buffers; arguments -> inputs   } a span each,
      backward       ...                                                                } on the clock of
      opt.step()     before: gradients; after: state, where it is new                   } the events
    stop             sample again, hooks off
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from memwidget.record.labels import MODULE as SEEN_BY_MODULE
from memwidget.record.labels import OPTIMIZER, Sampler, has_tensors, now
from memwidget.record.standins import StandIns, compiling
from memwidget.recording import IN_BACKWARD, SPAN, TRAINS, Recording, Spans

FORWARD, BACKWARD, STEP, CALL = (SPAN[name] for name in ("forward", "backward", "optimizer", "module"))

#: Spans kept. A GPT-2-small step makes about 160.
MAX_SPANS = 1_000_000

_in_backward = getattr(torch._C, "_current_graph_task_id", None) or (lambda: -1)


class _Local(threading.local):
    def __init__(self) -> None:
        #: Module calls under way: id, name, start in ns, flags (of the outermost; -1 inside).
        self.calls: list[tuple[int, int, int, int]] = []
        self.number = -1


class Watch:
    """Labels, phases and module calls of one recording.

    Parameters
    ----------
    kind : {"cuda", "xpu", "cpu"}
        The allocator that is recorded.
    given : list of weak references
        Models and optimizers that the user handed over (see `flat`).
    namespace : mapping, optional
        The notebook's variables, looked at when the recording starts and when it stops.
    deep : bool
        Follow saved tensors as well (`memwidget.record.deep`).
    """

    def __init__(
        self,
        kind: str,
        given: list[weakref.ref[Any]],
        namespace: Mapping[str, Any] | None = None,
        *,
        deep: bool = False,
    ) -> None:
        self.sampler = Sampler(kind)
        self.notes: list[str] = []
        self._given = given
        self._namespace = namespace
        self._spans: list[tuple[int, ...]] = []  # kind, name, thread, start and end in ns, flags
        self._steps: dict[tuple[int, int], tuple[int, int]] = {}  # (thread, optimizer) -> start, flags
        self._optimizers: dict[int, int] = {}
        self._threads = 0
        self._local = _Local()
        self._lock = threading.Lock()
        self._handles: list[Any] = []
        self._stand_ins = StandIns()
        self._call: Any = None
        self._on = False
        self._arguments: dict[int, tuple[weakref.ref[Any], list[str]]] = {}
        self._deep: Any = None
        if deep:
            from memwidget.record.deep import SavedTensors

            self._deep = SavedTensors(kind)

    # -- on and off --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sample what is at hand, and put the hooks on."""
        self._number()  # this thread is 0
        with self._guarded():
            self.sampler.sample_all(self._values(), self._namespace)
        self._on = True
        with self._guarded():
            self._call = self._stand_ins.place(torch.nn.Module, "__call__", self._around_calls)
            self._hook_optimizers()
            # The functions through which backward() and grad() reach the engine; two of them before torch 2.3.
            for name in (
                ("_engine_run_backward",) if hasattr(torch.autograd, "_engine_run_backward") else ("backward", "grad")
            ):
                self._stand_ins.place(torch.autograd, name, self._around_engine)
        if self._deep is not None:
            with self._guarded():
                self._deep.start()

    def stop(self) -> None:
        """Take it all off, and sample once more."""
        if self._deep is not None:
            with self._guarded():
                self._deep.stop()
        self._take_off()
        at = time.time_ns()
        for (thread, optimizer), (start, flags) in self._steps.items():  # an error came between
            self._add(STEP, optimizer, thread, start, at, flags)
        self._steps.clear()
        for call in reversed(self._local.calls):
            self._leave(call, at)
        self._local.calls.clear()
        with self._guarded():
            self.sampler.sample_all(self._values(), self._namespace)
        self._namespace = None

    def abandon(self) -> None:
        """In a forked child: take the hooks off, and look at nothing."""
        self._take_off()
        self._namespace = None
        if self._deep is not None:
            self._deep.stop()

    def _take_off(self) -> None:
        self._on = False
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
        self._handles.clear()
        self._stand_ins.remove()
        # What torch.compile takes for a plain module call if it was first imported meanwhile.
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
            held = vars(sys.modules.get(name, object)).get("unpatched_nn_module_call")
            if held is not None and held is self._call:
                sys.modules[name].unpatched_nn_module_call = self._call.__wrapped__  # type: ignore[attr-defined]

    def store(self, recording: Recording) -> None:
        """Write labels and spans into a recording."""
        numbers = self.sampler.store(recording)
        spans: Spans = Spans.empty(len(self._spans))
        if self._spans:
            rows = np.array(self._spans, np.int64)
            for column, name in enumerate(("kind", "name", "thread", "start_us", "end_us", "flags")):
                getattr(spans, name)[:] = rows[:, column]
            spans.start_us //= 1000
            spans.end_us //= 1000
            spans.name[:] = np.array([*numbers, -1], np.int32)[rows[:, 1]]
        recording.spans = spans
        if self.sampler.full or len(self._spans) >= MAX_SPANS:
            self._say("The recording made more labels than are kept: what came late in it has none.")
        for kind, error in self.sampler.troubles.items():
            self._say(f"A {kind} could not be looked at ({error}): what it holds has no labels of its own.")
        if self._deep is not None:
            self._deep.store(recording)
            self.notes += self._deep.notes
        recording.notes += self.notes

    def _values(self) -> list[Any]:
        return [value for value in (reference() for reference in self._given) if value is not None]

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._say(f"Some labels are missing: {type(error).__name__}: {str(error).strip().splitlines()[:1]}")

    def _say(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < 8:
            self.notes.append(note)

    def _number(self) -> int:
        local = self._local
        if local.number < 0:
            with self._lock:
                local.number, self._threads = self._threads, self._threads + 1
        return local.number

    def _add(self, *span: int) -> None:
        """Keep a span: kind, name, thread, start and end in ns, flags."""
        if len(self._spans) < MAX_SPANS:
            self._spans.append(span)

    # -- modules -----------------------------------------------------------------------------------------------------

    def _around_calls(self, original: Any) -> Any:
        """Stand in for ``Module.__call__``.

        torch's global module hooks would do, but cost 7 us a call before they do anything, as every call then goes the
        long way; a GPT-2 small makes 125 a step. This takes 3 us with all that it notes, and torch.compile, which makes
        a graph anew where such hooks come and go, looks through it.
        """
        local, modules, spans, clock = self._local, self.sampler.modules, self._spans, time.time_ns
        watch = self

        # torch.profiler looks for the module in this very function, under the name of `self`.
        def __call__(self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if not watch._on or compiling():
                return original(self, *args, **kwargs)
            calls = local.calls
            if calls:
                identity = id(self)
                known = modules.get(identity)
                name = known[1] if known is not None and known[0]() is self else watch._path(self)
                call = (identity, name, clock(), -1)
            else:
                call = watch._enter(self, args, kwargs)
            calls.append(call)
            try:
                return original(self, *args, **kwargs)
            finally:
                if calls and calls[-1] is call:
                    calls.pop()
                    if not calls:
                        watch._leave(call, clock())
                    elif len(spans) < MAX_SPANS:
                        spans.append((CALL, call[1], local.number, call[2], clock(), 0))
                elif call in calls:  # calls of two greenlets, one within the other
                    calls.remove(call)

        return __call__

    def _enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[int, int, int, int]:
        """An outermost call: what it is called with, and whether it trains."""
        flags = 0
        try:
            if _in_backward() != -1:
                flags = IN_BACKWARD
                if self._deep is not None:
                    self._deep.recomputes()
            else:
                if not self.sampler.knows(module) and has_tensors(module):
                    self.sampler.sample_module(module, SEEN_BY_MODULE)
                self.sampler.sample_changed(module)
                named = itertools.chain(zip(self._names_of(module), args, strict=False), kwargs.items())
                trains = self.sampler.sample_inputs(named, now())
                if torch.is_grad_enabled() and (trains or any(p.requires_grad for p in module.parameters())):
                    flags = TRAINS
            self._number()
        except Exception as error:  # noqa: BLE001
            self._missed(error)
        return id(module), self._path(module), time.time_ns(), flags

    def _leave(self, call: tuple[int, int, int, int], at: int) -> None:
        """The end of an outermost call, or of one that the recording ended in."""
        _, name, start, flags = call
        thread = self._local.number
        self._add(CALL, name, thread, start, at, max(flags, 0))
        if flags >= 0 and not flags & IN_BACKWARD:
            self._add(FORWARD, name, thread, start, at, flags)

    def _path(self, module: torch.nn.Module) -> int:
        try:
            return self.sampler.path(module)
        except Exception as error:  # noqa: BLE001
            self._missed(error)
            return self.sampler.name(type(module).__name__)

    def _missed(self, error: Exception) -> None:
        self._say(f"Some module calls are missing: {type(error).__name__}.")

    def _names_of(self, module: torch.nn.Module) -> list[str]:
        """What the module calls its arguments; at least as many as it can be given in practice."""
        known = self._arguments.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        names: list[str] = []
        code = getattr(getattr(type(getattr(module, "_orig_mod", module)), "forward", None), "__code__", None)
        if code is not None:
            names = list(code.co_varnames[1 : code.co_argcount])
        names += [f"input {index}" for index in range(len(names), 64)]
        self._arguments[id(module)] = (weakref.ref(module), names)
        return names

    # -- optimizers --------------------------------------------------------------------------------------------------

    def _hook_optimizers(self) -> None:
        from torch.optim import optimizer as hooks

        before = getattr(hooks, "register_optimizer_step_pre_hook", None)
        after = getattr(hooks, "register_optimizer_step_post_hook", None)
        if before is None or after is None:
            self._say("This PyTorch has no hooks on optimizers: gradients and optimizer steps are guessed.")
            return
        self._handles += [before(self._before_step), after(self._after_step)]

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if compiling():
            return
        try:
            if not self.sampler.knows_optimizer(optimizer):
                self.sampler.sample_optimizer(optimizer, OPTIMIZER)
            else:
                self.sampler.sample_gradients(optimizer, OPTIMIZER)
            number = self._optimizers.setdefault(id(optimizer), len(self._optimizers))
            name = self.sampler.name(type(optimizer).__name__ + (f" {number + 1}" if number else ""))
            self._steps[self._number(), name] = (time.time_ns(), IN_BACKWARD if _in_backward() != -1 else 0)
        except Exception as error:  # noqa: BLE001
            self._say(f"Some optimizer steps are missing: {type(error).__name__}.")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if compiling():
            return
        try:
            number = self._optimizers.get(id(optimizer), 0)
            name = self.sampler.name(type(optimizer).__name__ + (f" {number + 1}" if number else ""))
            began = self._steps.pop((self._number(), name), None)
            if began is not None:
                self._add(STEP, name, self._local.number, began[0], time.time_ns(), began[1])
            self.sampler.sample_state(optimizer, OPTIMIZER)
        except Exception as error:  # noqa: BLE001
            self._say(f"Some optimizer steps are missing: {type(error).__name__}.")

    # -- autograd ----------------------------------------------------------------------------------------------------

    def _around_engine(self, original: Any) -> Any:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on or compiling() or _in_backward() != -1:
                return original(*args, **kwargs)
            if self._deep is not None:
                self._deep.begins()
            start = time.time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(BACKWARD, -1, self._number(), start, time.time_ns(), 0)

        return run_backward


def flat(*values: Any) -> list[weakref.ref[Any]]:
    """Weak references to models and optimizers as given: one, or a list or dict of them."""
    found: list[weakref.ref[Any]] = []
    for value in values:
        if value is None:
            continue
        if isinstance(value, Mapping):
            found += flat(*value.values())
        elif isinstance(value, (list, tuple)):
            found += flat(*value)
        elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            found.append(weakref.ref(value))
        else:
            raise TypeError(
                f"model= and optimizer= take torch modules, optimizers or lists of them, not {type(value).__name__}."
            )
    return found
