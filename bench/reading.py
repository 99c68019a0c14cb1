"""Measures reading: each job in a fresh process, its time and its memory's high water.

Owns the jobs that are set side by side. Run as a script it does one job and prints what it took as JSON.
"""

import gc
import json
import pickle
import statistics
import subprocess
import sys
import time
from pathlib import Path


class Refusing(pickle.Unpickler):
    """The yardstick: an unpickler that gives plain data only and checks nothing else."""

    def find_class(self, module, name):
        message = f"{module}.{name}"
        raise pickle.UnpicklingError(message)

    def persistent_load(self, pid):
        raise pickle.UnpicklingError(str(pid))


def bare(path):
    gc.disable()
    with Path(path).open("rb") as file:
        snapshot = Refusing(file).load()
    return len(snapshot["device_traces"])


def load(path):
    # Everything that load promises: stacks, block sizes to the byte, call sites.
    import memwidget

    trace = memwidget.load(path)
    return trace.n_blocks, int(trace.blocks["size"].sum()), trace.peak_allocated, next(iter(trace.by_site()))


def reload(path):
    # Only what `load` itself does: a trace answers its first question later.
    import memwidget

    return memwidget.load(path).name


def numpy_import(_):
    import numpy

    return numpy.__version__


def memwidget_import(_):
    import memwidget

    return memwidget.__version__


JOBS = {"bare": bare, "load": load, "reload": reload, "numpy": numpy_import, "memwidget": memwidget_import}


def high_water():
    """Return the bytes of memory this process had at most, from the kernel: rusage would count its parent in."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(job, path):
    """Do one job in a fresh process."""
    command = [sys.executable, __file__, job, str(path)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def side_by_side(first, second, rounds):
    """Run two (job, path) in turn; return both medians and the medians of the ratios second / first."""
    pairs = [(measure(*first), measure(*second)) for _ in range(rounds)]
    result = {}
    for what in ("seconds", "bytes"):
        a, b = [p[0][what] for p in pairs], [p[1][what] for p in pairs]
        ratio = statistics.median(y / x for x, y in zip(a, b, strict=True))
        result[what] = statistics.median(a), statistics.median(b), ratio
    return result


if __name__ == "__main__":
    job, path = sys.argv[1:]
    if job == "memwidget":
        import numpy  # noqa: F401  only what comes on top of it counts
    elif job in {"load", "reload"}:
        # Loaded on first use; imports have a row of their own.
        import memwidget.read
        import memwidget.session
        import memwidget.trace.trace  # noqa: F401
    start = time.perf_counter()
    JOBS[job](path)
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": high_water()}))
