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
class RefusedTensor:
    """A checkpoint tensor that this converter has no row for: a `*` pattern, and what it says about the checkpoint."""

    pattern: str
    what: str


@dataclass(frozen=True)
class RefusedKey:
    """A config key (dotted path) that marks a checkpoint of another kind: by being set, or by being `value`."""

    path: str
    what: str
    value: str | None = None


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def softcap_if_positive(config: Any) -> float | None:
    """A softcap of 0 is how some configs write "none"."""
    softcap = config.final_logit_softcapping
    return softcap if softcap is not None and softcap > 0 else None


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
    KeyRow(
        "{arch}.rope.scaling.original_context_length", "u32", "rope_original_context", _if_yarn("rope_original_context")
    ),
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
    KeyRow("{arch}.logit_scale", "f32", "output_multiplier"),
    KeyRow("{arch}.final_logit_softcapping", "f32", "final_logit_softcapping", softcap_if_positive),
    KeyRow("{arch}.embedding_scale", "f32", "embedding_scale"),
    KeyRow("{arch}.target_layers", "[i32]", "target_layer_ids", target_layers),
    KeyRow("{arch}.attention.sliding_window", "u32", "sliding_window", window_if_sliding),
    KeyRow("{arch}.attention.sliding_window_pattern", "[bool]", "sliding_layers", sliding_pattern),
    KeyRow("{arch}.attention.causal", "bool", "is_causal", declared_causal),
    KeyRow("{arch}.rope.dimension_sections", "[i32]", "mrope_sections"),
)

TARGET_KEYS: tuple[KeyRow, ...] = (*MODEL_KEYS, *ROPE_KEYS, KeyRow("general.file_type", "u32", "file_type"))

# ── tensors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def in_layer(name: str, source: str, shape: tuple[str, ...], role: str, *, rotary: bool = False) -> TensorRow:
    """The row of a weight that every layer has: `blk.{i}.<name>.weight` from `layers.{i}.<source>.weight`."""
    return TensorRow(f"blk.{{i}}.{name}.weight", f"layers.{{i}}.{source}.weight", shape, role, rotary=rotary)


# One Qwen3 layer: the eleven tensors that every DFlash draft and every Qwen3 target has.
LAYER_TENSORS: tuple[TensorRow, ...] = (
    in_layer("attn_norm", "input_layernorm", ("hidden_size",), "norm"),
    in_layer("attn_q", "self_attn.q_proj", ("q_size", "hidden_size"), "attn_q", rotary=True),
    in_layer("attn_k", "self_attn.k_proj", ("kv_size", "hidden_size"), "attn_k", rotary=True),
    in_layer("attn_v", "self_attn.v_proj", ("kv_size", "hidden_size"), "attn_v"),
    in_layer("attn_output", "self_attn.o_proj", ("hidden_size", "q_size"), "attn_output"),
    in_layer("attn_q_norm", "self_attn.q_norm", ("head_dim",), "norm", rotary=True),
    in_layer("attn_k_norm", "self_attn.k_norm", ("head_dim",), "norm", rotary=True),
    in_layer("ffn_norm", "post_attention_layernorm", ("hidden_size",), "norm"),
    in_layer("ffn_gate", "mlp.gate_proj", ("intermediate_size", "hidden_size"), "ffn_gate"),
    in_layer("ffn_up", "mlp.up_proj", ("intermediate_size", "hidden_size"), "ffn_up"),
    in_layer("ffn_down", "mlp.down_proj", ("hidden_size", "intermediate_size"), "ffn_down"),
)

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

# What may stand before every name of a checkpoint; the rows are written without.
PREFIXES: tuple[str, ...] = ("model.", "backbone.", "draft_model.")

IGNORED: tuple[IgnoredRow, ...] = (
    IgnoredRow("*.rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
    IgnoredRow("rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
)

# Signs of a draft of another family, asked before anything else is read.
FOREIGN_KEYS: tuple[RefusedKey, ...] = (
    RefusedKey(
        "transformer_layer_config", "a speculators checkpoint, its layers described in transformer_layer_config"
    ),
    RefusedKey("speculators_model_type", "a speculators checkpoint"),
    RefusedKey("dflash_config.causal_head", "a JetSpec draft (causal head), which llama.cpp cannot run"),
    RefusedKey("dflash_config.projector_type", "a Domino draft, which llama.cpp cannot run", value="domino"),
    RefusedKey("dflash_config.attention_modes", "a KDA hybrid (linear attention), which llama.cpp cannot run"),
    RefusedKey("linear_attn_config", "a KDA hybrid (linear attention), which llama.cpp cannot run"),
    RefusedKey("n_routed_experts", "a mixture-of-experts draft, which llama.cpp cannot run"),
    RefusedKey("moe_preset", "a mixture-of-experts draft, which llama.cpp cannot run"),
)
FOREIGN_TENSORS: tuple[RefusedTensor, ...] = (
    RefusedTensor("candidate_selector.*", "a DFlash2 draft (candidate selector)"),
    RefusedTensor("*.attention_conv.*", "a DFlash2 draft (dynamic convolutions)"),
    RefusedTensor("*.mlp_conv.*", "a DFlash2 draft (dynamic convolutions)"),
    RefusedTensor("markov_head.*", "a DSpark draft (Markov head)"),
    RefusedTensor("confidence_head.*", "a DSpark draft (confidence head)"),
    RefusedTensor("d2t", "a draft with a reduced vocabulary"),
    RefusedTensor("t2d", "a draft with a reduced vocabulary"),
    RefusedTensor("draft_id_to_target_id", "a draft with a reduced vocabulary"),
    RefusedTensor("prefix_gru.*", "a Domino draft, which llama.cpp cannot run"),
    RefusedTensor("log_snr_fc*", "a log-SNR conditioned draft, which llama.cpp cannot run"),
    RefusedTensor("aux_hidden_norms.*", "a Laguna draft (a norm for each tap), which llama.cpp cannot run"),
    RefusedTensor("encoder.fc.*", "a Muse-Glimmer assistant"),
)
# What a tensor without a row most likely is; asked once the family is known.
UNPLACED: tuple[RefusedTensor, ...] = (
    RefusedTensor("*.self_attn.g_proj.*", "the gate of gated attention, which DFlash in llama.cpp does not have"),
    RefusedTensor("*.mlp.experts.*", "an expert of a mixture, which this architecture does not have"),
    RefusedTensor("mtp.*", "a multi-token prediction layer, which this version does not convert"),
    RefusedTensor("*_scale*", "the scale of quantized weights: convert the bf16 original"),
    RefusedTensor("*_packed", "a quantized weight: convert the bf16 original"),
    RefusedTensor("*.SCB", "the scale of quantized weights: convert the bf16 original"),
    RefusedTensor("*.qzeros", "the zeros of quantized weights: convert the bf16 original"),
    RefusedTensor("*.g_idx", "the order of quantized weights: convert the bf16 original"),
    RefusedTensor("*.bias", "a bias, for which this architecture has no place in a GGUF"),
)
# Files beside the weights that change the model, and that would be lost.
FOREIGN_FILES: tuple[RefusedTensor, ...] = (
    RefusedTensor("mask_embedding.pt", "a trained embedding of the mask token, kept apart from the weights"),
)
