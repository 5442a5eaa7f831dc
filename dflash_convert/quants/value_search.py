"""The search behind IQ4_NL and IQ4_XS: for every sub-block, the scale that loses least on a table of sixteen values.

In: sub-blocks (n, 32) float32 and what the weights' importances are. Out: scales (n,) float32 with

    w ≈ scale·VALUES[q]          q = 0 … 15

Promised: the same float32 operations in the same order as ggml's quantize_row_iq4_nl_impl, so the same bits. The first
candidate maps the largest weight to +127, beyond the top; the others to -127 and up to seven around it. ggml keeps only
the scale: the levels are made anew from it. How it is fast: see `lanes`.

ggml looks a value up by bisection, and between two neighbours takes the nearer, the upper one if they are as near. Its
differences are exact wherever they nearly agree, so this is a comparison with the middle: see `nearest_value`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import LANES, Importance, load, weigh
from dflash_convert.quants.scale_search import TINY

f32, i32 = np.float32, np.int32
ZERO, ONE = f32(0.0), f32(1.0)

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
VALUES = tuple(f32(v) for v in TABLE)
MIDDLES = tuple(f32((a + b) / 2) for a, b in pairwise(TABLE))
BOTTOM = VALUES[0]
V0, V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11, V12, V13, V14, V15 = VALUES
M0, M1, M2, M3, M4, M5, M6, M7, M8, M9, M10, M11, M12, M13, M14 = MIDDLES
STEPS = 7  # candidates: the largest weight to -127 + k, k = -7 … 7

# rows of the lane state
LARGEST = 0  # the weight of largest magnitude, with its sign
LIVE = 1  # its magnitude
INVERSE = 2  # 1/scale tried now
SUM_QX, SUM_QQ = 3, 4  # of this candidate: importance times value·weight, value²
SCALE, BEST = 5, 6  # best so far
N_ROWS = 7


def search_values(sub_blocks: Array, importance: Importance) -> Array:
    """The best scale of each of the (n, 32) float32 sub-blocks; 0 for one of nothing but (almost) zeros."""
    found = np.empty(sub_blocks.shape[0], f32)
    _search(sub_blocks, importance.kind, importance.table, importance.spread, found)
    return found


@inlined
def nearest_value(v: Scalar) -> Scalar:
    """float32 → the value of the table nearest to it; NaN gives the last, as ggml's bisection does.

    Written out: numba indexes a tuple by branches, and a loop around branches is not vectorised.
    """
    value = V0 if v < M0 else V1
    value = value if v < M1 else V2
    value = value if v < M2 else V3
    value = value if v < M3 else V4
    value = value if v < M4 else V5
    value = value if v < M5 else V6
    value = value if v < M6 else V7
    value = value if v < M7 else V8
    value = value if v < M8 else V9
    value = value if v < M9 else V10
    value = value if v < M10 else V11
    value = value if v < M11 else V12
    value = value if v < M12 else V13
    value = value if v < M13 else V14
    return value if v < M14 else V15


@inlined
def nearest_level(v: Scalar) -> Scalar:
    """The same → its place in the table, 0 … 15."""
    level = i32(0) if v < M0 else i32(1)
    level = level if v < M1 else i32(2)
    level = level if v < M2 else i32(3)
    level = level if v < M3 else i32(4)
    level = level if v < M4 else i32(5)
    level = level if v < M5 else i32(6)
    level = level if v < M6 else i32(7)
    level = level if v < M7 else i32(8)
    level = level if v < M8 else i32(9)
    level = level if v < M9 else i32(10)
    level = level if v < M10 else i32(11)
    level = level if v < M11 else i32(12)
    level = level if v < M12 else i32(13)
    level = level if v < M13 else i32(14)
    return level if v < M14 else i32(15)


@kernel
def _search(sub_blocks: Array, kind: int, table: Array, spread: Array, found: Array) -> None:
    N = sub_blocks.shape[1]
    x, w = np.empty((N, LANES), f32), np.empty((N, LANES), f32)
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, sub_blocks.shape[0], LANES):
        load(sub_blocks, start, x)
        weigh(x, kind, table, spread, start, w, s)
        _survey(x, s)
        for j in range(LANES):
            s[INVERSE, j] = ONE / (-s[LARGEST, j] / BOTTOM)
        _try(x, w, s)
        _take_first(s)
        for k in range(-STEPS, STEPS + 1):
            for j in range(LANES):
                s[INVERSE, j] = (f32(k) + BOTTOM) / s[LARGEST, j]
            _try(x, w, s)
            _keep_better(s)
        for j in range(min(LANES, found.shape[0] - start)):
            found[start + j] = ZERO if s[LIVE, j] < TINY else s[SCALE, j]


@inlined
def _survey(x: Array, s: Array) -> None:
    for j in range(LANES):
        s[LARGEST, j] = s[LIVE, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            larger = abs(x[i, j]) > s[LIVE, j]
            s[LARGEST, j] = x[i, j] if larger else s[LARGEST, j]
            s[LIVE, j] = abs(x[i, j]) if larger else s[LIVE, j]


@inlined
def _try(x: Array, w: Array, s: Array) -> None:
    """Weighted sums of the candidate."""
    for j in range(LANES):
        s[SUM_QX, j] = s[SUM_QQ, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            q = nearest_value(s[INVERSE, j] * x[i, j])
            s[SUM_QX, j] += w[i, j] * q * x[i, j]
            s[SUM_QQ, j] += w[i, j] * q * q


@inlined
def _take_first(s: Array) -> None:
    for j in range(LANES):
        scale = s[SUM_QX, j] / s[SUM_QQ, j] if s[SUM_QQ, j] > ZERO else ZERO
        s[SCALE, j] = scale
        s[BEST, j] = scale * s[SUM_QX, j]


@inlined
def _keep_better(s: Array) -> None:
    for j in range(LANES):
        gain = s[SUM_QX, j] * s[SUM_QX, j]
        better = (s[SUM_QQ, j] > ZERO) & (gain > s[BEST, j] * s[SUM_QQ, j])
        scale = s[SUM_QX, j] / s[SUM_QQ, j]
        s[SCALE, j] = scale if better else s[SCALE, j]
        s[BEST, j] = scale * s[SUM_QX, j] if better else s[BEST, j]
