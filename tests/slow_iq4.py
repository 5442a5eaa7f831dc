"""IQ4_NL and IQ4_XS as plainly and slowly as can be; see `slow_quants`."""

from __future__ import annotations

from typing import Any

import numpy as np
from slow_quants import Array, f32, slow_level, slow_sum

VALUES = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]


def slow_value_level(v: Any) -> int:
    """By float32 differences, as ggml compares them: of two as near, the upper; NaN is above all."""
    if v <= VALUES[0]:
        return 0
    upper = next((k for k in range(1, 16) if v < VALUES[k]), 15)
    lower_gap, upper_gap = f32(v) - f32(VALUES[upper - 1]), f32(VALUES[upper]) - f32(v)
    return upper - 1 if lower_gap < upper_gap else upper


def slow_value_search(x: Array, w: Array) -> Any:
    """One sub-block and its importances → scale."""
    largest = f32(0)
    for v in x:
        largest = v if abs(v) > abs(largest) else largest
    if abs(largest) < f32(1e-15):
        return f32(0)

    def attempt(inverse: Any) -> tuple[Any, Any]:
        q = [f32(VALUES[slow_value_level(inverse * v)]) for v in x]
        qx = slow_sum(wi * qi * v for wi, qi, v in zip(w, q, x, strict=True))
        return qx, slow_sum(wi * qi * qi for wi, qi in zip(w, q, strict=True))

    qx, qq = attempt(f32(1) / (-largest / f32(-127)))
    scale = qx / qq if qq > 0 else f32(0)
    best = scale * qx
    for k in range(-7, 8):
        qx, qq = attempt(f32(k - 127) / largest)
        if qq > 0 and qx * qx > best * qq:
            scale = qx / qq
            best = scale * qx
    return scale


def slow_inverse(scale: Any) -> Any:
    return f32(1) / scale if scale else f32(0)


def slow_importance(x: Array, given: Array | None) -> Array:
    """Of a block: the sum of squares is multiplied by 2/n at once, where other types multiply by two, then divide."""
    if given is None:
        return x * x
    square = slow_sum(v * v for v in x) * (f32(2) / f32(len(x)))
    return np.asarray(given * np.sqrt(square + x * x))


def slow_iq4_nl(x: Array, importance: Array | None = None) -> Array:
    """256 weights, eight blocks → d and 32 levels of each."""
    numbers: list[Any] = []
    for k in range(0, 256, 32):
        sub = x[k : k + 32]
        w = slow_importance(sub, None if importance is None else importance[k : k + 32])
        scale = slow_value_search(sub, w)
        numbers += [np.float16(scale), *(slow_value_level(slow_inverse(scale) * v) for v in sub)]
    return np.array(numbers, np.float64)


def slow_iq4_xs(x: Array, importance: Array | None = None) -> Array:
    """256 weights, one block → d, 8 scales, 256 levels."""
    w = slow_importance(x, importance)
    found = [slow_value_search(sub, wi) for sub, wi in zip(x.reshape(8, 32), w.reshape(8, 32), strict=True)]
    largest = f32(0)
    for scale in found:
        largest = scale if abs(scale) > abs(largest) else largest
    d = -largest / f32(32)
    sc = [slow_level(slow_inverse(d) * scale, -32, 31) for scale in found]
    levels: list[int] = []
    for sub, k in zip(x.reshape(8, 32), sc, strict=True):
        inverse = slow_inverse(d * f32(k))
        levels += [slow_value_level(inverse * v) for v in sub]
    return np.array([np.float16(d), *sc, *levels], np.float64)


SLOW_IQ4 = {"IQ4_NL": slow_iq4_nl, "IQ4_XS": slow_iq4_xs}


def iq4_numbers(raw: Array, name: str) -> Array:
    """The bytes for 256 weights → the numbers in them, in the order of the slow reference."""
    if name == "IQ4_NL":
        blocks = raw.reshape(8, 18)
        d, q = blocks[:, :2].copy().view(np.float16), blocks[:, 2:]
        return np.concatenate([d, q & 15, q >> 4], axis=1).astype(np.float64).reshape(-1)
    high, low, q = raw[2:4], raw[4:8], raw[8:].reshape(8, 1, 16)
    upper = (high.reshape(2, 1) >> np.arange(0, 8, 2) & 3).reshape(-1)
    sc = (low.reshape(4, 1) >> np.array([0, 4]) & 15).reshape(-1) | upper << 4
    levels = np.concatenate([q & 15, q >> 4], axis=1).reshape(-1)
    return np.concatenate([raw[:2].copy().view(np.float16).astype(np.float64), sc.astype(int) - 32, levels])
