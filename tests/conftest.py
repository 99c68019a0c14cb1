"""What every test may use: where the project lies, and the small recordings it brings along."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the checkout's folder."""
    return ROOT


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of recordings that tests read."""
    return ROOT / "tests" / "data"
