"""Many sub-blocks side by side: how the searches load them, and how much each weight matters to them.

In: sub-blocks (n, N) float32, N = 8, 16 or 32, and an `Importance`. Out: in a kernel, weights and importances of
`LANES` sub-blocks as (N, LANES) arrays. Promised: the importances in ggml's order of operations.

How the searches are fast: a float sum must keep its order, so there is nothing to vectorise within a sub-block. But
sub-blocks are independent: `LANES` of them are transposed so that weight i of all lies in one row, and each loop over
lanes becomes SIMD instructions, every lane summing its own weights in order. What a lane knows is a column of `s`, one
row a quantity; as rows of one array with a constant shape, they cost the compiler no alias checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dflash_convert.quants.kernel import Array, inlined, kernel

f32 = np.float32
ZERO = f32(0.0)

LANES = 64  # sub-blocks side by side: three (32, 64) float32 arrays stay in the L1 cache

# what an importance is made from
ABOVE_RMS, MAGNITUDE, SQUARE, GIVEN, SPREAD = 0, 1, 2, 3, 4


def _nothing() -> Array:
    return np.zeros((1, 1), f32)


@dataclass(frozen=True)
class Importance:
    """What the importance w of a weight x is.

    kind: ABOVE_RMS: |x| + the root mean square of its sub-block; MAGNITUDE: |x|; SQUARE: x²; GIVEN: as in `table`;
    SPREAD: that times sqrt(spread + x²). table: (sub-blocks of a row, N) float32, the same for every row; spread: (n,)
    float32, one for each sub-block.
    """

    kind: int
    table: Array = field(default_factory=_nothing)
    spread: Array = field(default_factory=lambda: np.zeros(1, f32))


def spread(values: Array, sub_blocks: int, times: float, over: float) -> Array:
    """(n, span) float32 → times · sum of squares / over, each repeated for the sub-blocks of it: (n·sub_blocks,)."""
    squares = np.empty(values.shape[0], f32)
    _sum_squares(values, squares)
    return np.repeat(squares * f32(times) / f32(over), sub_blocks)


@kernel
def _sum_squares(values: Array, out: Array) -> None:
    """Eight spans at a time, each summed in order: the additions of one span wait for each other."""
    sums = np.empty(8, f32)
    for start in range(0, values.shape[0], 8):
        n = min(8, values.shape[0] - start)
        sums[:] = ZERO
        for i in range(values.shape[1]):
            for j in range(n):
                sums[j] += values[start + j, i] * values[start + j, i]
        out[start : start + n] = sums[:n]


@inlined
def load(sub_blocks: Array, start: int, x: Array) -> None:
    """(LANES, N) → (N, LANES); lanes beyond the last sub-block hold zeros."""
    n = min(LANES, sub_blocks.shape[0] - start)
    if n < LANES:
        x[:] = ZERO
    for j in range(n):
        for i in range(x.shape[0]):
            x[i, j] = sub_blocks[start + j, i]


@inlined
def weigh(x: Array, kind: int, table: Array, spread: Array, start: int, w: Array, s: Array) -> None:
    """Importances of the loaded weights; row 0 of `s` is used on the way."""
    if kind >= GIVEN:
        _look_up(x, kind, table, spread, start, w, s)
    elif kind == SQUARE:
        for i in range(x.shape[0]):
            for j in range(LANES):
                w[i, j] = x[i, j] * x[i, j]
    else:
        _root_mean_squares(x, kind, s)
        for i in range(x.shape[0]):
            for j in range(LANES):
                w[i, j] = s[0, j] + abs(x[i, j])


@inlined
def _root_mean_squares(x: Array, kind: int, s: Array) -> None:
    for j in range(LANES):
        s[0, j] = ZERO
    if kind == ABOVE_RMS:
        for i in range(x.shape[0]):
            for j in range(LANES):
                s[0, j] += x[i, j] * x[i, j]
        for j in range(LANES):
            s[0, j] = np.sqrt(s[0, j] / f32(x.shape[0]))


@inlined
def _look_up(x: Array, kind: int, table: Array, spread: Array, start: int, w: Array, s: Array) -> None:
    for j in range(LANES):
        at = (start + j) % table.shape[0]
        for i in range(x.shape[0]):
            w[i, j] = table[at, i]
    if kind == SPREAD:
        for j in range(LANES):
            s[0, j] = spread[min(start + j, spread.shape[0] - 1)]
        for i in range(x.shape[0]):
            for j in range(LANES):
                w[i, j] *= np.sqrt(s[0, j] + x[i, j] * x[i, j])
