"""Bytes of a pickle -> plain data, safely.

Owns the pickle machine: protocols 0 to 5, and of those only the opcodes that make dicts, lists, tuples, numbers,
strings, bools and None. There is no way to a class, a function or a persistent object in here, so nothing a file says
can run. Every number that a file states (a length, a memo index, a nesting depth) is either checked against the size of
the file or costs nothing, so time and memory stay linear in that size: the nine bytes ``80 04 5d 72 ff ff ff 0f 2e``
cost 4 GB in any `pickle.Unpickler` and one dict entry here.

Runs of event records that `memwidget.read.records` has recognised are stepped over: a `Run` stands in their place.
"""

from __future__ import annotations

import pickle
import pickletools
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from memwidget.recording import SnapshotError

if TYPE_CHECKING:
    from memwidget.read.records import Records

#: Marks open at the same time; a snapshot needs about ten.
MAX_DEPTH = 100
#: Bytes in one integer; an address needs 9 (a sign bit above 64).
MAX_INT_BYTES = 16
#: Characters of a number written as text (protocol 0).
MAX_NUMBER_TEXT = 64
#: Bytes handled between two reports of progress.
REPORT_EVERY = 1 << 22

#: Real snapshots spend at least this many bytes of file on each dict, list or tuple ...
BYTES_PER_CONTAINER = 8
#: ... and on each object that the memo keeps.
BYTES_PER_MEMO = 6

_TOO_MANY = "holds more dicts and lists than a file of its size can"
_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
_GLOBALS = {"GLOBAL", "STACK_GLOBAL", "INST"}


class Run(NamedTuple):
    """Event records first..last-1 of `Records`, in place of their dicts."""

    first: int
    last: int


class NeedsSlowRoadError(Exception):
    """The file does something with a Run that only its dicts could answer; never leaves this room."""


def loads(data: bytes, progress: Callable[[float], None] | None = None, records: Records | None = None) -> Any:
    """Read one pickle.

    Parameters
    ----------
    data : bytes
        The whole pickle.
    progress : callable, optional
        Called with the fraction done.
    records : Records, optional
        Event records to step over; the result then holds a `Run` where they were.

    Raises
    ------
    SnapshotError
        Whatever is wrong with it.
    """
    return Machine(data, progress, records).load()


@contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what a damaged pickle raises into the one sentence that says so."""
    try:
        yield
    except SnapshotError:
        raise
    except IndexError as error:
        raise SnapshotError("The file ends in the middle or is damaged; record or copy it again.") from error
    except (ValueError, KeyError, TypeError, struct.error, OverflowError, AttributeError) as error:
        raise SnapshotError("The file is damaged: its pickle does not add up; record or copy it again.") from error
    except (MemoryError, RecursionError) as error:
        raise SnapshotError("The file asks for more memory than there is; read it on a larger machine.") from error


class Machine:
    """One reading of one pickle."""

    def __init__(
        self, data: bytes, progress: Callable[[float], None] | None = None, records: Records | None = None
    ) -> None:
        self.data = data
        self.progress = progress
        self.records = records
        self.memo: dict[int, Any] = {}
        self.memo_next = 0
        self.memo_limit = 1000 + len(data) // BYTES_PER_MEMO
        self.containers = 1000 + len(data) // BYTES_PER_CONTAINER
        self.next_report = REPORT_EVERY

    def load(self) -> Any:
        """Read the pickle from its start to its STOP."""
        with one_sentence():
            return self._execute(self.data, self.records.runs if self.records is not None else None)

    # The opcodes are tested in the order of how often torch's files use them: the test for the tenth costs as much as
    # a call. Cut-off arguments need no check of their own: they leave `pos` beyond the end, where data[pos] raises.
    def _execute(self, data: bytes, runs: dict[int, tuple[int, int]] | None) -> Any:
        """Execute `data` to its STOP, stepping over `runs`; return the one object that is left."""
        memo, pos = self.memo, 0
        stack: list[Any] = []
        marks: list[int] = []
        push = stack.append
        while True:
            op = data[pos]
            pos += 1
            if op == 0x68:  # BINGET
                index = data[pos]
                push(memo[index] if index in memo else self._from_run(index))
                pos += 1
            elif op == 0x94:  # MEMOIZE
                memo[self.memo_next] = stack[-1]
                self.memo_next += 1
                if self.memo_next > self.memo_limit:
                    raise _odd("remembers more objects than a file of its size can hold")
            elif op == 0x4B:  # BININT1
                push(data[pos])
                pos += 1
            elif op == 0x6A:  # LONG_BINGET
                index = int.from_bytes(data[pos : pos + 4], "little")
                push(memo[index] if index in memo else self._from_run(index))
                pos += 4
            elif op == 0x8A:  # LONG1
                n = data[pos]
                if n > MAX_INT_BYTES:
                    raise _odd(f"holds an integer of {n} bytes")
                pos += 1 + n
                push(int.from_bytes(data[pos - n : pos], "little", signed=True))
            elif op == 0x4A:  # BININT
                push(int.from_bytes(data[pos : pos + 4], "little", signed=True))
                pos += 4
            elif op == 0x7D:  # EMPTY_DICT
                if runs is not None and (run := runs.get(pos - 1)) and self._at_trace(stack, marks):
                    push(Run(*run))
                    pos = self._step_over(run)
                    continue
                push({})
                self.containers -= 1
                if self.containers < 0:
                    raise _odd(_TOO_MANY)
            elif op == 0x28:  # MARK
                marks.append(len(stack))
                if len(marks) > MAX_DEPTH:
                    raise _odd(f"is nested more than {MAX_DEPTH} deep")
            elif op == 0x75:  # SETITEMS
                items = _since_mark(stack, marks)
                _set(stack[-1], items)
            elif op == 0x8C:  # SHORT_BINUNICODE
                n = data[pos]
                pos += 1 + n
                push(data[pos - n : pos].decode("utf-8", "surrogatepass"))
            elif op == 0x5D:  # EMPTY_LIST
                push([])
                self.containers -= 1
                if self.containers < 0:
                    raise _odd(_TOO_MANY)
            elif op == 0x65:  # APPENDS
                items = _since_mark(stack, marks)
                _list(stack[-1]).extend(items)
                if self.progress is not None and pos > self.next_report:
                    self.next_report = pos + REPORT_EVERY
                    self.progress(pos / len(data))
            elif op == 0x4D:  # BININT2
                push(data[pos] | data[pos + 1] << 8)
                pos += 2
            elif op == 0x2E:  # STOP
                if marks or len(stack) != 1:
                    raise _odd("stops before it is complete")
                return _no_run(stack.pop())
            else:
                pos = self._execute_rare(op, data, pos, stack, marks)

    def _execute_rare(self, op: int, data: bytes, pos: int, stack: list[Any], marks: list[int]) -> int:
        """Execute the opcodes that need no haste; return where the next one starts."""
        if self.containers < 0:
            raise _odd(_TOO_MANY)
        name = _NAMES.get(op, f"0x{op:02x}")
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _STRUCTS:
            code, size = _STRUCTS[name]
            stack.append(struct.unpack(code, _take(data, pos, size))[0])
            pos += size
        elif name in _SIZED:
            width, convert = _SIZED[name]
            size = int.from_bytes(_take(data, pos, width), "little")
            pos += width + size
            stack.append(convert(_take(data, pos - size, size)))
        elif name in _LINES:
            line_end = data.find(b"\n", pos)
            if line_end < 0:
                raise IndexError(pos)
            stack.append(_LINES[name](data[pos:line_end]))
            pos = line_end + 1
        elif name in {"TUPLE1", "TUPLE2", "TUPLE3"}:
            n = int(name[-1])
            stack[-n:] = [tuple(map(_no_run, _last(stack, marks, n)))]
            self.containers -= 1
        elif name in {"TUPLE", "LIST", "DICT"}:
            items = [_no_run(item) for item in _since_mark(stack, marks)]
            if name == "DICT":
                stack.append({})
                _set(stack[-1], items)
            else:
                stack.append(items if name == "LIST" else tuple(items))
            self.containers -= 1
        elif name == "APPEND":
            (item,) = _last(stack, marks, 1)
            del stack[-1]
            _list(stack[-1]).append(_no_run(item))
        elif name == "SETITEM":
            items = _last(stack, marks, 2)
            del stack[-2:]
            _set(stack[-1], items)
        elif name in {"PUT", "BINPUT", "LONG_BINPUT", "GET"}:
            pos = self._execute_memo(name, data, pos, stack)
        elif name == "PROTO":
            if data[pos] > pickle.HIGHEST_PROTOCOL:
                raise _odd(f"is written in pickle protocol {data[pos]}")
            pos += 1
        elif name == "FRAME":  # a hint for readers of streams; we hold the whole file
            if int.from_bytes(_take(data, pos, 8), "little") > len(data) - pos - 8:
                raise IndexError(pos)
            pos += 8
        else:
            raise _refusal(name, data, pos, stack)
        return pos

    def _execute_memo(self, name: str, data: bytes, pos: int, stack: list[Any]) -> int:
        if name in {"PUT", "GET"}:
            line_end = data.index(b"\n", pos)
            index, pos = int(_number(data[pos:line_end])), line_end + 1
        else:
            width = 1 if name == "BINPUT" else 4
            index = int.from_bytes(_take(data, pos, width), "little")
            pos += width
        if name == "GET":
            stack.append(self.memo[index])
            return pos
        if self.records is not None:  # the fast road counts on a memo that only ever grows by one
            raise NeedsSlowRoadError
        if not 0 <= index < self.memo_limit:
            raise _odd(f"remembers an object as number {index}, more than a file of its size can hold")
        self.memo[index] = stack[-1]
        self.memo_next = len(self.memo)
        if self.memo_next > self.memo_limit:
            raise _odd("remembers more objects than a file of its size can hold")
        return pos

    # The fast road.

    @staticmethod
    def _at_trace(stack: list[Any], marks: list[int]) -> bool:
        """Whether the next object goes into one of the lists of "device_traces"."""
        if not marks or not marks[-1] or type(stack[marks[-1] - 1]) is not list:
            return False
        # One device: "device_traces", [], trace, MARK. Several: "device_traces", [], MARK, trace, ..., trace, MARK.
        for outer in (marks[-1] - 2, marks[-2] - 1 if len(marks) > 1 else 0):
            if outer > 0 and type(stack[outer]) is list and stack[outer - 1] == "device_traces":
                return True
        return False

    def _step_over(self, run: tuple[int, int]) -> int:
        assert self.records is not None  # noqa: S101 - for the type checker
        self.memo_next = self.records.enter(run, self.memo_next)
        if self.memo_next > self.memo_limit:
            raise _odd("remembers more objects than a file of its size can hold")
        pos = self.records.end_of(run)
        if self.progress is not None and pos > self.next_report:
            self.next_report = pos + REPORT_EVERY
            self.progress(pos / len(self.data))
        return pos

    def _from_run(self, index: int) -> Any:
        """What the memo would hold at `index`, had the run around it been executed."""
        record = self.records.record_of_memo(index) if self.records is not None else None
        if record is None:
            raise KeyError(index)
        self.record(record)
        return self.memo[index]

    def record(self, record: int) -> Any:
        """The dict of one record that was stepped over, whose contents the memo holds from now on."""
        assert self.records is not None  # noqa: S101 - for the type checker
        first_index = int(self.records.base[record])
        if first_index in self.memo:
            return self.memo[first_index]
        saved, self.memo_next = self.memo_next, first_index
        try:
            return self._execute(self.records.bytes_of(record) + b".", None)
        finally:
            self.memo_next = saved

    def remembered(self, index: int) -> Any:
        """What the memo holds at `index`."""
        return self.memo[index] if index in self.memo else self._from_run(index)


def _refusal(name: str, data: bytes, pos: int, stack: list[Any]) -> SnapshotError:
    if name in _GLOBALS:
        wanted = _wanted_global(name, data, pos, stack)
        return SnapshotError(
            f"The file asks for the global {wanted}; a memory snapshot needs none, so it was not loaded: "
            "use a file from torch.cuda.memory._dump_snapshot()."
        )
    return _odd(f"uses the pickle opcode {name}")


def _wanted_global(name: str, data: bytes, pos: int, stack: list[Any]) -> str:
    if name == "STACK_GLOBAL":
        parts = [part for part in stack[-2:] if isinstance(part, str)]
    else:
        parts = [part.decode("ascii", "replace") for part in data[pos : pos + 200].split(b"\n")[:2]]
    text = ".".join(parts)[:100]
    return "".join(c if c.isprintable() else "?" for c in text)


def _odd(what: str) -> SnapshotError:
    return SnapshotError(
        f"The file is no memory snapshot, as it {what}: use a file from torch.cuda.memory._dump_snapshot()."
    )


def _no_run(value: Any) -> Any:
    if type(value) is Run:
        raise NeedsSlowRoadError
    return value


def _since_mark(stack: list[Any], marks: list[int]) -> list[Any]:
    """Take off everything above the last mark."""
    mark = marks.pop()
    items = stack[mark:]
    del stack[mark:]
    return items


def _last(stack: list[Any], marks: list[int], n: int) -> list[Any]:
    """Look at the last `n` items, none of which may lie below the last mark."""
    if len(stack) - n < (marks[-1] if marks else 0):
        raise IndexError(n)
    return stack[-n:]


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _set(target: Any, items: list[Any]) -> None:
    """Put keys and values into a dict; keys are strings, whose hashes a file cannot choose."""
    if type(target) is not dict or len(items) % 2:
        raise TypeError
    for key in items[::2]:
        if type(key) is not str:
            _no_run(key)
            raise _odd(f"has a dict key of type {type(key).__name__} where names stand")
    target.update(zip(items[::2], items[1::2], strict=True))
    if Run in map(type, items):
        raise NeedsSlowRoadError


def _take(data: bytes, pos: int, size: int) -> bytes:
    if size > len(data) - pos:
        raise IndexError(pos)
    return data[pos : pos + size]


def _number(text: bytes) -> bytes:
    if len(text) > MAX_NUMBER_TEXT:
        raise _odd("holds a number of more than 64 digits")
    return text


def _int_line(text: bytes) -> int | bool:
    if text in {b"00", b"01"}:
        return text == b"01"
    return int(_number(text))


def _long(raw: bytes) -> int:
    if len(raw) > MAX_INT_BYTES:
        raise _odd(f"holds an integer of {len(raw)} bytes")
    return int.from_bytes(raw, "little", signed=True)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogatepass")


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_STRUCTS = {"BINFLOAT": (">d", 8)}
_SIZED: dict[str, tuple[int, Callable[[bytes], Any]]] = {
    "BINUNICODE": (4, _text),
    "BINUNICODE8": (8, _text),
    "LONG4": (4, _long),
}
_LINES: dict[str, Callable[[bytes], Any]] = {
    "INT": _int_line,
    "LONG": lambda text: int(_number(text).rstrip(b"L")),
    "FLOAT": lambda text: float(_number(text)),
    "UNICODE": lambda text: text.decode("raw-unicode-escape"),
}
