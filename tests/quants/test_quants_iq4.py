"""IQ4_NL and IQ4_XS: by hand, against a slow reference, and the nearest value of the table for every kind of float.

Golden bytes and properties: `test_quants`, as for all types.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inlined import over
from odd_blocks import ODD
from slow_iq4 import SLOW_IQ4, VALUES, iq4_numbers, slow_value_level

from dflash_convert.quants import dequantize, quantize
from dflash_convert.quants.value_search import nearest_level, nearest_value


def test_an_iq4_nl_block_by_hand() -> None:
    x = np.resize(np.array(VALUES, np.float32), (1, 32))  # d = 1, as the largest lies on -127
    raw = quantize(x, "IQ4_NL")[0]
    assert raw.tolist() == [0x00, 0x3C] + [q | q << 4 for q in range(16)]
    assert np.array_equal(dequantize(raw[None], "IQ4_NL"), x)


def test_an_iq4_xs_block_by_hand() -> None:
    """The largest scale, 32, is -32 of d = -1; scale k of the others becomes -k."""
    scales = np.array([32, 1, 2, 3, 4, 15, 16, 31], np.float32)
    x = (scales[:, None] * np.resize(np.array(VALUES, np.float32), 32)).reshape(1, 256)
    raw = quantize(x, "IQ4_XS")[0]
    stored = [0, 31, 30, 29, 28, 17, 16, 1]
    assert raw[:2].tolist() == [0x00, 0xBC]
    assert raw[2:4].tolist() == [0b01_01_01_00, 0b00_01_01_01]
    assert raw[4:8].tolist() == [s & 15 | (t & 15) << 4 for s, t in zip(stored[::2], stored[1::2], strict=True)]
    assert raw[8:].tolist() == [q | q << 4 for q in range(16)] * 8
    assert np.array_equal(dequantize(raw[None], "IQ4_XS"), x)


def test_zeros_take_the_value_nearest_to_zero() -> None:
    assert quantize(np.zeros((1, 32), np.float32), "IQ4_NL")[0].tolist() == [0, 0] + [0x88] * 16
    assert quantize(np.zeros((1, 256), np.float32), "IQ4_XS")[0].tolist() == (
        [0x00, 0x80, 0xAA, 0xAA, 0, 0, 0, 0] + [0x88] * 128  # scales of 0: 32, counted from the lowest
    )


def test_the_nearest_value_is_ggmls_around_every_boundary() -> None:
    edges = np.array(sorted([*VALUES, *((a + b) / 2 for a, b in pairwise(VALUES))]), np.float32)
    steps = [np.nextafter(edges, np.float32(end)) for end in (-np.inf, np.inf)]
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38], np.float32)
    x = np.concatenate([edges, *steps, odd])
    with np.errstate(all="ignore"):
        wanted = [slow_value_level(v) for v in x]
    assert over(nearest_level, x, np.int32).tolist() == wanted
    assert over(nearest_value, x, np.float32).tolist() == [VALUES[q] for q in wanted]


def test_the_nearest_value_is_ggmls_for_any_bits() -> None:
    r = np.random.default_rng(2)
    bits = r.integers(0, 2**32, 3000, np.uint32).view(np.float32)
    x = np.concatenate([bits, r.uniform(-140, 130, 3000).astype(np.float32)])
    with np.errstate(all="ignore"):
        assert over(nearest_level, x, np.int32).tolist() == [slow_value_level(v) for v in x]


@pytest.mark.parametrize("name", SLOW_IQ4)
@pytest.mark.parametrize("kind", ODD)
def test_odd_blocks_agree_with_the_slow_reference(name: str, kind: str) -> None:
    importance = np.random.default_rng(13).exponential(1.0, 256).astype(np.float32)
    importance[32:64], importance[70:75] = 0.0, 0.0
    x = ODD[kind].astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(iq4_numbers(quantize(x[None], name)[0], name), SLOW_IQ4[name](x))
        raw = quantize(x[None], name, imatrix=importance)[0]
        assert np.array_equal(iq4_numbers(raw, name), SLOW_IQ4[name](x, importance))


@pytest.mark.parametrize("name", SLOW_IQ4)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-17, 1e-3, 1.0, 1e18]), tails=st.booleans())
def test_random_blocks_agree_with_the_slow_reference(name: str, seed: int, scale: float, tails: bool) -> None:
    """Squares of the largest overflow: infinite sums must go the same way too."""
    r = np.random.default_rng(seed)
    x = ((r.standard_t(2, 256) if tails else r.standard_normal(256)) * scale).astype(np.float32)
    importance = r.exponential(1.0, 256).astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(iq4_numbers(quantize(x[None], name)[0], name), SLOW_IQ4[name](x), equal_nan=True)
        raw = quantize(x[None], name, imatrix=importance)[0]
        assert np.array_equal(iq4_numbers(raw, name), SLOW_IQ4[name](x, importance), equal_nan=True)
