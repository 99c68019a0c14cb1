"""What the tests of patterns share: code recorded on the CPU, and its findings by kind. KiB stand for MiB."""

import torch

import memwidget as mw

KiB = 1024
UNUSUAL = {"growth", "held", "spike", "fragmentation", "pending_free"}


def buf(n):
    return torch.empty(n * KiB, dtype=torch.uint8)


def traced(code, **options):
    """Trace of a function, with what it returns kept until the recording has ended."""
    with mw.memtrace(backend="cpu", **options) as rec:
        kept = code(rec) if code.__code__.co_argcount else code()
    del kept
    return rec.trace


def record(code, **options):
    """Findings of a function, with what it returns kept until the recording has ended."""
    return traced(code, **options).findings()


def of_kind(found, *kinds):
    return [f for f in found if f.kind in kinds]


def the_line(finding):
    """Source of the line, as stored with the recording."""
    return finding.site.source
