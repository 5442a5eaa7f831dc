"""What is not quantized: damaged, unsuitable or overflowing input, by tensor, row and column; and no output is left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import Array, make_gguf, weights
from one_layer import one_layer

from dflash_convert.errors import GGUFError, OutputError, UsageError
from dflash_convert.gguf_io.reader import open_gguf
from dflash_convert.quantization.run import quantize_file
from dflash_convert.quants import quantize

MODULE = sys.modules[quantize_file.__module__]


def refused(kind: type[Exception], src: Path, file_type: str, **options: Any) -> str:
    """The message and hint of a refusal that left nothing behind."""
    out = src.parent / "out.gguf"
    with pytest.raises(kind) as caught:
        quantize_file(src, out, file_type, **options)
    assert [p.name for p in src.parent.iterdir()] == [src.name]
    return f"{caught.value.message} | {caught.value.hint}"  # type: ignore[attr-defined]


def with_weight(row: int, column: int, value: float, dtype: Any = np.float32) -> Array:
    x = weights(8, 256, dtype=dtype)
    x[row, column] = value
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("file_type", ["F32", "F16", "BF16", "Q8_0", "Q4_K_M"])
def test_nan_is_named_by_tensor_row_and_column(file_type: str, dtype: Any, tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": with_weight(5, 7, np.nan, dtype)})
    text = refused(GGUFError, src, file_type)
    assert text.startswith("blk.0.ffn_up.weight: the weight in row 5, column 7 is nan | the file is damaged")


def test_the_row_of_an_inf_counts_from_the_start_of_the_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_WEIGHTS", 2 * 256)
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": with_weight(7, 255, -np.inf)})
    assert "row 7, column 255 is -inf" in refused(GGUFError, src, "Q6_K")


def test_an_inf_in_a_copied_norm_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"output_norm.weight": np.array([1, 2, np.inf], np.float32)})
    assert "output_norm.weight: the weight in row 0, column 2 is inf" in refused(GGUFError, src, "Q8_0")


OVERFLOWS = {
    "F16": (65520.0, "the weight 65520 in"),
    "Q8_0": (-65520.0 * 127, "the scale of the weight -8.32104e+06 in"),
    "Q4_K_M": (1e9, "the scale of the weight 1e+09 in"),
    "Q6_K": (1e12, "the scale of the weight 1e+12 in"),
}


@pytest.mark.parametrize("file_type", OVERFLOWS)
def test_a_weight_too_large_is_named(file_type: str, tmp_path: Path) -> None:
    value, what = OVERFLOWS[file_type]
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": with_weight(3, 130, value)})
    text = refused(GGUFError, src, file_type)
    assert f"blk.0.ffn_up.weight: {what} row 3, column 130 does not fit" in text
    assert "write BF16 or F32" in text


def test_a_minimum_too_large_is_refused_too(tmp_path: Path) -> None:
    x = np.full((1, 256), -1e8, np.float32)  # no range, so no scale; only the minimum overflows
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": np.concatenate([x, x])})
    assert "row 0, column 0 does not fit Q4_K" in refused(GGUFError, src, "Q4_K_M")


def test_the_largest_halves_still_fit(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": with_weight(3, 130, 65519.0)})
    quantize_file(src, tmp_path / "out.gguf", "F16")
    stored = open_gguf(tmp_path / "out.gguf").raw("blk.0.ffn_up.weight").view(np.float16)
    assert stored[3, 130] == 65504.0


def test_requantizing_unasked_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": (G.Q8_0, quantize(weights(4, 256), "Q8_0"))})
    text = refused(GGUFError, src, "Q4_K_M")
    assert "blk.0.ffn_up.weight is quantized already: Q8_0 would become Q4_K" in text
    assert "--allow-requantize" in text
    assert "Q8_0 would become F16" in refused(GGUFError, src, "F16")


def test_integers_are_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.table.weight": np.zeros((4, 256), np.int32)})
    text = refused(GGUFError, src, "Q8_0", allow_requantize=True)
    assert "blk.0.table.weight holds I32, which cannot become Q8_0" in text


def test_a_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"a.weight": weights(2, 32)}, split__count=3)
    assert "in.gguf is one of 3 parts of a model | join them first" in refused(GGUFError, src, "Q8_0")


def test_a_file_without_layers_is_refused(tmp_path: Path) -> None:
    src = make_gguf(tmp_path / "in.gguf", {"general.architecture": "toy"}, {"a.weight": weights(2, 32)})
    assert "in.gguf has no key toy.block_count" in refused(GGUFError, src, "Q8_0")


def test_an_unknown_file_type_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"a.weight": weights(2, 32)})
    assert "the nearest is Q4_K_M" in refused(UsageError, src, "Q4_KM")


def test_q2_k_s_without_importances_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": weights(2, 256)})
    text = refused(UsageError, src, "Q2_K_S")
    assert "Q2_K_S needs an importance matrix: without one, blk.0.ffn_up.weight in Q2_K would be garbage" in text


def test_a_truncated_input_is_refused(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"a.weight": weights(2, 32)})
    src.write_bytes(src.read_bytes()[:-100])
    assert "in.gguf" in refused(GGUFError, src, "Q8_0")


def test_the_input_is_not_overwritten_even_by_force(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"a.weight": weights(2, 32)})
    before = src.read_bytes()
    with pytest.raises(OutputError, match="the output is the input"):
        quantize_file(src, src, "Q8_0", force=True)
    assert src.read_bytes() == before


def test_an_output_that_exists_is_refused_before_the_input_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_text("mine")
    with pytest.raises(OutputError, match="exists"):
        quantize_file(tmp_path / "nothing.gguf", tmp_path / "out.gguf", "Q8_0")
    assert (tmp_path / "out.gguf").read_text() == "mine"


@pytest.mark.parametrize("extra", [1, 31, 4096])
def test_bytes_behind_the_last_tensor_are_refused(tmp_path: Path, extra: int) -> None:
    source = one_layer(tmp_path, {"blk.0.ffn_up.weight": weights(8, 256)})
    size = source.stat().st_size
    source.write_bytes(source.read_bytes() + b"\1" * extra)
    said = refused(GGUFError, source, "Q8_0")
    assert said == (
        f"in.gguf: {extra} bytes lie behind the last tensor, from byte {size} | "
        "a resumed download may have appended, or two files were joined: download or write it again"
    )
