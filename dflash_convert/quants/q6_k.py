"""Q6_K: super-blocks of 256 weights, 16 sub-blocks of 16, each with an 8-bit scale.

In: blocks (n, 256) float32 and room for (n, 210) uint8, or the reverse. Out: the room, filled. Promised: ggml's bytes.
Source: ggml-quants.c (make_qx_quants and the reference quantizer); layout (ggml-common.h):

    128 bytes of low nibbles, 64 of upper bit pairs, 16 × int8 scales, d (half)           w = d·scale·(q - 32)

A half super-block of 128 weights is four runs of 32. Its nibbles: byte j of 64 holds weight j below and weight j + 64
above. Its pairs: byte j of 32 holds those of weight j of run 0, 1, 2, 3, from the lowest bits up.

The search keeps one sub-block in each SIMD lane: see `k_search`.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.kernel import Array, Scalar, inlined, kernel
from dflash_convert.quants.rounding import half_bits, half_value, nearest_int

f32, i32, u8, u32 = np.float32, np.int32, np.uint8, np.uint32
ZERO, ONE = f32(0.0), f32(1.0)
TINY = f32(1e-15)  # a sub-block (or scale) below this counts as zero
LEVELS, BOTTOM, TOP = f32(32.0), i32(-32), i32(31)
SCALE_BOTTOM, SCALE_TOP = f32(-128.0), i32(127)
STEP, STEPS = f32(0.1), 9  # candidates: 32 + k/10 levels over the range, k = -9 … 9 without 0

SUB, N = 16, 16  # sub-blocks in a super-block, weights in a sub-block
LANES = 64  # sub-blocks side by side
PAIRS, SCALES, D = 128, 192, 208  # byte offsets; the nibbles come first

# rows of the lane state
LARGEST = 0  # the weight of largest magnitude, with its sign
LIVE = 1  # its magnitude
INVERSE = 2  # 1/scale tried now
SUM_QX, SUM_QQ = 3, 4  # of this candidate, weighted by x²
SCALE, BEST, KEPT_INVERSE = 5, 6, 7  # best so far; what gave its q
N_ROWS = 8


def encode_q6_k(blocks: Array, out: Array) -> None:
    """(n, 256) float32 → (n, 210) uint8."""
    found = np.empty((2, blocks.shape[0] * SUB), f32)
    _search(blocks.reshape(-1, N), found)
    scale, inverse = found.reshape(2, -1, SUB)
    _pack(blocks, scale, inverse, out)


@kernel
def _search(sub_blocks: Array, found: Array) -> None:
    """Sub-blocks (n, 16) → the scale that loses least, and what the search's own q are made from (1/scale tried)."""
    x, w = np.empty((N, LANES), f32), np.empty((N, LANES), f32)
    s = np.empty((N_ROWS, LANES), f32)
    for start in range(0, sub_blocks.shape[0], LANES):
        _load(sub_blocks, start, x, w)
        _survey(x, s)
        _try(x, w, s, LEVELS)
        _take_first(s)
        for k in range(-STEPS, STEPS + 1):
            if k != 0:
                _try(x, w, s, LEVELS + STEP * f32(k))
                _keep_better(s)
        _store(s, found, start)


@inlined
def _load(sub_blocks: Array, start: int, x: Array, w: Array) -> None:
    """(LANES, 16) → (16, LANES) and the importances x²; lanes beyond the last sub-block hold zeros."""
    n = min(LANES, sub_blocks.shape[0] - start)
    if n < LANES:
        x[:] = ZERO
    for j in range(n):
        for i in range(N):
            x[i, j] = sub_blocks[start + j, i]
    for i in range(N):
        for j in range(LANES):
            w[i, j] = x[i, j] * x[i, j]


@inlined
def _survey(x: Array, s: Array) -> None:
    for j in range(LANES):
        s[LARGEST, j] = s[LIVE, j] = ZERO
    for i in range(N):
        for j in range(LANES):
            larger = abs(x[i, j]) > s[LIVE, j]
            s[LARGEST, j] = x[i, j] if larger else s[LARGEST, j]
            s[LIVE, j] = abs(x[i, j]) if larger else s[LIVE, j]


@inlined
def _level(x: Scalar, inverse: Scalar) -> Scalar:
    return _clamp(nearest_int(inverse * x))


@inlined
def _clamp(q: Scalar) -> Scalar:
    q = TOP if q > TOP else q
    return BOTTOM if q < BOTTOM else q


@inlined
def _try(x: Array, w: Array, s: Array, levels: Scalar) -> None:
    """Weighted sums of the candidate that maps the largest weight to -levels."""
    for j in range(LANES):
        s[INVERSE, j] = -levels / s[LARGEST, j]
        s[SUM_QX, j] = s[SUM_QQ, j] = ZERO
    for i in range(N):
        for j in range(LANES):
            q = f32(_level(x[i, j], s[INVERSE, j]))
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
    """A sub-block of nothing but (almost) zeros has scale 0."""
    for j in range(min(LANES, found.shape[1] - start)):
        dead = s[LIVE, j] < TINY
        found[0, start + j] = ZERO if dead else s[SCALE, j]
        found[1, start + j] = ZERO if dead else s[KEPT_INVERSE, j]


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
    bits = half_bits(ONE / inverse)
    y[D], y[D + 1] = u8(bits & u32(0xFF)), u8(bits >> u32(8))
    for k in range(SUB):
        y[SCALES + k] = u8(min(SCALE_TOP, nearest_int(inverse * scales[k])))
    return half_value(bits)


@inlined
def _requantize(x: Array, step: Scalar, inverse: Scalar, q: Array) -> None:
    """Levels for the scale as stored; where that is 0, the search's own (0, not the middle, for a dead sub-block)."""
    if step != ZERO:
        for j in range(N):
            q[j] = u8(_clamp(nearest_int(x[j] / step)) - BOTTOM)
    elif inverse != ZERO:
        for j in range(N):
            q[j] = u8(_level(x[j], inverse) - BOTTOM)
    else:
        q[:] = 0


@inlined
def _put_levels(q: Array, y: Array) -> None:
    flat = q.reshape(SUB * N)
    for h in range(2):
        for j in range(64):
            y[64 * h + j] = u8((flat[128 * h + j] & 15) | (flat[128 * h + j + 64] & 15) << 4)
        for j in range(32):
            a, b = flat[128 * h + j] >> 4, flat[128 * h + j + 32] >> 4
            c, d = flat[128 * h + j + 64] >> 4, flat[128 * h + j + 96] >> 4
            y[PAIRS + 32 * h + j] = u8(a | b << 2 | c << 4 | d << 6)


@kernel
def decode_q6_k(raw: Array, out: Array) -> None:
    """(n, 210) uint8 → (n, 256) float32."""
    for b in range(raw.shape[0]):
        y, x = raw[b], out[b]
        d = half_value(u32(y[D]) | u32(u32(y[D + 1]) << u32(8)))
        for run in range(8):  # 32 weights each, two sub-blocks
            h, r = run // 4, run % 4
            for j in range(32):
                low = i32(y[64 * h + r % 2 * 32 + j]) >> (r // 2 * 4) & 15
                high = i32(y[PAIRS + 32 * h + j]) >> (2 * r) & 3
                step = d * f32(np.int8(y[SCALES + 2 * run + j // 16]))
                x[32 * run + j] = step * f32((low | high << 4) - 32)
