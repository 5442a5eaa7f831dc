"""What every `dflash.*` key must say, derived again from the raw config.json of the draft and of its target.

In: the configs as they stand. Out: `KEYS`, a table whose rows hold a named function each, and the fingerprints of known
mistakes. The verifier never marks the converter's homework: this file shares no table and no code with it.

A derivation gives a value, None (the key has no business there), or UNKNOWN (the configs do not say). Where llama.cpp
has a default, a key that spells the default out is as good as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import ConfigError
from dflash_convert.verification.targets import Target

UNKNOWN = object()


@dataclass(frozen=True)
class Configs:
    """The draft's raw config.json, and its target if one was given."""

    draft: Mapping[str, Any]
    target: Target | None = None

    @property
    def nested(self) -> Mapping[str, Any]:
        return self.draft.get("dflash_config") or {}

    @property
    def rope(self) -> Mapping[str, Any]:
        return self.draft.get("rope_parameters") or self.draft.get("rope_scaling") or {}

    @property
    def head_dim(self) -> int:
        return int(self.draft.get("head_dim") or self.draft["hidden_size"] // self.draft["num_attention_heads"])

    def first(self, *places: str) -> Any:
        """The value at the first of `places` that is not null ("D." = in dflash_config, "R." = in the rope dict).

        Raises ConfigError when two places say different things.
        """
        inside = {"D": self.nested, "R": self.rope}
        found = []
        for place in places:
            scope, _, name = place.rpartition(".")
            value = inside.get(scope, self.draft).get(name)
            if value is not None:
                found.append((place, value))
        for place, value in found[1:]:
            if value != found[0][1]:
                raise ConfigError(
                    f"config.json says {_spell(found[0][0])} = {found[0][1]} and {_spell(place)} = {value}",
                    hint="decide which one the draft was trained with, and correct config.json",
                )
        return found[0][1] if found else None


def _spell(place: str) -> str:
    return place.replace("D.", "dflash_config.").replace("R.", "rope_parameters.")


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


# -- derivations: one named function for each value that is not just looked up ------------------------------------


def at(*places: str) -> Derive:
    """The value at the first place that has one, None if none does."""
    return lambda c: c.first(*places)


def trained(*places: str) -> Derive:
    """As `at`, for what cannot be guessed: UNKNOWN if no place has it."""

    def derive(c: Configs) -> Any:
        value = c.first(*places)
        return UNKNOWN if value is None else value

    return derive


def constant(value: Any) -> Derive:
    return lambda _: value


def taps(c: Configs) -> list[int] | None:
    """The checkpoint's own ids: the layers whose *output* is tapped."""
    ids = c.first("D.target_layer_ids", "target_layer_ids")
    return None if ids is None else [int(i) for i in ids]


def target_layers(c: Configs) -> Any:
    """llama.cpp taps a layer's *input*, which is the output of the layer before: each id + 1."""
    ids = taps(c)
    return UNKNOWN if ids is None else [i + 1 for i in ids]


def sliding_layers(c: Configs) -> list[bool] | None:
    """For each layer whether it slides; None for a draft with full attention only."""
    n_layer, types = c.draft["num_hidden_layers"], c.draft.get("layer_types")
    marked = types is not None and "sliding_attention" in types
    switch = c.first("D.use_swa", "use_sliding_window")
    if switch is False or (switch is None and not marked):
        return None
    return [t == "sliding_attention" for t in types] if types is not None else [True] * n_layer


def window(c: Configs) -> Any:
    if sliding_layers(c) is None:
        return None
    size = c.first("D.swa_window_size", "sliding_window")
    return UNKNOWN if size is None else size


def pattern(c: Configs) -> Any:
    return sliding_layers(c) if isinstance(window(c), int) else window(c)


def rotary_width(c: Configs) -> int | None:
    factor = c.first("R.partial_rotary_factor", "partial_rotary_factor")
    return None if factor in (None, 1) else int(c.head_dim * factor)


def sections(c: Configs) -> Any:
    """A draft ropes over time only: [half, 0, 0, 0] for a target that ropes over several axes, else nothing."""
    if c.target is None:
        return UNKNOWN
    return [c.head_dim // 2, 0, 0, 0] if c.target.mrope else None


def scaling_type(c: Configs) -> str | None:
    kind = c.rope.get("rope_type") or c.rope.get("type")
    return kind if kind in ("yarn", "linear") else None


def scaling(name: str, *kinds: str) -> Derive:
    """A value of the rope scaling dict, for the scaling types that have it."""
    return lambda c: c.rope.get(name) if scaling_type(c) in kinds else None


def yarn_attention(c: Configs) -> Any:
    return c.rope.get("attention_factor", c.rope.get("attn_factor")) if scaling_type(c) == "yarn" else None


def causal(c: Configs) -> bool | None:
    value = c.first("is_causal", "D.causal")
    return None if value is None else bool(value)


def softcap(c: Configs) -> Any:
    return c.first("D.final_logit_softcapping", "final_logit_softcapping") or None


def hidden_act(c: Configs) -> str | None:
    act = c.draft.get("hidden_act")
    return None if act in (None, "silu") else str(act)


def n_embd_head(c: Configs) -> int:
    return int(c.draft["hidden_size"] // c.draft["num_attention_heads"])


def no_window(c: Configs) -> list[bool]:
    return [False] * int(c.draft["num_hidden_layers"])


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
    Key("dflash.block_size", U32, trained("D.block_size", "block_size", "dspark_block_size"), "block_size",
        cause="llama.cpp drafts 16 tokens where the key is absent, whatever was trained"),
    Key("dflash.target_layers", INTS, target_layers, "the checkpoint's ids + 1"),
    Key("tokenizer.ggml.mask_token_id", U32, trained("D.mask_token_id", "mask_token_id"), "mask_token_id",
        cause="the draft is asked with the wrong token, or with none"),
    Key("dflash.attention.sliding_window", U32, window, "sliding_window",
        cause="acceptance falls once the context is longer than the window"),
    Key("dflash.attention.sliding_window_pattern", FLAGS, pattern, "layer_types", no_window,
        cause="layers slide that were trained with full attention, or the other way round"),
    Key("dflash.attention.causal", BOOL, causal, "is_causal", constant(False),
        cause="the block is masked the wrong way"),
    Key("dflash.attention.value_scale", F32, at("D.attention_value_scale", "attention_value_scale"),
        "attention_value_scale", constant(1.0), cause="every attention output is scaled wrong"),
    Key("dflash.rope.freq_base", F32, trained("R.rope_theta", "rope_theta"), "rope_theta",
        cause="positions are rotated by the wrong angles; llama.cpp takes 10000 where the key is absent"),
    Key("dflash.rope.dimension_count", U32, rotary_width, "head_dim × partial_rotary_factor", lambda c: c.head_dim,
        cause="the wrong part of each head is rotated"),
    Key("dflash.rope.dimension_sections", INTS, sections, "the target uses M-RoPE",
        cause="prompts with images get almost no accepted drafts; convert again with the target given"),
    Key("dflash.rope.scaling.type", STR, scaling_type, "rope_scaling.rope_type", constant("none"),
        cause="positions are not scaled as trained"),
    Key("dflash.rope.scaling.factor", F32, scaling("factor", "yarn", "linear"), "rope_scaling.factor", constant(1.0)),
    Key("dflash.rope.scaling.original_context_length", U32, scaling("original_max_position_embeddings", "yarn"),
        "rope_scaling.original_max_position_embeddings", at("max_position_embeddings")),
    Key("dflash.rope.scaling.yarn_ext_factor", F32, scaling("extrapolation_factor", "yarn"),
        "rope_scaling.extrapolation_factor"),
    Key("dflash.rope.scaling.yarn_attn_factor", F32, yarn_attention, "rope_scaling.attention_factor", constant(1.0)),
    Key("dflash.rope.scaling.yarn_beta_fast", F32, scaling("beta_fast", "yarn"), "rope_scaling.beta_fast",
        constant(32.0)),
    Key("dflash.rope.scaling.yarn_beta_slow", F32, scaling("beta_slow", "yarn"), "rope_scaling.beta_slow",
        constant(1.0)),
    Key("dflash.embedding_scale", F32, at("D.input_embedding_scale", "input_embedding_scale"), "input_embedding_scale",
        constant(1.0)),
    Key("dflash.logit_scale", F32, at("D.output_multiplier", "output_multiplier"), "output_multiplier", constant(1.0)),
    Key("dflash.final_logit_softcapping", F32, softcap, "final_logit_softcapping", constant(0.0)),
    Key("dflash.hidden_activation", STR, hidden_act, "hidden_act", constant("silu")),
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
    if ids is None or not isinstance(found, list):
        return OLD
    right = [i + 1 for i in ids]
    if found == ids:
        return OLD
    if found == [i + 2 for i in ids]:
        return "1 was added twice"
    if sorted(found) == sorted(right):
        return "the right layers in another order; fc's columns follow the order"
    return "the taps of another draft, or a guess"
