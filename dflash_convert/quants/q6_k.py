"""Q6_K: super-blocks of 256 weights, 16 sub-blocks of 16, each with an 8-bit scale.

In: blocks (n, 256) float32 and room for (n, 210) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the quantizers; layout (ggml-common.h):

    128 bytes of low nibbles, 64 of upper bit pairs, 16 × int8 scales, d (half)           w = d·scale·(q - 32)

A half super-block of 128 weights is four runs of 32. Its nibbles: byte j of 64 holds weight j below and weight j + 64
above. Its pairs: see `fields.put_pairs`.

The search: see `scale_search`. Without importance weights an error in weight x counts as x².
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_half, put_half, put_pairs
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import GIVEN, SQUARE, Importance
from dflash_convert.quants.rounding import nearest_int
from dflash_convert.quants.scale_search import TINY, clamp_level, own_level, search_scale

f32, i32, u8 = np.float32, np.int32, np.uint8
ZERO, ONE = f32(0.0), f32(1.0)
LEVELS = 32
SCALE_BOTTOM, SCALE_TOP = f32(-128.0), i32(127)

SUB, N = 16, 16  # sub-blocks in a super-block, weights in a sub-block
PAIRS, SCALES, D = 128, 192, 208  # byte offsets; the nibbles come first


def encode_q6_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 210) uint8."""
    _encode(blocks, Importance(SQUARE), out)


def encode_q6_k_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with the importance of a row's weights, (blocks of a row, 256) float32."""
    _encode(blocks, Importance(GIVEN, importance.reshape(-1, N)), out)


def _encode(blocks: Array, importance: Importance, out: Array) -> None:
    fit = search_scale(blocks.reshape(-1, N), LEVELS, importance)
    _pack(blocks, fit.scale.reshape(-1, SUB), fit.inverse.reshape(-1, SUB), out)


@kernel
def _pack(blocks: Array, scale: Array, inverse: Array, out: Array) -> None:
    q = np.empty((SUB, N), u8)
    for b in range(blocks.shape[0]):
        y = out[b]
        largest = _largest(scale[b])
        if abs(largest) < TINY:
            y[:] = 0
            continue
        d = _put_scales(scale[b], largest, y)
        for k in range(SUB):
            x = blocks[b, k * N : (k + 1) * N]
            _requantize(x, d * f32(np.int8(y[SCALES + k])), inverse[b, k], q[k])
        _put_levels(q, y)


@inlined
def _largest(scales: Array) -> Scalar:
    """The scale of largest magnitude, with its sign; the first of several."""
    largest = ZERO
    for k in range(SUB):
        largest = scales[k] if abs(scales[k]) > abs(largest) else largest
    return largest


@inlined
def _put_scales(scales: Array, largest: Scalar, y: Array) -> Scalar:
    """The 16 scales as int8, the largest as -128, and d; gives d as the half holds it."""
    inverse = SCALE_BOTTOM / largest
    d = put_half(y, D, ONE / inverse)
    for k in range(SUB):
        y[SCALES + k] = u8(min(SCALE_TOP, nearest_int(inverse * scales[k])))
    return d


@inlined
def _requantize(x: Array, step: Scalar, inverse: Scalar, q: Array) -> None:
    """Levels for the scale as stored; where that is 0, the search's own (0, not the middle, for a dead sub-block)."""
    if step != ZERO:
        for j in range(N):
            q[j] = u8(clamp_level(nearest_int(x[j] / step), LEVELS) + LEVELS)
    else:
        for j in range(N):
            q[j] = u8(own_level(x[j], inverse, LEVELS))


@inlined
def _put_levels(q: Array, y: Array) -> None:
    flat = q.reshape(SUB * N)
    for h in range(2):
        for j in range(64):
            y[64 * h + j] = u8((flat[128 * h + j] & 15) | (flat[128 * h + j + 64] & 15) << 4)
    put_pairs(y, PAIRS, flat, 4)


@kernel
def decode_q6_k(raw: Array, out: Array) -> None:
    """(n, 210) uint8 → (n, 256) float32."""
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d = get_half(y, D)
        for run in range(8):  # 32 weights each, two sub-blocks
            h, r = run // 4, run % 4
            for j in range(32):
                low = i32(y[64 * h + r % 2 * 32 + j]) >> (r // 2 * 4) & 15
                high = i32(y[PAIRS + 32 * h + j]) >> (2 * r) & 3
                step = d * f32(np.int8(y[SCALES + 2 * run + j // 16]))
                x[32 * run + j] = step * f32((low | high << 4) - 32)
