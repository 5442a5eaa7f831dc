"""Values against each other: a model with what llama.cpp can run, a draft with its weights, the pair with its target.

Functions here return nothing; each raises a ConfigError or CheckpointError that shows the values and where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dflash_convert.config import DraftConfig, ModelConfig, TargetConfig
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.match import Matched

# rope type → what llama.cpp needs to know for it
ROPE_NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "default": (), "linear": ("rope_factor",), "yarn": ("rope_factor", "rope_original_context"),
})  # fmt: skip
PAIR_HINT = "is this the target the draft was trained for?"
TAPS_HINT = "they were fixed in training: pass --target-layer-ids as trained"


def check_model(config: ModelConfig) -> None:
    """What llama.cpp can express of a model's rope and shape."""
    kind = config.rope_type or "default"
    if kind not in ROPE_NEEDS:
        raise ConfigError(
            f"{config.where['rope_type']} is {kind!r}, which this version cannot write",
            hint=f"known are {', '.join(ROPE_NEEDS)}",
        )
    for name in ROPE_NEEDS[kind]:
        if getattr(config, name) is None:
            raise ConfigError(
                f"{config.where['rope_type']} is {kind}, but {name} is not given beside it",
                hint="get the complete config.json of this checkpoint",
            )
    if config.num_attention_heads % config.num_key_value_heads:
        raise ConfigError(
            f"num_attention_heads {config.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {config.num_key_value_heads}"
        )
    if config.hidden_act not in (None, "silu"):
        raise ConfigError(f"hidden_act is {config.hidden_act!r}; only silu is supported")


def check_draft(config: DraftConfig, target: TargetConfig, fc: Sequence[int]) -> None:
    """A draft's own values, and the pair with its target. fc: shape of fc.weight, (width, taps · width)."""
    check_model(config)
    _check_rope(config)
    _check_taps(config, target)
    _check_tap_count(config, fc)
    _check_pair(config, target)
    if not 0 <= config.mask_token_id < config.vocab_size:
        raise ConfigError(
            f"{config.where['mask_token_id']} is {config.mask_token_id}, outside the vocabulary of {config.vocab_size}",
            hint="pass --mask-token-id",
        )


def _check_rope(config: DraftConfig) -> None:
    factor = config.partial_rotary_factor
    if factor is not None and not (factor <= 1 and (config.head_dim * factor / 2).is_integer()):
        raise ConfigError(
            f"{config.where['partial_rotary_factor']} is {factor}: of head_dim {config.head_dim} that is no even "
            "number of dimensions to rotate"
        )
    if config.interleaved_rope and factor not in (None, 1):
        raise ConfigError(
            f"{config.where['rope_is_neox_style']} is false and {config.where['partial_rotary_factor']} is {factor}: "
            "interleaved rope on a part of each head cannot be converted"
        )


def _check_taps(config: DraftConfig, target: TargetConfig) -> None:
    ids, where = config.target_layer_ids, config.where["target_layer_ids"]
    for position, i in enumerate(ids):
        if i < 0:
            raise ConfigError(f"{where} has the negative id {i} at position {position}: {list(ids)}", hint=TAPS_HINT)
        if i in ids[:position]:
            raise ConfigError(
                f"{where} has the id {i} twice, again at position {position}: {list(ids)}", hint=TAPS_HINT
            )
    depth = target.num_hidden_layers or config.num_target_layers
    if depth is not None and max(ids) >= depth:
        raise ConfigError(
            f"{where} taps layer {max(ids)}, but the target {target.name} has {depth} layers (0 to {depth - 1})",
            hint=PAIR_HINT,
        )


def _check_tap_count(config: DraftConfig, fc: Sequence[int]) -> None:
    """fc has one block of columns for each tap, in the order of the ids."""
    width, ids = config.target_hidden_size or config.hidden_size, list(config.target_layer_ids)
    if len(fc) == 2 and fc[1] != len(ids) * width:
        count = f"{fc[1] // width}" if fc[1] % width == 0 else f"{fc[1]}/{width} = {fc[1] / width:.2f}"
        raise ConfigError(
            f"{config.where['target_layer_ids']} has {len(ids)} ids {ids}, but fc.weight is {fc[0]}×{fc[1]}, "
            f"so {count} taps of width {width}",
            hint=TAPS_HINT,
        )


def _check_pair(config: DraftConfig, target: TargetConfig) -> None:
    """Draft and target must agree wherever both say something."""
    width = config.target_hidden_size or config.hidden_size
    if width != config.hidden_size:
        raise ConfigError(
            f"target_hidden_size is {width}, hidden_size {config.hidden_size}: llama.cpp runs a draft only if it is as "
            "wide as its target"
        )
    for what, mine, key, theirs in pair_values(config, target):
        if mine is not None and theirs is not None and mine != theirs:
            raise ConfigError(
                f"draft and target differ in {what}: {mine} in the draft's config, {key} {theirs} in {target.name}'s",
                hint=PAIR_HINT,
            )


def pair_values(config: DraftConfig, target: TargetConfig) -> tuple[tuple[str, Any, str, Any], ...]:
    """What both sides of a pair state: (what, the draft's value, the target's key, its value)."""
    return (
        ("width", config.hidden_size, "hidden_size", target.hidden_size),
        ("depth of the target", config.num_target_layers, "num_hidden_layers", target.num_hidden_layers),
        ("vocabulary", config.vocab_size, "vocab_size", target.vocab_size),
    )


def check_tables(matched: Sequence[Matched]) -> None:
    """A draft's own embeddings and head come together or not at all."""
    names = {name for _, _, name in matched}
    if "token_embd.weight" in names and "output.weight" not in names:
        raise CheckpointError(
            "the draft has embed_tokens but no lm_head: llama.cpp would use its embeddings as the output head",
            hint="convert a copy without embed_tokens.weight: the target's table is then used",
        )


def check_sinks(matched: Sequence[Matched], config: DraftConfig) -> None:
    """Sinks that the config promises must be there."""
    has = any(row.role == "attn_sinks" for _, row, _ in matched)
    if config.attention_sink_bias and not has:
        raise CheckpointError(f"{config.where['attention_sink_bias']} is true, but no layer has an attention_sink_bias")


def check_head(matched: Sequence[Matched], raw: Mapping[str, Any]) -> None:
    """A target without lm_head is run with its embeddings as the head: right only if the config ties them."""
    if not any(name == "output.weight" for _, _, name in matched) and not raw.get("tie_word_embeddings"):
        raise CheckpointError(
            "lm_head.weight is missing, and config.json does not say tie_word_embeddings: true",
            hint="the download is incomplete, or tie_word_embeddings in config.json is wrong",
        )
