"""IQ4_NL and IQ4_XS: four-bit levels that stand for sixteen values, closer together where weights are frequent.

In: blocks (n, 32 or 256) float32 and room for (n, 18 or 136) uint8, or the reverse; with `_weighted`, also the
importance of a row's weights, (blocks of a row, 32 or 256) float32. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the quantizers; layout (ggml-common.h):

    IQ4_NL: d (half), 16 bytes of nibbles                                              w = d·VALUES[q]
    IQ4_XS: d (half), 2 bytes of upper scale bits, 4 of lower, 8·16 of nibbles         w = d·(scale - 32)·VALUES[q]

The levels are made with the scales before these are rounded to a half, as ggml makes them. An error in weight x counts
as x², or as its importance · sqrt(twice the mean square of its block + x²).
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_half, get_nibbles, put_half, put_nibbles
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import SPREAD, SQUARE, Importance, spread
from dflash_convert.quants.rounding import nearest_int
from dflash_convert.quants.scale_search import clamp_level
from dflash_convert.quants.value_search import TABLE, nearest_level, search_values

f32, i32, u8 = np.float32, np.int32, np.uint8
ZERO, ONE = f32(0.0), f32(1.0)
SCALE_LEVELS = i32(32)  # below zero
VALUES = np.array(TABLE, f32)

SUB, N = 8, 32  # sub-blocks in a super-block, weights in a sub-block
D, HIGH, LOW, LEVELS = 0, 2, 4, 8  # byte offsets in IQ4_XS


def encode_iq4_nl(blocks: Array, out: Array) -> None:
    """(n, 32) float32 → (n, 18) uint8."""
    _pack_nl(blocks, search_values(blocks, Importance(SQUARE)), out)


def encode_iq4_nl_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with importances."""
    _pack_nl(blocks, search_values(blocks, _spread(blocks, importance)), out)


def encode_iq4_xs(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 136) uint8."""
    _pack_xs(blocks, search_values(blocks.reshape(-1, N), Importance(SQUARE)).reshape(-1, SUB), out)


def encode_iq4_xs_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with importances."""
    _pack_xs(blocks, search_values(blocks.reshape(-1, N), _spread(blocks, importance)).reshape(-1, SUB), out)


def _spread(blocks: Array, importance: Array) -> Importance:
    width = blocks.shape[1]  # ggml multiplies by 2/width at once: twice the sum could overflow
    return Importance(SPREAD, importance.reshape(-1, N), spread(blocks, width // N, times=1, over=width // 2))


@inlined
def _inverse(scale: Scalar) -> Scalar:
    return ONE / scale if scale != ZERO else ZERO


@kernel
def _pack_nl(blocks: Array, scale: Array, out: Array) -> None:
    q = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y, inverse = blocks[b], out[b], _inverse(scale[b])
        put_half(y, D, scale[b])
        for j in range(N):
            q[j] = nearest_level(inverse * x[j])
        put_nibbles(y, 2, q)


@kernel
def _pack_xs(blocks: Array, scale: Array, out: Array) -> None:
    """The scale of largest magnitude becomes -32, the others go to the nearest."""
    q, sc = np.empty(N, i32), np.empty(SUB, i32)
    for b in range(blocks.shape[0]):
        y, largest = out[b], ZERO
        for k in range(SUB):
            largest = scale[b, k] if abs(scale[b, k]) > abs(largest) else largest
        d = -largest / f32(SCALE_LEVELS)
        inverse = _inverse(d)
        put_half(y, D, d)
        for k in range(SUB):
            x, sc[k] = blocks[b, k * N : (k + 1) * N], clamp_level(nearest_int(inverse * scale[b, k]), SCALE_LEVELS)
            sub_inverse = _inverse(d * f32(sc[k]))
            for j in range(N):
                q[j] = nearest_level(sub_inverse * x[j])
            put_nibbles(y, LEVELS + k * (N // 2), q)
        _put_scales(sc, y)


@inlined
def _put_scales(sc: Array, y: Array) -> None:
    """Eight numbers in -32 … 31, counted from 0, in 6 bytes: the upper two bits of each in two, then the nibbles, both
    from the lowest bits up.
    """
    for k in range(2):
        a, b, c, d = sc[4 * k] + 32, sc[4 * k + 1] + 32, sc[4 * k + 2] + 32, sc[4 * k + 3] + 32
        y[HIGH + k] = u8(a >> 4 | b >> 4 << 2 | c >> 4 << 4 | d >> 4 << 6)
        y[LOW + 2 * k], y[LOW + 2 * k + 1] = u8(a & 15 | (b & 15) << 4), u8(c & 15 | (d & 15) << 4)


@inlined
def _get_scale(y: Array, k: int) -> Scalar:
    return (i32(y[LOW + k // 2]) >> (k % 2 * 4) & 15 | (i32(y[HIGH + k // 4]) >> (k % 4 * 2) & 3) << 4) - 32


@kernel
def decode_iq4_nl(raw: Array, out: Array) -> None:
    """(n, 18) uint8 → (n, 32) float32."""
    q = np.empty(N, i32)
    for b in range(raw.shape[0]):
        d = get_half(raw[b], D)
        get_nibbles(raw[b], 2, q)
        for j in range(N):
            out[b, j] = d * VALUES[q[j]]


@kernel
def decode_iq4_xs(raw: Array, out: Array) -> None:
    """(n, 136) uint8 → (n, 256) float32."""
    q = np.empty(N, i32)
    for b in range(raw.shape[0]):
        d = get_half(raw[b], D)
        for k in range(SUB):
            step = d * f32(_get_scale(raw[b], k))
            get_nibbles(raw[b], LEVELS + k * (N // 2), q)
            for j in range(N):
                out[b, k * N + j] = step * VALUES[q[j]]
