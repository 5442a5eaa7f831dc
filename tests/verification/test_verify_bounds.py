"""The error bounds: nothing that ggml's quantizer writes is refused, and hardly a wrong bit passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf.quants
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dflash_convert.verification.bounds import BOUNDS, SHARE_LIMIT, allowed, lost_blocks, rounded, wrong_scales

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def blocks(data: Path) -> dict[str, Array]:
    mxfp4 = np.load(data / "quants/mxfp4.npz")["MXFP4"]
    return {**np.load(data / "quants/blocks.npz"), "MXFP4": mxfp4, "MXFP4_imatrix": mxfp4}  # the same with and without


def decode(raw: Array, name: str) -> Array:
    return np.asarray(gguf.quants.dequantize(raw, GGMLQuantizationType[name]), np.float32)


def faults(raw: Array, source: Array, name: str, *, weighted: bool = False) -> Array:
    """For each row whether any of the three tests refuses it."""
    bound = BOUNDS[name]
    with np.errstate(all="ignore"):
        values = decode(raw, name)
        limit = allowed(raw, values, source, bound, weighted=weighted)
        outside = np.zeros(len(raw), bool) if limit is None else (np.abs(values - source) > limit).any(axis=1)
        lost = lost_blocks(values, source, bound, weighted=weighted).any(axis=1)
    broken = ~np.isfinite(values).all(axis=1)
    return np.asarray(broken | outside | lost | wrong_scales(raw, source, bound).any(axis=1))


@pytest.mark.parametrize("name", BOUNDS)
def test_blocks_of_ggml_are_within_their_bounds(blocks: dict[str, Array], name: str) -> None:
    """Heavy tails, lone outliers, constants, subnormals and zeros included."""
    assert not faults(blocks[name], blocks["x"], name).any()


@pytest.mark.parametrize("name", [n for n in BOUNDS if n != "Q8_0"])
def test_blocks_made_with_an_importance_matrix_are_within_their_bounds(blocks: dict[str, Array], name: str) -> None:
    assert not faults(blocks[f"{name}_imatrix"], blocks["x"], name, weighted=True).any()


@pytest.mark.parametrize("name", BOUNDS)
def test_block_layouts_have_the_sizes_of_ggml(name: str) -> None:
    bound = BOUNDS[name]
    assert (bound.block, bound.size) == GGML_QUANT_SIZES[GGMLQuantizationType[name]]


def one_block(blocks: dict[str, Array], name: str) -> tuple[Array, Array]:
    """The bytes (1, size) and weights (1, block) of a golden block as models have them: normal, of rms 0.02."""
    bound, row = BOUNDS[name], slice(6, 7)
    return blocks[name][row, : bound.size], blocks["x"][row, : bound.block]


def flipped(raw: Array) -> Array:
    """One row for each bit of a block, that bit turned: (8 · size, size)."""
    bits = np.arange(raw.shape[1] * 8)
    rows = np.repeat(raw, len(bits), axis=0)
    rows[bits, bits // 8] ^= (1 << bits % 8).astype(np.uint8)
    return rows


# where the codes lie in a block; the rest are scales
CODES = {
    "Q2_K": slice(16, 80),
    "Q3_K": slice(0, 96),
    "Q4_K": slice(16, 144),
    "Q5_K": slice(16, 176),
    "Q6_K": slice(0, 192),
}


@pytest.mark.parametrize("name", CODES)
def test_every_wrong_code_bit_of_a_k_quant_is_found(blocks: dict[str, Array], name: str) -> None:
    raw, x = one_block(blocks, name)
    rows = flipped(raw)
    found = faults(rows, np.repeat(x, len(rows), axis=0), name).reshape(-1, 8)  # (bytes, bits)
    assert found[CODES[name]].all()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_0", "Q4_1", "Q5_1"])
def test_every_wrong_high_code_bit_is_found(blocks: dict[str, Array], name: str) -> None:
    """Every bit but the lowest of a nibble or byte, which a scale's own rounding may explain."""
    raw, x = one_block(blocks, name)
    rows = flipped(raw)
    found = faults(rows, np.repeat(x, len(rows), axis=0), name).reshape(-1, 8)
    codes = found[4 if name.endswith("_1") else 2 :]
    assert codes[:, 1:4].all()
    assert codes[:, 5:].all()


def test_every_wrong_bit_of_mxfp4_is_found_but_the_sign_of_a_zero(blocks: dict[str, Array]) -> None:
    raw, x = one_block(blocks, "MXFP4")
    rows = flipped(raw)
    changed = (decode(rows, "MXFP4") != decode(raw, "MXFP4")).any(axis=1)
    assert (faults(rows, np.repeat(x, len(rows), axis=0), "MXFP4") == changed).all()
    assert changed.sum() > 120


@pytest.mark.parametrize(("name", "at"), [("IQ4_NL", 2), ("IQ4_XS", 8)])
def test_every_wrong_code_bit_of_a_table_is_found(blocks: dict[str, Array], name: str, at: int) -> None:
    """Neighbours in the table are ten and more steps apart. An IQ4_XS block of weights as models have them keeps its
    scale as a subnormal half, which explains a lowest bit here and there."""
    raw, x = one_block(blocks, name)
    rows = flipped(raw)
    for weighted in (False, True):
        found = faults(rows, np.repeat(x, len(rows), axis=0), name, weighted=weighted).reshape(-1, 8)
        assert found[at:, [1, 2, 3, 5, 6, 7]].all()
        assert found[at:].mean() == 1 if name == "IQ4_NL" else found[at:].mean() > 0.995


@pytest.mark.parametrize("name", ["IQ4_NL", "IQ4_XS", "MXFP4"])
def test_a_wrong_high_bit_of_a_tables_scale_is_found(blocks: dict[str, Array], name: str) -> None:
    raw, x = one_block(blocks, name)
    rows = flipped(raw)
    found = faults(rows, np.repeat(x, len(rows), axis=0), name).reshape(-1, 8)
    assert found[0 if name == "MXFP4" else 1].all()


@pytest.mark.parametrize(("name", "at"), [("Q8_0", 0), ("Q4_0", 0), ("Q4_K", 0), ("Q5_K", 0), ("Q6_K", 208)])
def test_a_wrong_high_bit_of_a_scale_is_found(blocks: dict[str, Array], name: str, at: int) -> None:
    """The f16 scale's sign, exponent and upper mantissa."""
    raw, x = one_block(blocks, name)
    rows = flipped(raw)
    found = faults(rows, np.repeat(x, len(rows), axis=0), name).reshape(-1, 8)
    assert found[at + 1].all()


def test_a_q8_0_scale_off_by_an_ulp_is_found(blocks: dict[str, Array]) -> None:
    raw, x = one_block(blocks, "Q8_0")
    next_up = (raw[:, :2].copy().view(np.uint16) + 2).view(np.uint8)
    assert wrong_scales(np.concatenate([next_up, raw[:, 2:]], axis=1), x, BOUNDS["Q8_0"]).all()


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_block_of_zeros_has_lost_its_signal(blocks: dict[str, Array], name: str, weighted: bool) -> None:
    bound = BOUNDS[name]
    x = np.full((1, bound.block), 0.02, np.float32)
    zeros = np.zeros((1, bound.size), np.uint8)
    assert lost_blocks(decode(zeros, name), x, bound, weighted=weighted).all()


def test_codes_that_an_importance_matrix_may_move_are_not_judged(blocks: dict[str, Array]) -> None:
    raw, x = one_block(blocks, "Q4_0")
    assert allowed(raw, decode(raw, "Q4_0"), x, BOUNDS["Q4_0"], weighted=True) is None


def test_the_bound_of_a_hand_worked_block() -> None:
    """Q8_0 with scale 0.5: 0.74 lies 0.24 from level 1; 70 lies beyond level 127, by 6.5."""
    raw = np.zeros((1, 34), np.uint8)
    raw[0, :2] = np.array([0.5], np.float16).view(np.uint8)
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 0.74, 70.0
    limit = allowed(raw, decode(raw, "Q8_0"), x, BOUNDS["Q8_0"], weighted=False)
    assert limit is not None
    assert limit[0, 0] == pytest.approx(0.24, abs=1e-4)
    assert limit[0, 1] == pytest.approx(6.5, abs=1e-4)


def test_shares_follow_their_formula() -> None:
    assert BOUNDS["Q8_0"].share == pytest.approx(32**0.5 * (0.5 + 127 / 2048) / 127)
    assert BOUNDS["Q4_K"].share == pytest.approx(32**0.5 * 0.5 / 7.5 + 16 / 126)
    assert BOUNDS["Q2_K"].share == SHARE_LIMIT


def test_floats_are_rounded_to_nearest_even() -> None:
    x = np.array([[1 + 2**-8, 1 + 3 * 2**-8, 1e-8, 7e4]], np.float32)
    assert rounded(x, "BF16").tolist() == [
        [1.0, 1 + 2**-6, float(ml_dtypes.bfloat16(1e-8)), float(ml_dtypes.bfloat16(7e4))]
    ]
    assert rounded(x, "F16")[0, 3] == np.inf
    assert rounded(x, "F32").tolist() == x.tolist()
