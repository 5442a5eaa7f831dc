"""Q4_0, Q4_1, Q5_0, Q5_1 with importance weights: the same blocks as in `blocks32`, found by a search.

In: the blocks of whole rows (n, 32) float32, room for (n, bytes) uint8, and the importance of a row's weights,
(blocks of a row, 32) float32. Out: the room, filled. Promised: ggml's bytes. Source: ggml-quants.c, the quantizers that
take weights. An error in weight x counts as its importance · sqrt(mean square of the *row* + x²).
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.fields import put_five_bits, put_half, put_nibbles
from dflash_convert.quants.kernel import Array, Scalar, kernel
from dflash_convert.quants.lanes import SPREAD, Importance, spread
from dflash_convert.quants.min_search import level_of, search, weighted_grid
from dflash_convert.quants.scale_search import own_level, search_scale

i32 = np.int32
N = 32  # weights in a block
FOUR_BITS, FIVE_BITS = 15, 31  # the top level


def encode_q4_0(blocks: Array, out: Array, importance: Array) -> None:
    """(n, 32) float32 → (n, 18) uint8."""
    _encode_scale(blocks, out, importance, FOUR_BITS)


def encode_q4_1(blocks: Array, out: Array, importance: Array) -> None:
    """(n, 32) float32 → (n, 20) uint8."""
    _encode_scale_and_minimum(blocks, out, importance, FOUR_BITS)


def encode_q5_0(blocks: Array, out: Array, importance: Array) -> None:
    """(n, 32) float32 → (n, 22) uint8."""
    _encode_scale(blocks, out, importance, FIVE_BITS)


def encode_q5_1(blocks: Array, out: Array, importance: Array) -> None:
    """(n, 32) float32 → (n, 24) uint8."""
    _encode_scale_and_minimum(blocks, out, importance, FIVE_BITS)


def _importance(blocks: Array, table: Array) -> Importance:
    row = len(table)  # blocks
    return Importance(SPREAD, table, spread(blocks.reshape(-1, row * N), row, times=1, over=row * N))


def _encode_scale(blocks: Array, out: Array, table: Array, top: int) -> None:
    levels = (top + 1) // 2
    fit = search_scale(blocks, levels, _importance(blocks, table))
    _pack_scale(blocks, fit.scale, fit.inverse, i32(levels), out)


def _encode_scale_and_minimum(blocks: Array, out: Array, table: Array, top: int) -> None:
    fit = search(blocks, weighted_grid(top), _importance(blocks, table))
    _pack_scale_and_minimum(blocks, fit.scale, fit.minimum, fit.inverse, fit.low, i32(top), out)


@kernel
def _pack_scale(blocks: Array, scale: Array, inverse: Array, levels: Scalar, out: Array) -> None:
    q = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        put_half(y, 0, scale[b])
        for j in range(N):
            q[j] = own_level(x[j], inverse[b], levels)
        if levels > 8:
            put_five_bits(y, 2, q)
        else:
            put_nibbles(y, 2, q)


@kernel
def _pack_scale_and_minimum(
    blocks: Array, scale: Array, minimum: Array, inverse: Array, low: Array, top: Scalar, out: Array
) -> None:
    q = np.empty(N, i32)
    for b in range(blocks.shape[0]):
        x, y = blocks[b], out[b]
        put_half(y, 0, scale[b])
        put_half(y, 2, -minimum[b])
        for j in range(N):
            q[j] = level_of(x[j], low[b], inverse[b], top)
        if top > FOUR_BITS:
            put_five_bits(y, 4, q)
        else:
            put_nibbles(y, 4, q)
