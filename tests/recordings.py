"""Recordings for tests: when two are equal, and random snapshots as no allocator but every pickle could hold."""

from dataclasses import fields

import numpy as np

from memwidget.read import load_recording
from memwidget.recording import Recording, SnapshotError, Table

#: EMPTY_DICT MEMOIZE MARK, the start of a record, where none is: in a string and as a number.
DECOY = b"}\x94("


def difference(left: Recording, right: Recording, *, skip=()):
    """What is not the same in two recordings: empty when they are equal."""
    found = []
    for field in fields(Recording):
        if field.name in {"events", *skip}:
            continue
        found += _difference(field.name, getattr(left, field.name), getattr(right, field.name))
    if list(left.events) != list(right.events):
        return [*found, f"events of devices {list(left.events)} and {list(right.events)}"]
    for device in left.events:
        found += _difference(f"events {device}", left.events[device], right.events[device])
    return found


def outcome(source):
    """What reading comes to: the Recording, or the sentence of its SnapshotError. Anything else is a failure."""
    try:
        return load_recording(source)
    except SnapshotError as error:
        return str(error)


def assert_alike(left, right):
    """Two outcomes are equal recordings or the same sentence."""
    if isinstance(left, str) or isinstance(right, str):
        assert left == right
    else:
        assert difference(left, right) == []


def _difference(name, left, right):
    if isinstance(left, Table):
        columns = [field.name for field in fields(left)]
        return [x for c in columns for x in _difference(f"{name}.{c}", getattr(left, c), getattr(right, c))]
    same = left.dtype == right.dtype and np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right
    return [] if same else [name]


def random_snapshot(random, n=400, *, odd=0.0):
    """A snapshot with `n` events; `odd` is the share of events that hold something unexpected."""
    files = ["train.py", "modèle.py", DECOY.decode("latin-1") + ".py", "??"]
    frames = [
        {"name": f"f{i}", "filename": random.choice(files), "line": random.choice([0, i, 255, 70000, 0x28947D])}
        for i in range(random.randint(1, 400))
    ]
    shared = [random.choices(frames, k=random.choice([0, 1, 2, 5, 40])) for _ in range(12)]

    def stack():
        kind = random.random()
        if kind < 0.5:
            return random.choice(shared)
        if kind < 0.9:  # equal content, another list
            return list(random.choice(shared))
        return random.choices(frames, k=random.randint(0, 8))

    recent = [[]]
    pools = [(0, 0), (1, 0), (0, 2**40)]
    texts = ["N/A", "Torch-Compiled Region: 3/0", ""]
    styles = random.choice([("time_us", "compile_context", "user_metadata"), ("time_us",), (), ("pool_id", "time_us")])

    def event():
        action = random.choice(["alloc", "alloc", "free_requested", "free_completed", "segment_alloc", "oom"])
        address = random.choice([random.getrandbits(47), 2**63 + random.getrandbits(40), 2**64 - 1, 0x28947D, 5])
        size = random.choice([0, 1, 255, 256, 70000, 0x28947D, 2**31, 2**33 + 5, 2**53])
        found = {"action": action, "device_free" if action == "oom" else "addr": address, "size": size}
        found["stream"] = random.choice([0, 0, 0, 0x7F0028947D, 2**64 - 5])
        for key in styles:
            found[key] = {
                "time_us": random.choice([0, 1700000000000000 + random.getrandbits(30)]),
                # Equal strings that are different objects are pickled anew, as torch's are.
                "compile_context": "".join(list(random.choice(texts))),
                "user_metadata": random.choice(texts),
                "pool_id": random.choice([random.choice(pools), (*random.choice(pools),)]),
            }[key]
        kind = random.random()
        if kind < 0.5:
            found["frames"] = stack()
            recent.append(found["frames"])
        elif kind < 0.9:
            found["frames"] = random.choice(recent[-20:])
        if random.random() < odd:
            key = random.choice([*found, "new_key", "frames"])
            found[key] = random.choice(
                [None, "unheard_of", True, -1, 2**70, 1.5, [], [3], {}, ((),), pools[0], "é\ud800"]
            )
        if random.random() < odd:
            found.pop(random.choice(list(found)))
        return found

    traces = [[event() for _ in range(random.choice([0, 1, 2, n, n]))] for _ in range(random.choice([1, 1, 2, 3]))]
    block = {"address": 4096, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": stack()}
    segment = {
        "device": 0,
        "address": 4096,
        "total_size": 512,
        "stream": 0,
        "segment_type": "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": shared[0],
        "blocks": [block],
    }
    return {"segments": [segment], "device_traces": traces}
