"""What a GGUF file to be written is, before a byte of it is: the value that planning hands to writing.

The converter and the quantizer both end in a `Plan`, and `writer.write` turns any `Plan` into a file. Names, types,
shapes, order and sizes are settled here; so is every byte before the data, and with it the exact size of the file.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (version 3, little-endian).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType

from dflash_convert.gguf_io.header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, KV, MAGIC, SCALARS, LazyArray, pad
from dflash_convert.gguf_io.reader import row_bytes

__all__ = ["Note", "Plan", "PlannedTensor", "encode_kv", "pad"]

VERSION = 3


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the output.

    shape: as numpy sees it, slowest axis first (the reverse of ggml's ne). source: the tensors it is made from, for
    people. transform: the named function that makes it from them, "" for none. origin: whose checkpoint it is read
    from, "" for the one that is converted. constant: its bytes, where they are computed and not read.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    source: str
    transform: str = ""
    origin: str = ""
    constant: bytes | None = field(default=None, repr=False)

    @property
    def row_length(self) -> int:
        """Weights in a row (ggml's ne[0])."""
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        """Rows when seen as a matrix (a vector is one row)."""
        return math.prod(self.shape[:-1])

    @property
    def n_weights(self) -> int:
        """Weights in all."""
        return self.n_rows * self.row_length

    @property
    def nbytes(self) -> int:
        """Bytes of its data, without padding. Raises GGUFError: its rows do not divide into the type's blocks."""
        return self.n_rows * row_bytes(self.type, self.row_length)


@dataclass(frozen=True)
class Note:
    """Something the user should know that does not stop the work. level: "info" or "warning"."""

    level: str
    text: str


@dataclass(frozen=True)
class Plan:
    """Keys, tensors (in file order) and notes of an output file."""

    kv: tuple[KV, ...]
    tensors: tuple[PlannedTensor, ...]
    notes: tuple[Note, ...] = ()

    @cached_property
    def alignment(self) -> int:
        """Tensors start at multiples of this many bytes: what the keys say, or the format's default."""
        return next((int(kv.value) for kv in self.kv if kv.key == ALIGNMENT_KEY), DEFAULT_ALIGNMENT)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each tensor from the start of the data section, in bytes."""
        return tuple(accumulate(self._padded, initial=0))[:-1]

    @property
    def _padded(self) -> tuple[int, ...]:
        return tuple(pad(t.nbytes, self.alignment) for t in self.tensors)

    @cached_property
    def header(self) -> bytes:
        """Everything before the tensor data, padded to the alignment."""
        parts = [MAGIC, struct.pack("<IQQ", VERSION, len(self.tensors), len(self.kv))]
        parts += [encode_kv(kv) for kv in self.kv]
        parts += [_encode_info(t, offset) for t, offset in zip(self.tensors, self.offsets, strict=True)]
        joined = b"".join(parts)
        return joined + bytes(pad(len(joined), self.alignment) - len(joined))

    @property
    def file_size(self) -> int:
        """Exact size of the output file in bytes."""
        return len(self.header) + sum(self._padded)


def encode_kv(kv: KV) -> bytes:
    """One key as it lies in the file. An array not yet decoded is copied as it is."""
    head = _encode_string(kv.key) + struct.pack("<I", kv.type)
    if kv.type != GGUFValueType.ARRAY:
        return head + _encode_value(kv.type, kv.value)
    assert kv.item_type is not None
    head += struct.pack("<IQ", kv.item_type, len(kv.value))
    if isinstance(kv.value, LazyArray):
        return head + bytes(kv.value.raw)
    return head + _encode_items(kv.item_type, kv.value)


def _encode_items(item_type: GGUFValueType, items: Sequence[Any]) -> bytes:
    if item_type != GGUFValueType.STRING:
        return struct.pack(f"<{len(items)}{SCALARS[item_type]}", *items)
    try:
        texts = list(map(str.encode, items))  # a vocabulary has 150,000: no Python call for each
    except UnicodeEncodeError:  # bytes that were no UTF-8 in the file they come from
        texts = [s.encode("utf-8", "surrogateescape") for s in items]
    lengths = np.fromiter(map(len, texts), dtype="<u8", count=len(texts))
    return _interleave(lengths, b"".join(texts))


def _interleave(lengths: np.ndarray[Any, np.dtype[np.uint64]], joined: bytes) -> bytes:
    """The strings of `joined`, each behind its length in 8 bytes."""
    ends = np.cumsum(lengths + 8, dtype=np.int64)
    starts = np.concatenate(([0], ends[:-1]))  # (strings,): where each length lies
    is_length = np.zeros(len(joined) + 8 * len(lengths), dtype=bool)
    is_length[starts[: len(lengths), None] + np.arange(8)] = True
    out = np.empty(len(is_length), dtype=np.uint8)
    out[is_length] = lengths.view(np.uint8)
    out[~is_length] = np.frombuffer(joined, dtype=np.uint8)
    return out.tobytes()


def _encode_value(vtype: GGUFValueType, value: Any) -> bytes:
    return _encode_string(value) if vtype == GGUFValueType.STRING else struct.pack("<" + SCALARS[vtype], value)


def _encode_string(text: str) -> bytes:
    data = text.encode("utf-8", errors="surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _encode_info(tensor: PlannedTensor, offset: int) -> bytes:
    ne = tensor.shape[::-1]
    return _encode_string(tensor.name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, tensor.type, offset)
