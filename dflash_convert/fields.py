"""Where each value of a config.json may live: the table that `config.py` resolves.

A row names the places (dotted paths; the published schemas disagree), how the value is read, the flag that supplies it
where it is missing, and what the weights imply about it. Nothing trained in has a default.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"  # layer_types' two words

Shapes = Mapping[str, tuple[int, ...]]  # checkpoint tensor name (without "model.") → shape


# ── readers: a JSON value → a Python value, or ValueError saying what was expected ────────────────────────────────────


def integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not float(value).is_integer():
        raise ValueError("an integer")
    return int(value)


def positive(value: Any) -> int:
    number = integer(value)
    if number <= 0:
        raise ValueError("a positive integer")
    return number


def real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("a number")
    return float(value)


def positive_real(value: Any) -> float:
    number = real(value)
    if number <= 0:
        raise ValueError("a number above 0")
    return number


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def attention_kinds(value: Any) -> tuple[str, ...]:
    """layer_types; S and F are short for its two words, for the command line."""
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError("a list with one kind of attention for each layer")
    return tuple({"S": SLIDING, "F": FULL}.get(str(v), str(v)) for v in value)


def layer_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("a list of layer numbers")
    return tuple(integer(v) for v in value)


def shifted_layer_ids(value: Any) -> tuple[int, ...]:
    """Ids stored one higher than z-lab's (the aux_hidden_state convention) → z-lab's."""
    return tuple(i - 1 for i in layer_ids(value))


# ── what the weights say about a value that the config lacks ──────────────────────────────────────────────────────────


def taps_implied(shapes: Shapes, config: Mapping[str, Any]) -> str | None:
    fc, width = shapes.get("fc.weight"), config.get("target_hidden_size") or config.get("hidden_size")
    if fc is None or len(fc) != 2 or not width or fc[1] % width:
        return None
    return f"fc.weight is {fc[0]}×{fc[1]}, so {fc[1] // width} taps of width {width}"


def head_dim_implied(shapes: Shapes, _: Mapping[str, Any]) -> str | None:
    norm = shapes.get("layers.0.self_attn.q_norm.weight")
    return f"layers.0.self_attn.q_norm.weight has {norm[0]} values, so head_dim {norm[0]}" if norm else None


def layers_implied(shapes: Shapes, _: Mapping[str, Any]) -> str | None:
    ids = {int(n.split(".")[1]) for n in shapes if n.startswith("layers.") and n.split(".")[1].isdecimal()}
    return f"the weights have layers 0 to {max(ids)}, so {max(ids) + 1} layers" if ids else None


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Field:
    """Where one value may live: dotted paths in config.json, first non-null wins, all non-null must agree."""

    name: str
    places: tuple[str | tuple[str, Callable[[Any], Any]], ...]
    read: Callable[[Any], Any]
    required: bool = False
    flag: str | None = None
    implied: Callable[[Shapes, Mapping[str, Any]], str | None] | None = None


def _both(*names: str) -> tuple[str, ...]:
    """The same names in `rope_parameters` (transformers 5) and in `rope_scaling` (before)."""
    return tuple(f"{group}.{name}" for name in names for group in ("rope_parameters", "rope_scaling"))


MODEL_FIELDS: tuple[Field, ...] = (
    Field("hidden_size", ("hidden_size",), positive, required=True),
    Field("num_hidden_layers", ("num_hidden_layers",), positive, required=True, implied=layers_implied),
    Field("intermediate_size", ("intermediate_size",), positive, required=True),
    Field("num_attention_heads", ("num_attention_heads",), positive, required=True),
    Field("num_key_value_heads", ("num_key_value_heads",), positive, required=True),
    Field("head_dim", ("head_dim",), positive, required=True, implied=head_dim_implied),
    Field("max_position_embeddings", ("max_position_embeddings",), positive, required=True),
    Field("rms_norm_eps", ("rms_norm_eps",), positive_real, required=True),
    Field("vocab_size", ("vocab_size",), positive, required=True),
    Field("hidden_act", ("hidden_act",), text),
    Field(
        "rope_theta",
        ("rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta"),
        positive_real,
        required=True,
        flag="--rope-theta",
    ),
    Field("rope_type", _both("rope_type", "type"), text),
    Field("rope_factor", _both("factor"), positive_real),
    Field(
        "rope_original_context",
        (*_both("original_max_position_embeddings"), "original_max_position_embeddings"),
        positive,
    ),
    Field("rope_ext_factor", _both("extrapolation_factor"), real),
    Field("rope_attn_factor", _both("attention_factor", "attn_factor"), real),
    Field("rope_beta_fast", _both("beta_fast"), real),
    Field("rope_beta_slow", _both("beta_slow"), real),
    Field("partial_rotary_factor", (*_both("partial_rotary_factor"), "partial_rotary_factor"), positive_real),
)

DRAFT_FIELDS: tuple[Field, ...] = (
    *MODEL_FIELDS,
    Field(
        "block_size",
        ("dflash_config.block_size", "block_size", "dspark_block_size"),
        positive,
        required=True,
        flag="--block-size",
    ),
    Field(
        "mask_token_id",
        ("dflash_config.mask_token_id", "mask_token_id", "pard_token", "dspark_noise_token_id"),
        integer,
        required=True,
        flag="--mask-token-id",
    ),
    Field(
        "target_layer_ids",
        (
            "dflash_config.target_layer_ids",
            "target_layer_ids",
            ("aux_hidden_state_layer_ids", shifted_layer_ids),
            ("eagle_aux_hidden_state_layer_ids", shifted_layer_ids),
            "dspark_target_layer_ids",
        ),
        layer_ids,
        required=True,
        flag="--target-layer-ids",
        implied=taps_implied,
    ),
    Field("num_target_layers", ("num_target_layers", "dflash_config.num_target_layers"), positive),
    Field("target_hidden_size", ("target_hidden_size",), positive),
    Field("sliding_window", ("dflash_config.swa_window_size", "sliding_window"), positive, flag="--sliding-window"),
    Field("use_sliding_window", ("use_sliding_window",), boolean),
    Field("use_swa", ("dflash_config.use_swa",), boolean),
    Field("layer_types", ("layer_types",), attention_kinds, flag="--layer-types"),
    Field(
        "is_causal",
        ("is_causal", "dflash_config.causal", "dflash_config.dflash_query_causal", "dflash_query_causal"),
        boolean,
    ),
    Field("rope_is_neox_style", ("rope_is_neox_style", "is_neox_style"), boolean),
    Field("attention_value_scale", ("dflash_config.attention_value_scale", "attention_value_scale"), real),
    Field("attention_sink_bias", ("dflash_config.attention_sink_bias", "add_swa_attention_sink_bias"), boolean),
    Field("output_multiplier", ("dflash_config.output_multiplier", "output_multiplier"), real),
    Field("final_logit_softcapping", ("dflash_config.final_logit_softcapping", "final_logit_softcapping"), real),
    Field("embedding_scale", ("dflash_config.input_embedding_scale", "input_embedding_scale"), real),
)

# Groups of config.json in which every key is accounted for, and the keys in them that need no place in the GGUF.
GROUPS = ("dflash_config", "rope_parameters", "rope_scaling")
HARMLESS: Mapping[str, str] = {
    "num_anchors": "a training setting",
    "loss_decay_gamma": "a training setting",
    "backbone_rotary_base": "the target's own rope base",
    "projector_type": "a label; the tensors tell the family",
    "mrope_section": "inherited from the target: a draft ropes in one dimension",
    "mrope_interleaved": "inherited from the target: a draft ropes in one dimension",
}

# Flags that supply a value → the field they supply.
FLAGS: Mapping[str, str] = {f.flag: f.name for f in DRAFT_FIELDS if f.flag}
