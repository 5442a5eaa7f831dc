"""Q4_K and Q5_K: super-blocks of 256 weights, 8 sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum.

In: blocks (n, 256) float32 and room for (n, 144 or 176) uint8, or the reverse. Out: the room, filled. Promised: ggml's
bytes. Source: ggml-quants.c, the reference quantizers; layouts (ggml-common.h), d and dmin halves, little-endian:

    Q4_K   d, dmin, 12 bytes of scales and minima, 128 of nibbles
    Q5_K   d, dmin, 12 bytes of scales and minima, 32 of fifth bits, 128 of nibbles       w = d·scale·q - dmin·minimum

Nibbles: sub-blocks go in pairs; byte j of a pair's 32 holds weight j of the even one below, of the odd one above.
Fifth bits: bit k of byte j belongs to weight j of sub-block k. Scales and minima: see `_put_scales`.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_half, put_half
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import ABOVE_RMS, Importance
from dflash_convert.quants.min_search import Grid, level_of, search
from dflash_convert.quants.rounding import nearest_int

f32, i32, u8 = np.float32, np.int32, np.uint8
ZERO = f32(0.0)
FIRST, BYTE = i32(0), i32(0xFF)
TOP_4_BIT, TOP_6_BIT = i32(15), i32(63)
STEPS_6_BIT = f32(63.0)

SUB, N = 8, 32  # sub-blocks in a super-block, weights in a sub-block
SCALES, FIFTHS = 4, 16  # byte offsets; d and dmin come first
Q4_NIBBLES, Q5_NIBBLES = 16, 48

Q4_GRID = Grid(top=15, first=-1.0, step=0.1, steps=20)
Q5_GRID = Grid(top=31, first=-0.5, step=0.1, steps=15)


def encode_q4_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 144) uint8."""
    _encode(blocks, Q4_GRID, Q4_NIBBLES, out)


def encode_q5_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 176) uint8."""
    _encode(blocks, Q5_GRID, Q5_NIBBLES, out)


def decode_q4_k(raw: Array, out: Array) -> None:
    """(n, 144) uint8 → (n, 256) float32."""
    _unpack(raw, Q4_NIBBLES, out)


def decode_q5_k(raw: Array, out: Array) -> None:
    """(n, 176) uint8 → (n, 256) float32."""
    _unpack(raw, Q5_NIBBLES, out)


def _encode(blocks: Array, grid: Grid, nibbles: int, out: Array) -> None:
    fit = search(blocks.reshape(-1, N), grid, Importance(ABOVE_RMS))  # (n·8, 32)
    scale, minimum, inverse, low = (a.reshape(-1, SUB) for a in (fit.scale, fit.minimum, fit.inverse, fit.low))
    _pack(blocks, scale, minimum, inverse, low, i32(grid.top), nibbles, out)


@kernel
def _pack(
    blocks: Array, scale: Array, minimum: Array, inverse: Array, low: Array, top: Scalar, nibbles: int, out: Array
) -> None:
    sc, mn = np.empty(SUB, i32), np.empty(SUB, i32)
    q = np.empty((SUB, N), u8)
    for b in range(blocks.shape[0]):
        y = out[b]
        d = _six_bits(scale[b], sc, y, 0)
        dmin = _six_bits(minimum[b], mn, y, 2)
        _put_scales(sc, mn, y)
        for k in range(SUB):
            x = blocks[b, k * N : (k + 1) * N]
            step, shift = d * f32(sc[k]), dmin * f32(mn[k])
            if step == ZERO:  # too small for its 6 bits: the search's own levels stay
                for j in range(N):
                    q[k, j] = level_of(x[j], low[b, k], inverse[b, k], top)
            else:
                for j in range(N):
                    q[k, j] = _clamp(nearest_int((x[j] + shift) / step), top)
        _put_levels(q, y, nibbles)


@inlined
def _six_bits(values: Array, levels: Array, y: Array, at: int) -> Scalar:
    """8 values → 8 levels in 0…63 and their common step, stored as a half; gives that half's value."""
    largest = ZERO
    for k in range(SUB):
        largest = values[k] if values[k] > largest else largest
    inverse = STEPS_6_BIT / largest if largest > ZERO else ZERO
    for k in range(SUB):
        levels[k] = min(TOP_6_BIT, i32(nearest_int(inverse * values[k]) & BYTE))  # C keeps a byte, then the minimum
    return put_half(y, at, largest / STEPS_6_BIT)


@inlined
def _clamp(q: Array, top: Scalar) -> Scalar:
    q = top if q > top else q
    return FIRST if q < FIRST else q


@inlined
def _put_scales(sc: Array, mn: Array, y: Array) -> None:
    """16 six-bit numbers in 12 bytes.

    Bytes 0…3 and 4…7: scales and minima of sub-blocks 0…3, whole, and in the top two bits the upper bits of
    sub-blocks 4…7. Bytes 8…11: the lower four bits of those, scale below, minimum above.
    """
    for k in range(4):
        y[SCALES + k] = u8(sc[k] | (sc[k + 4] >> 4) << 6)
        y[SCALES + 4 + k] = u8(mn[k] | (mn[k + 4] >> 4) << 6)
        y[SCALES + 8 + k] = u8((sc[k + 4] & 15) | (mn[k + 4] & 15) << 4)


@inlined
def _get_scales(y: Array, sc: Array, mn: Array) -> None:
    for k in range(4):
        scales, minima, lower = i32(y[SCALES + k]), i32(y[SCALES + 4 + k]), i32(y[SCALES + 8 + k])
        sc[k], mn[k] = scales & 63, minima & 63
        sc[k + 4] = (lower & 15) | (scales >> 6) << 4
        mn[k + 4] = (lower >> 4) | (minima >> 6) << 4


@inlined
def _put_levels(q: Array, y: Array, nibbles: int) -> None:
    for pair in range(SUB // 2):
        for j in range(N):
            y[nibbles + pair * N + j] = u8((q[2 * pair, j] & 15) | (q[2 * pair + 1, j] & 15) << 4)
    if nibbles == Q5_NIBBLES:
        for j in range(N):
            y[FIFTHS + j] = 0
        for k in range(SUB):
            for j in range(N):
                y[FIFTHS + j] |= u8((q[k, j] >> 4) << k)


@kernel
def _unpack(raw: Array, nibbles: int, out: Array) -> None:
    sc, mn = np.empty(SUB, i32), np.empty(SUB, i32)
    for b in range(raw.shape[0]):
        y = raw[b]
        d, dmin = get_half(y, 0), get_half(y, 2)
        _get_scales(y, sc, mn)
        for k in range(SUB):
            x = out[b, k * N : (k + 1) * N]
            step, shift = d * f32(sc[k]), dmin * f32(mn[k])
            at, half = nibbles + k // 2 * N, k % 2 * 4
            for j in range(N):
                q = i32(y[at + j]) >> half & 15
                if nibbles == Q5_NIBBLES:
                    q |= (i32(y[FIFTHS + j]) >> k & 1) << 4
                x[j] = step * f32(q) - shift
