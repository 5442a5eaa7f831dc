"""The block formats: worked out by hand, against ggml's bytes, against a slow reference, and by their properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import quants as gguf_quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_blocks import ODD
from slow_quants import SLOW, SLOW_WEIGHTED, Array, numbers

from dflash_convert.quants import TYPES, dequantize, q6_k, quantize
from dflash_convert.quants.kernel import kernel

WRITTEN = [name for name, t in TYPES.items() if t.encode]
WEIGHTED = [name for name, t in TYPES.items() if t.encode_weighted]
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.fixture(scope="module")
def golden(data: Any) -> dict[str, Array]:
    """x (64, 512) float32 and ggml's bytes for it, by type."""
    with np.load(data / "quants" / "blocks.npz") as found, np.load(data / "quants" / "mxfp4.npz") as more:
        return dict(found) | dict(more)


# -- golden bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in WRITTEN if n != "F32"])
def test_bytes_are_ggmls(name: str, golden: dict[str, Array]) -> None:
    assert np.array_equal(quantize(golden["x"], name), golden[name])


@pytest.mark.parametrize("name", WEIGHTED)
def test_bytes_with_importance_weights_are_ggmls(name: str, golden: dict[str, Array]) -> None:
    got = quantize(golden["x"], name, imatrix=golden["imatrix"])
    assert np.array_equal(got, golden[f"{name}_imatrix"])
    assert not np.array_equal(got, golden[name])


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "MXFP4"])
def test_types_that_make_nothing_of_importance_ignore_it(name: str, golden: dict[str, Array]) -> None:
    assert np.array_equal(quantize(golden["x"], name, imatrix=golden["imatrix"]), golden[name])


@pytest.mark.parametrize("name", WRITTEN)
def test_decoding_agrees_with_the_gguf_package(name: str, golden: dict[str, Array]) -> None:
    raw = golden["x"].view(np.uint8) if name == "F32" else golden[name]
    got = dequantize(raw, name)
    assert got.dtype == np.float32
    assert np.array_equal(got, gguf_quants.dequantize(raw, TYPES[name].id))


def test_every_type_the_gguf_package_can_decode_is_in_the_table() -> None:
    for type_id in GGMLQuantizationType:
        block, size = GGML_QUANT_SIZES[type_id]
        try:
            gguf_quants.dequantize(np.zeros((1, size), np.uint8), type_id)
        except NotImplementedError:
            continue
        assert (TYPES[type_id.name].block, TYPES[type_id.name].bytes) == (block, size)
        assert dequantize(np.zeros((2, 3 * size), np.uint8), type_id.name).shape == (2, 3 * block)


@pytest.mark.parametrize("name", [n for n in TYPES if TYPES[n].halves])
def test_the_half_fields_are_where_the_table_says(name: str) -> None:
    """An Inf in a half field, and nowhere else, shows in every type's decoded weights."""
    qtype = TYPES[name]
    for at in qtype.halves:
        raw = np.full((1, qtype.bytes), 0x11, np.uint8)
        raw[0, at : at + 2] = (0x00, 0x7C)
        with np.errstate(all="ignore"):
            assert not np.isfinite(dequantize(raw, name)).any()


# -- blocks worked out by hand -------------------------------------------------------------------------------------


def test_a_q8_0_block_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = 127.0, 2.5, -2.5, 0.49, -127.0  # d = 1: halves go away from zero
    assert quantize(x, "Q8_0")[0].tolist() == [0x00, 0x3C, 127, 3, 256 - 3, 0, 256 - 127] + [0] * 27


def test_a_q4_0_block_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 17], x[0, 31] = 8.0, -1.0, -8.0  # d = 8/-8 = -1, so q = 8 - w: 0, 9, and 16, cut to 15
    assert quantize(x, "Q4_0")[0].tolist() == [0x00, 0xBC, 0x80, 0x98] + [0x88] * 13 + [0xF8]


def test_a_q4_1_block_by_hand() -> None:
    x = np.arange(32, dtype=np.float32)[None] // 2 - 1  # d = 1, m = -1: q = 0, 0, 1, 1 … 15, 15
    raw = quantize(x, "Q4_1")[0]
    assert raw[:4].tolist() == [0x00, 0x3C, 0x00, 0xBC]
    assert raw[4:].tolist() == [j // 2 | (j // 2 + 8) << 4 for j in range(16)]


def test_a_q5_0_block_by_hand() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 17] = 16.0, -1.0  # d = 16/-16 = -1, so q = 16 - w; the zeros are 16: the fifth bit alone
    raw = quantize(x, "Q5_0")[0]
    assert raw[:2].tolist() == [0x00, 0xBC]
    assert raw[2:6].tolist() == [0b11111110, 0xFF, 0xFF, 0xFF]  # weight 0 is q = 0
    assert raw[6:].tolist() == [0x00, 0x10] + [0] * 14  # weight 17: 17, nibble 1, above weight 1's


def test_a_q5_1_block_by_hand() -> None:
    x = np.arange(32, dtype=np.float32)[None] - 1  # d = 1, m = -1: q = 0 … 31
    raw = quantize(x, "Q5_1")[0]
    assert raw[:8].tolist() == [0x00, 0x3C, 0x00, 0xBC, 0, 0, 0xFF, 0xFF]
    assert raw[8:].tolist() == [j | j << 4 for j in range(16)]


@pytest.mark.parametrize("name", K_QUANTS)
def test_a_whole_grid_is_kept_exactly(name: str) -> None:
    """Weights that lie on a grid with steps a half can hold come back unchanged."""
    grid = {
        "Q2_K": 15 * np.arange(4),
        "Q3_K": np.arange(-4, 4),
        "Q4_K": 63 * np.arange(16),
        "Q5_K": 63 * np.arange(32),
        "Q6_K": np.arange(-32, 0),
    }[name]
    block = np.resize(grid, 256).astype(np.float32)
    assert np.array_equal(dequantize(quantize(block[None], name), name)[0], block)


# -- against a slow reference -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", K_QUANTS)
@pytest.mark.parametrize("kind", ODD)
def test_k_quants_agree_with_the_slow_reference(name: str, kind: str) -> None:
    with np.errstate(all="ignore"):
        assert np.array_equal(numbers(quantize(ODD[kind][None], name)[0], name), SLOW[name](ODD[kind]))


@pytest.mark.parametrize("name", K_QUANTS)
def test_random_blocks_agree_with_the_slow_reference(name: str) -> None:
    x = np.random.default_rng(11).standard_normal((12, 256)).astype(np.float32)
    raw = quantize(x, name)
    for given_block, got in zip(x, raw, strict=True):
        assert np.array_equal(numbers(got, name), SLOW[name](given_block))


@pytest.mark.parametrize("name", SLOW_WEIGHTED)
@pytest.mark.parametrize("kind", ODD)
def test_weighted_k_quants_agree_with_the_slow_reference(name: str, kind: str) -> None:
    importance = np.random.default_rng(13).exponential(1.0, 256).astype(np.float32)
    importance[32:64], importance[70:75] = 0.0, 0.0
    x = ODD[kind].astype(np.float32)
    with np.errstate(all="ignore"):
        assert np.array_equal(
            numbers(quantize(x[None], name, imatrix=importance)[0], name), SLOW_WEIGHTED[name](x, importance)
        )


def test_sums_that_overflow_leave_the_middle_not_zero() -> None:
    """Infinite scales are no dead ones: ggml gives them the middle level, 32 of 64, and so do we."""
    x = (np.random.default_rng(3).standard_normal((1, 256)) * 1e10).astype(np.float32)
    assert quantize(x, "Q3_K", imatrix=np.full(256, 1e19, np.float32))[0, 96:].tolist() == [0] * 8 + [170] * 4 + [0, 0]


# -- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in WRITTEN if n != "F32"])
def test_a_block_does_not_depend_on_its_neighbours(name: str, golden: dict[str, Array]) -> None:
    """Blocks share SIMD lanes, slices and threads; none of it may show."""
    x, whole = golden["x"], golden[name]
    assert np.array_equal(np.concatenate([quantize(row[None], name) for row in x]), whole)
    assert np.array_equal(quantize(x[5:18].copy(), name), whole[5:18])


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_weighted_row_does_not_depend_on_its_neighbours(
    name: str, golden: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, imatrix, whole = golden["x"], golden["imatrix"], golden[f"{name}_imatrix"]
    assert np.array_equal(np.concatenate([quantize(row[None], name, imatrix=imatrix) for row in x[:9]]), whole[:9])
    monkeypatch.setattr("dflash_convert.quants.CHUNK", 3 * 512 + 32)  # slices end where rows do
    assert np.array_equal(quantize(x[5:18].copy(), name, 3, imatrix), whole[5:18])


@pytest.mark.parametrize("name", WEIGHTED)
def test_what_matters_comes_out_closer(name: str, golden: dict[str, Array]) -> None:
    x, imatrix = np.random.default_rng(3).standard_normal((8, 512)).astype(np.float32), golden["imatrix"]

    def loss(raw: Array) -> Any:
        return (imatrix * (dequantize(raw, name) - x) ** 2).sum()

    assert loss(quantize(x, name, imatrix=imatrix)) < loss(quantize(x, name))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_byte(threads: int, golden: dict[str, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_convert.quants.CHUNK", 3 * 256)
    assert np.array_equal(quantize(golden["x"], "Q4_K", threads), golden["Q4_K"])
    assert np.array_equal(dequantize(golden["Q4_K"], "Q4_K", threads), dequantize(golden["Q4_K"], "Q4_K"))


@pytest.mark.parametrize("name", [n for n in WRITTEN if n not in ("F32", "F16", "BF16")])
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31))
def test_any_bytes_decode_as_the_gguf_package_decodes_them(name: str, seed: int) -> None:
    raw = np.random.default_rng(seed).integers(0, 256, (3, 2 * TYPES[name].bytes), np.uint8)
    with np.errstate(all="ignore"):
        assert np.array_equal(dequantize(raw, name), gguf_quants.dequantize(raw, TYPES[name].id), equal_nan=True)


@pytest.mark.parametrize("name", WEIGHTED)
def test_zeros_are_exact_whatever_they_matter(name: str, golden: dict[str, Array]) -> None:
    for imatrix in (golden["imatrix"], np.zeros(512, np.float32)):
        raw = quantize(np.zeros((2, 512), np.float32), name, imatrix=imatrix)
        assert not dequantize(raw, name).any()


@pytest.mark.parametrize("name", WRITTEN)
def test_zeros_are_exact(name: str) -> None:
    raw = quantize(np.zeros((2, 512), np.float32), name)
    assert not dequantize(raw, name).any()
    signless = raw.reshape(-1, TYPES[name].bytes).copy()
    if name in ("Q4_0", "Q5_0", "IQ4_XS"):
        assert (signless[:, 1] == 0x80).all()  # 0 over a negative number of levels is -0
        signless[:, 1] = 0
    assert not any(signless[:, at : at + 2].any() for at in TYPES[name].halves)


@pytest.mark.parametrize("name", [n for n in WRITTEN if n != "F32"])
@settings(max_examples=25)
@given(scale=st.sampled_from([1e-3, 0.02, 1.0, 300.0]), seed=st.integers(0, 2**31))
def test_no_weight_is_off_by_more_than_its_blocks_step(name: str, scale: float, seed: int) -> None:
    x = (np.random.default_rng(seed).standard_normal((2, 256)) * scale).astype(np.float32)
    error = abs(dequantize(quantize(x, name), name) - x)
    steps = {
        "F16": 2**-11, "BF16": 2**-8, "Q8_0": 1 / 200, "Q6_K": 1 / 20, "Q3_K": 1 / 3, "Q2_K": 2 / 3, "MXFP4": 1 / 4,
    }  # fmt: skip
    assert error.max() <= abs(x).max() * steps.get(name, 1 / 5)


def test_read_only_rows_are_taken_as_they_are(golden: dict[str, Array]) -> None:
    x, raw = golden["x"][:4].copy(), golden["Q6_K"][:4].copy()
    x.flags.writeable = raw.flags.writeable = False
    assert np.array_equal(quantize(x, "Q6_K"), raw)
    assert np.array_equal(dequantize(raw, "Q6_K"), dequantize(golden["Q6_K"][:4], "Q6_K"))
    assert len(vars(q6_k)["decode_q6_k"].signatures) == 1


def test_a_kernel_without_a_place_for_its_cache_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def twice(x): return x + x", made)  # a function that no file holds
    assert kernel(made["twice"])(4) == 8


def test_empty_and_single_rows() -> None:
    assert quantize(np.zeros((0, 256), np.float32), "Q4_K").shape == (0, 144)
    assert quantize(np.ones((1, 256), np.float32), "Q6_K").shape == (1, 210)


# -- refusals ------------------------------------------------------------------------------------------------------


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown type 'Q9_K'; known: F32, F16"):
        quantize(np.zeros((1, 256), np.float32), "Q9_K")


def test_a_type_without_an_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"IQ2_XS cannot be encoded; these can: F32, F16, BF16, Q8_0"):
        quantize(np.zeros((1, 256), np.float32), "IQ2_XS")


@pytest.mark.parametrize(
    "x",
    [np.zeros((1, 256)), np.zeros(256, np.float32), np.zeros((256, 8), np.float32).T],
    ids=["f64", "1-d", "strided"],
)
def test_another_layout_is_refused(x: Array) -> None:
    with pytest.raises(ValueError, match=r"wanted a C-contiguous \(rows, cols\) float32 array, got float"):
        quantize(x, "Q8_0")
    with pytest.raises(ValueError, match=r"wanted a C-contiguous \(rows, bytes\) uint8 array, got float"):
        dequantize(x, "Q8_0")


def test_a_row_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a row of 64 is not a multiple of 256, the block of Q4_K"):
        quantize(np.zeros((1, 64), np.float32), "Q4_K")
    with pytest.raises(ValueError, match=r"a row of 100 is not a multiple of 144, the block of Q4_K"):
        dequantize(np.zeros((1, 100), np.uint8), "Q4_K")
