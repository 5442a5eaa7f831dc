"""`mask_embedding.pt`: the mask token's own embedding, read without torch and without running anything in the file.

A .pt file is a zip with a pickle that says how tensors are rebuilt from the raw bytes beside it. A pickle is a program;
this reader lets it name two functions (of tensor rebuilding, both ours) and the types of storages, and nothing else.

The file holds a dict with `embedding` (width) and `mask_token_id`, or the tensor alone.
Source: XiaomiMiMo/MiMo-V2.5, dflash/; torch's serialization format since 1.6.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from dflash_convert.errors import CheckpointError

Array = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES = 1 << 26  # an embedding has some 10 kB; more than this is something else
STORAGES: Mapping[str, np.dtype[Any]] = MappingProxyType({
    "FloatStorage": np.dtype("<f4"), "HalfStorage": np.dtype("<f2"), "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype("<f8"), "LongStorage": np.dtype("<i8"), "IntStorage": np.dtype("<i4"),
})  # fmt: skip
HINT = "it must hold a tensor, or a dict with `embedding` and `mask_token_id`, saved by torch.save"


@dataclass(frozen=True)
class MaskEmbedding:
    """The mask token's row. values: (width,). token_id: whose row it is, None where the file does not say."""

    token_id: int | None
    values: Array


def read_mask_embedding(path: Path) -> MaskEmbedding:
    """Read `path`. Raises CheckpointError: not such a file, or one that asks for anything but tensors."""
    try:
        saved = load_tensors(path)
    except CheckpointError:
        raise
    except Exception as e:  # a damaged pickle can fail in any way it likes
        raise CheckpointError(f"{path}: cannot be read as a torch file: {type(e).__name__}: {e}", hint=HINT) from e
    token, values = (saved.get("mask_token_id"), saved.get("embedding")) if isinstance(saved, dict) else (None, saved)
    if isinstance(token, np.ndarray) and token.size == 1 and token.dtype.kind == "i":
        token = int(token.reshape(-1)[0])
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fV" or not values.size:
        raise CheckpointError(f"{path} has no embedding in it", hint=HINT)
    if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
        raise CheckpointError(f"{path}: mask_token_id is {token!r}, which is no token id", hint=HINT)
    if values.ndim == 2 and values.shape[0] == 1:
        values = values[0]
    if not np.isfinite(values.astype(np.float32)).all():
        raise CheckpointError(
            f"{path}: the embedding has values that are no numbers", hint="the file is damaged: download it again"
        )
    return MaskEmbedding(token, values)


def load_tensors(path: Path) -> Any:
    """What a .pt file holds, its tensors as arrays. Raises CheckpointError, and whatever a broken pickle provokes."""
    if not zipfile.is_zipfile(path):
        raise CheckpointError(f"{path} is no torch file (a zip archive, as torch writes since 1.6)", hint=HINT)
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl"]
        if len(pickles) != 1 or sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
            raise CheckpointError(f"{path} is no torch file of one embedding", hint=HINT)
        folder = pickles[0].removesuffix("data.pkl")
        return _Tensors(archive.read(pickles[0]), lambda key: archive.read(f"{folder}data/{key}"), path).load()


@dataclass(frozen=True)
class _Storage:
    """The raw bytes behind tensors, and how to read them."""

    values: Array


class _Tensors(pickle.Unpickler):
    """A pickle that may rebuild tensors and do nothing else: every other name it asks for is refused."""

    def __init__(self, data: bytes, read: Callable[[str], bytes], path: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._read, self._path = read, path

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (found := ALLOWED.get((module, name))) is None:
            raise CheckpointError(
                f"{self._path} asks for {module}.{name}, which is nothing that a tensor needs: it was not loaded",
                hint="do not open this file with torch.load either, unless you trust who made it",
            )
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(key, str) or not key.isalnum():
            raise CheckpointError(f"{self._path}: a storage is described as {pid!r}", hint=HINT)
        return _Storage(np.frombuffer(self._read(key), dtype=dtype, count=count))


def _rebuild(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Array:
    """A tensor over a storage; only one that lies there row by row."""
    contiguous = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    stop = offset + math.prod(shape)
    if tuple(stride) != contiguous or not 0 <= offset <= stop <= storage.values.size:
        raise CheckpointError(f"a tensor of shape {list(shape)} and stride {list(stride)} was not expected", hint=HINT)
    return storage.values[offset:stop].reshape(shape)


def _parameter(values: Array, *_: Any) -> Array:
    return values


ALLOWED: Mapping[tuple[str, str], Any] = MappingProxyType({
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
})  # fmt: skip
