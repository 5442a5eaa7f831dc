"""Files for the verifier's tests: good ones, made by the converter, and the same with one fault planted.

`planted` rewrites a GGUF with some keys or tensors changed; everything else is copied as it lies in the file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf.quants
import ml_dtypes  # noqa: F401  numpy knows bfloat16 once this is imported
import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType
from safetensors.numpy import load_file, save_file

from dflash_convert.conversion.run import convert
from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV, GGUFFile, open_gguf
from dflash_convert.gguf_io.writer import write
from dflash_convert.quants import quantize
from dflash_convert.verification.report import FAIL, Check, Report

Array = np.ndarray[Any, np.dtype[Any]]
Change = Callable[[Any], Any]

DATA = Path(__file__).parent / "data"
CASES, ENGINE, PAIR = DATA / "convert", DATA / "engine", DATA / "tiny-pair"
DRAFT, TARGET = PAIR / "draft", PAIR / "target"
GONE: Any = object()
MROPE = "dflash-mrope-target"
MUSE = "muse-assistant"
GOLDEN = (
    "dflash-flat", "dflash-yarn", "dflash-nested-swa", "dflash-odd-shards", "dflash-mimo", MROPE, MUSE, "dflash2",
    "dspark-deepspec", "dspark-gemma4", "dspark-specforge", "dspark-speculators",
)  # fmt: skip
TARGETS = {MROPE: "target-mrope", MUSE: "target-muse"}


def source_of(case: str) -> Path:
    return CASES / case / "draft"


def target_of(case: str) -> Path:
    return CASES / TARGETS.get(case, "target-qwen3")


def golden_file(case: str, folder: Path) -> Path:
    """A golden draft, converted."""
    return convert(source_of(case), target_of(case), folder / f"{case}.gguf", force=True)


def variant_source(variant: str, folder: Path) -> Path:
    """A variant of the trained draft as a checkpoint folder: its config, and its tensors over the draft's."""
    folder.mkdir()
    extra = ENGINE / variant / "extra.safetensors"
    tensors = load_file(DRAFT / "model.safetensors") | (load_file(extra) if extra.exists() else {})
    shutil.copyfile(ENGINE / variant / "config.json", folder / "config.json")
    save_file(tensors, folder / "model.safetensors")
    return folder


def planted(
    path: Path,
    out: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
) -> Path:
    """`path` written again as `out` with faults.

    keys: name → a new value of the same type, a function of the old one, a `KV`, or GONE. tensors: name → new bytes
    (rows, bytes), a function of the old ones, float32 values to be stored in the old type, or GONE; a new name is added
    as F32. types: name → the type to store the tensor in.
    """
    gguf, keys, tensors, types = open_gguf(path), keys or {}, tensors or {}, types or {}
    kv = [_changed(gguf.kv.get(name), name, keys.get(name, gguf.kv.get(name))) for name in {**gguf.kv, **keys}]
    names = [name for name in {**gguf.tensors, **tensors} if tensors.get(name) is not GONE]
    rows = {name: _rows(gguf, name, tensors.get(name), types.get(name)) for name in names}
    plan = Plan(tuple(k for k in kv if k is not None), tuple(planned for planned, _ in rows.values()))
    return write(plan, lambda t: [rows[t.name][1].tobytes()], out, force=True)


def _changed(old: KV | None, name: str, value: Any) -> KV | None:
    if value is GONE or isinstance(value, KV):
        return None if value is GONE else value
    assert old is not None, f"{name} is new: give a KV"
    value = value(old.value) if callable(value) else value
    return replace(old, value=value)


def _rows(gguf: GGUFFile, name: str, value: Any, type_name: str | None) -> tuple[PlannedTensor, Array]:
    """A planned tensor and its bytes."""
    info = gguf.tensors.get(name)
    if info is None:
        return PlannedTensor(name, value.shape, GGMLQuantizationType.F32, name), value.astype(np.float32)
    raw = gguf.raw(name).copy()
    value = value(raw) if callable(value) else raw if value is None else value
    kind = GGMLQuantizationType[type_name] if type_name else info.type
    if type_name and value.dtype == np.uint8:
        value = gguf_values(raw, info.type)
    if value.dtype != np.uint8:
        value = encoded(value.reshape(info.n_rows, -1), kind)
    return PlannedTensor(name, info.shape, kind, name), value


def encoded(values: Array, kind: GGMLQuantizationType) -> Array:
    """(rows, cols) float32 → (rows, bytes)."""
    if kind.name in ("Q4_0", "Q4_1"):
        return np.asarray(gguf.quants.quantize(values, kind))
    return quantize(np.ascontiguousarray(values, np.float32), kind.name)


def gguf_values(raw: Array, kind: GGMLQuantizationType) -> Array:
    """(rows, bytes) → (rows, cols) float32."""
    return np.asarray(gguf.quants.dequantize(raw, kind), np.float32)


def values_of(path: Path, name: str) -> Array:
    """A tensor of a file, dequantized, (rows, cols)."""
    file = open_gguf(path)
    return gguf_values(file.raw(name), file.tensors[name].type).copy()


def bytes_of(path: Path, name: str) -> Array:
    """A tensor's bytes, a copy, (rows, bytes)."""
    return open_gguf(path).raw(name).copy()


def flag(name: str, value: bool) -> KV:
    return KV(name, GGUFValueType.BOOL, value)


def number(name: str, value: int) -> KV:
    return KV(name, GGUFValueType.UINT32, value)


def ints(name: str, value: Sequence[int]) -> KV:
    return KV(name, GGUFValueType.ARRAY, list(value), GGUFValueType.INT32)


def failures(report: Report) -> list[Check]:
    """Every failed check of every level, in the report's order."""
    return [check for level in report.levels for check in level.checks if check.status == FAIL]


def messages(report: Report) -> list[str]:
    return [check.message for check in failures(report)]
