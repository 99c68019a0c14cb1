"""Looking into the values of recorded code without running any of it.

Owns what is looked into: lists, tuples and dicts, a notebook's variables, the tensors behind a subclass. Types are
asked, not objects: a mapping of the user's may load, count or use up what it is asked for, and a mock claims to be
anything.
"""

from __future__ import annotations

import itertools
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

#: Items looked at in one list or dict: a list of a million tensors must not take a second.
MAX_ITEMS = 10_000

#: Tensors that have storage of their own.
PLAIN = (torch.Tensor, torch.nn.Parameter)


def tensors_in(value: Any, depth: int = 2, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a value, its lists, tuples and dicts; each with the way to it."""
    if is_a(value, torch.Tensor):
        yield path, value
    elif depth:
        for part, item in items(value):
            yield from tensors_in(item, depth - 1, f"{path}{part}")


def walks(module: Any) -> bool:
    """Whether a module was ever made whole: one whose __init__ forgot its parent's has no parts to walk."""
    try:
        return all(True for _ in module.modules())
    except Exception:  # noqa: BLE001
        return False


def is_a(value: Any, kind: type) -> bool:
    """What `isinstance` says, but not of what merely claims to be one (mocks, proxies), and without asking it."""
    return issubclass(type(value), kind)


def items(value: Any) -> Iterator[tuple[str, Any]]:
    """What stands in a list, tuple or dict, by the built-in's own methods: a user's may load, count or use up."""
    if is_a(value, UserDict):
        value = vars(value).get("data")
    if is_a(value, dict):
        for key, item in itertools.islice(dict.items(value), MAX_ITEMS):
            yield f"[{key!r}]"[:200] if type(key) in (str, int) else f"[{type(key).__name__}]", item
    elif is_a(value, list) or is_a(value, tuple):
        items = list.__iter__(value) if is_a(value, list) else tuple.__iter__(value)
        for index, item in enumerate(itertools.islice(items, MAX_ITEMS)):
            yield f"[{index}]", item


def one_level(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of a namespace, and what stands in its lists, tuples and dicts."""
    for name, value in list(namespace.items()):
        if name.startswith("_") or name in ("In", "Out"):
            continue
        if any(is_a(value, kind) for kind in (list, tuple, dict, UserDict)):
            yield from ((f"{name}{part}", item) for part, item in items(value))
        else:
            yield name, value


def parts(tensor: Any) -> list[Any]:
    """The tensors with storage behind a subclass: a DTensor's local part, the inner tensors of a wrapper."""
    if type(tensor).__name__ == "FakeTensor":  # it has no memory, and warns where one asks for its address
        return []
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        return parts(local) if type(local) not in PLAIN else [local]
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    try:
        inner = [getattr(tensor, name) for name in flatten(tensor)[0]]
    except Exception:  # noqa: BLE001
        return []
    return [part for each in inner for part in ([each] if type(each) in PLAIN else parts(each))]
