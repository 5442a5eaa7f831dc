"""Every published schema: what its checkpoint means is what its GGUF says, on random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_pair import SafetensorsWeights
from tiny_drafts import HIDDEN, TinyTarget
from tiny_schemas import TINY

from dflash_convert.errors import CheckpointError, ConfigError, GGUFError
from dflash_convert.runtime.accept import draft_block, propose
from dflash_convert.runtime.interface import Drafter
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import DFlashReference, load_reference

TARGET = TinyTarget()
LAST = 7


def states(n: int) -> list[Array]:
    """What enters 8 layers and leaves the last one, at n positions."""
    return list(np.random.default_rng(3).standard_normal((9, n, HIDDEN), dtype=np.float32))


def context(drafter: Drafter, n: int = 40) -> Any:
    ctx, features = drafter.new_context(), drafter.features(states(n))
    for part in np.array_split(features, 3):
        drafter.extend(ctx, part)
    return ctx


def hidden(drafter: Drafter, n: int = 40) -> Array:
    return drafter.hidden_block(context(drafter, n), draft_block(TARGET, drafter, LAST))


@pytest.mark.parametrize("schema", TINY)
def test_both_sides_draft_the_same(schema: str, tmp_path: Path) -> None:
    reference, draft = TINY[schema].reference(), TINY[schema].draft(tmp_path)
    assert (draft.block_size, draft.first_slot, draft.mask_token_id, draft.n_taps) == (
        reference.block_size,
        reference.first_slot,
        reference.mask_token_id,
        reference.n_taps,
    )
    np.testing.assert_array_equal(draft.features(states(5)), reference.features(states(5)))
    theirs, ours = hidden(reference), hidden(draft)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    assert np.abs(theirs).max() > 1
    assert np.ptp(theirs[1:], axis=0).max() > 0.02  # the masks' positions differ
    expected, got = reference.propose(theirs, LAST, TARGET), draft.propose(ours, LAST, TARGET)
    assert got.tokens == expected.tokens
    assert len(got.tokens) == len(ours) - draft.first_slot
    if draft.markov or draft.selector:
        assert len(set(got.tokens)) > 2
    assert (got.confidence is None) == (expected.confidence is None)
    if got.confidence is not None and expected.confidence is not None:
        np.testing.assert_allclose(got.confidence, expected.confidence, atol=1e-4)
        assert len(got.confidence) == len(got.tokens)


def changed(schema: str, without: str = "", **changes: Any) -> DFlashReference:
    """A schema's reference with some top-level keys replaced, one of `dflash_config` taken away."""
    tiny = TINY[schema]
    inner = {k: v for k, v in tiny.config.get("dflash_config", {}).items() if k != without}
    config = {**tiny.config, **({"dflash_config": inner} if inner else {}), **changes}
    return replace(tiny, config=config).reference()


# --- what matters shows: leaving it out moves the hidden block, on the same weights

MEANINGFUL: Mapping[str, tuple[str, dict[str, Any]]] = {
    "the rope's layout": ("LiquidAI", {"rope_is_neox_style": True}),
    "the causal key": ("SpecForge, split", {"is_causal": False}),
    "the query's causal key": ("Nemotron DSpark", {"dflash_config": None, "dflash_query_causal": False}),
    "the sliding layers of speculators": ("speculators DSpark", {"sliding_window_non_causal": True}),
    "the window": ("Muse", {"sliding_window": 9}),
    "the type of target": ("z-lab for a Gemma target", {"input_embedding_scale": 1.0}),
    "Gemma's activation": ("Gemma 4", {"hidden_activation": "silu"}),
    "Gemma's rope": ("Gemma 4", {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.25}}),
    "yarn's mscale": ("Kimi", {"rope_scaling": {**TINY["Kimi"].config["rope_scaling"], "mscale": None}}),
}


@pytest.mark.parametrize("what", MEANINGFUL)
def test_what_a_config_says_is_heard(what: str) -> None:
    schema, changes = MEANINGFUL[what]
    other = changed(schema, **changes)
    assert np.abs(hidden(other) - hidden(TINY[schema].reference())).max() > 5e-3


def test_a_mask_embedding_apart_replaces_the_row_of_the_table() -> None:
    reference = TINY["MiMo"].reference()
    block = draft_block(TARGET, reference, LAST, 3)
    mask = TINY["MiMo"].tensors()["mask_embedding"]
    np.testing.assert_array_equal(block, [TARGET.table[LAST], mask, mask, mask])


def test_gemma_without_rope_parameters_uses_its_class_default() -> None:
    default = changed("Gemma 4", rope_parameters=None)
    np.testing.assert_array_equal(default.config.rope.freqs, TINY["Gemma 4"].reference().config.rope.freqs)


# --- where a value may be


@pytest.mark.parametrize(
    ("schema", "changes", "anchor"),
    [
        ("DeepSpec", {}, True),
        ("SpecForge, nested", {}, True),
        ("speculators DSpark", {}, False),
        ("speculators DSpark", {"sample_from_anchor": True}, True),
        ("speculators DFlash", {}, False),
        ("DFlash2", {}, False),
        ("DeepSpec", {"sample_from_anchor": False}, False),
        ("DeepSpec", {"dspark_bonus_anchor": True}, False),
        ("DeepSpec", {"dspark_bonus_anchor": False}, True),
        ("DeepSpec", {"dspark_bonus_anchor": True, "sample_from_anchor": True}, True),
        ("Nemotron DSpark", {"dspark_bonus_anchor": None}, True),
        ("Nemotron DSpark", {"dspark_bonus_anchor": None, "dflash_config": {"sample_from_anchor": False}}, False),
        ("SpecForge, split", {"dspark_config": {"markov_rank": 16, "sample_from_anchor": False}}, False),
    ],
)
def test_whether_the_anchor_proposes(schema: str, changes: dict[str, Any], anchor: bool) -> None:
    reference = changed(schema, **changes)
    assert reference.config.sample_from_anchor is anchor
    tokens = propose(TARGET, reference, context(reference), LAST)
    assert len(tokens) == reference.block_size - (0 if anchor else 1)


def test_deepspec_without_a_markov_head_samples_from_its_anchor_but_llama_cpp_cannot_know(tmp_path: Path) -> None:
    tiny = TINY["DeepSpec"]
    tables = {"embed_tokens.weight": (320, HIDDEN), "lm_head.weight": (320, HIDDEN)}
    plain = replace(tiny, config={**tiny.config, "markov_rank": 0}, shapes=tables)
    reference, draft = plain.reference(), plain.draft(tmp_path)
    assert (reference.first_slot, draft.first_slot) == (0, 1)
    assert len(propose(TARGET, reference, context(reference), LAST)) == 7
    assert len(propose(TARGET, draft, context(draft), LAST)) == 6


@pytest.mark.parametrize(
    ("changes", "taps"),
    [
        ({"target_layer_ids": [0, 1, 2]}, (1, 3, 5)),
        ({"dflash_config": {}, "target_layer_ids": [0, 1, 2], "mask_token_id": 3}, (0, 1, 2)),
        ({"dflash_config": {"mask_token_id": 3}, "aux_hidden_state_layer_ids": [1, 4, 8]}, (0, 3, 7)),
        ({"dflash_config": {}, "pard_token": 3, "eagle_aux_hidden_state_layer_ids": [2, 6, 7]}, (1, 5, 6)),
    ],
)
def test_where_the_taps_and_the_mask_may_be(changes: dict[str, Any], taps: tuple[int, ...]) -> None:
    config = changed("Kimi", **changes).config
    assert config.target_layer_ids == taps
    assert config.mask_token_id == (319 if "dflash_config" not in changes else 3)


def test_nulls_inside_never_hide_a_value_above() -> None:
    config = TINY["speculators DSpark"].reference().config
    assert (config.windows, config.is_causal) == ((64, 64), (True, True))


def test_speculators_mix_causal_windows_with_layers_that_see_everything() -> None:
    layers = ["full_attention", "sliding_attention"]
    config = changed("speculators DSpark", layer_types=layers).config
    assert (config.windows, config.is_causal) == ((None, 64), (False, True))


def test_speculators_count_a_window_from_the_anchor() -> None:
    # anchor at 10, window 4: the block sees positions 6 to 9 of the context from every one of its positions
    reference = changed("speculators DSpark", sliding_window=4)
    seen = reference._visible(0, 10, np.arange(13))
    assert seen[:, :10].astype(int).tolist() == [[0] * 6 + [1] * 4] * 3
    assert seen[:, 10:].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    per_query = changed("Muse", sliding_window=4)._visible(0, 10, np.arange(13))
    assert per_query.astype(int).tolist() == [[0] * (7 + i) + [1] * (6 - i) for i in range(3)]


def test_a_target_may_be_wider_than_the_draft() -> None:
    tiny = TINY["Kimi"]
    wide = replace(tiny, config={**tiny.config, "target_hidden_size": 96}, shapes={"fc.weight": (HIDDEN, 288)})
    assert wide.reference().features([np.zeros((2, 96), np.float32)] * 9).shape == (2, 288)
    with pytest.raises(CheckpointError, match="fc reads 3 taps of width 96, the target's width is 64"):
        wide.reference().features(states(2))


@pytest.mark.parametrize(
    ("schema", "changes", "message"),
    [
        ("DeepSpec", {"markov_head_type": "gated"}, "a Markov head of the type: markov_head_type is 'gated'"),
        ("Nemotron DSpark", {"dspark_fixup_head_type": "mlp"}, "a fix-up head of the type: dspark_fixup_head_type is"),
        ("Kimi", {"dflash_config": {"causal_head": True}}, "not supported yet: JetSpec's causal_head"),
        ("Kimi", {"log_snr_conditioning": True}, "not supported yet: log_snr_conditioning"),
        ("Kimi", {"gating": "per_head"}, "not supported yet: Laguna's gating: gating is 'per_head'"),
        ("speculators DSpark", {"topk_context": 256}, "not supported yet: topk_context: topk_context is 256"),
        ("Kimi", {"architectures": ["Qwen35DSparkModel"]}, "drafts of the class Qwen35DSparkModel"),
        ("Gemma 4", {"enable_moe_block": True}, "a Gemma 4 draft with experts or per-layer inputs"),
        ("Gemma 4", {"global_head_dim": None}, "global_head_dim is missing"),
        (
            "DFlash2",
            {"dflash_config": {**TINY["DFlash2"].config["dflash_config"], "conv_group_size": 24}},
            "does not div",
        ),
        ("DeepSpec", {"draft_vocab_size": 400}, "draft_vocab_size is 400, more than the vocab_size of 320"),
        ("DeepSpec", {"draft_vocab_size": 100}, "draft_vocab_size is 100 of 320, but there is no d2t"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(schema: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(schema, **changes)


@pytest.mark.parametrize(
    ("schema", "gone", "message"),
    [
        ("DeepSpec", "markov_head", "config.json says markov_rank, but no markov_head.markov_w1.weight is there"),
        (
            "DFlash2",
            "candidate_selector",
            "config.json says selector_rank, but no candidate_selector.hidden_projection",
        ),
        ("MiMo", "layers.1.self_attn.attention_sink_bias", r"says attention_sink_bias, but no layers\.1\.self_attn\."),
        ("Muse", "layers.0.self_attn.v_proj.weight", "does not say attention_k_eq_v, but no layers.0.self_attn.v_proj"),
    ],
)
def test_what_a_config_announces_must_be_there(schema: str, gone: str, message: str) -> None:
    tensors = {n: x for n, x in TINY[schema].tensors().items() if gone not in n and "confidence" not in n}
    tensors = {n: x for n, x in tensors.items() if gone != "candidate_selector" or "_conv" not in n}
    with pytest.raises(CheckpointError, match=message):
        load_reference(TINY[schema].config, SafetensorsWeights(tensors))


def test_a_target_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    small = TinyTarget()
    small.n_vocab = 300
    states_ = np.zeros((7, HIDDEN), np.float32)
    for schema in ("DeepSpec", "DFlash2"):
        with pytest.raises(CheckpointError, match="the draft's heads know 320 tokens, the target has 300"):
            TINY[schema].reference().propose(states_, LAST, small)
        with pytest.raises(GGUFError, match=r"draft\.gguf: the draft's heads know 320 tokens, the target has 300"):
            TINY[schema].draft(tmp_path).propose(states_, LAST, small)
    with pytest.raises(CheckpointError, match=r"d2t leads to token ids from \d+ to 3\d\d, the target has 300 tokens"):
        TINY["speculators DFlash"].reference().logits(states_, small)
    with pytest.raises(GGUFError, match=r"draft\.gguf: d2t has the token ids \d+ to 3\d\d, the target has 300 tokens"):
        TINY["speculators DFlash"].draft(tmp_path).logits(states_, small)
