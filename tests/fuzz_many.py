"""Recordings of few kinds of rows, by the ten thousand: small files that cost time wherever work is squared."""

import numpy as np

from memwidget.recording import ACTION, Annotations, Events, Frames, Labels, Recording, Spans

#: Rows; quadratic work on them takes minutes, any other a second.
MANY = 60_000


def events(action="alloc", **columns):
    """One event each microsecond, each at an address of its own."""
    found = Events.empty(MANY)
    found.action[:] = [ACTION[action]]
    found.address[:] = 4096 * (1 + np.arange(MANY))
    found.size[:], found.stream[:], found.pool[:] = 512, 0, 0
    found.time_us[:] = 1000 + np.arange(MANY)
    for name, values in columns.items():
        getattr(found, name)[:] = values
    return found


def nested(table, **columns):
    """Ranges that each lie within the one before."""
    found = table.empty(MANY)
    found.start_us[:] = 1000 + np.arange(MANY) // 2
    found.end_us[:] = 2_000_000 - np.arange(MANY)
    for name, values in columns.items():
        getattr(found, name)[:] = values
    return found


def labels():
    """Everything at one address."""
    found = Labels.empty(MANY)
    found.time_us[:], found.address[:], found.nbytes[:] = 1000 + np.arange(MANY), 4096, 512
    found.category[:], found.name[:] = 0, 1
    return found


def frames():
    """A line each."""
    return Frames(filename=np.zeros(MANY), line=np.arange(MANY), name=np.ones(MANY), source=np.full(MANY, -1))


def many(rng):
    """One such recording."""
    rows = np.arange(MANY)
    one = {"streams": [0]}
    parts = rng.choice(
        [
            lambda: {"annotations": nested(Annotations, name=1)},
            lambda: {"annotations": nested(Annotations, name=2)},
            lambda: {"annotations": nested(Annotations, name=1), "facts": {"phases": rows.tolist()}},
            lambda: {"facts": {"steps": (1000 + MANY - rows).tolist()}},
            lambda: {"spans": nested(Spans, kind=rng.randrange(4), name=1, flags=rng.randrange(4))},
            lambda: {"spans": nested(Spans, kind=1, name=1, thread=rows)},
            lambda: {"labels": labels()},
            lambda: {
                "events": {0: events(rng.choice(["oom", "segment_map", "segment_unmap", "segment_free", "other"]))}
            },
            lambda: {"events": {0: events("segment_alloc", size=2 << 20, stream=rows)}, "streams": rows.tolist()},
            lambda: {"events": {0: events(size=5 << 20, address=(6 << 20) * (MANY - rows))}},
            lambda: {"events": {0: events(address=4096)}},
            lambda: {
                "events": {0: events(stack=rows)},
                "frames": frames(),
                "stacks": np.arange(MANY + 1, dtype=np.int32),
                "stack_frames": rows.astype(np.int32),
            },
            lambda: {
                "events": {0: events(stack=0)},
                "frames": frames(),
                "stacks": np.array([0, MANY], np.int32),
                "stack_frames": rows.astype(np.int32),
            },
        ]
    )()
    return Recording(
        name="many",
        pools=[(0, 0)],
        strings=["f.py", "step", "ProfilerStep#1"],
        **{"events": {0: events()}, **one, **parts},
    )
