"""Checkpoint + config + schema + outtype → `Plan`: every decision and every check, before a byte is written.

Nothing is lost in silence: each checkpoint tensor is used once, ignored by a row with a reason, or refused by name;
each key says where its value came from. No tensor data is read here, so planning a 60 GB model takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUFValueType
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.checkpoint import Checkpoint, SourceTensor
from dflash_convert.config import DraftConfig, ModelConfig, TargetConfig, unknown_dflash_keys
from dflash_convert.errors import CheckpointError, ConfigError, UsageError
from dflash_convert.families import FAMILIES, Family
from dflash_convert.gguf_file import KV
from dflash_convert.layout import Note, Plan, PlannedTensor
from dflash_convert.schema import REFUSED, IgnoredRow, KeyRow, TensorRow
from dflash_convert.targets import TARGETS, Target

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


def classify(checkpoint: Checkpoint) -> Family | Target:
    """Which family or target a checkpoint is, by its tensors first and its label last. Raises CheckpointError."""
    names = {bare(n) for n in checkpoint.tensors}
    for family in FAMILIES:
        if family.is_mine(checkpoint.config, names):
            return family
    labels = checkpoint.config.get("architectures") or []
    for target in TARGETS:
        if set(labels) & set(target.architectures):
            return target
    _refuse_known(sorted(names))
    known = ", ".join(a for t in TARGETS for a in t.architectures)
    raise CheckpointError(
        f"{checkpoint.root}: neither a DFlash draft (no fc.weight and hidden_norm.weight) nor a known target "
        f"(architectures: {labels or 'none given'})",
        hint=f"targets that can be converted: {known}",
    )


def bare(name: str) -> str:
    """A tensor's name without the `model.` that some checkpoints put before it."""
    return name.removeprefix("model.")


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
    vocab: Sequence[KV],
    outtype: str,
) -> Plan:
    """The output file of a draft. `general` and `vocab` are the rows of metadata.py and vocab.py."""
    check_draft(config, target)
    config = settle(config, file_type=OUTTYPES[outtype].file_type, mrope_sections=_mrope_sections(config, target))
    matched = match(checkpoint, family.tensors, family.ignored, config)
    _check_tables(matched)
    _check_sinks(matched, config)
    mask = KV("tokenizer.ggml.mask_token_id", GGUFValueType.UINT32, config.mask_token_id, None, config.where["mask_token_id"])
    kv = merge_keys(general, key_rows(family.keys, family.arch, config), QUANTIZATION_VERSION, vocab, [mask])
    tensors = tuple(_planned(t, row, name, config, outtype) for t, row, name in matched)
    notes = (*draft_notes(checkpoint, config, target), *_common_notes(checkpoint, vocab, tensors, outtype))
    return Plan(kv, tensors, notes)


def plan_target(
    checkpoint: Checkpoint, target: Target, config: ModelConfig, general: Sequence[KV], vocab: Sequence[KV], outtype: str
) -> Plan:
    """The output file of a target model converted by itself."""
    check_model(config)
    config = settle(config, file_type=OUTTYPES[outtype].file_type)
    matched = match(checkpoint, target.tensors, target.ignored, config)
    kv = merge_keys(general, key_rows(target.keys, target.arch, config), QUANTIZATION_VERSION, vocab)
    tensors = tuple(_planned(t, row, name, config, outtype) for t, row, name in matched)
    return Plan(kv, tensors, _common_notes(checkpoint, vocab, tensors, outtype))


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

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


# ── checks on values ───────────────────────────────────────────────────────────────────────────────────────────────────


def check_model(config: ModelConfig) -> None:
    """What llama.cpp can express of a model's rope and shape."""
    if config.rope_type not in (None, "default", "linear", "yarn"):
        raise ConfigError(f"{config.where['rope_type']} is {config.rope_type!r}; default, linear and yarn are supported")
    needed = {"linear": ("rope_factor",), "yarn": ("rope_factor", "rope_original_context")}.get(config.rope_type or "", ())
    for name in needed:
        if getattr(config, name) is None:
            raise ConfigError(f"rope_type is {config.rope_type}, but {name} is not given in the rope settings")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"num_attention_heads {config.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if config.hidden_act not in (None, "silu"):
        raise ConfigError(f"hidden_act is {config.hidden_act!r}; only silu is supported")


def check_draft(config: DraftConfig, target: TargetConfig) -> None:
    """A draft's own values, and the pair with its target."""
    check_model(config)
    _check_taps(config, target)
    _check_pair(config, target)
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise ConfigError(
            f"{config.where['mask_token_id']} is {config.mask_token_id}, outside the vocabulary of {config.vocab_size}",
            hint="pass --mask-token-id",
        )


def _check_taps(config: DraftConfig, target: TargetConfig) -> None:
    ids, where = config.target_layer_ids, config.where["target_layer_ids"]
    hint = "they were fixed in training: pass --target-layer-ids as trained"
    for position, i in enumerate(ids):
        if i < 0:
            raise ConfigError(f"{where} has the negative id {i} at position {position}: {list(ids)}", hint=hint)
        if i in ids[:position]:
            raise ConfigError(f"{where} has the id {i} twice, again at position {position}: {list(ids)}", hint=hint)
    depth = target.num_hidden_layers or config.num_target_layers
    if depth is not None and max(ids) >= depth:
        raise ConfigError(
            f"{where} taps layer {max(ids)}, but the target {target.name} has {depth} layers (0 to {depth - 1})",
            hint="is this the target the draft was trained for?",
        )


def _check_pair(config: DraftConfig, target: TargetConfig) -> None:
    """Draft and target must agree wherever both say something."""
    width = config.target_hidden_size or config.hidden_size
    if width != config.hidden_size:
        raise ConfigError(
            f"target_hidden_size is {width}, hidden_size {config.hidden_size}: llama.cpp runs a draft only if it is as "
            "wide as its target"
        )
    pairs = (
        ("width", width, "hidden_size", target.hidden_size),
        ("depth of the target", config.num_target_layers, "num_hidden_layers", target.num_hidden_layers),
        ("vocabulary", config.vocab_size, "vocab_size", target.vocab_size),
    )
    for what, mine, key, theirs in pairs:
        if mine is not None and theirs is not None and mine != theirs:
            raise ConfigError(
                f"draft and target differ in {what}: {mine} in the draft's config, {key} {theirs} in {target.name}'s",
                hint="is this the target the draft was trained for?",
            )


# ── tensors ────────────────────────────────────────────────────────────────────────────────────────────────────────────

Matched = tuple[SourceTensor, TensorRow, str]


def match(
    checkpoint: Checkpoint, rows: Sequence[TensorRow], ignored: Sequence[IgnoredRow], config: ModelConfig
) -> list[Matched]:
    """Each checkpoint tensor with its row and GGUF name, in the checkpoint's order; shapes and types checked."""
    wanted = expand(rows, config.num_hidden_layers)
    matched: list[Matched] = []
    for tensor in checkpoint.tensors.values():
        name = bare(tensor.name)
        if name in wanted:
            row, gguf_name = wanted.pop(name)
            _check_shape(tensor, row, config)
            matched.append((tensor, row, gguf_name))
        elif not any(fnmatchcase(name, i.pattern) for i in ignored):
            raise _unexpected(name, config)
    if missing := [n for n, (row, _) in wanted.items() if row.required]:
        raise CheckpointError(
            f"{len(missing)} tensor(s) are missing from {checkpoint.root.name}: {', '.join(missing[:8])}"
            + (", …" if len(missing) > 8 else ""),
            hint="the download is incomplete, or num_hidden_layers in config.json is wrong",
        )
    return matched


def expand(rows: Sequence[TensorRow], n_layers: int) -> dict[str, tuple[TensorRow, str]]:
    """Checkpoint name → (row, GGUF name), for every layer."""
    return {
        row.source.format(i=i): (row, row.name.format(i=i))
        for row in rows
        for i in (range(n_layers) if "{i}" in row.source else (0,))
    }


def _check_shape(tensor: SourceTensor, row: TensorRow, config: ModelConfig) -> None:
    expected = tuple(getattr(config, d) for d in row.shape)
    if tensor.shape != expected:
        words = " × ".join(f"{d} {n}" for d, n in zip(row.shape, expected, strict=True))
        raise CheckpointError(f"{tensor.name} has shape {list(tensor.shape)}; the config says {list(expected)} ({words})")
    if tensor.dtype not in ("F64", "F32", "F16", "BF16"):
        raise CheckpointError(
            f"{tensor.name} is stored as {tensor.dtype}: a quantized checkpoint", hint="convert the bf16 original"
        )


def _refuse_known(names: Sequence[str]) -> None:
    for name in names:
        for row in REFUSED:
            if fnmatchcase(name, row.pattern):
                raise CheckpointError(f"{name}: this is {row.what}", hint="this version converts plain DFlash drafts")


def _unexpected(name: str, config: ModelConfig) -> CheckpointError:
    try:
        _refuse_known([name])
    except CheckpointError as e:
        return e
    layer = name.split(".")[1] if name.startswith("layers.") else ""
    if layer.isdecimal() and int(layer) >= config.num_hidden_layers:
        return CheckpointError(f"{name}: the config has {config.num_hidden_layers} layers (0 to {config.num_hidden_layers - 1})")
    return CheckpointError(
        f"{name} has no place in the GGUF, and leaving it out would change the model",
        hint="the checkpoint is of a kind this version does not know; nothing was written",
    )


def _check_tables(matched: Sequence[Matched]) -> None:
    names = {name for _, _, name in matched}
    if "token_embd.weight" in names and "output.weight" not in names:
        raise CheckpointError(
            "the draft has embed_tokens but no lm_head: llama.cpp would use its embeddings as the output head",
            hint="convert a copy without embed_tokens.weight if it is the target's own table (the target's is then used)",
        )


def _check_sinks(matched: Sequence[Matched], config: DraftConfig) -> None:
    has = any(row.role == "attn_sinks" for _, row, _ in matched)
    if config.attention_sink_bias and not has:
        raise CheckpointError(f"{config.where['attention_sink_bias']} is true, but no layer has an attention_sink_bias")


def _planned(tensor: SourceTensor, row: TensorRow, name: str, config: ModelConfig, outtype: str) -> PlannedTensor:
    interleaved = isinstance(config, DraftConfig) and config.interleaved_rope
    transform = DEINTERLEAVE if row.rotary and interleaved else ""
    return PlannedTensor(name, tensor.shape, _stored_type(name, tensor.shape, outtype), tensor.name, transform)


def _stored_type(name: str, shape: tuple[int, ...], outtype: str) -> G:
    """llama.cpp's converter: vectors, norms and whatever is not a `.weight` stay F32; Q8_0 falls back to F16."""
    if len(shape) <= 1 or name.endswith("_norm.weight") or not name.endswith(".weight"):
        return G.F32
    wanted = OUTTYPES[outtype].type
    return wanted if shape[-1] % GGML_QUANT_SIZES[wanted][0] == 0 else G.F16


# ── notes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def draft_notes(checkpoint: Checkpoint, config: DraftConfig, target: TargetConfig) -> list[Note]:
    """What a user should know of a draft that is otherwise fine."""
    ids = list(config.target_layer_ids)
    notes = [Note("info", f"taps: HF ids {ids} → target_layers {[i + 1 for i in ids]}")]
    if ids != sorted(ids):
        notes.append(Note("warning", f"the taps are not in ascending order: {ids}; their order is kept, fc depends on it"))
    for word, number in target.special_ids.items():
        if number == config.mask_token_id:
            notes.append(Note("warning", f"the mask token {number} is also the target's {word.upper()} token"))
    for key, value in unknown_dflash_keys(checkpoint.config).items():
        notes.append(Note("warning", f"dflash_config.{key} = {value!r} is not known and was not used; the draft may need it"))
    if config.is_causal is None:
        notes.append(Note("info", "no causal flag in config.json: llama.cpp runs the block bidirectionally"))
    return notes


def _common_notes(
    checkpoint: Checkpoint, vocab: Sequence[KV], tensors: Sequence[PlannedTensor], outtype: str
) -> tuple[Note, ...]:
    notes = [Note("info", text) for text in checkpoint.notes]
    tokens = next((kv.value for kv in vocab if kv.key == "tokenizer.ggml.tokens"), ())
    padded = [t for t in tokens if t.startswith("[PAD")]
    if padded:
        notes.append(Note("info", f"{len(padded)} rows of the embedding table have no token: {padded[0]} … {padded[-1]}"))
    fallbacks = [t.name for t in tensors if t.type == G.F16 and outtype == "q8_0"]
    if fallbacks:
        notes.append(Note("warning", f"{len(fallbacks)} tensor(s) stay F16, their rows do not divide by 32: {fallbacks[0]}, …"))
    return tuple(notes)


def weights_in(checkpoint: Checkpoint) -> int:
    """Number of weights of a checkpoint, for the size label."""
    return sum(int(np.prod(t.shape, dtype=np.int64)) for t in checkpoint.tensors.values())
