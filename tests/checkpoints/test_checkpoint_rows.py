"""A checkpoint's rows are those the safetensors package reads, and reading them all does not fill the memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from make import make_checkpoint, weights
from safetensors.numpy import load_file

from dflash_convert.checkpoints.checkpoint import BLOCK_BYTES, open_checkpoint


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32, np.int64], ids=lambda d: d.__name__)
def test_rows_are_what_the_safetensors_package_reads(tmp_path: Path, dtype: Any) -> None:
    arrays = {
        "matrix": weights(5, 3, dtype=dtype), "cube": weights(2, 3, 4, dtype=dtype), "vector": weights(7, dtype=dtype),
        "scalar": weights(dtype=dtype), "no rows": weights(0, 3, dtype=dtype), "no columns": weights(3, 0, dtype=dtype),
    }  # fmt: skip
    checkpoint = open_checkpoint(make_checkpoint(tmp_path, arrays))
    for name, theirs in load_file(tmp_path / "model.safetensors").items():
        ours = checkpoint.rows(name)
        assert (ours.dtype, ours.shape) == (theirs.dtype, (int(np.prod(theirs.shape[:-1])), (theirs.shape or (1,))[-1]))
        assert ours.tobytes() == theirs.tobytes()
        assert checkpoint.float32(name).shape == theirs.shape
        assert np.array_equal(checkpoint.float32(name), theirs.astype(np.float32))


def test_rows_are_cut_anywhere_and_copy_nothing(tmp_path: Path) -> None:
    matrix = weights(5, 3)
    checkpoint = open_checkpoint(make_checkpoint(tmp_path, {"before": weights(7), "matrix": matrix}))
    assert np.array_equal(checkpoint.rows("matrix", 1, 3), matrix[1:3])
    assert np.array_equal(checkpoint.rows("matrix", 3), matrix[3:])
    assert np.array_equal(checkpoint.rows("matrix", 4, 99), matrix[4:])
    assert not checkpoint.rows("matrix").flags.owndata
    assert not checkpoint.rows("matrix").flags.writeable


@pytest.mark.parametrize(
    ("max_bytes", "multiple", "starts"),
    [
        (24, 1, [0, 2, 4, 6, 8, 10]),
        (35, 1, [0, 2, 4, 6, 8, 10]),
        (36, 1, [0, 3, 6, 9]),
        (1, 1, list(range(11))),
        (1, 4, [0, 4, 8]),
        (12 * 7, 3, [0, 6]),
        (12 * 11, 1, [0]),
        (BLOCK_BYTES, 1, [0]),
    ],
)
def test_blocks_cover_all_rows_once(tmp_path: Path, max_bytes: int, multiple: int, starts: list[int]) -> None:
    matrix = weights(11, 3)
    checkpoint = open_checkpoint(make_checkpoint(tmp_path, {"m": matrix, "none": weights(0, 3), "thin": weights(3, 0)}))
    blocks = list(checkpoint.blocks("m", max_bytes, multiple))
    assert [start for start, _ in blocks] == starts
    assert np.array_equal(np.concatenate([rows for _, rows in blocks]), matrix)
    assert list(checkpoint.blocks("none")) == []
    assert [(start, rows.shape) for start, rows in checkpoint.blocks("thin")] == [(0, (3, 0))]


def test_a_weight_may_lie_at_an_odd_byte(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, {"m": weights(3, 3)})
    content = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(
        (length + 1).to_bytes(8, "little") + content[8 : 8 + length] + b" " + content[8 + length :]
    )
    ((_, rows),) = open_checkpoint(tmp_path).blocks("m")
    assert np.array_equal(rows, weights(3, 3))


RESIDENT = """
import sys
from pathlib import Path
from dflash_convert.checkpoints.checkpoint import open_checkpoint

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

checkpoint = open_checkpoint(Path(sys.argv[1]))
before = peak()
for _, rows in checkpoint.blocks("m", 1 << 20):
    rows.max()
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path, {"m": np.zeros((64, 1 << 18), np.float32)})  # 64 MiB
    done = subprocess.run([sys.executable, "-c", RESIDENT, str(root)], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 16 << 20
