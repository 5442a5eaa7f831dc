"""The roundings of the block formats: by hand, over every half, and against C's definition of them."""

from __future__ import annotations

import numpy as np
from inlined import over
from slow_quants import f32, slow_nearest_int

from dflash_convert.quants.rounding import (
    bfloat_bits,
    half_bits,
    half_value,
    int8_or_zero,
    nearest_int,
    round_half_away,
)

TIES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, -0.49999997, 3.0], np.float32)


def test_nearest_int_rounds_halves_to_even() -> None:
    assert over(nearest_int, TIES, np.int32).tolist() == [0, 2, 2, 0, -2, -2, 0, 0, 3]


def test_nearest_int_is_the_low_bits_of_a_large_float() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 5e6, -7e6, 1e30, -4194304.0], np.float32)
    assert over(nearest_int, x, np.int32).tolist()[:3] == [-(2**22), -(2**22), 0]
    assert over(nearest_int, x, np.int32).tolist() == [slow_nearest_int(v) for v in x]


def test_round_half_away_is_cs_roundf() -> None:
    assert over(round_half_away, TIES, np.float32).tolist() == [1, 2, 3, -1, -2, -3, 0, 0, 3]


def test_what_fits_no_int8_is_zero() -> None:
    x = np.array([127.0, -127.0, 31.9, -0.9, 128.0, np.inf, -np.inf, np.nan], np.float32)
    assert over(int8_or_zero, x, np.int32).tolist() == [127, -127, 31, 0, 0, 0, 0, 0]


def test_every_half_comes_back() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32)
    values = over(half_value, bits, np.float32)
    assert np.array_equal(values, bits.astype(np.uint16).view(np.float16).astype(np.float32), equal_nan=True)
    number = ~np.isnan(values)
    assert np.array_equal(over(half_bits, values, np.uint32)[number], bits[number])
    assert set(over(half_bits, values, np.uint32)[~number] & 0x7FFF) == {0x7E00}


def test_halves_round_as_numpys_do() -> None:
    """Around every half: the middle to the next one, and the float32 on either side of it."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    x = np.concatenate([middle, np.nextafter(middle, f32(0)), np.nextafter(middle, f32(np.inf))])
    x = np.concatenate([x, -x, np.array([65519.996, 65520.0, 1e30, 1e-30, 2.0**-25], np.float32)])
    with np.errstate(over="ignore", under="ignore"):
        assert np.array_equal(over(half_bits, x, np.uint32), x.astype(np.float16).view(np.uint16))


def test_bfloats_round_to_even_and_nan_stays_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0xFF800001, 0x7F7FFFFF, 0x80000001], np.uint32)
    assert over(bfloat_bits, bits.view(np.float32), np.uint32).tolist() == [
        0x3F80, 0x3F82, 0x3F81, 0x7FC0, 0xFFC0, 0x7F80, 0x8000,
    ]  # fmt: skip
