"""Small input files for tests, made by the formats' own packages (safetensors, gguf), never by the code under test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType, GGUFValueType
from safetensors.numpy import save_file

from dflash_convert.gguf_io.reader import KV

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)


def weights(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Seeded normal weights of any float dtype, bfloat16 among them."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32).astype(dtype)


def make_safetensors(path: Path, tensors: Mapping[str, Array]) -> Path:
    """One safetensors file."""
    save_file(dict(tensors), path)
    return path


def make_checkpoint(
    root: Path,
    tensors: Mapping[str, Array],
    config: Mapping[str, Any] | None = None,
    shards: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """A folder with config.json and weights: one file, or `shards` (file → tensor names) and an index."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(dict(config or {})), encoding="utf-8")
    for file, names in (shards or {"model.safetensors": list(tensors)}).items():
        make_safetensors(root / file, {name: tensors[name] for name in names})
    if shards is not None:
        make_index(root, {name: file for file, names in shards.items() for name in names})
    return root


def make_index(root: Path, weight_map: Mapping[str, Any], name: str = "model.safetensors.index.json") -> Path:
    """An index file: tensor name → shard."""
    path = root / name
    path.write_text(json.dumps({"metadata": {}, "weight_map": dict(weight_map)}), encoding="utf-8")
    return path


def make_gguf(path: Path, kv: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> Path:
    """A GGUF file, by the gguf package's writer.

    kv: plain values, their type being the package's choice, or `KV`s that say it. tensors: float32, float16 or bfloat16
    arrays, or (type, uint8 rows) for blocks.
    """
    writer = GGUFWriter(path, arch=kv.get("general.architecture", "test"))
    for key, value in kv.items():
        if key != "general.architecture":
            _add_key(writer, key, value)
    for name, tensor in (tensors or {}).items():
        _add_tensor(writer, name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, KV):
        writer.add_key_value(key, value.value, value.type, sub_type=value.item_type)
    else:
        writer.add_key_value(key, value, GGUFValueType.get_type(value))


def _add_tensor(writer: GGUFWriter, name: str, tensor: Any) -> None:
    if isinstance(tensor, tuple):
        writer.add_tensor(name, tensor[1], raw_dtype=tensor[0])
    elif tensor.dtype == BF16:
        writer.add_tensor(name, tensor.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor)
