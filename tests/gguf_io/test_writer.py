"""An output is whole or not there, whatever happens while it is written; a good file that was there stays."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V

from dflash_convert.errors import CheckpointError, OutputError
from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV
from dflash_convert.gguf_io.writer import Chunks, check_output, check_space, write

A, B = PlannedTensor("a", (3, 3), G.F32, ""), PlannedTensor("b", (5,), G.F32, "")
PLAN = Plan((KV("general.architecture", V.STRING, "test"),), (A, B))
DATA = {"a": np.arange(9, dtype=np.float32), "b": np.arange(5, dtype=np.float32)}
WHOLE = PLAN.header + DATA["a"].tobytes() + bytes(28) + DATA["b"].tobytes() + bytes(12)


def chunks(tensor: PlannedTensor) -> Iterator[Any]:
    yield DATA[tensor.name]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.gguf"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def refusal(path: Path, make: Chunks = chunks, *, force: bool = False) -> tuple[str, str | None]:
    with pytest.raises(OutputError) as caught:
        write(PLAN, make, path, force=force)
    return caught.value.message, caught.value.hint


# -- the bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunks_of_any_size_make_the_same_file(out: Path, size: int) -> None:
    def sliced(tensor: PlannedTensor) -> Iterator[bytes]:
        data = DATA[tensor.name].tobytes()
        yield from (data[i : i + size] for i in range(0, len(data), size))

    assert write(PLAN, sliced, out) == out
    assert out.read_bytes() == WHOLE
    assert names(out.parent) == ["out.gguf"]


def test_arrays_are_chunks_and_progress_ends_at_the_size(out: Path) -> None:
    steps: list[int] = []
    write(PLAN, chunks, out, progress=steps.append)
    assert out.read_bytes() == WHOLE
    assert sum(steps) == PLAN.file_size == out.stat().st_size


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_mode_is_what_the_umask_leaves(out: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write(PLAN, chunks, out)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert out.stat().st_mode & 0o777 == mode


def test_the_data_is_synced_before_it_is_named_and_the_folder_after(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, bool]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((Path(f"/dev/fd/{fd}").is_dir(), out.exists())))
    write(PLAN, chunks, out)
    assert synced == [(False, False), (True, True)]


# -- outputs that are refused --------------------------------------------------------------------------------------


def test_an_output_that_exists_is_replaced_only_by_force(out: Path) -> None:
    out.write_text("precious")
    assert refusal(out) == (f"{out} exists", "pass --force to replace it, or -o to name another file")
    with out.open() as reader:
        write(PLAN, chunks, out, force=True)
        assert reader.read() == "precious"  # whoever has it open keeps it: the name changed hands, not the bytes
    assert out.read_bytes() == WHOLE


def test_a_link_to_nowhere_exists(out: Path) -> None:
    out.symlink_to("nowhere")
    assert refusal(out)[0] == f"{out} exists"


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (".", "ROOT is a folder", "name a file in it, such as ROOT/out.gguf"),
        ("new/out.gguf", "ROOT/new: no such folder", "make it first: mkdir -p ROOT/new"),
    ],
)
def test_a_folder_is_neither_an_output_nor_made(tmp_path: Path, name: str, message: str, hint: str) -> None:
    shown = refusal(tmp_path / name, force=True)
    assert shown == (message.replace("ROOT", str(tmp_path)), hint.replace("ROOT", str(tmp_path)))


@pytest.mark.parametrize("alias", [lambda a, b: None, os.symlink, os.link], ids=["itself", "symlink", "hardlink"])
def test_the_input_is_no_output_under_any_name(out: Path, alias: Callable[[Path, Path], None]) -> None:
    given = out.with_name("in.gguf")
    given.write_text("precious")
    alias(given, out)
    output = out if out.exists() else given
    with pytest.raises(OutputError) as caught:
        check_output(output, force=True, inputs=[out.with_name("gone"), given])
    assert caught.value.message == f"{output}: the output is the input"
    assert caught.value.hint == "name another output file"


def test_another_file_is_a_fine_output(out: Path) -> None:
    out.write_text("old")
    out.with_name("in.gguf").write_text("precious")
    check_output(out, force=True, inputs=[out.with_name("in.gguf")])


# -- failures half-way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CheckpointError("NaN"), MemoryError()], ids=repr)
def test_a_failure_leaves_only_what_was_there(out: Path, error: BaseException) -> None:
    def fail(tensor: PlannedTensor) -> Iterator[Any]:
        yield from chunks(tensor)
        if tensor is B:
            raise error

    with pytest.raises(type(error)):
        write(PLAN, fail, out)
    assert names(out.parent) == []
    out.write_text("precious")
    with pytest.raises(type(error)):
        write(PLAN, fail, out, force=True)
    assert (names(out.parent), out.read_text()) == (["out.gguf"], "precious")


@pytest.mark.parametrize("size", [35, 37])
def test_chunks_that_do_not_add_up_are_our_own_bug(out: Path, size: int) -> None:
    with pytest.raises(AssertionError, match=f"^a: {size} bytes came, 36 were planned$"):
        write(PLAN, lambda t: [bytes(size)], out)
    assert names(out.parent) == []


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_may_not_grow_is_told_with_sizes(out: Path) -> None:
    with no_file_over(PLAN.file_size - 1):
        message, hint = refusal(out)
    reason = r"no space left while writing \(File too large\)"
    assert re.fullmatch(rf"{out}: {reason}: 256 bytes needed, [\d,]+ free in {out.parent}", message)
    assert hint == "nothing was left behind; free some space or name an output on another disk with -o"
    assert names(out.parent) == []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "no space left while writing (No space left on device): 256 bytes needed, 1,000 free in {}"),
        (errno.EDQUOT, "no space left while writing (Disk quota exceeded): 256 bytes needed, 1,000 free in {}"),
        (errno.EIO, "cannot be written: Input/output error"),
    ],
)
def test_a_disk_that_fails_is_told_with_its_reason(
    out: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def failing(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    assert refusal(out)[0] == f"{out}: {reason.format(out.parent)}"
    assert names(out.parent) == []


def test_a_name_the_system_refuses_is_told(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    assert refusal(path)[0] == f"{path}: cannot be written: File name too long"


def test_what_cannot_fit_is_not_begun(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=255))
    message, hint = refusal(out, lambda t: pytest.fail("begun"))
    assert message == f"out.gguf needs 256 bytes; {out.parent} has 255 free"
    assert hint == "free some space, or name an output on another disk with -o"
    check_space(out, 255)


# -- others at the same name ---------------------------------------------------------------------------------------


def no_links(*args: Any) -> None:
    raise PermissionError(errno.EPERM, "no hard links here")


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_left_as_it_is(
    out: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def appear(tensor: PlannedTensor) -> Iterator[Any]:
        out.write_text("theirs")
        yield from chunks(tensor)

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    assert refusal(out, appear)[0] == f"{out} appeared while it was being written; it was left as it is"
    assert (names(out.parent), out.read_text()) == (["out.gguf"], "theirs")
    write(PLAN, appear, out, force=True)
    assert out.read_bytes() == WHOLE


def test_a_file_system_without_hard_links_will_do(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", no_links)
    write(PLAN, chunks, out)
    assert (names(out.parent), out.read_bytes()) == (["out.gguf"], WHOLE)


def test_two_writers_of_one_name_do_not_harm_each_other(out: Path) -> None:
    def interrupted(tensor: PlannedTensor) -> Iterator[Any]:
        if tensor is A:
            write(Plan(PLAN.kv, ()), chunks, out)
        yield from chunks(tensor)

    write(PLAN, interrupted, out, force=True)
    assert (names(out.parent), out.read_bytes()) == (["out.gguf"], WHOLE)


def test_only_what_a_dead_run_left_is_swept(out: Path) -> None:
    dead, live, folder = (out.with_name(f".out.gguf.{c * 8}.partial") for c in "abc")
    others = ["my.out.gguf.aaaaaaaa.partial", ".out.gguf.partial", ".outXgguf.aaaaaaaa.partial"]
    for path in (dead, live, *map(out.with_name, others)):
        path.write_text("left")
    folder.mkdir()
    with live.open() as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        write(PLAN, chunks, out)
    assert names(out.parent) == sorted([live.name, folder.name, "out.gguf", *others])


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {tests!r}
import test_writer as t

def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

def chunks(tensor):
    yield from t.chunks(tensor)
    if {moment!r} == tensor.name:
        die()

if {moment!r} in ("fsync", "link"):
    setattr(os, {moment!r}, die)
t.write(t.PLAN, chunks, Path({out!r}))
"""


@pytest.mark.parametrize("moment", ["a", "b", "fsync", "link"])
def test_a_kill_at_any_moment_leaves_no_output_and_the_next_run_cleans_up(out: Path, moment: str) -> None:
    script = KILLED.format(
        tests=[str(Path(__file__).parent), str(Path(__file__).parent.parent)], moment=moment, out=str(out)
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    (left,) = names(out.parent)
    assert re.fullmatch(r"\.out\.gguf\.\w{8}\.partial", left)
    write(PLAN, chunks, out)
    assert (names(out.parent), out.read_bytes()) == (["out.gguf"], WHOLE)


def test_the_disk_is_kept_busy_while_more_is_written(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("dflash_convert.gguf_io.writer._sync", synced.append)
    write(PLAN, chunks, out)
    assert synced


def test_an_early_flush_that_fails_is_no_failure(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(handle: int) -> None:
        raise OSError("not now")

    monkeypatch.setattr("dflash_convert.gguf_io.writer._sync", broken)
    write(PLAN, chunks, out)
    assert out.read_bytes() == WHOLE
