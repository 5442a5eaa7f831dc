"""GGUF → quantized GGUF: the recipe decides, the kernels work, the writer writes.

In: an opened GGUF and a file type's name. Out: a `QuantizePlan`, and with `quantize_file` the file. Promised: keys,
tensors, order and bytes of llama.cpp's own quantizer; a tensor whose type stays is copied byte for byte; no NaN, no Inf
and no overflowed scale is ever written; memory does not grow with the model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert import quants
from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile, TensorInfo, open_gguf
from dflash_convert.gguf_io.writer import Progress, check_output, write
from dflash_convert.pipeline import working_ahead
from dflash_convert.quantization.imatrix import open_imatrix
from dflash_convert.quantization.overrides import NONE, Overrides
from dflash_convert.quantization.plan import FLOATS, QuantizePlan, plan_file, plan_quantize

__all__ = ["QuantizePlan", "plan_file", "plan_quantize", "quantize_file"]

Array = np.ndarray[Any, np.dtype[Any]]

HALF_INF = np.uint16(0x7C00)

BLOCK_WEIGHTS = 1 << 21  # weights of a row block at most: 8 MiB of float32
IN_FLIGHT_WEIGHTS = 1 << 25  # weights of all row blocks in flight at most: 128 MiB of float32


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a tensor: what one thread does at a time. importances: of its columns, if there are any."""

    info: TensorInfo
    type: str
    start: int
    stop: int
    importances: Array | None = None


def quantize_file(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    file_type: str,
    *,
    threads: int | None = None,
    force: bool = False,
    allow_requantize: bool = False,
    imatrix: str | os.PathLike[str] | None = None,
    overrides: Overrides = NONE,
    progress: Progress | None = None,
) -> QuantizePlan:
    """Quantize the GGUF `src` to `dst`; returns what was written.

    threads: None for all that the process may use. imatrix: an importance matrix by llama-imatrix. overrides:
    what is demanded beside the file type (`read_overrides`). progress: called
    with each number of bytes written, in sum the plan's `file_size`. Raises UsageError, GGUFError (see `plan_quantize`;
    also a NaN, an Inf, or a weight too large for the new type, with tensor, row and column) and OutputError; on any of
    them nothing is left at `dst`.
    """
    src, dst = Path(src), Path(dst)
    check_output(dst, force=force, inputs=[src, *([] if imatrix is None else [Path(imatrix)])])
    importances = None if imatrix is None else open_imatrix(imatrix)
    gguf = open_gguf(src)
    options: dict[str, Any] = {"allow_requantize": allow_requantize, "imatrix": importances, "overrides": overrides}
    plan = plan_quantize(gguf, file_type, **options)
    workers = threads or quants.available_threads()
    size = min(BLOCK_WEIGHTS, IN_FLIGHT_WEIGHTS // (workers + 2))
    blocks = {
        t.name: _blocks(gguf.tensors[t.name], t.type.name, size, plan.importances.get(t.name)) for t in plan.tensors
    }
    with working_ahead(blocks, partial(_convert, gguf), workers) as chunks:
        write(plan, chunks, dst, force=force, progress=progress)
    return plan


def _blocks(info: TensorInfo, type_name: str, size: int, importances: Array | None) -> list[Block]:
    """The tensor as row blocks of at most `size` weights (a row at least), each of one matrix of a weighted stack."""
    step = max(1, size // max(1, info.row_length))
    columns = [None] if importances is None else np.split(importances, len(importances) // info.row_length)
    rows = info.n_rows // len(columns)  # of a matrix
    return [
        Block(info, type_name, start, min(start + step, (i + 1) * rows), of)
        for i, of in enumerate(columns)
        for start in range(i * rows, (i + 1) * rows, step)
    ]


def _convert(gguf: GGUFFile, block: Block) -> Array:
    """The block's rows in their new type: (rows, bytes per row) uint8."""
    raw = gguf.raw(block.info.name)[block.start : block.stop]
    out = _copied(raw, block) if block.type == block.info.type.name else _encoded(raw, block)
    gguf.give_back(block.info.name, block.start, block.stop)
    return out


def _copied(raw: Array, block: Block) -> Array:
    """The bytes as they are. Floats are looked at, for a NaN among them would be handed on."""
    if block.type in FLOATS:
        _check_finite(quants.dequantize(raw, block.type), block)
    return raw.copy()


def _encoded(raw: Array, block: Block) -> Array:
    x = quants.dequantize(raw, block.info.type.name)
    _check_finite(x, block)
    out = quants.quantize(x, block.type, threads=1, imatrix=block.importances)
    _check_scales(out, x, block)
    return out


def _check_finite(x: Array, block: Block) -> None:
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise GGUFError(
            f"{block.info.name}: the weight in row {block.start + row}, column {column} is {x[row, column]}",
            hint="the file is damaged, or its training diverged: convert or download it again",
        )


def _check_scales(out: Array, x: Array, block: Block) -> None:
    """Half floats end at 65504; a weight, scale or minimum beyond becomes Inf and must not be written."""
    qtype = quants.TYPES[block.type]
    fields = out.reshape(-1, qtype.bytes)  # (blocks, bytes)
    for at in qtype.halves:
        field = np.ascontiguousarray(fields[:, at : at + 2]).view(np.uint16)
        overflowed = np.flatnonzero((field & HALF_INF) == HALF_INF)
        if overflowed.size:
            _refuse_overflow(x, int(overflowed[0]), qtype, block)


def _refuse_overflow(x: Array, at: int, qtype: quants.QuantType, block: Block) -> None:
    weights = x.reshape(-1, qtype.block)[at]
    offset = int(np.argmax(np.abs(weights)))
    row, column = divmod(at * qtype.block + offset, x.shape[1])
    what = "" if qtype.block == 1 else "the scale of "
    raise GGUFError(
        f"{block.info.name}: {what}the weight {weights[offset]:g} in row {block.start + row}, column {column} "
        f"does not fit {qtype.name} (a half float ends at 65504)",
        hint="write BF16 or F32, whose range is that of float32",
    )
