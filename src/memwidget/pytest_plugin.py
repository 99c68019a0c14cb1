"""A marker for tests: ``@pytest.mark.memwidget_limit(peak="2 GiB", growth="0 B/step", held=0)``.

Takes what `memwidget.limit` takes; the test fails with the lines and bytes that went over.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        'memwidget_limit(peak="2 GiB", growth="0 B/step", held=0): fail the test if its memory goes over',
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record a marked test and hold it to its limits."""
    marker = item.get_closest_marker("memwidget_limit")
    if marker is None:
        return (yield)
    from memwidget.guard import limit

    try:
        limits = limit(*marker.args, **marker.kwargs)
    except (TypeError, ValueError) as error:
        raise pytest.UsageError(f"memwidget_limit of {item.name}: {error}") from None
    with limits:
        return (yield)
