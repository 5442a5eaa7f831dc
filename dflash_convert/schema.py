"""The mapping, as tables: which keys and tensors an output file has, in which order, and what each is made from.

Read this, then plan.py, and you know every byte of the output. A key row takes a field of the config (config.py) or a
named function of it; a row whose value is None writes nothing. A tensor row maps a checkpoint tensor to its GGUF name
and states its shape in the config's own words. What a checkpoint may hold besides is in IGNORED, with the reason.

Keys are in the order in which llama.cpp's converter (conversion/base.py, then conversion/qwen.py, DFlashModel) writes
them; tensors keep the checkpoint's order, so the order of TENSORS is only for reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Value = Callable[[Any], Any]  # a config → the value of a key, or None for "not written"


@dataclass(frozen=True)
class KeyRow:
    """One key. `{arch}` in `key` is the architecture; `type` is a GGUF type, `[t]` for an array of t.

    field: the config field the value comes from (also tells where it was found). value: the named function where the
    field alone is not the value.
    """

    key: str
    type: str
    field: str
    value: Value | None = None

    def of(self, config: Any) -> Any:
        """The value for `config`, or None."""
        return self.value(config) if self.value else getattr(config, self.field)


@dataclass(frozen=True)
class TensorRow:
    """One tensor, or with `{i}` one per layer.

    shape: config attributes, slowest axis first. role: what the tensor does, for recipes and reports. rotary: its rows
    (or entries) are the rotary dimensions of each head, to be reordered where the checkpoint interleaves them.
    """

    name: str
    source: str
    shape: tuple[str, ...]
    role: str
    required: bool = True
    rotary: bool = False


@dataclass(frozen=True)
class IgnoredRow:
    """A checkpoint tensor that has no place in the output: a name or a `*` pattern, and why."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class RefusedRow:
    """A tensor that shows the checkpoint to be something this converter does not write: a `*` pattern and what it is."""

    pattern: str
    what: str


# ── keys ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rope_scaling_type(config: Any) -> str | None:
    return config.rope_type if config.rope_type in ("linear", "yarn") else None


def _if_yarn(name: str) -> Value:
    return lambda config: getattr(config, name) if config.rope_type == "yarn" else None


def scaling_factor(config: Any) -> float | None:
    return config.rope_factor if rope_scaling_type(config) else None


def rotary_dimensions(config: Any) -> int | None:
    """The rotated part of each head, where the config says it is a part: head_dim · partial_rotary_factor."""
    factor = config.partial_rotary_factor
    return None if factor is None else int(config.head_dim * factor)


def target_layers(config: Any) -> list[int]:
    """THE tap shift. The checkpoint names layers whose *output* is tapped, llama.cpp those whose *input* is: id + 1."""
    return [i + 1 for i in config.target_layer_ids]


def window_if_sliding(config: Any) -> int | None:
    return config.sliding_window if any(config.sliding_layers) else None


def sliding_pattern(config: Any) -> list[bool] | None:
    return list(config.sliding_layers) if any(config.sliding_layers) else None


def declared_not_causal(config: Any) -> bool | None:
    """`is_causal: false` at the top level stands among the attention keys, where llama.cpp's base class writes it."""
    return False if config.is_causal is False and config.where["is_causal"] == "is_causal" else None


def declared_causal(config: Any) -> bool | None:
    """Every other declaration of causality stands behind the window keys."""
    return None if declared_not_causal(config) is False else config.is_causal


MODEL_KEYS: tuple[KeyRow, ...] = (
    KeyRow("{arch}.block_count", "u32", "num_hidden_layers"),
    KeyRow("{arch}.context_length", "u32", "max_position_embeddings"),
    KeyRow("{arch}.embedding_length", "u32", "hidden_size"),
    KeyRow("{arch}.feed_forward_length", "u32", "intermediate_size"),
    KeyRow("{arch}.attention.head_count", "u32", "num_attention_heads"),
    KeyRow("{arch}.attention.head_count_kv", "u32", "num_key_value_heads"),
)

ROPE_KEYS: tuple[KeyRow, ...] = (
    KeyRow("{arch}.rope.scaling.type", "str", "rope_type", rope_scaling_type),
    KeyRow("{arch}.rope.scaling.factor", "f32", "rope_factor", scaling_factor),
    KeyRow("{arch}.rope.scaling.original_context_length", "u32", "rope_original_context", _if_yarn("rope_original_context")),
    KeyRow("{arch}.rope.scaling.yarn_ext_factor", "f32", "rope_ext_factor", _if_yarn("rope_ext_factor")),
    KeyRow("{arch}.rope.scaling.yarn_attn_factor", "f32", "rope_attn_factor", _if_yarn("rope_attn_factor")),
    KeyRow("{arch}.rope.scaling.yarn_beta_fast", "f32", "rope_beta_fast", _if_yarn("rope_beta_fast")),
    KeyRow("{arch}.rope.scaling.yarn_beta_slow", "f32", "rope_beta_slow", _if_yarn("rope_beta_slow")),
    KeyRow("{arch}.rope.freq_base", "f32", "rope_theta"),
    KeyRow("{arch}.attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    KeyRow("{arch}.attention.key_length", "u32", "head_dim"),
    KeyRow("{arch}.attention.value_length", "u32", "head_dim"),
)

DRAFT_KEYS: tuple[KeyRow, ...] = (
    *MODEL_KEYS,
    KeyRow("{arch}.attention.causal", "bool", "is_causal", declared_not_causal),
    *ROPE_KEYS,
    KeyRow("general.file_type", "u32", "file_type"),
    KeyRow("{arch}.rope.dimension_count", "u32", "partial_rotary_factor", rotary_dimensions),
    KeyRow("{arch}.attention.value_scale", "f32", "attention_value_scale"),
    KeyRow("{arch}.block_size", "u32", "block_size"),
    KeyRow("{arch}.embedding_scale", "f32", "embedding_scale"),
    KeyRow("{arch}.target_layers", "[i32]", "target_layer_ids", target_layers),
    KeyRow("{arch}.attention.sliding_window", "u32", "sliding_window", window_if_sliding),
    KeyRow("{arch}.attention.sliding_window_pattern", "[bool]", "layer_types", sliding_pattern),
    KeyRow("{arch}.attention.causal", "bool", "is_causal", declared_causal),
    KeyRow("{arch}.rope.dimension_sections", "[i32]", "mrope_sections"),
)

TARGET_KEYS: tuple[KeyRow, ...] = (*MODEL_KEYS, *ROPE_KEYS, KeyRow("general.file_type", "u32", "file_type"))

# ── tensors ────────────────────────────────────────────────────────────────────────────────────────────────────────────

# One Qwen3 layer: the eleven tensors that every DFlash draft and every Qwen3 target has.
LAYER_TENSORS: tuple[TensorRow, ...] = (
    TensorRow("blk.{i}.attn_norm.weight", "layers.{i}.input_layernorm.weight", ("hidden_size",), "norm"),
    TensorRow("blk.{i}.attn_q.weight", "layers.{i}.self_attn.q_proj.weight", ("q_size", "hidden_size"), "attn_q", rotary=True),
    TensorRow("blk.{i}.attn_k.weight", "layers.{i}.self_attn.k_proj.weight", ("kv_size", "hidden_size"), "attn_k", rotary=True),
    TensorRow("blk.{i}.attn_v.weight", "layers.{i}.self_attn.v_proj.weight", ("kv_size", "hidden_size"), "attn_v"),
    TensorRow("blk.{i}.attn_output.weight", "layers.{i}.self_attn.o_proj.weight", ("hidden_size", "q_size"), "attn_output"),
    TensorRow("blk.{i}.attn_q_norm.weight", "layers.{i}.self_attn.q_norm.weight", ("head_dim",), "norm", rotary=True),
    TensorRow("blk.{i}.attn_k_norm.weight", "layers.{i}.self_attn.k_norm.weight", ("head_dim",), "norm", rotary=True),
    TensorRow("blk.{i}.ffn_norm.weight", "layers.{i}.post_attention_layernorm.weight", ("hidden_size",), "norm"),
    TensorRow("blk.{i}.ffn_gate.weight", "layers.{i}.mlp.gate_proj.weight", ("intermediate_size", "hidden_size"), "ffn_gate"),
    TensorRow("blk.{i}.ffn_up.weight", "layers.{i}.mlp.up_proj.weight", ("intermediate_size", "hidden_size"), "ffn_up"),
    TensorRow("blk.{i}.ffn_down.weight", "layers.{i}.mlp.down_proj.weight", ("hidden_size", "intermediate_size"), "ffn_down"),
)  # fmt: skip

DRAFT_TENSORS: tuple[TensorRow, ...] = (
    TensorRow("fc.weight", "fc.weight", ("hidden_size", "feature_size"), "fc"),
    TensorRow("enc.output_norm.weight", "hidden_norm.weight", ("hidden_size",), "norm"),
    *LAYER_TENSORS,
    TensorRow("output_norm.weight", "norm.weight", ("hidden_size",), "norm"),
)

# Some drafts bring the target's tables along. Both or neither: a `token_embd` alone would be taken for the head too.
OWN_TABLES: tuple[TensorRow, ...] = (
    TensorRow("token_embd.weight", "embed_tokens.weight", ("vocab_size", "hidden_size"), "token_embd", required=False),
    TensorRow("output.weight", "lm_head.weight", ("vocab_size", "hidden_size"), "output", required=False),
)

IGNORED: tuple[IgnoredRow, ...] = (
    IgnoredRow("*.rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
    IgnoredRow("rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
)

REFUSED: tuple[RefusedRow, ...] = (
    RefusedRow("candidate_selector.*", "a DFlash2 draft (candidate selector)"),
    RefusedRow("*.attention_conv.*", "a DFlash2 draft (dynamic convolutions)"),
    RefusedRow("*.mlp_conv.*", "a DFlash2 draft (dynamic convolutions)"),
    RefusedRow("markov_head.*", "a DSpark draft (Markov head)"),
    RefusedRow("confidence_head.*", "a DSpark draft (confidence head)"),
    RefusedRow("d2t", "a draft with a reduced vocabulary"),
    RefusedRow("t2d", "a draft with a reduced vocabulary"),
    RefusedRow("prefix_gru.*", "a Domino draft, which llama.cpp cannot run"),
    RefusedRow("log_snr_fc*", "a log-SNR conditioned draft, which llama.cpp cannot run"),
    RefusedRow("aux_hidden_norms.*", "a Laguna draft (a norm for each tap), which llama.cpp cannot run"),
    RefusedRow("*.g_proj.weight", "a draft with gated attention, which llama.cpp cannot run"),
    RefusedRow("*.mlp.experts.*", "a mixture-of-experts draft"),
    RefusedRow("encoder.*", "a Muse-Glimmer assistant"),
    RefusedRow("*_scale*", "a quantized checkpoint: convert the bf16 original"),
    RefusedRow("*_packed", "a quantized checkpoint: convert the bf16 original"),
    RefusedRow("*.bias", "a bias, and DFlash in llama.cpp has no place for one"),
)
