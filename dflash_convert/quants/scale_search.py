"""The search behind Q6_K (and, with importance weights, Q3_K, Q4_0 and Q5_0): for every sub-block, the scale that loses
least.

In: sub-blocks (n, N) float32, how many levels lie below zero, and what the weights' importances are. Out: a `ScaleFit`,
one entry a sub-block, with

    w ≈ scale·q          q = -levels … levels - 1

Promised: the same float32 operations in the same order as ggml's make_qx_quants, so the same bits. The largest weight
falls on -levels, the end with one level more; the candidates stretch the range around that by up to nine tenths of a
level. How it is fast: see `lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import LANES, Importance, load, weigh
from dflash_convert.quants.rounding import nearest_int

f32, i32 = np.float32, np.int32
ZERO, ONE = f32(0.0), i32(1)
DEAD = f32(np.nan)
TINY = f32(1e-15)  # a sub-block (or scale) below this counts as zero
STEP, STEPS = f32(0.1), 9  # candidates: levels + k/10 over the range, k = -9 … 9 without 0

# rows of the lane state
LARGEST = 0  # the weight of largest magnitude, with its sign
LIVE = 1  # its magnitude
SUM_W = 2  # of the importances
INVERSE = 3  # 1/scale tried now
SUM_QX, SUM_QQ = 4, 5  # of this candidate: importance times q·weight, q²
SCALE, BEST, KEPT_INVERSE = 6, 7, 8  # best so far; what gave its q
N_ROWS = 9


@dataclass(frozen=True)
class ScaleFit:
    """Per sub-block, (n,) float32 each: scale, what the search's own q are made from, sum of importances.

    A sub-block of nothing but (almost) zeros has scale 0 and inverse NaN, which no other has: see `own_level`.
    """

    scale: Array
    inverse: Array
    sum_w: Array


def search_scale(sub_blocks: Array, levels: int, importance: Importance) -> ScaleFit:
    """The best fit of each of the (n, N) float32 sub-blocks."""
    found = np.empty((3, sub_blocks.shape[0]), f32)
    _search(sub_blocks, importance.kind, importance.table, importance.spread, i32(levels), found)
    return ScaleFit(*found)


@kernel
def _search(sub_blocks: Array, kind: int, table: Array, spread: Array, levels: Scalar, found: Array) -> None:
    N = sub_blocks.shape[1]
    x, w = np.empty((N, LANES), f32), np.empty((N, LANES), f32)
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, sub_blocks.shape[0], LANES):
        load(sub_blocks, start, x)
        weigh(x, kind, table, spread, start, w, s)
        _survey(x, w, s)
        _try(x, w, s, f32(levels), levels)
        _take_first(s)
        for k in range(-STEPS, STEPS + 1):
            if k != 0:
                _try(x, w, s, f32(levels) + STEP * f32(k), levels)
                _keep_better(s)
        _store(s, found, start)


@inlined
def _survey(x: Array, w: Array, s: Array) -> None:
    for j in range(LANES):
        s[LARGEST, j] = s[LIVE, j] = s[SUM_W, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            larger = abs(x[i, j]) > s[LIVE, j]
            s[LARGEST, j] = x[i, j] if larger else s[LARGEST, j]
            s[LIVE, j] = abs(x[i, j]) if larger else s[LIVE, j]
            s[SUM_W, j] += w[i, j]


@inlined
def clamp_level(q: Scalar, levels: Scalar) -> Scalar:
    """The integer `q`, kept within -levels … levels - 1."""
    q = i32(levels - ONE) if q > i32(levels - ONE) else q
    return i32(-levels) if q < i32(-levels) else q


@inlined
def own_level(x: Scalar, inverse: Scalar, levels: Scalar) -> Scalar:
    """The search's own level of a weight, counted from 0: ggml leaves 0, not the middle, where all is zero."""
    q = i32(clamp_level(nearest_int(inverse * x), levels) + levels)
    return i32(0) if np.isnan(inverse) else q


@inlined
def _try(x: Array, w: Array, s: Array, stretched: Scalar, levels: Scalar) -> None:
    """Weighted sums of the candidate that maps the largest weight to -stretched."""
    for j in range(LANES):
        s[INVERSE, j] = -stretched / s[LARGEST, j]
        s[SUM_QX, j] = s[SUM_QQ, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            q = f32(clamp_level(nearest_int(s[INVERSE, j] * x[i, j]), levels))
            s[SUM_QX, j] += w[i, j] * x[i, j] * q
            s[SUM_QQ, j] += w[i, j] * q * q


@inlined
def _take_first(s: Array) -> None:
    for j in range(LANES):
        scale = s[SUM_QX, j] / s[SUM_QQ, j] if s[SUM_QQ, j] != ZERO else ZERO
        s[SCALE, j] = scale
        s[BEST, j] = scale * s[SUM_QX, j]
        s[KEPT_INVERSE, j] = s[INVERSE, j]


@inlined
def _keep_better(s: Array) -> None:
    for j in range(LANES):
        gain = s[SUM_QX, j] * s[SUM_QX, j]
        better = (s[SUM_QQ, j] > ZERO) & (gain > s[BEST, j] * s[SUM_QQ, j])
        scale = s[SUM_QX, j] / s[SUM_QQ, j]
        s[SCALE, j] = scale if better else s[SCALE, j]
        s[BEST, j] = scale * s[SUM_QX, j] if better else s[BEST, j]
        s[KEPT_INVERSE, j] = s[INVERSE, j] if better else s[KEPT_INVERSE, j]


@inlined
def _store(s: Array, found: Array, start: int) -> None:
    for j in range(min(LANES, found.shape[1] - start)):
        dead = s[LIVE, j] < TINY
        found[0, start + j] = ZERO if dead else s[SCALE, j]
        found[1, start + j] = DEAD if dead else s[KEPT_INVERSE, j]
        found[2, start + j] = s[SUM_W, j]
