"""Labels by identity: which live tensor is a parameter, a buffer, a gradient, optimizer state, an input.

Owns what is written down at a sample point, and the names. A row is made of ints alone (time, device, start and bytes
of the storage, category, name); models and optimizers are known by weak references. So nothing here keeps a tensor, a
module or a frame alive: a recorder of memory must not change how long memory lives.

watch.py decides when to sample; memwidget.trace.categories decides what a sample says about a block.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from memwidget.record.looking import PLAIN, is_a, one_level, parts, tensors_in, walks
from memwidget.recording import CATEGORIES, SAMPLED, Labels, Recording

PARAMETER, BUFFER, GRADIENT, STATE, INPUT = (
    CATEGORIES.index(name) for name in ("parameter", "buffer", "gradient", "optimizer_state", "input")
)
#: The category of a row that gives a name and no more.
NAME_ONLY = CATEGORIES.index("unknown")

GIVEN, NAMESPACE, MODULE, OPTIMIZER = (SAMPLED.index(how) for how in ("given", "namespace", "module", "optimizer"))

#: Rows kept: 60 MB of ints. A GPT-2-small step makes about 200.
MAX_ROWS = 1_000_000


def now() -> int:
    """Microseconds since the Unix epoch, the clock of the allocator's events (1 to 8 us apart on an H200)."""
    return time.time_ns() // 1000


class Root(NamedTuple):
    """A module that is called from outside any other."""

    number: int
    ref: weakref.ref[torch.nn.Module]


class _Held:
    """What a model held when it was sampled: ids and addresses of its tensors. 60 us to ask a GPT-2 small."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.ref = weakref.ref(module)
        self._parts = [weakref.ref(part) for part in module.modules()]
        self._marks: list[int] = []
        self.anything = self.changed()

    def changed(self) -> bool:
        """Whether that is different from the last time."""
        before = self._marks
        parts = [part for part in [ref() for ref in self._parts] if part is not None]
        tensors = [each for part in parts for each in (*part._parameters.values(), *part._buffers.values())]
        self._marks = [*map(id, tensors), *map(_address, tensors)]
        return self._marks != before


class _Stepper:
    """What is known of an optimizer: ids only, to see whether its parameters or its state changed."""

    def __init__(self, optimizer: Any) -> None:
        self.ref = weakref.ref(optimizer)
        self.ids: list[int] = []
        self.names: list[int] = []
        self.state: list[int] = []


class Sampler:
    """Rows of labels of one recording.

    Parameters
    ----------
    kind : {"cuda", "xpu", "cpu"}
        Tensors of other devices are passed over.
    """

    def __init__(self, kind: str) -> None:
        self.rows: list[tuple[int, int, int, int, int, int, int]] = []
        self.full = False
        self._kind = kind
        self._here = f"is_{kind}"
        self._names: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()
        self._better: dict[str, int] = {}  # "parameter 2" of an optimizer -> the name it has elsewhere
        self._inputs: set[int] = set()  # addresses of what models were called with
        #: What could not be looked at: class -> the error.
        self.troubles: dict[str, str] = {}
        self._roots: list[str] = []
        #: Module by id -> a weak reference and the number of its name; the reference tells a recycled id.
        self.modules: dict[int, tuple[weakref.ref[torch.nn.Module], int]] = {}
        self._known: dict[int, Root] = {}
        self._steppers: dict[int, _Stepper] = {}
        self._held: dict[int, _Held] = {}

    # -- names -------------------------------------------------------------------------------------------------------

    def name(self, text: str, root: int = -1) -> int:
        """Number of a name; `root` tells equal names of two models apart."""
        number = self._names.get((root, text))
        if number is None:
            with self._lock:  # two threads must not take one number
                number = self._names.setdefault((root, text), len(self._names))
        return number

    def texts(self) -> list[str]:
        """The names by number; where there were several models, each with its model in front."""
        keys = list(self._names)
        several = len({root for root, text in keys if root >= 0 and text}) > 1
        found: list[str] = []
        for root, text in keys:
            if root >= 0:
                found.append(".".join(filter(None, (self._roots[root], text))) if several or not text else text)
            else:
                found.append(text)
        for number, (root, text) in enumerate(keys):
            head, slash, slot = text.partition(" / ")
            if root < 0 and head in self._better:
                found[number] = found[self._better[head]] + slash + slot
        return found

    def path(self, module: torch.nn.Module) -> int:
        """Number of a module's qualified name; of its class where no known model holds it."""
        known = self.modules.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        # One that was added to its model since; what holds nothing (a softmax made on the fly) is not worth the walk.
        for root in list(self._known.values()) if has_tensors(module) else ():
            owner = root.ref()
            if owner is not None and any(module is part for part in owner.modules()):
                self._note_paths(owner, root.number)
                return self.modules[id(module)][1]
        number = self.name(type(module).__name__)
        self.modules[id(module)] = (weakref.ref(module), number)
        return number

    def _note_paths(self, owner: torch.nn.Module, number: int) -> None:
        for path, module in owner.named_modules():
            text = _plain_path(path)
            known = self.modules.get(id(module))
            if known is None or known[0]() is not module or known[1] == self._names.get((-1, type(module).__name__)):
                self.modules[id(module)] = (weakref.ref(module), self.name(text, number))

    def knows(self, module: torch.nn.Module) -> bool:
        """Whether the module is a model that was sampled, or part of one."""
        known = self.modules.get(id(module))
        return known is not None and known[0]() is module

    # -- one tensor --------------------------------------------------------------------------------------------------

    def note(self, tensor: Any, category: int, name: int, how: int, at: int) -> int:
        """Write a tensor down; returns the start of its storage, 0 where it has none here."""
        if type(tensor) not in PLAIN:
            first = 0
            for part in parts(tensor):
                first = self._note(part, category, name, how, at) or first
            return first
        return self._note(tensor, category, name, how, at)

    def _note(self, tensor: Any, category: int, name: int, how: int, at: int) -> int:
        # Each gradient of each step comes here: 1.2 us on a slow core.
        try:
            if not getattr(tensor, self._here):
                return 0
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if not address or type(address) is not int:
                return 0
            if len(self.rows) >= MAX_ROWS:
                self.full = True
            else:
                device = 0 if self._kind == "cpu" else tensor.get_device()
                self.rows.append((at, device, address, storage.nbytes(), category, name, how))
        except Exception:  # noqa: BLE001  (fake, functional, sparse, lazy, a class of the user's: no memory to tell of)
            return 0
        return address

    # -- models ------------------------------------------------------------------------------------------------------

    def add_root(self, module: torch.nn.Module, label: str = "") -> Root:
        """Make a model known and its parts' names with it."""
        known = self._known.get(id(module))
        if known is not None and known.ref() is module:
            if label:  # met by a call before a variable held it
                self._roots[known.number] = label
                self._place_parts(module, label)
            return known
        root = Root(len(self._roots), weakref.ref(module))
        label = label or _class_name(module)
        same = sum(label == other.rsplit(" ", 1)[0] for other in self._roots)
        self._roots.append(f"{label} {same + 1}" if same else label)
        self._known[id(module)] = root
        self._note_paths(module, root.number)
        self._place_parts(module, self._roots[root.number])
        return root

    def _place_parts(self, owner: torch.nn.Module, label: str) -> None:
        """Models that were met by themselves and are parts of a larger one are called by their place in it."""
        for path, part in owner.named_modules():
            known = self._known.get(id(part))
            if known is not None and known.ref() is part and part is not owner:
                self._roots[known.number] = f"{label}.{_plain_path(path)}"

    def sample_module(self, module: torch.nn.Module, how: int, label: str = "") -> None:
        """Parameters, buffers and gradients of a model."""
        root, at = self.add_root(module, label), now()
        self._held[id(module)] = _Held(module)
        self._sample_named(module.named_parameters(), PARAMETER, root.number, how, at)
        self._sample_named(module.named_buffers(), BUFFER, root.number, how, at)
        for name, parameter in module.named_parameters():
            gradient = _gradient(parameter)
            if gradient is not None:
                self.note(gradient, GRADIENT, self.name(_plain_path(name), root.number), how, at)

    def sample_changed(self, module: torch.nn.Module) -> None:
        """Look again at a known model that is called, if it holds other tensors than when it was sampled.

        ``.to()`` puts new memory under its parameters, and some layers keep a cache in a buffer.
        """
        held = self._held.get(id(module))
        if held is not None and held.ref() is module and not held.changed():
            return
        held = self._held[id(module)] = _Held(module)
        for root in list(self._known.values()) if held.anything else ():
            owner = root.ref()
            if owner is not None and any(part is module for part in owner.modules()):
                self.sample_module(owner, MODULE)

    def _sample_named(self, named: Iterable[tuple[str, Any]], category: int, root: int, how: int, at: int) -> None:
        """One row a storage: parameters that are views of one flat storage share it, and the first gives the name."""
        shared: dict[int, list[int]] = {}  # start of the storage -> row, number of tensors in it
        names: dict[int, str] = {}
        for name, tensor in named:
            row = len(self.rows)
            address = self.note(tensor, category, self.name(_plain_path(name), root), how, at)
            if address in shared:
                shared[address][1] += 1
                del self.rows[row:]
            elif address:
                shared[address] = [row, 1]
                names[address] = name
        for address, (row, count) in shared.items():
            if count > 1 and row < len(self.rows):
                text = f"{_plain_path(names[address])} (and {count - 1} more)"
                before = self.rows[row]
                self.rows[row] = (*before[:5], self.name(text, root), before[6])

    # -- optimizers --------------------------------------------------------------------------------------------------

    def sample_optimizer(self, optimizer: Any, how: int) -> None:
        """Parameters, gradients and state of an optimizer."""
        stepper = self._stepper(optimizer)
        at = now()
        for parameter, name in zip(_parameters(optimizer), stepper.names, strict=False):
            self.note(parameter, PARAMETER, name, how, at)
        self.sample_gradients(optimizer, how)
        self.sample_state(optimizer, how, always=True)

    def sample_gradients(self, optimizer: Any, how: int) -> None:
        """The gradients that a step is about to use."""
        names = self._stepper(optimizer).names
        at = now()
        for parameter, name in zip(_parameters(optimizer), names, strict=False):
            gradient = _gradient(parameter)
            if gradient is not None:
                self.note(gradient, GRADIENT, name, how, at)

    def sample_state(self, optimizer: Any, how: int, *, always: bool = False) -> None:
        """The state, where it is not the same tensors as at the last sample (a step changes it in place)."""
        stepper = self._stepper(optimizer)
        state = optimizer.state
        ids = [id(value) for of_one in state.values() if isinstance(of_one, dict) for value in of_one.values()]
        if ids == stepper.state and not always:
            return
        stepper.state = ids
        at = now()
        names = dict(zip(stepper.ids, stepper.names, strict=True))
        by_number = self._texts_by_number()
        for key, of_one in state.items():
            owner = names.get(id(key), -1)
            root, text = by_number[owner] if owner >= 0 else (-1, "")
            for slot, value in of_one.items() if isinstance(of_one, dict) else [(str(key), of_one)]:
                for part, tensor in tensors_in(value):
                    name = " / ".join(filter(None, (text, f"{slot}{part}")))
                    self.note(tensor, STATE, self.name(name, root), how, at)

    def _texts_by_number(self) -> list[tuple[int, str]]:
        return list(self._names)

    def knows_optimizer(self, optimizer: Any) -> bool:
        """Whether the optimizer was met before."""
        known = self._steppers.get(id(optimizer))
        return known is not None and known.ref() is optimizer

    def _stepper(self, optimizer: Any) -> _Stepper:
        stepper = self._steppers.get(id(optimizer))
        if stepper is None or stepper.ref() is not optimizer:
            stepper = self._steppers[id(optimizer)] = _Stepper(optimizer)
        ids = [id(parameter) for parameter in _parameters(optimizer)]
        if ids != stepper.ids:
            stepper.ids = ids
            which = f" of optimizer {len(self._steppers)}" if len(self._steppers) > 1 else ""
            named = self._parameter_names()
            stepper.names = [
                named[key] if key in named else self.name(f"parameter {index}{which}") for index, key in enumerate(ids)
            ]
        return stepper

    def _parameter_names(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for root in list(self._known.values()):
            module = root.ref()
            if module is not None:
                for name, parameter in module.named_parameters():
                    found.setdefault(id(parameter), self.name(_plain_path(name), root.number))
        return found

    # -- everything at hand ------------------------------------------------------------------------------------------

    def sample_all(self, given: Iterable[Any], namespace: Mapping[str, Any] | None) -> None:
        """What was handed over, what the namespace holds, and what was met by hooks and is still there."""
        modules: list[tuple[str, torch.nn.Module, int]] = []
        optimizers: list[tuple[Any, int]] = []
        tensors: list[tuple[str, torch.Tensor]] = []

        def sort(name: str, value: Any, how: int) -> None:
            if is_a(value, torch.nn.Module):
                modules.append((name, value, how))
            elif is_a(value, torch.Tensor):
                tensors.append((name, value))
            elif _is_optimizer(value):
                optimizers.append((value, how))

        for value in given:
            sort("", value, GIVEN)
        for name, value in one_level(namespace or {}):
            sort(name, value, NAMESPACE)
        modules = [each for each in modules if walks(each[1])]
        inner = {
            id(part)
            for _, module, _ in modules
            for part in itertools.islice(module.modules(), 1, None)
            if part is not module
        }
        for name, module, how in modules:
            if id(module) not in inner:
                with self._apart(module):
                    self.sample_module(module, how, name)
        for root in list(self._known.values()):
            met = root.ref()
            if met is not None and not any(met is module for _, module, _ in modules) and id(met) not in inner:
                with self._apart(met):
                    self.sample_module(met, MODULE)
        met_ones = [(stepper.ref(), OPTIMIZER) for stepper in self._steppers.values()]
        optimizers += [each for each in met_ones if not any(each[0] is other for other, _ in optimizers)]
        for optimizer, how in optimizers:
            if optimizer is not None:
                with self._apart(optimizer):
                    self.sample_optimizer(optimizer, how)
        self._name_numbered()
        at = now()
        for name, tensor in tensors:
            with self._apart(tensor):
                self._sample_tensor(tensor, name, at)

    @contextlib.contextmanager
    def _apart(self, value: Any) -> Iterator[None]:
        """One object that cannot be looked at costs its own labels alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self.troubles[type(value).__name__] = type(error).__name__

    def _name_numbered(self) -> None:
        """Parameters that an optimizer met before their model have its names from now on."""
        named = self._parameter_names()
        texts = self._texts_by_number()
        for stepper in self._steppers.values():
            for key, number in zip(stepper.ids, stepper.names, strict=True):
                root, text = texts[number]
                if root < 0 and key in named:
                    self._better[text] = named[key]

    def _sample_tensor(self, tensor: torch.Tensor, name: str, at: int) -> None:
        number = self.name(name)
        for stepper in self._steppers.values():
            if id(tensor) in stepper.ids:  # an optimizer met it before its variable was looked at
                root, text = self._texts_by_number()[stepper.names[stepper.ids.index(id(tensor))]]
                if root < 0:
                    self._better[text] = number
        trained = tensor.requires_grad and tensor.is_leaf
        row = len(self.rows)
        # What a model was called with is an input, whether or not its gradient is wanted.
        address = self.note(tensor, PARAMETER if trained else NAME_ONLY, number, NAMESPACE, at)
        if address in self._inputs and not is_a(tensor, torch.nn.Parameter):
            self.rows[row:] = [(*each[:4], NAME_ONLY, *each[5:]) for each in self.rows[row:]]
        gradient = _gradient(tensor) if trained else None
        if gradient is not None:
            self.note(gradient, GRADIENT, number, NAMESPACE, at)

    def sample_inputs(self, values: Iterable[tuple[str, Any]], at: int) -> bool:
        """Tensors that a model is called with, unless autograd made them; says whether any of them requires grad."""
        trains = False
        for name, value in values:
            for part, tensor in tensors_in(value, depth=3):
                trains |= bool(tensor.requires_grad)
                if tensor.grad_fn is None and not is_a(tensor, torch.nn.Parameter):
                    self._inputs.add(self.note(tensor, INPUT, self.name(f"{name}{part}"), MODULE, at))
        return trains

    # -- out ---------------------------------------------------------------------------------------------------------

    def store(self, recording: Recording) -> list[int]:
        """Write the labels into a recording; returns the string of each name."""
        strings = recording.strings
        where: dict[str, int] = {}
        numbers = []
        for text in self.texts():
            if text not in where:
                where[text] = len(strings)
                strings.append(text)
            numbers.append(where[text])
        labels: Labels = Labels.empty(len(self.rows))
        if self.rows:
            times, devices, addresses, sizes, categories, names, how = zip(*self.rows, strict=True)
            labels.time_us[:], labels.device[:], labels.nbytes[:] = times, devices, sizes
            labels.address[:] = np.array(addresses, np.uint64)
            labels.category[:], labels.how[:] = categories, how
            labels.name[:] = np.array(numbers, np.int32)[list(names)]
        recording.labels = labels
        return numbers


def has_tensors(module: torch.nn.Module) -> bool:
    """Whether a module holds parameters or buffers."""
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _address(tensor: Any) -> int:
    """Where a parameter lies; 0 for none, and where that cannot be said (sharded, lazy)."""
    try:
        return tensor.data_ptr() if type(tensor) in PLAIN else 0
    except Exception:  # noqa: BLE001
        return 0


def _gradient(tensor: Any) -> Any:
    return tensor.grad if tensor.is_leaf else None


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_optimizer(value: Any) -> bool:
    return is_a(value, torch.optim.Optimizer)


def _class_name(module: torch.nn.Module) -> str:
    inner = getattr(module, "_orig_mod", None)
    return type(inner if inner is not None else module).__name__


def _plain_path(path: str) -> str:
    """A qualified name without what torch.compile, checkpointing and data-parallel wrappers put into it."""
    for part in ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"):
        path = path.replace(f"{part}.", "").removesuffix(part).removesuffix(".")
    return path
