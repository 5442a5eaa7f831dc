"""A checkpoint's tensors against the schema's rows: which family it is, and which tensor goes where.

Nothing is lost in silence: each checkpoint tensor is used once, ignored by a row with a reason, or refused by name with
what it shows the checkpoint to be. Shapes are checked against the config, in the config's own words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from dflash_convert.checkpoints.checkpoint import Checkpoint, SourceTensor
from dflash_convert.conversion.config import ModelConfig, architecture
from dflash_convert.conversion.rows.families import FAMILIES, Family
from dflash_convert.conversion.rows.families.refused import (
    GATED_Q,
    GATED_Q_NEEDS,
    REFUSED_KEYS,
    REFUSED_TENSORS,
    UNPLACED,
)
from dflash_convert.conversion.rows.fields import layer_number
from dflash_convert.conversion.rows.schema import PREFIXES, IgnoredRow, RefusedKey, RefusedTensor, TensorRow
from dflash_convert.conversion.rows.targets import TARGETS, Target
from dflash_convert.errors import CheckpointError

FLOATS = ("F32", "F16", "BF16", "NVFP4")  # what weights may be stored as
INTEGERS = ("I64", "I32")  # what ids may be stored as
CANNOT = "this kind of draft cannot be converted"

Matched = tuple[SourceTensor, TensorRow, str]  # a checkpoint tensor, its row, and its name in the GGUF


@dataclass(frozen=True)
class LeftOut:
    """A checkpoint tensor that was left out, and why."""

    name: str
    reason: str


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
) -> tuple[list[Matched], list[LeftOut]]:
    """Each checkpoint tensor with its row and GGUF name, in the checkpoint's order; and those that are left out.

    Shapes and types are checked. Raises CheckpointError: a tensor twice, missing, of another shape, or without a row.
    """
    wanted = expand(rows, config.num_hidden_layers)
    found: dict[str, Matched] = {}
    left: list[LeftOut] = []
    for tensor in checkpoint.tensors.values():
        name = bare(tensor.name)
        if name in wanted:
            row, here = wanted[name]
            if here in found:
                raise CheckpointError(f"{found[here][0].name} and {tensor.name} are one tensor under two names")
            _check(tensor, row, config)
            found[here] = (tensor, row, here)
        elif reason := _ignored(checkpoint, tensor.name, ignored):
            left.append(LeftOut(tensor.name, reason))
        else:
            raise _unexpected(name, config)
    _check_complete(checkpoint, rows, found, config.num_hidden_layers)
    return list(found.values()), left


def expand(rows: Sequence[TensorRow], n_layers: int) -> dict[str, tuple[TensorRow, str]]:
    """Checkpoint name (every alias too) → (row, GGUF name), for every layer."""
    return {
        source.format(i=i): (row, row.name.format(i=i))
        for row in rows
        for source in (row.source, *row.aliases)
        for i in (range(n_layers) if "{i}" in row.source else (0,))
    }


def _ignored(checkpoint: Checkpoint, name: str, rows: Sequence[IgnoredRow]) -> str:
    """Why a tensor may be left out, or ""."""
    fits = (row for row in rows if fnmatchcase(bare(name), row.pattern))
    return next((row.reason for row in fits if not row.zeros or not checkpoint.rows(name).any()), "")


def _check(tensor: SourceTensor, row: TensorRow, config: ModelConfig) -> None:
    allowed = INTEGERS if row.stored == "I64" else FLOATS
    if tensor.dtype not in allowed:
        what = "more digits than a GGUF holds" if tensor.dtype == "F64" else "a quantized or integer tensor"
        what = "not a table of ids" if allowed is INTEGERS else what
        raise CheckpointError(
            f"{tensor.name} is stored as {tensor.dtype}: {what}", hint=f"get the checkpoint in {', '.join(allowed)}"
        )
    expected = tuple(getattr(config, dimension) for dimension in row.shape)
    if row.role == "attn_q" and tensor.shape == (2 * expected[0], expected[1]):
        raise CheckpointError(f"{tensor.name} has twice the rows: this is {GATED_Q}", hint=GATED_Q_NEEDS)
    if tensor.shape != expected:
        words = " × ".join(f"{dimension} {n}" for dimension, n in zip(row.shape, expected, strict=True))
        raise CheckpointError(
            f"{tensor.name} has shape {list(tensor.shape)}; the config says {list(expected)} ({words})",
            hint="config.json and weights are of different revisions, or one of them was edited",
        )


def _check_complete(
    checkpoint: Checkpoint, rows: Sequence[TensorRow], found: Mapping[str, Matched], n_layers: int
) -> None:
    """Every required tensor is there, and what some layers have all have."""
    names = {row: [row.name.format(i=i) for i in (range(n_layers) if "{i}" in row.name else (0,))] for row in rows}
    sources = {gguf: source for source, (row, gguf) in reversed(expand(rows, n_layers).items()) if gguf not in found}
    missing = [
        sources[name]
        for row, all_of_it in names.items()
        for name in all_of_it
        if name in sources and (row.required or any(other in found for other in all_of_it))
    ]
    if missing:
        raise CheckpointError(
            f"{len(missing)} tensor(s) are missing from {checkpoint.root.name}: {', '.join(missing[:8])}"
            + (", …" if len(missing) > 8 else ""),
            hint="the download is incomplete, or num_hidden_layers in config.json is wrong",
        )


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────────


def _refuse_foreign(checkpoint: Checkpoint, names: Collection[str]) -> None:
    """Kinds of drafts that cannot be converted, by their tensors, then by their config."""
    is_draft = {"fc.weight", "encoder.fc.weight"} & set(names) or any(n.startswith("mtp.") for n in names)
    keys = [row for row in REFUSED_KEYS if is_draft and _is_set(checkpoint.config, row)]
    tensors = [(name, row) for row in REFUSED_TENSORS for name in sorted(names) if fnmatchcase(name, row.pattern)]
    shown = [(name, row.what, row.needed) for name, row in tensors]
    shown += [(f"config.json: {row.path}", row.what, row.needed) for row in keys]
    for name, what, needed in shown:
        raise CheckpointError(f"{name}: this is {what}", hint=needed or CANNOT)


def _is_set(config: Mapping[str, Any], row: RefusedKey) -> bool:
    value: Any = config
    for part in row.path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if row.known:
        return value is not None and value not in row.known
    return bool(value) if row.value is None else value == row.value


def _unexpected(name: str, config: ModelConfig) -> CheckpointError:
    """Why a tensor without a row stops the conversion."""
    layer = layer_number(name)
    if layer is not None and layer >= (n := config.num_hidden_layers):
        return CheckpointError(
            f"{name}: the config has {n} layers (0 to {n - 1})", hint="num_hidden_layers in config.json is wrong"
        )
    rows: tuple[RefusedTensor, ...] = (*REFUSED_TENSORS, *UNPLACED)
    if row := next((r for r in rows if fnmatchcase(name, r.pattern)), None):
        return CheckpointError(f"{name}: this is {row.what}", hint=row.needed or CANNOT)
    return CheckpointError(
        f"{name} has no place in the GGUF, and leaving it out would change the model",
        hint="the checkpoint is of a kind this version does not know; nothing was written",
    )
