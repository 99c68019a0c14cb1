"""Where Chromium is and how it is started; for the browser tests, the benchmark and the README's pictures."""

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: No sandbox: it cannot start as root, where CI runs. The rest keeps the browser from calling home.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium():
    """Return the path of a Chromium or Chrome; RuntimeError where there is none."""
    found = os.environ.get("MEMWIDGET_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        message = "no Chromium or Chrome found: install one, or set MEMWIDGET_CHROMIUM to its path"
        raise RuntimeError(message)
    return found


def launch(playwright, **options):
    """Start it headless."""
    return playwright.chromium.launch(executable_path=find_chromium(), args=ARGUMENTS, **options)
