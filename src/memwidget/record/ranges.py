"""Named time ranges of the recorded code, as rows of a Recording's annotations."""

from __future__ import annotations

import numpy as np

from memwidget.recording import Annotations, Recording


def add_ranges(recording: Recording, ranges: list[tuple[str, int, int]]) -> list[int]:
    """Append named ranges (name, start and end in us since the epoch) to the annotations; returns their rows."""
    old = recording.annotations
    rows: Annotations = Annotations.empty(len(ranges))
    names: dict[str, int] = {}
    for row, (name, start, end) in enumerate(sorted(ranges, key=lambda r: (r[1], -r[2]))):
        if name not in names:
            names[name] = len(recording.strings)
            recording.strings.append(name)
        rows.name[row], rows.start_us[row], rows.end_us[row] = names[name], start, end
    joined = {
        column.name: np.concatenate([getattr(old, column.name), getattr(rows, column.name)])
        for column in Annotations.columns()
    }
    recording.annotations = Annotations(**joined)
    return list(range(len(old), len(old) + len(rows)))
