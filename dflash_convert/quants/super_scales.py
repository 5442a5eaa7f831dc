"""The scales (or minima) of a super-block's sub-blocks, themselves quantized: whole levels times one step.

In: values (n, sub-blocks) float32, hardly ever below zero. Out: `Steps`. Promised: ggml's bits. Plain: the largest
value gets the top level. Weighted (make_qp_quants): a few steps are tried, then levels are improved one at a time, so
that the errors, each weighted with the importance of its sub-block, come out small. ggml keeps a level in a byte: what
lies below zero wraps. How it is fast: see `lanes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dflash_convert.quants.descent import LIVE, ROUNDS, SUM_QQ, SUM_QX, improve
from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.lanes import LANES, load
from dflash_convert.quants.rounding import nearest_int
from dflash_convert.quants.scale_search import TINY

f32, i32 = np.float32, np.int32
ZERO, ONE = f32(0.0), f32(1.0)
BYTE, ALL_BITS = i32(0xFF), i32(-1)
NO_BOTTOM = i32(-(2**30))
STEP, STEPS = f32(0.1), 4  # candidates: top + k/10 levels over the largest value, k = -4 … 4

# rows of the lane state, after those of `descent`
INVERSE, ERROR = 4, 5  # best so far
TRY_INVERSE, TRY_ERROR = 6, 7
N_ROWS = 8


@dataclass(frozen=True)
class Steps:
    """levels: (n, sub-blocks) int32 in 0 … 255; step: (n,) float32, their common factor."""

    levels: Array
    step: Array


def round_scales(values: Array, top: int, cut: int) -> Steps:
    """The largest value becomes level `top`, the others go to the nearest; what still lies above `cut` is cut."""
    steps = Steps(np.empty(values.shape, i32), np.empty(values.shape[0], f32))
    _round(values, f32(top), i32(cut), steps.levels, steps.step)
    return steps


def fit_scales(values: Array, importance: Array, top: int) -> Steps:
    """The levels 0 … top and the step that lose least; importance: as values."""
    steps = Steps(np.empty(values.shape, i32), np.empty(values.shape[0], f32))
    _fit(values, importance, i32(top), steps.levels, steps.step)
    return steps


@kernel
def _round(values: Array, top: Scalar, cut: Scalar, levels: Array, step: Array) -> None:
    for b in range(values.shape[0]):
        largest = ZERO
        for k in range(values.shape[1]):
            largest = values[b, k] if values[b, k] > largest else largest
        inverse = top / largest if largest > ZERO else ZERO
        for k in range(values.shape[1]):
            levels[b, k] = min(cut, i32(nearest_int(inverse * values[b, k]) & BYTE))
        step[b] = largest / top


@kernel
def _fit(values: Array, importance: Array, top: Scalar, levels: Array, step: Array) -> None:
    N = values.shape[1]
    x, w = np.empty((N, LANES), f32), np.empty((N, LANES), f32)
    q = np.empty((N, LANES), i32)
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, values.shape[0], LANES):
        load(values, start, x)
        load(importance, start, w)
        _survey(x, s)
        _measure(x, w, s, f32(top), top, BYTE)
        _take_first(s)
        for k in range(-STEPS, STEPS + 1):
            if k != 0:
                _measure(x, w, s, STEP * f32(k) + f32(top), top, ALL_BITS)
                _keep_better(s)
        _first_levels(x, w, q, s, top)
        for _ in range(ROUNDS):
            improve(x, w, q, s, NO_BOTTOM, top, True)
        _store(q, s, start, levels, step)


@inlined
def _survey(x: Array, s: Array) -> None:
    for j in range(LANES):
        s[LIVE, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            s[LIVE, j] = x[i, j] if x[i, j] > s[LIVE, j] else s[LIVE, j]


@inlined
def _level(x: Scalar, inverse: Scalar, top: Scalar) -> Scalar:
    q = nearest_int(inverse * x)
    return top if q > top else q


@inlined
def _measure(x: Array, w: Array, s: Array, stretched: Scalar, top: Scalar, kept_bits: Scalar) -> None:
    """The error of the candidate that maps the largest value to `stretched`."""
    for j in range(LANES):
        s[TRY_INVERSE, j] = stretched / s[LIVE, j]
        s[TRY_ERROR, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            level = f32(i32(_level(x[i, j], s[TRY_INVERSE, j], top) & kept_bits))
            miss = x[i, j] - ONE / s[TRY_INVERSE, j] * level
            s[TRY_ERROR, j] += w[i, j] * miss * miss


@inlined
def _take_first(s: Array) -> None:
    for j in range(LANES):
        s[INVERSE, j], s[ERROR, j] = s[TRY_INVERSE, j], s[TRY_ERROR, j]


@inlined
def _keep_better(s: Array) -> None:
    for j in range(LANES):
        better = s[TRY_ERROR, j] < s[ERROR, j]
        s[INVERSE, j] = s[TRY_INVERSE, j] if better else s[INVERSE, j]
        s[ERROR, j] = s[TRY_ERROR, j] if better else s[ERROR, j]


@inlined
def _first_levels(x: Array, w: Array, q: Array, s: Array, top: Scalar) -> None:
    for j in range(LANES):
        s[SUM_QX, j] = s[SUM_QQ, j] = ZERO
    for i in range(x.shape[0]):
        for j in range(LANES):
            level = _level(x[i, j], s[INVERSE, j], top)
            q[i, j] = i32(level & BYTE)
            s[SUM_QX, j] += w[i, j] * x[i, j] * f32(level)
            s[SUM_QQ, j] += w[i, j] * f32(level) * f32(level)


@inlined
def _store(q: Array, s: Array, start: int, levels: Array, step: Array) -> None:
    """Where all values are (almost) zero, so are step and levels."""
    for j in range(min(LANES, levels.shape[0] - start)):
        dead = s[LIVE, j] < TINY
        fit = s[SUM_QX, j] / s[SUM_QQ, j] if s[SUM_QQ, j] > ZERO else ZERO
        step[start + j] = ZERO if dead else fit
        for i in range(levels.shape[1]):
            levels[start + j, i] = i32(0) if dead else q[i, j]
