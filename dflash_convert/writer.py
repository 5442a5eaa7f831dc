"""Plan + the bytes of each tensor → a file that is either whole or not there.

The output is written to a temporary file beside it (`.<name>.<random>.partial`), synced, and renamed: whatever happens
in between, nothing unfinished ever carries the final name, and a good file that was there stays until the rename.
Memory: one chunk at a time, whatever the size of the model.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dflash_convert.errors import OutputError
from dflash_convert.layout import Plan, PlannedTensor, pad

Chunks = Callable[[PlannedTensor], Iterable[Any]]  # a tensor → its bytes, as buffers, in order
Progress = Callable[[int], None]  # called with the number of bytes just written


def check_output(path: Path, *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Refuse an output that exists (unless `force`), is a folder, has no folder, or is one of the inputs."""
    for given in inputs:
        if path.exists() and given.exists() and path.samefile(given):
            raise OutputError(f"{path}: the output is the input", hint="name another output file")
    if path.is_dir():
        raise OutputError(f"{path} is a folder", hint="name a file in it, such as {}".format(path / "out.gguf"))
    if path.exists() and not force:
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
    check_space(path, plan.file_size)
    with _atomic(path, force) as out:
        _write_all(plan, chunks, out, progress or (lambda n: None))
    return path


def _write_all(plan: Plan, chunks: Chunks, out: IO[bytes], progress: Progress) -> None:
    out.write(plan.header)
    progress(len(plan.header))
    for tensor in plan.tensors:
        done = 0
        for chunk in chunks(tensor):
            n = out.write(chunk)
            done += n
            progress(n)
        if done != tensor.nbytes:
            raise AssertionError(f"{tensor.name}: {done} bytes came, {tensor.nbytes} were planned")
        out.write(bytes(pad(done, plan.alignment) - done))


@contextmanager
def _atomic(path: Path, force: bool) -> Iterator[IO[bytes]]:
    """A temporary file beside `path` that becomes `path` on success and vanishes on any failure."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    temp = Path(name)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        temp.chmod(0o666 & ~_umask())
        _publish(temp, path, force)
        _sync_folder(path.parent)
    except OSError as e:
        raise _explain(e, path) from e
    finally:
        temp.unlink(missing_ok=True)


def _publish(temp: Path, path: Path, force: bool) -> None:
    """Give `temp` its final name; without `force`, never over a file that appeared meanwhile."""
    if force:
        os.replace(temp, path)
    else:
        try:
            os.link(temp, path)
        except FileExistsError:
            raise OutputError(f"{path} appeared while it was being written; it was left as it is") from None
        except OSError:  # a file system without hard links
            os.replace(temp, path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable (where folders can be opened at all)."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _explain(e: OSError, path: Path) -> OutputError:
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        free = shutil.disk_usage(path.parent).free
        return OutputError(
            f"{path}: no space left while writing ({e.strerror}; {free:,} bytes free in {path.parent})",
            hint="nothing was left behind; free some space or name an output on another disk with -o",
        )
    return OutputError(f"{path}: cannot be written: {e.strerror or e}")
