"""Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: blocks of 32 weights with a scale of their own.

In: blocks (n, 32) float32 and room for (n, bytes) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the reference quantizers; block layouts (ggml-common.h), d and m halves, little-endian:

    Q8_0   d, 32 × int8                            w = d·q
    Q4_0   d, 32 nibbles                           w = d·(q - 8)
    Q4_1   d, m, 32 nibbles                        w = d·q + m
    Q5_0   d, 32 fifth bits, 32 low nibbles        w = d·(q - 16)
    Q5_1   d, m, 32 fifth bits, 32 low nibbles     w = d·q + m

Nibbles: byte j holds weight j below and weight j + 16 above; fifth bit j is weight j's.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_five_bits, get_half, get_nibbles, put_five_bits, put_half, put_nibbles
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.rounding import int8_or_zero, round_half_away

f32, i32, u8 = np.float32, np.int32, np.uint8

N = 32  # weights in a block
ZERO, ONE = f32(0.0), f32(1.0)
MAGNITUDE = i32(0x7FFFFFFF)
TOP_4_BIT, TOP_5_BIT = i32(15), i32(31)
Q8_LEVELS = f32(127.0)
Q4_0_LEVELS, Q5_0_LEVELS = f32(-8.0), f32(-16.0)
Q4_1_LEVELS, Q5_1_LEVELS = f32(15.0), f32(31.0)
Q4_0_ROUND, Q5_0_ROUND, FROM_LOW_ROUND = f32(8.5), f32(16.5), f32(0.5)  # shift to unsigned, and round by cutting


@kernel
def encode_q8_0(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 34) uint8."""
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        d = _largest_magnitude(x) / Q8_LEVELS
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        for j in range(N):
            y[2 + j] = u8(int8_or_zero(round_half_away(x[j] * inverse)))


@kernel
def decode_q8_0(raw: Array, out: Array) -> None:
    """(n, 34) uint8 → (n, 32) float32."""
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d = get_half(y, 0)
        for j in range(N):
            x[j] = d * f32(np.int8(y[2 + j]))


@kernel
def encode_q4_0(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 18) uint8."""
    levels = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        d = _first_largest(x) / Q4_0_LEVELS
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        for j in range(N):
            levels[j] = min(TOP_4_BIT, int8_or_zero(x[j] * inverse + Q4_0_ROUND))
        put_nibbles(y, 2, levels)


@kernel
def decode_q4_0(raw: Array, out: Array) -> None:
    """(n, 18) uint8 → (n, 32) float32."""
    levels = np.empty(N, i32)
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d = get_half(y, 0)
        get_nibbles(y, 2, levels)
        for j in range(N):
            x[j] = d * f32(levels[j] - 8)


@kernel
def encode_q4_1(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 20) uint8."""
    levels = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        low, high = _range(x)
        d = (high - low) / Q4_1_LEVELS
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        put_half(y, 2, low)
        for j in range(N):
            levels[j] = min(TOP_4_BIT, int8_or_zero((x[j] - low) * inverse + FROM_LOW_ROUND))
        put_nibbles(y, 4, levels)


@kernel
def decode_q4_1(raw: Array, out: Array) -> None:
    """(n, 20) uint8 → (n, 32) float32."""
    levels = np.empty(N, i32)
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d, m = get_half(y, 0), get_half(y, 2)
        get_nibbles(y, 4, levels)
        for j in range(N):
            x[j] = d * f32(levels[j]) + m


@kernel
def encode_q5_0(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 22) uint8."""
    levels = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        d = _first_largest(x) / Q5_0_LEVELS
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        for j in range(N):
            levels[j] = min(TOP_5_BIT, int8_or_zero(x[j] * inverse + Q5_0_ROUND))
        put_five_bits(y, 2, levels)


@kernel
def decode_q5_0(raw: Array, out: Array) -> None:
    """(n, 22) uint8 → (n, 32) float32."""
    levels = np.empty(N, i32)
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d = get_half(y, 0)
        get_five_bits(y, 2, levels)
        for j in range(N):
            x[j] = d * f32(levels[j] - 16)


@kernel
def encode_q5_1(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 24) uint8."""
    levels = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        low, high = _range(x)
        d = (high - low) / Q5_1_LEVELS
        inverse = ONE / d if d != ZERO else ZERO
        put_half(y, 0, d)
        put_half(y, 2, low)
        for j in range(N):
            levels[j] = int8_or_zero((x[j] - low) * inverse + FROM_LOW_ROUND)
        put_five_bits(y, 4, levels)


@kernel
def decode_q5_1(raw: Array, out: Array) -> None:
    """(n, 24) uint8 → (n, 32) float32."""
    levels = np.empty(N, i32)
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d, m = get_half(y, 0), get_half(y, 2)
        get_five_bits(y, 4, levels)
        for j in range(N):
            x[j] = d * f32(levels[j]) + m


@inlined
def _largest_magnitude(x: Array) -> Scalar:
    """max |x|. Taken over the bits: magnitudes sort like integers, and an integer maximum vectorises."""
    bits, largest = x.view(i32), i32(0)
    for j in range(N):
        largest = max(largest, i32(bits[j] & MAGNITUDE))
    return i32(largest).view(f32)


@inlined
def _first_largest(x: Array) -> Scalar:
    """The weight of largest magnitude, with its sign; the first of several."""
    largest, found = ZERO, ZERO
    for j in range(N):
        if abs(x[j]) > largest:
            largest, found = abs(x[j]), x[j]
    return found


@inlined
def _range(x: Array) -> tuple[Scalar, Scalar]:
    low, high = x[0], x[0]
    for j in range(1, N):
        low = x[j] if x[j] < low else low
        high = x[j] if x[j] > high else high
    return low, high
