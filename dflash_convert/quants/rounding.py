"""The roundings of the block formats, one function each, to be inlined into kernels.

In: one float32 (or the bits of a 16-bit float). Out: an integer, or such bits. Promised: what ggml's C gives, for every
input, with no branch, so that a loop over these vectorises. numba widens the result of integer arithmetic to 64 bits;
each `i32(…)` and `u32(…)` keeps a value narrow, so that eight fit where four would.

A compiled kernel is cached under the time stamp of its own file: after a change here, delete `__pycache__`.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.kernel import Scalar, inlined

f32, i32, u32 = np.float32, np.int32, np.uint32

ZERO, HALF, ONE = f32(0.0), f32(0.5), f32(1.0)
MAGIC = f32(12582912.0)  # 1.5 · 2^23: a float32 this large has no fraction bits left
MAGIC_MASK, MAGIC_BIAS = i32(0x007FFFFF), i32(0x00400000)
INT8_MAX = f32(127.0)

# float32 bits
F32_MAGNITUDE, F32_INF = u32(0x7FFFFFFF), u32(0x7F800000)
F32_HALF = u32(0x3F000000)  # 0.5
HIGH = u32(16)  # a float32's upper half is a bfloat16
UNIT = u32(1)
# half bits: 13 mantissa bits fewer, exponent bias 15 for 127
CUT = u32(13)
REBIAS = u32((127 - 15) << 23)
CUT_TIE = u32(0x0FFF)
F16_SIGN, F16_MAGNITUDE, F16_INF, F16_NAN = u32(0x8000), u32(0x7FFF), u32(0x7C00), u32(0x7E00)
F16_NORMAL = u32(0x0400)  # smallest normal half, 2^-14
F16_STEP = f32(2.0**-24)  # between subnormal halves
F32_F16_NORMAL = u32(0x38800000)  # 2^-14 as a float32
F32_F16_OVERFLOW = u32(0x477FF000)  # 65520: half-way between the largest half and 2^16
# bfloat16 bits
BF16_TIE, BF16_QUIET = u32(0x7FFF), u32(0x0040)


@inlined
def nearest_int(v: Scalar) -> Scalar:
    """float32 → int32, halves to even: the K-quants' rounding.

    The low mantissa bits of v + 1.5·2^23 are the integer. ±Inf gives -2^22 and NaN gives 0, as the same bits do in C;
    other values beyond ±2^22 come out as meaningless as there, and equal.
    """
    return i32(i32(f32(v + MAGIC).view(i32) & MAGIC_MASK) - MAGIC_BIAS)


@inlined
def round_half_away(v: Scalar) -> Scalar:
    """float32 → whole float32, halves away from zero: C's roundf, Q8_0's rounding."""
    whole = np.trunc(v)
    step = ONE if v > ZERO else -ONE
    return whole + step if abs(v - whole) >= HALF else whole


@inlined
def int8_or_zero(v: Scalar) -> Scalar:
    """float32 → int32, cut towards zero; what does not fit an int8 (Inf and NaN too) gives 0, as a C cast on x86."""
    return i32(v if abs(v) <= INT8_MAX else ZERO)


@inlined
def half_bits(v: Scalar) -> Scalar:
    """float32 → the bits of the nearest half, ties to even, as uint32; NaN becomes a quiet NaN."""
    bits = f32(v).view(u32)
    size = u32(bits & F32_MAGNITUDE)
    tie = u32(CUT_TIE + u32(u32(size >> CUT) & UNIT))
    normal = u32(u32(u32(size - REBIAS) + tie) >> CUT)
    # the ulp of 0.5 is a subnormal half's step: this sum rounds, and its low bits are the answer
    subnormal = u32(f32(abs(v) + HALF).view(u32) - F32_HALF)
    rounded = subnormal if size < F32_F16_NORMAL else normal
    rounded = F16_INF if size >= F32_F16_OVERFLOW else rounded
    rounded = F16_NAN if size > F32_INF else rounded
    return u32(u32(u32(bits >> HIGH) & F16_SIGN) | rounded)


@inlined
def half_value(h: Scalar) -> Scalar:
    """The bits of a half, in a uint32 → float32, exact."""
    size = u32(h & F16_MAGNITUDE)
    mantissa = u32(size << CUT)
    value = u32(mantissa + REBIAS).view(f32)
    value = f32(size) * F16_STEP if size < F16_NORMAL else value
    value = u32(mantissa | F32_INF).view(f32) if size >= F16_INF else value
    return -value if u32(h & F16_SIGN) else value


@inlined
def bfloat_bits(v: Scalar) -> Scalar:
    """float32 → the bits of the nearest bfloat16, ties to even, as uint32; NaN stays NaN, made quiet."""
    bits = f32(v).view(u32)
    upper = u32(bits >> HIGH)
    rounded = u32(u32(bits + u32(BF16_TIE + u32(upper & UNIT))) >> HIGH)
    return u32(upper | BF16_QUIET) if u32(bits & F32_MAGNITUDE) > F32_INF else rounded
