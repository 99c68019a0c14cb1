"""When to sample labels, and what the code does meanwhile: forward, backward, optimizer steps, module calls.

Owns the hooks that a recording puts on torch, all global and all taken off again: around every module's call, around
every optimizer's step, and around the entry to the autograd engine. They write numbers and times. Whatever goes wrong
in them becomes a note; it must never become an error of the recorded code.

::

    start            sample what is at hand
      module called  outermost: new model -> parameters, buffers; arguments -> inputs   } a span each,
      backward       ...                                                                } on the clock of
      opt.step()     before: gradients; after: state, where it is new                   } the events
    stop             sample again, hooks off
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from memwidget.record.labels import MODULE as SEEN_BY_MODULE
from memwidget.record.labels import OPTIMIZER, Sampler, has_tensors, now
from memwidget.recording import IN_BACKWARD, SPAN, TRAINS, Recording, Spans

FORWARD, BACKWARD, STEP, CALL = (SPAN[name] for name in ("forward", "backward", "optimizer", "module"))

#: Spans kept. A GPT-2-small step makes about 160.
MAX_SPANS = 1_000_000

_in_backward = getattr(torch._C, "_current_graph_task_id", None) or (lambda: -1)
_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or (lambda: False)


class _Local(threading.local):
    def __init__(self) -> None:
        #: Module calls under way: id, name, start in ns, flags (of the outermost; -1 inside).
        self.calls: list[tuple[int, int, int, int]] = []
        self.number = -1
        #: Deep mode: what is known of the Python stack outside of each call (see tails.py).
        self.tails: list[tuple[Any, int]] = []


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
        self._engine: list[tuple[str, Any, Any]] = []
        self._filter: Any = None
        self._on = False
        self._arguments: dict[int, tuple[weakref.ref[Any], list[str]]] = {}
        self._deep: Any = None
        if deep:
            from memwidget.record.deep import SavedTensors

            self._deep = SavedTensors(kind, self._local)

    # -- on and off --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sample what is at hand, and put the hooks on."""
        self._number()  # this thread is 0
        with self._guarded():
            self.sampler.sample_all(self._values(), self._namespace)
        self._on = True
        with self._guarded():
            self._hook_modules()
            self._hook_optimizers()
            self._hook_engine()
        if self._deep is not None:
            with self._guarded():
                self._deep.start()

    def stop(self) -> None:
        """Take the hooks off, and sample once more."""
        if self._deep is not None:
            with self._guarded():
                self._deep.stop()
        self._take_off()
        at = time.time_ns()
        for (thread, optimizer), (start, flags) in self._steps.items():  # an error came between
            self._add(STEP, optimizer, thread, start, at, flags)
        self._steps.clear()
        for _, name, start, flags in reversed(self._local.calls):
            self._leave(name, start, flags, at)
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
        with contextlib.suppress(ValueError):
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        self._unhook_engine()

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

    def _hook_modules(self) -> None:
        from torch.nn.modules import module as hooks

        # A compiled module warns that global hooks see it twice, as itself and as the module in it; ours may.
        self._filter = ("ignore", re.compile(r"Using `torch\.compile"), UserWarning, None, 0)
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]
        self._handles.append(hooks.register_module_forward_pre_hook(self._pre_hook()))
        # The hook after the call is told of keyword arguments, and of calls that end in an error.
        try:
            handle = hooks.register_module_forward_hook(self._post_hook(), with_kwargs=True, always_call=True)
        except TypeError:  # torch before 2.1
            handle = hooks.register_module_forward_hook(self._post_hook())
        self._handles.append(handle)

    def _pre_hook(self) -> Any:
        # Called for every module of every step, so inner calls look up what they need by themselves: on a slow core
        # the 125 modules of a GPT-2 small cost 0.5 ms a step above empty hooks, and 1.0 ms with a method for each look.
        local, sampler, modules, clock = self._local, self.sampler, self.sampler.modules, time.time_ns

        def before_module(module: torch.nn.Module, args: Any) -> None:
            if _compiling():  # seen by torch.compile while it traces: nothing of this goes into the graph
                return
            calls = local.calls
            try:
                if calls:
                    identity = id(module)
                    known = modules.get(identity)
                    name = known[1] if known is not None and known[0]() is module else sampler.path(module)
                    calls.append((identity, name, clock(), -1))
                else:
                    self._enter(module, args)
            except Exception as error:  # noqa: BLE001
                self._say(f"Some module calls are missing: {type(error).__name__}.")

        return before_module

    def _post_hook(self) -> Any:
        local, spans, clock = self._local, self._spans, time.time_ns

        def after_module(module: torch.nn.Module, args: Any, *rest: Any) -> None:  # noqa: ARG001
            if _compiling():
                return
            calls = local.calls
            if len(calls) > 1 and calls[-1][0] == id(module):
                _, name, start, _ = calls.pop()
                if len(spans) < MAX_SPANS:
                    spans.append((CALL, name, local.number, start, clock(), 0))
                return
            try:
                self._after(calls, id(module), rest[0] if len(rest) == 2 else None)
            except Exception as error:  # noqa: BLE001
                self._say(f"Some module calls are missing: {type(error).__name__}.")

        return after_module

    def _after(self, calls: list[tuple[int, int, int, int]], identity: int, kwargs: Any) -> None:
        """The end of an outermost call, or of one in which others ended in an error that was caught in between."""
        if all(call[0] != identity for call in calls):
            return  # its call began before the recording
        at = time.time_ns()
        while True:
            inner, name, start, flags = calls.pop()
            if not calls and kwargs and flags >= 0 and not flags & IN_BACKWARD:
                self.sampler.sample_inputs(kwargs.items(), at // 1000)
            self._leave(name, start, flags, at)
            if inner == identity:
                return

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        """An outermost call."""
        flags = 0
        if _in_backward() != -1:
            flags = IN_BACKWARD
            if self._deep is not None:
                self._deep.recomputes()
        else:
            if not self.sampler.knows(module) and has_tensors(module):
                self.sampler.sample_module(module, SEEN_BY_MODULE)
            trains = self.sampler.sample_inputs(zip(self._names_of(module), args, strict=False), now())
            if torch.is_grad_enabled() and (trains or any(p.requires_grad for p in module.parameters())):
                flags = TRAINS
        self._number()
        self._local.calls.append((id(module), self.sampler.path(module), time.time_ns(), flags))

    def _leave(self, name: int, start: int, flags: int, at: int) -> None:
        thread = self._local.number
        self._add(CALL, name, thread, start, at, max(flags, 0))
        if flags >= 0 and not flags & IN_BACKWARD:
            self._add(FORWARD, name, thread, start, at, flags)

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
        if _compiling():
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
        if _compiling():
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

    def _hook_engine(self) -> None:
        """Stand in for the function through which backward() and grad() reach the engine."""
        name = "_engine_run_backward"
        for each in (name,) if hasattr(torch.autograd, name) else ("backward", "grad"):  # the latter: before 2.3
            original = getattr(torch.autograd, each)
            ours = self._around(original)
            self._engine.append((each, original, ours))
            setattr(torch.autograd, each, ours)

    def _around(self, original: Any) -> Any:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if not self._on or _compiling() or _in_backward() != -1:
                return original(*args, **kwargs)
            if self._deep is not None:
                self._deep.begins()
            start = time.time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(BACKWARD, -1, self._number(), start, time.time_ns(), 0)

        run_backward.__wrapped__ = original  # type: ignore[attr-defined]
        return run_backward

    def _unhook_engine(self) -> None:
        for name, original, ours in self._engine:
            # Somebody who wrapped it since keeps his wrapper; ours only passes on from here.
            if getattr(torch.autograd, name, None) is ours:
                setattr(torch.autograd, name, original)
        self._engine.clear()


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
