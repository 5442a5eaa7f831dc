"""The one door for output: the result goes to stdout, everything else to stderr.

In: values and texts. Out: what a person or a program reads, by mode:

    mode    stdout                                          stderr
    human   tables, texts, the path of the result           notes, warnings, errors, progress
    json    one JSON document, of the result or the error   notes, warnings
    quiet   the path of the result                          warnings, errors

Promised: a pipe gets plain and complete text (no ANSI, nothing cut); a character that a stream cannot encode is spelled
out; colour needs a terminal and no NO_COLOR; a reader that goes away ends the output, not the work or its exit code.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from itertools import zip_longest
from typing import Any, Literal, TextIO

from dflash_convert.errors import EXIT_BUG, DflashError

Mode = Literal["human", "json", "quiet"]
PROGRESS_DELAY = 1.0  # seconds; work that is done sooner shows no progress
GAP = "  "  # between the columns of a table

STYLES = {"error": "1;31", "warning": "1;33", "hint": "36", "note": "2"}  # ANSI SGR codes
# What a stream without these characters gets.
SPELLED = {
    "✓": "ok", "✗": "FAIL", "→": "->", "×": "x", "≤": "<=", "≥": ">=", "≠": "!=", "±": "+-", "…": "...", "–": "-",
    "·": "-", "µ": "u", "─": "-", "━": "-", "╸": "-", "╺": "-",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """A column of a table; numbers go to the right."""

    name: str
    right: bool = False


@dataclass(frozen=True)
class Console:
    """Output in one mode. The streams are sys.stdout and sys.stderr as they are at the time of each call."""

    mode: Mode = "human"

    def note(self, text: str) -> None:
        """Something good to know."""
        if self.mode != "quiet":
            _say("note", text)

    def warn(self, text: str) -> None:
        """Something that may be wrong, and does not stop the work."""
        _say("warning", text)

    def error(self, e: Exception) -> None:
        """Why the command ends. A DflashError says it itself; any other exception is a bug of ours."""
        message, hint, code = _explain(e)
        if self.mode == "json":
            self.emit({"error": {"type": type(e).__name__, "message": message, "hint": hint, "exit_code": code}})
            return
        _say("error", message)
        if hint:
            _say("hint", hint)

    def result_path(self, path: str | os.PathLike[str]) -> None:
        """The file that was written, in the very bytes of its name. In JSON the document of the command names it."""
        if self.mode != "json":
            _write(sys.stdout, os.fsencode(path) + b"\n")

    def emit(self, value: object) -> None:
        """The document of a command in JSON mode, the last thing it says; nothing in the other modes.

        Dataclasses become objects, paths and enums text, NaN and infinities null.
        """
        if self.mode == "json":
            _write(sys.stdout, json.dumps(_plain(value), indent=2) + "\n")

    def show(self, text: str) -> None:
        """A text for people that is (part of) the result."""
        if self.mode == "human":
            _write(sys.stdout, f"{text}\n")

    def table(self, columns: Sequence[Column | str], rows: Iterable[Sequence[object]], title: str = "") -> None:
        """A table for people: drawn on a terminal, aligned text in a pipe, whole in both."""
        if self.mode != "human":
            return
        heads = [Column(c) if isinstance(c, str) else c for c in columns]
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        draw = _drawn if _drawable(sys.stdout) else _aligned
        _write(sys.stdout, draw(heads, cells, title))

    def mark(self, ok: bool) -> str:
        """✓ or ✗ where stdout can encode them, else "ok" or "FAIL"."""
        return _fit("✓" if ok else "✗", sys.stdout)

    @contextmanager
    def progress(self, total_bytes: int, label: str) -> Iterator[Callable[[int], None]]:
        """A display of bytes done on stderr, while the block runs; yields `advance(n)`, which may come from any thread.

        It is there only for people at a terminal, and only once the work has taken PROGRESS_DELAY.
        """
        shown = self.mode == "human" and _drawable(sys.stderr)
        with _bar(total_bytes, label) if shown else nullcontext(lambda _n: None) as advance:
            yield advance


@contextmanager
def _bar(total: int, label: str) -> Iterator[Callable[[int], None]]:
    from rich import progress as rich

    columns = (rich.TextColumn("{task.description}", markup=False), rich.BarColumn(), rich.DownloadColumn(),
               rich.TransferSpeedColumn(), rich.TimeRemainingColumn())  # fmt: skip
    # stdout is the result's: were it redirected, what is printed meanwhile would end on stderr.
    bar = rich.Progress(*columns, console=_rich_console(sys.stderr), transient=True, redirect_stdout=False)
    task, due = bar.add_task(_fit(label, sys.stderr), total=total), time.monotonic() + PROGRESS_DELAY

    def advance(n: int) -> None:
        bar.advance(task, n)
        if time.monotonic() >= due:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def _say(kind: str, text: str) -> None:
    """A line on stderr that begins with its kind."""
    head = f"{kind}:"
    if _coloured(sys.stderr):
        head = f"\x1b[{STYLES[kind]}m{head}\x1b[0m"
    _write(sys.stderr, f"{head} {text}\n")


def _explain(e: Exception) -> tuple[str, str | None, int]:
    """Message, hint and exit code of an exception."""
    if isinstance(e, DflashError):
        return e.message, e.hint, e.exit_code
    message = f"internal error: {type(e).__name__}: {e}"
    return message, "this is a bug: run again with DFLASH_DEBUG=1 and report the traceback", EXIT_BUG


def _aligned(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str) -> str:
    """A table as plain text, columns as wide as their widest cell."""
    table = [[c.name for c in columns], *rows]
    widths = [max(map(len, cells)) for cells in zip_longest(*table, fillvalue="")]
    pads = [str.rjust if c.right else str.ljust for c in columns]
    lines = [GAP.join(pad(cell, n) for pad, cell, n in zip(pads, row, widths, strict=True)).rstrip() for row in table]
    return "\n".join([title] * bool(title) + lines) + "\n"


def _drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str) -> str:
    """A table for the terminal; a cell too wide for it goes on in the next line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = _rich_console(sys.stdout)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, title=Text(title) if title else None, title_justify="left")
    for column in columns:
        table.add_column(Text(column.name), justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_fit(cell, sys.stdout)) for cell in row))
    with console.capture() as capture:
        console.print(table)
    return str(capture.get())


def _rich_console(stream: TextIO) -> Any:
    """rich's console on `stream`, with no ideas of its own about markup, emoji or highlighting."""
    from rich.console import Console as RichConsole

    return RichConsole(file=stream, no_color=not _coloured(stream), highlight=False, markup=False, emoji=False)


def _drawable(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _coloured(stream: TextIO) -> bool:
    return _drawable(stream) and not os.environ.get("NO_COLOR")


def _fit(text: str, stream: TextIO) -> str:
    """`text` in characters that `stream` can encode; the others are spelled out or escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        spelled = "".join(SPELLED.get(c, c) for c in text)
        return spelled.encode(encoding, errors="backslashreplace").decode(encoding)
    return text


def _write(stream: TextIO, text: str | bytes) -> None:
    """Write and flush. If the reader went away, the rest of the output goes nowhere, quietly."""
    try:
        if isinstance(text, bytes):
            stream.buffer.write(text)
        else:
            stream.write(_fit(text, stream))
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # so that the flush at exit does not fail either
        os.close(nowhere)


def _plain(value: Any) -> Any:
    """`value` in JSON's types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Sequence | Set):
        return [_plain(v) for v in (sorted(value) if isinstance(value, Set) else value)]
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _plain(value.tolist())
    return str(value)
