"""The checkpoint's side against an independent torch implementation: hidden blocks, drafts, accepted tokens."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from runtime_pair import (
    ENGINE,
    PAIR,
    VARIANTS,
    SafetensorsWeights,
    changed_reference,
    engine_json,
    golden,
    reference,
    target,
    target_config,
    target_tensors,
    variant_config,
    variant_tensors,
)

from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.runtime.accept import Run, draft_block, draft_logits, propose, speculate
from dflash_convert.runtime.hf_config import read_decoder
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import DFlashReference, load_reference
from dflash_convert.runtime.target import load_target_checkpoint

PROMPTS = range(7)


@cache
def runs(variant: str) -> list[Run]:
    """All prompts, until 97 tokens: the first and, as golden/engine counts, 96 behind it."""
    return [speculate(target(), reference(variant), g["ids"], 97) for g in golden()]


@cache
def features(prompt: int) -> Array:
    ids = golden()[prompt]["ids"]
    return reference().features(target().forward(ids, target().new_cache()).layer_inputs)


def first_block(drafter: DFlashReference, prompt: int) -> Array:
    ctx = drafter.new_context()
    drafter.extend(ctx, features(prompt))
    return drafter.hidden_block(ctx, draft_block(target(), drafter, golden()[prompt]["first"]))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_target_and_draft_give_the_golden_numbers(prompt: int) -> None:
    expected = np.load(PAIR / "expected/golden.npz")
    out = target().forward(golden()[prompt]["ids"], target().new_cache())
    hidden = first_block(reference("dflash"), prompt)
    got = {
        "features": reference().features(out.layer_inputs),
        "target_logits_last": out.logits[-1],
        "hidden": hidden,
        "hidden_all_full": first_block(reference("all-full"), prompt),
        "draft_logits": draft_logits(target(), reference(), hidden),
    }
    for name, array in got.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[f"{prompt}.{name}"], rtol=0, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_loop_gives_the_golden_tokens(prompt: int) -> None:
    g = golden()[prompt]
    run = speculate(target(), reference(), g["ids"], 96)
    assert run.tokens[0] == g["first"]
    assert list(run.tokens[:96]) == g["generated"]
    assert list(run.accepted_per_step) == g["accepted_per_step"]
    assert run.drafted == g["drafted"]


def test_the_first_draft_is_the_golden_one() -> None:
    for g, prompt in zip(golden(), PROMPTS, strict=True):
        ctx = reference().new_context()
        reference().extend(ctx, features(prompt))
        assert propose(target(), reference(), ctx, g["first"]) == g["draft"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_gives_the_hidden_blocks_of_the_torch_runs(variant: str) -> None:
    expected = np.load(ENGINE / "reference.npz")
    for prompt in PROMPTS:
        got = first_block(reference(variant), prompt)
        np.testing.assert_allclose(got, expected[f"{variant}.{prompt}.hidden"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_accepts_what_the_torch_runs_accept(variant: str) -> None:
    for run, expected in zip(runs(variant), engine_json("reference.json")[variant], strict=True):
        assert list(run.accepted_per_step) == expected["accepted_per_step"]
        assert (len(run.tokens), run.drafted, run.accepted) == (
            expected["predicted"],
            expected["drafted"],
            expected["accepted"],
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_accepts_what_the_engine_accepts(variant: str) -> None:
    expected = sum(e["accepted"] for e in engine_json("engine.json")[variant])
    assert sum(run.accepted for run in runs(variant)) == pytest.approx(expected, rel=0.03)


def test_extending_in_pieces_is_extending_at_once() -> None:
    whole, pieces, drafter = reference().new_context(), reference().new_context(), reference()
    drafter.extend(whole, features(0))
    for part in np.array_split(features(0), 3):
        drafter.extend(pieces, part)
    assert len(whole) == len(pieces) == 20
    block = draft_block(target(), drafter, 415)
    np.testing.assert_allclose(drafter.hidden_block(whole, block), drafter.hidden_block(pieces, block), atol=1e-5)


def test_a_block_leaves_the_context_as_it_was() -> None:
    ctx, drafter = reference().new_context(), reference()
    drafter.extend(ctx, features(0))
    block = draft_block(target(), drafter, 415)
    np.testing.assert_array_equal(drafter.hidden_block(ctx, block), drafter.hidden_block(ctx, block))
    assert len(ctx) == 20


# --- what the config may say, and where


def test_values_nested_in_dflash_config_come_first() -> None:
    nested = {
        **variant_config("dflash")["dflash_config"],
        "block_size": 4,
        "attention_value_scale": 0.5,
        "causal": True,
    }
    config = changed_reference({"dflash_config": nested, "block_size": 8}).config
    assert (config.block_size, config.attention_value_scale, config.is_causal) == (4, 0.5, True)


def test_the_top_level_is_causal_wins_over_the_nested_one() -> None:
    nested = {**variant_config("dflash")["dflash_config"], "causal": True}
    assert changed_reference({"dflash_config": nested, "is_causal": False}).config.is_causal is False


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (32, None)),
        ({"use_sliding_window": False}, (None, None)),
        ({"use_sliding_window": None}, (32, None)),
        ({"layer_types": None, "sliding_window": None}, (None, None)),
        ({"layer_types": None, "use_sliding_window": None, "use_swa": True}, (32, 32)),
        ({"layer_types": None, "use_swa": True, "swa_window_size": 16}, (16, 16)),
    ],
)
def test_which_layers_slide(changes: dict[str, object], windows: tuple[int | None, ...]) -> None:
    inner = {k: v for k, v in changes.items() if "swa" in k}
    outer = {k: v for k, v in changes.items() if "swa" not in k}
    nested = {**variant_config("dflash")["dflash_config"], **inner}
    assert changed_reference({**outer, "dflash_config": nested}).config.windows == windows


def test_rope_comes_from_the_new_place_or_the_old_one() -> None:
    old = {"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.5}
    new = {
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    }
    for change in (old, new):
        rope = changed_reference(change).config.rope
        np.testing.assert_allclose(rope.freqs, 100.0 ** (-np.arange(16) / 16) / 2, rtol=1e-12)
        assert rope.magnitude == 1.0


@pytest.mark.parametrize(
    ("given", "magnitude"),
    [
        ({}, 1 + 0.1 * np.log(4)),
        ({"attention_factor": 1.25}, 1.25),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, (1 + 0.2 * np.log(4)) / (1 + 0.1 * np.log(4))),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_scales_cosine_and_sine_as_transformers_does(given: dict[str, float], magnitude: float) -> None:
    scaling = {**variant_config("yarn")["rope_scaling"], **given}
    assert read_decoder({**variant_config("dflash"), "rope_scaling": scaling}).rope.magnitude == pytest.approx(
        magnitude
    )


def test_yarn_without_betas_uses_32_and_1_and_the_trained_length() -> None:
    full = variant_config("yarn")["rope_scaling"]
    explicit = read_decoder(
        {**variant_config("dflash"), "rope_scaling": {**full, "original_max_position_embeddings": 1024}}
    )
    short = {"rope_type": "yarn", "factor": 4.0}
    implied = read_decoder({**variant_config("dflash"), "rope_scaling": short})
    np.testing.assert_array_equal(implied.rope.freqs, explicit.rope.freqs)


def test_embeddings_are_scaled_where_the_config_says() -> None:
    plain, scaled = reference(), changed_reference({"input_embedding_scale": 3.0})
    block = draft_block(target(), plain, 415)
    np.testing.assert_array_equal(
        scaled.hidden_block(scaled.new_context(), block), plain.hidden_block(plain.new_context(), block * np.float32(3))
    )


def test_own_embeddings_and_head_are_used_each_for_itself() -> None:
    table = target_tensors()["model.embed_tokens.weight"]
    ctx = reference().new_context()
    reference().extend(ctx, features(0))
    plain = propose(target(), reference(), ctx, 415)
    rolled = changed_reference(tensors={"lm_head.weight": np.roll(table, 1, axis=0)})
    assert propose(target(), rolled, ctx, 415) == [(i + 1) % 1024 for i in plain]
    moved = changed_reference(tensors={"embed_tokens.weight": np.roll(table, 1, axis=0)})
    block = draft_block(target(), moved, 415)
    np.testing.assert_array_equal(block[0], table[414].astype(np.float32))
    assert moved.output_weight is None


# --- what cannot be run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "block_size is missing"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"hidden_act": "relu"}, "not supported yet: hidden_act 'relu'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"sliding_window": None}, "sliding_attention layers, but no sliding_window"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "not supported yet: rope of the type 'llama3'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters for each layer type"),
        ({"dflash_config": {"mask_token_id": 1023}}, "target_layer_ids is missing"),
        ({"dflash_config": {"target_layer_ids": [0, 1, 2]}}, "mask_token_id is missing"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed_reference(changes)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"layers.1.mlp.up_proj.weight": None}, r"the tensor layers\.1\.mlp\.up_proj\.weight is missing"),
        (
            {"fc.weight": np.zeros((256, 512))},
            r"fc\.weight has the shape 256×512, but hidden_size × features_size = 256×768",
        ),
        ({"markov_head.markov_w1.weight": np.zeros((1, 1))}, "not supported yet: DSpark's Markov head"),
        ({"layers.0.attention_conv.base_kernel": np.zeros(1)}, "not supported yet: DFlash2's convolutions"),
        (
            {"prefix_gru.weight_ih_l0": np.zeros(1)},
            "1 tensor.* that no part of this model uses, prefix_gru.weight_ih_l0",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(tensors: dict[str, Array], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        changed_reference(tensors=tensors)


def test_sinks_that_are_announced_must_be_there() -> None:
    with pytest.raises(CheckpointError, match="says attention_sink_bias, but no"):
        load_reference(variant_config("sinks-value-scale"), SafetensorsWeights(variant_tensors("dflash")))


def test_a_target_that_does_not_fit_is_refused() -> None:
    states = [np.zeros((1, 256), np.float32)] * 3
    with pytest.raises(CheckpointError, match=r"target_layer_ids are \[0, 1, 2\], but the target has 2 layers"):
        reference().features(states)
    with pytest.raises(CheckpointError, match="fc reads 3 taps of width 256, the target's width is 128"):
        reference().features([s[:, :128] for s in states * 2])


def test_target_checkpoints_that_cannot_be_run_are_refused() -> None:
    weights = SafetensorsWeights(target_tensors())
    with pytest.raises(CheckpointError, match="targets of the architecture MambaForCausalLM cannot be run") as caught:
        load_target_checkpoint({**target_config(), "architectures": ["MambaForCausalLM"]}, weights)
    assert caught.value.hint == "those that can: Qwen3ForCausalLM"
    with pytest.raises(CheckpointError, match=r"architecture \(none named\)"):
        load_target_checkpoint({}, weights)
    with pytest.raises(ConfigError, match="a Qwen3 target with use_sliding_window"):
        load_target_checkpoint({**target_config(), "use_sliding_window": True}, weights)
    with pytest.raises(CheckpointError, match=r"the tensor lm_head\.weight is missing"):
        load_target_checkpoint({**target_config(), "tie_word_embeddings": False}, weights)
