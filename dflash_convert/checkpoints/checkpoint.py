"""A folder of safetensors + config.json → a `Checkpoint`: names, shapes, dtypes and offsets, no data yet.

In: a folder. Out: its tensors, from headers only (`safetensors_header`), held against the index where there is one: a
missing shard, a missing entry and a tensor in the wrong shard each get their own words. Data comes on demand as row
blocks over a mapping, and pages that were read are given back, so that memory does not grow with the model.

Order: shards by name, tensors by name within a shard, which is the order llama.cpp's converter writes them in.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from dflash_convert.checkpoints.safetensors_header import DTYPES, SourceTensor, read_header
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.json_file import read_json
from dflash_convert.mapped_file import give_back, map_file

__all__ = [
    "DTYPES",
    "Array",
    "Checkpoint",
    "SourceTensor",
    "open_checkpoint",
    "open_tensors",
    "read_config",
]

BLOCK_BYTES = 8 << 20  # rows are handed out in blocks of about this size
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth")

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint. `config` is config.json as it stands; `notes` are what was odd but harmless."""

    root: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, SourceTensor]
    maps: Mapping[Path, mmap.mmap] = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> Array:
        """Rows [start, stop) of a tensor seen as a matrix: (rows, row length), stored dtype, a view of the mapping."""
        tensor = self.tensors[name]
        dtype, stop = DTYPES[tensor.dtype], tensor.n_rows if stop is None else min(stop, tensor.n_rows)
        flat = np.frombuffer(
            self.maps[tensor.file],
            dtype,
            count=(stop - start) * tensor.row_length,
            offset=tensor.offset + start * tensor.row_bytes,
        )
        return flat.reshape(stop - start, tensor.row_length)  # (rows, row length)

    def spans(self, name: str, max_bytes: int = BLOCK_BYTES, multiple: int = 1) -> list[tuple[int, int]]:
        """A tensor as (first row, row behind the last) spans of about `max_bytes`, in order.

        multiple: spans (but the last) have a multiple of this many rows.
        """
        tensor = self.tensors[name]
        step = max(1, max_bytes // max(1, tensor.row_bytes) // multiple) * multiple
        return [(start, min(start + step, tensor.n_rows)) for start in range(0, tensor.n_rows, step)]

    def take(self, name: str, start: int, stop: int) -> Array:
        """Rows [start, stop) as a copy; the mapped pages behind them are given back."""
        tensor = self.tensors[name]
        rows = self.rows(name, start, stop).copy()
        begin, end = (tensor.offset + row * tensor.row_bytes for row in (start, stop))
        give_back(self.maps[tensor.file], begin, end)
        return rows

    def blocks(self, name: str, max_bytes: int = BLOCK_BYTES, multiple: int = 1) -> Iterator[tuple[int, Array]]:
        """(first row, rows) of each of `spans`; one block in memory at a time."""
        for start, stop in self.spans(name, max_bytes, multiple):
            yield start, self.take(name, start, stop)

    def float32(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The whole tensor as float32, in its own shape."""
        return self.rows(name).astype(np.float32).reshape(self.tensors[name].shape)


def open_checkpoint(root: Path) -> Checkpoint:
    """Open a checkpoint folder with weights.

    Raises ConfigError: no config.json, or not JSON. CheckpointError: no weights, shards missing or damaged.
    """
    index = _find_index(root)
    tensors, notes = _loose(root) if index is None else _indexed(root, index)
    maps = {f: map_file(f) for f in {t.file for t in tensors.values()}}
    return Checkpoint(root, read_config(root), MappingProxyType(tensors), MappingProxyType(maps), notes)


def open_tensors(root: Path, names: Collection[str]) -> Checkpoint:
    """Like `open_checkpoint`, but only with the shards that hold any of `names`: the others need not be there.

    Raises CheckpointError: none of `names` is in the folder's weights, or its shard is missing or damaged.
    """
    index = _find_index(root)
    there = _loose(root)[0] if index is None else _placed(index, names)
    found = {name: tensor for name, tensor in there.items() if name in names}
    if not found:
        raise CheckpointError(f"{root}: none of {', '.join(sorted(names))} is in its weights")
    maps = {f: map_file(f) for f in {t.file for t in found.values()}}
    return Checkpoint(root, read_config(root), MappingProxyType(found), MappingProxyType(maps))


# -- config.json ---------------------------------------------------------------------------------------------------


def read_config(root: Path) -> dict[str, Any]:
    """config.json of a folder. Raises ConfigError: there is none, or it is not a JSON object."""
    if not (root / "config.json").is_file():
        raise ConfigError(
            f"{root}: there is no config.json", hint="name the folder that holds config.json and the weights"
        )
    return read_json(root / "config.json")


# -- which files ---------------------------------------------------------------------------------------------------


def _find_index(root: Path) -> Path | None:
    found = sorted(root.glob("*.safetensors.index.json"))
    usual = [p for p in found if p.name == INDEX] or found
    if len(usual) > 1:
        names = ", ".join(p.name for p in found)
        raise CheckpointError(
            f"{root}: several indexes and none is {INDEX}: {names}", hint=f"rename the right one to {INDEX}"
        )
    return usual[0] if usual else None


def _loose(root: Path) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """A folder without an index: every *.safetensors in it, but for Mistral's second copy."""
    files = _weight_files(root)
    if not files:
        raise _no_weights(root)
    kept = [f for f in files if not f.name.startswith("consolidated")] or files
    return _merge(kept), _left_out(files, kept, "a second copy")


def _indexed(root: Path, index: Path) -> tuple[dict[str, SourceTensor], tuple[str, ...]]:
    """A folder with an index: the shards it names, each tensor from the shard that it names for it.

    Where a tensor lies in another shard too, that copy is an older one: repositories that overlay a fix on an upload
    are published so.
    """
    places = _weight_map(index)
    shards = sorted(set(places.values()))
    _check_shards_exist(index, places)
    headers = {shard: read_header(shard) for shard in shards}
    _check_against_index(index, places, headers)
    stale = [(n, s) for s in shards for n in headers[s] if n in places and places[n] != s]
    found = _joined({s: {n: t for n, t in headers[s].items() if (n, s) not in set(stale)} for s in shards})
    extra = [n for n in found if n not in places]
    notes = (
        *_left_out(_weight_files(root), shards, f"not named in {index.name}"),
        *_counted(stale, f"older copies of tensors were left out ({index.name} names another shard)"),
        *_counted([(n, found[n].file) for n in extra], f"tensors of a shard are not in {index.name}"),
    )
    return found, notes


def _placed(index: Path, names: Collection[str]) -> dict[str, SourceTensor]:
    """Some tensors of an index, from the shards that it names for them."""
    places = {name: shard for name, shard in _weight_map(index).items() if name in names}
    _check_shards_exist(index, places)
    headers = {shard: read_header(shard) for shard in sorted(set(places.values()))}
    _check_against_index(index, places, headers)
    return {name: headers[shard][name] for name, shard in places.items()}


def _counted(places: Sequence[tuple[str, Path]], what: str) -> tuple[str, ...]:
    return (f"{len(places)} {what}, such as {places[0][0]} in {places[0][1].name}",) if places else ()


def _weight_files(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("*.safetensors") if p.is_file())


def _left_out(files: Iterable[Path], kept: Iterable[Path], why: str) -> tuple[str, ...]:
    return tuple(f"{f.name} is {why} and was left out" for f in files if f not in set(kept))


def _no_weights(root: Path) -> CheckpointError:
    if not root.is_dir():
        return CheckpointError(f"{root} is not a folder", hint="name the folder that holds config.json and the weights")
    there = sorted(p.name for p in root.iterdir())
    pickles = [name for name in there if name.endswith(PICKLES)]
    hint = f"only pickle files are there ({', '.join(pickles)}); they are not read: get the safetensors version"
    return CheckpointError(
        f"no weights found in {root}: looked for *.safetensors.index.json and *.safetensors; "
        f"files there: {', '.join(there) or 'none'}",
        hint=hint if pickles else "name the folder that holds the weights",
    )


# -- the index -----------------------------------------------------------------------------------------------------


def _weight_map(index: Path) -> dict[str, Path]:
    """Tensor name → shard, every shard being inside the folder of the index."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index.name}: there is no 'weight_map' in it", hint="download the index again")
    for name, file in weight_map.items():
        if not isinstance(file, str) or PurePosixPath(file).is_absolute() or ".." in PurePosixPath(file).parts:
            raise CheckpointError(
                f"{index.name}: {name} is said to be in {file!r}, which is no file of this folder",
                hint="do not use an index from a source you do not trust",
            )
    return {name: index.parent / file for name, file in weight_map.items()}


def _check_shards_exist(index: Path, places: Mapping[str, Path]) -> None:
    missing = sorted({shard for shard in places.values() if not shard.is_file()})
    if missing:
        counts = ", ".join(f"{s.name} ({sum(p == s for p in places.values())} tensors)" for s in missing)
        raise CheckpointError(
            f"{index.name} names {len(missing)} shard(s) that are not there: {counts}",
            hint="finish the download: every shard named in the index is needed",
        )


def _check_against_index(
    index: Path, places: Mapping[str, Path], headers: Mapping[Path, Mapping[str, SourceTensor]]
) -> None:
    """Each tensor of the index is in the shard that is named for it."""
    lost = sorted(name for name, shard in places.items() if name not in headers[shard])
    moved = [name for name in lost if any(name in header for header in headers.values())]
    absent = [name for name in lost if name not in moved]
    for names, what in (
        (absent, f"is in {index.name} but in no shard"),
        (moved, f"is not in the shard that {index.name} names"),
    ):
        if names:
            raise CheckpointError(
                f"{names[0]} {what} ({len(names)} such tensors)",
                hint="index and shards are of different revisions; download both again",
            )


def _merge(files: Iterable[Path]) -> dict[str, SourceTensor]:
    """The tensors of several files in one. Raises CheckpointError: the same name in two of them."""
    return _joined({file: read_header(file) for file in files})


def _joined(headers: Mapping[Path, Mapping[str, SourceTensor]]) -> dict[str, SourceTensor]:
    merged: dict[str, SourceTensor] = {}
    for file, header in headers.items():
        for name, tensor in header.items():
            if name in merged:
                raise CheckpointError(
                    f"{name} is in both {merged[name].file.name} and {file.name}",
                    hint="keep the weights of one model in the folder, or the index that says which files count",
                )
            merged[name] = tensor
    return merged
