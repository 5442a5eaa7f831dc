"""The front of a GGUF file → keys and the tensor table, without building a Python object per token.

In: the mapped file. Out: a `Header`: what is written there, every read checked against the end of the file; whether the
tensors fit the file is for `gguf_file`. Scalars and short arrays are decoded at once; a long array stays a `LazyArray`
over the mapped bytes and is decoded only if somebody asks. Strings are the only entries of unequal length, so stepping
over them is the only loop: a vocabulary of 152k tokens takes some 50 ms, where `gguf.GGUFReader` needs seconds.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from dflash_convert.errors import GGUFError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
EAGER_ARRAY = 64  # arrays of at most this many entries are decoded while the header is read
MAX_DIMS = 4

V = GGUFValueType
# struct format of each fixed-size value type
SCALARS: Mapping[GGUFValueType, str] = MappingProxyType({
    V.UINT8: "B", V.INT8: "b", V.UINT16: "H", V.INT16: "h", V.UINT32: "I", V.INT32: "i",
    V.FLOAT32: "f", V.BOOL: "?", V.UINT64: "Q", V.INT64: "q", V.FLOAT64: "d",
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class LazyArray(Sequence[Any]):
    """A GGUF array that stays bytes until it is looked at. It equals any sequence of the same entries.

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
        if isinstance(other, LazyArray) and self.item_type == other.item_type:
            return self.length == other.length and self.raw == other.raw
        return isinstance(other, Sequence) and list(self.items) == list(other)


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
class Entry:
    """One line of the tensor table as written: ne fastest axis first, the type's number, offset within the data."""

    name: str
    ne: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True)
class Header:
    """Everything before the tensor data, which starts at byte `data_offset`."""

    version: int
    kv: Mapping[str, KV]
    entries: tuple[Entry, ...]
    alignment: int
    data_offset: int


def pad(n: int, alignment: int) -> int:
    """`n` rounded up to a multiple of `alignment`."""
    return -(-n // alignment) * alignment


def read_header(file: mmap.mmap) -> Header:
    """Read the header from the start of `file`.

    Raises GGUFError: not a GGUF, a header that ends too early, a name that is there twice, a value type nobody knows.
    """
    file.seek(0)
    version, n_tensors, n_kv = _preamble(file)
    kv = _keys(file, n_kv)
    alignment = _alignment(kv.get(ALIGNMENT_KEY))
    entries = _entries(file, n_tensors)
    return Header(version, kv, entries, alignment, pad(file.tell(), alignment))


# -- single reads --------------------------------------------------------------------------------------------------


def _require(file: mmap.mmap, n: int, where: str) -> None:
    """Refuse to go on where the file has fewer than `n` bytes left."""
    if file.tell() + n > len(file):
        raise GGUFError(
            f"the file ends inside {where}: {n} bytes wanted at offset {file.tell()}, {len(file)} bytes in all",
            hint="the file is incomplete: download or write it again",
        )


def _take(file: mmap.mmap, n: int, where: str) -> bytes:
    _require(file, n, where)
    return file.read(n)


def _unpack(file: mmap.mmap, fmt: str, where: str) -> Any:
    return struct.unpack("<" + fmt, _take(file, struct.calcsize("<" + fmt), where))[0]


def _string(file: mmap.mmap, where: str) -> str:
    return _take(file, _unpack(file, "Q", where), where).decode("utf-8", errors="surrogateescape")


# -- the parts, in file order --------------------------------------------------------------------------------------


def _preamble(file: mmap.mmap) -> tuple[int, int, int]:
    magic = _take(file, len(MAGIC), "the magic number")
    if magic != MAGIC:
        raise GGUFError(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    version = _unpack(file, "I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "big-endian" if swapped else f"version {version}"
        raise GGUFError(f"{what} GGUF files are not supported (2 and 3, little-endian, are)")
    return version, _unpack(file, "Q", "the number of tensors"), _unpack(file, "Q", "the number of keys")


def _keys(file: mmap.mmap, count: int) -> dict[str, KV]:
    kv: dict[str, KV] = {}
    for i in range(count):
        key = _string(file, f"key {i + 1} of {count}")
        if key in kv:
            raise GGUFError(f"the key {key} is there twice")
        kv[key] = _value(file, key)
    return kv


def _value(file: mmap.mmap, key: str) -> KV:
    where = f"the value of {key}"
    vtype = _value_type(file, key)
    if vtype == V.ARRAY:
        return _array(file, key)
    return KV(key, vtype, _string(file, where) if vtype == V.STRING else _unpack(file, SCALARS[vtype], where))


def _value_type(file: mmap.mmap, key: str) -> GGUFValueType:
    number = _unpack(file, "I", f"the value of {key}")
    try:
        return GGUFValueType(number)
    except ValueError:
        raise GGUFError(f"the key {key} has the unknown value type {number}") from None


def _array(file: mmap.mmap, key: str) -> KV:
    where = f"the value of {key}"
    item_type, length = _value_type(file, key), _unpack(file, "Q", where)
    if item_type == V.ARRAY:
        raise GGUFError(f"the key {key} is an array of arrays, which GGUF readers do not support")
    start = file.tell()
    if item_type == V.STRING:
        _skip_strings(file, length, where)
    else:
        _skip(file, length * struct.calcsize("<" + SCALARS[item_type]), where)
    array = LazyArray(item_type, length, memoryview(file)[start : file.tell()])
    return KV(key, V.ARRAY, list(array.items) if length <= EAGER_ARRAY else array, item_type)


def _skip(file: mmap.mmap, n: int, where: str) -> None:
    _require(file, n, where)
    file.seek(n, 1)


def _skip_strings(file: mmap.mmap, count: int, where: str) -> None:
    """Step over `count` strings: the one loop over tokens, kept to a few bytecodes an entry."""
    _require(file, 8 * count, where)  # each has at least a length: an absurd count is refused before the loop
    start, last = file.tell(), len(file) - 8
    unpack, pos = struct.Struct("<Q").unpack_from, start
    for _ in range(count):
        if pos > last:
            pos += 8
            break
        pos += 8 + unpack(file, pos)[0]
    _skip(file, pos - start, where)


def _alignment(kv: KV | None) -> int:
    if kv is None:
        return DEFAULT_ALIGNMENT
    if kv.type != V.UINT32 or kv.value.bit_count() != 1:
        raise GGUFError(f"{kv.key} is {kv.value!r} ({kv.type.name}); it must be a UINT32 that is a power of two")
    return int(kv.value)


def _entries(file: mmap.mmap, count: int) -> tuple[Entry, ...]:
    entries: dict[str, Entry] = {}
    for i in range(count):
        entry = _entry(file, f"line {i + 1} of the tensor table, which has {count}")
        if entry.name in entries:
            raise GGUFError(f"the tensor {entry.name} is there twice")
        entries[entry.name] = entry
    return tuple(entries.values())


def _entry(file: mmap.mmap, where: str) -> Entry:
    name, n_dims = _string(file, where), _unpack(file, "I", where)
    if n_dims > MAX_DIMS:
        raise GGUFError(f"the tensor {name} has {n_dims} dimensions; ggml knows up to {MAX_DIMS}")
    ne = struct.unpack(f"<{n_dims}Q", _take(file, 8 * n_dims, where))
    return Entry(name, ne, _unpack(file, "I", where), _unpack(file, "Q", where))
