"""A GGUF file on disk → a `GGUFFile`: keys, tensors and the mapped data, proved to fit together.

In: a path. Out: the header decoded (`header`), each tensor placed, the data mapped read-only and not yet read.
Promised: every tensor lies inside the file, aligned, right behind the one before it, as ggml itself demands. The
mapping belongs to the file as it was opened: one that later takes over its name changes nothing here.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.header import (
    ALIGNMENT_KEY,
    DEFAULT_ALIGNMENT,
    KV,
    Entry,
    Header,
    LazyArray,
    pad,
    read_header,
)
from dflash_convert.mapped_file import give_back, map_file

__all__ = [
    "ALIGNMENT_KEY",
    "DEFAULT_ALIGNMENT",
    "KV",
    "GGUFFile",
    "LazyArray",
    "TensorInfo",
    "odd_bytes",
    "open_gguf",
    "row_bytes",
]

MAX_WEIGHTS = 2**63 - 1  # ggml counts in int64


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a GGUF file.

    shape: as numpy sees it, slowest axis first (the reverse of ggml's ne); offset and nbytes: absolute, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int

    @property
    def row_length(self) -> int:
        """Weights in a row (ggml's ne[0])."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        """Rows when seen as a matrix (a vector is one row)."""
        return math.prod(self.shape[:-1])


def row_bytes(ggml_type: GGMLQuantizationType, row_length: int) -> int:
    """Bytes of one row of `row_length` weights.

    Raises GGUFError: the length is not a multiple of the type's block size.
    """
    block, size = GGML_QUANT_SIZES[ggml_type]
    if row_length % block:
        raise GGUFError(f"a row of {row_length} weights is not a multiple of {ggml_type.name}'s block size {block}")
    return row_length // block * size


@dataclass(frozen=True)
class GGUFFile:
    """An opened GGUF: header decoded, data mapped read-only."""

    path: Path
    version: int
    kv: Mapping[str, KV]
    tensors: Mapping[str, TensorInfo]
    data_offset: int
    data: memoryview

    @property
    def architecture(self) -> str:
        """`general.architecture`, "" where there is none."""
        return str(self.get("general.architecture", ""))

    @property
    def alignment(self) -> int:
        """Tensors start at multiples of this many bytes."""
        return int(self.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        found = self.kv.get(key)
        return default if found is None else found.value

    def raw(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes as stored, (rows, bytes per row) uint8, a view of the mapping."""
        info = self.tensors[name]
        flat = np.frombuffer(self.data, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        return flat.reshape(info.n_rows, row_bytes(info.type, info.row_length))  # (rows, bytes per row)

    def give_back(self, name: str, start: int, stop: int) -> None:
        """Rows [start, stop) of the tensor were read: their pages need not stay in memory."""
        info = self.tensors[name]
        row = info.nbytes // max(1, info.n_rows)
        give_back(self.data.obj, info.offset + start * row, info.offset + stop * row)


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file and check its bounds.

    Raises GGUFError: not a GGUF, a header or tensor that does not fit the file, a duplicate name, an unknown type.
    """
    path = Path(path)
    file = _map(path)
    try:
        header = read_header(file)
        tensors = _place(header, len(file))
    except GGUFError as e:
        raise GGUFError(f"{path.name}: {e.message}", hint=e.hint) from None
    kv = MappingProxyType(header.kv)
    return GGUFFile(path, header.version, kv, MappingProxyType(tensors), header.data_offset, memoryview(file))


def odd_bytes(gguf: GGUFFile) -> Iterator[str]:
    """What lies in the file beside its header and its tensors: bytes behind the last, bytes in the padding between.

    Padding up to the alignment holds zeros and is no fault; a file may end with it or without.
    """
    end = gguf.data_offset
    for tensor in gguf.tensors.values():
        if any(gguf.data[end : tensor.offset]):
            yield f"the padding before {tensor.name} (bytes {end} to {tensor.offset}) does not hold zeros"
        end = tensor.offset + tensor.nbytes
    padded = pad(end, gguf.alignment)
    if any(gguf.data[end:padded]):
        yield f"the padding behind the last tensor (bytes {end} to {padded}) does not hold zeros"
    if len(gguf.data) > padded:
        yield f"{len(gguf.data) - padded} bytes lie behind the last tensor, from byte {padded}"


def _map(path: Path) -> mmap.mmap:
    try:
        if path.stat().st_size == 0:
            raise GGUFError(f"{path.name}: the file is empty", hint="download or write it again")
        return map_file(path)
    except OSError as e:
        raise GGUFError(f"{path}: {e.strerror or e}") from e


def _place(header: Header, size: int) -> dict[str, TensorInfo]:
    """The tensor table with absolute offsets, each line checked against the one before it and the file."""
    tensors: dict[str, TensorInfo] = {}
    due = header.data_offset
    for entry in header.entries:
        tensor = _tensor(entry, header.data_offset)
        _check_place(tensor, due, header, size)
        tensors[entry.name] = tensor
        due = pad(tensor.offset + tensor.nbytes, header.alignment)
    return tensors


def _tensor(entry: Entry, start: int) -> TensorInfo:
    shape = entry.ne[::-1] or (1,)
    if math.prod(max(n, 1) for n in shape) > MAX_WEIGHTS:
        raise GGUFError(f"the tensor {entry.name} has the shape {list(shape)}: more weights than ggml can count")
    try:
        ggml_type = GGMLQuantizationType(entry.type)
    except ValueError:
        raise GGUFError(
            f"the tensor {entry.name} has the unknown ggml type {entry.type}",
            hint="it was written for a fork of llama.cpp with types of its own; ask for a file in mainline types",
        ) from None
    try:
        nbytes = math.prod(shape[:-1]) * row_bytes(ggml_type, shape[-1])
    except GGUFError as e:
        raise GGUFError(f"the tensor {entry.name}: {e.message}") from None
    return TensorInfo(entry.name, shape, ggml_type, start + entry.offset, nbytes)


def _check_place(tensor: TensorInfo, due: int, header: Header, size: int) -> None:
    """A tensor is aligned, starts where it is due and ends inside the file; llama.cpp loads no other."""
    offset = tensor.offset - header.data_offset
    if offset % header.alignment:
        raise GGUFError(f"the tensor {tensor.name} lies at offset {offset}, not a multiple of {header.alignment}")
    if tensor.offset != due:
        away = (
            f"{due - tensor.offset} bytes too early" if tensor.offset < due else f"{tensor.offset - due} bytes too late"
        )
        raise GGUFError(
            f"the tensor {tensor.name} lies at offset {offset}, {away}: "
            "tensors must follow one another without overlap or gap",
            hint="llama.cpp refuses such a file too; write it again with the tool it comes from",
        )
    end = tensor.offset + tensor.nbytes
    if end > size:
        raise GGUFError(
            f"truncated: the tensor {tensor.name} ends at byte {end}, the file at {size}",
            hint="the file is incomplete: download or write it again",
        )
