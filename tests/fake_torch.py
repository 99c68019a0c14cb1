"""A small torch with a CUDA history, as far as the recorder can see it, in the shape of any version from 2.0 on.

Only the calls are fake: what they return is laid out as torch lays it out.
"""

import importlib.machinery
import inspect
import time
import types

WORDS = ("enabled", "context", "stacks", "max_entries", "device")
#: Parameters of torch.cuda.memory._record_memory_history by version.
PARAMETERS = {
    "2.0": (
        "enabled",
        "record_context",
        "trace_alloc_max_entries",
        "trace_alloc_record_context",
        "device",
        "_enable_expensive_cpp",
    ),
    "2.1": WORDS,
    "2.7": WORDS,
    "2.8": (*WORDS, "clear_history", "compile_context", "global_record_annotations"),
    "2.11": (*WORDS, "clear_history", "compile_context", "global_record_annotations", "skip_actions"),
    "2.14": (
        *WORDS,
        "clear_history",
        "compile_context",
        "global_record_annotations",
        "skip_actions",
        "record_pinned_host_memory",
        "record_cuda",
    ),
}
#: torch.xpu.memory has a history since 2.11, without a device and without annotations.
XPU_PARAMETERS = ("enabled", "context", "stacks", "max_entries", "clear_history", "skip_actions")
SEGMENT = 2 << 20
CAPACITY = 80 << 30


def number(version):
    return tuple(map(int, version.split(".")))


def make(version="2.11", kind="cuda", *, allocator="native", available=True, takes=None):
    """A module that stands in for torch; `module.calls` lists what was asked of the history.

    `takes`: parameters of its ``_record_memory_history``, where they are not those of the version.
    ``torch.meanwhile`` is called between a snapshot's history and its segments, where another thread may allocate.
    ``torch.second`` holds the events of a device 1.
    """
    takes = takes or (XPU_PARAMETERS if kind == "xpu" else PARAMETERS[version])
    torch = types.ModuleType("torch")
    torch.__spec__ = importlib.machinery.ModuleSpec("torch", None)
    torch.__version__ = version
    torch.calls = []
    torch.fail_on = lambda **_: None
    torch.snapshot_error = None
    torch.on = False
    torch.limit = 1 << 60
    torch.trace = []
    torch.live = {}
    torch.second = []
    torch.meanwhile = lambda: None
    torch.stats = dict.fromkeys(("allocation.all.allocated", "allocation.all.freed", "active.all.freed"), 0)
    torch._C = types.SimpleNamespace()
    torch.backends = types.SimpleNamespace()
    with_time = number(version) >= (2, 2)

    def note(action, address, size):
        if torch.on:
            entry = {"action": action, "addr": address, "size": size, "stream": 0}
            if with_time:
                entry["time_us"] = time.time_ns() // 1000
            if action != "snapshot":
                entry["frames"] = [{"filename": "train.py", "line": 7, "name": "step"}]
            torch.trace.append(entry)
            del torch.trace[: -torch.limit]

    def alloc(address, size):
        torch.live[address] = size
        torch.stats["allocation.all.allocated"] += 1
        note("alloc", address, size)

    def free(address):
        size = torch.live.pop(address)
        torch.stats["allocation.all.freed"] += 1
        note("free_requested", address, size)
        note("free_completed", address, size)

    def segments():
        blocks, at = [], 0
        for address, size in sorted(torch.live.items()):
            if address > at:
                blocks.append(
                    {"address": at, "size": address - at, "requested_size": 0, "state": "inactive", "frames": []}
                )
            blocks.append(
                {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
            )
            at = address + size
        blocks.append({"address": at, "size": SEGMENT - at, "requested_size": 0, "state": "inactive", "frames": []})
        return [
            {
                "device": 0,
                "address": 0,
                "total_size": SEGMENT,
                "allocated_size": sum(torch.live.values()),
                "active_size": sum(torch.live.values()),
                "stream": 0,
                "segment_type": "small",
                "blocks": blocks,
            }
        ]

    def record(*args, **kwargs):
        assert not args
        unknown = set(kwargs) - set(takes)
        if unknown:
            raise TypeError(f"_record_memory_history() got an unexpected keyword argument {unknown.pop()!r}")
        torch.calls.append(kwargs)
        torch.fail_on(**kwargs)
        torch.on = bool(kwargs["enabled"])
        if not torch.on or kwargs.get("clear_history"):
            torch.trace.clear()
        torch.limit = kwargs.get("max_entries", kwargs.get("trace_alloc_max_entries", 1 << 60))

    record.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in takes]
    )

    def snapshot():
        if torch.snapshot_error is not None:
            raise torch.snapshot_error
        traces = [list(torch.trace), *([list(torch.second)] if torch.second else [])]
        torch.meanwhile()
        given = {"segments": segments(), "device_traces": traces, "allocator_settings": {}}
        note("snapshot", 0, sum(torch.live.values()))
        return given

    def light_snapshot(*, include_traces):
        assert not include_traces
        given = segments()
        note("snapshot", 0, sum(torch.live.values()))
        return given

    memory = types.SimpleNamespace(
        _record_memory_history=record,
        _snapshot=snapshot,
        memory_snapshot=light_snapshot if number(version) >= (2, 11) else segments,
        get_allocator_backend=lambda: allocator,
    )
    device = types.SimpleNamespace(
        memory=memory,
        is_available=lambda: available,
        init=lambda: None,
        device_count=lambda: 2 if torch.second else 1,
        memory_stats=lambda _=0: dict(torch.stats),
        get_device_name=lambda _=0: "Fake H200",
        get_device_properties=lambda ordinal=0: types.SimpleNamespace(total_memory=CAPACITY + ordinal),
    )
    setattr(torch, kind, device)
    if with_time and kind == "cuda":  # XPU cannot be asked
        torch._C._cuda_isHistoryEnabled = lambda: torch.on
    torch.alloc, torch.free = alloc, free
    return torch
