"""Q2_K: super-blocks of 256 weights, 16 sub-blocks of 16, each with a 4-bit scale and a 4-bit minimum.

In: blocks (n, 256) float32 and room for (n, 84) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c, the quantizers; layout (ggml-common.h), d and dmin halves, little-endian:

    16 bytes of scales (below) and minima (above), 64 of bit pairs, d, dmin       w = d·scale·q - dmin·minimum

Pairs: see `fields.put_pairs`. Without importance weights an error counts by its size, times |weight|.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import get_half, get_pairs, put_half, put_pairs
from dflash_convert.quants.kernel import Array, kernel
from dflash_convert.quants.lanes import MAGNITUDE, SPREAD, Importance, spread
from dflash_convert.quants.min_search import Fit, Grid, requantize, search, weighted_grid
from dflash_convert.quants.super_scales import Steps, fit_scales, round_scales

f32, i32, u8 = np.float32, np.int32, np.uint8
TOP = i32(3)
TOP_4_BIT, TOP_8_BIT = 15, 255

SUB, N = 16, 16  # sub-blocks in a super-block, weights in a sub-block
PAIRS, D, DMIN = 16, 80, 82  # byte offsets; the scales come first

GRID = Grid(top=3, first=-0.5, step=0.1, steps=15, absolute=True)


def encode_q2_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 84) uint8."""
    fit = search(blocks.reshape(-1, N), GRID, Importance(MAGNITUDE))
    scales, minima = (round_scales(a.reshape(-1, SUB), TOP_4_BIT, TOP_8_BIT) for a in (fit.scale, fit.minimum))
    _pack_fit(blocks, fit, scales, minima, out)


def encode_q2_k_weighted(blocks: Array, out: Array, importance: Array) -> None:
    """The same with the importance of a row's weights, (blocks of a row, 256) float32.

    An error in weight x counts as its importance · sqrt(mean square of its super-block + x²).
    """
    squares = spread(blocks, SUB, times=1, over=SUB * N)
    fit = search(blocks.reshape(-1, N), weighted_grid(GRID.top), Importance(SPREAD, importance.reshape(-1, N), squares))
    sum_w = fit.sum_w.reshape(-1, SUB)
    scales, minima = (fit_scales(a.reshape(-1, SUB), sum_w, TOP_4_BIT) for a in (fit.scale, fit.minimum))
    _pack_fit(blocks, fit, scales, minima, out)


def _pack_fit(blocks: Array, fit: Fit, scales: Steps, minima: Steps, out: Array) -> None:
    inverse, low = fit.inverse.reshape(-1, SUB), fit.low.reshape(-1, SUB)
    _pack(blocks, scales.levels, scales.step, minima.levels, minima.step, inverse, low, out)


@kernel
def _pack(
    blocks: Array, scales: Array, d: Array, minima: Array, dmin: Array, inverse: Array, low: Array, out: Array
) -> None:
    q = np.empty(SUB * N, u8)
    for b in range(blocks.shape[0]):
        y = out[b]
        scale, shrink = put_half(y, D, d[b]), put_half(y, DMIN, dmin[b])
        for k in range(SUB):
            y[k] = u8((scales[b, k] | minima[b, k] << 4) & 255)
            step, shift = scale * f32(y[k] & 15), shrink * f32(y[k] >> 4)
            within = slice(k * N, (k + 1) * N)
            requantize(blocks[b, within], step, shift, low[b, k], inverse[b, k], TOP, q[within])
        put_pairs(y, PAIRS, q, 0)


@kernel
def decode_q2_k(raw: Array, out: Array) -> None:
    """(n, 84) uint8 → (n, 256) float32."""
    q = np.empty(SUB * N, u8)
    for b in range(raw.shape[0]):
        y = raw[b]
        d, dmin = get_half(y, D), get_half(y, DMIN)
        get_pairs(y, PAIRS, q)
        for k in range(SUB):
            step, shift = d * f32(y[k] & 15), dmin * f32(y[k] >> 4)
            for j in range(k * N, (k + 1) * N):
                out[b, j] = step * f32(q[j]) - shift
