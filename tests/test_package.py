"""The wheel and the sdist hold what people need, and the wheel works alone, without torch and without Node."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

BUNDLE = {
    f"memwidget/show/static/{name}"
    for name in ("widget.js", "more.js", "widget.css", "standalone.js", "compare.js", "compare_page.js")
}
SAMPLE = "memwidget/sample.pickle.xz"


@pytest.fixture(scope="session")
def archives(tmp_path_factory, root):
    """Build the sdist, and the wheel from the sdist as an installer would; no network while the bundle is there."""
    out = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        str(out),
        str(root),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def required_by(name, seen):
    """Collect the distributions that `name` needs, without extras, as pip would."""
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        required_by(requirement.name, seen)
    return seen


@pytest.fixture(scope="session")
def installed(archives, tmp_path_factory):
    """Install the wheel in an environment that holds what its metadata asks for and nothing else.

    The dependencies are links to the ones installed here, found through their metadata: no download, and one that is
    used but not declared is missed.
    """
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(archives[1])]
    subprocess.run(pip, capture_output=True, check=True)
    for name in required_by("memwidget", set()):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in {"..", "__pycache__"} and not (site / top).exists():
                (site / top).symlink_to(distribution(name).locate_file(top))
    return home


def run(installed, *command, **options):
    return subprocess.run(
        [str(installed / "bin" / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        cwd=installed,
        check=False,
        **options,
    )


def test_wheel_holds_bundle_sample_and_types(archives):
    with zipfile.ZipFile(archives[1]) as wheel:
        sizes = {info.filename: info.file_size for info in wheel.infolist()}
        metadata = wheel.read("memwidget-0.1.0.dist-info/METADATA").decode()
    wanted = BUNDLE | {SAMPLE, "memwidget/py.typed", "memwidget/show/page.html"}
    assert wanted <= sizes.keys()
    assert all(sizes[name] > 0 for name in wanted - {"memwidget/py.typed"})
    assert "memwidget-0.1.0.dist-info/licenses/LICENSE" in sizes
    assert {name.split("/")[0] for name in sizes} == {"memwidget", "memwidget-0.1.0.dist-info"}
    assert sum(sizes.values()) < 3_000_000
    assert "License-Expression: BSD-3-Clause" in metadata
    assert not [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist: torch") and "extra" not in line
    ]


def test_sdist_holds_sources_and_bundle(archives):
    with tarfile.open(archives[0]) as sdist:
        names = {name.split("/", 1)[-1] for name in sdist.getnames()}
    assert {f"src/{name}" for name in BUNDLE} <= names
    assert {
        "js/package-lock.json",
        "js/build.mjs",
        "js/src/widget.ts",
        "hatch_build.py",
        "LICENSE",
        "README.md",
    } <= names
    assert "tests/test_package.py" in names
    assert not [name for name in names if "node_modules" in name or "__pycache__" in name]


def test_wheel_alone_reads_the_sample(installed):
    code = (
        "import pathlib, sys, memwidget\n"
        "trace = memwidget.load(pathlib.Path(memwidget.__file__).parent / 'sample.pickle.xz')\n"
        "assert trace.n_blocks > 0 and trace.peak_allocated > 0\n"
        "trace.to_html('page.html')\n"
        "print('torch' in sys.modules)\n"
    )
    done = run(installed, "python", "-W", "error", "-c", code)
    assert (done.stdout, done.stderr, done.returncode) == ("False\n", "", 0)
    assert (installed / "page.html").read_text("utf-8").count("</html>") == 1


def test_wheel_alone_summarises_the_sample(installed):
    (sample,) = installed.rglob(Path(SAMPLE).name)
    done = run(installed, "memwidget", "summary", str(sample))
    assert done.returncode == 0, done.stderr
    assert "peak" in done.stdout


def test_recording_without_torch_says_what_to_install(installed):
    done = run(installed, "python", "-c", "import memwidget\nwith memwidget.memtrace(): pass")
    assert done.returncode != 0
    assert "pip install torch" in done.stderr.splitlines()[-1]
