"""Q3_K: super-blocks of 256 weights, 16 sub-blocks of 16, each with a 6-bit scale.

In: blocks (n, 256) float32 and room for (n, 110) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the quantizers; layout (ggml-common.h):

    32 bytes of third bits, 64 of bit pairs, 12 of scales, d (half)       w = d·(scale - 32)·(q - 4)

Third bits and pairs: see `fields`. Scales: see `_put_scales`.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.descent import search_levels
from dflash_convert.quants.fields import get_half, get_pairs, put_half, put_high_bits, put_pairs
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import GIVEN, SPREAD, Importance, spread
from dflash_convert.quants.rounding import nearest_int
from dflash_convert.quants.scale_search import clamp_level, own_level, search_scale
from dflash_convert.quants.super_scales import Steps

f32, i32, u8 = np.float32, np.int32, np.uint8
ZERO, ONE = f32(0.0), f32(1.0)
LEVELS, SCALE_LEVELS = i32(4), i32(32)  # below zero
SCALE_BOTTOM = f32(-32.0)

SUB, N = 16, 16  # sub-blocks in a super-block, weights in a sub-block
THIRDS, PAIRS, SCALES, D = 0, 32, 96, 108  # byte offsets


def encode_q3_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 110) uint8."""
    own, scale = search_levels(blocks.reshape(-1, N), int(LEVELS))
    scales = _steps(scale)
    _round_scales(scale.reshape(-1, SUB), scales.levels, scales.step)
    _pack(blocks, own.reshape(-1, SUB * N), scales.levels, scales.step, out)


def encode_q3_k_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with the importance of a row's weights, (blocks of a row, 256) float32.

    An error in weight x counts as its importance · sqrt(twice the mean square of its super-block + x²); the scales go
    through the same search, each as important as its sub-block.
    """
    squares = spread(blocks, SUB, times=2, over=SUB * N)
    fit = search_scale(blocks.reshape(-1, N), int(LEVELS), Importance(SPREAD, importance.reshape(-1, N), squares))
    own = np.empty((blocks.shape[0], SUB * N), i32)
    _own_levels(blocks.reshape(-1, N), fit.inverse, LEVELS, own.reshape(-1, N))
    values, sum_w = fit.scale.reshape(-1, SUB), fit.sum_w.reshape(-1, SUB)
    outer = search_scale(values, int(SCALE_LEVELS), Importance(GIVEN, sum_w))
    scales = Steps(np.empty(values.shape, i32), outer.scale)
    _own_levels(values, outer.inverse, SCALE_LEVELS, scales.levels)
    _pack(blocks, own.astype(u8), scales.levels, scales.step, out)


def _steps(scale: Array) -> Steps:
    n = len(scale) // SUB
    return Steps(np.empty((n, SUB), i32), np.empty(n, f32))


@kernel
def _own_levels(x: Array, inverse: Array, levels: Scalar, q: Array) -> None:
    for b in range(x.shape[0]):
        for j in range(x.shape[1]):
            q[b, j] = own_level(x[b, j], inverse[b], levels)


@kernel
def _round_scales(values: Array, levels: Array, step: Array) -> None:
    """The scale of largest magnitude becomes -32, the others go to the nearest; counted from 0."""
    for b in range(values.shape[0]):
        largest = ZERO
        for k in range(SUB):
            largest = values[b, k] if abs(values[b, k]) > abs(largest) else largest
        inverse = SCALE_BOTTOM / largest
        for k in range(SUB):
            wrapped = i32((nearest_int(inverse * values[b, k]) + 128 & 255) - 128)  # C keeps an int8
            levels[b, k] = clamp_level(wrapped, SCALE_LEVELS) + SCALE_LEVELS if largest != ZERO else 0
        step[b] = ONE / inverse if largest != ZERO else ZERO


@kernel
def _pack(blocks: Array, own: Array, scales: Array, d: Array, out: Array) -> None:
    """own: the search's levels, which stay where the scale as stored is 0."""
    q = np.empty((SUB, N), u8)
    for b in range(blocks.shape[0]):
        y = out[b]
        scale = put_half(y, D, d[b])
        _put_scales(scales[b], y)
        for k in range(SUB):
            x, step = blocks[b, k * N : (k + 1) * N], scale * f32(scales[b, k] - SCALE_LEVELS)
            if step != ZERO:
                for j in range(N):
                    q[k, j] = u8(clamp_level(nearest_int(x[j] / step), LEVELS) + LEVELS)
            else:
                for j in range(N):
                    q[k, j] = own[b, k * N + j]
        flat = q.reshape(SUB * N)
        put_high_bits(y, THIRDS, flat, 2)
        put_pairs(y, PAIRS, flat, 0)


@inlined
def _put_scales(sc: Array, y: Array) -> None:
    """16 six-bit numbers in 12 bytes.

    Bytes 0…7: the lower four bits of scales 0…7, and above them those of 8…15. Bytes 8…11: the upper two bits of
    scales k, k + 4, k + 8, k + 12, from the lowest bits up.
    """
    for k in range(8):
        y[SCALES + k] = u8(sc[k] & 15 | (sc[k + 8] & 15) << 4)
    for k in range(4):
        low, high = sc[k] >> 4 | sc[k + 4] >> 4 << 2, sc[k + 8] >> 4 | sc[k + 12] >> 4 << 2
        y[SCALES + 8 + k] = u8(low | high << 4)


@inlined
def _get_scale(y: Array, k: int) -> Scalar:
    low = i32(y[SCALES + k % 8]) >> (k // 8 * 4) & 15
    return low | (i32(y[SCALES + 8 + k % 4]) >> (k // 4 * 2) & 3) << 4


@kernel
def decode_q3_k(raw: Array, out: Array) -> None:
    """(n, 110) uint8 → (n, 256) float32."""
    q = np.empty(SUB * N, u8)
    for b in range(raw.shape[0]):
        y = raw[b]
        d = get_half(y, D)
        get_pairs(y, PAIRS, q)
        for k in range(SUB):
            step = d * f32(_get_scale(y, k) - 32)
            for j in range(N):
                third = i32(y[THIRDS + k % 2 * N + j]) >> (k // 2) & 1
                out[b, k * N + j] = step * f32((i32(q[k * N + j]) | third << 2) - 4)
