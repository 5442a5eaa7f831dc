"""`mask_embedding.pt`: the mask token's own embedding, read without torch and without running anything in the file.

A .pt file is a zip with a pickle that says how tensors are rebuilt from the raw bytes beside it. A pickle is a program;
this reader lets it name two functions (of tensor rebuilding, both ours) and the types of storages, and nothing else.
Its opcodes are looked through before any is run: only those that torch writes are taken, as others change objects in
place or take memory by a number that the file makes up.

The file holds a dict with `embedding` (width) and `mask_token_id`, or the tensor alone.
Source: XiaomiMiMo/MiMo-V2.5, dflash/; torch's serialization format since 1.6.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

from dflash_convert.errors import CheckpointError
from dflash_convert.json_file import brief

Array = np.ndarray[Any, np.dtype[Any]]

MAX_BYTES = 1 << 26  # an embedding has some 10 kB; more than this is something else
MAX_PICKLE = 1 << 20  # of some 200 bytes
STORAGES: Mapping[str, np.dtype[Any]] = MappingProxyType({
    "FloatStorage": np.dtype("<f4"), "HalfStorage": np.dtype("<f2"), "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype("<f8"), "LongStorage": np.dtype("<i8"), "IntStorage": np.dtype("<i4"),
})  # fmt: skip
OPCODES = frozenset({
    "PROTO", "STOP", "GLOBAL", "BINPERSID", "REDUCE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "MARK", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_DICT", "SETITEM", "SETITEMS",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE",
})  # fmt: skip
HINT = "it must hold a tensor, or a dict with `embedding` and `mask_token_id`, saved by torch.save"
DISTRUST = "do not open this file with torch.load either, unless you trust who made it"


@dataclass(frozen=True)
class MaskEmbedding:
    """The mask token's row. values: (width,). token_id: whose row it is, None where the file does not say."""

    token_id: int | None
    values: Array


def read_mask_embedding(path: Path) -> MaskEmbedding:
    """Read `path`. Raises CheckpointError: not such a file, or one that asks for anything but tensors."""
    try:
        saved = load_tensors(path)
    except CheckpointError as e:
        raise CheckpointError(f"{path}: {e.message}", hint=e.hint) from None
    except Exception as e:  # a damaged pickle can fail in any way it likes
        why = f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
        raise CheckpointError(f"{path}: cannot be read as a torch file: {why}", hint=HINT) from e
    token, values = (saved.get("mask_token_id"), saved.get("embedding")) if isinstance(saved, dict) else (None, saved)
    if isinstance(token, np.ndarray) and token.size == 1 and token.dtype.kind == "i":
        token = int(token.reshape(-1)[0])
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fV" or not values.size:
        raise CheckpointError(f"{path}: there is no embedding in it", hint=HINT)
    if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
        raise CheckpointError(f"{path}: mask_token_id is {brief(token)}, which is no token id", hint=HINT)
    if values.ndim == 2 and values.shape[0] == 1:
        values = values[0]
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32)).all()
    if not finite:
        raise CheckpointError(
            f"{path}: the embedding has values that are no numbers", hint="the file is damaged: download it again"
        )
    return MaskEmbedding(token, values)


def load_tensors(path: Path) -> Any:
    """What a .pt file holds, its tensors as arrays. Raises CheckpointError, and whatever a broken pickle provokes."""
    if not zipfile.is_zipfile(path):
        raise CheckpointError("this is no torch file (a zip archive, as torch writes since 1.6)", hint=HINT)
    with zipfile.ZipFile(path) as archive:
        folder = _checked_folder(archive.infolist())
        data = archive.read(f"{folder}data.pkl")
        _check_byte_order(archive, folder)
        _check_opcodes(data)
        return _Tensors(data, lambda key: archive.read(f"{folder}data/{key}")).load()


def _checked_folder(entries: Sequence[zipfile.ZipInfo]) -> str:
    """Where in the archive everything lies: torch has one folder, of any name, and compresses nothing."""
    pickles = [e for e in entries if e.filename == "data.pkl" or e.filename.endswith("/data.pkl")]
    size = sum(e.file_size for e in entries)
    if len(pickles) != 1 or size > MAX_BYTES or pickles[0].file_size > MAX_PICKLE:
        raise CheckpointError(
            f"this is no torch file of one embedding ({len(pickles)} pickles, {size} bytes unpacked)", hint=HINT
        )
    if any(e.compress_type != zipfile.ZIP_STORED for e in entries):
        raise CheckpointError("this is no torch file: its archive is compressed", hint=HINT)
    return pickles[0].filename.removesuffix("data.pkl")


def _check_byte_order(archive: zipfile.ZipFile, folder: str) -> None:
    """torch before 2.1 does not say, and wrote no other than little."""
    name = f"{folder}byteorder"
    order = archive.read(name) if name in archive.namelist() else b"little"
    if order != b"little":
        raise CheckpointError(
            f"the byte order is {brief(order.decode('latin-1'))}; only little endian is read",
            hint="save it again on a little-endian machine",
        )


def _check_opcodes(data: bytes) -> None:
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name not in OPCODES or (opcode.name == "LONG_BINPUT" and int(argument or 0) > len(data)):
            raise CheckpointError(
                f"its pickle uses {opcode.name}, which is nothing that a tensor needs: it was not loaded", hint=DISTRUST
            )


@dataclass(frozen=True)
class _Storage:
    """The raw bytes behind tensors, and how to read them."""

    values: Array


class _Tensors(pickle.Unpickler):
    """A pickle that may rebuild tensors and do nothing else: every other name it asks for is refused."""

    def __init__(self, data: bytes, read: Callable[[str], bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self._read = read

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (found := ALLOWED.get((module, name))) is None:
            raise CheckpointError(
                f"it asks for {brief(f'{module}.{name}')}, which is nothing that a tensor of floats needs: "
                "it was not loaded",
                hint=HINT if module in ("torch", "torch._utils", "torch.storage") else DISTRUST,
            )
        return found

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(key, str) or not key.isalnum():
            raise CheckpointError(f"a storage is described as {brief(pid)}", hint=HINT)
        return _Storage(np.frombuffer(self._read(key), dtype=dtype, count=count))


def _rebuild(storage: _Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Array:
    """A tensor over a storage; only one that lies there row by row. Steps along a dimension of 1 mean nothing."""
    wanted = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    odd = any(n != 1 and step != here for n, step, here in zip(shape, stride, wanted, strict=True))
    stop = offset + math.prod(shape)
    if odd or not 0 <= offset <= stop <= storage.values.size:
        raise CheckpointError(
            f"a tensor of shape {brief(shape)} and stride {brief(stride)} at {brief(offset)} of "
            f"{storage.values.size} values was not expected",
            hint=f"{HINT}; make it contiguous() before",
        )
    return storage.values[offset:stop].reshape(shape)


def _parameter(values: Array, *_: Any) -> Array:
    return values


ALLOWED: Mapping[tuple[str, str], Any] = MappingProxyType({
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
})  # fmt: skip
