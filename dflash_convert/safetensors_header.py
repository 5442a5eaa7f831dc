"""One .safetensors file → its tensors: names, dtypes, shapes and places, proved by arithmetic, no data yet.

In: a path. Out: `SourceTensor`s sorted by name. Promised: 8 + header + data is exactly the file's size and the tensors
lie end to end, so that a Git-LFS pointer, an HTML page and a cut download each get their own words.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from dflash_convert.errors import CheckpointError

MAX_HEADER = 100 << 20  # the safetensors library's own limit
AGAIN = "download the file again"

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
})  # fmt: skip


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a checkpoint: shape as in the file, `offset` absolute in `file`, in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def n_rows(self) -> int:
        """Rows when seen as a matrix (a vector is one row)."""
        return math.prod(self.shape[:-1])

    @property
    def row_length(self) -> int:
        """Weights in a row (a scalar is a row of one)."""
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        return self.row_length * DTYPES[self.dtype].itemsize


def read_header(path: Path) -> dict[str, SourceTensor]:
    """The tensors of one safetensors file, sorted by name, with every byte of the file accounted for.

    Raises CheckpointError: unreadable, not safetensors, cut, or a header that contradicts itself.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as f:
            _refuse_lookalikes(path, f.read(264), size)
            f.seek(0)
            (length,) = struct.unpack("<Q", f.read(8))
            _check_length(path, length, size)
            header = _parse(path, f.read(length))
    except OSError as e:
        raise CheckpointError(f"{path}: {e.strerror or e}") from e
    start = 8 + length
    tensors = {name: _tensor(path, name, header[name], start) for name in sorted(header) if name != "__metadata__"}
    _check_extent(path, tensors.values(), start, size)
    return tensors


def _refuse_lookalikes(path: Path, head: bytes, size: int) -> None:
    """Files that only look like weights: a Git-LFS pointer, a web page, nothing at all."""
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path.name} is a {size}-byte Git-LFS pointer, not the weights",
            hint="run `git lfs pull`, or `hf download`",
        )
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path.name} is a web page, not weights", hint="download it with `hf download`")
    if size < 8:
        raise CheckpointError(f"{path.name} has {size} bytes: not a safetensors file", hint=AGAIN)


def _check_length(path: Path, length: int, size: int) -> None:
    if length > min(size - 8, MAX_HEADER):
        raise CheckpointError(
            f"{path.name} is not a safetensors file, or is cut: its first 8 bytes announce a header of {length} bytes, "
            f"the file has {size}",
            hint=AGAIN,
        )


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not JSON: {e}", hint=AGAIN) from e
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not an object", hint=AGAIN)
    return header


def _tensor(path: Path, name: str, entry: Any, start: int) -> SourceTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        dtype, shape, begin, end = None, (), -1, -1
    if not (isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))):
        raise CheckpointError(f"{path.name}: the header entry of {name} is damaged: {entry!r}", hint=AGAIN)
    if dtype not in DTYPES:
        known = ", ".join(DTYPES)
        raise CheckpointError(
            f"{path.name}: {name} has the dtype {dtype}, which is not supported", hint=f"known: {known}"
        )
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != nbytes:
        raise CheckpointError(
            f"{path.name}: {name} is {dtype} of shape {list(shape)}, so {nbytes} bytes, but the header gives it "
            f"{end - begin}",
            hint=AGAIN,
        )
    return SourceTensor(name, dtype, shape, path, start + begin, nbytes)


def _check_extent(path: Path, tensors: Iterable[SourceTensor], start: int, size: int) -> None:
    """Tensors must lie end to end and fill the file exactly."""
    at = start
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != at:
            kind = "overlaps the tensor before it" if tensor.offset < at else "leaves a gap before it"
            raise CheckpointError(
                f"{path.name}: {tensor.name} {kind}: at byte {tensor.offset}, not {at}",
                hint=f"download {path.name} again",
            )
        at += tensor.nbytes
    if at != size:
        state = f"is truncated: {at - size} bytes are missing" if at > size else f"has {size - at} bytes too many"
        raise CheckpointError(
            f"{path.name} {state} (8 + header + data = {at}, the file has {size})",
            hint=f"download {path.name} again",
        )
