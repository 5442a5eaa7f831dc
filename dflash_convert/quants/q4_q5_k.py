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

from dflash_convert.quants.fields import get_half, put_half, put_high_bits
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import ABOVE_RMS, SPREAD, Importance, spread
from dflash_convert.quants.min_search import Fit, Grid, requantize, search, weighted_grid
from dflash_convert.quants.super_scales import Steps, fit_scales, round_scales

f32, i32, u8 = np.float32, np.int32, np.uint8
TOP_6_BIT = 63

SUB, N = 8, 32  # sub-blocks in a super-block, weights in a sub-block
SCALES, FIFTHS = 4, 16  # byte offsets; d and dmin come first
Q4_NIBBLES, Q5_NIBBLES = 16, 48

Q4_GRID = Grid(top=15, first=-1.0, step=0.1, steps=20)
Q5_GRID = Grid(top=31, first=-0.5, step=0.1, steps=15)


def encode_q4_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 144) uint8."""
    _encode(blocks, Q4_GRID, Q4_NIBBLES, out)


def encode_q4_k_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with the importance of a row's weights, (blocks of a row, 256) float32."""
    _encode_weighted(blocks, importance, Q4_GRID.top, Q4_NIBBLES, out)


def encode_q5_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 176) uint8."""
    _encode(blocks, Q5_GRID, Q5_NIBBLES, out)


def encode_q5_k_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with the importance of a row's weights, (blocks of a row, 256) float32."""
    _encode_weighted(blocks, importance, Q5_GRID.top, Q5_NIBBLES, out)


def decode_q4_k(raw: Array, out: Array) -> None:
    """(n, 144) uint8 → (n, 256) float32."""
    _unpack(raw, Q4_NIBBLES, out)


def decode_q5_k(raw: Array, out: Array) -> None:
    """(n, 176) uint8 → (n, 256) float32."""
    _unpack(raw, Q5_NIBBLES, out)


def _encode(blocks: Array, grid: Grid, nibbles: int, out: Array) -> None:
    fit = search(blocks.reshape(-1, N), grid, Importance(ABOVE_RMS))  # (n·8, 32)
    scales, minima = (round_scales(a.reshape(-1, SUB), TOP_6_BIT, TOP_6_BIT) for a in (fit.scale, fit.minimum))
    _pack_fit(blocks, fit, scales, minima, grid.top, nibbles, out)


def _encode_weighted(blocks: Array, table: Array, top: int, nibbles: int, out: Array) -> None:
    """An error in weight x counts as its importance · sqrt(twice the mean square of its super-block + x²)."""
    squares = spread(blocks, SUB, times=2, over=SUB * N)
    fit = search(blocks.reshape(-1, N), weighted_grid(top), Importance(SPREAD, table.reshape(-1, N), squares))
    sum_w = fit.sum_w.reshape(-1, SUB)
    scales, minima = (fit_scales(a.reshape(-1, SUB), sum_w, TOP_6_BIT) for a in (fit.scale, fit.minimum))
    if nibbles == Q5_NIBBLES:  # ggml cuts what wrapped below zero for Q5_K only
        for steps in (scales, minima):
            np.minimum(steps.levels, TOP_6_BIT, out=steps.levels)
    _pack_fit(blocks, fit, scales, minima, top, nibbles, out)


def _pack_fit(blocks: Array, fit: Fit, scales: Steps, minima: Steps, top: int, nibbles: int, out: Array) -> None:
    inverse, low = fit.inverse.reshape(-1, SUB), fit.low.reshape(-1, SUB)
    _pack(blocks, scales.levels, scales.step, minima.levels, minima.step, inverse, low, i32(top), nibbles, out)


@kernel
def _pack(
    blocks: Array, scales: Array, d: Array, minima: Array, dmin: Array, inverse: Array, low: Array,
    top: Scalar, nibbles: int, out: Array,
) -> None:  # fmt: skip
    sc, mn = np.empty(SUB, i32), np.empty(SUB, i32)
    q = np.empty((SUB, N), u8)
    for b in range(blocks.shape[0]):
        y = out[b]
        scale, shrink = put_half(y, 0, d[b]), put_half(y, 2, dmin[b])
        _put_scales(scales[b], minima[b], y)
        _get_scales(y, sc, mn)
        for k in range(SUB):
            x = blocks[b, k * N : (k + 1) * N]
            step, shift = scale * f32(sc[k]), shrink * f32(mn[k])
            requantize(x, step, shift, low[b, k], inverse[b, k], top, q[k])
        _put_levels(q, y, nibbles)


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
        put_high_bits(y, FIFTHS, q.reshape(SUB * N), 4)


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
