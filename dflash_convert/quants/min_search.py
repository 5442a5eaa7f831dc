"""The search behind Q2_K, Q4_K and Q5_K (and, with importance weights, Q4_1 and Q5_1): for every sub-block, the scale
and minimum that lose least.

In: sub-blocks (n, N) float32, a `Grid` of scales to try, and what the weights' importances are. Out: a `Fit`, one entry
a sub-block, with

    w ≈ scale·q - minimum          q = 0 … top

Promised: the same float32 operations in the same order as ggml's make_qkx2_quants and make_qkx3_quants, so the same
bits. How it is fast: see `lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import LANES, Importance, load, weigh
from dflash_convert.quants.rounding import nearest_int

f32, i32 = np.float32, np.int32
ZERO, ONE = f32(0.0), f32(1.0)
FIRST = i32(0)

# rows of the lane state
LOW, HIGH = 0, 1  # smallest weight (at most 0; later the best minimum), largest weight
SUM_W, SUM_X = 2, 3  # of the importances, of importance · weight
SCALE, ERROR = 4, 5  # best so far
INVERSE = 6  # 1/scale tried now
SUM_Q, SUM_QQ, SUM_QX = 7, 8, 9  # of this candidate: importance times q, q², q·weight
TRY_DET, TRY_SCALE, TRY_LOW, TRY_ERROR = 10, 11, 12, 13  # the least-squares fit to its q
KEPT_INVERSE, KEPT_LOW = 14, 15  # what gave the q of the best: `level_of` repeats them from it
N_ROWS = 16


@dataclass(frozen=True)
class Grid:
    """The scales tried: q = 0 … top over the range, widened by first + k·step for k = 0 … steps.

    absolute: whether errors count by their size, not by their square.
    """

    top: int
    first: float
    step: float
    steps: int
    absolute: bool = False


@dataclass(frozen=True)
class Fit:
    """Per sub-block, (n,) float32 each: scale, minimum, what the search's own q are made from, sum of importances."""

    scale: Array
    minimum: Array
    inverse: Array
    low: Array
    sum_w: Array


def weighted_grid(top: int) -> Grid:
    """What every type tries when importance weights are given."""
    return Grid(top, first=-0.9, step=0.05, steps=36)


def search(sub_blocks: Array, grid: Grid, importance: Importance) -> Fit:
    """The best fit of each of the (n, N) float32 sub-blocks."""
    found = np.empty((5, sub_blocks.shape[0]), f32)
    top, first, step = i32(grid.top), f32(grid.first), f32(grid.step)
    kind, table, spread = importance.kind, importance.table, importance.spread
    _search(sub_blocks, kind, table, spread, top, first, step, grid.steps, grid.absolute, found)
    return Fit(*found)


@kernel
def _search(
    sub_blocks: Array, kind: int, table: Array, spread: Array,
    top: Scalar, first: Scalar, step: Scalar, steps: int, absolute: bool, found: Array,
) -> None:  # fmt: skip
    N = sub_blocks.shape[1]
    x = np.empty((N, LANES), f32)  # weights
    w = np.empty((N, LANES), f32)  # their importances
    q = np.empty((N, LANES), f32)  # levels of the candidate
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, sub_blocks.shape[0], LANES):
        load(sub_blocks, start, x)
        weigh(x, kind, table, spread, start, w, s)
        _survey(x, w, s)
        _first_guess(x, w, s, top, absolute)
        for k in range(steps + 1):
            _quantize(x, w, q, s, top, first + step * f32(k) + f32(top))
            _solve(s)
            _measure(x, w, q, s, absolute)
            _keep_better(s)
        _store(s, found, start)


@inlined
def _survey(x: Array, w: Array, s: Array) -> None:
    """Range and weighted sums. The range always holds 0."""
    for j in range(LANES):
        s[LOW, j] = s[HIGH, j] = x[0, j]
        s[SUM_W, j] = w[0, j]
        s[SUM_X, j] = w[0, j] * x[0, j]
    for i in range(1, x.shape[0]):
        for j in range(LANES):
            s[LOW, j] = x[i, j] if x[i, j] < s[LOW, j] else s[LOW, j]
            s[HIGH, j] = x[i, j] if x[i, j] > s[HIGH, j] else s[HIGH, j]
            s[SUM_W, j] += w[i, j]
            s[SUM_X, j] += w[i, j] * x[i, j]
    for j in range(LANES):
        s[LOW, j] = ZERO if s[LOW, j] > ZERO else s[LOW, j]


@inlined
def _first_guess(x: Array, w: Array, s: Array, top: Scalar, absolute: bool) -> None:
    """The plain scale, from the range, and its error: what a candidate has to beat.

    Where all weights are one value ≤ 0 there is no range: scale 0, and no candidate passes an error of -1.
    """
    for j in range(LANES):
        s[INVERSE, j] = f32(top) / (s[HIGH, j] - s[LOW, j])
        s[SCALE, j] = ONE / s[INVERSE, j]
        s[ERROR, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            level = f32(level_of(x[i, j], s[LOW, j], s[INVERSE, j], top))
            miss = s[SCALE, j] * level + s[LOW, j] - x[i, j]
            s[ERROR, j] += w[i, j] * (abs(miss) if absolute else miss * miss)
    for j in range(LANES):
        flat = s[HIGH, j] == s[LOW, j]
        s[SCALE, j] = ZERO if flat else s[SCALE, j]
        s[ERROR, j] = -ONE if flat else s[ERROR, j]
        s[KEPT_INVERSE, j] = s[INVERSE, j]  # Inf where flat: Inf · 0 is NaN, whose nearest_int is 0
        s[KEPT_LOW, j] = s[LOW, j]


@inlined
def level_of(x: Scalar, low: Scalar, inverse: Scalar, top: Scalar) -> Scalar:
    """The level 0 … top of weight `x` on a scale of 1/inverse from `low`."""
    return _clamp(nearest_int(inverse * (x - low)), top)


@inlined
def _clamp(q: Scalar, top: Scalar) -> Scalar:
    q = top if q > top else q
    return FIRST if q < FIRST else q


@inlined
def requantize(x: Array, step: Scalar, shift: Scalar, low: Scalar, inverse: Scalar, top: Scalar, q: Array) -> None:
    """Levels of a sub-block for scale and minimum as stored; where that scale came out as 0, the search's own stay."""
    if step == ZERO:
        for j in range(x.shape[0]):
            q[j] = level_of(x[j], low, inverse, top)
    else:
        for j in range(x.shape[0]):
            q[j] = _clamp(nearest_int((x[j] + shift) / step), top)


@inlined
def _quantize(x: Array, w: Array, q: Array, s: Array, top: Scalar, widened: Scalar) -> None:
    """Levels for the candidate scale, from the minimum of the best so far; their weighted sums."""
    for j in range(LANES):
        s[INVERSE, j] = widened / (s[HIGH, j] - s[LOW, j])
        s[SUM_Q, j] = s[SUM_QQ, j] = s[SUM_QX, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            level = f32(level_of(x[i, j], s[LOW, j], s[INVERSE, j], top))
            q[i, j] = level
            weighted = w[i, j] * level
            s[SUM_Q, j] += weighted
            s[SUM_QQ, j] += weighted * level
            s[SUM_QX, j] += weighted * x[i, j]


@inlined
def _solve(s: Array) -> None:
    """Scale and minimum that fit the levels best (least squares); a minimum above 0 is taken as 0."""
    for j in range(LANES):
        det = s[SUM_W, j] * s[SUM_QQ, j] - s[SUM_Q, j] * s[SUM_Q, j]
        scale = (s[SUM_W, j] * s[SUM_QX, j] - s[SUM_X, j] * s[SUM_Q, j]) / det
        low = (s[SUM_QQ, j] * s[SUM_X, j] - s[SUM_Q, j] * s[SUM_QX, j]) / det
        s[TRY_SCALE, j] = s[SUM_QX, j] / s[SUM_QQ, j] if low > ZERO else scale
        s[TRY_LOW, j] = ZERO if low > ZERO else low
        s[TRY_DET, j] = det


@inlined
def _measure(x: Array, w: Array, q: Array, s: Array, absolute: bool) -> None:
    for j in range(LANES):
        s[TRY_ERROR, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            miss = s[TRY_SCALE, j] * q[i, j] + s[TRY_LOW, j] - x[i, j]
            s[TRY_ERROR, j] += w[i, j] * (abs(miss) if absolute else miss * miss)


@inlined
def _keep_better(s: Array) -> None:
    """Take the candidate where it is better. Its minimum is where the next one starts from."""
    for j in range(LANES):
        better = (s[TRY_DET, j] > ZERO) & (s[TRY_ERROR, j] < s[ERROR, j])
        s[KEPT_INVERSE, j] = s[INVERSE, j] if better else s[KEPT_INVERSE, j]
        s[KEPT_LOW, j] = s[LOW, j] if better else s[KEPT_LOW, j]
        s[ERROR, j] = s[TRY_ERROR, j] if better else s[ERROR, j]
        s[SCALE, j] = s[TRY_SCALE, j] if better else s[SCALE, j]
        s[LOW, j] = s[TRY_LOW, j] if better else s[LOW, j]


@inlined
def _store(s: Array, found: Array, start: int) -> None:
    for j in range(min(LANES, found.shape[1] - start)):
        found[0, start + j] = s[SCALE, j]
        found[1, start + j] = -s[LOW, j]
        found[2, start + j] = s[KEPT_INVERSE, j]
        found[3, start + j] = s[KEPT_LOW, j]
        found[4, start + j] = s[SUM_W, j]
