"""The K-quants once more, as plainly and slowly as can be: one float32 operation at a time, from the description of the
formats. The kernels under test must agree with it to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
f32 = np.float32


@dataclass(frozen=True)
class Grid:
    """Scales to try: first + k·step levels more than top, k = 0 … steps; whether errors count by their size."""

    top: int
    first: float
    step: float
    steps: int
    absolute: bool = False


MAGIC = f32(12582912.0)


def slow_nearest_int(v: Any) -> int:
    with np.errstate(all="ignore"):
        bits = int(struct.unpack("<i", struct.pack("<f", f32(v) + MAGIC))[0])
    return (bits & 0x007FFFFF) - 0x00400000


def slow_level(v: Any, bottom: int, top: int) -> int:
    return max(bottom, min(top, slow_nearest_int(v)))


def slow_sum(terms: Iterator[Any]) -> Any:
    total = f32(0)
    for term in terms:
        total = total + term
    return total


def above_rms(x: Array) -> list[Any]:
    """The importances of plain Q4_K and Q5_K."""
    rms = np.sqrt(slow_sum(v * v for v in x) / f32(32))
    return [rms + abs(v) for v in x]


def slow_min_search(x: Array, w: list[Any], grid: Grid) -> tuple[Any, Any, list[int]]:
    """One sub-block of Q2_K, Q4_K or Q5_K and its importances → scale, minimum, the search's own levels."""
    top, first, step, steps = grid.top, grid.first, grid.step, grid.steps
    sum_w, sum_x = w[0], w[0] * x[0]
    for wi, v in zip(w[1:], x[1:], strict=True):
        sum_w, sum_x = sum_w + wi, sum_x + wi * v
    low, high = min(f32(0), min(x)), max(x)
    if low == high:
        return f32(0), -low, [0] * len(x)

    def loss(scale: Any, low: Any, q: list[int]) -> Any:
        misses = [scale * f32(qi) + low - v for qi, v in zip(q, x, strict=True)]
        return slow_sum(wi * (abs(m) if grid.absolute else m * m) for wi, m in zip(w, misses, strict=True))

    inverse = f32(top) / (high - low)
    scale = f32(1) / inverse
    q = [slow_level(inverse * (v - low), 0, top) for v in x]
    best, kept = loss(scale, low, q), q
    for k in range(steps + 1):
        inverse = (f32(first) + f32(step) * f32(k) + f32(top)) / (high - low)
        q = [slow_level(inverse * (v - low), 0, top) for v in x]
        sum_q = slow_sum(wi * f32(qi) for wi, qi in zip(w, q, strict=True))
        sum_qq = slow_sum(wi * f32(qi) * f32(qi) for wi, qi in zip(w, q, strict=True))
        sum_qx = slow_sum(wi * f32(qi) * v for wi, qi, v in zip(w, q, x, strict=True))
        det = sum_w * sum_qq - sum_q * sum_q
        if not det > 0:
            continue
        try_scale = (sum_w * sum_qx - sum_x * sum_q) / det
        try_low = (sum_qq * sum_x - sum_q * sum_qx) / det
        if try_low > 0:
            try_scale, try_low = sum_qx / sum_qq, f32(0)
        if (error := loss(try_scale, try_low, q)) < best:
            best, scale, low, kept = error, try_scale, try_low, q
    return scale, -low, kept


def slow_round_scales(values: list[Any], w: list[Any], top: int) -> tuple[list[int], Any]:
    """Scales or minima → whole levels, their step as a half. Importances make no difference here."""
    largest = max([f32(0), *values])
    inverse = f32(top) / largest if largest > 0 else f32(0)
    return [min(top, slow_nearest_int(inverse * v) & 0xFF) for v in values], np.float16(largest / f32(top))


def slow_fit_scales(values: list[Any], w: list[Any], top: int) -> tuple[list[int], Any]:
    """The same with the importances of the sub-blocks."""
    largest = max([f32(0), *values])
    if largest < f32(1e-15):
        return [0] * len(values), np.float16(0)

    def loss(inverse: Any) -> Any:
        misses = [v - f32(1) / inverse * f32(min(top, slow_nearest_int(inverse * v))) for v in values]
        return slow_sum(wi * m * m for wi, m in zip(w, misses, strict=True))

    best, inverse = loss(f32(top) / largest), f32(top) / largest
    for k in [k for k in range(-4, 5) if k]:
        attempt = (f32(0.1) * f32(k) + f32(top)) / largest
        if (error := loss(attempt)) < best:
            best, inverse = error, attempt
    q = [min(top, slow_nearest_int(inverse * v)) for v in values]
    return q, np.float16(slow_improve(values, w, q, -1000, top))


def slow_improve(x: list[Any] | Array, w: list[Any], q: list[int], bottom: int, top: int) -> Any:
    """Change levels one by one where that gains, until none does (or five times): `q` in place; gives the scale."""
    qx = slow_sum(wi * v * f32(qi) for wi, v, qi in zip(w, x, q, strict=True))
    qq = slow_sum(wi * f32(qi) * f32(qi) for wi, qi in zip(w, q, strict=True))
    for _ in range(5):
        before = list(q)
        for i, (wi, v) in enumerate(zip(w, x, strict=True)):
            rest_qx, rest_qq = qx - wi * v * f32(q[i]), qq - wi * f32(q[i]) * f32(q[i])
            if not rest_qx > 0 or (bottom < -100 and not rest_qq > 0):
                continue
            new = max(bottom, min(top, slow_nearest_int(v * rest_qq / rest_qx)))
            new_qx, new_qq = rest_qx + wi * v * f32(new), rest_qq + wi * f32(new) * f32(new)
            if new != q[i] and new_qq > 0 and new_qx * new_qx * qq > qx * qx * new_qq:
                q[i], qx, qq = new, new_qx, new_qq
        if q == before:
            break
    return qx / qq if qq > 0 else f32(0)


def slow_min_block(x: Array, grid: Grid, weigh: Callable[[Array], list[Any]], n: int) -> Array:
    """256 weights → d, dmin, scales, minima and levels, as one flat array of numbers."""
    return slow_min_numbers(x, grid, [weigh(sub) for sub in x.reshape(-1, n)], slow_round_scales)


def slow_weighted_min_block(x: Array, importance: Array, top: int, n: int, times: float) -> Array:
    """The same with the importances of the weights; the mean square counts `times`."""
    w = slow_spread(x, importance, times).reshape(-1, n)
    return slow_min_numbers(x, Grid(top, -0.9, 0.05, 36), [list(row) for row in w], slow_fit_scales)


def slow_spread(x: Array, importance: Array, times: float) -> Array:
    square = f32(times) * slow_sum(v * v for v in x) / f32(len(x))
    return np.asarray(importance * np.sqrt(square + x * x))


def slow_min_numbers(x: Array, grid: Grid, w: list[list[Any]], scales: Any) -> Array:
    subs = x.reshape(len(w), -1)
    top_scale = 15 if grid.top == 3 else 63
    found = [slow_min_search(sub, wi, grid) for sub, wi in zip(subs, w, strict=True)]
    sums = [slow_sum(iter(wi)) for wi in w]
    sc, d = scales([f[0] for f in found], sums, top_scale)
    mn, dmin = scales([f[1] for f in found], sums, top_scale)
    levels: list[int] = []
    for k, sub in enumerate(subs):
        step, shift = f32(d) * f32(sc[k]), f32(dmin) * f32(mn[k])
        levels += [slow_level((v + shift) / step, 0, grid.top) for v in sub] if step else found[k][2]
    return np.array([d, dmin, *sc, *mn, *levels], np.float64)


def slow_scale_search(x: Array | list[Any], w: Array | list[Any], top: int) -> tuple[Any, list[int]]:
    """One sub-block of Q6_K (of weighted Q3_K, or its scales) and its importances → scale, the search's own levels."""
    largest = f32(0)
    for v in x:
        largest = v if abs(v) > abs(largest) else largest
    if abs(largest) < f32(1e-15):
        return f32(0), [-top] * 16

    def attempt(levels: Any) -> tuple[Any, Any, list[int]]:
        q = [slow_level(-levels / largest * v, -top, top - 1) for v in x]
        qx = slow_sum(wi * v * f32(qi) for wi, v, qi in zip(w, x, q, strict=True))
        return qx, slow_sum(wi * f32(qi) * f32(qi) for wi, qi in zip(w, q, strict=True)), q

    qx, qq, kept = attempt(f32(top))
    scale = qx / qq if qq else f32(0)
    best = scale * qx
    for k in [k for k in range(-9, 10) if k]:
        qx, qq, q = attempt(f32(top) + f32(0.1) * f32(k))
        if qq > 0 and qx * qx > best * qq:
            scale, kept = qx / qq, q
            best = scale * qx
    return scale, kept


def slow_q6_block(x: Array, importance: Array | None = None) -> Array:
    w = (x * x if importance is None else importance).reshape(16, 16)
    found = [slow_scale_search(sub, wi, 32) for sub, wi in zip(x.reshape(16, 16), w, strict=True)]
    largest = f32(0)
    for scale, _ in found:
        largest = scale if abs(scale) > abs(largest) else largest
    if abs(largest) < f32(1e-15):
        return np.array([0.0] * 17 + [-32.0] * 256)
    inverse = f32(-128) / largest
    d = np.float16(f32(1) / inverse)
    sc = [min(127, slow_nearest_int(inverse * scale)) for scale, _ in found]
    levels: list[int] = []
    for k, sub in enumerate(x.reshape(16, 16)):
        step = f32(d) * f32(sc[k])
        levels += [slow_level(v / step, -32, 31) for v in sub] if step else found[k][1]
    return np.array([d, *sc, *levels], np.float64)


def slow_level_search(x: Array, top: int) -> tuple[Any, list[int]]:
    """One sub-block of plain Q3_K → scale, levels: a start from the largest weight, then improved one by one."""
    largest = f32(0)
    for v in x:
        largest = v if abs(v) > abs(largest) else largest
    if abs(largest) < f32(1e-15):
        return f32(0), [-top] * 16
    q = [slow_level(f32(-top) / largest * v, -top, top - 1) for v in x]
    return slow_improve(x, list(x * x), q, -top, top - 1), q


def slow_q3_block(x: Array) -> Array:
    found = [slow_level_search(sub, 4) for sub in x.reshape(16, 16)]
    largest = f32(0)
    for scale, _ in found:
        largest = scale if abs(scale) > abs(largest) else largest
    if not largest:
        return slow_q3_numbers(x, f32(0), [-32] * 16, found)
    inverse = f32(-32) / largest
    return slow_q3_numbers(x, f32(1) / inverse, [slow_level(inverse * scale, -32, 31) for scale, _ in found], found)


def slow_weighted_q3_block(x: Array, importance: Array) -> Array:
    w = slow_spread(x, importance, 2).reshape(16, 16)
    found = [slow_scale_search(sub, wi, 4) for sub, wi in zip(x.reshape(16, 16), w, strict=True)]
    d, sc = slow_scale_search([f[0] for f in found], [slow_sum(iter(wi)) for wi in w], 32)
    return slow_q3_numbers(x, d, sc, found)


def slow_q3_numbers(x: Array, d: Any, sc: list[int], found: list[tuple[Any, list[int]]]) -> Array:
    levels: list[int] = []
    for k, sub in enumerate(x.reshape(16, 16)):
        step = f32(np.float16(d)) * f32(sc[k])
        levels += [slow_level(v / step, -4, 3) for v in sub] if step else found[k][1]
    return np.array([np.float16(d), *sc, *levels], np.float64)


# type → (256,) float32 to its numbers
SLOW: dict[str, Callable[[Array], Array]] = {
    "Q2_K": lambda x: slow_min_block(x, Grid(3, -0.5, 0.1, 15, absolute=True), lambda sub: list(abs(sub)), 16),
    "Q3_K": slow_q3_block,
    "Q4_K": lambda x: slow_min_block(x, Grid(15, -1.0, 0.1, 20), above_rms, 32),
    "Q5_K": lambda x: slow_min_block(x, Grid(31, -0.5, 0.1, 15), above_rms, 32),
    "Q6_K": slow_q6_block,
}

# type → the same with importances, (256,) float32
SLOW_WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "Q2_K": lambda x, w: slow_weighted_min_block(x, w, 3, 16, 1),
    "Q3_K": slow_weighted_q3_block,
    "Q4_K": lambda x, w: slow_weighted_min_block(x, w, 15, 32, 2),
    "Q5_K": lambda x, w: slow_weighted_min_block(x, w, 31, 32, 2),
    "Q6_K": lambda x, w: slow_q6_block(x, w),
}


def pairs(raw: Array) -> Array:
    """64 bytes → 256 levels in 0…3."""
    return np.asarray(raw.reshape(2, 1, 32) >> np.arange(0, 8, 2).reshape(1, 4, 1) & 3).reshape(-1)


def numbers(raw: Array, name: str) -> Array:
    """A block's bytes → the numbers in it, in the order of the slow reference."""
    d = {"Q6_K": raw[208:210], "Q2_K": raw[80:84], "Q3_K": raw[108:110]}.get(name, raw[:4])
    head = d.copy().view(np.float16).astype(np.float64)
    if name == "Q6_K":
        low = raw[:128].reshape(2, 1, 64)
        nibbles = np.concatenate([low & 15, low >> 4], axis=1).reshape(-1)
        levels = (nibbles | pairs(raw[128:192]) << 4).astype(int) - 32
        return np.concatenate([head, raw[192:208].view(np.int8), levels])
    if name == "Q2_K":
        return np.concatenate([head, raw[:16] & 15, raw[:16] >> 4, pairs(raw[16:80])])
    if name == "Q3_K":
        nibbles = np.concatenate([raw[96:104] & 15, raw[96:104] >> 4])
        sc = nibbles | (raw[104:108] >> np.arange(0, 8, 2).reshape(4, 1) & 3).reshape(-1) << 4
        thirds = (raw[:32] >> np.arange(8).reshape(8, 1) & 1).reshape(-1)
        return np.concatenate([head, sc.astype(int) - 32, (pairs(raw[32:96]) | thirds << 2).astype(int) - 4])
    s, rest = raw[4:16], raw[-128:].reshape(4, 1, 32)
    sc = np.concatenate([s[:4] & 63, s[8:] & 15 | s[:4] >> 6 << 4])
    mn = np.concatenate([s[4:8] & 63, s[8:] >> 4 | s[4:8] >> 6 << 4])
    q = np.concatenate([rest & 15, rest >> 4], axis=1).reshape(8, 32)
    if name == "Q5_K":
        q = q | (raw[16:48] >> np.arange(8).reshape(8, 1) & 1) << 4
    return np.concatenate([head, sc, mn, q.reshape(-1)])
