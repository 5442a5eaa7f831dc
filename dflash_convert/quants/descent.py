"""Levels improved one at a time: the search of plain Q3_K, and the last step of `super_scales.fit_scales`.

In, for the search: sub-blocks (n, N) float32 and how many levels lie below zero. Out: levels (n, N) uint8, counted from
0, and scales (n,) float32 with

    w ≈ scale·(q - levels)

Promised: the same float32 operations in the same order as ggml's make_q3_quants, so the same bits. With the levels
fixed, the best scale is Σwxq / Σwq²; a level is changed where that gains with the other levels as they are, weight by
weight, and all of it five times (ggml stops when nothing changed; then nothing would). How it is fast: see `lanes`.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import LANES, SQUARE, load, weigh
from dflash_convert.quants.rounding import nearest_int
from dflash_convert.quants.scale_search import TINY, clamp_level

f32, i32, u8 = np.float32, np.int32, np.uint8
ZERO = f32(0.0)
BYTE = i32(0xFF)
ROUNDS = 5

# rows of the lane state; the first two belong to `improve`
SUM_QX, SUM_QQ = 0, 1  # importance times q·weight, q²
LARGEST, LIVE = 2, 3  # the weight of largest magnitude, with its sign; its magnitude
INVERSE = 4  # 1/scale of the start
N_ROWS = 5


def search_levels(sub_blocks: Array, levels: int) -> tuple[Array, Array]:
    """Levels and scales of (n, N) float32 sub-blocks; see the module's docstring."""
    q, scale = np.empty(sub_blocks.shape, u8), np.empty(sub_blocks.shape[0], f32)
    _search(sub_blocks, np.zeros((1, 1), f32), np.zeros(1, f32), i32(levels), q, scale)
    return q, scale


@kernel
def _search(sub_blocks: Array, table: Array, spread: Array, levels: Scalar, found: Array, scale: Array) -> None:
    N = sub_blocks.shape[1]
    x, w = np.empty((N, LANES), f32), np.empty((N, LANES), f32)
    q = np.empty((N, LANES), i32)
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, sub_blocks.shape[0], LANES):
        load(sub_blocks, start, x)
        weigh(x, SQUARE, table, spread, start, w, s)
        _first_levels(x, w, q, s, levels)
        for _ in range(ROUNDS):
            improve(x, w, q, s, i32(-levels), i32(levels - i32(1)), False)
        _store(q, s, levels, start, found, scale)


@inlined
def _first_levels(x: Array, w: Array, q: Array, s: Array, levels: Scalar) -> None:
    """The largest weight falls on -levels."""
    for j in range(LANES):
        s[LARGEST, j] = s[LIVE, j] = s[SUM_QX, j] = s[SUM_QQ, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            larger = abs(x[i, j]) > s[LIVE, j]
            s[LARGEST, j] = x[i, j] if larger else s[LARGEST, j]
            s[LIVE, j] = abs(x[i, j]) if larger else s[LIVE, j]
    for j in range(LANES):
        s[INVERSE, j] = -f32(levels) / s[LARGEST, j]
    for i in range(x.shape[0]):
        for j in range(LANES):
            q[i, j] = clamp_level(nearest_int(s[INVERSE, j] * x[i, j]), levels)
            s[SUM_QX, j] += w[i, j] * x[i, j] * f32(q[i, j])
            s[SUM_QQ, j] += w[i, j] * f32(q[i, j]) * f32(q[i, j])


@inlined
def improve(x: Array, w: Array, q: Array, s: Array, bottom: Scalar, top: Scalar, scales: bool) -> None:
    """One round over all weights. `scales`: as make_qp_quants does it, which keeps a level as a byte and looks at the
    sum of squares before the change; make_q3_quants looks at it after.
    """
    for i in range(x.shape[0]):
        for j in range(LANES):
            old = f32(q[i, j])
            qx = s[SUM_QX, j] - w[i, j] * x[i, j] * old
            qq = s[SUM_QQ, j] - w[i, j] * old * old
            level = nearest_int(x[i, j] * qq / qx)
            level = top if level > top else level
            level = bottom if level < bottom else level
            new = f32(level)
            new_qx, new_qq = qx + w[i, j] * x[i, j] * new, qq + w[i, j] * new * new
            sound = (qx > ZERO) & ((qq if scales else new_qq) > ZERO) & (level != q[i, j])
            gains = new_qx * new_qx * s[SUM_QQ, j] > s[SUM_QX, j] * s[SUM_QX, j] * new_qq
            better = sound & gains
            kept = i32(level & BYTE) if scales else level
            q[i, j] = kept if better else q[i, j]
            s[SUM_QX, j] = new_qx if better else s[SUM_QX, j]
            s[SUM_QQ, j] = new_qq if better else s[SUM_QQ, j]


@inlined
def _store(q: Array, s: Array, levels: Scalar, start: int, found: Array, scale: Array) -> None:
    """A sub-block of nothing but (almost) zeros has scale 0 and levels 0."""
    for j in range(min(LANES, found.shape[0] - start)):
        dead = s[LIVE, j] < TINY
        fit = s[SUM_QX, j] / s[SUM_QQ, j] if s[SUM_QQ, j] > ZERO else ZERO
        scale[start + j] = ZERO if dead else fit
        for i in range(found.shape[1]):
            found[start + j, i] = u8(0) if dead else u8(q[i, j] + levels)
