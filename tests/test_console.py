"""What a person or a program reads on stdout and stderr, in each mode and on each kind of stream."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest

from dflash_convert import console as module
from dflash_convert.console import Column, Console, Mode
from dflash_convert.errors import ConfigError

ERROR = ConfigError("config.json: block_size is missing", hint="pass --block-size")
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ROWS = [("blk.0.attn_q.weight", 8912896, True), ("a-very-long-tensor-name." * 8 + "weight", 7, None)]
HUMAN, JSON, QUIET = Console("human"), Console("json"), Console("quiet")
Captured = pytest.CaptureFixture[str]


class Stream(io.TextIOWrapper):
    """A stream in memory, with an encoding, that may claim to be a terminal."""

    def __init__(self, encoding: str = "utf-8", terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A colour terminal 60 columns wide, whatever the tests run in."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")


def put(monkeypatch: pytest.MonkeyPatch, name: str, encoding: str = "utf-8", *, terminal: bool = False) -> Stream:
    """A new stream in the place of sys.stdout or sys.stderr."""
    monkeypatch.setattr(sys, name, Stream(encoding, terminal))
    stream = getattr(sys, name)
    assert isinstance(stream, Stream)
    return stream


# ---- modes


@pytest.mark.parametrize(("mode", "out", "err"), [
    ("human", "out.gguf\nshown\na  b\n1  2\n", "note: a note\nwarning: a warning\n"),
    ("json", '{\n  "path": "out.gguf"\n}\n', "note: a note\nwarning: a warning\n"),
    ("quiet", "out.gguf\n", "warning: a warning\n"),
])  # fmt: skip
def test_what_goes_where(mode: Mode, out: str, err: str, capfd: Captured) -> None:
    console = Console(mode)
    console.note("a note")
    console.warn("a warning")
    console.result_path(Path("out.gguf"))
    console.show("shown")
    console.table(["a", "b"], [(1, 2)])
    console.emit({"path": Path("out.gguf")})
    assert capfd.readouterr() == (out, err)


@pytest.mark.parametrize("console", [HUMAN, QUIET])
def test_an_error_is_two_lines_on_stderr(console: Console, capfd: Captured) -> None:
    console.error(ERROR)
    assert capfd.readouterr() == ("", "error: config.json: block_size is missing\nhint: pass --block-size\n")


def test_an_error_without_a_hint(capfd: Captured) -> None:
    HUMAN.error(ConfigError("bad"))
    assert capfd.readouterr() == ("", "error: bad\n")


def test_an_error_in_json_is_a_document_on_stdout(capfd: Captured) -> None:
    JSON.error(ERROR)
    out, err = capfd.readouterr()
    assert err == ""
    told = {"type": "ConfigError", "message": ERROR.message, "hint": "pass --block-size", "exit_code": 2}
    assert json.loads(out) == {"error": told}


def test_a_bug_is_told_as_one(capfd: Captured) -> None:
    HUMAN.error(KeyError("blk"))
    hint = "this is a bug: run again with DFLASH_DEBUG=1 and report the traceback"
    assert capfd.readouterr().err == f"error: internal error: KeyError: 'blk'\nhint: {hint}\n"
    JSON.error(KeyError("blk"))
    assert json.loads(capfd.readouterr().out)["error"]["exit_code"] == 70


# ---- JSON


class Kind(IntEnum):
    Q4_K = 12


@dataclass(frozen=True)
class Finding:
    kind: Kind
    where: Path
    worst: float


def test_json_is_plain_and_strict(capfd: Captured) -> None:
    value: Mapping[str, Any] = {
        "findings": (Finding(Kind.Q4_K, Path("a/b"), float("nan")),),
        "numpy": [np.float32(0.5), np.int64(3), np.array([1, 2]), np.float64("inf")],
        "set": {8, 1},
        "scalars": [None, True, 1.5, "→ é \ud800"],
    }
    JSON.emit(value)
    out = capfd.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {
        "findings": [{"kind": "Q4_K", "where": "a/b", "worst": None}],
        "numpy": [0.5, 3, [1, 2], None],
        "set": [1, 8],
        "scalars": [None, True, 1.5, "→ é \ud800"],
    }
    assert out.isascii()


# ---- tables


def test_a_table_in_a_pipe_is_plain_and_whole(capfd: Captured) -> None:
    HUMAN.table(["tensor", Column("weights", right=True), "same"], ROWS, title="Tensors")
    long = ROWS[1][0]
    assert capfd.readouterr().out == (
        "Tensors\n"
        f"tensor{' ' * (len(str(long)) - 6)}  weights  same\n"
        f"blk.0.attn_q.weight{' ' * (len(str(long)) - 19)}  8912896  True\n"
        f"{long}        7\n"
    )
    HUMAN.table(["no", "rows"], [])
    assert capfd.readouterr().out == "no  rows\n"


def test_a_table_on_a_terminal_folds_and_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    out = put(monkeypatch, "stdout", terminal=True)
    HUMAN.table(["[bold]tensor"], [row[:1] for row in ROWS], title="Tensors")
    assert "\x1b[1m" in out.text()
    lines = ANSI.sub("", out.text()).splitlines()
    assert max(map(len, lines)) == 60
    assert "".join(line.strip() for line in lines) == f"Tensors[bold]tensor{'─' * 60}{ROWS[0][0]}{ROWS[1][0]}"


# ---- streams


def test_a_stream_that_knows_only_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = put(monkeypatch, "stdout", "ascii"), put(monkeypatch, "stderr", "ascii")
    HUMAN.show("ids [1] → [2], 256×768, é")
    HUMAN.table(["✓", "n"], [("≤", 1)])
    HUMAN.note("vocabulary…")
    assert out.text() == "ids [1] -> [2], 256x768, \\xe9\nok  n\n<=  1\n"
    assert err.text() == "note: vocabulary...\n"


def test_a_terminal_that_knows_only_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    out = put(monkeypatch, "stdout", "ascii", terminal=True)
    HUMAN.table(["check", "answer"], [("tensors → keys", "✓")])
    assert "tensors -> keys" in out.text()
    assert " ok " in out.text()
    assert "\\u" not in out.text()


@pytest.mark.parametrize(("encoding", "marks"), [("utf-8", ("✓", "✗")), ("latin-1", ("ok", "FAIL"))])
def test_marks(monkeypatch: pytest.MonkeyPatch, encoding: str, marks: tuple[str, str]) -> None:
    put(monkeypatch, "stdout", encoding)
    assert (HUMAN.mark(True), HUMAN.mark(False)) == marks


def test_a_path_keeps_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    out = put(monkeypatch, "stdout", "ascii")
    QUIET.result_path(os.fsdecode(b"caf\xc3\xa9-\xff.gguf"))
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == b"caf\xc3\xa9-\xff.gguf\n"


def test_text_that_is_no_unicode_is_escaped(capfd: Captured) -> None:
    HUMAN.show("token \udcff")
    assert capfd.readouterr().out == "token \\udcff\n"


@pytest.mark.parametrize(("name", "value", "coloured"), [
    ("TERM", "xterm", True), ("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False),
])  # fmt: skip
def test_colour_needs_a_terminal_and_no_no_color(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, coloured: bool
) -> None:
    monkeypatch.setenv(name, value)
    err = put(monkeypatch, "stderr", terminal=True)
    HUMAN.error(ConfigError("bad"))
    assert err.text() == ("\x1b[1;31merror:\x1b[0m bad\n" if coloured else "error: bad\n")


def test_a_reader_that_goes_away_does_not_change_the_exit_code() -> None:
    code = (
        "from dflash_convert.console import Console\n"
        "for i in range(20000): Console().show('line of text')\n"
        "Console().warn('still at work')\n"
        "raise SystemExit(1)"
    )
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", code], env=buffered, stdout=PIPE, stderr=PIPE) as child:
        assert child.stdout and child.stderr  # noqa: PT018
        assert child.stdout.readline() == b"line of text\n"
        child.stdout.close()
        assert child.stderr.read() == b"warning: still at work\n"
    assert child.returncode == 1


# ---- progress


def run(console: Console, steps: int = 4) -> None:
    with console.progress(4000, "writing [draft.gguf]") as advance:
        for _ in range(steps):
            advance(1000)


def test_progress_on_a_terminal_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(module, "PROGRESS_DELAY", 0.0)
    out, err = put(monkeypatch, "stdout", terminal=True), put(monkeypatch, "stderr", terminal=True)
    run(HUMAN)
    assert "writing [draft.gguf]" in err.text()
    assert "4.0/4.0 kB" in err.text()
    assert err.text().endswith("\x1b[2K")  # and leaves nothing behind
    assert out.text() == ""


@pytest.mark.parametrize("no_color", ["", "1"])
def test_progress_has_colours_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setattr(module, "PROGRESS_DELAY", 0.0)
    monkeypatch.setenv("NO_COLOR", no_color)
    err = put(monkeypatch, "stderr", terminal=True)
    run(HUMAN)
    assert bool(re.search(r"\x1b\[[0-9;]*3[0-9]", err.text())) == (not no_color)


def test_progress_waits_until_the_work_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    err = put(monkeypatch, "stderr", terminal=True)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with HUMAN.progress(4000, "writing") as advance:
        now[0] += 0.99
        advance(1000)
        assert err.text() == ""
        now[0] += 0.01
        advance(1000)
        assert "writing" in err.text()


@pytest.mark.parametrize(("console", "terminal", "term"), [
    (HUMAN, False, "xterm"), (HUMAN, True, "dumb"), (QUIET, True, "xterm"), (JSON, True, "xterm"),
])  # fmt: skip
def test_no_progress(monkeypatch: pytest.MonkeyPatch, console: Console, terminal: bool, term: str) -> None:
    monkeypatch.setattr(module, "PROGRESS_DELAY", 0.0)
    monkeypatch.setenv("TERM", term)
    out, err = put(monkeypatch, "stdout", terminal=terminal), put(monkeypatch, "stderr", terminal=terminal)
    run(console)
    assert (out.text(), err.text()) == ("", "")


def test_lines_during_progress_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROGRESS_DELAY", 0.0)
    out, err = put(monkeypatch, "stdout", terminal=True), put(monkeypatch, "stderr", terminal=True)
    with HUMAN.progress(4000, "writing") as advance:
        advance(1000)
        HUMAN.warn("mask id equals EOS")
        HUMAN.show("ids [1] → [2]")
    assert out.text() == "ids [1] → [2]\n"
    assert "warning: mask id equals EOS\n" in err.text().replace("\x1b[1;33m", "").replace("\x1b[0m", "")


def test_importing_the_module_does_not_import_rich() -> None:
    code = "import sys, dflash_convert.console; print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
