"""How far a dequantized weight may lie from its source: a bound for every block type, from the block's own scale.

In: a tensor's bytes, its dequantized values and its source values, all for the same rows. Out: for each weight the
error that is explained (`allowed`), and for each block whether it lost its signal.

**Floats.** F32, F16, BF16: the source rounded to the type, to nearest, ties to even. Not a bound but the value itself,
so a source that fits is compared exactly.

**Blocks.** A block stores a scale (and perhaps a minimum); its values lie on the grid `offset + step · level`. Every
ggml quantizer ends by giving each weight the nearest level, so the error may be no more than the distance from the
source to the nearest grid point: half a step inside the grid, more only where the source lies beyond its end. A code
with one wrong bit lands at least a step from where it should, and a wrong scale moves the grid under the codes. What
rounding adds:
- K-quants choose the levels with the scales as stored: nothing but float32 arithmetic (`levels · 2⁻²² · step`).
- Q8_0, Q4_x, Q5_x choose them with the scale before it becomes an f16. That moves a value y by half an f16 ulp,
  δ = |y| · 2⁻¹¹ (in the subnormal range level · 2⁻²⁵), and a grid moved by δ may prefer a level by 2δ.
- IQ4_NL and IQ4_XS do so too, over 16 uneven levels (nearest among those that there are). MXFP4's scale is a power of
  two, stored as it was used; its largest weight may lie up to a quarter beyond the last level.
- With an importance matrix Q4_x and Q5_x refit the scale after choosing levels: there only the next test holds.

**Signal.** A scale that became zero puts every weight on its only grid point, which the first test cannot see. So the
rms error of a block must stay below a share of its rms, plus what the f16 scale cannot express. For a block of N
weights whose largest is a, rms ≥ a/√N; with L levels between 0 and a, rounding errs by at most half a step, a/2L (and
δ); and a sub-block's own scale is rounded to one of S values, so up to a/2S is lost where one sub-block dwarfs the
others: `share = √n · (1/2 + δ) / L + √N / 2S`, n weights in a sub-block. With an importance matrix a weight may count
for nothing, so there, and for types without a row here, only a block that lost (almost) everything fails: SHARE_LIMIT.

Of the 1152 single-bit faults of a Q4_K block of normal weights these tests miss 7, all in the lowest bits of scales,
where no weight would have been given another level; of its codes, none.

**Reach.** Q8_0's largest weight is level ±127 by definition, so its scale itself is known to half an f16 ulp.

The block layouts are those of ggml-common.h; the same scales are read here without the decoder under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
Grid = tuple[Floats, Floats]  # (step, offset), each (rows, sub-blocks)

FLOATS: Mapping[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
SHARE_LIMIT = 0.95
HALF_ULP = 2.0**-11  # of an f16, relative
TINY = 2.0**-25  # half the smallest f16


def _f16(blocks: Bytes, at: int) -> Floats:
    """The f16 at byte `at` of every block, (rows, blocks, 1)."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16).astype(np.float32)


def _flat(step: Any, offset: Any) -> Grid:
    """(rows, blocks, sub-blocks) → (rows, sub-blocks of the whole row)."""
    step = np.asarray(step, dtype=np.float32)
    return step.reshape(len(step), -1), np.broadcast_to(offset, step.shape).reshape(len(step), -1)


def _scale(blocks: Bytes) -> Grid:
    """d at the start: Q8_0, Q4_0, Q5_0."""
    return _flat(_f16(blocks, 0), 0.0)


def _scale_min(blocks: Bytes) -> Grid:
    """d, m at the start: Q4_1, Q5_1."""
    return _flat(_f16(blocks, 0), _f16(blocks, 2))


def _six_bit(blocks: Bytes) -> Grid:
    """d, dmin, then 8 scales and 8 minima of 6 bits in 12 bytes: Q4_K, Q5_K."""
    low, mid, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=-1)
    minima = np.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], axis=-1)
    return _flat(_f16(blocks, 0) * scales, -_f16(blocks, 2) * minima)


def _four_bit(blocks: Bytes) -> Grid:
    """16 pairs of a 4-bit scale and a 4-bit minimum first, d and dmin at the end: Q2_K."""
    pairs = blocks[..., :16]
    return _flat(_f16(blocks, 80) * (pairs & 15), -_f16(blocks, 82) * (pairs >> 4))


def _signed_six_bit(blocks: Bytes) -> Grid:
    """16 scales of 6 bits, 32 too large, 4 bits in 8 bytes and 2 bits in 4; d at the end: Q3_K."""
    low, high = blocks[..., 96:104], blocks[..., 104:108]
    nibbles = np.concatenate([low & 15, low >> 4], axis=-1)
    pairs = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
    return _flat(_f16(blocks, 108) * ((nibbles | pairs << 4).astype(np.int16) - 32), 0.0)


def _int8(blocks: Bytes) -> Grid:
    """16 int8 scales and d at the end: Q6_K."""
    return _flat(_f16(blocks, 208) * np.ascontiguousarray(blocks[..., 192:208]).view(np.int8), 0.0)


def _scaled_table(blocks: Bytes) -> Grid:
    """d, then 8 scales of 6 bits, 32 too large: 2 bits each in 2 bytes, 4 bits each in 4: IQ4_XS."""
    high = np.ascontiguousarray(blocks[..., 2:4]).view(np.uint16)
    pairs = np.concatenate([high >> shift & 3 for shift in range(0, 16, 2)], axis=-1)
    nibbles = np.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], axis=-1).reshape(*blocks.shape[:-1], 8)
    return _flat(_f16(blocks, 0) * ((nibbles | pairs << 4).astype(np.int16) - 32), 0.0)


def _power(blocks: Bytes) -> Grid:
    """A power of two first, for values that are stored doubled: MXFP4."""
    return _flat(np.ldexp(np.float32(1), blocks[..., :1].astype(np.int32) - 128), 0.0)


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # what the 16 codes stand for
E2M1 = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)  # 4-bit floats, doubled


@dataclass(frozen=True)
class Bound:
    """A block type. block, size: weights and bytes of a block; sub: weights that share a scale; low, high: the levels;
    scales: how many values a sub-block's scale can take (0: it has its own f16). exact: levels chosen with the stored
    scale. reach: the level of the block's largest weight, where the format fixes it. values: the levels that there are,
    where they are not all from low to high. refits: with an importance matrix the scale changes after the levels were
    chosen. clips: the part of the largest weight that may lie beyond the last level. A type without `grid` is not
    judged weight by weight."""

    block: int
    size: int
    sub: int
    low: int
    high: int
    grid: Callable[[Bytes], Grid] | None = None
    scales: int = 0
    exact: bool = False
    reach: int = 0
    values: tuple[int, ...] = ()
    refits: bool = False
    clips: float = 0.0

    @property
    def widest_gap(self) -> int:
        """The most that two neighbouring levels differ by."""
        return max((b - a for a, b in pairwise(self.values)), default=1)

    @property
    def levels(self) -> float:
        """Steps from 0 to the largest weight, as many as the widest gap between two levels leaves."""
        if self.values:
            return max(map(abs, self.values)) / self.widest_gap
        return -self.low if self.low < 0 else self.high / 2

    @property
    def share(self) -> float:
        """The part of a block's rms that may be lost (see the module docstring)."""
        if self.grid is None:
            return SHARE_LIMIT
        half = 0.5 if self.exact else 0.5 + self.levels * HALF_ULP
        lost = self.sub**0.5 * max(half / self.levels, self.clips)
        lost += self.block**0.5 / (2 * self.scales) if self.scales else 0.0
        return float(min(lost, SHARE_LIMIT))

    @property
    def floor(self) -> float:
        """The absolute error of an f16 scale in the subnormal range, at the largest level."""
        return TINY * max(self.high, -self.low) * max(self.scales, 1)


BOUNDS: Mapping[str, Bound] = {
    "Q8_0": Bound(32, 34, 32, -127, 127, _scale, reach=127),
    "Q4_0": Bound(32, 18, 32, -8, 7, _scale, refits=True),
    "Q5_0": Bound(32, 22, 32, -16, 15, _scale, refits=True),
    "Q4_1": Bound(32, 20, 32, 0, 15, _scale_min, refits=True),
    "Q5_1": Bound(32, 24, 32, 0, 31, _scale_min, refits=True),
    "Q2_K": Bound(256, 84, 16, 0, 3, _four_bit, scales=15, exact=True),
    "Q3_K": Bound(256, 110, 16, -4, 3, _signed_six_bit, scales=31, exact=True),
    "Q4_K": Bound(256, 144, 32, 0, 15, _six_bit, scales=63, exact=True),
    "Q5_K": Bound(256, 176, 32, 0, 31, _six_bit, scales=63, exact=True),
    "Q6_K": Bound(256, 210, 16, -32, 31, _int8, scales=127, exact=True),
    "IQ4_NL": Bound(32, 18, 32, -127, 113, _scale, values=IQ4),
    "IQ4_XS": Bound(256, 136, 32, -127, 113, _scaled_table, scales=31, values=IQ4),
    "MXFP4": Bound(32, 17, 32, -12, 12, _power, exact=True, values=E2M1, clips=0.25),
}


def rounded(source: Floats, type_name: str) -> Floats:
    """The source as a float type stores it; (rows, cols) float32. An overflow becomes Inf, as it does in the file."""
    with np.errstate(over="ignore"):
        return source.astype(FLOATS[type_name]).astype(np.float32)


def allowed(raw: Bytes, values: Floats, source: Floats, bound: Bound, *, weighted: bool) -> Floats | None:
    """For each weight the error its block explains, (rows, cols); None where codes cannot be judged one by one.

    raw: (rows, bytes); values: the same dequantized; weighted: made with an importance matrix.
    """
    if bound.grid is None or (weighted and bound.refits):
        return None
    step, offset = (np.repeat(a, bound.sub, axis=1) for a in bound.grid(_blocks(raw, bound)))
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(step == 0, np.float32(0), (source - offset) / np.where(step == 0, np.float32(1), step))
    nearest = offset + step * _nearest(level, bound)
    slack: Any = np.abs(step) * (bound.high - bound.low) * 2.0**-22 + np.abs(source) * 2.0**-22
    if not bound.exact:
        slack = slack + 2 * _shift(values, step, offset, bound)
    limit: Floats = np.abs(nearest - source) + slack
    return limit


def _nearest(level: Any, bound: Bound) -> Floats:
    """The level that a type has nearest to each."""
    if not bound.values:
        clipped: Floats = np.clip(np.rint(level), bound.low, bound.high)
        return clipped
    values = np.array(bound.values, dtype=np.float32)
    nearest: Floats = values[np.searchsorted((values[1:] + values[:-1]) / 2, level)]
    return nearest


def _shift(values: Floats, step: Floats, offset: Floats, bound: Bound) -> Floats:
    """δ: how far rounding the scale (and the minimum) to f16 moves each value, (rows, cols)."""
    reached = np.abs(values - offset)
    with np.errstate(divide="ignore", invalid="ignore"):
        code = np.where(step == 0, bound.high, reached / np.abs(step))
    sub_scale = bound.scales + 1 if bound.scales else 1  # what the f16 is multiplied by at most, besides the level
    gap = bound.widest_gap  # to the level that might have been chosen instead
    shift: Floats = (reached + (gap - 1) * np.abs(step) + np.abs(offset)) * HALF_ULP + (code + gap) * (TINY * sub_scale)
    return shift


def lost_blocks(values: Floats, source: Floats, bound: Bound, *, weighted: bool) -> Any:
    """Which blocks lost their signal, (rows, blocks) bool."""
    error, signal = (_rms(a, bound.block) for a in (values - source, source))
    share = SHARE_LIMIT if weighted else bound.share
    return error > share * signal + bound.floor


def wrong_scales(raw: Bytes, source: Floats, bound: Bound) -> Any:
    """Which blocks have a scale that their largest weight contradicts, (rows, blocks) bool; none for other types."""
    if bound.grid is None or not bound.reach:
        return np.zeros((len(source), source.shape[1] // bound.block), dtype=bool)
    step, _ = bound.grid(_blocks(raw, bound))
    largest = np.abs(source).reshape(len(source), -1, bound.block).max(axis=2)  # (rows, blocks)
    true = largest / bound.reach
    return np.abs(step - true) > true * HALF_ULP * (1 + 2.0**-10) + TINY


def _blocks(raw: Bytes, bound: Bound) -> Bytes:
    return raw.reshape(len(raw), -1, bound.size)  # (rows, blocks, bytes)


def _rms(a: Floats, block: int) -> Any:
    grouped = a.astype(np.float64).reshape(len(a), -1, block)  # (rows, blocks, weights)
    return np.sqrt(np.mean(grouped**2, axis=2))
