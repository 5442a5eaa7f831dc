"""Values that cannot be: taps, the pair of draft and target, rope."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make import BF16, weights
from toys import GONE, TARGET, notes, plan, read_json, refusal

from dflash_convert.errors import ConfigError, VocabError

# ── taps ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

TAPS = "dflash_config.target_layer_ids"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([-1, 3, 5], f"{TAPS} has the negative id -1 at position 0: [-1, 3, 5]"),
        ([1, 5, 5], f"{TAPS} has the id 5 twice, again at position 2: [1, 5, 5]"),
        ([1, 3, 8], f"{TAPS} taps layer 8, but the target Toy-Target has 8 layers (0 to 7)"),
        ([1, 3], f"{TAPS} has 2 ids [1, 3], but fc.weight is 64×192, so 3 taps of width 64"),
        ([1, 2, 3, 4], f"{TAPS} has 4 ids [1, 2, 3, 4], but fc.weight is 64×192, so 3 taps of width 64"),
    ],
)
def test_taps_that_cannot_be(tmp_path: Path, ids: list[int], said: str) -> None:
    error = refusal(ConfigError, tmp_path, {TAPS: ids})
    assert error.message == said
    assert error.hint


def test_an_fc_whose_width_is_no_number_of_taps(tmp_path: Path) -> None:
    error = refusal(ConfigError, tmp_path, tensors={"fc.weight": weights(64, 160, dtype=BF16)})
    assert error.message.endswith("but fc.weight is 64×160, so 160/64 = 2.50 taps of width 64")


def test_missing_taps_say_what_fc_implies_and_the_flag_supplies_them(tmp_path: Path) -> None:
    error = refusal(ConfigError, tmp_path, {TAPS: GONE})
    assert "fc.weight is 64×192, so 3 taps of width 64" in error.message
    assert error.hint == "it was fixed in training and cannot be guessed: pass --target-layer-ids"


def test_the_flag_supplies_missing_taps(tmp_path: Path) -> None:
    job = plan(tmp_path, {TAPS: GONE}, overrides={"target_layer_ids": [0, 2, 4]})
    (kv,) = [kv for kv in job.plan.kv if kv.key == "dflash.target_layers"]
    assert (kv.value, kv.source) == ([1, 3, 5], "--target-layer-ids")


@pytest.mark.parametrize(
    ("ids", "shifted", "warning"),
    [
        ([1, 3, 5], [2, 4, 6], []),
        (
            [5, 3, 1],
            [6, 4, 2],
            ["the taps are not in ascending order: [5, 3, 1]; their order is kept, fc depends on it"],
        ),
    ],
)
def test_the_shift_is_told_once_and_the_order_kept(tmp_path: Path, ids: Any, shifted: Any, warning: list[str]) -> None:
    job = plan(tmp_path, {TAPS: ids})
    assert [n for n in notes(job, "info") if "taps" in n] == [f"taps: HF ids {ids} → target_layers {shifted}"]
    assert notes(job, "warning") == warning
    (kv,) = [kv for kv in job.plan.kv if kv.key == "dflash.target_layers"]
    assert (kv.value, kv.source) == (shifted, TAPS)


def test_the_last_layer_may_be_tapped_and_is_told(tmp_path: Path) -> None:
    job = plan(tmp_path, {TAPS: [0, 3, 7]})
    assert "the last layer of the target (7) is tapped; older engines refuse that" in notes(job, "info")


# ── the pair ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"hidden_size": 128}, "draft and target differ in width: 64 in the draft's config, hidden_size 128 in"),
        ({"num_hidden_layers": 36}, "differ in depth of the target: 8 in the draft's config, num_hidden_layers 36 in"),
        ({"vocab_size": 512}, "differ in vocabulary: 320 in the draft's config, vocab_size 512 in"),
        ({"num_hidden_layers": 4}, "taps layer 5, but the target Toy-Target has 4 layers (0 to 3)"),
    ],
)
def test_a_draft_of_another_target(tmp_path: Path, target: Any, said: str) -> None:
    error = refusal(ConfigError, tmp_path, target={"config": target})
    assert said in error.message
    assert "Toy-Target" in error.message
    assert error.hint == "is this the target the draft was trained for?"


def test_a_target_wider_than_the_draft_cannot_be_expressed(tmp_path: Path) -> None:
    error = refusal(ConfigError, tmp_path, {"target_hidden_size": 96}, {"fc.weight": weights(64, 288, dtype=BF16)})
    assert error.message.startswith("target_hidden_size is 96, hidden_size 64: llama.cpp runs a draft only if")


def test_what_the_target_does_not_say_is_told_as_not_compared(tmp_path: Path) -> None:
    gone = {"hidden_size": GONE, "num_hidden_layers": GONE, "vocab_size": None}
    assert notes(plan(tmp_path, target={"config": gone}), "warning") == [
        "the target's config has no hidden_size: the width could not be compared",
        "the target's config has no num_hidden_layers: the depth of the target could not be compared",
        "the target's config has no vocab_size: the vocabulary could not be compared",
    ]


@pytest.mark.parametrize("mask", [-1, 320])
def test_a_mask_id_outside_the_vocabulary(tmp_path: Path, mask: int) -> None:
    error = refusal(ConfigError, tmp_path, {"dflash_config.mask_token_id": mask})
    assert error.message == f"dflash_config.mask_token_id is {mask}, outside the vocabulary of 320"
    assert error.hint == "pass --mask-token-id"


@pytest.mark.parametrize(
    ("mask", "config", "words"),
    [
        (302, {}, ["EOS"]),
        (300, {}, ["BOS", "PAD"]),
        (301, {"eos_token_id": [302, 301]}, ["EOS"]),
        (301, {"pad_token_id": 301}, ["PAD"]),
        (303, {}, []),
    ],
)
def test_a_mask_token_that_is_also_another(tmp_path: Path, mask: int, config: Any, words: list[str]) -> None:
    job = plan(tmp_path, {"dflash_config.mask_token_id": mask}, target={"config": config})
    assert notes(job, "warning") == [f"the mask token {mask} is also the target's {w} token" for w in words]


def test_a_missing_mask_id_is_suggested_by_the_targets_tokenizer_but_not_taken(tmp_path: Path) -> None:
    added = [*read_json(TARGET / "tokenizer.json")["added_tokens"], {"id": 310, "content": "<|MASK|>", "special": True}]
    error = refusal(
        ConfigError, tmp_path, {"dflash_config.mask_token_id": None}, target={"tokenizer": {"added_tokens": added}}
    )
    assert error.message.endswith("; the target's tokenizer has <|MASK|> (id 310)")
    assert error.hint == "it was fixed in training and cannot be guessed: pass --mask-token-id"


def test_the_drafts_mask_id_wins_over_the_targets(tmp_path: Path) -> None:
    job = plan(tmp_path, target={"tokenizer_config": {"mask_token": "<|im_start|>"}})
    (kv,) = [kv for kv in job.plan.kv if kv.key == "tokenizer.ggml.mask_token_id"]
    assert (kv.value, kv.source) == (319, "dflash_config.mask_token_id")
    keys = [kv.key for kv in job.plan.kv]  # it stays where the target's stood, among the special tokens
    assert keys.index("tokenizer.ggml.mask_token_id") < keys.index("tokenizer.ggml.add_bos_token")


def test_a_vocabulary_too_small_for_the_tokenizer(tmp_path: Path) -> None:
    small = {"vocab_size": 302, "dflash_config.mask_token_id": 301}
    error = refusal(VocabError, tmp_path, small, target={"config": {"vocab_size": 302}})
    assert error.message == "the tokenizer has ids up to 303 ('<tool_call>'), the embedding table 302 rows"


# ── rope and shape ────────────────────────────────────────────────────────────────────────────────────────────────────

YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rope_scaling": {"rope_type": "llama3"}},
            "rope_scaling.rope_type is 'llama3', which this version cannot write",
        ),
        ({"rope_scaling": YARN | {"factor": None}}, "rope_scaling.rope_type is yarn, but rope_factor is not given"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": None}},
            "rope_scaling.rope_type is yarn, but rope_original_context is not given",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.type is linear, but rope_factor is not given"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', which llama.cpp cannot run in this architecture"),
        ({"partial_rotary_factor": 0.3}, "partial_rotary_factor is 0.3: of head_dim 32 that is no even number"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5: of head_dim 32 that is no even number"),
        (
            {"partial_rotary_factor": 0.5, "rope_is_neox_style": False},
            "rope_is_neox_style is false and partial_rotary_factor is 0.5: interleaved rope on a part",
        ),
    ],
)
def test_what_llama_cpp_cannot_run(tmp_path: Path, changes: Any, said: str) -> None:
    assert said in refusal(ConfigError, tmp_path, changes).message


def test_an_m_rope_target_gives_degenerate_sections_and_an_inherited_section_none(tmp_path: Path) -> None:
    job = plan(
        tmp_path,
        {"rope_scaling": {"mrope_section": [4, 6, 6], "rope_type": "default"}},
        target={"config": {"rope_scaling": {"mrope_section": [4, 6, 6]}}},
    )
    (kv,) = [kv for kv in job.plan.kv if kv.key == "dflash.rope.dimension_sections"]
    assert (kv.value, kv.source) == ([16, 0, 0, 0], "the target uses M-RoPE")


def test_sections_inherited_from_a_target_without_m_rope_are_not_written(tmp_path: Path) -> None:
    job = plan(tmp_path, {"rope_scaling": {"mrope_section": [4, 6, 6], "rope_type": "default"}})
    assert not [kv for kv in job.plan.kv if "sections" in kv.key]
    assert notes(job, "warning") == []
