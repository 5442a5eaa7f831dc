"""Pages that were read are given back, those that a fault mapped around them too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dflash_convert.mapped_file import give_back, map_file

SIZE, BLOCK = 8 << 20, 100_001  # bytes; blocks that begin and end inside pages
SMAPS = Path("/proc/self/smaps")


def resident(path: Path) -> int:
    """Bytes of the file's mapping that are in memory."""
    lines = SMAPS.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    return 1024 * int(next(line for line in lines[at:] if line.startswith("Rss:")).split()[1])


def read_anew(path: Path) -> None:
    """Into the system's cache from the disk: a page that was only written is mapped alone, not with those around."""
    with path.open("rb") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    path.read_bytes()


@pytest.mark.skipif(not SMAPS.exists(), reason="only Linux says what is in memory")
def test_a_file_read_in_blocks_does_not_stay_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (SIZE // 256))
    read_anew(path)
    mapped = map_file(path)
    for start in range(0, SIZE, BLOCK):
        stop = min(start + BLOCK, SIZE)
        assert mapped[start] == start % 256
        assert len(mapped[start:stop]) == stop - start
        give_back(mapped, start, stop)
    assert resident(path) <= 1 << 16  # a fault's window; without it the blocks leave a quarter of the file
    assert mapped[SIZE - 1] == 255
    mapped[:]
    assert resident(path) == SIZE  # the measure itself


def test_what_is_no_mapping_is_left_alone() -> None:
    give_back(b"bytes", 0, 5)
    give_back(None, 0, 5)
