"""MXFP4: blocks of 32 four-bit floats (a sign, 0, ½, 1, 1½, 2, 3, 4 or 6) over a power of two.

In: blocks (n, 32) float32 and room for (n, 17) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the quantizer; layout (ggml-common.h):

    e (a byte), 16 bytes of nibbles                     w = d·VALUES[q], d = 2^(e - 128), VALUES the floats doubled

The power is that of the largest weight, so that it comes to 4 … 8 (6 at most, as stored): nothing is searched, and
importance weights change nothing.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_nibbles, put_nibbles
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel

f32, f64, i32, u8, u32 = np.float32, np.float64, np.int32, np.uint8, np.uint32
ZERO = f32(0.0)
MAGNITUDE, INF = u32(0x7FFFFFFF), u32(0x7F800000)
MANTISSA_BITS, SUBNORMAL = u32(23), u32(0x00200000)  # 2^-128

VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], f32)
_, V1, V2, V3, V4, V5, V6, V7 = (f32(v) for v in VALUES[:8])
NEGATIVE = i32(8)
POWER_OFFSET = 127 - 2  # e's bias, and the 4 that the largest weight comes to

N = 32  # weights in a block


@kernel
def encode_mxfp4(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 17) uint8."""
    q = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        y[0] = _power(_largest(x))
        d = _scale(y[0])
        for j in range(N):
            q[j] = _level(x[j], d)
        put_nibbles(y, 1, q)


@inlined
def _largest(x: Array) -> Scalar:
    """The largest magnitude that is no NaN, found as integers: their maximum is vectorised, that of floats is not."""
    largest = u32(0)
    for j in range(N):
        size = u32(f32(x[j]).view(u32) & MAGNITUDE)
        size = u32(0) if size > INF else size
        largest = max(largest, size)
    return u32(largest).view(f32)


@inlined
def _power(largest: Scalar) -> Scalar:
    """The byte e.

    The logarithm is that of float32: just below a power of two it is rounded up to it. What fits no byte wraps, as a C
    cast on x86: weights below 2^-125 get a large e, and with it all levels 0; Inf gives 0.
    """
    power = np.floor(f32(np.log2(f64(largest))))
    usable = (largest > ZERO) & (f32(largest).view(u32) < INF)
    return u8(i32(power if usable else f32(-POWER_OFFSET)) + POWER_OFFSET & 255)


@inlined
def _scale(e: Scalar) -> Scalar:
    """2^(e - 128); the two lowest are subnormal."""
    bits = u32(SUBNORMAL << u32(e)) if e < 2 else u32(u32(e - 1) << MANTISSA_BITS)
    return u32(bits).view(f32)


@inlined
def _nearer(level: Scalar, best: Scalar, size: Scalar, value: Scalar, other: int) -> Scalar:
    """(level, its error) or, if its error is less, the other."""
    error = abs(value - size)
    return i32(other) if error < best else level, error if error < best else best


@inlined
def _level(x: Scalar, d: Scalar) -> Scalar:
    """The nearest value's level; of two as near the one nearer to zero, and so 0, not -0. NaN and Inf give 0."""
    size = abs(x)
    level, best = _nearer(i32(0), size, size, V1 * d, 1)
    level, best = _nearer(level, best, size, V2 * d, 2)
    level, best = _nearer(level, best, size, V3 * d, 3)
    level, best = _nearer(level, best, size, V4 * d, 4)
    level, best = _nearer(level, best, size, V5 * d, 5)
    level, best = _nearer(level, best, size, V6 * d, 6)
    level, best = _nearer(level, best, size, V7 * d, 7)
    return i32(level + NEGATIVE) if (x < ZERO) & (level > 0) else level


@kernel
def decode_mxfp4(raw: Array, out: Array) -> None:
    """(n, 17) uint8 → (n, 32) float32."""
    q = np.empty(N, i32)
    for b in range(raw.shape[0]):
        d = _scale(raw[b, 0])
        get_nibbles(raw[b], 1, q)
        for j in range(N):
            out[b, j] = d * VALUES[q[j]]
