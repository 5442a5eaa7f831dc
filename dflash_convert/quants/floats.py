"""F32 both ways, and BF16 to float32: no kernel is needed, so nothing waits for numba. A block is one weight.

In: blocks (n, 1) float32 and room for (n, bytes) uint8, or the reverse. Out: the room, filled, exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
u16, u32 = np.uint16, np.uint32


def encode_f32(blocks: Array, out: Array) -> None:
    """(n, 1) float32 → (n, 4): the bytes themselves."""
    out.view(np.float32)[:] = blocks


def decode_f32(raw: Array, out: Array) -> None:
    """(n, 4) → (n, 1) float32."""
    out[:] = raw.view(np.float32)


def decode_bf16(raw: Array, out: Array) -> None:
    """(n, 2) → (n, 1) float32."""
    np.left_shift(raw.view(u16), 16, out=out.view(u32), dtype=u32)
