"""One planned tensor → its bytes, block by block, out of the mapped checkpoints.

Out: buffers in file order, none larger than a block of rows, whatever the tensor's size. Promised: the stored type is
copied bit for bit; rows are reordered only where the plan says so; a NaN, an Inf or a value that the output type cannot
hold stops the work and is named by tensor and index. This is the one check that needs the data, so it comes while the
(still temporary) file is written rather than by reading everything twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.checkpoints.checkpoint import DTYPES, Array, SourceTensor
from dflash_convert.conversion.transforms import DEINTERLEAVE, TRANSFORMS, Material
from dflash_convert.errors import CheckpointError
from dflash_convert.gguf_io.layout import PlannedTensor

STORED: Mapping[G, np.dtype[Any]] = MappingProxyType({
    G.F32: DTYPES["F32"], G.F16: DTYPES["F16"], G.BF16: DTYPES["BF16"],
})  # fmt: skip
F16_MAX = 65504.0
# What a type can hold; Q8_0's scale, the largest value of a block / 127, is an F16.
LARGEST: Mapping[G, float] = MappingProxyType(
    {G.F16: F16_MAX, G.BF16: float.fromhex("0x1.FEp127"), G.Q8_0: F16_MAX * 127}
)


@dataclass(frozen=True)
class RowBlock:
    """Rows [start, stop) of a planned tensor's source: what one thread does at a time."""

    tensor: PlannedTensor
    start: int
    stop: int


def row_blocks(material: Material, tensor: PlannedTensor) -> list[RowBlock]:
    """A planned tensor as blocks, none cutting through a head whose rows are to be reordered."""
    if tensor.constant is not None:
        return [RowBlock(tensor, 0, tensor.n_rows)]
    multiple = material.head_dim if tensor.transform == DEINTERLEAVE and len(tensor.shape) > 1 else 1
    return [RowBlock(tensor, start, stop) for start, stop in material.spans(tensor, multiple)]


def block_bytes(material: Material, block: RowBlock) -> memoryview:
    """The bytes of one block. Raises CheckpointError for NaN, Inf or an overflow."""
    tensor = block.tensor
    if tensor.constant is not None:
        return memoryview(tensor.constant)
    source = material.of(tensor).tensors[tensor.source]
    rows = TRANSFORMS[tensor.transform](material, tensor, block.start, block.stop)
    check_finite(rows, source, block.start)
    return encode(rows, source, tensor.type, block.start)


def check_finite(rows: Array, source: SourceTensor, first: int) -> None:
    """Refuse NaN and Inf by tensor and index. rows: (n, row length), of any float dtype; first: rows before them."""
    if rows.dtype.itemsize == 2:  # bf16 and f16: all exponent bits set; compared as integers, at memory speed
        exponent = np.uint16(0x7C00 if rows.dtype == np.float16 else 0x7F80)
        finite = not rows.size or bool((rows.view(np.uint16) & np.uint16(0x7FFF)).max() < exponent)
    else:
        finite = bool(np.isfinite(rows).all())
    if not finite:
        value, index = _first(rows, ~np.isfinite(rows.astype(np.float32)), source, first)
        raise CheckpointError(
            f"{source.name} has {value} at {index}: the weights are damaged",
            hint="download the checkpoint again; if it is published like this, tell its author",
        )


def encode(rows: Array, source: SourceTensor, wanted: G, first: int) -> memoryview:
    """Rows in the GGUF type `wanted`; the same type is copied bit for bit. rows: (n, row length)."""
    if STORED.get(wanted) == rows.dtype:
        return _flat(rows)
    values = np.ascontiguousarray(rows, dtype=np.float32)
    _check_range(values, source, wanted, first)
    if wanted in STORED:  # numpy rounds to nearest, ties to even, as ggml does; no kernel has to be loaded for it
        return _flat(values.astype(STORED[wanted], copy=False))
    from dflash_convert.quants import quantize

    return _flat(quantize(values, wanted.name, threads=1))


def _flat(rows: Array) -> memoryview:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data


def _check_range(values: Array, source: SourceTensor, wanted: G, first: int) -> None:
    largest = LARGEST.get(wanted)
    if largest is not None and values.size and np.abs(values).max() > largest:
        value, index = _first(values, np.abs(values) > largest, source, first)
        raise CheckpointError(
            f"{source.name} has {value:g} at {index}; {wanted.name} ends at {largest:g} and would overflow",
            hint="use --outtype bf16" if wanted != G.BF16 else "use --outtype f32",
        )


def _first(rows: Array, bad: Array, source: SourceTensor, first: int) -> tuple[float, list[int]]:
    """The first bad value and its index in the whole tensor."""
    row, column = np.argwhere(bad)[0]
    flat = (first + int(row)) * source.row_length + int(column)
    return float(rows[row, column]), [int(i) for i in np.unravel_index(flat, source.shape)]
