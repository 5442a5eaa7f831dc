"""The runtime's arithmetic against numbers worked out on paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dflash_convert.runtime.cache import KVCache
from dflash_convert.runtime.ops import (
    Array,
    Rope,
    attention,
    gated_mlp,
    gelu_erf,
    gelu_tanh,
    heads,
    linear,
    rms_norm,
    rope_frequencies,
    rope_table,
    rotate_half,
    rotate_pairs,
    silu,
    softmax,
    yarn_frequencies,
)


def f32(values: Any) -> Array:
    return np.array(values, np.float32)


def quarter_turns(*turns: int) -> tuple[Array, Array]:
    """A rope table of one token whose pairs turn by the given numbers of right angles, exactly."""
    cos, sin = [(1, 0, -1, 0)[t] for t in turns], [(0, 1, 0, -1)[t] for t in turns]
    return f32([cos]), f32([sin])


def test_linear_multiplies_by_rows_of_the_weight() -> None:
    assert linear(f32([[1, 2]]), f32([[1, 0], [0, 10], [1, 1]])).tolist() == [[1, 20, 3]]


def test_heads_are_cut_from_neighbouring_columns() -> None:
    assert heads(f32([[1, 2, 3, 4]]), 2).tolist() == [[[1, 2], [3, 4]]]


def test_rms_norm_by_hand() -> None:
    # mean of 1, 49 and an eps of 11 under the root: sqrt(25 + 11) = 6
    assert rms_norm(f32([[1, 7]]), f32([6, 12]), 11.0).tolist() == [[1, 14]]


def test_rope_frequencies_by_hand() -> None:
    assert rope_frequencies(4, 10000.0).tolist() == [1.0, pytest.approx(0.01, rel=1e-12)]


def test_rope_table_is_angle_times_magnitude() -> None:
    cos, sin = rope_table(Rope(np.array([1.0, 0.5]), magnitude=2.0), np.array([0, 3]))
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(cos, f32([[2, 2], [2 * math.cos(3), 2 * math.cos(1.5)]]), rtol=1e-7)
    np.testing.assert_allclose(sin, f32([[0, 0], [2 * math.sin(3), 2 * math.sin(1.5)]]), rtol=1e-7)


def test_rotate_half_turns_dimension_i_with_i_plus_half() -> None:
    # pairs (1, 3) and (2, 4): the first by 90 degrees, the second by 180; 5 is beyond n_rot
    assert rotate_half(f32([[[1, 2, 3, 4, 5]]]), quarter_turns(1, 2)).tolist() == [[[-3, -2, 1, -4, 5]]]


def test_rotate_pairs_turns_neighbours() -> None:
    # the pairs are 1, 2 and 3, 4
    assert rotate_pairs(f32([[[1, 2, 3, 4, 5]]]), quarter_turns(1, 2)).tolist() == [[[-2, 1, -3, -4, 5]]]


def test_the_two_rope_layouts_are_a_permutation_apart() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 2, 8)).astype(np.float32)
    table = rope_table(Rope(rope_frequencies(8, 100.0)), np.arange(3))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    np.testing.assert_array_equal(rotate_half(x[..., order], table), rotate_pairs(x, table)[..., order])


def test_rope_depends_on_the_distance_only() -> None:
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 1, 1, 8)).astype(np.float32)
    rope = Rope(rope_frequencies(8, 100.0))

    def score(q_pos: int, k_pos: int) -> float:
        at_q, at_k = (rope_table(rope, np.array([p])) for p in (q_pos, k_pos))
        return float(np.sum(rotate_half(q, at_q) * rotate_half(k, at_k)))

    assert score(7, 2) == pytest.approx(score(105, 100), abs=1e-5)
    assert score(7, 2) != pytest.approx(score(7, 3), abs=1e-2)


def test_yarn_frequencies_by_hand() -> None:
    # n_rot 8, base e^4: dimension i turns base^(-i/4) = e^-i radians a position. With n_ctx_orig 2πe³ the dimension
    # that turns β times is 8 · ln(e³ / β) / (2 · 4) = 3 - ln β: 0.5 for β = e^2.5, 2.5 for β = e^0.5; outward: 0 and 3.
    # So dimensions 0..3 keep 1, 2/3, 1/3, 0 of their frequency and take the rest divided by 10.
    freqs = rope_frequencies(8, math.exp(4))
    got = yarn_frequencies(freqs, math.exp(4), 10.0, 2 * math.pi * math.exp(3), math.exp(2.5), math.exp(0.5))
    expected = [1.0, math.exp(-1) * (2 / 3 + 1 / 30), math.exp(-2) * (1 / 3 + 2 / 30), math.exp(-3) / 10]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_yarn_without_truncation_keeps_the_fractions() -> None:
    # as above, the ramp now from 0.5 to 2.5: mixes 0, 1/4, 3/4, 1
    freqs = rope_frequencies(8, math.exp(4))
    n_ctx, fast, slow = 2 * math.pi * math.exp(3), math.exp(2.5), math.exp(0.5)
    got = yarn_frequencies(freqs, math.exp(4), 10.0, n_ctx, fast, slow, truncate=False)
    mix = np.array([0, 0.25, 0.75, 1])
    np.testing.assert_allclose(got, freqs * (1 - mix + mix / 10), rtol=1e-12)


def test_yarn_stays_inside_the_rotary_dimensions() -> None:
    # a context so short that no dimension turns even once: low and high are both 0, everything is interpolated but the
    # first dimension, which sits on the edge
    freqs = rope_frequencies(8, 10000.0)
    np.testing.assert_allclose(yarn_frequencies(freqs, 10000.0, 4.0, 6, 32.0, 1.0), freqs / [1, 4, 4, 4], rtol=1e-12)


def test_yarn_counts_no_dimension_beyond_the_last() -> None:
    # as above with n_ctx_orig 2πe^20: the ramp runs from 20 - 18 = 2 to 20 - 0, cut to n_rot - 1 = 7
    freqs = rope_frequencies(8, math.exp(4))
    got = yarn_frequencies(freqs, math.exp(4), 10.0, 2 * math.pi * math.exp(20), math.exp(18), 1.0)
    np.testing.assert_allclose(got, freqs * [1, 1, 1, 0.8 + 0.2 / 10], rtol=1e-12)


def test_softmax_by_hand() -> None:
    np.testing.assert_allclose(softmax(f32([[0, math.log(3)]])), [[0.25, 0.75]], rtol=1e-6)


def test_a_sink_takes_its_share_and_gives_nothing() -> None:
    # e^0 + e^ln3 + e^ln4 = 8
    np.testing.assert_allclose(softmax(f32([[0, math.log(3)]]), f32([[math.log(4)]])), [[1 / 8, 3 / 8]], rtol=1e-6)


def test_a_sink_far_above_every_score_does_not_overflow() -> None:
    np.testing.assert_array_equal(softmax(f32([[0, 1]]), f32([[200]])), [[0, 0]])


def test_attention_by_hand() -> None:
    # four heads over two kv heads: heads 0 and 1 read the first, 2 and 3 the second. Queries are 0, so what is visible
    # is averaged.
    q = np.zeros((2, 4, 1), np.float32)
    k = np.ones((3, 2, 1), np.float32)
    v = f32([[[1], [10]], [[3], [30]], [[8], [80]]])
    visible = np.array([[True, True, False], [True, True, True]])
    np.testing.assert_allclose(attention(q, k, v, visible, 1.0), [[2, 2, 20, 20], [4, 4, 40, 40]], rtol=1e-6)


def test_attention_scales_scores_and_gives_each_head_its_sink() -> None:
    # scores 0 and 2·ln(3)·0.5; sinks e^0 = 1 for head 0 and e^ln(4) = 4 for head 1: sums 5 and 8
    q, k = f32([[[1], [1]]]), f32([[[0]], [[2 * math.log(3)]]])
    v, sinks = f32([[[0]], [[40]]]), f32([0, math.log(4)])
    np.testing.assert_allclose(attention(q, k, v, np.array([[True, True]]), 0.5, sinks), [[24, 15]], rtol=1e-5)


def test_gated_mlp_by_hand() -> None:
    # gate 3, up 10, activation doubles: 2·3·10 = 60, down halves it
    got = gated_mlp(f32([[1]]), f32([[3]]), f32([[10]]), f32([[0.5]]), lambda x: 2 * x)
    assert got.tolist() == [[30]]


def test_activations_by_their_formulas() -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    np.testing.assert_allclose(silu(x), [v / (1 + math.exp(-v)) for v in x.tolist()], atol=1e-6)
    np.testing.assert_allclose(gelu_erf(x), [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()], atol=1e-6)
    np.testing.assert_allclose(gelu_tanh(x), gelu_erf(x), atol=1e-3)
    # 0.5 · 1 · (1 + tanh(sqrt(2/π) · 1.044715))
    np.testing.assert_allclose(gelu_tanh(f32([1.0])), [0.841192], atol=1e-6)


def test_silu_of_a_large_negative_number_is_zero() -> None:
    assert silu(f32([-1000.0])).tolist() == [0]


def test_cache_grows_and_is_cut_at_its_end() -> None:
    cache = KVCache(n_layer=1, n_head_kv=1, n_embd_head=1)
    assert len(cache) == 0
    cache.append(0, f32([[[1]], [[2]]]), f32([[[-1]], [[-2]]]))
    k, v = cache.append(0, f32([[[3]]]), f32([[[-3]]]))
    assert (k.ravel().tolist(), v.ravel().tolist()) == ([1, 2, 3], [-1, -2, -3])
    cache.truncate(1)
    assert len(cache) == 1
    k, v = cache.joined(0, f32([[[9]]]), f32([[[-9]]]))
    assert (k.ravel().tolist(), v.ravel().tolist(), len(cache)) == ([1, 9], [-1, -9], 1)
