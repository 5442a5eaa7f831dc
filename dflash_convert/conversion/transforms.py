"""How the rows of a planned tensor are made from what a checkpoint holds: a table of named functions.

The plan names one of them (or none: the rows as they lie); stream.py asks for rows [start, stop) of a planned tensor
and encodes what comes back. Nothing here holds more than the rows that were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from dflash_convert.checkpoints.checkpoint import BLOCK_BYTES, Array, Checkpoint
from dflash_convert.checkpoints.mask_embedding import MaskEmbedding
from dflash_convert.checkpoints.nvfp4 import Layout, dequantize, layouts
from dflash_convert.gguf_io.layout import PlannedTensor

DEINTERLEAVE = "even rotary dimensions first"  # interleaved rope → llama.cpp's (NeoX) order, per head
MASK_ROW = "the mask token's own row"  # a table of embeddings whose mask row lies in another file
PAD_COLUMNS = "zeros for the Markov features"  # a confidence head that reads the hidden state alone
DEQUANTIZE = "NVFP4 to float32"
ABSOLUTE_IDS = "row + offset"  # d2t; computed by the plan
COMPUTED_FROM = "computed"  # likewise

DRAFT, TARGET = "", "target"  # origins


@dataclass(frozen=True)
class Material:
    """Where rows come from. checkpoints: by origin. mask: (row, values) of MASK_ROW. nvfp4: parts of weights."""

    checkpoints: Mapping[str, Checkpoint]
    head_dim: int
    mask: tuple[int, MaskEmbedding] | None = None
    nvfp4: Mapping[str, Layout] = field(default_factory=dict)

    def of(self, tensor: PlannedTensor) -> Checkpoint:
        """The checkpoint of its source, as the mapping sees it: a packed weight is one tensor there."""
        return self._seen if self.parts(tensor) else self.checkpoints[tensor.origin]

    @cached_property
    def _seen(self) -> Checkpoint:
        return unpacked(self.checkpoints[DRAFT])

    def parts(self, tensor: PlannedTensor) -> Layout | None:
        """What it is unpacked from; None for a plain weight."""
        return self.nvfp4.get(tensor.source) if tensor.origin == DRAFT else None

    def spans(self, tensor: PlannedTensor, multiple: int) -> list[tuple[int, int]]:
        """(first row, row behind the last) of blocks of about as many weights, whatever they are packed in."""
        parts, checkpoint = self.parts(tensor), self.checkpoints[tensor.origin]
        if parts is None:
            return checkpoint.spans(tensor.source, multiple=multiple)
        return checkpoint.spans(parts.packed, max_bytes=BLOCK_BYTES // 4, multiple=multiple)


def as_stored(material: Material, tensor: PlannedTensor, start: int, stop: int) -> Array:
    """Rows as they lie, or unpacked to float32 by the published formula: (stop - start, row length)."""
    parts, checkpoint = material.parts(tensor), material.checkpoints[tensor.origin]
    if parts is None:
        return checkpoint.take(tensor.source, start, stop)
    packed, scales = checkpoint.take(parts.packed, start, stop), checkpoint.take(parts.scales, start, stop)
    return dequantize(packed, scales, parts.factor(checkpoint.float32(parts.scale)), tensor.source)


def deinterleaved(material: Material, tensor: PlannedTensor, start: int, stop: int) -> Array:
    """Rows whose rotary dimensions are in pairs, as llama.cpp wants them."""
    return halves_of_pairs(as_stored(material, tensor, start, stop), material.head_dim)


def halves_of_pairs(rows: Array, head_dim: int) -> Array:
    """Interleaved rotary pairs (0,1)(2,3)… → llama.cpp's halves: per head the even dimensions first, then the odd.

    rows: (heads · head_dim, row length), or (1, head_dim) for a norm.
    """
    if rows.shape[0] == 1:
        return rows.reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(rows.shape)  # (1, pair, even/odd)
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])  # (head, pair, even/odd, row length)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def with_mask_row(material: Material, tensor: PlannedTensor, start: int, stop: int) -> Array:
    """Rows of an embedding table, the mask token's one replaced."""
    rows = as_stored(material, tensor, start, stop)
    assert material.mask is not None
    row, embedding = material.mask
    if start <= row < stop:
        with np.errstate(over="ignore"):  # what the table's type cannot hold becomes Inf, which is refused later
            rows[row - start] = embedding.values.astype(rows.dtype)
    return rows


def with_zeros(material: Material, tensor: PlannedTensor, start: int, stop: int) -> Array:
    """Rows made longer by zeros at their end."""
    rows = as_stored(material, tensor, start, stop)
    return np.pad(rows, ((0, 0), (0, tensor.row_length - rows.shape[1])))


Make = Callable[[Material, PlannedTensor, int, int], Array]
TRANSFORMS: Mapping[str, Make] = MappingProxyType({
    "": as_stored,
    DEINTERLEAVE: deinterleaved,
    MASK_ROW: with_mask_row,
    PAD_COLUMNS: with_zeros,
    DEQUANTIZE: as_stored,
})  # fmt: skip


# ── packed weights ────────────────────────────────────────────────────────────────────────────────────────────────────


def layouts_of(checkpoint: Checkpoint) -> Mapping[str, Layout]:
    """The NVFP4 weights of a checkpoint: name → its parts. Raises CheckpointError: a part without the others."""
    return layouts({name: (t.dtype, t.shape) for name, t in checkpoint.tensors.items()})


def unpacked(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint's tensors as the mapping sees them: each packed weight as one tensor of its logical shape."""
    packed = layouts_of(checkpoint)
    parts = {part for layout in packed.values() for part in layout.parts}
    tensors = {name: t for name, t in checkpoint.tensors.items() if name not in parts and name not in packed}
    whole = {
        name: replace(checkpoint.tensors[layout.packed], name=name, dtype="NVFP4", shape=layout.shape)
        for name, layout in packed.items()
    }
    order = sorted({*tensors, *whole}) if whole else list(tensors)
    return replace(checkpoint, tensors={name: whole.get(name) or tensors[name] for name in order})
