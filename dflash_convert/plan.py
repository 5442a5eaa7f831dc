"""Checkpoint + config + schema + outtype → `Plan`: every decision, before a byte is written.

Values are checked first (checks.py), then each tensor finds its row (match.py), then keys and tensors are laid out;
each key says where its value came from. No tensor data is read here, so planning a 60 GB model takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.checks import check_draft, check_head, check_model, check_sinks, check_tables, pair_values
from dflash_convert.config import DraftConfig, ModelConfig, TargetConfig, text_config, unread_keys
from dflash_convert.errors import UsageError
from dflash_convert.families import Family
from dflash_convert.gguf_file import KV
from dflash_convert.layout import Note, Plan, PlannedTensor
from dflash_convert.match import bare, match
from dflash_convert.schema import KeyRow, TensorRow, target_layers
from dflash_convert.targets import Target
from dflash_convert.vocab import UNUSED

Vocab = Callable[[int], Sequence[KV]]  # rows of the embedding table → the `tokenizer.*` keys
Config = TypeVar("Config", bound=ModelConfig)

DEINTERLEAVE = "even rotary dimensions first"  # transform: interleaved rope → llama.cpp's (NeoX) order, per head


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
    stored = [t.dtype for t in checkpoint.tensors.values() if len(t.shape) >= 2]
    return AUTO.get(stored[0] if stored else "", "bf16")


def plan_draft(
    checkpoint: Checkpoint,
    family: Family,
    config: DraftConfig,
    target: TargetConfig,
    general: Sequence[KV],
    vocab: Vocab,
    outtype: str,
) -> Plan:
    """The output file of a draft. `general` are the rows of metadata.py; `vocab` gives those of vocab.py."""
    check_draft(config, target, shape_of_fc(checkpoint))
    config = settle(config, file_type=OUTTYPES[outtype].file_type, mrope_sections=_mrope_sections(config, target))
    matched = match(checkpoint, family.tensors, family.ignored, config)
    check_tables(matched)
    check_sinks(matched, config)
    tokenizer = vocab(config.vocab_size)
    mask = KV(
        "tokenizer.ggml.mask_token_id", GGUFValueType.UINT32, config.mask_token_id, None, config.where["mask_token_id"]
    )
    kv = merge_keys(general, key_rows(family.keys, family.arch, config), QUANTIZATION_VERSION, tokenizer, [mask])
    tensors = tuple(_planned(t, row, name, config, outtype) for t, row, name in matched)
    notes = (
        *draft_notes(checkpoint.config, config, target, tokenizer),
        *_common_notes(checkpoint, tokenizer, tensors, outtype),
    )
    return Plan(kv, tensors, notes)


def plan_target(
    checkpoint: Checkpoint, target: Target, config: ModelConfig, general: Sequence[KV], vocab: Vocab, outtype: str
) -> Plan:
    """The output file of a target model converted by itself."""
    check_model(config)
    config = settle(config, file_type=OUTTYPES[outtype].file_type)
    matched = match(checkpoint, target.tensors, target.ignored, config)
    check_head(matched, text_config(checkpoint.config))
    tokenizer = vocab(config.vocab_size)
    kv = merge_keys(general, key_rows(target.keys, target.arch, config), QUANTIZATION_VERSION, tokenizer)
    tensors = tuple(_planned(t, row, name, config, outtype) for t, row, name in matched)
    return Plan(kv, tensors, _common_notes(checkpoint, tokenizer, tensors, outtype))


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

QUANTIZATION_VERSION = (KV("general.quantization_version", GGUFValueType.UINT32, 2, source="constant"),)


def settle(config: Config, **values: Any) -> Config:
    """The config with values that planning settled; they are said to come from the command or the target."""
    origin = {"file_type": "--outtype", "mrope_sections": "the target uses M-RoPE"}
    return replace(config, **values, where={**config.where, **{k: origin[k] for k in values}})


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


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def shape_of_fc(checkpoint: Checkpoint) -> tuple[int, ...]:
    return next((t.shape for t in checkpoint.tensors.values() if bare(t.name) == "fc.weight"), ())


def _planned(tensor: SourceTensor, row: TensorRow, name: str, config: ModelConfig, outtype: str) -> PlannedTensor:
    interleaved = isinstance(config, DraftConfig) and config.interleaved_rope
    transform = DEINTERLEAVE if row.rotary and interleaved else ""
    return PlannedTensor(name, tensor.shape, _stored_type(tensor.shape, outtype), tensor.name, transform)


def _stored_type(shape: tuple[int, ...], outtype: str) -> G:
    """Vectors (the norms and sinks) stay F32, as llama.cpp wants them; rows that Q8_0 cannot hold fall back to F16."""
    if len(shape) <= 1:
        return G.F32
    wanted = OUTTYPES[outtype].type
    return wanted if shape[-1] % GGML_QUANT_SIZES[wanted][0] == 0 else G.F16


# ── notes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def draft_notes(
    raw: Mapping[str, Any], config: DraftConfig, target: TargetConfig, vocab: Sequence[KV]
) -> Iterator[Note]:
    """What a user should know of a draft that is otherwise fine. raw: its config.json."""
    ids = list(config.target_layer_ids)
    yield Note("info", f"taps: HF ids {ids} → target_layers {target_layers(config)}")
    if ids != sorted(ids):
        yield Note("warning", f"the taps are not in ascending order: {ids}; their order is kept, fc depends on it")
    if target.num_hidden_layers and max(ids) == target.num_hidden_layers - 1:
        yield Note("info", f"the last layer of the target ({max(ids)}) is tapped; older engines refuse that")
    for word in _same_as_mask(config.mask_token_id, target, vocab):
        yield Note("warning", f"the mask token {config.mask_token_id} is also the target's {word} token")
    for path, value in unread_keys(raw).items():
        yield Note("warning", f"{path} = {value!r} is not known and was not used; the draft may need it")
    for what, _, key, theirs in pair_values(config, target):
        if theirs is None:
            yield Note("warning", f"the target's config has no {key}: the {what} could not be compared")
    if target.rope_theta and target.rope_theta != config.rope_theta:
        yield Note("info", f"the draft's rope_theta is {config.rope_theta:g}, the target's {target.rope_theta:g}")
    if config.is_causal is None:
        yield Note("info", "no causal flag in config.json: llama.cpp runs the block bidirectionally")


def _same_as_mask(mask: int, target: TargetConfig, vocab: Sequence[KV]) -> list[str]:
    """Which of EOS, BOS and PAD the mask token also is, by the target's config or its tokenizer."""
    keys = {kv.key: kv.value for kv in vocab}
    words = {"eos": "eos", "bos": "bos", "pad": "padding"}
    ids = {w: {*target.special_ids.get(w, ()), keys.get(f"tokenizer.ggml.{k}_token_id")} for w, k in words.items()}
    return [word.upper() for word, found in ids.items() if mask in found]


def _common_notes(
    checkpoint: Checkpoint, vocab: Sequence[KV], tensors: Sequence[PlannedTensor], outtype: str
) -> tuple[Note, ...]:
    notes = [Note("info", text) for text in checkpoint.notes]
    kinds: Sequence[int] = next((kv.value for kv in vocab if kv.key == "tokenizer.ggml.token_type"), [])
    padded = np.flatnonzero(np.asarray(kinds) == UNUSED)
    if padded.size:
        span = f"[PAD{padded[0]}] … [PAD{padded[-1]}]"
        notes.append(Note("info", f"{padded.size} rows of the embedding table have no token: {span}"))
    fallbacks = [t.name for t in tensors if t.type == G.F16 and outtype == "q8_0"]
    if fallbacks:
        notes.append(
            Note("warning", f"{len(fallbacks)} tensor(s) stay F16, their rows do not divide by 32: {fallbacks[0]}, …")
        )
    return tuple(notes)


def weights_in(checkpoint: Checkpoint) -> int:
    """Number of weights of a checkpoint, for the size label."""
    return sum(int(np.prod(t.shape, dtype=np.int64)) for t in checkpoint.tensors.values())
