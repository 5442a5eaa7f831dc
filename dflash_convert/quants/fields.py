"""Pieces that several block formats are laid out with, to be inlined into kernels.

In: the bytes of a block, and where in it. Out: the values there, or the bytes filled. Promised: ggml's layouts
(ggml-common.h), little-endian.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined
from dflash_convert.quants.rounding import half_bits, half_value

i32, u8, u32 = np.int32, np.uint8, np.uint32
LOW_BYTE, NIBBLE = u32(0xFF), i32(15)


@inlined
def put_half(y: Array, at: int, value: Scalar) -> Scalar:
    """Store a float32 as a half; gives its value as the half holds it."""
    bits = half_bits(value)
    y[at] = u8(bits & LOW_BYTE)
    y[at + 1] = u8(bits >> u32(8))
    return half_value(bits)


@inlined
def get_half(y: Array, at: int) -> Scalar:
    """The half at a byte offset, as float32."""
    return half_value(u32(y[at]) | u32(u32(y[at + 1]) << u32(8)))


@inlined
def put_nibbles(y: Array, at: int, levels: Array) -> None:
    """The low 4 bits of 32 levels → 16 bytes: byte j holds level j below and level j + 16 above."""
    for j in range(16):
        y[at + j] = u8((levels[j] & NIBBLE) | ((levels[j + 16] & NIBBLE) << 4))


@inlined
def get_nibbles(y: Array, at: int, levels: Array) -> None:
    """16 bytes → 32 levels in 0…15."""
    for j in range(16):
        levels[j] = i32(y[at + j]) & NIBBLE
        levels[j + 16] = i32(y[at + j]) >> 4


@inlined
def put_five_bits(y: Array, at: int, levels: Array) -> None:
    """32 levels in 0…31 → 4 bytes of fifth bits, 16 bytes of nibbles."""
    fifths = u32(0)
    for j in range(32):
        fifths |= u32(u32(levels[j] >> 4) << u32(j))
    for k in range(4):
        y[at + k] = u8(u32(fifths >> u32(8 * k)) & LOW_BYTE)
    put_nibbles(y, at + 4, levels)


@inlined
def get_five_bits(y: Array, at: int, levels: Array) -> None:
    """4 bytes of fifth bits, 16 bytes of nibbles → 32 levels in 0…31."""
    get_nibbles(y, at + 4, levels)
    for j in range(32):
        levels[j] |= ((i32(y[at + j // 8]) >> (j % 8)) & 1) << 4


@inlined
def put_pairs(y: Array, at: int, levels: Array, shift: int) -> None:
    """Two bits of each of 256 levels, from bit `shift` up → 64 bytes.

    A half of 128 levels is four runs of 32; byte j of its 32 holds those of level j of run 0, 1, 2, 3, from the lowest
    bits up.
    """
    for h in range(2):
        for j in range(32):
            i = 128 * h + j
            a, b = levels[i] >> shift & 3, levels[i + 32] >> shift & 3
            c, d = levels[i + 64] >> shift & 3, levels[i + 96] >> shift & 3
            y[at + 32 * h + j] = u8(a | b << 2 | c << 4 | d << 6)


@inlined
def get_pairs(y: Array, at: int, levels: Array) -> None:
    """64 bytes → 256 levels in 0…3."""
    for h in range(2):
        for j in range(32):
            for run in range(4):
                levels[128 * h + 32 * run + j] = y[at + 32 * h + j] >> (2 * run) & 3


@inlined
def put_high_bits(y: Array, at: int, levels: Array, shift: int) -> None:
    """The top bit of 256 levels, which is bit `shift` → 32 bytes: bit k of byte j is that of level 32·k + j."""
    for j in range(32):
        a, b = levels[j] >> shift, levels[j + 32] >> shift
        c, d = levels[j + 64] >> shift, levels[j + 96] >> shift
        e, f = levels[j + 128] >> shift, levels[j + 160] >> shift
        g, h = levels[j + 192] >> shift, levels[j + 224] >> shift
        y[at + j] = u8(a | b << 1 | c << 2 | d << 3 | e << 4 | f << 5 | g << 6 | h << 7)
