"""``%%memtrace`` and its line magics.

Owns how a recording comes around a cell without changing what the cell does. Running the cell's text a second time
(``run_cell`` inside a cell magic) would lose its value, print twice, swallow its exception and refuse ``await``. So:

1. an input transformer turns the first line into a string literal, which keeps every line number and may stand
   before ``from __future__`` lines;
2. an AST transformer finds that literal at the top of the cell and puts calls around what follows::

       from __future__ import annotations      # stays first
       <begin>
       ...                                      # the cell's own statements, untouched
       <keep>(the last expression)
       <end>                                    # stops, shows the trace
       <take>                                   # an expression: the cell's value, for Out, _ and `;`

3. where an error keeps <end> from its turn, the recording ends as IPython sets out to show that error: the trace
   comes first, then the error as it was. (``try`` and ``finally`` around the statements would leave the frame's line
   number in ``finally``, and IPython shows that one.) Whatever ends a cell otherwise is caught after the cell.

Nothing here holds the cell's exception.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import keyword
import linecache
import re
import shlex
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import cell_magic
from IPython.core.magic import no_var_expand
from IPython.display import display

from memwidget import session
from memwidget.record import BACKENDS, CONTEXTS, STACKS, Options, RecorderError
from memwidget.record.holders import CellRuns, look
from memwidget.show.text import summary

if TYPE_CHECKING:
    from collections.abc import Callable

_MAGIC = "%%memtrace"
_FIRST_LINE = re.compile(r"^%%memtrace(?=\s|$)(.*)$")
#: How the code that is put into a cell finds its way back here, without a name in the user's namespace.
_DOOR = "__import__('sys').modules['memwidget.magic']._door"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}\n{self.format_usage().rstrip()}")


def _recording_options(parser: _Parser) -> None:
    parser.add_argument("--name", metavar="N", help="what to call the recording")
    parser.add_argument(
        "--stacks", choices=STACKS, default="python", help="Python frames, or C++ frames as well (default: python)"
    )
    parser.add_argument(
        "--context", choices=CONTEXTS, default="alloc", help="which events carry a stack (default: alloc)"
    )
    parser.add_argument("--max-entries", type=int, default=200_000, metavar="N", help="events kept (default: 200000)")
    parser.add_argument("--device", type=int, metavar="D", help="device to show (default: the one with most bytes)")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="allocator to record (default: a GPU's, else the CPU's)"
    )
    parser.add_argument("--deep", action="store_true", help="show the forward line of what backward makes (slower)")
    _showing_options(parser)


def _showing_options(parser: _Parser) -> None:
    parser.add_argument("--save", metavar="FILE", help="write FILE: .memtrace, or .pickle for torch's own viewer")
    parser.add_argument(
        "--static", action="store_true", help="show a page in a frame, stored in the notebook, and no widget"
    )
    parser.add_argument("--quiet", action="store_true", help="show nothing")


def _parser(prog: str, description: str, *, var: bool = True, recording: bool = True) -> _Parser:
    parser = _Parser(prog=prog, description=description, add_help=False, allow_abbrev=False)
    if var:
        parser.add_argument("var", nargs="?", metavar="VAR", help="receives the Trace")
    (_recording_options if recording else _showing_options)(parser)
    parser.add_argument("-h", "--help", action="store_true", help="show this and run nothing")
    return parser


_CELL = _parser("%%memtrace", "Record the memory that this cell uses, and show every block under it.")
_START = _parser("%memtrace_start", "Start to record; %memtrace_stop ends it, in any later cell.", var=False)
_STOP = _parser("%memtrace_stop", "End the recording that %memtrace_start began, and show it.", recording=False)


def _parse(parser: _Parser, line: str) -> argparse.Namespace | None:
    """The options in `line`; None where it asked for help, which is printed. UsageError for anything wrong."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        parser.error(f"{error} in {line.strip()!r}")
    if "-h" in words or "--help" in words:
        print(parser.format_help().rstrip())  # noqa: T201
        return None
    arguments = parser.parse_args(words)
    var = getattr(arguments, "var", None)
    if var is not None and (not var.isidentifier() or keyword.iskeyword(var)):
        parser.error(f"{var!r} cannot be the name of a variable")
    if arguments.static and arguments.quiet:
        parser.error("--static says how to show the trace and --quiet not to show it; leave one out")
    try:
        if "stacks" in arguments:
            Options(arguments.stacks, arguments.context, arguments.max_entries, arguments.device, arguments.backend)
        if arguments.save:
            session.save_target(arguments.save)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `session.memtrace` takes of the options."""
    return {
        name: getattr(arguments, name)
        for name in ("stacks", "context", "max_entries", "device", "backend", "deep", "save", "static")
    }


class _Cell:
    """One run of a cell: what the code in it calls."""

    def __init__(self, magics: Magics, arguments: argparse.Namespace) -> None:
        self._magics = magics
        self._arguments = arguments
        self._recorder = session.memtrace(arguments.name, **_options(arguments))
        self._recorder.on_end = self._look
        self._value: list[Any] = []
        self._file = ""
        self._show_error: Any = None

    @property
    def over(self) -> bool:
        """Nothing of it is left to do."""
        return not self._recorder.recording_now and not self._value

    def begin(self) -> None:
        """Start to record."""
        shell = self._magics.shell
        self._file = sys._getframe(2).f_code.co_filename  # noqa: SLF001
        self._recorder.name = self._recorder.name or f"cell {_cell_number(shell)}"
        _mend_first_line(self._file)
        try:
            self._recorder.begin()
        except RecorderError as error:
            raise UsageError(str(error)) from None
        self._show_error = shell.showtraceback
        shell.showtraceback = self._before_error

    def keep(self, value: Any) -> None:
        """Hold the last expression's value while the recording ends."""
        self._value.append(value)

    def end(self) -> None:
        """Stop, and show the trace."""
        if self._recorder.recording_now:
            self._magics.shell.showtraceback = self._show_error
            self._magics.finish(self._recorder, self._arguments)

    def _look(self, recorder: session.memtrace) -> None:
        """Note who holds what the cell leaves, and what its earlier runs left."""
        text = "".join(linecache.getlines(self._file)[1:])
        self._magics.look(recorder, text, self._value)

    def take(self) -> Any:
        """The last expression's value."""
        return self._value.pop()

    def abandon(self) -> None:
        """End it where neither `end` nor an error that IPython shows has done so."""
        if not _on_stack(sys._getframe(1), self._file):  # noqa: SLF001
            self.end()
            self._value.clear()

    def _before_error(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the shell's showtraceback: the trace first, then the error."""
        show = self._show_error
        if _in_traceback(sys.exc_info()[2], self._file):  # not one of a cell that this cell ran, and survived
            self.end()
            self._value.clear()
        return show(*args, **kwargs)


#: Cells on their way, by number; text: why one must not run.
_cells: dict[int, _Cell | str] = {}


def _door(number: int, action: str, *value: Any) -> Any:
    """Called by the code that was put into a cell."""
    cell = _cells.get(number)
    if isinstance(cell, str):
        del _cells[number]
        raise UsageError(cell)
    if cell is None:
        raise UsageError(
            "%%memtrace records one run of its cell, and another magic ran it again; leave that magic out."
        )
    try:
        return getattr(cell, action)(*value)
    finally:
        if action != "begin" and cell.over:
            del _cells[number]


class Magics:
    """Everything that ``%load_ext memwidget`` adds to a shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._literals: set[str] = set()
        self.started: argparse.Namespace | None = None
        self._count = 0
        self._runs = CellRuns()

    # -- the two transformers ----------------------------------------------------------------------------------------

    def first_line(self, lines: list[str]) -> list[str]:
        """Turn ``%%memtrace ...`` into a string literal on the same line."""
        found = _FIRST_LINE.match(lines[0].rstrip("\r\n")) if lines else None
        if found is None:
            return lines
        literal = _MAGIC + found.group(1).rstrip()
        self._literals.add(literal)
        rest = cell_magic(lines[1:]) if len(lines) > 1 else []  # type: ignore[no-untyped-call]
        return [f"{literal!r}\n", *rest]

    def visit(self, tree: ast.Module) -> ast.Module:
        """Wrap a cell that begins with such a literal; IPython calls this for every cell."""
        body = tree.body
        first = body[0] if body else None
        if (
            isinstance(first, ast.Expr)
            and isinstance(first.value, ast.Constant)
            and isinstance(first.value.value, str)
            and first.value.value in self._literals
        ):
            self._literals.discard(first.value.value)
            # Without the first line, or a docstring would stand second and `from __future__` below it be an error.
            rest = ast.Module(body[1:], [])
            if _compiles(self.shell, rest):  # else IPython says what is wrong with it, and nothing must begin
                tree.body = self._wrap(first.value.value.removeprefix(_MAGIC), first, body[1:])
        return tree

    def _wrap(self, line: str, first: ast.stmt, body: list[ast.stmt]) -> list[ast.stmt]:
        self._count += 1
        number = self._count

        def call(action: str, value: ast.expr | None = None, at: ast.AST = first) -> ast.Expr:
            statement = ast.parse(f"{_DOOR}({number}, {action!r})").body[0]
            assert isinstance(statement, ast.Expr)  # noqa: S101
            for node in ast.walk(statement):
                ast.copy_location(node, at)
            if value is not None:
                assert isinstance(statement.value, ast.Call)  # noqa: S101
                statement.value.args.append(value)
            return statement

        try:
            arguments = _parse(_CELL, _expanded(self.shell, line))
        except UsageError as error:
            _cells[number] = str(error)
            return [call("begin")]
        if arguments is not None and not body:
            _cells[number] = "%%memtrace records the cell below it, but this cell is empty."
            return [call("begin")]
        if arguments is None:
            return []
        # `from __future__` stays first; a docstring may stand before it.
        future = max((i + 1 for i, node in enumerate(body) if _is_future(node)), default=0)
        head, body = body[:future], body[future:]
        after: list[ast.stmt] = []
        style = getattr(self.shell, "ast_node_interactivity", "last_expr")
        if style == "last_expr_or_assign" and body:
            body = [*body, *_assigned(body[-1])]
        if style != "none" and body and isinstance(last := body[-1], ast.Expr):
            body = [*body[:-1], call("keep", last.value, last)]
            after = [call("take", at=last)]
        whole = [*head, call("begin"), *body, call("end"), *after]
        _cells[number] = _Cell(self, arguments)
        return whole

    def after_cell(self, *_: Any) -> None:
        """End what a cell left running."""
        for number, cell in list(_cells.items()):
            if not isinstance(cell, str):
                cell.abandon()
            if isinstance(cell, str) or cell.over:
                _cells.pop(number, None)

    # -- the magics --------------------------------------------------------------------------------------------------

    def cell(self, line: str, cell: str) -> Any:
        """Record a cell: only reached when another tool calls the magic by name, else `first_line` was there before."""
        return self._run(line, cell)

    def line(self, line: str) -> Any:
        """Record one statement: ``%memtrace train_step()``."""
        if not line.strip():
            raise UsageError("%memtrace records the statement behind it, %%memtrace a whole cell.")
        return self._run("", line)

    def _run(self, options: str, source: str) -> Any:
        shell = self.shell
        text = shell.transform_cell(source)
        tree = shell.compile.ast_parse(text)
        literal = ast.parse(repr(f"{_MAGIC} {options}".rstrip())).body[0]
        assert isinstance(literal, ast.Expr)  # noqa: S101
        assert isinstance(literal.value, ast.Constant)  # noqa: S101
        self._literals.add(str(literal.value.value))
        tree.body.insert(0, literal)
        tree = shell.transform_ast(tree)
        file = shell.compile.cache(text, _cell_number(shell), raw_code=source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        try:
            exec(compile(tree, file, "exec"), shell.user_ns)  # noqa: S102  (the user's own statement)
            return None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), shell.user_ns)  # noqa: S307
        finally:
            self.after_cell()

    def start(self, line: str) -> None:
        """Begin a recording that ends in a later cell."""
        arguments = _parse(_START, line)
        if arguments is None:
            return
        try:
            session.start(arguments.name or f"from cell {_cell_number(self.shell)}", **_options(arguments))
        except RuntimeError as error:
            raise UsageError(
                str(error).replace("start()", "%memtrace_start").replace("stop()", "%memtrace_stop")
            ) from None
        self.started = arguments

    def stop(self, line: str) -> None:
        """End it, and show what was recorded."""
        arguments = _parse(_STOP, line)
        if arguments is None:
            return
        try:
            recorder = session.started()
        except RuntimeError:
            raise UsageError("No recording runs: %memtrace_start begins one.") from None
        began, self.started = self.started, None
        if began is not None:
            arguments.static |= began.static
            arguments.quiet |= began.quiet and not arguments.static
        recorder.static = arguments.static
        recorder.on_end = lambda ended: self.look(ended, "", [])
        if arguments.save:
            recorder.save_as(arguments.save)
        self.finish(recorder, arguments)

    # -- who holds what -----------------------------------------------------------------------------------------------

    def look(self, recorder: session.memtrace, text: str, value: list[Any]) -> None:
        """Add to a recording who holds its memory now, and what earlier runs of the same cell left."""
        recording = recorder.recording
        assert recording is not None  # noqa: S101

        def around() -> set[int]:
            return recorder.kept().keys() | self._runs.addresses(text)

        rows = look(recording, self.shell, around, value, _cell_number(self.shell))
        if text.strip() and rows is not None:
            try:
                kept = recorder.kept()
                recording.facts["earlier_runs"] = self._runs.look(text, kept, rows, recording.device_type)
            except Exception as failure:  # noqa: BLE001  (a look at the user's objects must not cost the trace)
                recording.notes.append(f"Growth from run to run could not be followed: {type(failure).__name__}.")

    # -- afterwards --------------------------------------------------------------------------------------------------

    def finish(self, recorder: session.memtrace, arguments: argparse.Namespace) -> None:
        """End `recorder`, hand its trace to VAR, show it.

        Raises nothing: the cell's own error must be the one that shows.
        """
        try:
            try:
                recorder.end()
            finally:
                # Kept also when writing the file failed.
                if recorder.recording is not None and arguments.var:
                    self.shell.user_ns[arguments.var] = recorder.trace
        except Exception as error:  # noqa: BLE001
            self._say(error, recorder, arguments.var)
        if recorder.recording is None or arguments.quiet:
            return
        try:
            display(recorder.view())  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001
            self._say(error, recorder, arguments.var)
            print(summary(recorder.trace))  # noqa: T201

    def _say(self, error: Exception, recorder: session.memtrace, var: str | None) -> None:
        known = isinstance(error, (RuntimeError, ValueError, OSError, ImportError))
        sentence = f"memwidget: {error}" if known else f"memwidget: {type(error).__name__}: {error}"
        if recorder.recording is None and recorder.snapshot is not None:
            var = var or "_memtrace"
            self.shell.user_ns[var] = recorder
            sentence += f"\n{var}.snapshot holds what torch gave."
        print(sentence, file=sys.stderr)  # noqa: T201


def _cell_number(shell: Any) -> int:
    """Number of the cell that runs, by the code on the stack; the shell's own counter may be one ahead."""
    known = getattr(shell.compile, "_filename_map", {})
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        number = known.get(frame.f_code.co_filename)
        if number is not None:
            return int(number)
        frame = frame.f_back  # type: ignore[assignment]
    return int(shell.execution_count)


def _mend_first_line(file: str) -> None:
    """Let tracebacks show the first line as a comment, not as the literal that stands in for it.

    As it was typed the text would be no Python, and IPython would point at line 1 for every error.
    """
    entry = linecache.cache.get(file)
    if entry is not None and len(entry) == 4 and entry[2]:
        lines = entry[2]
        with contextlib.suppress(ValueError, SyntaxError):
            typed = ast.literal_eval(lines[0].strip())
            if isinstance(typed, str) and typed.startswith(_MAGIC):
                lines[0] = f"# {typed}\n"


def _expanded(shell: Any, line: str) -> str:
    """`line` with {expressions} and $names put in, as IPython does for every magic."""
    return str(shell.var_expand(line, depth=0)) if "{" in line or "$" in line else line


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _assigned(node: ast.stmt) -> list[ast.stmt]:
    """What IPython adds to show an assignment's value, where the user asked for that."""
    target = node.targets[-1] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or not isinstance(target, ast.Name):
        return []
    shown = ast.Expr(ast.Name(target.id, ast.Load()))
    for new in ast.walk(shown):
        if hasattr(new, "lineno") or isinstance(new, (ast.expr, ast.stmt)):
            ast.copy_location(new, node)
    return [shown]


def _compiles(shell: Any, tree: ast.Module) -> bool:
    flags = shell.compile.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile(tree, "<cell>", "exec", flags, dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _on_stack(frame: Any, file: str) -> bool:
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def _in_traceback(traceback: Any, file: str) -> bool:
    while traceback is not None and traceback.tb_frame.f_code.co_filename != file:
        traceback = traceback.tb_next
    return traceback is not None


_loaded: dict[int, Magics] = {}


def load(shell: Any) -> None:
    """Add the magics to `shell`."""
    if id(shell) in _loaded:
        return
    magics = _loaded[id(shell)] = Magics(shell)
    shell.input_transformers_cleanup.append(magics.first_line)
    shell.ast_transformers.append(magics)
    shell.events.register("post_run_cell", magics.after_cell)
    for function, kind, name, help_ in (
        (magics.cell, "cell", "memtrace", _CELL.format_help()),
        (magics.line, "line", "memtrace", "Record one statement and show every block:\n\n    %memtrace STATEMENT\n"),
        (magics.start, "line", "memtrace_start", _START.format_help()),
        (magics.stop, "line", "memtrace_stop", _STOP.format_help()),
    ):
        shell.register_magic_function(_named(function, name, help_), kind, name)


def _named(function: Callable[..., Any], name: str, help_: str) -> Callable[..., Any]:
    def magic(*arguments: str) -> Any:
        return function(*arguments)

    magic.__name__ = magic.__qualname__ = name
    magic.__doc__ = help_
    return magic if function.__name__ != "line" else no_var_expand(magic)


def unload(shell: Any) -> None:
    """Take away what `load` added; a recording that `%memtrace_start` began is ended and dropped."""
    magics = _loaded.pop(id(shell), None)
    if magics is None:
        return
    shell.input_transformers_cleanup.remove(magics.first_line)
    shell.ast_transformers.remove(magics)
    shell.events.unregister("post_run_cell", magics.after_cell)
    for kind, name in (
        ("cell", "memtrace"),
        ("line", "memtrace"),
        ("line", "memtrace_start"),
        ("line", "memtrace_stop"),
    ):
        shell.magics_manager.magics[kind].pop(name, None)
    if magics.started is not None:
        session.started().end()
