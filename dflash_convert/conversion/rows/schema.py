"""The mapping, as tables: which keys and tensors an output file has, in which order, and what each is made from.

Read this, then plan.py, and you know every byte of the output. A key row takes a field of the config (config.py) or a
named function of it; a row whose value is None writes nothing. A tensor row maps a checkpoint tensor to its GGUF name
and states its shape in the config's own words. What a checkpoint may hold besides is in IGNORED, with the reason.

Keys are in the order in which llama.cpp's converter (conversion/base.py, then conversion/qwen.py, DFlashModel) writes
them; tensors keep the checkpoint's order, so the order of TENSORS is only for reading.
"""

from __future__ import annotations

import math
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
    aliases: other names that some checkpoints give it. stored: its type in the GGUF where that is not the file's.
    """

    name: str
    source: str
    shape: tuple[str, ...]
    role: str
    required: bool = True
    rotary: bool = False
    aliases: tuple[str, ...] = ()
    stored: str = ""


@dataclass(frozen=True)
class ComputedRow:
    """A tensor that no checkpoint holds: float32 values by a named function of the config, None for "not needed"."""

    name: str
    source: str
    values: Callable[[Any], list[float] | None]


@dataclass(frozen=True)
class IgnoredRow:
    """A checkpoint tensor that has no place in the output: a name or a `*` pattern, and why.

    zeros: it may be left out only where all of it is zero, so that leaving it out changes nothing.
    """

    pattern: str
    reason: str
    zeros: bool = False


@dataclass(frozen=True)
class RefusedTensor:
    """A checkpoint tensor that has no row: a `*` pattern, what it shows the checkpoint to be, what would be needed."""

    pattern: str
    what: str
    needed: str = ""


@dataclass(frozen=True)
class RefusedKey:
    """A config key (dotted path) that marks a kind of checkpoint that cannot be converted.

    It does so by being set, by being `value`, or by being anything but one of `known`.
    """

    path: str
    what: str
    needed: str = ""
    value: str | None = None
    known: tuple[str, ...] = ()


# ── keys ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rope_scaling_type(config: Any) -> str | None:
    """llama.cpp's name of the scaling; none where the frequencies are written out."""
    if yarn_by_table(config):
        return "none"
    return config.rope_type if config.rope_type in ("linear", "yarn") else None


def _if_yarn(name: str) -> Value:
    return lambda config: getattr(config, name) if rope_scaling_type(config) == "yarn" else None


YARN_BETAS = (32.0, 1.0)  # the only ones llama.cpp ropes a draft with, whatever a file says


def yarn_by_table(config: Any) -> bool:
    """Whether a yarn needs its frequencies written out: llama.cpp's own has fixed betas and rounds the ramp's ends."""
    betas = (config.rope_beta_fast or YARN_BETAS[0], config.rope_beta_slow or YARN_BETAS[1])
    return config.rope_type == "yarn" and (config.rope_truncate is False or betas != YARN_BETAS)


def yarn_magnitude(config: Any) -> float:
    """transformers' factor on cosine and sine: given, or the ratio of two mscales, or 1 + 0.1 ln(factor)."""

    def mscale(weight: float) -> float:
        return 1.0 if config.rope_factor <= 1 else 0.1 * weight * math.log(config.rope_factor) + 1.0

    if config.rope_attn_factor is not None:
        return float(config.rope_attn_factor)
    if config.rope_mscale and config.rope_mscale_all_dim:
        return mscale(config.rope_mscale) / mscale(config.rope_mscale_all_dim)
    return mscale(1.0)


def extra_magnitude(config: Any) -> float | None:
    """What llama.cpp has to multiply its own 1 + 0.1 ln(factor) by (1, where frequencies are written out)."""
    if config.rope_type != "yarn":
        return None
    own = 1.0 if yarn_by_table(config) or config.rope_factor <= 1 else 1 + 0.1 * math.log(config.rope_factor)
    ratio = yarn_magnitude(config) / own
    return None if math.isclose(ratio, 1.0, rel_tol=1e-6) else ratio


def scaling_factor(config: Any) -> float | None:
    return config.rope_factor if rope_scaling_type(config) in ("linear", "yarn") else None


def rotary_dimensions(config: Any) -> int | None:
    """The rotated part of each head, where the config says it is a part: head_dim · partial_rotary_factor.

    "Proportional" rope takes its frequencies from the whole head; which of them turn is in the table of factors.
    """
    factor = config.partial_rotary_factor
    if factor is None or config.rope_type == "proportional":
        return None if factor is None else int(config.head_dim)
    return int(config.head_dim * factor)


STILL = 1e30  # a factor by which a frequency is divided so far down that nothing turns


def frequency_factors(config: Any) -> list[float] | None:
    """What llama.cpp divides each frequency of the rope by, (head_dim / 2,); None where its own rope is right."""
    half = config.head_dim // 2
    if config.rope_type == "proportional":
        turning = int(config.head_dim * config.partial_rotary_factor / 2)
        return [1.0] * turning + [STILL] * (half - turning)
    if yarn_by_table(config):
        factors = yarn_factors(config, rotary_dimensions(config) or config.head_dim)
        return factors + [1.0] * (half - len(factors))
    return None


def yarn_factors(config: Any, n_rot: int) -> list[float]:
    """YaRN's frequencies (arXiv 2309.00071, section 3.2) as divisors of the plain ones, (n_rot / 2,).

    The dimension that turns beta times within the original context is n_rot · ln(context / 2πβ) / 2 ln(base); between
    those of the two betas a divisor's inverse runs from 1 to 1 / factor.
    """
    fast, slow = config.rope_beta_fast or YARN_BETAS[0], config.rope_beta_slow or YARN_BETAS[1]
    low, high = (
        n_rot * math.log(config.rope_original_context / (2 * math.pi * beta)) / (2 * math.log(config.rope_theta))
        for beta in (fast, slow)
    )
    if config.rope_truncate is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    ramps = (min(max((i - low) / max(0.001, high - low), 0), 1) for i in range(n_rot // 2))
    return [1 / (1 - ramp + ramp / config.rope_factor) for ramp in ramps]


def activation_but_silu(config: Any) -> str | None:
    return None if config.hidden_act in (None, "silu") else str(config.hidden_act)


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
    return None if declared_not_causal(config) is False else causal(config)


def causal(config: Any) -> bool | None:
    """Whether a block's position hides the later ones, None where nothing says.

    A speculators draft is causal in its sliding layers unless `sliding_window_non_causal`; llama.cpp has one flag for
    all layers, so this is only asked of drafts whose layers all slide, or none (checks.py).
    """
    if config.is_causal is not None:
        return bool(config.is_causal)
    if any(config.sliding_layers) and (config.is_speculators or config.sliding_window_non_causal is not None):
        return not config.sliding_window_non_causal
    return None


def sample_from_anchor(config: Any) -> bool:
    """Whether the first drafted token is read off the anchor's own position.

    Where the config does not say: DeepSpec and SpecForge do so; speculators writes the key ever since it could, so that
    a file without it is from before, when the anchor's position was a bonus.
    """
    return not config.is_speculators if config.sample_from_anchor is None else config.sample_from_anchor


def has_confidence_head(config: Any) -> bool:
    return config.confidence_size is not None


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
    KeyRow("{arch}.rope.scaling.attn_factor", "f32", "rope_attn_factor", extra_magnitude),
    KeyRow("{arch}.rope.scaling.yarn_beta_fast", "f32", "rope_beta_fast", _if_yarn("rope_beta_fast")),
    KeyRow("{arch}.rope.scaling.yarn_beta_slow", "f32", "rope_beta_slow", _if_yarn("rope_beta_slow")),
    KeyRow("{arch}.rope.freq_base", "f32", "rope_theta"),
    KeyRow("{arch}.attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
    KeyRow("{arch}.attention.key_length", "u32", "head_dim"),
    KeyRow("{arch}.attention.value_length", "u32", "head_dim"),
)

DFLASH2_KEYS: tuple[KeyRow, ...] = (
    KeyRow("{arch}.conv_kernel_size", "u32", "conv_kernel_size"),
    KeyRow("{arch}.conv_group_size", "u32", "conv_group_size"),
    KeyRow("{arch}.selector_rank", "u32", "selector_rank"),
    KeyRow("{arch}.selector_top_k", "u32", "selector_top_k"),
)

DSPARK_KEYS: tuple[KeyRow, ...] = (
    KeyRow("{arch}.sample_from_anchor", "bool", "sample_from_anchor", sample_from_anchor),
    KeyRow("{arch}.has_confidence_head", "bool", "confidence_size", has_confidence_head),
)

DRAFT_KEYS: tuple[KeyRow, ...] = (
    *MODEL_KEYS,
    KeyRow("{arch}.attention.causal", "bool", "is_causal", declared_not_causal),
    *ROPE_KEYS,
    KeyRow("general.file_type", "u32", "file_type"),
    KeyRow("{arch}.rope.dimension_count", "u32", "partial_rotary_factor", rotary_dimensions),
    KeyRow("{arch}.attention.value_scale", "f32", "attention_value_scale"),
    KeyRow("{arch}.block_size", "u32", "block_size"),
    *DFLASH2_KEYS,
    KeyRow("{arch}.logit_scale", "f32", "output_multiplier"),
    KeyRow("{arch}.final_logit_softcapping", "f32", "final_logit_softcapping", softcap_if_positive),
    KeyRow("{arch}.embedding_scale", "f32", "embedding_scale"),
    KeyRow("{arch}.target_layers", "[i32]", "target_layer_ids", target_layers),
    KeyRow("{arch}.attention.sliding_window", "u32", "sliding_window", window_if_sliding),
    KeyRow("{arch}.attention.sliding_window_pattern", "[bool]", "sliding_layers", sliding_pattern),
    KeyRow("{arch}.attention.causal", "bool", "is_causal", declared_causal),
    KeyRow("{arch}.rope.dimension_sections", "[i32]", "mrope_sections"),
    KeyRow("{arch}.hidden_activation", "str", "hidden_act", activation_but_silu),
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
# A head of fewer rows than the vocabulary comes with d2t: the token that each of its rows means.
TOKEN_EMBD = TensorRow(
    "token_embd.weight", "embed_tokens.weight", ("vocab_size", "hidden_size"), "token_embd", required=False
)
OUTPUT = TensorRow("output.weight", "lm_head.weight", ("draft_vocab_rows", "hidden_size"), "output", required=False)
D2T = TensorRow(
    "d2t", "d2t", ("draft_vocab_rows",), "d2t", required=False, aliases=("draft_id_to_target_id",), stored="I64"
)
OWN_TABLES: tuple[TensorRow, ...] = (TOKEN_EMBD, OUTPUT, D2T)

# A score for each head that takes its share of the attention and has no value. In checkpoints the names lack `.weight`.
SINKS = TensorRow(
    "blk.{i}.attn_sinks.weight",
    "layers.{i}.self_attn.attention_sink_bias",
    ("num_attention_heads",),
    "attn_sinks",
    required=False,
    aliases=("layers.{i}.self_attn.sinks",),
)

# DFlash2: around attention and feed-forward a convolution with a kernel of each position's own, and the selector, which
# picks a path through the candidates of neighbouring positions.
DFLASH2_TENSORS: tuple[TensorRow, ...] = (
    *(
        TensorRow(f"selector_{here}.weight", f"candidate_selector.{there}", shape, "selector")
        for here, there, shape in (
            ("predecessor", "predecessor_codebook", ("vocab_size", "selector_rank")),
            ("successor", "successor_codebook", ("vocab_size", "selector_rank")),
            ("hidden", "hidden_projection.weight", ("selector_rank", "hidden_size")),
        )
    ),
    *(
        row
        for here, there in (("attn", "attention"), ("ffn", "mlp"))
        for row in (
            TensorRow(
                f"blk.{{i}}.{here}_conv_base", f"layers.{{i}}.{there}_conv.base_kernel",
                ("conv_sides", "conv_kernel_size", "hidden_size"), "conv", stored="F32",
            ),
            in_layer(f"{here}_conv_proj", f"{there}_conv.kernel_projection", ("conv_proj_size", "hidden_size"), "conv"),
        )
    ),
)  # fmt: skip

# DSpark: what the last token adds to the logits of the next, and how likely the target is to accept.
DSPARK_TENSORS: tuple[TensorRow, ...] = (
    TensorRow("markov_w1.weight", "markov_head.markov_w1.weight", ("vocab_size", "markov_rank"), "markov"),
    TensorRow("markov_w2.weight", "markov_head.markov_w2.weight", ("draft_vocab_rows", "markov_rank"), "markov"),
    TensorRow(
        "conf_proj.weight", "confidence_head.proj.weight", ("single", "confidence_size"), "confidence",
        required=False, aliases=("confidence_proj.weight",),
    ),
    TensorRow(
        "conf_proj.bias", "confidence_head.proj.bias", ("single",), "confidence",
        required=False, aliases=("confidence_proj.bias",),
    ),
)  # fmt: skip

# Where a target keeps its embeddings and its head: for drafts that need them written out. First name that is there.
TARGET_EMBD: tuple[str, ...] = (
    "model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "language_model.model.embed_tokens.weight",
    "backbone.embeddings.weight", "model.embeddings.weight", "embed_tokens.weight",
)  # fmt: skip
TARGET_OUTPUT: tuple[str, ...] = (
    "lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "model.language_model.lm_head.weight",
)  # fmt: skip

# They stand before all others.
COMPUTED: tuple[ComputedRow, ...] = (ComputedRow("rope_freqs.weight", "the config's rope", frequency_factors),)

# What may stand before every name of a checkpoint; the rows are written without.
PREFIXES: tuple[str, ...] = ("model.", "backbone.", "draft_model.")

IGNORED: tuple[IgnoredRow, ...] = (
    IgnoredRow("*.rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
    IgnoredRow("rotary_emb.inv_freq", "a cache of the rope frequencies, computed again by the engine"),
)
DRAFT_IGNORED: tuple[IgnoredRow, ...] = (
    *IGNORED,
    IgnoredRow("t2d", "the inverse of d2t, which the engine does not need"),
    IgnoredRow("target_id_to_draft_id", "the inverse of d2t, which the engine does not need"),
    IgnoredRow("*.self_attn.?_proj.bias", "a bias of zeros, which adds nothing", zeros=True),
)
