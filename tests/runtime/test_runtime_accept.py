"""The speculative loop, its counts, and that it never changes the text; targets, caches and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from runtime_pair import (
    SafetensorsWeights,
    decoded,
    golden,
    reference,
    target,
    target_config,
    target_file,
    target_gguf_tensors,
    target_names,
    target_tensors,
)

from dflash_convert.errors import GGUFError, UsageError
from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import open_gguf
from dflash_convert.gguf_io.writer import write
from dflash_convert.runtime.accept import Run, draft_block, greedy, speculate
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.target import load_target_checkpoint, load_target_gguf
from dflash_convert.runtime.weights import GGUFWeights, Resident


@pytest.mark.parametrize("prompt", range(7))
def test_plain_decoding_writes_the_golden_text(prompt: int) -> None:
    g = golden()[prompt]
    # the drafted loops are compared with these tokens in test_runtime_reference and test_runtime_draft
    assert greedy(target(), g["ids"], 96) == g["generated"]


def test_the_loop_ends_with_the_step_that_reaches_the_count() -> None:
    g = golden()[0]
    run = speculate(target(), reference(), g["ids"], 96)
    assert (list(run.accepted_per_step), run.drafted, len(run.tokens)) == (g["accepted_per_step"], g["drafted"], 96)


def test_a_step_counts_the_drafted_tokens_kept_and_gains_one_more() -> None:
    run = speculate(target(), reference(), golden()[0]["ids"], 10)
    # the first token, then steps that keep 2, 1, 2 and 3 drafted tokens: 1 + 3 + 2 + 3 + 4
    assert run.accepted_per_step == (2, 1, 2, 3)
    assert (len(run.tokens), run.accepted, run.drafted, run.mean_length) == (13, 8, 28, 3.0)


def test_one_token_needs_no_step() -> None:
    run = speculate(target(), reference(), golden()[0]["ids"], 1)
    assert run == Run((415,), (), 0)
    assert run.mean_length == 1.0
    assert greedy(target(), golden()[0]["ids"], 1) == [415]


def test_fewer_drafted_tokens_make_a_shorter_block() -> None:
    assert draft_block(target(), reference(), 415, 3).shape == (4, 256)
    run = speculate(target(), reference(), golden()[0]["ids"], 40, n_max=3)
    assert run.drafted == 3 * len(run.accepted_per_step)
    assert max(run.accepted_per_step) == 3
    assert list(run.tokens[:40]) == golden()[0]["generated"][:40]


def test_no_more_than_a_block_is_drafted() -> None:
    assert draft_block(target(), reference(), 415, 100).shape == (8, 256)


def test_a_block_is_the_last_token_and_masks() -> None:
    block, table = draft_block(target(), reference(), 415), target_tensors()["model.embed_tokens.weight"]
    np.testing.assert_array_equal(block, table[[415] + [1023] * 7].astype(np.float32))


def test_what_cannot_be_decoded_is_refused() -> None:
    with pytest.raises(UsageError, match="the prompt is empty") as caught:
        speculate(target(), reference(), [], 8)
    assert caught.value.hint == "give a prompt of at least one token"
    with pytest.raises(UsageError, match="the prompt is empty"):
        greedy(target(), [], 8)
    with pytest.raises(UsageError, match="n_max is 0: at least one token a step"):
        speculate(target(), reference(), [1, 2], 8, n_max=0)
    with pytest.raises(UsageError, match="token id 1024 is outside the target's vocabulary of 1024"):
        greedy(target(), [5, 1024], 8)


# --- targets


def test_a_cached_position_is_computed_once_and_gives_the_same() -> None:
    ids = golden()[1]["ids"]
    whole = target().forward(ids, target().new_cache())
    cache = target().new_cache()
    parts = [target().forward(ids[:9], cache), target().forward(ids[9:], cache)]
    assert len(cache) == len(ids)
    np.testing.assert_allclose(np.concatenate([p.logits for p in parts]), whole.logits, atol=1e-4)
    for i, states in enumerate(whole.layer_inputs):
        np.testing.assert_allclose(np.concatenate([p.layer_inputs[i] for p in parts]), states, atol=1e-4)


def test_truncating_the_cache_forgets_what_followed() -> None:
    ids = golden()[1]["ids"]
    cache = target().new_cache()
    target().forward([*ids, 7, 8, 9], cache)
    cache.truncate(len(ids))
    again, fresh = target().forward([415], cache), target().forward([*ids, 415], target().new_cache())
    np.testing.assert_allclose(again.logits[-1], fresh.logits[-1], atol=1e-4)


def test_layer_inputs_begin_with_the_embeddings_and_end_before_the_final_norm() -> None:
    out = target().forward([1, 2, 3], target().new_cache())
    assert len(out.layer_inputs) == target().n_layer + 1 == 5
    np.testing.assert_array_equal(out.layer_inputs[0], target().embed([1, 2, 3]))
    last = out.layer_inputs[-1]
    norm = target_tensors()["model.norm.weight"].astype(np.float32)
    normed = last / np.sqrt(np.mean(last * last, axis=-1, keepdims=True) + 1e-6) * norm
    np.testing.assert_allclose(target().head(normed), out.logits, atol=1e-4)


def test_a_target_with_its_own_head_uses_it(tmp_path: Path) -> None:
    table = target_tensors()["model.embed_tokens.weight"]
    head = np.roll(table, 1, axis=0)
    plain = target().forward([1, 2], target().new_cache()).logits
    untied = {**target_tensors(), "lm_head.weight": head}
    for other in (
        load_target_checkpoint({**target_config(), "tie_word_embeddings": False}, SafetensorsWeights(untied)),
        load_target_gguf(target_file(tmp_path, tensors={"output.weight": head})),
    ):
        got = other.forward([1, 2], other.new_cache()).logits
        np.testing.assert_allclose(got, np.roll(plain, 1, axis=1), atol=1e-4)


def test_a_tied_target_ignores_a_copy_of_the_head() -> None:
    tensors = {**target_tensors(), "lm_head.weight": np.zeros((1024, 256), np.float32)}
    tied = load_target_checkpoint(target_config(), SafetensorsWeights(tensors))
    assert np.abs(tied.forward([1, 2], tied.new_cache()).logits).max() > 1


def test_a_quantized_target_runs_and_its_text_is_its_own(tmp_path: Path) -> None:
    file = target_file(tmp_path, matrix="Q8_0")
    quantized = load_target_gguf(file)
    rebuilt = load_target_checkpoint(target_config(), SafetensorsWeights(decoded(file, target_names())))
    ids = golden()[0]["ids"]
    logits, expected, exact = (t.forward(ids, t.new_cache()).logits for t in (quantized, rebuilt, target()))
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
    assert np.abs(logits - exact).max() > 1e-3
    plain = greedy(quantized, ids, 32)
    assert list(speculate(quantized, reference(), ids, 32).tokens[:32]) == plain


# --- weights


class Counted:
    """Two tensors of 40 bytes that count how often each is decoded."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def names(self) -> tuple[str, ...]:
        return ("a", "b")

    def shape(self, name: str) -> tuple[int, ...]:
        return (10,)

    def __call__(self, name: str) -> Array:
        self.calls.append(name)
        return np.zeros(10, np.float32)

    def __contains__(self, name: object) -> bool:
        return name in ("a", "b")


def test_tensors_stay_in_memory_up_to_a_limit() -> None:
    source = Counted()
    resident = Resident(source, limit=60)
    for name in "abab":
        resident(name)
    assert source.calls == ["a", "b", "b"]
    assert (resident.names(), resident.shape("a"), "b" in resident, "c" in resident) == (("a", "b"), (10,), True, False)


def test_nothing_is_decoded_before_it_is_used() -> None:
    class Watched(SafetensorsWeights):
        used: list[str] = []  # noqa: RUF012

        def __call__(self, name: str) -> Array:
            self.used.append(name)
            return super().__call__(name)

    loaded = load_target_checkpoint(target_config(), Watched(target_tensors()))
    assert Watched.used == []
    loaded.embed([1])
    assert Watched.used == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16", "Q8_0", "Q4_1"])
def test_gguf_weights_decode_to_float32_in_their_shape(kind: str, tmp_path: Path) -> None:
    file = target_file(tmp_path, matrix=kind)
    weights, names = GGUFWeights(file), target_names()
    assert set(weights.names()) == set(target_gguf_tensors())
    assert weights.shape("blk.0.attn_k.weight") == (128, 256)
    assert "blk.0.attn_k.weight" in weights
    assert "blk.9.attn_k.weight" not in weights
    for name in weights.names():
        assert weights(name).dtype == np.float32
        np.testing.assert_array_equal(weights(name), decoded(file, names)[names[name]])


def test_a_tensor_of_integers_is_no_weight(tmp_path: Path) -> None:
    plan = Plan((), (PlannedTensor("ids", (4,), GGMLQuantizationType.I32, "ids"),))
    weights = GGUFWeights(open_gguf(write(plan, lambda t: [bytes(16)], tmp_path / "ids.gguf")))
    with pytest.raises(GGUFError, match=r"ids\.gguf: ids is of the type I32, which holds no weights"):
        weights("ids")
