"""Checkpoint + config + schema + outtype → `Plan`: every decision, before a byte is written.

Values are checked first (checks.py), then each tensor finds its row (match.py), then keys and tensors are laid out;
each key says where its value came from. Of the data only tables of ids and biases are read, so planning a 60 GB model
takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.checkpoints.checkpoint import Checkpoint, SourceTensor
from dflash_convert.conversion.checks import (
    absolute_ids,
    check_draft,
    check_head,
    check_sinks,
    check_tables,
    check_target,
)
from dflash_convert.conversion.config import DraftConfig, ModelConfig, TargetConfig, text_config
from dflash_convert.conversion.match import Matched, bare, match
from dflash_convert.conversion.notes import common_notes, draft_notes
from dflash_convert.conversion.own_tables import ALONE, Beside, with_tables
from dflash_convert.conversion.rows.families import Family
from dflash_convert.conversion.rows.schema import COMPUTED, ComputedRow, KeyRow, TensorRow
from dflash_convert.conversion.rows.targets import Target
from dflash_convert.conversion.transforms import ABSOLUTE_IDS, COMPUTED_FROM, DEINTERLEAVE, DEQUANTIZE, PAD_COLUMNS
from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV

Vocab = Callable[[int], Sequence[KV]]  # rows of the embedding table → the `tokenizer.*` keys
Config = TypeVar("Config", bound=ModelConfig)


@dataclass(frozen=True)
class OutType:
    """What --outtype means: the type of matrices (vectors and norms stay F32) and llama.cpp's number for the file."""

    type: G
    file_type: int


OUTTYPES: Mapping[str, OutType] = MappingProxyType({
    "f32": OutType(G.F32, 0), "f16": OutType(G.F16, 1), "bf16": OutType(G.BF16, 32), "q8_0": OutType(G.Q8_0, 7),
})  # fmt: skip
AUTO: Mapping[str, str] = MappingProxyType({"BF16": "bf16", "F16": "f16", "F32": "f32"})  # --outtype auto: as stored

GGUF_TYPES: Mapping[str, GGUFValueType] = MappingProxyType({
    "u32": GGUFValueType.UINT32, "i32": GGUFValueType.INT32, "f32": GGUFValueType.FLOAT32,
    "bool": GGUFValueType.BOOL, "str": GGUFValueType.STRING,
})  # fmt: skip


def choose_outtype(checkpoint: Checkpoint, outtype: str) -> str:
    """--outtype, with "auto" resolved to the type in which the first matrix is stored."""
    if outtype != "auto":
        if outtype not in OUTTYPES:
            raise UsageError(f"--outtype {outtype} is not known", hint=f"choose from {', '.join(OUTTYPES)}, auto")
        return outtype
    stored = [t.dtype for t in checkpoint.tensors.values() if len(t.shape) >= 2 and t.dtype in AUTO]
    return AUTO.get(stored[0] if stored else "", "bf16")


def plan_draft(
    checkpoint: Checkpoint,
    family: Family,
    config: DraftConfig,
    target: TargetConfig,
    general: Sequence[KV],
    vocab: Vocab,
    outtype: str,
    beside: Beside = ALONE,
) -> Plan:
    """The output file of a draft.

    general: the rows of metadata.py. vocab: gives those of vocab.py. beside: what else the draft's weights need.
    """
    check_draft(config, target, shape_of_fc(checkpoint))
    config = settle(config, file_type=OUTTYPES[outtype].file_type, mrope_sections=_mrope_sections(config, target))
    matched, left_out = match(checkpoint, family.tensors, family.ignored, config)
    check_tables(matched, config)
    check_sinks(matched, config)
    config = settle(config, embedding_scale=_embedding_scale(config, target, matched))
    tokenizer = vocab(config.vocab_size)
    mask = KV(
        "tokenizer.ggml.mask_token_id", GGUFValueType.UINT32, config.mask_token_id, None, config.where["mask_token_id"]
    )
    kv = merge_keys(general, key_rows(family.keys, family.arch, config), QUANTIZATION_VERSION, tokenizer, [mask])
    tensors = _draft_tensors(checkpoint, matched, config, outtype, beside)
    notes = (
        *draft_notes(checkpoint.config, config, target, tokenizer, family.fields),
        *common_notes(checkpoint, tokenizer, tensors, outtype, left_out),
    )
    return Plan(kv, tensors, notes)


def plan_target(
    checkpoint: Checkpoint, target: Target, config: ModelConfig, general: Sequence[KV], vocab: Vocab, outtype: str
) -> Plan:
    """The output file of a target model converted by itself."""
    check_target(config)
    config = settle(config, file_type=OUTTYPES[outtype].file_type)
    matched, left_out = match(checkpoint, target.tensors, target.ignored, config)
    check_head(matched, text_config(checkpoint.config))
    tokenizer = vocab(config.vocab_size)
    kv = merge_keys(general, key_rows(target.keys, target.arch, config), QUANTIZATION_VERSION, tokenizer)
    tensors = tuple(_planned(t, row, name, config, outtype) for t, row, name in matched)
    return Plan(kv, tensors, common_notes(checkpoint, tokenizer, tensors, outtype, left_out))


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

ORIGINS: Mapping[str, str] = MappingProxyType({
    "file_type": "--outtype",
    "mrope_sections": "the target uses M-RoPE",
    "embedding_scale": "the target scales its embeddings by sqrt(hidden_size)",
})  # fmt: skip
QUANTIZATION_VERSION = (KV("general.quantization_version", GGUFValueType.UINT32, 2, source="constant"),)


def settle(config: Config, **values: Any) -> Config:
    """The config with values that planning settled; they are said to come from the command or the target."""
    new = {k: v for k, v in values.items() if v != getattr(config, k)}
    return replace(config, **new, where={**config.where, **{k: ORIGINS[k] for k in new}})


def key_rows(rows: Sequence[KeyRow], arch: str, config: ModelConfig) -> list[KV]:
    """Schema rows → keys; a row without a value is left out."""
    return [_key(row, arch, value, config) for row in rows if (value := row.of(config)) is not None]


def _key(row: KeyRow, arch: str, value: Any, config: ModelConfig) -> KV:
    key, source = row.key.format(arch=arch), config.where.get(row.field, "the weights")
    if row.type.startswith("["):
        return KV(key, GGUFValueType.ARRAY, list(value), GGUF_TYPES[row.type[1:-1]], source)
    return KV(key, GGUF_TYPES[row.type], value, None, source)


def merge_keys(*groups: Sequence[KV]) -> tuple[KV, ...]:
    """All groups in order; a key that comes again replaces the value where it first stood."""
    merged: dict[str, KV] = {}
    for kv in (kv for group in groups for kv in group):
        merged[kv.key] = kv
    return tuple(merged.values())


def _mrope_sections(config: DraftConfig, target: TargetConfig) -> tuple[int, ...] | None:
    """A draft ropes in one dimension; beside an M-RoPE target llama.cpp wants that spelled as degenerate sections."""
    return (config.head_dim // 2, 0, 0, 0) if target.uses_mrope else None


def _embedding_scale(config: DraftConfig, target: TargetConfig, matched: Sequence[Matched]) -> float | None:
    """Gemma's embedding module scales what it returns, and a draft without a table of its own was trained on that.

    llama.cpp looks rows up in the target's table and scales them only if the draft says so.
    """
    own = any(name == "token_embd.weight" for _, _, name in matched)
    if config.embedding_scale is None and target.architecture.startswith("Gemma") and not own:
        return math.sqrt(config.hidden_size)
    return config.embedding_scale


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draft_tensors(
    checkpoint: Checkpoint, matched: Sequence[Matched], config: DraftConfig, outtype: str, beside: Beside
) -> tuple[PlannedTensor, ...]:
    """Computed tensors first, then tables that are written out for the draft, then its own as they lie; d2t is last."""
    computed = [_computed(row, values) for row in COMPUTED if (values := row.values(config)) is not None]
    own = [_planned(t, row, name, config, outtype) for t, row, name in matched if row.role != "d2t"]
    ids = [_d2t(checkpoint, t, config) for t, row, _ in matched if row.role == "d2t"]
    return (*computed, *with_tables(own, config, beside, partial(_stored_type, outtype=outtype)), *ids)


def _computed(row: ComputedRow, values: Sequence[float]) -> PlannedTensor:
    data = np.array(values, dtype="<f4")
    return PlannedTensor(row.name, data.shape, G.F32, row.source, COMPUTED_FROM, constant=data.tobytes())


def _d2t(checkpoint: Checkpoint, tensor: SourceTensor, config: DraftConfig) -> PlannedTensor:
    """The reduced vocabulary as llama.cpp wants it: the token of each row, not the offset to it."""
    by_name = {bare(name): name for name in checkpoint.tensors}
    inverse = next((by_name[n] for n in ("t2d", "target_id_to_draft_id") if n in by_name), None)
    allowed = checkpoint.rows(inverse).reshape(-1).tolist() if inverse == by_name.get("t2d") and inverse else None
    offsets = checkpoint.rows(tensor.name).reshape(-1).tolist()
    ids = np.array(absolute_ids(offsets, bare(tensor.name), config.vocab_size, allowed), dtype="<i8")
    return PlannedTensor("d2t", ids.shape, G.I64, tensor.name, ABSOLUTE_IDS, constant=ids.tobytes())


def shape_of_fc(checkpoint: Checkpoint) -> tuple[int, ...]:
    return next((t.shape for t in checkpoint.tensors.values() if bare(t.name) == "fc.weight"), ())


def _planned(tensor: SourceTensor, row: TensorRow, name: str, config: ModelConfig, outtype: str) -> PlannedTensor:
    packed = tensor.dtype == "NVFP4"
    by_shape = _unpacked_type(tensor.shape, outtype) if packed else _stored_type(tensor.shape, outtype)
    stored = G[row.stored] if row.stored else by_shape
    planned = PlannedTensor(name, tensor.shape, stored, tensor.name, DEQUANTIZE if packed else "")
    return _transformed(planned, row, config) if isinstance(config, DraftConfig) else planned


def _transformed(planned: PlannedTensor, row: TensorRow, config: DraftConfig) -> PlannedTensor:
    """What llama.cpp expects another way than the checkpoint has it."""
    if row.rotary and config.interleaved_rope:
        return replace(planned, transform=DEINTERLEAVE)
    if planned.name == "conf_proj.weight" and planned.row_length == config.hidden_size:
        return replace(planned, shape=(1, planned.row_length + (config.markov_rank or 0)), transform=PAD_COLUMNS)
    return planned


def _unpacked_type(shape: tuple[int, ...], outtype: str) -> G:
    """NVFP4's values, products of a 4-bit number, an 8-bit and a float32 scale, are kept whole but in a block type."""
    stored = _stored_type(shape, outtype)
    return G.F32 if stored in (G.F16, G.BF16) else stored


def _stored_type(shape: tuple[int, ...], outtype: str) -> G:
    """Vectors (the norms and sinks) stay F32, as llama.cpp wants them; rows that Q8_0 cannot hold fall back to F16."""
    if len(shape) <= 1:
        return G.F32
    wanted = OUTTYPES[outtype].type
    return wanted if shape[-1] % GGML_QUANT_SIZES[wanted][0] == 0 else G.F16


def weights_in(checkpoint: Checkpoint) -> int:
    """Number of weights of a checkpoint, for the size label."""
    return sum(int(np.prod(t.shape, dtype=np.int64)) for t in checkpoint.tensors.values())
