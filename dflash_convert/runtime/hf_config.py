"""config.json → the sizes and the rope of a decoder, as the transformers library reads them.

In: the raw dict. Names and formulas are the checkpoint's (transformers: modeling_rope_utils). What was trained in
and is not there is a ConfigError, never a default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import ConfigError
from dflash_convert.runtime.ops import Rope, rope_frequencies, yarn_frequencies


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of a dense decoder, in the checkpoint's words."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: Rope

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim


class MissingError(ConfigError):
    """A value that config.json does not give."""


def first(key: str, *places: Mapping[str, Any]) -> Any:
    """The first value of `key` that is not null, or None. In these configs a key may be there and say nothing."""
    return next((place[key] for place in places if place.get(key) is not None), None)


def require(key: str, *places: Mapping[str, Any]) -> Any:
    """The first value of `key` that is not null; ConfigError if there is none."""
    value = first(key, *places)
    if value is None:
        raise MissingError(f"config.json: {key} is missing")
    return value


def read_decoder(config: Mapping[str, Any]) -> DecoderConfig:
    """The decoder part of a config. Raises ConfigError: a missing size, a kind of rope that is not supported."""
    heads, hidden_size = int(require("num_attention_heads", config)), int(require("hidden_size", config))
    head_dim = int(first("head_dim", config) or hidden_size // heads)
    return DecoderConfig(
        num_hidden_layers=int(require("num_hidden_layers", config)),
        hidden_size=hidden_size,
        intermediate_size=int(require("intermediate_size", config)),
        num_attention_heads=heads,
        num_key_value_heads=int(first("num_key_value_heads", config) or heads),
        head_dim=head_dim,
        rms_norm_eps=float(require("rms_norm_eps", config)),
        rope=_read_rope(config, head_dim),
    )


def _read_rope(config: Mapping[str, Any], head_dim: int) -> Rope:
    """Rope from `rope_parameters` (new) over `rope_scaling` (old), and the top level."""
    rope = {**said(config, "rope_scaling"), **said(config, "rope_parameters")}
    if any(isinstance(value, Mapping) for value in rope.values()):
        raise ConfigError("config.json: not supported yet: rope_parameters for each layer type")
    theta, kind = float(require("rope_theta", rope, config)), rope.get("rope_type") or rope.get("type") or "default"
    fraction = float(first("partial_rotary_factor", rope, config) or 1.0)
    if kind == "proportional":
        return _proportional(head_dim, theta, fraction, float(rope.get("factor", 1.0)))
    freqs = rope_frequencies(int(head_dim * fraction), theta)
    if kind == "default":
        return Rope(freqs)
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"config.json: not supported yet: rope of the type {kind!r}")
    factor = float(require("factor", rope))
    return Rope(freqs / factor) if kind == "linear" else _yarn(freqs, theta, factor, rope, config)


def said(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The values of an inner object that are not null."""
    return {k: v for k, v in (config.get(key) or {}).items() if v is not None}


def _proportional(head_dim: int, theta: float, fraction: float, factor: float) -> Rope:
    """Gemma 4's partial rope: the frequencies are those of all head_dim dimensions, the first `fraction` of the pairs
    turn and the others stand still where they are, paired across the two halves of the head."""
    freqs = rope_frequencies(head_dim, theta) / factor
    freqs[int(fraction * head_dim // 2) :] = 0.0
    return Rope(freqs)


def _yarn(freqs: Any, theta: float, factor: float, rope: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    original = rope.get("original_max_position_embeddings") or require("max_position_embeddings", config)
    beta_fast, beta_slow = rope.get("beta_fast", 32.0), rope.get("beta_slow", 1.0)
    truncate = rope.get("truncate", True)
    scaled = yarn_frequencies(freqs, theta, factor, int(original), beta_fast, beta_slow, truncate=truncate)
    return Rope(scaled, _attention_factor(factor, rope))


def _attention_factor(factor: float, rope: Mapping[str, Any]) -> float:
    """transformers' factor on cosine and sine: given, or a ratio of mscales, or 1 + 0.1 ln(factor)."""

    def mscale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if "attention_factor" in rope:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return mscale(rope["mscale"]) / mscale(rope["mscale_all_dim"])
    return mscale(1.0)
