"""Plan + the bytes of each tensor → a file that is either whole or not there.

The output is written to a temporary file beside it (`.<name>.<random>.partial`), synced, and renamed: whatever happens
in between, nothing unfinished ever carries the final name, and a good file that was there stays until the rename. What
a killed run left behind goes when the same output is written again; a lock tells it from one that is still at work.
Memory: one chunk at a time, whatever the size of the model.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dflash_convert.errors import OutputError
from dflash_convert.gguf_io.layout import Plan, PlannedTensor, pad

Chunks = Callable[[PlannedTensor], Iterable[Any]]  # a tensor → its bytes, as buffers, in order
Progress = Callable[[int], object]  # called with the number of bytes just written; they add up to the file's size

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse an output that exists (unless `force`), is a folder, has no folder, or is one of the inputs."""
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise OutputError(f"{path}: the output is the input", hint="name another output file")
    if path.is_dir():
        raise OutputError(f"{path} is a folder", hint=f"name a file in it, such as {path / 'out.gguf'}")
    if _is_there(path) and not force:
        raise OutputError(f"{path} exists", hint="pass --force to replace it, or -o to name another file")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent}: no such folder", hint=f"make it first: mkdir -p {path.parent}")


def check_space(path: Path, needed: int) -> None:
    """Refuse to start what cannot fit: `needed` bytes against what is free where `path` will lie."""
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise OutputError(
            f"{path.name} needs {needed:,} bytes; {path.parent} has {free:,} free",
            hint="free some space, or name an output on another disk with -o",
        )


def write(plan: Plan, chunks: Chunks, path: Path, *, force: bool = False, progress: Progress | None = None) -> Path:
    """Write `plan` to `path`, atomically.

    chunks: gives the bytes of a planned tensor as buffers in file order; their sizes must add up to `nbytes`.
    Raises OutputError: an output that exists, no folder, no space (before or half-way). Nothing is left behind.
    """
    check_output(path, force=force)
    _sweep(path)
    check_space(path, plan.file_size)
    try:
        with _atomic(path, force) as out, _flushing(out.fileno()) as flush:
            _write_all(plan, chunks, out, flush, progress or (lambda _: None))
    except OSError as e:
        raise _explain(e, path, plan.file_size) from e
    return path


def _write_all(plan: Plan, chunks: Chunks, out: IO[bytes], flush: Callable[[], None], progress: Progress) -> None:
    progress(out.write(plan.header))
    for tensor in plan.tensors:
        done = 0
        for chunk in chunks(tensor):
            n = out.write(chunk)
            done += n
            progress(n)
            flush()
        if done != tensor.nbytes:
            raise AssertionError(f"{tensor.name}: {done} bytes came, {tensor.nbytes} were planned")
        progress(out.write(bytes(pad(done, plan.alignment) - done)))


_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync


@contextmanager
def _flushing(handle: int) -> Iterator[Callable[[], None]]:
    """Yields a function that sends to the disk what is written so far, unless that is under way already.

    It returns at once: the disk works while more is written, and the sync at the end has little left to do. A failure
    here is no loss, for that sync meets it again.
    """
    under_way: Future[None] | None = None

    def flush() -> None:
        nonlocal under_way
        if under_way is None or under_way.done():
            under_way = pool.submit(_sync, handle)

    with ThreadPoolExecutor(1) as pool:
        yield flush


@contextmanager
def _atomic(path: Path, force: bool) -> Iterator[IO[bytes]]:
    """A temporary file beside `path` that becomes `path` on success and vanishes on any failure."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    temp = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            _lock(handle)
            yield out
            out.flush()
            os.fchmod(handle, 0o666 & ~_umask())
            os.fsync(handle)
            _publish(temp, path, force)
        _sync_folder(path.parent)
    finally:
        temp.unlink(missing_ok=True)


def _publish(temp: Path, path: Path, force: bool) -> None:
    """Give `temp` its final name; without `force`, never over a file that appeared meanwhile."""
    if not force:
        try:
            os.link(temp, path)
        except OSError as e:  # anything but "exists": a file system without hard links
            if e.errno == errno.EEXIST or _is_there(path):
                raise OutputError(f"{path} appeared while it was being written; it was left as it is") from None
        else:
            return
    temp.replace(path)


def _is_there(path: Path) -> bool:
    """Whether the name is taken, be it by a link to nowhere."""
    return path.exists() or path.is_symlink()


# -- what a killed run left ----------------------------------------------------------------------------------------


def _sweep(path: Path) -> None:
    """Remove the partial files of earlier runs for `path` that nobody is writing any more."""
    partial = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.partial")
    for left in path.parent.iterdir():
        if partial.fullmatch(left.name):
            _remove_unlocked(left)


def _remove_unlocked(path: Path) -> None:
    try:
        with path.open("rb") as f:
            if _lock(f.fileno()):
                path.unlink()
    except OSError:  # somebody else's: not worth a failure
        return


def _lock(handle: int) -> bool:
    """Take the lock that marks a partial file as being written; it goes with the process. False: another has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- the system ----------------------------------------------------------------------------------------------------


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _explain(e: OSError, path: Path, needed: int) -> OutputError:
    if e.errno in FULL:
        free = shutil.disk_usage(path.parent).free
        return OutputError(
            f"{path}: no space left while writing ({e.strerror}): "
            f"{needed:,} bytes needed, {free:,} free in {path.parent}",
            hint="nothing was left behind; free some space or name an output on another disk with -o",
        )
    return OutputError(f"{path}: cannot be written: {e.strerror or e}")
