"""Level 2: every tensor of the GGUF, dequantized, against the checkpoint tensor it must hold.

In: an opened GGUF and its source. Out: one check a tensor, worst first, with the row, column, value and expectation of
its worst weight. Row blocks are compared as they stream by, so memory does not grow with the model. The bounds are
derived in `bounds`; the names and the rope order are the verifier's own (`names`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from dflash_convert.gguf_io.reader import GGUFFile, TensorInfo
from dflash_convert.quants import TYPES, available_threads, dequantize
from dflash_convert.runtime.hf_config import read_decoder
from dflash_convert.runtime.ops import rope_frequencies
from dflash_convert.verification.bounds import (
    BOUNDS,
    FLOATS,
    Bound,
    Floats,
    allowed,
    lost_blocks,
    rounded,
    wrong_scales,
)
from dflash_convert.verification.expect import Configs, has_table, rotary_width, theta
from dflash_convert.verification.names import IDS, MARKOV_ZEROS, ROTARY, Pair, neox_order, pairs
from dflash_convert.verification.report import FAIL, PASS, SKIP, TENSORS, Check, LevelResult, judged
from dflash_convert.verification.sources import Source
from dflash_convert.verification.structure import ROPE_FREQS

EXACT = (*FLOATS, "I64")  # held to the value itself, rounded to the type
BLOCK_WEIGHTS = 1 << 18  # weights compared at a time
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Spot:
    """One weight: where it is, what the file says, what the source says, and how far beyond its bound that is."""

    excess: float = -np.inf
    row: int = 0
    column: int = 0
    value: float = 0.0
    wanted: float = 0.0
    bound: float = 0.0


@dataclass(frozen=True)
class Tally:
    """What is known after some rows of a tensor. square_error and square_source: sums; the rest counts, and spots."""

    weights: int = 0
    square_error: float = 0.0
    square_source: float = 0.0
    max_error: float = 0.0
    outside: int = 0
    lost: int = 0
    scales: int = 0
    not_finite: int = 0
    worst: Spot = Spot()

    def __add__(self, other: Tally) -> Tally:
        sums = ("weights", "square_error", "square_source", "outside", "lost", "scales", "not_finite")
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in sums},
            max_error=max(self.max_error, other.max_error),
            worst=self.worst if self.worst.excess >= other.worst.excess else other.worst,
        )

    @property
    def relative(self) -> float:
        """rms of the error over rms of the source."""
        return float(np.sqrt(self.square_error / self.square_source)) if self.square_source else self.square_error


def tensors(gguf: GGUFFile, source: Source, *, progress: Progress | None = None) -> LevelResult:
    """Compare every tensor, several at a time. progress: called with the bytes of the GGUF just compared."""
    weighted = any(key.startswith("quantize.imatrix") for key in gguf.kv)
    told = _one_at_a_time(progress or (lambda _: None))
    with ThreadPoolExecutor(available_threads()) as pool:
        checks = list(pool.map(lambda pair: _check(gguf, source, pair, weighted, told), pairs(source)))
    checks += _rope_table(gguf, Configs(source))
    checks.sort(key=lambda c: -c.data.get("relative_rms", 0.0))
    errors = [c.data["relative_rms"] for c in checks if "relative_rms" in c.data]
    return judged(TENSORS, checks, {"worst_relative_rms": max(errors, default=0.0), "tensors": float(len(errors))})


def _check(gguf: GGUFFile, source: Source, pair: Pair, weighted: bool, progress: Progress) -> Check:
    info = gguf.tensors.get(pair.gguf)
    if info is None:
        return Check("tensor", FAIL, pair.gguf, None, "a tensor", f"made from {pair.source}")
    if pair.source is None:
        return Check("tensor", SKIP, pair.gguf, info.type.name, cause=pair.why)
    if pair.shape not in (None, info.shape):
        return Check("tensor", FAIL, pair.gguf, list(info.shape), list(pair.shape or ()), f"the shape of {pair.source}")
    if info.type.name not in TYPES and info.type.name != "I64":
        return Check("tensor", FAIL, pair.gguf, info.type.name, "weights", f"made from {pair.source}")
    if _identical(gguf, info, source, pair):
        progress(info.nbytes)
        return _judge(info, pair, Tally(weights=info.n_rows * info.row_length))
    tally = Tally()
    for start, rows in source_blocks(source, pair):
        tally += _compare(gguf, info, start, rows, weighted)
        gguf.give_back(info.name, start, start + len(rows))
        progress(info.nbytes * len(rows) // info.n_rows)
    check = _judge(info, pair, tally)
    hint = _diagnosis(gguf, source, pair) if check.status == FAIL and not tally.not_finite else ""
    return replace(check, cause=hint or check.cause)


def _one_at_a_time(progress: Progress) -> Progress:
    lock = Lock()

    def told(n: int) -> None:
        with lock:
            progress(n)

    return told


# the bits of a float's exponent: all of them set in Inf and NaN
EXPONENTS: Mapping[str, Any] = {"F32": np.uint32(0x7F800000), "F16": np.uint16(0x7C00), "BF16": np.uint16(0x7F80)}


def _identical(gguf: GGUFFile, info: TensorInfo, source: Source, pair: Pair) -> bool:
    """Whether the file holds the checkpoint's own bytes, all of them finite: what most float tensors are."""
    stored = source.checkpoint.tensors[source.weights.stored[pair.source or ""]]
    if pair.change or info.type.name != stored.dtype or stored.dtype not in EXPONENTS:
        return False
    exponent = EXPONENTS[stored.dtype]
    for start, stop in source.checkpoint.spans(stored.name, multiple=1):
        theirs = source.checkpoint.take(stored.name, start, stop).view(exponent.dtype)
        ours = gguf.raw(info.name)[start:stop].view(exponent.dtype)
        if not np.array_equal(ours, theirs) or ((theirs & exponent) == exponent).any():
            return False
        gguf.give_back(info.name, start, stop)
    return True


STILL = 1e20  # a divisor beyond which nothing turns


def _rope_table(gguf: GGUFFile, configs: Configs) -> list[Check]:
    """rope_freqs.weight: what llama.cpp's own frequencies must be divided by to give the checkpoint's."""
    info = gguf.tensors.get(ROPE_FREQS)
    if info is None or not has_table(configs):
        return []
    found = _values(gguf, info, 0, info.n_rows)[1].reshape(-1).astype(np.float64)
    freqs = read_decoder(configs.flat).rope.freqs
    own = rope_frequencies(rotary_width(configs) or configs.head_dim, theta(configs))
    wanted = np.ones(configs.head_dim // 2)
    wanted[: len(freqs)] = np.divide(own, freqs, out=np.full(len(freqs), np.inf), where=freqs > 0)
    basis = "the frequencies of config.json's rope"
    if found.shape != wanted.shape:
        return [Check("tensor", FAIL, ROPE_FREQS, len(found), len(wanted), basis)]
    good = np.where(np.isinf(wanted), found >= STILL, np.isclose(found, wanted, rtol=1e-5))
    if good.all():
        return [Check("tensor", PASS, ROPE_FREQS, f"{info.type.name}, the divisors of {len(freqs)} frequencies")]
    i = int(np.argmin(good))
    cause = f"{int((~good).sum())} of {len(good)} differ"
    return [Check("tensor", FAIL, ROPE_FREQS, float(found[i]), float(wanted[i]), basis, cause, f"entry {i}")]


# -- rows of both sides --------------------------------------------------------------------------------------------


def source_blocks(source: Source, pair: Pair) -> Iterator[tuple[int, Floats]]:
    """(first row, rows as float32) of the pair's source, in the order the GGUF must have them."""
    assert pair.source is not None
    stored = source.weights.stored[pair.source]
    tensor, head_dim = source.checkpoint.tensors[stored], source.head_dim
    step = max(1, BLOCK_WEIGHTS // tensor.row_length)
    if pair.change == ROTARY and len(tensor.shape) > 1:
        step = -(-step // head_dim) * head_dim  # whole heads, so that a permutation stays inside a block
    row_bytes = max(1, tensor.nbytes // max(1, tensor.n_rows))
    for start, rows in source.checkpoint.blocks(stored, step * row_bytes):
        yield start, _changed(rows, pair, len(tensor.shape), head_dim)


def _changed(rows: Any, pair: Pair, n_dims: int, head_dim: int) -> Floats:
    """Rows of the checkpoint as the GGUF must have them, float32."""
    if pair.change == IDS:
        ids: Floats = _tokens_of(rows.reshape(-1).astype(np.int64), pair.source == "d2t").astype(np.float32)
        return ids[None, :]
    floats: Floats = rows.astype(np.float32)
    if pair.change == ROTARY:
        return _turned(floats, n_dims, head_dim)
    if pair.change == MARKOV_ZEROS and pair.shape is not None:
        return np.pad(floats, ((0, 0), (0, pair.shape[-1] - floats.shape[1])))
    return floats


def _tokens_of(stored: Any, are_offsets: bool) -> Any:
    """The token of each row of a reduced vocabulary. Lists that go by the other name may hold the tokens themselves,
    which only rise."""
    if not are_offsets and (np.diff(stored) > 0).all():
        return stored
    return stored + np.arange(stored.size)


def _turned(rows: Floats, n_dims: int, head_dim: int) -> Floats:
    """Interleaved rope order → NEOX: rows of a projection, entries of a norm."""
    if n_dims == 1:
        return np.take(rows, neox_order(rows.shape[1], head_dim), axis=1)
    return np.take(rows, neox_order(len(rows), head_dim), axis=0)


def _values(gguf: GGUFFile, info: TensorInfo, start: int, stop: int) -> tuple[Any, Floats]:
    """(bytes, float32 values) of rows [start, stop)."""
    raw = gguf.raw(info.name)[start:stop]
    if info.type.name == "I64":
        return raw, raw.view("<i8").astype(np.float32).reshape(len(raw), -1)
    return raw, dequantize(np.ascontiguousarray(raw), info.type.name)


# -- one row block -------------------------------------------------------------------------------------------------


def _compare(gguf: GGUFFile, info: TensorInfo, start: int, source: Floats, weighted: bool) -> Tally:
    raw, values = _values(gguf, info, start, start + len(source))
    broken = ~(np.isfinite(values) & np.isfinite(source))
    if broken.any():
        row, column = np.argwhere(broken)[0]
        spot = Spot(np.inf, start + int(row), int(column), float(values[row, column]), float(source[row, column]))
        return Tally(weights=values.size, not_finite=int(broken.sum()), worst=spot)
    if info.type.name in EXACT:
        tally = _compare_floats(info, values, source)
    else:
        tally = _compare_blocks(info, raw, values, source, weighted)
    spot = replace(tally.worst, row=tally.worst.row + start)
    return replace(tally, worst=spot)


def _compare_floats(info: TensorInfo, values: Floats, source: Floats) -> Tally:
    wanted = source if info.type.name == "I64" else rounded(source, info.type.name)
    return _tally(values, source, wanted, np.abs(values - wanted), np.zeros_like(values))


def _compare_blocks(info: TensorInfo, raw: Any, values: Floats, source: Floats, weighted: bool) -> Tally:
    bound = bound_of(info)
    limit = allowed(raw, values, source, bound, weighted=weighted)
    error = np.abs(values - source)
    excess = np.zeros_like(error) if limit is None else error - limit
    tally = _tally(values, source, source, excess, error if limit is None else limit)
    lost = lost_blocks(values, source, bound, weighted=weighted)
    scales = wrong_scales(raw, source, bound)
    if not tally.outside and (lost | scales).any():
        tally = replace(tally, worst=_spot_in(lost | scales, values, source, bound.block))
    return replace(tally, lost=int(lost.sum()), scales=int(scales.sum()))


def _spot_in(blocks: Any, values: Floats, source: Floats, size: int) -> Spot:
    """The largest error in the first of the marked blocks, (rows, blocks) bool."""
    row, block = (int(i) for i in np.argwhere(blocks)[0])
    error = np.abs(values - source)[row, block * size : (block + 1) * size]
    column = block * size + int(error.argmax())
    return Spot(float(error.max()), row, column, float(values[row, column]), float(source[row, column]))


def bound_of(info: TensorInfo) -> Bound:
    """The bound of a tensor's type; for a type without a row, one that only sees lost blocks."""
    block, size = GGML_QUANT_SIZES[info.type]
    return BOUNDS.get(info.type.name) or Bound(block, size, block, 0, 0)


def _tally(values: Floats, source: Floats, wanted: Floats, excess: Any, limit: Any) -> Tally:
    error = (values - source).astype(np.float64)
    at = np.unravel_index(int(np.argmax(excess)), excess.shape)
    row, column = int(at[0]), int(at[1])
    spot = Spot(float(excess[at]), row, column, float(values[at]), float(wanted[at]), float(limit[at]))
    return Tally(
        weights=values.size,
        square_error=float(np.sum(error**2)),
        square_source=float(np.sum(source.astype(np.float64) ** 2)),
        max_error=float(np.abs(error).max()),
        outside=int(np.count_nonzero(excess > 0)),
        worst=spot,
    )


# -- the verdict on one tensor -------------------------------------------------------------------------------------


def _judge(info: TensorInfo, pair: Pair, tally: Tally) -> Check:
    spot, name = tally.worst, info.type.name
    data = {
        "relative_rms": tally.relative,
        "max_error": tally.max_error,
        "weights": float(tally.weights),
        "outside": float(tally.outside),
        "lost_blocks": float(tally.lost),
        "wrong_scales": float(tally.scales),
    }
    where = f"row {spot.row}, column {spot.column}"
    basis = f"{pair.source} as {name}"
    fault = _fault(tally, name)
    if not fault:
        found = "exact" if tally.max_error == 0 else f"within its bound, rms error {tally.relative:.2%}"
        return Check("tensor", PASS, pair.gguf, f"{name}, {found}", data=data)
    expected = spot.wanted if name in EXACT or tally.not_finite else f"{spot.wanted:.7g} ± {spot.bound:.2g}"
    return Check("tensor", FAIL, pair.gguf, spot.value, expected, basis, fault, where, data)


def _fault(tally: Tally, type_name: str) -> str:
    """What is wrong with the numbers, "" if nothing is."""
    if tally.not_finite:
        return f"{tally.not_finite} values are NaN or Inf"
    counts: tuple[tuple[int, str], ...] = (
        (tally.outside, f"of {tally.weights} weights lie outside their bound"),
        (tally.lost, "blocks lost their signal (a scale of zero?)"),
        (tally.scales, "blocks have a scale their largest weight contradicts"),
    )
    if type_name in EXACT:
        counts = ((tally.outside, f"of {tally.weights} values differ"),)
    return ", ".join(f"{n} {what}" for n, what in counts if n)


# -- what a wrong tensor holds instead -----------------------------------------------------------------------------


def _diagnosis(gguf: GGUFFile, source: Source, pair: Pair) -> str:
    """Recognise two classic mistakes in a tensor that is wrong: rope's row order, and another tensor's data."""
    info, (_, right) = gguf.tensors[pair.gguf], next(source_blocks(source, pair))
    _, values = _values(gguf, info, 0, len(right))
    misfit = _distance(values, right)
    if _is_rotary(pair) and min(_distance(values, other) for other in _reordered(right, source, info)) < misfit / 4:
        return "rows look permuted (rope interleave)"
    for other in pairs(source):
        if other == pair or other.source is None or other.shape != info.shape:
            continue
        _, theirs = next(source_blocks(source, other))
        if _distance(values, theirs) < misfit / 4:
            return f"is {_owner(pair, other)}, swapped ({other.source})"
    return ""


ROPED = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")


def _is_rotary(pair: Pair) -> bool:
    return pair.gguf.endswith(ROPED)


def _reordered(rows: Floats, source: Source, info: TensorInfo) -> Iterator[Floats]:
    """The rows with rope's permutation applied once more, and taken back."""
    head_dim, axis = source.head_dim, 1 if len(info.shape) == 1 else 0
    length = rows.shape[axis] // head_dim * head_dim
    order = neox_order(length, head_dim)
    for index in (order, np.argsort(order)):
        yield np.concatenate([np.take(rows, index, axis), np.take(rows, range(length, rows.shape[axis]), axis)], axis)


def _owner(pair: Pair, other: Pair) -> str:
    """ "layer 1's" when it is the same kind of tensor, else the other's name."""
    layer, _, kind = other.gguf.removeprefix("blk.").partition(".")
    same = other.gguf.startswith("blk.") and pair.gguf.endswith(f".{kind}")
    return f"layer {layer}'s" if same else f"{other.gguf}'s"


def _distance(a: Floats, b: Floats) -> float:
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))
