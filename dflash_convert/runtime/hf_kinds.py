"""What kind each value of a draft's config.json is of, wherever it stands: checked once, before anything computes.

In: the raw dict. Out: nothing, or a ConfigError that names the place. A null is no value. Sizes are bounded: what is as
long as a config says would fill the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dflash_convert.errors import ConfigError

MOST = 1 << 24  # tokens, widths; nothing here is larger
MAX_LAYERS = 10_000


def _is_id(value: Any) -> bool:
    return type(value) is int and -MOST <= value <= MOST


def _is_size(value: Any) -> bool:
    return (type(value) is int or (type(value) is float and value.is_integer())) and 0 < value <= MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -3.4e38 <= value <= 3.4e38


def _of_ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


def _of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _is_layers(value: Any) -> bool:
    return _is_size(value) and value <= MAX_LAYERS


Is = Callable[[Any], bool]
KINDS: Mapping[str, tuple[Is, tuple[str, ...]]] = MappingProxyType({
    "a number of layers": (_is_layers, ("num_hidden_layers",)),
    "a positive integer": (_is_size, (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
        "global_head_dim", "num_global_key_value_heads", "draft_vocab_size", "block_size", "target_hidden_size",
        "sliding_window", "swa_window_size", "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k",
        "max_position_embeddings", "original_max_position_embeddings",
    )),
    "an integer": (_is_id, ("mask_token_id", "pard_token", "markov_rank", "dspark_markov_rank", "topk_context")),
    "a number": (_is_number, (
        "rms_norm_eps", "rope_theta", "attention_value_scale", "input_embedding_scale", "output_multiplier",
        "logit_scale", "final_logit_softcapping", "partial_rotary_factor", "factor", "attention_factor", "attn_factor",
        "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "extrapolation_factor",
    )),
    "true or false": (lambda value: type(value) is bool, (
        "is_causal", "causal", "dflash_query_causal", "sliding_window_non_causal", "use_sliding_window", "use_swa",
        "sample_from_anchor", "dspark_bonus_anchor", "tie_word_embeddings", "rope_is_neox_style", "is_neox_style",
        "attention_sink_bias", "attention_k_eq_v", "has_embed_tokens", "truncate",
    )),
    "a string": (lambda value: isinstance(value, str), (
        "hidden_act", "hidden_activation", "projector_type", "speculators_model_type", "rope_type", "type",
    )),
    "a list of layer numbers": (_of_ids, (
        "target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids",
    )),
    "a list of strings": (_of_texts, ("layer_types", "architectures")),
    "an object": (lambda value: isinstance(value, dict), (
        "dflash_config", "dspark_config", "transformer_layer_config", "rope_parameters", "rope_scaling",
    )),
})  # fmt: skip
KIND_OF: Mapping[str, str] = MappingProxyType({key: kind for kind, (_, keys) in KINDS.items() for key in keys})
GROUPS = ("dflash_config", "dspark_config", "transformer_layer_config", "rope_parameters", "rope_scaling")


def check_kinds(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first value of another kind than its key's."""
    for place, key, value in _values(config, ""):
        kind = KIND_OF.get(key)
        if kind is not None and not KINDS[kind][0](value):
            shown = repr(value)
            raise ConfigError(
                f"config.json: {place} is {shown[:120] + '…' if len(shown) > 120 else shown}; {kind} was expected",
                hint="get the draft's own config.json again",
            )


def _values(group: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, Any]]:
    """(place, key, value) of a group and of the groups in it; of rope also the entries for each type of layer."""
    for key, value in group.items():
        if value is None:
            continue
        yield f"{place}{key}", key, value
        per_type = place.endswith(("rope_parameters.", "rope_scaling."))
        if isinstance(value, dict) and (key in GROUPS or per_type):
            yield from _values(value, f"{place}{key}.")
