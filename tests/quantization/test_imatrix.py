"""Importance matrices: both formats against each other and by hand; what is damaged or does not fit is refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V
from hypothesis import given, settings
from hypothesis import strategies as st
from make import Array, make_gguf, weights
from one_layer import one_layer

from dflash_convert.errors import GGUFError, UsageError
from dflash_convert.gguf_io.reader import KV, open_gguf
from dflash_convert.quantization.imatrix import Imatrix, keys_of, open_imatrix
from dflash_convert.quantization.run import plan_file, quantize_file
from dflash_convert.quants import quantize

UP, EXPERTS = "blk.0.ffn_up.weight", "blk.0.ffn_up_exps.weight"
KEYS = {
    "general.type": "imatrix",
    "imatrix.datasets": ["a.txt"],
    "imatrix.chunk_count": KV("imatrix.chunk_count", V.UINT32, 3),
    "imatrix.chunk_size": KV("imatrix.chunk_size", V.UINT32, 512),
}


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def gguf_of(path: Path, tensors: Mapping[str, Array], **keys: Any) -> Path:
    given = KEYS | {k.replace("__", "."): v for k, v in keys.items()}
    return make_gguf(path / "im.gguf", {"general.architecture": "none"} | given, tensors)


def entry(name: str, sums: Array, *counts: float) -> dict[str, Array]:
    return {f"{name}.in_sum2": sums, f"{name}.counts": f32(*counts).reshape(-1, 1)}


def binary_entry(name: str, calls: int, values: Array) -> bytes:
    raw = name.encode()
    return struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, len(values)) + values.tobytes()


def binary_of(path: Path, *entries: bytes, tail: bytes = b"") -> Path:
    file = path / "im.dat"
    file.write_bytes(struct.pack("<i", len(entries)) + b"".join(entries) + tail)
    return file


def refusal(path: Path) -> str:
    with pytest.raises(GGUFError) as caught:
        open_imatrix(path)
    return caught.value.message


# -- reading -------------------------------------------------------------------------------------------------------


def test_both_formats_of_the_trained_target_agree(tiny_pair: Path) -> None:
    new, old = (open_imatrix(tiny_pair / f"imatrix.{end}") for end in ("gguf", "dat"))
    assert sorted(new.of) == sorted(old.of)
    assert len(new.of) == 28
    assert (new.datasets, new.n_chunks) == (old.datasets, old.n_chunks) == (("text.txt",), 14)
    for name, importances in new.of.items():
        assert importances.dtype == np.float32
        assert np.allclose(importances, old.of[name], rtol=1e-5)


def test_sums_are_divided_by_the_counts_of_their_matrix(tmp_path: Path) -> None:
    """A matrix that saw no token weighs all columns alike; counts are rounded half up."""
    path = gguf_of(tmp_path, entry("a.weight", np.arange(6, dtype=np.float32).reshape(3, 2), 2, 0.4, 2.5))
    assert open_imatrix(path).of["a.weight"].tolist() == [0, 0.5, 1, 1, f32(4 / 3)[0], f32(5 / 3)[0]]


def test_the_old_format_by_hand(tmp_path: Path) -> None:
    entries = binary_entry("a.weight", 4, f32(4, 8)), binary_entry("b.weight", 0, f32(3))
    found = open_imatrix(binary_of(tmp_path, *entries))
    assert {name: values.tolist() for name, values in found.of.items()} == {"a.weight": [1, 2], "b.weight": [3]}
    assert (found.datasets, found.n_chunks) == ((), 0)
    found = open_imatrix(binary_of(tmp_path, *entries, tail=struct.pack("<ii", 7, 5) + b"x.txt"))
    assert (found.datasets, found.n_chunks) == (("x.txt",), 7)
    assert open_imatrix(binary_of(tmp_path, *entries, tail=struct.pack("<i", 7))).n_chunks == 7


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({}, "an importance matrix without entries"),
        ({"a.in_sum2": f32(1)}, "a has no counts"),
        ({"a.counts": f32(1)}, "a has no in_sum2"),
        (entry("a", f32(1, 2, 3), 1, 1), "a has 3 sums, which do not divide by its 2 counts"),
        (entry("a", f32(1, 2).astype(np.float16), 1), "a.in_sum2 is F16, not F32"),
        (entry("a", f32(1, np.nan), 1), "the importance of column 1 of a is nan"),
        (entry("a", f32(1, np.inf), 1), "the importance of column 1 of a is inf"),
        (entry("a", f32(-1, 2), 1), "the importance of column 0 of a is -1.0"),
        (entry("a", f32(1, 2), np.inf), "the counts of a are not all finite and positive"),
        (entry("a", f32(1, 2), -3), "the counts of a are not all finite and positive"),
    ],
)
def test_a_damaged_gguf_is_refused(tensors: Mapping[str, Array], said: str, tmp_path: Path) -> None:
    assert refusal(gguf_of(tmp_path, tensors)) == f"im.gguf: {said}"


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    said = refusal(one_layer(tmp_path, {UP: weights(2, 32)}))
    assert said == "in.gguf: has no key imatrix.datasets, so it is no importance matrix"


def test_keys_of_another_type(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry("a", f32(1), 1), imatrix__datasets="a.txt")
    assert open_imatrix(path).datasets == ()
    path = gguf_of(tmp_path, entry("a", f32(1), 1), imatrix__chunk_count="3")
    assert refusal(path) == "im.gguf: the key imatrix.chunk_count is of type STRING, not UINT32"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "no importance matrix, or a truncated one: the number of entries at byte 0 does not fit"),
        (struct.pack("<i", 0), "no importance matrix: it claims 0 entries"),
        (struct.pack("<i", -1), "no importance matrix: it claims -1 entries"),
        (struct.pack("<ii", 1, -1), "no importance matrix, or a truncated one: the name of entry 0 at byte 8"),
        (struct.pack("<ii", 1, 2**31 - 1), "no importance matrix, or a truncated one: the name of entry 0 at byte 8"),
        (struct.pack("<iicii", 1, 1, b"a", 1, 2**31 - 1), "the importances of a at byte"),
        (struct.pack("<ii", 1, 1) + b"a" + struct.pack("<ii", 1, 0), "a has 0 importances"),
        (struct.pack("<i", 1) + binary_entry("a", 1, f32(1, -2)), "the importance of column 1 of a is -2.0"),
        (struct.pack("<i", 1) + binary_entry("a", 1, f32(np.nan)), "the importance of column 0 of a is nan"),
        (struct.pack("<i", 1) + binary_entry("a", 1, f32(1)) + struct.pack("<ii", 1, 9), "the name of the dataset"),
    ],
)
def test_a_damaged_binary_is_refused(raw: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "im.dat"
    path.write_bytes(raw)
    assert said in refusal(path)


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, 80), byte=st.integers(0, 255), cut=st.integers(0, 80))
def test_no_damage_to_the_binary_format_is_a_bug(
    at: int, byte: int, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever a byte becomes and wherever the file ends: it is read, or refused."""
    path = tmp_path_factory.mktemp("im") / "im.dat"
    raw = bytearray(struct.pack("<i", 2) + binary_entry("a", 2, f32(1, 2)) + binary_entry("bc", 1, f32(3)) + bytes(9))
    raw[at % len(raw)] = byte
    path.write_bytes(raw[: len(raw) - cut] if cut < len(raw) else b"")
    with contextlib.suppress(GGUFError):
        assert all((v >= 0).all() for v in open_imatrix(path).of.values())


def test_a_missing_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf").endswith("none.gguf: No such file or directory")


# -- what a quantized file takes from it ---------------------------------------------------------------------------


def test_each_matrix_of_a_stack_has_importances_of_its_own(tmp_path: Path) -> None:
    x = weights(3, 5, 256)
    of = np.abs(weights(3, 256, seed=1))
    path = gguf_of(tmp_path, entry(EXPERTS, of, 1, 1, 1))
    quantize_file(one_layer(tmp_path, {EXPERTS: x}), tmp_path / "out.gguf", "Q4_K_S", imatrix=path)
    expected = [quantize(x[i], "Q4_K", imatrix=np.ascontiguousarray(of[i])) for i in range(3)]
    assert np.array_equal(open_gguf(tmp_path / "out.gguf").raw(EXPERTS), np.concatenate(expected))


def test_small_blocks_and_threads_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gguf_of(tmp_path, entry(EXPERTS, np.abs(weights(3, 256, seed=1)), 1, 1, 1))
    src = one_layer(tmp_path, {EXPERTS: weights(3, 5, 256)})
    quantize_file(src, tmp_path / "a.gguf", "Q3_K_S", imatrix=path, threads=1)
    monkeypatch.setattr("dflash_convert.quantization.run.BLOCK_WEIGHTS", 2 * 256)
    quantize_file(src, tmp_path / "b.gguf", "Q3_K_S", imatrix=path, threads=3)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_types_that_make_nothing_of_importances_ignore_them(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry(UP, np.abs(weights(256)), 1))
    src = one_layer(tmp_path, {UP: weights(4, 256)})
    for file_type in ("Q8_0", "F16"):
        plan = quantize_file(src, tmp_path / "out.gguf", file_type, imatrix=path, force=True)
        assert np.array_equal(open_gguf(tmp_path / "out.gguf").raw(UP), quantize(weights(4, 256), file_type))
        assert plan.notes == ()


def test_another_length_than_the_tensor_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry(UP, f32(1, 2, 3), 1))
    src = one_layer(tmp_path, {UP: weights(4, 256)})
    with pytest.raises(GGUFError) as caught:
        quantize_file(src, tmp_path / "out.gguf", "Q4_K_M", imatrix=path)
    assert caught.value.message == f"im.gguf: 3 importances for {UP}, which has 256"
    assert not (tmp_path / "out.gguf").exists()
    assert plan_file(src, "COPY", imatrix=path).importances == {}


def test_embeddings_of_another_length_are_quantized_without(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry("token_embd.weight", f32(1, 2, 3), 1))
    plan = plan_file(one_layer(tmp_path, {"token_embd.weight": weights(4, 256)}), "Q4_K_M", imatrix=path)
    assert [(n.level, n.text) for n in plan.notes] == [
        ("info", "im.gguf has no importances for token_embd.weight: quantized without")
    ]


def test_q2_k_s_is_written_where_importances_cover_it(tmp_path: Path) -> None:
    of = np.abs(weights(256, seed=1))
    path = gguf_of(tmp_path, entry(UP, of, 1))
    src = one_layer(tmp_path, {UP: weights(4, 256), "token_embd.weight": weights(4, 256)})
    quantize_file(src, tmp_path / "out.gguf", "Q2_K_S", imatrix=path)
    out = open_gguf(tmp_path / "out.gguf")
    assert np.array_equal(out.raw(UP), quantize(weights(4, 256), "Q2_K", imatrix=of))
    other = one_layer(tmp_path, {UP: weights(4, 256), "blk.0.attn_q.weight": weights(4, 256)})
    with pytest.raises(UsageError, match=r"without one, blk.0.attn_q.weight in Q2_K would be garbage"):
        quantize_file(other, tmp_path / "out.gguf", "Q2_K_S", imatrix=path, force=True)


def test_what_is_kept_needs_no_importances(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry("other.weight", f32(1), 1))
    src = one_layer(tmp_path, {UP: (G.Q2_K, quantize(weights(4, 256), "Q2_K")), "blk.0.n_norm.weight": weights(256)})
    assert plan_file(src, "Q2_K_S", imatrix=path).notes == ()


def test_the_output_may_not_be_the_importance_matrix(tmp_path: Path) -> None:
    path = gguf_of(tmp_path, entry(UP, f32(1), 1))
    with pytest.raises(Exception, match="the output is the input"):
        quantize_file(one_layer(tmp_path, {UP: weights(4, 256)}), path, "Q4_K_M", imatrix=path, force=True)


def test_keys_are_cut_where_llama_cpp_cuts_them() -> None:
    keys = {kv.key: kv.value for kv in keys_of(Imatrix("é" * 100, {"a": f32(1)}, ("x" * 200, "y")))}
    assert keys == {
        "quantize.imatrix.file": "é" * 63,
        "quantize.imatrix.dataset": "x" * 127,
        "quantize.imatrix.entries_count": 1,
    }
