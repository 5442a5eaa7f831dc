"""The K-quants once more, as plainly and slowly as can be: one float32 operation at a time, from the description of the
formats. The kernels under test must agree with it to the last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
f32 = np.float32

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


def slow_min_search(x: Array, top: int, first: float, steps: int) -> tuple[Any, Any, list[int]]:
    """One sub-block of Q4_K or Q5_K → scale, minimum, the search's own levels."""
    spread = np.sqrt(slow_sum(v * v for v in x) / f32(32))
    w = [spread + abs(v) for v in x]
    sum_w, sum_x = w[0], w[0] * x[0]
    for wi, v in zip(w[1:], x[1:], strict=True):
        sum_w, sum_x = sum_w + wi, sum_x + wi * v
    low, high = min(f32(0), min(x)), max(x)
    if low == high:
        return f32(0), -low, [0] * 32

    def loss(scale: Any, low: Any, q: list[int]) -> Any:
        misses = [scale * f32(qi) + low - v for qi, v in zip(q, x, strict=True)]
        return slow_sum(wi * (m * m) for wi, m in zip(w, misses, strict=True))

    inverse = f32(top) / (high - low)
    scale = f32(1) / inverse
    q = [slow_level(inverse * (v - low), 0, top) for v in x]
    best, kept = loss(scale, low, q), q
    for k in range(steps + 1):
        inverse = (f32(first) + f32(0.1) * f32(k) + f32(top)) / (high - low)
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


def slow_six_bits(values: list[Any]) -> tuple[list[int], Any]:
    largest = max([f32(0), *values])
    inverse = f32(63) / largest if largest > 0 else f32(0)
    return [min(63, slow_nearest_int(inverse * v) & 0xFF) for v in values], np.float16(largest / f32(63))


def slow_min_block(x: Array, top: int, first: float, steps: int) -> Array:
    """256 weights → d, dmin, scales, minima and levels, as one flat array of numbers."""
    found = [slow_min_search(sub, top, first, steps) for sub in x.reshape(8, 32)]
    sc, d = slow_six_bits([f[0] for f in found])
    mn, dmin = slow_six_bits([f[1] for f in found])
    levels: list[int] = []
    for k, sub in enumerate(x.reshape(8, 32)):
        step, shift = f32(d) * f32(sc[k]), f32(dmin) * f32(mn[k])
        levels += [slow_level((v + shift) / step, 0, top) for v in sub] if step else found[k][2]
    return np.array([d, dmin, *sc, *mn, *levels], np.float64)


def slow_q6_search(x: Array) -> tuple[Any, list[int]]:
    """One sub-block of Q6_K → scale, the search's own levels."""
    largest = f32(0)
    for v in x:
        largest = v if abs(v) > abs(largest) else largest
    if abs(largest) < f32(1e-15):
        return f32(0), [-32] * 16

    def attempt(levels: Any) -> tuple[Any, Any, list[int]]:
        q = [slow_level(-levels / largest * v, -32, 31) for v in x]
        qx = slow_sum(v * v * v * f32(qi) for v, qi in zip(x, q, strict=True))
        return qx, slow_sum(v * v * f32(qi) * f32(qi) for v, qi in zip(x, q, strict=True)), q

    qx, qq, kept = attempt(f32(32))
    scale = qx / qq if qq else f32(0)
    best = scale * qx
    for k in [k for k in range(-9, 10) if k]:
        qx, qq, q = attempt(f32(32) + f32(0.1) * f32(k))
        if qq > 0 and qx * qx > best * qq:
            scale, kept = qx / qq, q
            best = scale * qx
    return scale, kept


def slow_q6_block(x: Array) -> Array:
    found = [slow_q6_search(sub) for sub in x.reshape(16, 16)]
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


# type → (256,) float32 to its numbers
SLOW: dict[str, Callable[[Array], Array]] = {
    "Q4_K": lambda x: slow_min_block(x, 15, -1.0, 20),
    "Q5_K": lambda x: slow_min_block(x, 31, -0.5, 15),
    "Q6_K": slow_q6_block,
}


def numbers(raw: Array, name: str) -> Array:
    """A block's bytes → the numbers in it, in the order of the slow reference."""
    d = raw[208:210] if name == "Q6_K" else raw[:4]
    head = d.copy().view(np.float16).astype(np.float64)
    if name == "Q6_K":
        low, high = raw[:128].reshape(2, 1, 64), raw[128:192].reshape(2, 1, 32)
        nibbles = np.concatenate([low & 15, low >> 4], axis=1).reshape(2, 4, 32)
        pairs = high >> np.arange(0, 8, 2).reshape(1, 4, 1) & 3
        return np.concatenate([head, raw[192:208].view(np.int8), (nibbles | pairs << 4).reshape(-1).astype(int) - 32])
    s, rest = raw[4:16], raw[-128:].reshape(4, 1, 32)
    sc = np.concatenate([s[:4] & 63, s[8:] & 15 | s[:4] >> 6 << 4])
    mn = np.concatenate([s[4:8] & 63, s[8:] >> 4 | s[4:8] >> 6 << 4])
    q = np.concatenate([rest & 15, rest >> 4], axis=1).reshape(8, 32)
    if name == "Q5_K":
        q = q | (raw[16:48] >> np.arange(8).reshape(8, 1) & 1) << 4
    return np.concatenate([head, sc, mn, q.reshape(-1)])


def odd_blocks() -> dict[str, Array]:
    """Blocks (256,) on which an almost right quantizer goes wrong, by what is odd about them."""
    r = np.random.default_rng(7)
    normal = r.standard_normal(256).astype(np.float32)
    mixed = normal.copy()
    mixed[32:64], mixed[64:96], mixed[96:128] = 0.0, 3e-5 * normal[64:96], -0.75
    mixed[128:144] *= f32(3e-16)  # zero to Q6_K
    levels = np.random.default_rng(5).random((8, 1)) * (1 + 1e-3 * np.random.default_rng(6).standard_normal((8, 32)))
    tails = np.random.default_rng(7).standard_t(2, (60, 256)).astype(np.float32)
    return {
        # the very last candidate is the best of a sub-block, which is rare: one in a thousand
        "won by Q4_K's last candidate": tails[18],
        "won by Q5_K's last candidate": tails[52],
        "normal": normal,
        "heavy tails": r.standard_t(2, 256).astype(np.float32),
        "positive": abs(normal) + f32(1),
        "negative": -abs(normal) - f32(1),
        "constant": np.full(256, 0.3, np.float32),
        "negative constant": np.full(256, -0.3, np.float32),
        "nearly constant": np.nextafter(f32(-1), f32(0)) * (r.integers(0, 2, 256)).astype(np.float32) * f32(1e-7)
        - f32(1),
        # all q equal: the determinant of the fit is nothing but rounding, of either sign
        "nearly constant, positive": levels.reshape(-1).astype(np.float32),
        "zeros": np.zeros(256, np.float32),
        "one outlier": np.where(np.arange(256) == 77, f32(100), normal * f32(1e-3)),
        "ties": r.integers(-8, 8, 256).astype(np.float32) / f32(2),
        "two values": np.where(r.integers(0, 2, 256), f32(0.25), f32(-0.5)),
        "some sub-blocks tiny, zero, constant": mixed,
        "subnormal": (normal * f32(1e-39)).astype(np.float32),
        "subnormal outlier": np.where(np.arange(256) % 32 == 3, f32(1), normal * f32(1e-40)),
        "just below Q6_K's threshold": normal * f32(3e-16),
        "large": normal * f32(1e6),
        "sparse": np.where(r.random(256) < 0.05, normal, f32(0)),
    }


ODD = odd_blocks()
