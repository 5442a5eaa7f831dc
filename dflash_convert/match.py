"""A checkpoint's tensors against the schema's rows: which family it is, and which tensor goes where.

Nothing is lost in silence: each checkpoint tensor is used once, ignored by a row with a reason, or refused by name with
what it shows the checkpoint to be. Shapes are checked against the config, in the config's own words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.config import ModelConfig, architecture
from dflash_convert.errors import CheckpointError
from dflash_convert.families import FAMILIES, Family
from dflash_convert.schema import (
    FOREIGN_FILES,
    FOREIGN_KEYS,
    FOREIGN_TENSORS,
    PREFIXES,
    UNPLACED,
    IgnoredRow,
    RefusedKey,
    RefusedTensor,
    TensorRow,
)
from dflash_convert.targets import TARGETS, Target

FLOATS = ("F32", "F16", "BF16")  # what weights may be stored as
KNOWN_KIND = "this version converts plain DFlash drafts"

Matched = tuple[SourceTensor, TensorRow, str]  # a checkpoint tensor, its row, and its name in the GGUF


def bare(name: str) -> str:
    """A tensor's name without what some checkpoints put before all of them (`model.`)."""
    return next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)


def classify(checkpoint: Checkpoint) -> Family | Target:
    """Which family or target a checkpoint is, by its tensors first and its label last. Raises CheckpointError."""
    names = {bare(n) for n in checkpoint.tensors}
    _refuse_foreign(checkpoint, names)
    for family in FAMILIES:
        if family.is_mine(checkpoint.config, names):
            return family
    label = architecture(checkpoint.config)
    for target in TARGETS:
        if label in target.architectures:
            return target
    raise CheckpointError(
        f"{checkpoint.root}: neither a DFlash draft (no fc.weight and hidden_norm.weight) nor a known target "
        f"(architecture: {label or 'none given'})",
        hint=f"targets that can be converted: {', '.join(a for t in TARGETS for a in t.architectures)}",
    )


def match(
    checkpoint: Checkpoint, rows: Sequence[TensorRow], ignored: Sequence[IgnoredRow], config: ModelConfig
) -> list[Matched]:
    """Each checkpoint tensor with its row and GGUF name, in the checkpoint's order; shapes and types checked."""
    wanted = expand(rows, config.num_hidden_layers)
    found: dict[str, Matched] = {}
    for tensor in checkpoint.tensors.values():
        name = bare(tensor.name)
        if name in found:
            raise CheckpointError(f"{found[name][0].name} and {tensor.name} are one tensor under two names")
        if name in wanted:
            _check(tensor, wanted[name][0], config)
            found[name] = (tensor, *wanted[name])
        elif not any(fnmatchcase(name, i.pattern) for i in ignored):
            raise _unexpected(name, config)
    _check_complete(checkpoint, [n for n, (row, _) in wanted.items() if row.required and n not in found])
    return list(found.values())


def expand(rows: Sequence[TensorRow], n_layers: int) -> dict[str, tuple[TensorRow, str]]:
    """Checkpoint name → (row, GGUF name), for every layer."""
    return {
        row.source.format(i=i): (row, row.name.format(i=i))
        for row in rows
        for i in (range(n_layers) if "{i}" in row.source else (0,))
    }


def _check(tensor: SourceTensor, row: TensorRow, config: ModelConfig) -> None:
    if tensor.dtype not in FLOATS:
        what = "more digits than a GGUF holds" if tensor.dtype == "F64" else "a quantized or integer tensor"
        raise CheckpointError(
            f"{tensor.name} is stored as {tensor.dtype}: {what}", hint=f"get the checkpoint in {', '.join(FLOATS)}"
        )
    expected = tuple(getattr(config, dimension) for dimension in row.shape)
    if tensor.shape != expected:
        words = " × ".join(f"{dimension} {n}" for dimension, n in zip(row.shape, expected, strict=True))
        raise CheckpointError(
            f"{tensor.name} has shape {list(tensor.shape)}; the config says {list(expected)} ({words})",
            hint="config.json and weights are of different revisions, or one of them was edited",
        )


def _check_complete(checkpoint: Checkpoint, missing: Sequence[str]) -> None:
    if missing:
        raise CheckpointError(
            f"{len(missing)} tensor(s) are missing from {checkpoint.root.name}: {', '.join(missing[:8])}"
            + (", …" if len(missing) > 8 else ""),
            hint="the download is incomplete, or num_hidden_layers in config.json is wrong",
        )


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_foreign(checkpoint: Checkpoint, names: Collection[str]) -> None:
    """Drafts of other families, by their tensors, then their config, then the files beside them."""
    files = [p.name for p in checkpoint.root.iterdir()]
    keys = [row for row in FOREIGN_KEYS if "fc.weight" in names and _is_set(checkpoint.config, row)]
    for name, what in (
        *((name, row.what) for row in FOREIGN_TENSORS for name in sorted(names) if fnmatchcase(name, row.pattern)),
        *((f"config.json: {row.path}", row.what) for row in keys),
        *((name, row.what) for row in FOREIGN_FILES for name in files if fnmatchcase(name, row.pattern)),
    ):
        raise CheckpointError(f"{name}: this is {what}", hint=KNOWN_KIND)


def _is_set(config: Mapping[str, Any], row: RefusedKey) -> bool:
    value: Any = config
    for part in row.path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return bool(value) if row.value is None else value == row.value


def _unexpected(name: str, config: ModelConfig) -> CheckpointError:
    """Why a tensor without a row stops the conversion."""
    layer = name.split(".")[1] if name.startswith("layers.") else ""
    if layer.isdecimal() and int(layer) >= (n := config.num_hidden_layers):
        return CheckpointError(
            f"{name}: the config has {n} layers (0 to {n - 1})", hint="num_hidden_layers in config.json is wrong"
        )
    rows: tuple[RefusedTensor, ...] = (*FOREIGN_TENSORS, *UNPLACED)
    if row := next((r for r in rows if fnmatchcase(name, r.pattern)), None):
        return CheckpointError(f"{name}: this is {row.what}", hint=KNOWN_KIND)
    return CheckpointError(
        f"{name} has no place in the GGUF, and leaving it out would change the model",
        hint="the checkpoint is of a kind this version does not know; nothing was written",
    )
