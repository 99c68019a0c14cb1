"""The console script: ``memwidget demo | html FILE -o OUT | summary FILE | compare A B``.

Owns the command line and its exit statuses: 0, and 2 with one line on stderr for a bad file or argument.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from memwidget import __version__, units
from memwidget.recording import SnapshotError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwidget.trace.trace import Trace

SAMPLE = Path(__file__).parent / "sample.pickle.xz"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is returned, argparse's own errors leave with 2."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain once more at exit when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        return _failed(f"{error.filename or options.command}: {error.strerror or error}")
    except (SnapshotError, ValueError, RuntimeError) as error:
        return _failed(str(error))
    return status


def _failed(message: str) -> int:
    # Messages may quote a file's own text: one line, nothing that a terminal obeys.
    line = "".join(c if c.isprintable() else " " for c in message)
    print(f"memwidget: {line.removeprefix('memwidget: ')}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="memwidget", description="See where the GPU memory of PyTorch went.")
    parser.add_argument("--version", action="version", version=f"memwidget {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    html = commands.add_parser("html", help="write one offline page that shows a recording")
    _source(html)
    html.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="the page to write")
    html.add_argument("--theme", choices=("auto", "light", "dark"), default="auto")
    html.add_argument("--axis", choices=("events", "time"), default="events", help="what x counts")
    html.set_defaults(run=_html)

    summary = commands.add_parser("summary", help="print the peak and the call sites that made it")
    _source(summary)
    summary.set_defaults(run=_summary)

    compare = commands.add_parser("compare", help="print what differs between two recordings")
    compare.add_argument(
        "before", metavar="A", help=".pickle (also .gz .xz .zst), .memtrace, or torch.profiler's .json"
    )
    compare.add_argument("after", metavar="B", help="the same, of the other run")
    compare.add_argument("--rows", type=int, default=8, metavar="N", help="rows of each table (default: 8)")
    compare.set_defaults(run=_compare)

    demo = commands.add_parser("demo", help="look at a sample: a training step of a small transformer")
    demo.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="the page to write; a temporary file if left out"
    )
    demo.add_argument("--no-open", action="store_true", help="write the page without opening it")
    demo.set_defaults(run=_demo)
    return parser


def _source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help=".pickle (also .gz .xz .zst), .memtrace, or torch.profiler's .json"
    )
    parser.add_argument("--device", type=_device, help="such as 1 or cuda:1; the one with most bytes if left out")
    parser.add_argument("--capacity", type=parse_bytes, metavar="BYTES", help="what the device has, such as 80GiB")


def _device(written: str) -> int | str:
    return int(written) if written.isdecimal() else written


def parse_bytes(written: str) -> int:
    """Bytes from ``80GiB``, ``512 MiB`` or ``1073741824``."""
    try:
        return units.parse_bytes(written)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{written!r} is no number of bytes; write 80GiB or 85899345920") from None


def _load(options: argparse.Namespace) -> Trace:
    from memwidget.session import load

    try:
        return load(options.file, options.device, options.capacity)
    except SnapshotError as error:
        raise SnapshotError(f"{options.file}: {error}") from None


def _html(options: argparse.Namespace) -> int:
    from memwidget.show.export import to_html

    if options.output.exists() and options.output.samefile(options.file):
        return _failed(f"{options.output} is the recording itself; name another file for the page.")
    to_html(_load(options), options.output, theme=options.theme, axis=options.axis)
    print(options.output)
    return 0


def _summary(options: argparse.Namespace) -> int:
    from memwidget.show.text import summary

    return _print(summary(_load(options)))


def _compare(options: argparse.Namespace) -> int:
    from memwidget.answer.compare import compare

    before, after = (
        _load(argparse.Namespace(file=file, device=None, capacity=None)) for file in (options.before, options.after)
    )
    return _print(compare(before, after).summary(max(options.rows, 1)))


def _print(text: str) -> int:
    # A terminal that cannot write "…" shows a question mark instead of a traceback.
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))
    return 0


def _demo(options: argparse.Namespace) -> int:
    from memwidget.read import load_recording
    from memwidget.show.export import to_html
    from memwidget.trace.trace import Trace

    output = options.output or Path(tempfile.mkdtemp(prefix="memwidget-")) / "demo.html"
    to_html(Trace(load_recording(SAMPLE, name="sample: a small transformer")), output)
    print(output)
    if not options.no_open and not webbrowser.open(output.resolve().as_uri()):
        print("Open this page in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
