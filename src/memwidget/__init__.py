"""See where the GPU memory went, in the notebook cell that used it.

Owns the public names, resolved on first use so that ``import memwidget`` loads neither torch nor a widget library, and
the IPython extension's entry points.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwidget.recording import SnapshotError

if TYPE_CHECKING:
    from memwidget.answer.batch_size import tune_batch_size as tune_batch_size
    from memwidget.answer.compare import compare as compare
    from memwidget.guard import MemoryLimitExceeded as MemoryLimitExceeded
    from memwidget.guard import limit as limit
    from memwidget.guard import monitor as monitor
    from memwidget.session import load as load
    from memwidget.session import memtrace as memtrace
    from memwidget.session import start as start
    from memwidget.session import stop as stop
    from memwidget.show.view import MemView as MemView
    from memwidget.trace.rules import Rule as Rule
    from memwidget.trace.trace import Trace as Trace

__version__ = "0.1.0"
__all__ = [
    "MemView",
    "MemoryLimitExceeded",
    "Rule",
    "SnapshotError",
    "Trace",
    "compare",
    "limit",
    "load",
    "memtrace",
    "monitor",
    "start",
    "stop",
    "tune_batch_size",
]

_HOMES = {
    "MemView": "memwidget.show.view",
    "Rule": "memwidget.trace.rules",
    "Trace": "memwidget.trace.trace",
    "MemoryLimitExceeded": "memwidget.answer.limits",
    "compare": "memwidget.answer.compare",
    "limit": "memwidget.guard",
    "monitor": "memwidget.guard",
    "load": "memwidget.session",
    "memtrace": "memwidget.session",
    "start": "memwidget.session",
    "stop": "memwidget.session",
    "tune_batch_size": "memwidget.answer.batch_size",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'memwidget' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register ``%%memtrace`` and its line magics (``%load_ext memwidget``)."""
    from memwidget.magic import load

    load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Remove what `load_ipython_extension` added."""
    from memwidget.magic import unload

    unload(shell)
