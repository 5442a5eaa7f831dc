"""The checkpoint's side against an independent torch implementation: hidden blocks, drafts, accepted tokens."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from runtime_pair import (
    ENGINE,
    EVERY,
    PAIR,
    changed_reference,
    golden,
    reference,
    target,
    target_tensors,
    variant_config,
)

from dflash_convert.runtime.accept import draft_block, propose
from dflash_convert.runtime.hf_config import read_decoder
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import DFlashReference

PROMPTS = range(7)


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
        "draft_logits": reference().logits(hidden, target()),
    }
    for name, array in got.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[f"{prompt}.{name}"], rtol=0, atol=1e-4, err_msg=name)


def test_the_first_draft_is_the_golden_one() -> None:
    for g, prompt in zip(golden(), PROMPTS, strict=True):
        ctx = reference().new_context()
        reference().extend(ctx, features(prompt))
        assert propose(target(), reference(), ctx, g["first"]) == g["draft"]


@pytest.mark.parametrize("variant", EVERY)
def test_every_variant_gives_the_hidden_blocks_of_the_torch_runs(variant: str) -> None:
    expected = np.load(ENGINE / "reference.npz")
    for prompt in PROMPTS:
        got = first_block(reference(variant), prompt)
        np.testing.assert_allclose(got, expected[f"{variant}.{prompt}.hidden"], rtol=0, atol=1e-4)


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
    assert (config.block_size, config.attention_value_scale, config.is_causal) == (4, 0.5, (True, True))


def test_the_top_level_is_causal_wins_over_the_nested_one() -> None:
    nested = {**variant_config("dflash")["dflash_config"], "causal": True}
    assert changed_reference({"dflash_config": nested, "is_causal": False}).config.is_causal == (False, False)


def test_a_causal_query_is_a_causal_block() -> None:
    nested = {**variant_config("dflash")["dflash_config"], "dflash_query_causal": True}
    assert changed_reference({"dflash_config": nested}).config.is_causal == (True, True)
    assert reference().config.is_causal == (False, False)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (32, None)),
        ({"use_sliding_window": False}, (None, None)),
        ({"use_sliding_window": None}, (32, None)),
        ({"layer_types": None, "sliding_window": None}, (None, None)),
        ({"layer_types": None, "use_sliding_window": None, "use_swa": True}, (32, 32)),
        ({"layer_types": None, "use_sliding_window": None, "use_swa": True, "swa_window_size": 16}, (16, 16)),
        ({"use_swa": True, "swa_window_size": 16}, (16, None)),
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
    mixed = {**old, "rope_theta": None, "rope_parameters": {"rope_theta": 100.0, "factor": None}}
    for change in (old, new, mixed):
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
