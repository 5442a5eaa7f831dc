"""Where each value of a config.json may live: the table that `config.py` resolves.

A row names the places (dotted paths; the published schemas disagree), how the value is read, the flag that supplies it
where it is missing, and what the weights imply about it. Nothing trained in has a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

SLIDING, FULL = "sliding_attention", "full_attention"  # layer_types' two words

MAX_FLOAT = 3.4028234e38  # float32's largest
MAX_LAYERS, MAX_TOKENS = 10_000, 1 << 24

Shapes = Mapping[str, tuple[int, ...]]  # checkpoint tensor name (without "model.") → shape


# ── readers: a JSON value → a Python value, or ValueError saying what was expected ────────────────────────────────────


def integer(value: Any) -> int:
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise ValueError("an integer")
    if not -(2**31) <= value < 2**31:
        raise ValueError("an integer of at most 32 bits")
    return value


def positive(value: Any) -> int:
    number = integer(value)
    if number <= 0:
        raise ValueError("a positive integer")
    return number


def at_most(most: int) -> Callable[[Any], int]:
    """A positive integer that is not absurd: what is as long as it says would fill the memory."""

    def read(value: Any) -> int:
        number = positive(value)
        if number > most:
            raise ValueError(f"at most {most}")
        return number

    return read


def real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -MAX_FLOAT <= value <= MAX_FLOAT:
        raise ValueError("a number that float32 holds")
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


def token_ids(value: Any) -> tuple[int, ...]:
    """One id or several."""
    return tuple(integer(i) for i in (value if isinstance(value, list) else [value]))


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
    if fc is None or len(fc) != 2 or type(width) is not int or width <= 0 or fc[1] % width:
        return None
    return f"fc.weight is {fc[0]}×{fc[1]}, so {fc[1] // width} taps of width {width}" + _rule(config, fc[1] // width)


def _rule(config: Mapping[str, Any], n_taps: int) -> str:
    """What the trainer's own rule would give, where it applies: as many taps as layers."""
    depth = config.get("num_target_layers")
    if not isinstance(depth, int) or n_taps != config.get("num_hidden_layers") or depth < n_taps + 3:
        return ""
    ids = ",".join(map(str, reference_taps(depth, n_taps)))
    return f"; if it was trained with the default for a target of {depth} layers, they are {ids}"


def head_dim_implied(shapes: Shapes, _: Mapping[str, Any]) -> str | None:
    norm = shapes.get("layers.0.self_attn.q_norm.weight")
    return f"layers.0.self_attn.q_norm.weight has {norm[0]} values, so head_dim {norm[0]}" if norm else None


def reference_taps(n_target: int, n_draft: int) -> list[int]:
    """The ids that z-lab's trainer takes where it is told none: from 1 to n_target - 3, evenly spaced.

    They are a hint only: many drafts were trained with others.
    """
    step = (n_target - 4) / max(1, n_draft - 1)
    return [round(1 + i * step) for i in range(n_draft)]


def width_of_mlp(shapes: Shapes, _: Mapping[str, Any]) -> str | None:
    gate = shapes.get("layers.0.mlp.gate_proj.weight")
    return f"layers.0.mlp.gate_proj.weight has {gate[0]} rows, so intermediate_size {gate[0]}" if gate else None


def block_known(_: Shapes, config: Mapping[str, Any]) -> str | None:
    if config.get("pard_token") is None or config.get("eagle_aux_hidden_state_layer_ids") is None:
        return None
    return "NVIDIA's Nemotron 3.5 DFlash, whose config looks like this one, was trained with blocks of 8"


def layer_number(name: str) -> int | None:
    """Which layer a tensor `layers.i.…` belongs to."""
    number = name.split(".")[1] if name.startswith("layers.") else ""
    return int(number) if number.isdecimal() and len(number) < 10 else None


def layers_implied(shapes: Shapes, _: Mapping[str, Any]) -> str | None:
    ids = {i for i in map(layer_number, shapes) if i is not None}
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


D, L, P = "dflash_config", "transformer_layer_config", "dspark_config"  # the groups of a draft's config.json


def _places(*names: str, groups: tuple[str, ...] = ("", L)) -> tuple[str, ...]:
    """Each name in each group, "" being the top level: all groups of the first name, then those of the next."""
    return tuple(f"{group}.{name}" if group else name for name in names for group in groups)


def _anywhere(*names: str) -> tuple[str, ...]:
    """Where the values that a draft adds to its transformer may live."""
    return _places(*names, groups=(D, "", P, L))


def _rope(*names: str) -> tuple[str, ...]:
    """Names in `rope_parameters` (transformers 5) and `rope_scaling` (before). Where a speculators checkpoint has an
    entry for each kind of layer, its trainer used that of the sliding layers for all."""
    kinds = ("rope_parameters", "rope_scaling", f"{L}.rope_parameters", f"{L}.rope_scaling")
    return _places(*names, groups=(*kinds, f"{L}.rope_parameters.sliding_attention"))


def _negated(name: str) -> tuple[str, Callable[[Any], Any]]:
    return name, lambda value: not boolean(value)


MODEL_FIELDS: tuple[Field, ...] = (
    Field("hidden_size", _places("hidden_size"), positive, required=True),
    Field(
        "num_hidden_layers", _places("num_hidden_layers"), at_most(MAX_LAYERS), required=True, implied=layers_implied
    ),
    Field("intermediate_size", _places("intermediate_size"), positive, required=True, implied=width_of_mlp),
    Field("num_attention_heads", _places("num_attention_heads"), positive, required=True),
    Field("num_key_value_heads", _places("num_key_value_heads"), positive, required=True),
    Field("head_dim", _places("head_dim"), positive, required=True, implied=head_dim_implied),
    Field("max_position_embeddings", _places("max_position_embeddings"), positive, required=True),
    Field("rms_norm_eps", _places("rms_norm_eps"), positive_real, required=True),
    Field("vocab_size", _places("vocab_size"), at_most(MAX_TOKENS), required=True),
    Field("hidden_act", _places("hidden_act"), text),
    Field(
        "rope_theta",
        (
            "rope_parameters.rope_theta",
            "rope_theta",
            "rope_scaling.rope_theta",
            *_places("rope_theta", "rope_parameters.rope_theta", "rope_scaling.rope_theta", groups=(L,)),
            f"{L}.rope_parameters.sliding_attention.rope_theta",
        ),
        positive_real,
        required=True,
        flag="--rope-theta",
    ),
    Field("rope_type", _rope("rope_type", "type"), text),
    Field("rope_factor", _rope("factor"), positive_real),
    Field(
        "rope_original_context",
        (*_rope("original_max_position_embeddings"), *_places("original_max_position_embeddings")),
        positive,
    ),
    Field("rope_ext_factor", _rope("extrapolation_factor"), real),
    Field("rope_attn_factor", _rope("attention_factor", "attn_factor"), positive_real),
    Field("rope_beta_fast", _rope("beta_fast"), positive_real),
    Field("rope_beta_slow", _rope("beta_slow"), positive_real),
    Field("rope_mscale", _rope("mscale"), positive_real),
    Field("rope_mscale_all_dim", _rope("mscale_all_dim"), positive_real),
    Field("rope_truncate", _rope("truncate"), boolean),
    Field("partial_rotary_factor", (*_rope("partial_rotary_factor"), *_places("partial_rotary_factor")), positive_real),
)

DRAFT_FIELDS: tuple[Field, ...] = (
    *MODEL_FIELDS,
    Field(
        "block_size",
        (*_anywhere("block_size"), "dspark_block_size"),
        positive,
        required=True,
        flag="--block-size",
        implied=block_known,
    ),
    Field(
        "mask_token_id",
        (*_anywhere("mask_token_id"), "pard_token", "dspark_noise_token_id"),
        integer,
        required=True,
        flag="--mask-token-id",
    ),
    Field(
        "target_layer_ids",
        (
            *_anywhere("target_layer_ids"),
            ("aux_hidden_state_layer_ids", shifted_layer_ids),
            ("eagle_aux_hidden_state_layer_ids", shifted_layer_ids),
            "dspark_target_layer_ids",
        ),
        layer_ids,
        required=True,
        flag="--target-layer-ids",
        implied=taps_implied,
    ),
    Field("num_target_layers", _anywhere("num_target_layers"), positive),
    Field("target_hidden_size", _anywhere("target_hidden_size"), positive),
    Field(
        "sliding_window",
        (f"{D}.swa_window_size", *_anywhere("sliding_window")),
        positive,
        flag="--sliding-window",
    ),
    Field("use_sliding_window", _anywhere("use_sliding_window"), boolean),
    Field("use_swa", (f"{D}.use_swa",), boolean),
    Field("layer_types", _anywhere("layer_types"), attention_kinds, flag="--layer-types"),
    Field(
        "is_causal",
        ("is_causal", f"{D}.is_causal", f"{D}.causal", f"{D}.dflash_query_causal", "dflash_query_causal"),
        boolean,
        flag="--causal",
    ),
    Field("sliding_window_non_causal", _anywhere("sliding_window_non_causal"), boolean),
    Field("rope_is_neox_style", _anywhere("rope_is_neox_style", "is_neox_style"), boolean),
    Field("attention_value_scale", _anywhere("attention_value_scale"), real),
    Field("attention_sink_bias", (*_anywhere("attention_sink_bias"), "add_swa_attention_sink_bias"), boolean),
    Field("tie_word_embeddings", _places("tie_word_embeddings", groups=("",)), boolean),
    Field("output_multiplier", _anywhere("output_multiplier", "logit_scale"), real),
    Field("final_logit_softcapping", _anywhere("final_logit_softcapping"), real),
    Field("embedding_scale", _anywhere("input_embedding_scale"), real),
    # DFlash2
    Field("conv_kernel_size", _anywhere("conv_kernel_size"), positive),
    Field("conv_group_size", _anywhere("conv_group_size"), positive),
    Field("selector_rank", _anywhere("selector_rank"), positive),
    Field("selector_top_k", _anywhere("selector_top_k"), positive),
    Field("selector_vocab_size", _anywhere("selector_vocab_size"), positive),
    # DSpark
    Field("markov_rank", (*_anywhere("markov_rank"), "dspark_markov_rank"), integer),
    Field("markov_head_type", _anywhere("markov_head_type"), text),
    Field(
        "sample_from_anchor",
        (*_anywhere("sample_from_anchor"), _negated("dspark_bonus_anchor"), _negated(f"{D}.dspark_bonus_anchor")),
        boolean,
        flag="--sample-from-anchor",
    ),
    Field("enable_confidence_head", _anywhere("enable_confidence_head", "use_confidence_head"), boolean),
    Field("confidence_head_with_markov", _anywhere("confidence_head_with_markov"), boolean),
    # a reduced vocabulary
    Field("draft_vocab_size", _anywhere("draft_vocab_size"), at_most(MAX_TOKENS)),
    Field("speculators_model_type", ("speculators_model_type",), text),
)


def replaced(fields: tuple[Field, ...], **places: tuple[str, ...]) -> tuple[Field, ...]:
    """The table with other places for some fields: for a family that keeps a value under a name of its own."""
    return tuple(replace(f, places=places.get(f.name, f.places)) for f in fields)


def required(fields: tuple[Field, ...], *names: str) -> tuple[Field, ...]:
    """The table with some fields required."""
    return tuple(replace(f, required=f.required or f.name in names) for f in fields)


# Groups of config.json in which every key is accounted for, and the keys in them that need no place in the GGUF.
GROUPS = (D, L, P, "rope_parameters", "rope_scaling", f"{L}.rope_parameters", f"{L}.rope_scaling")
HARMLESS: Mapping[str, str] = {
    "num_anchors": "a training setting",
    "loss_decay_gamma": "a training setting",
    "backbone_rotary_base": "the target's own rope base",
    "projector_type": "a label; the tensors tell the family",
    "attention_mode": "a label; the tensors tell",
    "confidence_head_alpha": "a training setting",
    "shift_label": "a training setting",
    "attention_bias": "the tensors tell",
    "attention_dropout": "a training setting",
    "initializer_range": "a training setting",
    "max_window_layers": "not used where layer_types is given",
    "model_type": "a label",
    "use_cache": "a setting of generation",
    "dtype": "the tensors tell",
    "torch_dtype": "the tensors tell",
    "tie_word_embeddings": "speculators drafts bring both tables or none",
    "architectures": "a label",
    "bos_token_id": "the target's",
    "eos_token_id": "the target's",
    "pad_token_id": "the target's",
    "full_attention": "the trainer used the entry of the sliding layers for all",
    "mrope_section": "inherited from the target: a draft ropes in one dimension",
    "mrope_interleaved": "inherited from the target: a draft ropes in one dimension",
}

# Flags that supply a value → the field they supply.
FLAGS: Mapping[str, str] = {f.flag: f.name for f in DRAFT_FIELDS if f.flag}
