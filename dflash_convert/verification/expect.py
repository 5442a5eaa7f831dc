"""What every `dflash.*` key must say, derived again from the raw config.json of the draft and of its target.

In: the configs as they stand. Out: `KEYS`, a table whose rows hold a named function each, and the fingerprints of known
mistakes. The verifier never marks the converter's homework: this file shares no table and no code with it.

A derivation gives a value, None (the key has no business there), or UNKNOWN (the configs do not say). Where llama.cpp
has a default, a key that spells the default out is as good as none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dflash_convert.errors import ConfigError
from dflash_convert.runtime.hf_config import MissingError, first, read_decoder, said
from dflash_convert.runtime.reference_config import (
    activation_name,
    decoder_keys,
    read_anchor,
    read_causal,
    read_embedding_scale,
    read_mask,
    read_taps,
    read_windows,
)
from dflash_convert.runtime.reference_tensors import CONFIDENCE, MARKOV, SELECTOR
from dflash_convert.verification.sources import Source
from dflash_convert.verification.targets import Target

UNKNOWN = object()


@dataclass(frozen=True)
class Configs:
    """The draft's checkpoint, and its target if one was given."""

    source: Source
    target: Target | None = None

    @cached_property
    def flat(self) -> Mapping[str, Any]:
        """The decoder's values, wherever its schema keeps them."""
        return decoder_keys(self.source.schema)

    @cached_property
    def rope(self) -> Mapping[str, Any]:
        """What config.json says of rope, the new place over the old."""
        return {**said(self.flat, "rope_scaling"), **said(self.flat, "rope_parameters")}

    @property
    def head_dim(self) -> int:
        return self.source.head_dim

    @property
    def rope_kind(self) -> str:
        return str(self.rope.get("rope_type") or self.rope.get("type") or "default")


Derive = Callable[[Configs], Any]


@dataclass(frozen=True)
class Key:
    """One key. types: the GGUF value types llama.cpp's loader takes. default: what it assumes if the key is absent."""

    name: str
    types: tuple[str, ...]
    expect: Derive
    basis: str
    default: Derive = lambda _: None
    cause: str = ""


def expected(key: Key, configs: Configs) -> Any:
    """What the key must say, None for nothing, UNKNOWN where the configs do not say."""
    try:
        return key.expect(configs)
    except MissingError:
        return UNKNOWN


# values that live in several places, by all the names they go by
PLACES = (
    ("block_size",), ("mask_token_id", "pard_token"), ("target_layer_ids",), ("sliding_window", "swa_window_size"),
    ("layer_types",), ("attention_value_scale",), ("num_hidden_layers",), ("hidden_size",), ("head_dim",),
    ("intermediate_size",), ("num_attention_heads",), ("num_key_value_heads",), ("rms_norm_eps",), ("vocab_size",),
)  # fmt: skip
GROUPS = ("dflash_config", "", "dspark_config", "transformer_layer_config")


def check_agreement(config: Mapping[str, Any]) -> None:
    """Raise ConfigError where two places say different things of one value."""
    for names in PLACES:
        found = [
            (f"{group}.{name}" if group else name, value)
            for group in GROUPS
            for name in names
            if (value := (said(config, group) if group else config).get(name)) is not None
        ]
        for place, value in found[1:]:
            if value != found[0][1]:
                raise ConfigError(
                    f"config.json says {found[0][0]} = {found[0][1]} and {place} = {value}",
                    hint="decide which one the draft was trained with, and correct config.json",
                )


# -- derivations: one named function for each value that is not just looked up ------------------------------------


def at(*names: str) -> Derive:
    """The first value that is not null, None if there is none."""
    return lambda c: next((v for name in names if (v := first(name, c.source.schema.inner, c.flat)) is not None), None)


def trained(name: str) -> Derive:
    """As `at`, for what cannot be guessed."""
    return lambda c: c.source.schema.require(name)


def constant(value: Any) -> Derive:
    return lambda _: value


def taps(c: Configs) -> list[int]:
    """The checkpoint's own ids: the layers whose *output* is tapped."""
    return list(read_taps(c.source.schema))


def target_layers(c: Configs) -> list[int]:
    """llama.cpp taps a layer's *input*, which is the output of the layer before: each id + 1."""
    return [i + 1 for i in taps(c)]


def windows(c: Configs) -> tuple[int | None, ...]:
    return read_windows(c.source.schema, c.source.n_layer)


def window(c: Configs) -> int | None:
    return next((size for size in windows(c) if size is not None), None)


def pattern(c: Configs) -> list[bool] | None:
    slides = [size is not None for size in windows(c)]
    return slides if any(slides) else None


def causal(c: Configs) -> Any:
    """One flag for all layers: what llama.cpp has. Where layers differ, no file is right."""
    flags = set(read_causal(c.source.schema, windows(c)))
    return UNKNOWN if len(flags) > 1 else flags.pop()


def theta(c: Configs) -> Any:
    value = first("rope_theta", c.rope, c.flat)
    if value is None:
        raise MissingError("config.json: rope_theta is missing")
    return value


def rotary_width(c: Configs) -> int | None:
    factor = first("partial_rotary_factor", c.rope, c.flat)
    return None if factor in (None, 1) or c.rope_kind == "proportional" else int(c.head_dim * factor)


def sections(c: Configs) -> Any:
    """A draft ropes over time only: [half, 0, 0, 0] for a target that ropes over several axes, else nothing."""
    if c.target is None:
        return UNKNOWN
    return [c.head_dim // 2, 0, 0, 0] if c.target.mrope else None


def has_table(c: Configs) -> bool:
    """Whether the file must spell out the frequencies: llama.cpp ropes a draft with yarn's usual betas only, rounds the
    ends of the ramp, and knows no proportional rope."""
    if c.rope_kind == "proportional":
        return True
    betas = (c.rope.get("beta_fast", 32), c.rope.get("beta_slow", 1))
    return c.rope_kind == "yarn" and (c.rope.get("truncate") is False or betas != (32, 1))


def scaling_type(c: Configs) -> str | None:
    return c.rope_kind if c.rope_kind in ("yarn", "linear") and not has_table(c) else None


def scaling(name: str, *kinds: str) -> Derive:
    """A value of the rope scaling dict, for the scaling types that have it."""
    return lambda c: c.rope.get(name) if scaling_type(c) in kinds else None


def original_context(c: Configs) -> Any:
    if scaling_type(c) != "yarn":
        return None
    return c.rope.get("original_max_position_embeddings") or c.flat.get("original_max_position_embeddings")


def yarn_attention(c: Configs) -> Any:
    return c.rope.get("attention_factor", c.rope.get("attn_factor")) if scaling_type(c) == "yarn" else None


def magnitude(c: Configs) -> float | None:
    """What cosine and sine are multiplied by beyond llama.cpp's own 1 + 0.1 ln(factor)."""
    if c.rope_kind != "yarn":
        return None
    factor = float(c.rope["factor"])
    own = 1.0 if has_table(c) or factor <= 1 else 1 + 0.1 * math.log(factor)
    ratio = read_decoder(c.flat).rope.magnitude / own
    return None if math.isclose(ratio, 1, rel_tol=1e-6) else ratio


def embedding_scale(c: Configs) -> Any:
    if first("input_embedding_scale", c.source.schema.inner, c.flat) is None and c.target is None:
        return _embedding_scale_alone(c)
    return read_embedding_scale(c.source.schema, c.source.weights, c.source.hidden_size, _target_type(c))


def _embedding_scale_alone(c: Configs) -> Any:
    """Without the target: known for a draft with embeddings of its own."""
    scale = read_embedding_scale(c.source.schema, c.source.weights, c.source.hidden_size, "")
    return scale if c.source.schema.is_gemma or "embed_tokens.weight" in c.source.weights else UNKNOWN


def _target_type(c: Configs) -> str:
    if c.target is None:
        return ""
    return str(c.target.gguf.architecture if c.target.gguf else c.target.config.get("model_type", ""))


def softcap(c: Configs) -> Any:
    return first("final_logit_softcapping", c.source.schema.inner, c.flat) or None


def hidden_act(c: Configs) -> str | None:
    return None if activation_name(c.source.schema) == "silu" else activation_name(c.source.schema)


def attention_scale(c: Configs) -> float | None:
    """Gemma 4 scales its scores by nothing."""
    return 1.0 if c.source.schema.is_gemma else None


def of_dflash2(name: str) -> Derive:
    return lambda c: c.source.schema.require(name) if SELECTOR in c.source.weights else None


def anchor(c: Configs) -> bool | None:
    return read_anchor(c.source.schema, c.source.weights) if MARKOV in c.source.weights else None


def has_confidence(c: Configs) -> bool | None:
    return any(n in c.source.weights for n in CONFIDENCE) if MARKOV in c.source.weights else None


def n_embd_head(c: Configs) -> int:
    return int(c.source.hidden_size // int(c.flat["num_attention_heads"]))


def no_window(c: Configs) -> list[bool]:
    return [False] * c.source.n_layer


U32, F32, STR, BOOL = ("UINT32",), ("FLOAT32",), ("STRING",), ("BOOL",)
FLAGS = ("ARRAY of BOOL", "ARRAY of UINT32", "ARRAY of INT32")
INTS = ("ARRAY of INT32", "ARRAY of UINT32")
OLD = "probably written by an old or fork converter"

KEYS = (
    Key("general.architecture", STR, constant("dflash"), "mainline's name for a DFlash draft", cause=OLD),
    Key("dflash.block_count", U32, at("num_hidden_layers"), "num_hidden_layers"),
    Key("dflash.context_length", U32, at("max_position_embeddings"), "max_position_embeddings"),
    Key("dflash.embedding_length", U32, at("hidden_size"), "hidden_size"),
    Key("dflash.feed_forward_length", U32, at("intermediate_size"), "intermediate_size"),
    Key("dflash.attention.head_count", U32, at("num_attention_heads"), "num_attention_heads"),
    Key("dflash.attention.head_count_kv", U32, at("num_key_value_heads"), "num_key_value_heads",
        at("num_attention_heads")),
    Key("dflash.attention.key_length", U32, at("head_dim"), "head_dim", n_embd_head),
    Key("dflash.attention.value_length", U32, at("head_dim"), "head_dim", n_embd_head),
    Key("dflash.attention.layer_norm_rms_epsilon", F32, at("rms_norm_eps"), "rms_norm_eps"),
    Key("dflash.vocab_size", U32, constant(None), "vocab_size", at("vocab_size")),
    Key("dflash.block_size", U32, trained("block_size"), "block_size",
        cause="llama.cpp drafts 16 tokens where the key is absent, whatever was trained"),
    Key("dflash.target_layers", INTS, target_layers, "the checkpoint's ids + 1"),
    Key("tokenizer.ggml.mask_token_id", U32, lambda c: read_mask(c.source.schema), "mask_token_id",
        cause="the draft is asked with the wrong token, or with none"),
    Key("dflash.attention.sliding_window", U32, window, "sliding_window",
        cause="acceptance falls once the context is longer than the window"),
    Key("dflash.attention.sliding_window_pattern", FLAGS, pattern, "layer_types", no_window,
        cause="layers slide that were trained with full attention, or the other way round"),
    Key("dflash.attention.causal", BOOL, causal, "is_causal", constant(False),
        cause="the block is masked the wrong way"),
    Key("dflash.attention.value_scale", F32, at("attention_value_scale"),
        "attention_value_scale", constant(1.0), cause="every attention output is scaled wrong"),
    Key("dflash.rope.freq_base", F32, theta, "rope_theta",
        cause="positions are rotated by the wrong angles; llama.cpp takes 10000 where the key is absent"),
    Key("dflash.rope.dimension_count", U32, rotary_width, "head_dim × partial_rotary_factor", lambda c: c.head_dim,
        cause="the wrong part of each head is rotated"),
    Key("dflash.rope.dimension_sections", INTS, sections, "the target uses M-RoPE",
        cause="prompts with images get almost no accepted drafts; convert again with the target given"),
    Key("dflash.rope.scaling.type", STR, scaling_type, "rope_scaling.rope_type", constant("none"),
        cause="positions are not scaled as trained"),
    Key("dflash.rope.scaling.factor", F32, scaling("factor", "yarn", "linear"), "rope_scaling.factor", constant(1.0)),
    Key("dflash.rope.scaling.original_context_length", U32, original_context,
        "rope_scaling.original_max_position_embeddings", at("max_position_embeddings")),
    Key("dflash.rope.scaling.yarn_ext_factor", F32, scaling("extrapolation_factor", "yarn"),
        "rope_scaling.extrapolation_factor"),
    Key("dflash.rope.scaling.yarn_attn_factor", F32, yarn_attention, "rope_scaling.attention_factor", constant(1.0)),
    Key("dflash.rope.scaling.yarn_beta_fast", F32, scaling("beta_fast", "yarn"), "rope_scaling.beta_fast",
        constant(32.0)),
    Key("dflash.rope.scaling.yarn_beta_slow", F32, scaling("beta_slow", "yarn"), "rope_scaling.beta_slow",
        constant(1.0)),
    Key("dflash.embedding_scale", F32, embedding_scale, "input_embedding_scale",
        constant(1.0)),
    Key("dflash.logit_scale", F32, at("output_multiplier", "logit_scale"), "output_multiplier", constant(1.0)),
    Key("dflash.final_logit_softcapping", F32, softcap, "final_logit_softcapping", constant(0.0)),
    Key("dflash.hidden_activation", STR, hidden_act, "hidden_act", constant("silu")),
    Key("dflash.rope.scaling.attn_factor", F32, magnitude, "attention_factor, or mscale and mscale_all_dim",
        constant(1.0), cause="attention is sharper or flatter than trained"),
    Key("dflash.attention.scale", F32, attention_scale, "the class of the draft", lambda c: c.head_dim**-0.5),
    Key("dflash.conv_kernel_size", U32, of_dflash2("conv_kernel_size"), "conv_kernel_size"),
    Key("dflash.conv_group_size", U32, of_dflash2("conv_group_size"), "conv_group_size"),
    Key("dflash.selector_rank", U32, of_dflash2("selector_rank"), "selector_rank"),
    Key("dflash.selector_top_k", U32, of_dflash2("selector_top_k"), "selector_top_k"),
    Key("dflash.sample_from_anchor", BOOL, anchor, "sample_from_anchor, or the schema's default",
        cause="drafts are accepted one position late or early"),
    Key("dflash.has_confidence_head", BOOL, has_confidence, "the checkpoint's tensors"),
)  # fmt: skip

# keys of other writers that llama.cpp does not read, and what their presence means
FOREIGN: Mapping[str, str] = {
    "dflash.mask_token_id": "llama.cpp reads tokenizer.ggml.mask_token_id only: with this key alone it makes no drafts",
    "dflash.target_layer_ids": "llama.cpp reads dflash.target_layers; this key is an early writer's, already + 1",
    "dflash.n_target_features": "left behind by a fork's rewrite script, which does not add 1 to the taps",
    "dflash.decoder_arch": "a Laguna draft: its graph is another one, and mainline llama.cpp cannot run it",
}


def tap_cause(c: Configs, found: Any) -> str:
    """What the wrong tap list gives away about its writer."""
    ids = taps(c)
    if not isinstance(found, list):
        return OLD
    right = [i + 1 for i in ids]
    if found == ids:
        return OLD
    if found == [i + 2 for i in ids]:
        return "1 was added twice"
    if sorted(found) == sorted(right):
        return "the right layers in another order; fc's columns follow the order"
    return "the taps of another draft, or a guess"
