"""One .safetensors file → its tensors: names, dtypes, shapes and places, no data yet.

In: a path. Out: `SourceTensor`s sorted by name. The safetensors package (its parser, in Rust) judges each file; nothing
of one that it refuses is used. What it gives no way to is read here: where a tensor's bytes begin, for streaming; a
name that stands in the header twice, of which it keeps the last; and words for what people really meet: a Git-LFS
pointer, a web page, a cut download, two names over the same bytes.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from dflash_convert.errors import CheckpointError
from dflash_convert.json_file import brief, parse_object

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
            header = parse_object(f.read(length), f"{path.name}: the header", CheckpointError)
    except OSError as e:
        raise CheckpointError(f"{path}: {e.strerror or e}") from e
    start = 8 + length
    tensors = {name: _tensor(path, name, header[name], start) for name in sorted(header) if name != "__metadata__"}
    _check_extent(path, tensors.values(), start, size)
    _judge(path, tensors)
    return tensors


def _judge(path: Path, tensors: Mapping[str, SourceTensor]) -> None:
    """What the format's own library says of the file; it must see the same tensors."""
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            seen = {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{path.name}: {e}", hint=AGAIN) from e
    if seen != {name: (t.dtype, t.shape) for name, t in tensors.items()}:
        raise CheckpointError(f"{path.name}: the header can be read in two ways", hint=AGAIN)


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


def _tensor(path: Path, name: str, entry: Any, start: int) -> SourceTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        dtype, shape, begin, end = None, (), -1, -1
    if not (isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))):
        raise CheckpointError(f"{path.name}: the header entry of {name} is damaged: {brief(entry)}", hint=AGAIN)
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
    at, before = start, ""
    for tensor in sorted(tensors, key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < at:
            raise CheckpointError(
                f"{path.name}: {before} and {tensor.name} lie over the same bytes, from {tensor.offset} to {at}",
                hint="each tensor needs bytes of its own: save it again with safetensors' save_model",
            )
        if tensor.offset > at:
            raise CheckpointError(
                f"{path.name}: {tensor.name} leaves a gap before it: at byte {tensor.offset}, not {at}",
                hint=f"download {path.name} again",
            )
        at, before = at + tensor.nbytes, tensor.name
    if at != size:
        state = f"is truncated: {at - size} bytes are missing" if at > size else f"has {size - at} bytes too many"
        raise CheckpointError(
            f"{path.name} {state} (8 + header + data = {at}, the file has {size})",
            hint=f"download {path.name} again",
        )
