"""config.json → `DraftConfig`, `ModelConfig`, `TargetConfig`: frozen values that remember where they were found.

Every value has a row in a table: the places it may live in (the schemas disagree), how it is read, and the flag that
supplies it. A null is no value. Two places that disagree are an error that shows both; a missing value that was trained
in is an error that says where it was looked for and what the weights imply. Nothing trained in has a default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dflash_convert.conversion.rows.fields import (
    DRAFT_FIELDS,
    GROUPS,
    HARMLESS,
    MAX_LAYERS,
    MAX_TOKENS,
    MODEL_FIELDS,
    Field,
    Shapes,
    at_most,
    boolean,
    positive,
    positive_real,
    token_ids,
)
from dflash_convert.conversion.windows import sliding_layers
from dflash_convert.errors import ConfigError, UsageError
from dflash_convert.json_file import brief

T = TypeVar("T")

# ── the values ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The transformer's own shape and rope. `where` maps a field to the place it was found in."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    vocab_size: int
    rope_theta: float
    hidden_act: str | None = None
    rope_type: str | None = None
    rope_factor: float | None = None
    rope_original_context: int | None = None
    rope_ext_factor: float | None = None
    rope_attn_factor: float | None = None
    rope_beta_fast: float | None = None
    rope_beta_slow: float | None = None
    rope_mscale: float | None = None
    rope_mscale_all_dim: float | None = None
    rope_truncate: bool | None = None
    partial_rotary_factor: float | None = None
    file_type: int | None = None  # settled by the plan
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def q_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_key_value_heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class DraftConfig(ModelConfig):
    """A DFlash draft. `target_layer_ids` are the checkpoint's: the layers whose *output* is tapped."""

    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    target_hidden_size: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    use_swa: bool | None = None
    layer_types: tuple[str, ...] | None = None
    is_causal: bool | None = None
    sliding_window_non_causal: bool | None = None
    rope_is_neox_style: bool | None = None
    attention_value_scale: float | None = None
    attention_sink_bias: bool | None = None
    attention_scale: float | None = None
    tie_word_embeddings: bool | None = None
    output_multiplier: float | None = None
    final_logit_softcapping: float | None = None
    embedding_scale: float | None = None
    conv_kernel_size: int | None = None
    conv_group_size: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    selector_vocab_size: int | None = None
    markov_rank: int | None = None
    markov_head_type: str | None = None
    sample_from_anchor: bool | None = None
    enable_confidence_head: bool | None = None
    confidence_head_with_markov: bool | None = None
    draft_vocab_size: int | None = None
    speculators_model_type: str | None = None
    sliding_layers: tuple[bool, ...] = ()
    confidence_size: int | None = None  # width of what the confidence head reads; None without one: by the weights
    mrope_sections: tuple[int, ...] | None = None  # settled by the plan, with the target

    @property
    def feature_size(self) -> int:
        """Width of the concatenated taps: the input width of fc."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

    @property
    def draft_vocab_rows(self) -> int:
        """Rows of the draft's own head."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def conv_sides(self) -> int:
        """A dynamic convolution stands before and behind its sub-layer."""
        return 2

    @property
    def conv_proj_size(self) -> int:
        """Coefficients that a dynamic convolution projects from a position: for both sides, each tap, each group."""
        return self.conv_sides * (self.conv_kernel_size or 0) * (self.hidden_size // (self.conv_group_size or 1))

    @property
    def single(self) -> int:
        """The size of what there is one of."""
        return 1

    @property
    def is_speculators(self) -> bool:
        """Whether vllm-project/speculators wrote the config: its default for the anchor is its own."""
        taps = self.where.get("target_layer_ids", "")
        return self.speculators_model_type is not None or taps == "aux_hidden_state_layer_ids"

    @property
    def interleaved_rope(self) -> bool:
        return self.rope_is_neox_style is False


@dataclass(frozen=True)
class TargetConfig:
    """What a draft must agree on with its target, as far as the target's config says."""

    name: str
    architecture: str
    hidden_size: int | None
    num_hidden_layers: int | None
    vocab_size: int | None
    rope_theta: float | None
    uses_mrope: bool
    tie_word_embeddings: bool
    special_ids: Mapping[str, tuple[int, ...]]  # "eos" → its ids


# ── resolving ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_draft_config(
    config: Mapping[str, Any],
    shapes: Shapes,
    overrides: Mapping[str, Any],
    hints: Mapping[str, str] | None = None,
    fields: Sequence[Field] = DRAFT_FIELDS,
) -> DraftConfig:
    """config.json of a draft → its values. fields: the table of its family.

    overrides: field name → value given by flag, which wins. hints: field name → what else is known of a missing one.

    Raises ConfigError: a value missing, of the wrong kind, or two places that disagree. UsageError: an override of
    nothing that is known.
    """
    names = [f.name for f in fields]
    if unknown := [n for n in overrides if n not in names]:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        raise UsageError(f"{unknown[0]} is no value of a draft", hint=f"is {near[0]} meant?" if near else None)
    values, where = _resolve(fields, config, shapes, overrides, hints or {})
    values["sliding_layers"], where["sliding_layers"] = sliding_layers(values, where)
    for name, by_weights in (("markov_rank", markov_rank(shapes)), ("confidence_size", confidence_size(shapes))):
        if by_weights is not None and not values.get(name):
            values[name], where[name] = by_weights, "the weights"
    return DraftConfig(**values, where=where)


def markov_rank(shapes: Shapes) -> int | None:
    found = shapes.get("markov_head.markov_w1.weight")
    return found[-1] if found else None


def confidence_size(shapes: Shapes) -> int | None:
    found = shapes.get("confidence_head.proj.weight") or shapes.get("confidence_proj.weight")
    return found[-1] if found else None


def read_model_config(config: Mapping[str, Any], shapes: Shapes) -> ModelConfig:
    """config.json of a model to be converted by itself (a target) → its values."""
    values, where = _resolve(MODEL_FIELDS, text_config(config), shapes, {}, {})
    return ModelConfig(**values, where=where)


def read_target_config(config: Mapping[str, Any], name: str) -> TargetConfig:
    """config.json of a draft's target → what the pair must agree on. Nothing is required of it.

    Raises ConfigError: a value of the wrong kind.
    """
    inner = text_config(config)
    ropes = [r for r in (inner.get("rope_parameters"), inner.get("rope_scaling")) if isinstance(r, Mapping)]

    def given(key: str, read: Callable[[Any], T], *, of: Mapping[str, Any] = inner) -> T | None:
        return None if of.get(key) is None else _read(f"{name}'s config.json: {key}", read, of[key])

    bases = [given("rope_theta", positive_real, of=place) for place in (*ropes, inner)]
    return TargetConfig(
        name=name,
        architecture=architecture(config) or _model_type(config),
        hidden_size=given("hidden_size", positive),
        num_hidden_layers=given("num_hidden_layers", at_most(MAX_LAYERS)),
        vocab_size=given("vocab_size", at_most(MAX_TOKENS)),
        rope_theta=next((base for base in bases if base is not None), None),
        tie_word_embeddings=bool(given("tie_word_embeddings", boolean)),
        uses_mrope=any("mrope_section" in r for r in ropes),
        special_ids={word: given(f"{word}_token_id", token_ids) or () for word in ("bos", "eos", "pad")},
    )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A multimodal model's config with its language model's part (`text_config`) laid over it; nulls hide nothing."""
    return {**config, **{k: v for k, v in _mapping(config, "text_config").items() if v is not None}}


def architecture(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`, or ""."""
    found = config.get("architectures") or _mapping(config, "text_config").get("architectures")
    return str(found[0]) if isinstance(found, list) and found else ""


def _model_type(config: Mapping[str, Any]) -> str:
    """`model_type` spelled as the class names begin: gemma4 → Gemma4."""
    found = config.get("model_type") or _mapping(config, "text_config").get("model_type")
    return found.capitalize() if isinstance(found, str) else ""


def unread_keys(config: Mapping[str, Any], fields: Sequence[Field] = DRAFT_FIELDS) -> dict[str, Any]:
    """Keys that nothing here reads, inside the groups where every key matters: dotted path → value."""
    read = {path for f in fields for path, _ in _places(f)}
    there = {
        f"{group}.{key}": value
        for group in GROUPS
        if isinstance(found := _get(config, group), Mapping)
        for key, value in found.items()
        if key not in HARMLESS and not isinstance(value, Mapping)
    }
    return {path: value for path, value in there.items() if path not in read and value is not None}


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _resolve(
    fields: Sequence[Field],
    config: Mapping[str, Any],
    shapes: Shapes,
    overrides: Mapping[str, Any],
    hints: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, str]]:
    values: dict[str, Any] = {}
    where: dict[str, str] = {}
    for f in fields:
        if overrides.get(f.name) is not None:
            values[f.name], where[f.name] = _read(f.flag or f.name, f.read, overrides[f.name]), f.flag or f.name
        elif found := look(f, config):
            values[f.name], where[f.name] = found
        elif f.required:
            raise missing(f, config, shapes, hints.get(f.name))
    return values, where


def _places(f: Field) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(p, f.read) if isinstance(p, str) else p for p in f.places]


def look(f: Field, config: Mapping[str, Any]) -> tuple[Any, str] | None:
    """The value of `f` and its first place; every other place that has one must agree. Raises ConfigError."""
    there = [(path, read, raw) for path, read in _places(f) if (raw := _get(config, path)) is not None]
    found = [(_read(path, read, raw), path, raw) for path, read, raw in there]
    for other in found[1:]:
        if other[0] != found[0][0]:
            raise ConfigError(
                f"config.json gives two values for {f.name}: {_show(*found[0])}, {_show(*other)}",
                hint=f"pass {f.flag} to say which is right" if f.flag else "correct config.json: the two must agree",
            )
    return found[0][:2] if found else None


def _show(value: Any, path: str, raw: Any) -> str:
    """A place and what stands there, and what that means where it is stored differently."""
    meant = list(value) if isinstance(value, tuple) else value
    return f"{path} = {raw}" + (f" (layers {meant})" if isinstance(raw, list) and raw != meant else "")


def _read(place: str, read: Callable[[Any], T], raw: Any) -> T:
    try:
        return read(raw)
    except ValueError as e:
        raise ConfigError(f"{place} is {brief(raw)}; {e} was expected") from None


def _get(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def missing(f: Field, config: Mapping[str, Any], shapes: Shapes, known: str | None) -> ConfigError:
    """The error that a required value is nowhere. known: what else is known of it."""
    looked = ", ".join(path for path, _ in _places(f))
    implied = known or (f.implied(shapes, config) if f.implied else None)
    return ConfigError(
        f"config.json: {f.name} is missing; looked for {looked}" + (f"; {implied}" if implied else ""),
        hint=_missing_hint(f, config),
    )


def _missing_hint(f: Field, config: Mapping[str, Any]) -> str:
    if f.flag:
        return f"it was fixed in training and cannot be guessed: pass {f.flag}"
    near = difflib.get_close_matches(f.name, config, n=1)
    return f"is {near[0]} meant?" if near else "get the complete config.json of this checkpoint"
