"""A checkpoint folder → a `CheckpointInspection`: family, each value with its place, types, and what is unusual.

Unlike the conversion it does not stop at the first thing that is wrong: a value that is missing or contradictory, and a
kind of draft that cannot be converted, are what somebody inspects a checkpoint for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_convert.checkpoints.checkpoint import Checkpoint, open_checkpoint
from dflash_convert.conversion.config import (
    architecture,
    look,
    missing,
    read_draft_config,
    read_model_config,
    text_config,
    unread_keys,
)
from dflash_convert.conversion.match import bare, classify, match
from dflash_convert.conversion.quantized_source import refuse_quantized
from dflash_convert.conversion.rows.families import Family
from dflash_convert.conversion.rows.fields import DRAFT_FIELDS, MODEL_FIELDS, Field
from dflash_convert.conversion.rows.targets import Target
from dflash_convert.conversion.transforms import unpacked
from dflash_convert.conversion.windows import sliding_layers
from dflash_convert.errors import CheckpointError, ConfigError, DflashError
from dflash_convert.inspection.values import FULL, SLIDING, CheckpointInspection, Layers, Taps, Value, Weights

IDS = "target_layer_ids"


def inspect_checkpoint(root: Path) -> CheckpointInspection:
    """What a checkpoint is and says of itself: a draft, or a target.

    Raises ConfigError: no config.json, or not JSON. CheckpointError: no weights, shards missing or damaged.
    """
    checkpoint = unpacked(open_checkpoint(root))
    kind, refusal = _classified(checkpoint)
    shapes = {bare(n): t.shape for n, t in checkpoint.tensors.items()}
    fields = kind.fields if isinstance(kind, Family) else MODEL_FIELDS if kind else DRAFT_FIELDS
    config = text_config(checkpoint.config) if isinstance(kind, Target) else checkpoint.config
    values, wrong = _values(fields, config, shapes)
    layers, contradictions = _layers(values)
    stops = [*refusal, *wrong, *contradictions]
    if kind and not stops:
        stops = _unmatched(checkpoint, kind, shapes)
    unread = unread_keys(checkpoint.config, fields) if isinstance(kind, Family) else {}
    return CheckpointInspection(
        path=root,
        kind="checkpoint",
        label=architecture(checkpoint.config),
        family=kind.name if kind else None,
        stopped=bool(stops),
        taps=_taps(values, config),
        layers=layers,
        values=tuple(values.values()),
        weights=_by_dtype(checkpoint),
        odd=(
            *stops,
            *(f"{path} = {value!r} is not known and would not be used" for path, value in unread.items()),
            *checkpoint.notes,
        ),
    )


def _classified(checkpoint: Checkpoint) -> tuple[Family | Target | None, list[str]]:
    """What it is, or why it cannot be converted."""
    try:
        refuse_quantized(checkpoint.config, checkpoint.tensors.values(), lambda: None)
        return classify(checkpoint), []
    except CheckpointError as e:
        return None, [_told(e)]


def _values(
    fields: Sequence[Field], config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Value], list[str]]:
    """Every value that is there, and what is wrong with the others."""
    values: dict[str, Value] = {}
    wrong: list[str] = []
    for f in fields:
        try:
            if found := look(f, config):
                values[f.name] = Value(f.name, *found)
            elif f.required:
                raise missing(f, config, shapes, None)
        except ConfigError as e:
            wrong.append(_told(e))
    return values, wrong


def _unmatched(checkpoint: Checkpoint, kind: Family | Target, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The first tensor that is missing, unexpected or of another shape."""
    try:
        config = (
            read_draft_config(checkpoint.config, shapes, {}, fields=kind.fields)
            if isinstance(kind, Family)
            else read_model_config(checkpoint.config, shapes)
        )
        match(checkpoint, kind.tensors, kind.ignored, config)
    except DflashError as e:
        return [_told(e)]
    return []


def _taps(values: Mapping[str, Value], config: Mapping[str, Any]) -> Taps | None:
    """Both conventions, and the numbers as they stand: some trainers count from the embeddings."""
    ids = values.get(IDS)
    if ids is None:
        return None
    stored: Any = config
    for part in ids.place.split("."):
        stored = stored[part]
    return Taps(ids.place, tuple(stored), ids.value, tuple(i + 1 for i in ids.value))


def _layers(values: Mapping[str, Value]) -> tuple[Layers, list[str]]:
    """Which layers slide, as the conversion sees it; or what contradicts itself there."""
    plain: dict[str, Any] = {v.name: v.value for v in values.values()}
    count, window = plain.get("num_hidden_layers"), plain.get("sliding_window")
    if count is None:
        return Layers(None, (), window), []
    try:
        slides, _ = sliding_layers(plain, {v.name: v.place for v in values.values()})
    except ConfigError as e:
        return Layers(count, (), window), [_told(e)]
    kinds = tuple(SLIDING if s else FULL for s in slides) or (FULL,) * count
    return Layers(count, kinds, window if any(slides) else None), []


def _by_dtype(checkpoint: Checkpoint) -> tuple[Weights, ...]:
    """Tensors and weights' bytes of each type, in the order of their names."""
    return tuple(
        Weights("all", d, *_sum(checkpoint, d)) for d in sorted({t.dtype for t in checkpoint.tensors.values()})
    )


def _sum(checkpoint: Checkpoint, dtype: str) -> Iterator[int]:
    sizes = [t.nbytes for t in checkpoint.tensors.values() if t.dtype == dtype]
    yield from (len(sizes), sum(sizes))


def _told(e: DflashError) -> str:
    return f"{e.message} ({e.hint})" if e.hint else e.message
