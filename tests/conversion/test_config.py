"""config.json → values: every place a value may live in, what is missing, and what disagrees."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import FLAT, GONE, TARGET, edited, flat_tensors, read_json

from dflash_convert.conversion.config import (
    DraftConfig,
    read_draft_config,
    read_model_config,
    read_target_config,
    unread_keys,
)
from dflash_convert.conversion.rows.fields import DRAFT_FIELDS, FLAGS
from dflash_convert.errors import ConfigError, UsageError

FLAT_CONFIG = read_json(FLAT / "config.json")
SHAPES = {name: tensor.shape for name, tensor in flat_tensors().items()}


def anywhere(name: str) -> tuple[str, ...]:
    """The four places in which one schema or the other keeps a draft's own values."""
    return (f"dflash_config.{name}", name, f"dspark_config.{name}", f"transformer_layer_config.{name}")


# Where the published schemas keep each value: field → (value, places).
PLACES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "block_size": (8, (*anywhere("block_size"), "dspark_block_size")),
    "mask_token_id": (319, (*anywhere("mask_token_id"), "pard_token", "dspark_noise_token_id")),
    "target_layer_ids": (
        (1, 3, 5),
        (
            *anywhere("target_layer_ids"),
            "aux_hidden_state_layer_ids",
            "eagle_aux_hidden_state_layer_ids",
            "dspark_target_layer_ids",
        ),
    ),
    "num_target_layers": (8, ("num_target_layers", "dflash_config.num_target_layers")),
    "rope_theta": (1e7, ("rope_parameters.rope_theta", "rope_theta", "rope_scaling.rope_theta")),
    "rope_type": (
        "yarn",
        ("rope_parameters.rope_type", "rope_scaling.rope_type", "rope_parameters.type", "rope_scaling.type"),
    ),
    "rope_factor": (32.0, ("rope_parameters.factor", "rope_scaling.factor")),
    "rope_original_context": (
        4096,
        (
            "rope_parameters.original_max_position_embeddings",
            "rope_scaling.original_max_position_embeddings",
            "original_max_position_embeddings",
        ),
    ),
    "rope_attn_factor": (
        1.5,
        tuple(f"{g}.{k}" for k in ("attention_factor", "attn_factor") for g in ("rope_parameters", "rope_scaling")),
    ),
    "rope_ext_factor": (0.5, ("rope_parameters.extrapolation_factor", "rope_scaling.extrapolation_factor")),
    "rope_beta_fast": (32.0, ("rope_parameters.beta_fast", "rope_scaling.beta_fast")),
    "rope_beta_slow": (1.0, ("rope_parameters.beta_slow", "rope_scaling.beta_slow")),
    "partial_rotary_factor": (
        0.5,
        ("rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor", "partial_rotary_factor"),
    ),
    "sliding_window": (64, ("dflash_config.swa_window_size", "sliding_window")),
    "is_causal": (
        True,
        ("is_causal", "dflash_config.causal", "dflash_config.dflash_query_causal", "dflash_query_causal"),
    ),
    "rope_is_neox_style": (False, ("rope_is_neox_style", "is_neox_style")),
    "attention_value_scale": (0.612, ("dflash_config.attention_value_scale", "attention_value_scale")),
    "attention_sink_bias": (True, ("dflash_config.attention_sink_bias", "add_swa_attention_sink_bias")),
    "embedding_scale": (8.0, ("dflash_config.input_embedding_scale", "input_embedding_scale")),
    "output_multiplier": (0.5, ("dflash_config.output_multiplier", "output_multiplier")),
    "final_logit_softcapping": (30.0, ("dflash_config.final_logit_softcapping", "final_logit_softcapping")),
}
# A draft in which every value above is set, in its first place, and nothing else of the group.
BARE = edited(FLAT_CONFIG, {path: GONE for _, places in PLACES.values() for path in places})
WINDOWED = edited(BARE, {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True})


def read(config: dict[str, Any], **overrides: Any) -> DraftConfig:
    return read_draft_config(config, SHAPES, overrides)


def stored(path: str, value: Any) -> Any:
    """A value as it is written at `path`: the aux lists name taps one higher."""
    if isinstance(value, tuple):
        return [i + 1 for i in value] if "aux_" in path else list(value)
    return value


def everything(**placed: str) -> dict[str, Any]:
    """WINDOWED with every value of PLACES, each in its first place, or where `placed` says."""
    at = {name: placed.get(name, places[0]) for name, (_, places) in PLACES.items()}
    return edited(WINDOWED, {path: stored(path, PLACES[name][0]) for name, path in at.items()})


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("name", "place"), [(n, p) for n, (_, places) in PLACES.items() for p in places])
def test_a_value_is_found_in_each_of_its_places_and_says_where(name: str, place: str) -> None:
    config = read(everything(**{name: place}))
    assert getattr(config, name) == PLACES[name][0]
    assert config.where[name] == place
    assert config == read(everything())


@given(st.data())
def test_values_moved_among_their_places_with_nulls_between_give_the_same_config(data: st.DataObject) -> None:
    config = WINDOWED
    for _, (value, places) in PLACES.items():
        there = data.draw(st.sets(st.sampled_from(places), min_size=1))
        nulls = data.draw(st.sets(st.sampled_from(places)))
        config = edited(config, {p: stored(p, value) if p in there else None for p in places if p in there | nulls})
    assert read(config) == read(everything())


OTHER = {"rope_type": "linear", "target_layer_ids": (0, 2, 4), "is_causal": False, "rope_is_neox_style": True}
PAIRS = [(n, *pair) for n, (_, places) in PLACES.items() for pair in itertools.combinations(places, 2)]


@pytest.mark.parametrize(("name", "first", "second"), PAIRS)
def test_two_places_that_disagree_are_both_shown_with_their_values(name: str, first: str, second: str) -> None:
    value = PLACES[name][0]
    other = OTHER.get(name, not value if isinstance(value, bool) else value)
    other = value * 2 if other == value else other
    with pytest.raises(ConfigError) as e:
        read(edited(everything(**{name: first}), {second: stored(second, other)}))
    assert f"{first} = {stored(first, value)}" in e.value.message
    assert f"{second} = {stored(second, other)}" in e.value.message


def test_lists_that_only_look_equal_are_shown_with_what_they_mean() -> None:
    with pytest.raises(ConfigError) as e:
        read(edited(FLAT_CONFIG, {"aux_hidden_state_layer_ids": [1, 3, 5]}))
    assert e.value.message == (
        "config.json gives two values for target_layer_ids: dflash_config.target_layer_ids = [1, 3, 5], "
        "aux_hidden_state_layer_ids = [1, 3, 5] (layers [0, 2, 4])"
    )
    assert e.value.hint == "pass --target-layer-ids to say which is right"


def test_a_flag_wins_over_places_that_disagree_and_over_none() -> None:
    torn = edited(FLAT_CONFIG, {"dflash_config.block_size": 4})
    assert read(torn, block_size=8).block_size == 8
    assert read(torn, block_size=8).where["block_size"] == "--block-size"
    assert read(edited(FLAT_CONFIG, {"block_size": GONE}), block_size=8).block_size == 8


def test_an_override_of_nothing_that_is_known_is_refused() -> None:
    with pytest.raises(UsageError, match="blok_size is no value of a draft") as e:
        read(FLAT_CONFIG, blok_size=8)
    assert e.value.hint == "is block_size meant?"


# ── missing and malformed values ──────────────────────────────────────────────────────────────────────────────────────

REQUIRED = {
    "hidden_size": "", "num_hidden_layers": "the weights have layers 0 to 1, so 2 layers",
    "intermediate_size": "so intermediate_size 96",
    "num_attention_heads": "", "num_key_value_heads": "", "max_position_embeddings": "", "rms_norm_eps": "",
    "head_dim": "layers.0.self_attn.q_norm.weight has 32 values, so head_dim 32", "vocab_size": "", "rope_theta": "",
    "block_size": "", "mask_token_id": "", "target_layer_ids": "fc.weight is 64×192, so 3 taps of width 64",
}  # fmt: skip


@pytest.mark.parametrize(("name", "implied"), REQUIRED.items())
@pytest.mark.parametrize("how", [GONE, None], ids=["absent", "null"])
def test_nothing_trained_in_has_a_default(name: str, implied: str, how: Any) -> None:
    places = PLACES.get(name, (None, (name, f"transformer_layer_config.{name}")))[1]
    with pytest.raises(ConfigError) as e:
        read(edited(FLAT_CONFIG, dict.fromkeys(places, how)))
    assert f"config.json: {name} is missing; looked for {', '.join(places[:3])}" in e.value.message
    assert e.value.message.endswith(implied)
    assert e.value.hint


@pytest.mark.parametrize("name", ["block_size", "mask_token_id", "target_layer_ids", "rope_theta"])
def test_the_error_for_a_missing_value_names_the_flag_that_supplies_it(name: str) -> None:
    with pytest.raises(ConfigError) as e:
        read(edited(FLAT_CONFIG, dict.fromkeys(PLACES[name][1], GONE)))
    assert e.value.hint == f"it was fixed in training and cannot be guessed: pass --{name.replace('_', '-')}"


def test_a_misspelt_key_is_suggested() -> None:
    with pytest.raises(ConfigError) as e:
        read(edited(FLAT_CONFIG, {"intermediate_size": GONE, "intermediate_sizes": 96}))
    assert e.value.hint == "is intermediate_sizes meant?"


def test_what_else_is_known_of_a_missing_value_is_said_but_not_applied() -> None:
    config = edited(FLAT_CONFIG, {"dflash_config.mask_token_id": None})
    with pytest.raises(ConfigError, match=r"the tokenizer has <\|MASK\|> \(id 7\)"):
        read_draft_config(config, SHAPES, {}, {"mask_token_id": "the tokenizer has <|MASK|> (id 7)"})


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("block_size", "16", "a positive integer"),
        ("block_size", 0, "a positive integer"),
        ("block_size", True, "an integer"),
        ("block_size", 1.5, "an integer"),
        ("block_size", float("inf"), "an integer"),
        ("block_size", float("nan"), "an integer"),
        ("rope_theta", "1e6", "a number"),
        ("rope_theta", float("inf"), "a number"),
        ("rope_theta", 0, "a number above 0"),
        ("use_sliding_window", "no", "true or false"),
        ("hidden_act", 1, "a string"),
        ("layer_types", "full_attention", "a list with one kind of attention for each layer"),
        ("layer_types", [], "a list with one kind of attention for each layer"),
        ("dflash_config.target_layer_ids", [], "a list of layer numbers"),
        ("dflash_config.target_layer_ids", [1, "3"], "an integer"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_with_its_place(path: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as e:
        read(edited(FLAT_CONFIG, {path: value}))
    assert e.value.message.startswith(f"{path} is {value!r}; ")
    assert expected.split()[-1] in e.value.message


def test_whole_floats_are_integers_and_integers_are_numbers() -> None:
    config = read(edited(FLAT_CONFIG, {"block_size": 8.0, "rope_scaling": {"rope_type": "linear", "factor": 40}}))
    assert (config.block_size, config.rope_factor) == (8, 40.0)


def test_groups_that_are_no_objects_are_no_groups() -> None:
    config = edited(FLAT_CONFIG, {"rope_scaling": "none", "rope_parameters": [], "block_size": 8})
    assert read(config).rope_type is None
    assert unread_keys(config) == {}


def test_each_flag_supplies_one_field() -> None:
    assert {FLAGS[f.flag] for f in DRAFT_FIELDS if f.flag} == {f.name for f in DRAFT_FIELDS if f.flag}
    assert FLAGS["--mask-token-id"] == "mask_token_id"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("dflash_config.attention_value_scal", 0.7, True),
        ("dflash_config.attention_value_scale", 0.7, False),
        ("dflash_config.num_anchors", 4096, False),
        ("dflash_config.new_idea", None, False),
        ("rope_scaling.mscale", 1.0, False),
        ("rope_scaling.llama3_factor", 1.0, True),
        ("dspark_config.markov_rank", 16, False),
        ("dspark_config.markov_order", 2, True),
        ("transformer_layer_config.rope_parameters.surprise", 2, True),
        ("transformer_layer_config.surprise", 2, True),
        ("transformer_layer_config.rms_norm_eps", 1e-6, False),
        ("rope_scaling.factor", 1.0, False),
        ("rope_parameters.mrope_section", [11, 11, 10], False),
        ("use_cache", True, False),
    ],
)
def test_keys_nothing_reads_are_known(path: str, value: Any, said: bool) -> None:
    assert unread_keys(edited(FLAT_CONFIG, {path: value})) == ({path: value} if said else {})


# ── the target ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_target_says_what_the_pair_must_agree_on() -> None:
    target = read_target_config(edited(read_json(TARGET / "config.json"), {"eos_token_id": [302, 300]}), "T")
    assert (target.name, target.architecture) == ("T", "Qwen3ForCausalLM")
    assert (target.hidden_size, target.num_hidden_layers, target.vocab_size) == (64, 8, 320)
    assert (target.rope_theta, target.uses_mrope) == (1_000_000, False)
    assert target.special_ids == {"bos": (300,), "eos": (302, 300), "pad": ()}


@pytest.mark.parametrize("group", ["rope_parameters", "rope_scaling"])
def test_a_multimodal_target_is_read_through_its_text_config(group: str) -> None:
    text = {"vocab_size": 320, "hidden_size": None, group: {"mrope_section": [11, 11, 10], "rope_theta": 5}}
    target = read_target_config({"hidden_size": 64, "architectures": ["Vision"], "text_config": text}, "T")
    assert (target.vocab_size, target.hidden_size, target.uses_mrope, target.rope_theta) == (320, 64, True, 5)


def test_a_target_that_says_nothing_is_read_as_saying_nothing() -> None:
    target = read_target_config({}, "T")
    assert (target.architecture, target.hidden_size, target.uses_mrope) == ("", None, False)


def test_a_model_of_its_own_is_read_through_its_text_config_too() -> None:
    text = read_json(TARGET / "config.json")
    assert read_model_config({"text_config": text}, {}) == read_model_config(text, {})


# ── absurd values ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; at most 10000 was expected"),
        ({"vocab_size": 2**30}, "vocab_size is 1073741824; at most 16777216 was expected"),
        ({"block_size": 10**400}, "; an integer of at most 32 bits was expected"),
        ({"block_size": 1e300}, "block_size is 1e+300; an integer of at most 32 bits was expected"),
        ({"block_size": 16.5}, "block_size is 16.5; an integer was expected"),
        ({"rope_theta": 1e300}, "rope_theta is 1e+300; a number that float32 holds was expected"),
        ({"rope_theta": 10**400}, "; a number that float32 holds was expected"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf; a number that float32 holds was expected"),
        ({"rope_theta": [1, 2]}, "rope_theta is [1, 2]; a number that float32 holds was expected"),
    ],
)
def test_values_that_no_file_could_hold_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        read({**FLAT_CONFIG, **changes})
    assert e.value.message.endswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": {}}, "num_hidden_layers is {}; an integer was expected"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4'; an integer was expected"),
        ({"hidden_size": True}, "hidden_size is True; an integer was expected"),
        ({"vocab_size": [320]}, "vocab_size is [320]; an integer was expected"),
        ({"rope_theta": [1]}, "rope_theta is [1]; a number that float32 holds was expected"),
        ({"rope_parameters": {"rope_theta": "x"}}, "rope_theta is 'x'; a number that float32 holds was expected"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'; true or false was expected"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id is [1, '2']; an integer was expected"),
        ({"text_config": {"hidden_size": "x"}}, "hidden_size is 'x'; an integer was expected"),
    ],
)
def test_a_targets_values_of_the_wrong_kind_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        read_target_config({**read_json(TARGET / "config.json"), **changes}, "T")
    assert e.value.message == f"T's config.json: {message}"
