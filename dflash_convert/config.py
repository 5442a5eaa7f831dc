"""config.json → `DraftConfig`, `ModelConfig`, `TargetConfig`: frozen values that remember where they were found.

Every value has a row in a table: the places it may live in (the schemas disagree), how it is read, and the flag that
supplies it. A null is no value. Two places that disagree are an error that shows both; a missing value that was trained
in is an error that says where it was looked for and what the weights imply. Nothing trained in has a default.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_convert.errors import ConfigError
from dflash_convert.fields import DRAFT_FIELDS, HARMLESS, MODEL_FIELDS, Field, Shapes

SLIDING, FULL = "sliding_attention", "full_attention"


# ── the values ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    rope_is_neox_style: bool | None = None
    attention_value_scale: float | None = None
    attention_sink_bias: bool | None = None
    embedding_scale: float | None = None
    sliding_layers: tuple[bool, ...] = ()
    mrope_sections: tuple[int, ...] | None = None  # settled by the plan, with the target

    @property
    def feature_size(self) -> int:
        """Width of the concatenated taps: the input width of fc."""
        return len(self.target_layer_ids) * (self.target_hidden_size or self.hidden_size)

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
    uses_mrope: bool
    special_ids: Mapping[str, int]  # "eos" → id; a list's first entry


# ── resolving ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_draft_config(
    config: Mapping[str, Any],
    shapes: Shapes,
    overrides: Mapping[str, Any],
    hints: Mapping[str, str] | None = None,
) -> DraftConfig:
    """config.json of a draft → its values.

    overrides: field name → value given by flag, which wins. hints: field name → what else is known of a missing one.

    Raises ConfigError: a value missing, of the wrong kind, or two places that disagree.
    """
    values, where = _resolve(DRAFT_FIELDS, config, shapes, overrides, hints or {})
    values["sliding_layers"] = _sliding_layers(values, where)
    return DraftConfig(**values, where=where)


def read_model_config(config: Mapping[str, Any], shapes: Shapes) -> ModelConfig:
    """config.json of a model to be converted by itself (a target) → its values."""
    values, where = _resolve(MODEL_FIELDS, text_config(config), shapes, {}, {})
    return ModelConfig(**values, where=where)


def read_target_config(config: Mapping[str, Any], name: str) -> TargetConfig:
    """config.json of a draft's target → what the pair must agree on. Nothing is required of it."""
    inner = text_config(config)
    rope = inner.get("rope_parameters") or inner.get("rope_scaling") or {}
    ids = {k: inner.get(f"{k}_token_id") for k in ("bos", "eos", "pad")}
    firsts = {k: (v[0] if isinstance(v, list) and v else v) for k, v in ids.items()}
    return TargetConfig(
        name=name,
        architecture=architecture(config),
        hidden_size=inner.get("hidden_size"),
        num_hidden_layers=inner.get("num_hidden_layers"),
        vocab_size=inner.get("vocab_size"),
        uses_mrope=isinstance(rope, Mapping) and "mrope_section" in rope,
        special_ids={k: v for k, v in firsts.items() if isinstance(v, int)},
    )


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A multimodal model's config with the language model's part (`text_config`) laid over the top level."""
    return {**config, **(config.get("text_config") or {})}


def architecture(config: Mapping[str, Any]) -> str:
    """The first entry of `architectures`, or ""."""
    found = config.get("architectures") or (config.get("text_config") or {}).get("architectures") or [""]
    return str(found[0])


def unknown_dflash_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Keys inside dflash_config that nothing here reads."""
    read = {
        path.removeprefix("dflash_config.")
        for f in DRAFT_FIELDS
        for path, _ in _places(f)
        if path.startswith("dflash_config.")
    }
    inner = config.get("dflash_config") or {}
    return {k: v for k, v in inner.items() if k not in read and k not in HARMLESS and v is not None}


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
            values[f.name], where[f.name] = _read(f, f.flag or f.name, f.read, overrides[f.name]), f.flag or f.name
        elif found := _look(f, config):
            values[f.name], where[f.name] = found
        elif f.required:
            raise _missing(f, config, shapes, hints.get(f.name))
    return values, where


def _places(f: Field) -> list[tuple[str, Callable[[Any], Any]]]:
    return [(p, f.read) if isinstance(p, str) else p for p in f.places]


def _look(f: Field, config: Mapping[str, Any]) -> tuple[Any, str] | None:
    """The value of `f` and its first place; every other place that has one must agree."""
    there = [(path, read, _get(config, path)) for path, read in _places(f)]
    found = [(path, _read(f, path, read, raw)) for path, read, raw in there if raw is not None]
    if not found:
        return None
    first_path, first = found[0]
    for path, value in found[1:]:
        if value != first:
            raise ConfigError(
                f"config.json gives two values for {f.name}: {first_path} = {_show(first)}, {path} = {_show(value)}",
                hint=f"pass {f.flag} to say which is right" if f.flag else "correct config.json: the two must agree",
            )
    return first, first_path


def _read(f: Field, place: str, read: Callable[[Any], Any], raw: Any) -> Any:
    try:
        return read(raw)
    except ValueError as e:
        raise ConfigError(f"{place} is {raw!r}; {e} was expected") from None


def _get(config: Mapping[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _missing(f: Field, config: Mapping[str, Any], shapes: Shapes, known: str | None) -> ConfigError:
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


def _show(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _sliding_layers(values: Mapping[str, Any], where: Mapping[str, str]) -> tuple[bool, ...]:
    """Which layers slide: by layer_types if given, all with use_swa; () where none does."""
    types, n, window = values.get("layer_types"), values["num_hidden_layers"], values.get("sliding_window")
    if types is None:
        return _without_layer_types(values, n, window)
    by_flag = where["layer_types"].startswith("--")
    if by_flag and len(types) == 1:
        types = types * n
    if len(types) != n:
        raise ConfigError(
            f"{where['layer_types']} has {len(types)} entries for {n} layers: {_show(types)}", hint="pass --layer-types"
        )
    if unknown := sorted(set(types) - {SLIDING, FULL}):
        raise ConfigError(f"{where['layer_types']} names attention that DFlash in llama.cpp does not have: {unknown[0]}")
    slides = tuple(t == SLIDING for t in types)
    if any(slides) and values.get("use_sliding_window") is False and not by_flag:
        raise ConfigError(
            f"use_sliding_window is false, but layer_types has {sum(slides)} sliding layer(s)",
            hint="correct config.json, or pass --layer-types F for full attention in every layer",
        )
    if any(slides) and window is None:
        raise ConfigError("layer_types has sliding layers, but no window size is given", hint="pass --sliding-window")
    return slides if any(slides) else ()


def _without_layer_types(values: Mapping[str, Any], n: int, window: int | None) -> tuple[bool, ...]:
    if values.get("use_swa"):
        if window is None:
            raise ConfigError("dflash_config.use_swa is true, but no window size is given", hint="pass --sliding-window")
        return (True,) * n
    if window is not None and values.get("use_sliding_window") is not False:
        raise ConfigError(
            f"a sliding window of {window} is set, but layer_types does not say which layers slide",
            hint="pass --layer-types, e.g. S,S,S,S,F (S = sliding, F = full, one for each layer)",
        )
    return ()
