"""The text of the lines in a recording's stacks, taken while it can be had.

A notebook cell's text lives in linecache only as long as its kernel, and a file may change under a saved trace: what
the line said is stored with the recording. Only lines of the user's own code: the rest is a package's, to be found by
its version.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig

import numpy as np

from memwidget.recording import Recording

#: Longest text kept of one line: enough to read, and a minified file's megabyte line stays out.
MAX_CHARS = 300
#: Most frames looked up. Far above the distinct user lines of real recordings (tens to hundreds).
MAX_FRAMES = 5_000

_PACKAGES = ("site-packages", "dist-packages")
_STDLIB = tuple(p + os.sep for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if p)


def user_file(filename: str) -> bool:
    """Whether `filename` looks like the user's own Python code, not a package's, the interpreter's or C++."""
    if (
        not filename
        or filename == "??"
        or filename.startswith("<frozen")
        or filename.endswith((".cpp", ".h", ".c", ".so"))
    ):
        return False
    return not any(part in filename for part in _PACKAGES) and not filename.startswith(_STDLIB)


def store_sources(recording: Recording) -> None:
    """Fill `recording.frames.source` for lines of the user's own code that linecache knows."""
    frames, strings = recording.frames, recording.strings
    wanted = np.zeros(len(strings), bool)
    for index in np.unique(frames.filename):
        wanted[index] = user_file(strings[index])
    rows = (
        np.flatnonzero(wanted[frames.filename] & (frames.source < 0) & (frames.line > 0))
        if len(frames)
        else np.zeros(0, np.intp)
    )
    known: dict[str, int] = {}
    for row in rows[:MAX_FRAMES]:
        text = linecache.getline(strings[frames.filename[row]], int(frames.line[row])).strip()[:MAX_CHARS]
        if text:
            if text not in known:
                known[text] = len(strings)
                strings.append(text)
            frames.source[row] = known[text]


def cell_names(recording: Recording) -> dict[str, str]:
    """File name of each notebook cell in the recording -> "cell 3", while the kernel still knows."""
    ipython = sys.modules.get("IPython")  # a script has none, and this is no place to load it
    shell = ipython.get_ipython() if ipython is not None else None
    known = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return {file: f"cell {known[file]}" for file in sorted(set(recording.strings) & set(known))}
