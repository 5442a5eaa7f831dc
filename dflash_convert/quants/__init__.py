"""Block quantization: float32 rows to ggml's block formats and back.

In: rows of float32 (and, if there are any, the importance weights of their columns), or rows of bytes. Out: the other.
Promised: byte for byte what ggml (built for x86-64 without FMA) writes; decoding gives the float32 values ggml gives.

`TYPES` is the table: everything ggml can store, by name. A type with `encode=None` can be read but not written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import quants as gguf_quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

__all__ = ["TYPES", "QuantType", "dequantize", "quantize"]

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[[Array, Array], None]  # (blocks in, room for blocks out)
WeightedKernel = Callable[[Array, Array, Array], None]  # the same for whole rows, and the importance of a row's blocks

CHUNK = 1 << 18  # weights a thread takes at once: a millisecond of work, a megabyte of float32


@dataclass(frozen=True)
class QuantType:
    """A ggml type.

    block: weights in a block; bytes: bytes of a block. encode: (n, block) float32 → (n, bytes) uint8, None if it
    cannot be written; decode: the reverse. Both fill their second argument. encode_weighted: encode for the blocks of
    whole rows, with the importance of a row's weights, (blocks of a row, block) float32, as third argument; None if the
    type makes nothing of it. halves: byte offsets of a block's half floats, the fields that can overflow.
    """

    name: str
    id: GGMLQuantizationType
    block: int
    bytes: int
    encode: Kernel | None
    decode: Kernel
    halves: tuple[int, ...] = ()
    encode_weighted: WeightedKernel | None = None


def _late(module: str, name: str) -> Any:
    """A kernel that is imported (and numba with it) when it first runs: most commands need few of them, or none."""

    def kernel(*arrays: Array) -> None:
        getattr(import_module(f"{__name__}.{module}"), name)(*arrays)

    return kernel


def _by_gguf(type_id: GGMLQuantizationType, raw: Array, out: Array) -> None:
    out[:] = gguf_quants.dequantize(raw, type_id)


def _row(
    name: str, encode: Kernel | None, decode: Kernel | None, *halves: int, weighted: WeightedKernel | None = None
) -> tuple[str, QuantType]:
    type_id = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[type_id]
    return name, QuantType(name, type_id, block, size, encode, decode or partial(_by_gguf, type_id), halves, weighted)


TYPES: Mapping[str, QuantType] = MappingProxyType(
    dict(
        [
            _row("F32", _late("floats", "encode_f32"), _late("floats", "decode_f32")),
            _row("F16", _late("short_floats", "encode_f16"), _late("short_floats", "decode_f16"), 0),
            _row("BF16", _late("short_floats", "encode_bf16"), _late("floats", "decode_bf16")),
            _row("Q8_0", _late("blocks32", "encode_q8_0"), _late("blocks32", "decode_q8_0"), 0),
            _row(
                "Q4_0",
                _late("blocks32", "encode_q4_0"),
                _late("blocks32", "decode_q4_0"),
                0,
                weighted=_late("blocks32_weighted", "encode_q4_0"),
            ),
            _row(
                "Q4_1",
                _late("blocks32", "encode_q4_1"),
                _late("blocks32", "decode_q4_1"),
                0,
                2,
                weighted=_late("blocks32_weighted", "encode_q4_1"),
            ),
            _row(
                "Q5_0",
                _late("blocks32", "encode_q5_0"),
                _late("blocks32", "decode_q5_0"),
                0,
                weighted=_late("blocks32_weighted", "encode_q5_0"),
            ),
            _row(
                "Q5_1",
                _late("blocks32", "encode_q5_1"),
                _late("blocks32", "decode_q5_1"),
                0,
                2,
                weighted=_late("blocks32_weighted", "encode_q5_1"),
            ),
            _row(
                "Q2_K",
                _late("q2_k", "encode_q2_k"),
                _late("q2_k", "decode_q2_k"),
                80,
                82,
                weighted=_late("q2_k", "encode_q2_k_weighted"),
            ),
            _row(
                "Q3_K",
                _late("q3_k", "encode_q3_k"),
                _late("q3_k", "decode_q3_k"),
                108,
                weighted=_late("q3_k", "encode_q3_k_weighted"),
            ),
            _row(
                "Q4_K",
                _late("q4_q5_k", "encode_q4_k"),
                _late("q4_q5_k", "decode_q4_k"),
                0,
                2,
                weighted=_late("q4_q5_k", "encode_q4_k_weighted"),
            ),
            _row(
                "Q5_K",
                _late("q4_q5_k", "encode_q5_k"),
                _late("q4_q5_k", "decode_q5_k"),
                0,
                2,
                weighted=_late("q4_q5_k", "encode_q5_k_weighted"),
            ),
            _row(
                "Q6_K",
                _late("q6_k", "encode_q6_k"),
                _late("q6_k", "decode_q6_k"),
                208,
                weighted=_late("q6_k", "encode_q6_k_weighted"),
            ),
            _row(
                "IQ4_NL",
                _late("iq4", "encode_iq4_nl"),
                _late("iq4", "decode_iq4_nl"),
                0,
                weighted=_late("iq4", "encode_iq4_nl_weighted"),
            ),
            _row(
                "IQ4_XS",
                _late("iq4", "encode_iq4_xs"),
                _late("iq4", "decode_iq4_xs"),
                0,
                weighted=_late("iq4", "encode_iq4_xs_weighted"),
            ),
            _row("MXFP4", _late("mxfp4", "encode_mxfp4"), _late("mxfp4", "decode_mxfp4")),
            # read through the gguf package
            _row("IQ3_XXS", None, None, 0),
            _row("IQ3_S", None, None, 0),
            _row("IQ2_XXS", None, None, 0),
            _row("IQ2_XS", None, None, 0),
            _row("IQ2_S", None, None, 0),
            _row("IQ1_S", None, None, 0),
            _row("IQ1_M", None, None),  # its half is spread over the scales
            _row("TQ1_0", None, None, 52),
            _row("TQ2_0", None, None, 64),
            _row("NVFP4", None, None),
        ]
    )
)


def quantize(x: Array, type_name: str, threads: int | None = None, imatrix: Array | None = None) -> Array:
    """Encode rows.

    x: (rows, cols) float32, C-contiguous, cols a multiple of the type's block. Returns (rows, bytes per row) uint8.
    threads: how many to use, None for all that the process may. imatrix: (cols,) float32, how much an error in each
    column matters; types that make nothing of it ignore it, as ggml does. Raises ValueError: an unknown type or one
    without an encoder, another dtype, shape or layout, a row that does not divide.
    """
    qtype = _known(type_name)
    if qtype.encode is None:
        raise ValueError(f"{type_name} cannot be encoded; these can: {', '.join(t for t in TYPES if TYPES[t].encode)}")
    if x.ndim != 2 or x.dtype != np.float32 or not x.flags.c_contiguous:
        raise ValueError(f"wanted a C-contiguous (rows, cols) float32 array, got {x.dtype} of shape {x.shape}")
    row = _divided(x.shape[1], qtype.block, qtype)  # blocks
    out = np.empty((x.shape[0], row * qtype.bytes), np.uint8)
    blocks, room = x.reshape(-1, qtype.block), out.reshape(-1, qtype.bytes)
    if imatrix is not None:
        _check_imatrix(imatrix, x.shape[1])
    if imatrix is None or qtype.encode_weighted is None or not row:
        _spread(qtype.encode, blocks, room, qtype.block, threads)
    else:
        importance = _writable(imatrix.reshape(row, qtype.block))
        _spread(_weighted(qtype.encode_weighted, importance), blocks, room, qtype.block, threads, whole=row)
    return out


def _weighted(encode: WeightedKernel, importance: Array) -> Kernel:
    return lambda blocks, out: encode(blocks, out, importance)


def _check_imatrix(imatrix: Array, cols: int) -> None:
    if imatrix.shape != (cols,) or imatrix.dtype != np.float32 or not imatrix.flags.c_contiguous:
        raise ValueError(
            f"wanted one float32 importance for each of {cols} columns, got {imatrix.dtype} of shape {imatrix.shape}"
        )


def dequantize(raw: Array, type_name: str, threads: int | None = 1) -> Array:
    """Decode rows: (rows, bytes per row) uint8, C-contiguous → (rows, cols) float32.

    Raises ValueError: an unknown type, another dtype or layout, a row that does not divide.
    """
    qtype = _known(type_name)
    if raw.ndim != 2 or raw.dtype != np.uint8 or not raw.flags.c_contiguous:
        raise ValueError(f"wanted a C-contiguous (rows, bytes) uint8 array, got {raw.dtype} of shape {raw.shape}")
    out = np.empty((raw.shape[0], _divided(raw.shape[1], qtype.bytes, qtype) * qtype.block), np.float32)
    _spread(qtype.decode, raw.reshape(-1, qtype.bytes), out.reshape(-1, qtype.block), qtype.block, threads)
    return out


def available_threads() -> int:
    """Processors this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _known(type_name: str) -> QuantType:
    if type_name not in TYPES:
        raise ValueError(f"unknown type {type_name!r}; known: {', '.join(TYPES)}")
    return TYPES[type_name]


def _divided(length: int, unit: int, qtype: QuantType) -> int:
    if length % unit:
        raise ValueError(f"a row of {length} is not a multiple of {unit}, the block of {qtype.name}")
    return length // unit


def _spread(kernel: Kernel, given: Array, room: Array, block: int, threads: int | None, whole: int = 1) -> None:
    """Run `kernel` over slices of a multiple of `whole` blocks, in threads: the kernels hold no GIL."""
    step = max(1, CHUNK // (block * whole)) * whole
    slices = [slice(start, start + step) for start in range(0, len(given), step)]
    n = min(available_threads() if threads is None else threads, len(slices))
    if n <= 1:
        for s in slices:
            kernel(_writable(given[s]), room[s])
        return
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(lambda s: kernel(_writable(given[s]), room[s]), slices))


def _writable(blocks: Array) -> Array:
    """The blocks, copied if read-only (a mapped file): numba would compile every kernel once more for those."""
    return blocks if blocks.flags.writeable else blocks.copy()
