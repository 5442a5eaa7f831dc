"""A file in memory, read-only, whose pages are given back once they were read: peak memory is then no model's size."""

from __future__ import annotations

import mmap
from pathlib import Path

__all__ = ["give_back", "map_file"]

# A fault maps the pages around it too, in windows of 64 KB on Linux: those before a block come back with its first page
AROUND = 1 << 16


def map_file(path: Path) -> mmap.mmap:
    """The file, which is not empty. The mapping stays the file's that was opened, whatever takes over its name.

    Raises OSError: it cannot be opened.
    """
    with path.open("rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)


def give_back(mapped: object, start: int, stop: int) -> None:
    """Hand the pages of bytes [start, stop) back to the system, in whose cache they stay if anybody wants them again.

    Nothing where memory is no mapping, or the system knows no such advice.
    """
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        begin = max(0, start - AROUND) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, begin, stop - begin)  # it stops at the mapping's end itself
