"""The GGUF's side: the same numbers from GGUF names and keys, and a difference where a file is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_gguf import draft_names
from runtime_pair import (
    ENGINE,
    EVERY,
    PAIR,
    TARGET_KEYS,
    YARN,
    changed_reference,
    decoded,
    draft,
    draft_file,
    draft_tensors,
    golden,
    halves,
    reference,
    target,
    target_file,
    target_gguf_tensors,
    variant_config,
    variant_tensors,
)

from dflash_convert.runtime.accept import draft_block, propose
from dflash_convert.runtime.draft import DFlashDraft, load_draft
from dflash_convert.runtime.interface import Drafter, Target
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.target import load_target_gguf

PROMPTS = range(7)


@pytest.fixture(scope="module")
def gguf_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The target from a bf16 GGUF."""
    return load_target_gguf(target_file(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DFlashDraft]:
    """Every variant from a bf16 GGUF."""
    return {v: draft(tmp_path_factory.mktemp(v), v) for v in EVERY}


def prefilled(drafter: Drafter, prompt: int = 0) -> tuple[Any, Array]:
    """The drafter's context after a prompt, and the embeddings of its first block."""
    out = target().forward(golden()[prompt]["ids"], target().new_cache())
    ctx = drafter.new_context()
    drafter.extend(ctx, drafter.features(out.layer_inputs))
    return ctx, draft_block(target(), drafter, golden()[prompt]["first"])


def first_block(drafter: Drafter, prompt: int = 0) -> Array:
    return drafter.hidden_block(*prefilled(drafter, prompt))


@pytest.mark.parametrize("prompt", PROMPTS)
def test_target_and_draft_give_the_golden_numbers(
    prompt: int, gguf_target: Target, drafts: dict[str, DFlashDraft]
) -> None:
    expected = np.load(PAIR / "expected/golden.npz")
    out = gguf_target.forward(golden()[prompt]["ids"], gguf_target.new_cache())
    hidden = first_block(drafts["dflash"], prompt)
    got = {
        "features": drafts["dflash"].features(out.layer_inputs),
        "target_logits_last": out.logits[-1],
        "hidden": hidden,
        "hidden_all_full": first_block(drafts["all-full"], prompt),
        "draft_logits": drafts["dflash"].logits(hidden, gguf_target),
    }
    for name, array in got.items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, expected[f"{prompt}.{name}"], rtol=0, atol=1e-4, err_msg=name)
    assert got["draft_logits"][1:].argmax(axis=-1).tolist() == golden()[prompt]["draft"]


@pytest.mark.parametrize("variant", EVERY)
def test_every_variant_gives_the_hidden_blocks_of_the_torch_runs(variant: str, drafts: dict[str, DFlashDraft]) -> None:
    expected = np.load(ENGINE / "reference.npz")
    for prompt in PROMPTS:
        got = first_block(drafts[variant], prompt)
        np.testing.assert_allclose(got, expected[f"{variant}.{prompt}.hidden"], rtol=0, atol=1e-4)


def test_extending_in_pieces_is_extending_at_once(drafts: dict[str, DFlashDraft]) -> None:
    drafter = drafts["dflash"]
    whole, block = prefilled(drafter)
    states = target().forward(golden()[0]["ids"], target().new_cache()).layer_inputs
    pieces = drafter.new_context()
    for part in np.array_split(drafter.features(states), 3):
        drafter.extend(pieces, part)
    np.testing.assert_allclose(drafter.hidden_block(pieces, block), drafter.hidden_block(whole, block), atol=1e-5)


def test_the_block_attends_to_a_cache_it_leaves_as_it_was(drafts: dict[str, DFlashDraft]) -> None:
    drafter = drafts["dflash"]
    ctx, block = prefilled(drafter)
    np.testing.assert_array_equal(drafter.hidden_block(ctx, block), drafter.hidden_block(ctx, block))
    assert len(ctx) == 20


# --- a wrong file shows: each mistake moves the hidden block far from the checkpoint's


def swapped(a: str, b: str) -> dict[str, Array]:
    tensors = draft_tensors("dflash")
    return {a: tensors[b], b: tensors[a]}


MISTAKES: dict[str, dict[str, Any]] = {
    "taps not shifted": {"keys": {"dflash.target_layers": [0, 1, 2]}},
    "taps shifted twice": {"keys": {"dflash.target_layers": [2, 3, 4]}},
    "taps in another order": {"keys": {"dflash.target_layers": [2, 1, 3]}},
    "window lost": {"keys": {"dflash.attention.sliding_window": None}},
    "window one short": {"keys": {"dflash.attention.sliding_window": 31}},
    "window on the other layer": {"keys": {"dflash.attention.sliding_window_pattern": [False, True]}},
    "causal": {"keys": {"dflash.attention.causal": True}},
    "rope base lost": {"keys": {"dflash.rope.freq_base": 1e6}},
    "rope dimensions halved": {"keys": {"dflash.rope.dimension_count": 32}},
    "norms of block 0 swapped": {"tensors": swapped("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")},
    "q and k norms swapped": {"tensors": swapped("blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight")},
    "k and v swapped": {"tensors": swapped("blk.1.attn_k.weight", "blk.1.attn_v.weight")},
    "gate and up swapped": {"tensors": swapped("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight")},
    "encoder and final norm swapped": {"tensors": swapped("enc.output_norm.weight", "output_norm.weight")},
    "layers swapped": {"tensors": swapped("blk.0.ffn_down.weight", "blk.1.ffn_down.weight")},
    "rows permuted": {"tensors": {"blk.0.attn_q.weight": halves(draft_tensors("dflash")["blk.0.attn_q.weight"])}},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_file_shows_against_the_checkpoint(mistake: str, tmp_path: Path) -> None:
    # Prompt 3 has 28 tokens: with the block it is longer than the window, so that the window matters. The two sides
    # agree to 1e-4 where all is right; the smallest mistake (one key more hidden from a query) must be far above it.
    wrong = first_block(draft(tmp_path, **MISTAKES[mistake]), prompt=3)
    assert np.abs(wrong - first_block(reference(), prompt=3)).max() > 5e-3


def test_an_interleaved_checkpoint_not_permuted_shows(tmp_path: Path) -> None:
    raw = {n: variant_tensors("interleaved-rope")[f"layers.0.self_attn.{c}"] for n, c in [
        ("blk.0.attn_q.weight", "q_proj.weight"), ("blk.0.attn_k.weight", "k_proj.weight"),
        ("blk.0.attn_q_norm.weight", "q_norm.weight"), ("blk.0.attn_k_norm.weight", "k_norm.weight"),
    ]}  # fmt: skip
    wrong = first_block(draft(tmp_path, "interleaved-rope", tensors=raw))
    assert np.abs(wrong - first_block(reference("interleaved-rope"))).max() > 0.01


def test_interleaved_rows_in_halves_are_the_unchanged_file() -> None:
    for name, tensor in draft_tensors("interleaved-rope").items():
        np.testing.assert_array_equal(tensor, draft_tensors("dflash")[name])


# --- keys that the variants do not have


def test_linear_rope_is_the_same_on_both_sides(tmp_path: Path) -> None:
    keys = {"dflash.rope.scaling.type": "linear", "dflash.rope.scaling.factor": 4.0}
    ours = first_block(draft(tmp_path, keys=keys))
    theirs = first_block(changed_reference({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(ours - first_block(reference())).max() > 0.01


def test_scaling_of_the_type_none_ignores_the_factor(tmp_path: Path) -> None:
    keys = {"dflash.rope.scaling.type": "none", "dflash.rope.scaling.factor": 4.0}
    np.testing.assert_array_equal(first_block(draft(tmp_path, keys=keys)), first_block(draft(tmp_path)))


def test_yarn_takes_the_attention_factor_of_the_file(tmp_path: Path) -> None:
    # llama.cpp multiplies its own 1 + 0.1 ln(factor) by rope.scaling.attn_factor: this one leaves 1
    keys = {**YARN, "dflash.rope.scaling.attn_factor": 1 / (1 + 0.1 * float(np.log(4)))}
    scaling = {**variant_config("yarn")["rope_scaling"], "attention_factor": 1.0}
    theirs = first_block(changed_reference({"rope_scaling": scaling}))
    np.testing.assert_allclose(first_block(draft(tmp_path, keys=keys)), theirs, atol=1e-5)
    assert np.abs(theirs - first_block(reference("yarn"))).max() > 0.01


def test_yarn_does_as_llama_cpp_and_never_reads_its_betas(tmp_path: Path) -> None:
    keys = {"dflash.rope.scaling.yarn_beta_fast": 8.0, "dflash.rope.scaling.yarn_beta_slow": 2.0}
    ours = first_block(draft(tmp_path, "yarn", keys=keys))
    np.testing.assert_allclose(ours, first_block(reference("yarn")), atol=1e-5)
    scaling = {**variant_config("yarn")["rope_scaling"], "beta_fast": 8.0, "beta_slow": 2.0}
    assert np.abs(ours - first_block(changed_reference({"rope_scaling": scaling}))).max() > 0.01


def test_yarn_without_an_original_length_uses_the_context_length(tmp_path: Path) -> None:
    keys = {"dflash.rope.scaling.original_context_length": None, "dflash.context_length": 256}
    np.testing.assert_array_equal(first_block(draft(tmp_path, "yarn", keys=keys)), first_block(draft(tmp_path, "yarn")))


def test_attention_scale_replaces_the_root_of_the_head_size(tmp_path: Path) -> None:
    doubled = {
        f"blk.{i}.attn_q_norm.weight": 2 * draft_tensors("dflash")[f"blk.{i}.attn_q_norm.weight"] for i in (0, 1)
    }
    scaled = first_block(draft(tmp_path, keys={"dflash.attention.scale": 0.25}))
    np.testing.assert_allclose(scaled, first_block(draft(tmp_path, tensors=doubled)), atol=1e-5)


def test_embedding_scale_multiplies_the_block(tmp_path: Path) -> None:
    plain = draft(tmp_path)
    ctx, block = prefilled(plain)
    expected = plain.hidden_block(ctx, block * np.float32(3))
    np.testing.assert_array_equal(first_block(draft(tmp_path, keys={"dflash.embedding_scale": 3.0})), expected)


def test_hidden_activation_gelu_is_the_tanh_form(tmp_path: Path) -> None:
    ours = first_block(draft(tmp_path, keys={"dflash.hidden_activation": "gelu"}))
    theirs = first_block(changed_reference({"hidden_act": "gelu_pytorch_tanh"}))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert np.abs(ours - first_block(reference())).max() > 0.01


def test_layers_past_the_end_of_the_pattern_are_full(tmp_path: Path) -> None:
    keys = {"dflash.attention.sliding_window_pattern": [True]}
    assert draft(tmp_path, keys=keys).hparams.windows == (32, None)


def test_defaults_of_llama_cpp_that_are_silent_there(tmp_path: Path) -> None:
    keys = {"dflash.rope.freq_base": None, "dflash.attention.head_count_kv": None, "dflash.attention.key_length": None}
    wide = {f"blk.{i}.attn_{x}.weight": np.zeros((256, 256)) for i in (0, 1) for x in "kv"}
    h = draft(tmp_path, keys=keys, tensors=wide).hparams
    assert (h.n_head_kv, h.n_embd_head) == (4, 64)
    assert h.rope.freqs[-1] == pytest.approx(10000 ** (-62 / 64))


def test_own_embeddings_serve_as_the_head_unless_there_is_one(tmp_path: Path) -> None:
    table = target_gguf_tensors()["token_embd.weight"]
    rolled = np.roll(table, 1, axis=0)
    plain = draft(tmp_path)
    ctx, _ = prefilled(plain)
    tokens = propose(target(), plain, ctx, 415)
    both = draft(tmp_path, tensors={"token_embd.weight": table, "output.weight": rolled})
    assert propose(target(), both, ctx, 415) == [(i + 1) % 1024 for i in tokens]
    tied = draft(tmp_path, tensors={"token_embd.weight": rolled})
    assert tied.output_weight is not None
    np.testing.assert_array_equal(tied.output_weight, rolled.astype(np.float32))
    np.testing.assert_array_equal(draft_block(target(), tied, 415)[0], table[414].astype(np.float32))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_any_block_type_runs_as_its_decoded_weights(kind: str, tmp_path: Path) -> None:
    file = draft_file(tmp_path, matrix=kind)
    theirs = first_block(changed_reference(tensors=decoded(file, draft_names())))
    np.testing.assert_allclose(first_block(load_draft(file)), theirs, rtol=0, atol=1e-4)


def test_the_last_tap_may_be_what_leaves_the_last_layer(tmp_path: Path) -> None:
    states = [np.full((1, 256), i, np.float32) for i in range(5)]
    drafter = draft(tmp_path, keys={"dflash.target_layers": [1, 2, 4]})
    assert drafter.features(states)[0, ::256].tolist() == [1, 2, 4]


def test_the_keys_of_the_target_are_read(tmp_path: Path) -> None:
    assert TARGET_KEYS["qwen3.block_count"] == 4
    loaded = load_target_gguf(target_file(tmp_path))
    assert (loaded.n_layer, loaded.n_embd, loaded.n_vocab) == (4, 256, 1024)
