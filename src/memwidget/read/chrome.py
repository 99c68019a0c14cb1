"""A Chrome trace from ``export_chrome_trace`` -> what ran, and what it did to memory.

Owns the format: an object with "traceEvents" (or that array alone), in which ``[memory]`` is an instant event with the
block's address, its bytes (negative: freed), the device and the allocator's totals, and operators, Python functions
and named ranges are complete events with a start and a duration. Everything else in the file (GPU kernels, flows,
counters) is stepped over. Times are microseconds with fractions, after "baseTimeNanoseconds".
"""

from __future__ import annotations

from typing import Any

from memwidget.read.jsonstream import Stream, text
from memwidget.read.nesting import MAX_BYTES, MAX_TIME_NS, OPERATOR, PYTHON, RANGE, Profile
from memwidget.recording import MAX_DEVICE, SnapshotError

_KINDS = {"cpu_op": OPERATOR, "python_function": PYTHON, "user_annotation": RANGE, "Operator": OPERATOR}


def read_chrome(stream: Stream) -> Profile:
    """Read a Chrome trace; SnapshotError where it is none."""
    profile = Profile()
    base = 0
    if stream.peek() == "[":
        for event in stream.elements():
            _event(profile, event)
    else:
        seen = False
        for key in stream.members():
            if key == "traceEvents" and not seen and stream.peek() == "[":
                seen = True
                for event in stream.elements():
                    _event(profile, event)
            elif key == "traceEvents":
                raise SnapshotError("traceEvents of the Chrome trace should be one array; export it again.")
            elif key == "baseTimeNanoseconds":
                base = stream.value()
                if type(base) is not int or not 0 <= base <= MAX_TIME_NS // 2:
                    raise _bad("baseTimeNanoseconds", "a time in nanoseconds")
            else:
                stream.skip()
        if not seen:
            raise SnapshotError(
                "This is JSON, but no file of torch.profiler: it has no traceEvents. torch writes memory snapshots as "
                "pickle: use torch.cuda.memory._dump_snapshot()."
            )
    stream.end()
    profile.base = base
    return profile


def _event(profile: Profile, event: Any) -> None:
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        raise _bad("an event", "an object with a phase")
    phase = event["ph"]
    if phase == "X":
        kind = _KINDS.get(event.get("cat") or "") if isinstance(event.get("cat"), str) else None
        if kind is None:
            return
        name = event.get("name")
        if not isinstance(name, str):
            raise _bad("name of an event", "text")
        # A function of Python's own is always called from one that has a line.
        if kind == PYTHON and name.startswith("<built-in"):
            return
        start, duration = _nanoseconds(event.get("ts"), "ts"), _nanoseconds(event.get("dur", 0), "dur")
        profile.add_span(_thread(profile, event), (start, start + duration), kind, text(name))
    elif phase == "i" and event.get("name") == "[memory]":
        args = event.get("args")
        if not isinstance(args, dict):
            raise _bad("args of [memory]", "an object")
        device = _whole(args, "Device Type", -1, 127), _whole(args, "Device Id", -1, MAX_DEVICE)
        profile.add_memory(
            _thread(profile, event),
            _nanoseconds(event.get("ts"), "ts"),
            device,
            _whole(args, "Addr", 0, 2**64 - 1),
            _whole(args, "Bytes", -MAX_BYTES, MAX_BYTES),
            (_total(args, "Total Allocated"), _total(args, "Total Reserved")),
        )


def _thread(profile: Profile, event: dict[str, Any]) -> int:
    key = event.get("pid"), event.get("tid")
    try:
        return profile.threads[key]
    except (KeyError, TypeError):  # a new one, or none at all
        pass
    if not all(isinstance(part, (int, str)) for part in key):
        raise _bad("pid and tid of an event", "numbers")
    return profile.thread_number(key)


def _nanoseconds(value: Any, name: str) -> int:
    if (type(value) is int or type(value) is float) and 0 <= value <= MAX_TIME_NS // 2000:  # NaN is neither
        return round(value * 1000)
    raise _bad(f"{name} of an event", "a time in microseconds")


def _whole(args: dict[str, Any], name: str, low: int, high: int) -> int:
    value = args.get(name)
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"{name} of [memory]", "a number in range")
    return value


def _total(args: dict[str, Any], name: str) -> int:
    value = args.get(name)
    return value if type(value) is int and 0 <= value <= MAX_BYTES else -1


def _bad(what: str, expected: str) -> SnapshotError:
    return SnapshotError(f"{what} in the Chrome trace should be {expected}; export it again.")
