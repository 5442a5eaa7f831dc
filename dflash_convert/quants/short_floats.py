"""F16 both ways, and float32 to BF16: what needs a kernel. A block is one weight.

In: blocks (n, 1) float32 and room for (n, bytes) uint8, or the reverse. Out: the room, filled. Promised: rounding to
nearest, ties to even; decoding is exact. Source: ggml's fp16/bf16 conversions (ggml-impl.h).
"""

from __future__ import annotations

import numpy as np

from dflash_convert.quants.kernel import Array, kernel
from dflash_convert.quants.rounding import bfloat_bits, half_bits, half_value

u16, u32 = np.uint16, np.uint32


def encode_f16(blocks: Array, out: Array) -> None:
    """(n, 1) float32 → (n, 2). What rounds beyond 65504 becomes Inf."""
    _to_half(blocks.reshape(-1), out.reshape(-1).view(u16))


def decode_f16(raw: Array, out: Array) -> None:
    """(n, 2) → (n, 1) float32."""
    _from_half(raw.reshape(-1).view(u16), out.reshape(-1))


def encode_bf16(blocks: Array, out: Array) -> None:
    """(n, 1) float32 → (n, 2)."""
    _to_bfloat(blocks.reshape(-1), out.reshape(-1).view(u16))


@kernel
def _to_half(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = half_bits(x[i])


@kernel
def _from_half(h: Array, out: Array) -> None:
    for i in range(h.shape[0]):
        out[i] = half_value(u32(h[i]))


@kernel
def _to_bfloat(x: Array, out: Array) -> None:
    for i in range(x.shape[0]):
        out[i] = bfloat_bits(x[i])
