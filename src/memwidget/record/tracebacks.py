"""An error's traceback without the recorder: whoever reads it looks for his own lines.

Owns taking out the frames through which recorded code runs while it is recorded.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

_RECORDER = str(Path(__file__).absolute().parent) + os.sep
#: Through this file a dispatch mode, as the CPU recorder's, calls the operator.
_OPERATORS = os.path.join("torch", "_ops.py")  # noqa: PTH118


def without_recorder(error: BaseException | None) -> None:
    """Take the recorder's frames out of an error's traceback in place, and of the errors' behind it and in it."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        each = errors.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        errors += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
        _shorten(each.__traceback__)


def _shorten(kept: TracebackType | None) -> None:
    ours = False
    while kept is not None and kept.tb_next is not None:
        inner = kept.tb_next
        file = inner.tb_frame.f_code.co_filename
        ours = file.startswith(_RECORDER) or (ours and file.endswith(_OPERATORS))
        if ours:
            kept.tb_next = inner.tb_next
        else:
            kept = inner
