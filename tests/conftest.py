"""What every test may use: where the project lies, and the small recordings it brings along."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples everywhere, so that a test fails because of the code and not of the day; HYPOTHESIS_PROFILE=random
# looks for new ones, as does `make fuzz`.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the checkout's folder."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of recordings that tests read."""
    return ROOT / "tests" / "data"


def pytest_collection_modifyitems(items):
    """Mark browser tests by their folder and run slow tiers last: what is broken in the middle is seen first.

    Last also because Playwright leaves an event loop running in this thread until its session ends.
    """

    def tier(item):
        path = item.path.relative_to(ROOT / "tests").as_posix()
        if path.startswith("browser/"):
            item.add_marker("browser")
            return 3
        return {"test_package.py": 1, "test_notebooks.py": 2}.get(path, 0)

    items.sort(key=tier)
