"""Blocks of weights on which an almost right quantizer goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
f32 = np.float32


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
