"""One Chromium and one JupyterLab for all browser tests; both watched.

Every request and every console message of a page is seen: one that leaves this machine, an error on the console or
an uncaught exception fails the test that opened the page.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import nbformat
import pytest
from playwright.sync_api import sync_playwright

from chromium import launch

#: Server start takes 5 s on two slow cores, the page 8 s, a kernel that imports torch 10 s.
PATIENCE_S = 120
HERE = {"127.0.0.1", "localhost"}


@pytest.fixture(scope="session")
def chromium():
    """Start Chromium once."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """Give a function that opens a watched page; what it saw is judged when the test is over."""
    contexts, problems = [], []

    def open_page(url, *, lab=False, viewport=(1400, 900), **options):
        width, height = viewport
        context = chromium.new_context(viewport={"width": width, "height": height}, offline=not lab, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1000)

        def saw(address):
            parts = urlsplit(address)
            if parts.scheme in {"http", "https", "ws", "wss"} and not (lab and parts.hostname in HERE):
                problems.append(f"request to {address}")

        context.on("request", lambda request: saw(request.url))

        def uncaught(error):
            # JupyterLab's own scripts lose a race now and then while outputs go; ours come from blob: and file: URLs.
            stack = error.error.stack or ""
            if not (lab and "/static/lab/" in stack and "blob:" not in stack):
                problems.append(f"uncaught: {stack or error.error}")

        context.on("weberror", uncaught)
        context.on("console", lambda said: problems.append(f"console: {said.text}") if said.type == "error" else None)
        page = context.new_page()
        page.on("websocket", lambda socket: saw(socket.url))
        page.goto(str(url))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not problems


#: The indicator in the toolbar says "idle" before there is a kernel, and a run asked for too early is lost.
CONNECTED = """async () => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  await context?.ready;
  const kernel = context?.session?.kernel;
  await kernel?.info;
  return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""

RUN = """async cells => {
  const { commands, shell } = window.jupyterapp;
  for (const index of cells) {
    shell.currentWidget.content.activeCellIndex = index;
    await commands.execute("notebook:run-cell");
  }
  if (cells.length === 0) await commands.execute("notebook:run-all-cells");
}"""


class Lab:
    """A running JupyterLab and the folder it serves."""

    def __init__(self, root, url, token):
        self.root, self.url, self.token = root, url, token

    def open(self, open_page, name, *cells, **options):
        """Open a fresh notebook of code cells and wait until its kernel listens."""
        page = open_page(self._notebook(name, *cells), lab=True, **options)
        page.locator(".jp-Notebook .jp-CodeCell").nth(len(cells) - 1).wait_for()
        page.wait_for_function(CONNECTED)
        return page

    @staticmethod
    def run(page, *cells):
        """Run the cells of these numbers, all if none is given, by JupyterLab's own command; back when they are done.

        A click into an output selects its cell, so the cell to run is always named.
        """
        page.evaluate(RUN, list(cells))

    def _notebook(self, name, *cells):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, self.root / name)
        return f"{self.url}/lab/tree/{name}?token={self.token}&reset"


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    """Start JupyterLab with settings of its own: none of this user's, and no news pop-up over the page."""
    home = tmp_path_factory.mktemp("lab")
    root = home / "root"
    root.mkdir()
    apputils = home / "settings" / "@jupyterlab" / "apputils-extension"
    apputils.mkdir(parents=True)
    news = {"fetchNews": "false", "checkForUpdates": False}
    (apputils / "notification.jupyterlab-settings").write_text(json.dumps(news), "utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    log = home / "server.log"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=t"]
    command += [f"--ServerApp.root_dir={root}", "--LabApp.extension_manager=readonly"]
    command += ["--LabApp.expose_app_in_browser=True"]  # window.jupyterapp: tells when a kernel is really connected
    with log.open("w") as out:
        server = subprocess.Popen(command, env=env, cwd=root, stdout=out, stderr=subprocess.STDOUT)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + PATIENCE_S
    while not answers(f"{url}/api"):
        assert server.poll() is None, log.read_text("utf-8")
        assert time.monotonic() < deadline, log.read_text("utf-8")
    yield Lab(root, url, "t")
    server.terminate()
    server.wait(PATIENCE_S)


def answers(url):
    """Whether the server answers; a refused connection comes back at once, so wait a little before asking again."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        time.sleep(0.2)
        return False
