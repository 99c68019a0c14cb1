"""Feed the readers what no writer wrote: ``make fuzz``, or ``python tests/fuzz.py --seconds 600 --seed anything``.

Only SnapshotError may come out of a reader; what is let through must have an answer to every question. The cases run
in a child process with a bounded address space, a deadline each, and a trap for anything that a file could have run.
Cases that fail are named by number and written to ``fuzz-failures/``; ``--case NUMBER`` runs one again.
"""

import argparse
import faulthandler
import pickle
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAILURES = HERE.parent / "fuzz-failures"
#: Seconds a case may take: most take a tenth of one.
DEADLINE = 60
#: Bytes above what the process has when everything is loaded; files are below 1 MB, and unpack to a few.
ROOM = 1 << 30
#: Different failures after which a run gives up.
MOST = 20

#: What a file could make a process do, as the interpreter's own audit names it. "open" counts where it would write.
FORBIDDEN = ("pickle.find_class", "os.", "subprocess.", "socket.", "ctypes.", "shutil.", "exec", "code.__new__")
HARMLESS = ("os.listdir", "os.scandir")
TIMELINE = "timeline.json"


class Trap:
    """Collects what should not have happened."""

    def __init__(self):
        self.caught = []
        self.armed = False
        sys.addaudithook(self._hear)

    def _hear(self, event, arguments):
        if not self.armed:
            return
        # The checks write one file themselves.
        writes = (
            event == "open"
            and isinstance(arguments[1], str)
            and set(arguments[1]) & set("wax+")
            and not str(arguments[0]).endswith(TIMELINE)
        )
        if writes or (event.startswith(FORBIDDEN) and event not in HARMLESS):
            self.caught.append((event, str(arguments)[:200]))


def child(seed, first, seconds, folder):
    """Run cases from number `first` on."""
    import resource

    import zstandard  # noqa: F401  (beforehand: what is measured is the reading)

    from fuzz_cases import Cases

    cases, trap = Cases(seed, folder), Trap()
    for call in cases.calls:  # the trap works, and so does the canary
        trap.armed = True
        pickle.loads(call)
        trap.armed = False
        assert trap.caught
        trap.caught.clear()
    ran = sorted(folder.glob("ran*"))
    assert len(ran) == len(cases.calls), ran
    for path in ran:
        path.rmdir()
    for recording, snapshot in zip(cases.recordings, cases.snapshots, strict=True):  # lazy imports, caches
        attempt(recording, random.Random(0), folder)
        for protocol in range(6):
            attempt(pickle.dumps(snapshot, protocol), random.Random(0), folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM,) * 2)
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        print(f"case {number}", flush=True)
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        source, kind = cases.case(number)
        error = run(source, seed, number, folder, trap)
        faulthandler.cancel_dump_traceback_later()
        if error:
            print(f"failed {kind}: {error}", flush=True)
        number += 1
    print("done", flush=True)


def run(source, seed, number, folder, trap):
    """Run one case; what went wrong, in one line, or nothing."""
    rng = random.Random(f"{seed}/{number}/check")
    try:
        trap.armed = True
        attempt(source, rng, folder)
    except Exception as error:  # noqa: BLE001
        trap.armed = False
        place = traceback.extract_tb(error.__traceback__)
        inner = next((f for f in reversed(place) if "memwidget" in f.filename), place[-1])
        traceback.print_exc()
        return f"{type(error).__name__} at {Path(inner.filename).name}:{inner.lineno}: {str(error)[:200]!r}"
    finally:
        trap.armed = False
    if trap.caught or any(folder.glob("ran*")):
        return f"it ran: {trap.caught}"
    return ""


def attempt(source, rng, folder):
    """Read; ask everything of what was read."""
    from fuzz_checks import check
    from memwidget.read import load_recording
    from memwidget.recording import Recording, SnapshotError

    try:
        recording = source if isinstance(source, Recording) else load_recording(source)
    except SnapshotError as error:
        said = str(error)
    else:
        check(recording, rng, folder)
        return
    assert said.endswith("."), said
    assert "\n" not in said
    assert "more memory than there is" not in said


def main():
    """Run children one after the other until the time is up; the exit status says whether all went well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--case", type=int, help="run this one only")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.seed, given.child, given.seconds, given.folder)
        return 0
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        number, failed = parent(given, Path(folder))
    print(f"{number:,} cases, {len(failed)} different failures, seed {given.seed}")
    return 1 if failed else 0


def parent(given, folder):
    """Start children until the time is up: how many cases ran, and the failures by place."""
    failed = {}
    number = given.case or 0
    end = time.monotonic() + given.seconds
    while True:
        seconds = 0.001 if given.case is not None else end - time.monotonic()
        command = [sys.executable, "-W", "error", __file__, "--seed", given.seed, "--child", str(number)]
        command += ["--seconds", str(seconds), "--folder", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        last = ""
        for line in process.stdout:
            last, said = line.strip(), line.partition(" ")
            if said[0] == "case":
                number = int(said[2])
            elif said[0] == "failed":
                note(failed, said[2].strip(), given.seed, number, folder)
        if process.wait() or last != "done":
            if not last:
                raise SystemExit("the child did not start")
            note(failed, f"the process died ({process.returncode}): deadline, or a crash", given.seed, number, folder)
        number += 1
        if given.case is not None or time.monotonic() > end - 1 or len(failed) >= MOST:
            return number, failed


def note(failed, what, seed, number, folder):
    """Keep a failure that was not seen before."""
    place = what.split(": ")[1] if ": " in what else what
    if place in failed:
        return
    failed[place] = number
    print(f"case {number} failed: {what}", flush=True)
    sys.path.insert(0, str(HERE))
    from fuzz_cases import Cases

    FAILURES.mkdir(exist_ok=True)
    source, _ = Cases(seed, folder).case(number)
    content = source if isinstance(source, bytes) else pickle.dumps(source)
    (FAILURES / f"{seed}-{number}.bin").write_bytes(content)


if __name__ == "__main__":
    sys.exit(main())
