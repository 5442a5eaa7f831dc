"""MXFP4: by hand, against ggml's bytes for hard cases, and against a slow reference.

Golden bytes and properties: `test_quants`, as for all types.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_blocks import ODD
from slow_quants import Array, f32

from dflash_convert.quants import dequantize, quantize

VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def slow_mxfp4(x: Array) -> Array:
    """One block → its byte e and 32 levels: the first value with the least error, every error tried."""
    sizes = abs(x)
    largest = max([f32(0), *sizes[~np.isnan(sizes)]])
    usable = 0 < largest < np.inf
    e = int(math.floor(f32(math.log2(largest))) + 125) % 256 if usable else 0
    d = f32(2.0 ** (e - 128))
    errors = np.where(np.isnan(x), f32(0), abs(VALUES[:, None] * d - x))
    return np.array([e, *errors.argmin(axis=0)])


def mxfp4_numbers(raw: Array) -> Array:
    return np.concatenate([raw[:1], raw[1:] & 15, raw[1:] >> 4]).astype(int)


def agrees(x: Array) -> bool:
    with np.errstate(all="ignore"):
        found = quantize(x.reshape(-1, 32), "MXFP4")
        return all(np.array_equal(mxfp4_numbers(raw), slow_mxfp4(b)) for raw, b in zip(found, x, strict=True))


def test_an_mxfp4_block_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0  # the largest is 4 … 8: d = ½, e = 127
    x[0, 16:24] = -x[0, :8]
    raw = quantize(x, "MXFP4")[0]
    assert raw.tolist() == [127, 0x00, 0x91, 0xA2, 0xB3, 0xC4, 0xD5, 0xE6, 0xF7] + [0] * 8
    assert np.array_equal(dequantize(raw[None], "MXFP4"), x)


def test_half_way_goes_to_zero_and_the_largest_is_cut() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :9] = 7.99, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25
    assert dequantize(quantize(x, "MXFP4"), "MXFP4")[0, :9].tolist() == [6.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 0.0]
    assert not np.signbit(dequantize(quantize(x, "MXFP4"), "MXFP4")[0, 8])


def test_the_power_is_ggmls_around_every_power_of_two(data: Any) -> None:
    """Just below one the logarithm is rounded up to it, the further the larger its exponent."""
    with np.load(data / "quants" / "mxfp4.npz") as found:
        x = np.zeros((len(found["near_powers"]), 32), np.float32)
        x[:, 0] = found["near_powers"]
        assert np.array_equal(quantize(x, "MXFP4")[:, 0], found["exponents"])


def test_every_power_is_decoded() -> None:
    raw = np.full((256, 17), 0x11, np.uint8)
    raw[:, 0] = np.arange(256)
    assert np.array_equal(dequantize(raw, "MXFP4")[:, 0], np.float32(2.0 ** (np.arange(256.0) - 128)))


@pytest.mark.parametrize(
    "odd",
    [[np.inf, 1, -1e-37, 3e-38], [np.nan, 5, -5, 3], [np.nan], [-np.inf], [1e-38, -1e-38, 5e-38, 0], [3e38, -2e38]],
    ids=str,
)
def test_what_no_model_should_hold_goes_as_in_ggml(odd: list[float]) -> None:
    """Inf gives e = 0, and then all that is far above has the same error with every value, so the first."""
    assert agrees(np.resize(np.array(odd, np.float32), (1, 32)))


@pytest.mark.parametrize("kind", ODD)
def test_odd_blocks_agree_with_the_slow_reference(kind: str) -> None:
    assert agrees(ODD[kind].astype(np.float32).reshape(8, 32))


@settings(max_examples=50)
@given(seed=st.integers(0, 2**31), scale=st.sampled_from([1e-40, 1e-30, 0.02, 1.0, 1e30]), tails=st.booleans())
def test_random_blocks_agree_with_the_slow_reference(seed: int, scale: float, tails: bool) -> None:
    r = np.random.default_rng(seed)
    assert agrees(((r.standard_t(2, (8, 32)) if tails else r.standard_normal((8, 32))) * scale).astype(np.float32))
