"""Read a GGUF header without building a Python object per token.

In: a path. Out: a `GGUFFile`: keys, tensor infos and the mapped data, all bounds checked. Scalars and short arrays are
decoded at once; a long array stays a `LazyArray` over the mapped bytes and is decoded only if somebody asks. A header
with a 152k-token vocabulary opens in milliseconds, where `gguf.GGUFReader` makes 300k numpy objects and needs seconds.
Strings are the only entries of unequal length, so walking them is the only loop; it is compiled lazily nowhere and
runs over the raw length prefixes.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from dflash_convert.errors import GGUFError

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
EAGER_ARRAY = 64  # arrays of at most this many entries are decoded while the header is read

V = GGUFValueType
# struct format of each fixed-size value type
SCALARS: Mapping[GGUFValueType, str] = MappingProxyType({
    V.UINT8: "B", V.INT8: "b", V.UINT16: "H", V.INT16: "h", V.UINT32: "I", V.INT32: "i",
    V.FLOAT32: "f", V.BOOL: "?", V.UINT64: "Q", V.INT64: "q", V.FLOAT64: "d",
})  # fmt: skip


@dataclass(frozen=True)
class LazyArray(Sequence[Any]):
    """A GGUF array that stays bytes until it is looked at.

    `raw` holds the entries as they lie in the file (without the type and count that precede them), so that copying an
    array from one file to another never decodes it.
    """

    item_type: GGUFValueType
    length: int
    raw: memoryview

    @cached_property
    def items(self) -> tuple[Any, ...]:
        """All entries, decoded once."""
        if self.item_type == V.STRING:
            return tuple(_strings(self.raw, self.length))
        return tuple(np.frombuffer(self.raw, dtype="<" + SCALARS[self.item_type], count=self.length).tolist())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LazyArray):
            return (self.item_type, self.length) == (other.item_type, other.length) and self.raw == other.raw
        return isinstance(other, Sequence) and list(self.items) == list(other)

    def __hash__(self) -> int:
        return hash((self.item_type, self.length))


def _strings(raw: memoryview, count: int) -> Iterator[str]:
    data, pos = bytes(raw), 0
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(count):
        (n,) = unpack(data, pos)
        yield data[pos + 8 : pos + 8 + n].decode("utf-8", errors="surrogateescape")
        pos += 8 + n


@dataclass(frozen=True)
class KV:
    """One key of a GGUF file: `type`, and for arrays `item_type`; `source` says where the value came from."""

    key: str
    type: GGUFValueType
    value: Any
    item_type: GGUFValueType | None = None
    source: str = ""


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
        return int(np.prod(self.shape[:-1], dtype=np.int64))


def row_bytes(ggml_type: GGMLQuantizationType, row_length: int) -> int:
    """Bytes of one row of `row_length` weights; the length must be a multiple of the type's block size."""
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
        return str(self.get("general.architecture", ""))

    @property
    def alignment(self) -> int:
        return int(self.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, or `default`."""
        found = self.kv.get(key)
        return default if found is None else found.value

    def raw(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The tensor's bytes as stored, (rows, bytes per row) uint8, a view of the mapping."""
        info = self.tensors[name]
        flat = np.frombuffer(self.data, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        return flat.reshape(info.n_rows, -1) if info.n_rows else flat.reshape(0, 0)


class _Cursor:
    """A position in the header; every read is checked against the end of the file."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path, self.pos, self.where = data, path, 0, "the header"

    def take(self, n: int) -> memoryview:
        if n < 0 or self.pos + n > len(self.data):
            raise GGUFError(
                f"{self.path.name}: the file ends inside {self.where}: {n} bytes wanted at offset {self.pos}, "
                f"{len(self.data)} bytes in all",
                hint="the file is incomplete: download or write it again",
            )
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def unpack(self, fmt: str) -> Any:
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))[0]

    def string(self) -> str:
        return str(self.take(self.unpack("Q")), "utf-8", errors="surrogateescape")


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a GGUF file and check its bounds.

    Raises GGUFError: not a GGUF, a header or tensor that does not fit the file, a duplicate name, an unknown type.
    """
    path = Path(path)
    data = _map(path)
    cur = _Cursor(data, path)
    version, n_tensors, n_kv = _preamble(cur)
    kv = _read_kvs(cur, n_kv)
    alignment = int(kv[ALIGNMENT_KEY].value) if ALIGNMENT_KEY in kv else DEFAULT_ALIGNMENT
    if alignment <= 0 or alignment & (alignment - 1):
        raise GGUFError(f"{path.name}: general.alignment is {alignment}; it must be a power of two")
    infos = [_read_info(cur) for _ in range(n_tensors)]
    data_offset = -(-cur.pos // alignment) * alignment
    tensors = _place(path, infos, data_offset, alignment, len(data))
    return GGUFFile(path, version, MappingProxyType(kv), MappingProxyType(tensors), data_offset, data)


def _map(path: Path) -> memoryview:
    try:
        with path.open("rb") as f:
            if f.seek(0, os.SEEK_END) == 0:
                raise GGUFError(f"{path}: the file is empty", hint="download or write it again")
            return memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as e:
        raise GGUFError(f"{path}: {e.strerror or e}") from e


def _preamble(cur: _Cursor) -> tuple[int, int, int]:
    magic = bytes(cur.take(4))
    if magic != MAGIC:
        raise GGUFError(f"{cur.path.name} is not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = cur.unpack("I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in (2, 3)
        what = "big-endian" if swapped else f"version {version}"
        raise GGUFError(f"{cur.path.name}: {what} GGUF files are not supported (2 and 3, little-endian, are)")
    return version, cur.unpack("Q"), cur.unpack("Q")


def _read_kvs(cur: _Cursor, count: int) -> dict[str, KV]:
    kv: dict[str, KV] = {}
    for i in range(count):
        cur.where = f"key {i + 1} of {count}"
        key = cur.string()
        cur.where = f"the value of {key}"
        if key in kv:
            raise GGUFError(f"{cur.path.name}: the key {key} is there twice")
        kv[key] = _read_value(cur, key)
    return kv


def _value_type(cur: _Cursor, key: str) -> GGUFValueType:
    number = cur.unpack("I")
    try:
        return GGUFValueType(number)
    except ValueError:
        raise GGUFError(f"{cur.path.name}: the key {key} has the unknown value type {number}") from None


def _read_value(cur: _Cursor, key: str) -> KV:
    vtype = _value_type(cur, key)
    if vtype == V.STRING:
        return KV(key, vtype, cur.string())
    if vtype != V.ARRAY:
        return KV(key, vtype, cur.unpack(SCALARS[vtype]))
    item_type, length = _value_type(cur, key), cur.unpack("Q")
    if item_type == V.ARRAY:
        raise GGUFError(f"{cur.path.name}: the key {key} is an array of arrays, which GGUF readers do not support")
    start = cur.pos
    if item_type == V.STRING:
        _skip_strings(cur, length)
    else:
        cur.take(length * struct.calcsize("<" + SCALARS[item_type]))
    array = LazyArray(item_type, length, cur.data[start : cur.pos])
    return KV(key, vtype, list(array.items) if length <= EAGER_ARRAY else array, item_type)


def _skip_strings(cur: _Cursor, count: int) -> None:
    """Move past `count` strings: the one loop over tokens, kept to a few bytecodes an entry."""
    data, pos, end = cur.data, cur.pos, len(cur.data)
    unpack = struct.Struct("<Q").unpack_from
    for _ in range(count):
        if pos + 8 > end:
            break
        pos += 8 + unpack(data, pos)[0]
    cur.take(pos - cur.pos)


def _read_info(cur: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    cur.where = "the tensor table"
    name = cur.string()
    n_dims = cur.unpack("I")
    if n_dims > 4:
        raise GGUFError(f"{cur.path.name}: the tensor {name} has {n_dims} dimensions; ggml knows up to 4")
    ne = struct.unpack(f"<{n_dims}Q", cur.take(8 * n_dims))
    return name, tuple(reversed(ne)), cur.unpack("I"), cur.unpack("Q")


def _place(
    path: Path, infos: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int, size: int
) -> dict[str, TensorInfo]:
    """Turn the raw tensor table into TensorInfos with absolute offsets, each checked against the file."""
    tensors: dict[str, TensorInfo] = {}
    for name, shape, number, offset in infos:
        if name in tensors:
            raise GGUFError(f"{path.name}: the tensor {name} is there twice")
        if offset % alignment:
            raise GGUFError(f"{path.name}: the tensor {name} lies at offset {offset}, not a multiple of {alignment}")
        try:
            ggml_type = GGMLQuantizationType(number)
        except ValueError:
            raise GGUFError(
                f"{path.name}: the tensor {name} has the unknown ggml type {number}",
                hint="it was written for a fork of llama.cpp with types of its own; ask for a file in mainline types",
            ) from None
        shape = shape or (1,)
        try:
            nbytes = int(np.prod(shape[:-1], dtype=np.int64)) * row_bytes(ggml_type, shape[-1])
        except GGUFError as e:
            raise GGUFError(f"{path.name}: {name}: {e.message}") from None
        if start + offset + nbytes > size:
            raise GGUFError(
                f"{path.name} is truncated: the tensor {name} ends at byte {start + offset + nbytes}, the file at {size}",
                hint="the file is incomplete: download or write it again",
            )
        tensors[name] = TensorInfo(name, shape, ggml_type, start + offset, nbytes)
    return tensors
