"""GGUF → quantized GGUF: the recipe decides, the kernels work, the writer writes.

In: an opened GGUF and a file type's name. Out: a `QuantizePlan`, and with `quantize_file` the file. Promised: keys,
tensors, order and bytes of llama.cpp's own quantizer; a tensor whose type stays is copied byte for byte; no NaN, no Inf
and no overflowed scale is ever written; memory does not grow with the model.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType

from dflash_convert import quants, recipes
from dflash_convert.errors import GGUFError
from dflash_convert.gguf_file import KV, GGUFFile, TensorInfo, odd_bytes, open_gguf
from dflash_convert.layout import Note, Plan, PlannedTensor
from dflash_convert.pipeline import working_ahead
from dflash_convert.writer import Progress, check_output, write

Array = np.ndarray[Any, np.dtype[Any]]

QUANTIZATION_VERSION, FILE_TYPE = "general.quantization_version", "general.file_type"
SPLIT_COUNT = "split.count"
SPLIT_KEYS = frozenset({"split.no", SPLIT_COUNT, "split.tensors.count"})
FLOATS = frozenset({"F32", "F16", "BF16"})
HALF_INF = np.uint16(0x7C00)

BLOCK_WEIGHTS = 1 << 21  # weights of a row block at most: 8 MiB of float32
IN_FLIGHT_WEIGHTS = 1 << 25  # weights of all row blocks in flight at most: 128 MiB of float32


@dataclass(frozen=True)
class QuantizePlan(Plan):
    """A `Plan` that remembers why: one `Choice` for each of its tensors."""

    choices: tuple[recipes.Choice, ...] = ()


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a tensor: what one thread does at a time."""

    info: TensorInfo
    type: str
    start: int
    stop: int


# -- plan --------------------------------------------------------------------------------------------------------------


def plan_quantize(gguf: GGUFFile, file_type: str, *, allow_requantize: bool = False) -> QuantizePlan:
    """What quantizing `gguf` to `file_type` will write; no tensor data is read.

    Raises UsageError: an unknown file type. Raises GGUFError: a part of a split file, bytes that belong to nothing, a
    missing block count, a tensor that cannot be quantized (integers), or is quantized already and `allow_requantize` is
    not set.
    """
    recipe = recipes.file_type(file_type)
    _refuse_split(gguf)
    _refuse_odd_bytes(gguf)
    tensors = [recipes.Tensor(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    choices = recipes.choose(recipe, tensors, _model(gguf))
    for choice in choices:
        _check_source(choice, allow_requantize)
    return QuantizePlan(
        kv=_keys(gguf, recipe),
        tensors=tuple(_planned(c) for c in choices),
        notes=tuple(_fallback_notes(choices)),
        choices=choices,
    )


def plan_file(src: str | os.PathLike[str], file_type: str, *, allow_requantize: bool = False) -> QuantizePlan:
    """`plan_quantize` for the GGUF at `src`. Raises GGUFError also where that cannot be opened."""
    return plan_quantize(open_gguf(src), file_type, allow_requantize=allow_requantize)


def _refuse_split(gguf: GGUFFile) -> None:
    parts = gguf.get(SPLIT_COUNT, 1)
    if parts > 1:
        raise GGUFError(
            f"{gguf.path.name} is one of {parts} parts of a model",
            hint="join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
        )


def _refuse_odd_bytes(gguf: GGUFFile) -> None:
    for what in odd_bytes(gguf):
        raise GGUFError(
            f"{gguf.path.name}: {what}",
            hint="a resumed download may have appended, or two files were joined: download or write it again",
        )


def _model(gguf: GGUFFile) -> recipes.Model:
    arch = gguf.architecture
    n_layer = gguf.get(f"{arch}.block_count")
    if n_layer is None:
        raise GGUFError(
            f"{gguf.path.name} has no key {arch or '<architecture>'}.block_count, so its layers cannot be told apart",
            hint="quantize a model file; vocabulary-only and adapter files have nothing to quantize",
        )
    n_head, n_head_kv = (_first(gguf.get(f"{arch}.attention.{key}", 0)) for key in ("head_count", "head_count_kv"))
    return recipes.Model(arch, n_layer, gguf.get(f"{arch}.expert_count", 0), n_head, n_head_kv)


def _first(value: Any) -> int:
    """A count that may be given layer by layer: that of the first layer."""
    return int(value[0] if isinstance(value, Sequence) else value)


def _check_source(choice: recipes.Choice, allow_requantize: bool) -> None:
    tensor = choice.tensor
    if choice.type == tensor.type or tensor.type.name in FLOATS:
        return
    if tensor.type.name not in quants.TYPES:
        raise GGUFError(
            f"{tensor.name} holds {tensor.type.name}, which cannot become {choice.type.name}",
            hint="only floating-point and block-quantized weights can be quantized",
        )
    if not allow_requantize:
        raise GGUFError(
            f"{tensor.name} is quantized already: {tensor.type.name} would become {choice.type.name}",
            hint="quantize from the BF16, F16 or F32 file, or accept the loss with --allow-requantize",
        )


def _keys(gguf: GGUFFile, recipe: recipes.FileType) -> tuple[KV, ...]:
    """All keys as they are, but for those of splitting; the two that describe the quantization move to the end."""
    replaced = (
        KV(QUANTIZATION_VERSION, GGUFValueType.UINT32, GGML_QUANT_VERSION, source="the block formats' version"),
        KV(FILE_TYPE, GGUFValueType.UINT32, int(recipe.number), source=recipe.name),
    )
    dropped = SPLIT_KEYS | {kv.key for kv in replaced}
    kept = (replace(kv, source=gguf.path.name) for kv in gguf.kv.values() if kv.key not in dropped)
    return (*kept, *replaced)


def _planned(choice: recipes.Choice) -> PlannedTensor:
    tensor = choice.tensor
    change = "" if choice.type == tensor.type else f"{tensor.type.name} → {choice.type.name}"
    if choice.is_fallback:
        change += f" instead of {choice.nominal.name}: {choice.reason}"
    return PlannedTensor(tensor.name, tensor.shape, choice.type, source=tensor.name, transform=change.strip())


def _fallback_notes(choices: Iterable[recipes.Choice]) -> Iterator[Note]:
    """One note for all tensors that share nominal type, actual type and reason."""
    groups: dict[tuple[GGMLQuantizationType, GGMLQuantizationType, str], list[str]] = {}
    for c in choices:
        if c.is_fallback:
            groups.setdefault((c.nominal, c.type, c.reason), []).append(c.tensor.name)
    for (nominal, actual, reason), names in groups.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Note("warning", f"{actual.name} instead of {nominal.name} for {names[0]}{more}: {reason}")


# -- act ---------------------------------------------------------------------------------------------------------------


def quantize_file(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    file_type: str,
    *,
    threads: int | None = None,
    force: bool = False,
    allow_requantize: bool = False,
    progress: Progress | None = None,
) -> QuantizePlan:
    """Quantize the GGUF `src` to `dst`; returns what was written.

    threads: None for all that the process may use. progress: called with each number of bytes written, in sum the
    plan's `file_size`. Raises UsageError, GGUFError (see `plan_quantize`; also a NaN, an Inf, or a weight too large for
    the new type, with tensor, row and column) and OutputError; on any of them nothing is left at `dst`.
    """
    src, dst = Path(src), Path(dst)
    check_output(dst, force=force, inputs=[src])
    gguf = open_gguf(src)
    plan = plan_quantize(gguf, file_type, allow_requantize=allow_requantize)
    workers = threads or quants.available_threads()
    size = min(BLOCK_WEIGHTS, IN_FLIGHT_WEIGHTS // (workers + 2))
    blocks = {t.name: _blocks(gguf.tensors[t.name], t.type.name, size) for t in plan.tensors}
    with working_ahead(blocks, partial(_convert, gguf), workers) as chunks:
        write(plan, chunks, dst, force=force, progress=progress)
    return plan


def _blocks(info: TensorInfo, type_name: str, size: int) -> list[Block]:
    """The tensor as row blocks of at most `size` weights (a row at least)."""
    step = max(1, size // max(1, info.row_length))
    starts = range(0, info.n_rows, step)
    return [Block(info, type_name, start, min(start + step, info.n_rows)) for start in starts]


def _convert(gguf: GGUFFile, block: Block) -> Array:
    """The block's rows in their new type: (rows, bytes per row) uint8."""
    raw = gguf.raw(block.info.name)[block.start : block.stop]
    out = _copied(raw, block) if block.type == block.info.type.name else _encoded(raw, block)
    _release(gguf, block)
    return out


def _copied(raw: Array, block: Block) -> Array:
    """The bytes as they are. Floats are looked at, for a NaN among them would be handed on."""
    if block.type in FLOATS:
        _check_finite(quants.dequantize(raw, block.type), block)
    return raw.copy()


def _encoded(raw: Array, block: Block) -> Array:
    x = quants.dequantize(raw, block.info.type.name)
    _check_finite(x, block)
    out = quants.quantize(x, block.type, threads=1)
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


def _release(gguf: GGUFFile, block: Block) -> None:
    """Hand the pages of rows already read back to the system: they are in its cache if anybody wants them again."""
    mapped = gguf.data.obj
    if not isinstance(mapped, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    row = block.info.nbytes // max(1, block.info.n_rows)
    start = -(-(block.info.offset + block.start * row) // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (block.info.offset + block.stop * row) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)
