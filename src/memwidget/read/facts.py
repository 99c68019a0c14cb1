"""The facts of an archive: of a form that the rest of the house may rely on.

Owns the form of each fact that anything is concluded from. Facts of other names are shown, never used, and may hold
what they like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_Check = Callable[[Any], bool]


def _number(most: int) -> _Check:
    return lambda value: type(value) is int and 0 <= value <= most


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _list(inner: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(inner, value))


def _mapping(inner: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(inner, value.values()))


def _row(**columns: _Check) -> _Check:
    return lambda value: (
        isinstance(value, dict)
        and columns.keys() <= value.keys()
        and all(check(value[name]) for name, check in columns.items())
    )


#: Bytes and times alike; past 2**53 a browser's numbers would no longer be exact.
_COUNT = _number(2**53)
_FORMS: dict[str, _Check] = {
    **dict.fromkeys(("backend", "torch", "device_name", "stacks", "context", "source", "sizes", "history"), _text),
    "error": _text,
    "max_entries": _number(2**63),
    "started_us": _COUNT,
    "cells": _mapping(_text),
    "device_free": _mapping(_COUNT),
    "steps": _list(_COUNT),
    "first_step": _COUNT,
    "gc": _list(_row(start_us=_COUNT, end_us=_COUNT)),
    "holders": _list(_row(address=_number(2**64 - 1), bytes=_COUNT, holder=_text, kind=_text, fix=_text)),
    "earlier_runs": _list(_row(bytes=_COUNT, holders=_list(_text), fixes=_list(_text))),
}


def check_facts(facts: dict[str, Any], n_annotations: int) -> bool:
    """Whether every fact that is used has its form; phases are rows of the annotations."""
    forms = {**_FORMS, "phases": _list(_number(n_annotations - 1))}
    return all(form(facts[name]) for name, form in forms.items() if name in facts)
