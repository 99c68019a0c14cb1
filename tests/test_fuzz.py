"""Twenty seconds of what `make fuzz` does for ten minutes."""

import subprocess
import sys

import pytest

SECONDS = 20


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the address space as Linux does")
def test_only_snapshot_errors_come_out_and_nothing_runs(root):
    done = subprocess.run(
        [sys.executable, root / "tests" / "fuzz.py", "--seconds", str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=20 * SECONDS,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert " 0 different failures" in done.stdout
