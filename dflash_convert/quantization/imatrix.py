"""An importance matrix: how much an error in each column of a weight matters, as llama.cpp's llama-imatrix measured it.

In: a file, in the GGUF format or in the old binary one. Out: an `Imatrix`. Promised: the importances that llama.cpp's
quantizer takes from the file; every one finite and not negative, or the file is refused with tensor and column.

GGUF: for each weight the sums of squared activations by column (`<name>.in_sum2`) and the tokens counted
(`<name>.counts`, one a matrix of a stack of experts). Old: the means already, times the number of calls.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.layout import Note
from dflash_convert.gguf_io.reader import KV, GGUFFile, open_gguf
from dflash_convert.mapped_file import map_file
from dflash_convert.quantization.file_types import Role
from dflash_convert.quantization.recipes import Choice, role_of
from dflash_convert.quants import TYPES

Array = np.ndarray[Any, np.dtype[Any]]

MAGIC = b"GGUF"
SUMS, COUNTS = ".in_sum2", ".counts"
DATASETS, CHUNK_COUNT, CHUNK_SIZE = "imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size"
MAX_TEXT = 127  # bytes of a text in quantize.imatrix.*
HINT = "make it again with llama-imatrix, or quantize without it"


@dataclass(frozen=True)
class Imatrix:
    """The importances of a file.

    given: the path as it was given, which the quantized file repeats. of: tensor name → importances, float32, flat: of
    each column, and for a stack of matrices one matrix after the other. datasets, n_chunks: what they were measured on,
    empty and 0 where the file does not say.
    """

    given: str
    of: Mapping[str, Array] = field(repr=False)
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0


# -- what a quantized file takes from it -------------------------------------------------------------------------------


def fitting(imatrix: Imatrix, choices: Iterable[Choice]) -> dict[str, Array]:
    """The importances of the tensors that change their type, by name.

    Raises GGUFError: they are not as many as the tensor's columns (times its matrices). Those of token embeddings are
    left out then: llama-imatrix measures there what the output is multiplied with, if anything.
    """
    found = {}
    for tensor in (c.tensor for c in choices if c.type != c.tensor.type and c.tensor.name in imatrix.of):
        importances, due = imatrix.of[tensor.name], tensor.shape[-1] * tensor.n_matrices
        if len(importances) == due:
            found[tensor.name] = importances
        elif role_of(tensor.name) != Role.TOKEN_EMBD:
            raise _refuse(Path(imatrix.given), f"{len(importances)} importances for {tensor.name}, which has {due}")
    return found


def keys_of(imatrix: Imatrix) -> tuple[KV, ...]:
    """What the quantized file says of it; texts are cut where llama.cpp cuts them."""
    count = {"entries_count": len(imatrix.of)} | ({"chunks_count": imatrix.n_chunks} if imatrix.n_chunks > 0 else {})
    text = {"file": imatrix.given} | ({"dataset": imatrix.datasets[0]} if imatrix.datasets else {})
    return (
        *(KV(f"quantize.imatrix.{k}", GGUFValueType.STRING, _cut(v), source="--imatrix") for k, v in text.items()),
        *(KV(f"quantize.imatrix.{k}", GGUFValueType.UINT32, v, source="--imatrix") for k, v in count.items()),
    )


def _cut(text: str) -> str:
    """At most 127 bytes, and no half of a letter."""
    return text.encode("utf-8", errors="replace")[:MAX_TEXT].decode("utf-8", errors="ignore")


def notes_of(imatrix: Imatrix, choices: Iterable[Choice], found: Container[str]) -> Iterator[Note]:
    """A note on the tensors whose new type would make something of importances, but that have none."""
    names = [
        c.tensor.name
        for c in choices
        if c.type != c.tensor.type and c.tensor.name not in found and TYPES[c.type.name].encode_weighted
    ]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Note("info", f"{Path(imatrix.given).name} has no importances for {names[0]}{more}: quantized without")


# -- reading -----------------------------------------------------------------------------------------------------------


def open_imatrix(path: str | os.PathLike[str]) -> Imatrix:
    """Read the file at `path`, in either format.

    Raises GGUFError: it cannot be read, is no importance matrix or a damaged one, or holds an importance that is
    negative or not finite.
    """
    given, path = os.fspath(path), Path(path)
    try:
        with path.open("rb") as f:
            is_gguf = f.read(len(MAGIC)) == MAGIC
    except OSError as e:
        raise GGUFError(f"{path}: {e.strerror or e}") from e
    return _from_gguf(given, open_gguf(path)) if is_gguf else _from_binary(given, path)


def _refuse(path: Path, what: str) -> GGUFError:
    return GGUFError(f"{path.name}: {what}", hint=HINT)


def _checked(path: Path, name: str, importances: Array) -> Array:
    wrong = np.flatnonzero(~(np.isfinite(importances) & (importances >= 0)))
    if wrong.size:
        at = int(wrong[0])
        raise _refuse(path, f"the importance of column {at} of {name} is {importances[at]}")
    return importances


# -- GGUF --------------------------------------------------------------------------------------------------------------


def _from_gguf(given: str, gguf: GGUFFile) -> Imatrix:
    missing = [key for key in (DATASETS, CHUNK_COUNT, CHUNK_SIZE) if key not in gguf.kv]
    if missing:
        raise _refuse(gguf.path, f"has no key {missing[0]}, so it is no importance matrix")
    names = sorted({n.removesuffix(end) for n in gguf.tensors for end in (SUMS, COUNTS) if n.endswith(end)})
    if not names:
        raise _refuse(gguf.path, "an importance matrix without entries")
    of = {name: _checked(gguf.path, name, _means(gguf, name)) for name in names}
    return Imatrix(given, MappingProxyType(of), _datasets(gguf), _n_chunks(gguf))


def _datasets(gguf: GGUFFile) -> tuple[str, ...]:
    kv = gguf.kv[DATASETS]
    return tuple(kv.value) if kv.item_type == GGUFValueType.STRING else ()


def _n_chunks(gguf: GGUFFile) -> int:
    kv = gguf.kv[CHUNK_COUNT]
    if kv.type != GGUFValueType.UINT32:
        raise _refuse(gguf.path, f"the key {CHUNK_COUNT} is of type {kv.type.name}, not UINT32")
    return int(kv.value)


def _means(gguf: GGUFFile, name: str) -> Array:
    """Sums by counts; a matrix that saw no token weighs all columns alike."""
    sums, counts = (_floats(gguf, name, end) for end in (SUMS, COUNTS))
    if not counts.size or not sums.size or sums.size % counts.size:
        raise _refuse(gguf.path, f"{name} has {sums.size} sums, which do not divide by its {counts.size} counts")
    if not (np.isfinite(counts) & (counts >= 0)).all():
        raise _refuse(gguf.path, f"the counts of {name} are not all finite and positive")
    whole = np.floor(counts + np.float32(0.5))[:, None]  # (matrices, 1)
    rows = sums.reshape(counts.size, -1)  # (matrices, columns)
    means = np.divide(rows, whole, out=np.ones_like(rows), where=whole > 0)
    return means.reshape(-1)


def _floats(gguf: GGUFFile, name: str, end: str) -> Array:
    info = gguf.tensors.get(name + end)
    if info is None:
        raise _refuse(gguf.path, f"{name} has no {end.removeprefix('.')}")
    if info.type != GGMLQuantizationType.F32:
        raise _refuse(gguf.path, f"{name}{end} is {info.type.name}, not F32")
    return gguf.raw(name + end).reshape(-1).view("<f4").astype(np.float32)


# -- the old binary format ---------------------------------------------------------------------------------------------


class _Reader:
    """Little-endian numbers from the start of a file; a read beyond its end is refused before memory is taken."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, n: int, what: str) -> memoryview:
        if not 0 <= n <= self.left:
            raise _refuse(self.path, f"no importance matrix, or a truncated one: {what} at byte {self.at} does not fit")
        self.at += n
        return self.data[self.at - n : self.at]

    def integer(self, what: str) -> int:
        (value,) = struct.unpack("<i", self.take(4, what))
        return int(value)


def _from_binary(given: str, path: Path) -> Imatrix:
    reader = _Reader(path, memoryview(map_file(path) if path.stat().st_size else b""))
    of = dict(_entries(reader))
    n_chunks = reader.integer("the number of chunks") if reader.left else 0
    dataset = _text(reader, "the name of the dataset") if reader.left else ""
    return Imatrix(given, MappingProxyType(of), (dataset,) if dataset else (), n_chunks)


def _entries(reader: _Reader) -> Iterator[tuple[str, Array]]:
    count = reader.integer("the number of entries")
    if count < 1:
        raise _refuse(reader.path, f"no importance matrix: it claims {count} entries")
    for i in range(count):
        name = _text(reader, f"the name of entry {i}")
        calls = reader.integer(f"the calls of {name}")
        n = reader.integer(f"the number of importances of {name}")
        sums = np.frombuffer(reader.take(4 * n, f"the importances of {name}"), "<f4").astype(np.float32)
        if n < 1:
            raise _refuse(reader.path, f"{name} has {n} importances")
        yield name, _checked(reader.path, name, sums / np.float32(calls) if calls > 0 else sums)


def _text(reader: _Reader, what: str) -> str:
    raw = bytes(reader.take(reader.integer(f"the length of {what}"), what))
    return raw.split(b"\0")[0].decode("utf-8", errors="replace")
