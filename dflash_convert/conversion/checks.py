"""Values against each other: a model with what llama.cpp can run, a draft with its weights, the pair with its target.

Functions here return nothing; each raises a ConfigError or CheckpointError that shows the values and where they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from dflash_convert.conversion.config import DraftConfig, ModelConfig, TargetConfig
from dflash_convert.conversion.match import Matched
from dflash_convert.conversion.rows.schema import causal
from dflash_convert.errors import CheckpointError, ConfigError

# rope type → what llama.cpp needs to know for it
ROPE_NEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "default": (), "linear": ("rope_factor",), "yarn": ("rope_factor", "rope_original_context"),
    "proportional": ("partial_rotary_factor",),
})  # fmt: skip
ACTIVATIONS = (None, "silu", "gelu_pytorch_tanh")
D2T_HINT = "d2t holds offsets: token = row + offset; the file is damaged or keeps something else"
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
    if config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"{config.where['hidden_act']} is {config.hidden_act!r}, which llama.cpp cannot run in this architecture",
            hint=f"known are {', '.join(a for a in ACTIVATIONS if a)}",
        )


def check_target(config: ModelConfig) -> None:
    """`check_model`, and what a target's architecture cannot express."""
    check_model(config)
    if config.hidden_act not in (None, "silu") or config.rope_type == "proportional":
        raise ConfigError(
            f"hidden_act {config.hidden_act}, rope {config.rope_type}: no such model of this architecture"
        )


def check_draft(config: DraftConfig, target: TargetConfig, fc: Sequence[int]) -> None:
    """A draft's own values, and the pair with its target. fc: shape of fc.weight, (width, taps · width)."""
    check_model(config)
    _check_causal(config)
    _check_markov(config)
    _check_selector(config)
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


def _check_causal(config: DraftConfig) -> None:
    """llama.cpp has one causal flag for all layers."""
    slides = config.sliding_layers
    if config.is_causal is None and any(slides) and not all(slides) and causal(config):
        raise ConfigError(
            f"{config.where.get('sliding_window_non_causal', 'the speculators schema')} makes {sum(slides)} sliding "
            f"layer(s) causal and {len(slides) - sum(slides)} full one(s) bidirectional; a GGUF has one flag for all",
            hint="pass --causal true or --causal false to accept one of the two for every layer, and measure",
        )


def _check_markov(config: DraftConfig) -> None:
    rank, size = config.markov_rank, config.confidence_size
    if config.draft_vocab_rows > config.vocab_size:
        raise ConfigError(
            f"{config.where['draft_vocab_size']} is {config.draft_vocab_size}, more than the vocabulary of "
            f"{config.vocab_size}"
        )
    if rank is None or size is None:
        return
    if size not in (config.hidden_size, config.hidden_size + rank):
        raise ConfigError(
            f"the confidence head reads {size} values: neither the width {config.hidden_size} nor that and the Markov "
            f"rank {rank}",
            hint="config.json and weights are of different revisions, or one of them was edited",
        )
    if config.confidence_head_with_markov is not None and config.confidence_head_with_markov != (
        size > config.hidden_size
    ):
        raise ConfigError(
            f"{config.where['confidence_head_with_markov']} is {str(config.confidence_head_with_markov).lower()}, but "
            f"the confidence head reads {size} values (width {config.hidden_size}, Markov rank {rank})",
            hint="config.json and weights are of different revisions, or one of them was edited",
        )


def _check_selector(config: DraftConfig) -> None:
    """What llama.cpp's loader demands of a DFlash2 draft."""
    group, top_k, width = config.conv_group_size, config.selector_top_k, config.hidden_size
    if group is None or top_k is None:
        return
    if width % group:
        raise ConfigError(
            f"{config.where['conv_group_size']} is {group}, which does not divide the width {width}: "
            "llama.cpp refuses that"
        )
    if width < top_k * (top_k + 1):
        raise ConfigError(
            f"{config.where['selector_top_k']} is {top_k}: its lattice of {top_k * (top_k + 1)} scores does not fit "
            f"the width {width}, which llama.cpp needs"
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


def check_tables(matched: Sequence[Matched], config: DraftConfig) -> None:
    """A reduced vocabulary is whole: a head with as many rows, and the token that each row means."""
    names = {name for _, _, name in matched}
    if config.draft_vocab_rows < config.vocab_size and not {"d2t", "output.weight"} <= names:
        raise CheckpointError(
            f"{config.where['draft_vocab_size']} is {config.draft_vocab_size} of {config.vocab_size} tokens, but "
            f"{' and '.join(sorted({'d2t', 'output.weight'} - names))} is not in the checkpoint",
            hint="the download is incomplete: a reduced vocabulary needs lm_head.weight and d2t",
        )


def absolute_ids(offsets: Sequence[int], name: str, vocab_size: int, allowed: Sequence[bool] | None) -> list[int]:
    """The token of each row of a reduced head: row + offset. allowed: t2d, which tokens have a row at all.

    `draft_id_to_target_id` holds the tokens themselves in some files: they only ever rise, offsets cannot.
    Raises CheckpointError: a token twice, out of range, or another than t2d says.
    """
    rising = all(b > a for a, b in pairwise(offsets))
    ids = list(offsets) if name != "d2t" and rising else [row + offset for row, offset in enumerate(offsets)]
    for row, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise CheckpointError(
                f"{name}: row {row} means token {token}, outside the vocabulary of {vocab_size}", hint=D2T_HINT
            )
    if len(set(ids)) != len(ids):
        twice = next(token for token, count in Counter(ids).items() if count > 1)
        raise CheckpointError(f"{name}: several rows mean token {twice}", hint=D2T_HINT)
    if allowed is not None and {t for t, has_row in enumerate(allowed) if has_row} != set(ids):
        raise CheckpointError(f"{name} and t2d disagree on which tokens the draft's vocabulary has", hint=D2T_HINT)
    return ids


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
