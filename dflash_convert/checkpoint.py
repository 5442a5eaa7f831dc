"""A folder of safetensors + config.json → a `Checkpoint`: names, shapes, dtypes and offsets, no data yet.

Only headers are read. Each file's size is proved by arithmetic (8 + header + data) before anything is believed, so a
Git-LFS pointer, an HTML page, a cut download and a missing shard each get their own words. Data comes on demand as row
blocks over a mapping, and pages that were read are given back, so that memory does not grow with the model.

Order: shards by name, tensors by name within a shard, which is the order llama.cpp's converter writes them in.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from dflash_convert.errors import CheckpointError, ConfigError

BLOCK_BYTES = 8 << 20  # rows are handed out in blocks of about this size
MAX_HEADER = 100 << 20  # the safetensors library's own limit

DTYPES: Mapping[str, np.dtype[Any]] = MappingProxyType({
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
})  # fmt: skip

Array = np.ndarray[Any, np.dtype[Any]]


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
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    @property
    def row_length(self) -> int:
        return self.shape[-1] if self.shape else 1


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. `config` is config.json as it stands; `notes` are what was odd but harmless."""

    root: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    maps: Mapping[Path, mmap.mmap] = field(repr=False, compare=False)
    notes: tuple[str, ...] = field(default=())

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows [start, stop) of a tensor seen as a matrix: (rows, row length), stored dtype, a view of the mapping."""
        tensor = self.tensors[name]
        dtype, stop = DTYPES[tensor.dtype], tensor.n_rows if stop is None else min(stop, tensor.n_rows)
        row = tensor.row_length * dtype.itemsize
        flat = np.frombuffer(
            self.maps[tensor.file], dtype, count=(stop - start) * tensor.row_length, offset=tensor.offset + start * row
        )
        return flat.reshape(stop - start, tensor.row_length)

    def blocks(self, name: str, max_bytes: int = BLOCK_BYTES, multiple: int = 1) -> Iterator[tuple[int, Array]]:
        """(first row, rows) blocks of about `max_bytes`, in order; the pages behind are given back as it goes.

        multiple: blocks (but the last) have a multiple of this many rows.
        """
        tensor = self.tensors[name]
        row = max(1, tensor.row_length * DTYPES[tensor.dtype].itemsize)
        step = max(1, max_bytes // row // multiple) * multiple
        for start in range(0, tensor.n_rows, step):
            yield start, self.rows(name, start, start + step)
            _release(self.maps[tensor.file], tensor.offset + start * row, step * row)

    def float32(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The whole tensor as float32, in its own shape."""
        return self.rows(name).astype(np.float32).reshape(self.tensors[name].shape)


def open_checkpoint(root: Path) -> Checkpoint:
    """Open a checkpoint folder with weights.

    Raises ConfigError: no config.json, or not JSON. CheckpointError: no weights, shards missing or damaged.
    """
    tensors, notes = _index(root)
    maps = {f: _map(f) for f in {t.file for t in tensors.values()}}
    return Checkpoint(root, read_config(root), MappingProxyType(tensors), MappingProxyType(maps), notes)


def read_config(root: Path) -> dict[str, Any]:
    """config.json of a folder."""
    if not (root / "config.json").is_file():
        raise ConfigError(
            f"{root}: there is no config.json", hint="name the folder that holds config.json and the weights"
        )
    return read_json(root / "config.json")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ConfigError says where it is broken."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: not valid JSON: {e}", hint="download the file again") from e
    except OSError as e:
        raise ConfigError(f"{path}: {e.strerror or e}") from e
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: an object was expected, not {type(value).__name__}")
    return value


def _index(root: Path) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """All tensors of a folder: through its index if it has one, else every *.safetensors in it."""
    index = _find_index(root)
    if index is None:
        files, notes = _loose_files(root)
        return _merge([_read_header(f) for f in files]), notes
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index.name}: there is no 'weight_map' in it", hint="download the index again")
    _check_shards_exist(index, weight_map)
    found = _merge([_read_header(root / name) for name in sorted(set(weight_map.values()))])
    _check_against_index(index, weight_map, found)
    return found, ()


def _find_index(root: Path) -> Path | None:
    found = sorted(root.glob("*.safetensors.index.json"))
    preferred = root / "model.safetensors.index.json"
    if preferred in found or not found:
        return preferred if found else None
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise CheckpointError(f"{root}: several indexes and none is model.safetensors.index.json: {names}")
    return found[0]


def _loose_files(root: Path) -> tuple[list[Path], tuple[str, ...]]:
    files = sorted(root.glob("*.safetensors"))
    twins = [f for f in files if f.name.startswith("consolidated")]
    if twins and len(twins) < len(files):
        return [f for f in files if f not in twins], tuple(f"{f.name} is a second copy and was left out" for f in twins)
    if not files:
        there = sorted(p.name for p in root.iterdir())
        pickles = [n for n in there if n.endswith((".bin", ".pt", ".pth"))]
        hint = f"only pickle files are there ({', '.join(pickles)}); they are not read: get the safetensors version"
        raise CheckpointError(
            f"no weights found in {root}: looked for *.safetensors.index.json and *.safetensors; "
            f"files there: {', '.join(there) or 'none'}",
            hint=hint if pickles else "name the folder that holds the weights",
        )
    return files, ()


def _check_shards_exist(index: Path, weight_map: Mapping[str, str]) -> None:
    missing = sorted({f for f in weight_map.values() if not (index.parent / f).is_file()})
    if missing:
        counts = ", ".join(f"{f} ({sum(v == f for v in weight_map.values())} tensors)" for f in missing)
        raise CheckpointError(
            f"{index.name} names {len(missing)} shard(s) that are not there: {counts}",
            hint="finish the download: every shard named in the index is needed",
        )


def _check_against_index(index: Path, weight_map: Mapping[str, str], found: Mapping[str, SourceTensor]) -> None:
    absent = sorted(weight_map.keys() - found.keys())
    extra = sorted(found.keys() - weight_map.keys())
    moved = sorted(n for n, f in weight_map.items() if n in found and found[n].file.name != f)
    for names, what in (
        (absent, "is in {index} but in no shard"),
        (extra, "is in a shard but not in {index}"),
        (moved, "is not in the shard that {index} names"),
    ):
        if names:
            raise CheckpointError(
                f"{names[0]} {what.format(index=index.name)} ({len(names)} such tensors)",
                hint="index and shards are of different revisions; download both again",
            )


def _merge(shards: Sequence[Mapping[str, SourceTensor]]) -> dict[str, SourceTensor]:
    merged: dict[str, SourceTensor] = {}
    for shard in shards:
        for name, tensor in shard.items():
            if name in merged:
                raise CheckpointError(f"{name} is in both {merged[name].file.name} and {tensor.file.name}")
            merged[name] = tensor
    return merged


def _read_header(path: Path) -> dict[str, SourceTensor]:
    """The tensors of one safetensors file, sorted by name, with every byte of the file accounted for."""
    size = path.stat().st_size
    with path.open("rb") as f:
        head = f.read(8)
        _refuse_lookalikes(path, head + f.read(256), size)
        (length,) = struct.unpack("<Q", head)
        if length > min(size - 8, MAX_HEADER):
            raise CheckpointError(
                f"{path.name} is not a safetensors file, or is cut: its first 8 bytes announce a header of {length} bytes, "
                f"the file has {size}",
                hint="download it again",
            )
        f.seek(8)
        header = _parse_header(path, f.read(length))
    tensors = {n: _tensor(path, n, header[n], 8 + length) for n in sorted(header) if n != "__metadata__"}
    _check_extent(path, tensors, 8 + length, size)
    return tensors


def _refuse_lookalikes(path: Path, head: bytes, size: int) -> None:
    """Files that only look like weights: a Git-LFS pointer, a web page, nothing at all."""
    if head.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path.name} is a {size}-byte Git-LFS pointer, not the weights", hint="run `git lfs pull`, or `hf download`"
        )
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path.name} is a web page, not weights", hint="download it with `hf download`")
    if size < 8:
        raise CheckpointError(f"{path.name} has {size} bytes: not a safetensors file", hint="download it again")


def _parse_header(path: Path, data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except ValueError as e:
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not JSON: {e}") from e
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name} is not a safetensors file: its header is not an object")
    return header


def _tensor(path: Path, name: str, entry: Any, start: int) -> SourceTensor:
    try:
        dtype, shape, (begin, end) = str(entry["dtype"]), tuple(map(int, entry["shape"])), entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as e:
        raise CheckpointError(f"{path.name}: the header entry of {name} is damaged: {entry!r}") from e
    if dtype not in DTYPES:
        raise CheckpointError(f"{path.name}: {name} has the dtype {dtype}, which is not supported")
    wanted = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
    if end - begin != wanted:
        raise CheckpointError(
            f"{path.name}: {name} is {dtype} of shape {list(shape)}, so {wanted} bytes, but the header gives it "
            f"{end - begin}",
            hint="download the file again",
        )
    return SourceTensor(name, dtype, shape, path, start + begin, wanted)


def _check_extent(path: Path, tensors: Mapping[str, SourceTensor], start: int, size: int) -> None:
    """Tensors must lie end to end and fill the file exactly."""
    at = start
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != at:
            kind = "overlaps the tensor before it" if tensor.offset < at else "leaves a gap before it"
            raise CheckpointError(f"{path.name}: {tensor.name} {kind}: at byte {tensor.offset}, not {at}")
        at += tensor.nbytes
    if at != size:
        state = f"is truncated: {at - size} bytes are missing" if at > size else f"has {size - at} bytes too many"
        raise CheckpointError(
            f"{path.name} {state} (8 + header + data = {at}, the file has {size})",
            hint=f"download {path.name} again",
        )


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)


def _release(mapped: mmap.mmap, offset: int, length: int) -> None:
    """Give back the pages of a range that was read (they stay in the system's cache)."""
    if hasattr(mmap, "MADV_DONTNEED"):
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, begin, min(length + offset - begin, len(mapped) - begin))
