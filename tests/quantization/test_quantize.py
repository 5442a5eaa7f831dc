"""Whole files: quantizing the trained pair gives llama.cpp's keys, tensors and bytes; bad input is refused by name."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V
from make import make_gguf, weights
from one_layer import one_layer
from safetensors.numpy import load_file

from dflash_convert.gguf_io.reader import KV, GGUFFile, LazyArray, open_gguf
from dflash_convert.quantization.file_types import FILE_TYPES
from dflash_convert.quantization.run import plan_file, quantize_file
from dflash_convert.quants import dequantize, quantize

NOT_IN_THE_GOLDENS = {"BF16", "Q2_K_S"}  # the pair is BF16; Q2_K_S is refused
WRITABLE = [t for t in FILE_TYPES if t not in NOT_IN_THE_GOLDENS]
# checkpoint name → GGUF name, for the pair at hand
OUTSIDE = {
    "fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm",
    "model.norm": "output_norm", "model.embed_tokens": "token_embd",
}  # fmt: skip
INSIDE = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.down_proj": "ffn_down", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "self_attn.k_norm": "attn_k_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_proj": "attn_k",
    "self_attn.q_proj": "attn_q", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
}  # fmt: skip
MODULE = sys.modules[quantize_file.__module__]
LONG_ARRAY = KV("test.long", V.ARRAY, [f"token {i}" for i in range(1000)], V.STRING)


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.weight"
    layer, part = stem.removeprefix("model.").removeprefix("layers.").split(".", 1)
    return f"blk.{layer}.{INSIDE[part]}.weight"


def expected(pair: Path, which: str, file_type: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((pair / "expected" / f"{which}-{file_type}.json").read_text())
    return found


def short_keys(golden: Mapping[str, Any]) -> list[KV]:
    """The keys whose value is given in full, with their GGUF types, in order."""
    return [
        KV(key, V[entry["type"][0]], entry["value"], V[entry["type"][1]] if len(entry["type"]) > 1 else None)
        for key, entry in golden["kv"].items()
        if not key.startswith("GGUF.") and not isinstance(entry["value"], dict)
    ]


@pytest.fixture(scope="module")
def bf16_files(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Draft and target as BF16 GGUFs with the keys and the tensor order of llama.cpp's converter."""
    files = {}
    for which in ("draft", "target"):
        golden = expected(tiny_pair, which, "bf16")
        stored = {gguf_name(n): t for n, t in load_file(tiny_pair / which / "model.safetensors").items()}
        tensors = {t["name"]: stored[t["name"]] for t in golden["tensors"]}
        tensors = {n: t.astype(np.float32) if t.ndim == 1 else t for n, t in tensors.items()}
        keys = {kv.key: kv for kv in (*short_keys(golden), LONG_ARRAY)}
        keys["general.architecture"] = keys["general.architecture"].value
        files[which] = make_gguf(tmp_path_factory.mktemp("bf16") / f"{which}.gguf", keys, tensors)
    return files


def tensor_rows(gguf: GGUFFile) -> list[tuple[Any, ...]]:
    return [
        (t.name, t.type.name, list(t.shape[::-1]), hashlib.sha256(gguf.raw(t.name).tobytes()).hexdigest())
        for t in gguf.tensors.values()
    ]


def golden_rows(golden: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(t["name"], t["type"], t["shape"], t["sha256"]) for t in golden["tensors"]]


@pytest.mark.parametrize("which", ["draft", "target"])
def test_the_input_is_what_the_converter_writes(which: str, bf16_files: dict[str, Path], tiny_pair: Path) -> None:
    assert tensor_rows(open_gguf(bf16_files[which])) == golden_rows(expected(tiny_pair, which, "bf16"))


@pytest.mark.parametrize("which", ["draft", "target"])
@pytest.mark.parametrize("file_type", WRITABLE)
def test_a_whole_file_equals_llama_cpps(
    which: str, file_type: str, bf16_files: dict[str, Path], tiny_pair: Path, tmp_path: Path
) -> None:
    golden = expected(tiny_pair, which, file_type)
    quantize_file(bf16_files[which], tmp_path / "out.gguf", file_type)
    out = open_gguf(tmp_path / "out.gguf")
    assert tensor_rows(out) == golden_rows(golden)
    keys = [(kv.key, kv.type, kv.value, kv.item_type) for kv in out.kv.values() if kv.key != LONG_ARRAY.key]
    assert keys == [(kv.key, kv.type, kv.value, kv.item_type) for kv in short_keys(golden)]


@pytest.mark.parametrize("source", ["imatrix.gguf", "imatrix.dat"])
@pytest.mark.parametrize("file_type", ["Q4_0", "Q4_K_M", "Q3_K_M", "IQ4_XS"])
def test_a_whole_file_with_an_importance_matrix_equals_llama_cpps(
    file_type: str,
    source: str,
    bf16_files: dict[str, Path],
    tiny_pair: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    golden = expected(tiny_pair, "target", f"{file_type}-imatrix")
    golden["kv"]["quantize.imatrix.file"]["value"] = source
    monkeypatch.chdir(tiny_pair)  # the file's name is written as it is given
    plan = quantize_file(bf16_files["target"], tmp_path / "out.gguf", file_type, imatrix=source)
    out = open_gguf(tmp_path / "out.gguf")
    assert tensor_rows(out) == golden_rows(golden)
    keys = [(kv.key, kv.type, kv.value, kv.item_type) for kv in out.kv.values() if kv.key != LONG_ARRAY.key]
    assert keys == [(kv.key, kv.type, kv.value, kv.item_type) for kv in short_keys(golden)]
    assert [note.text for note in plan.notes] == [
        f"{source} has no importances for token_embd.weight: quantized without"
    ]


def test_bf16_to_bf16_copies_every_byte(bf16_files: dict[str, Path], tmp_path: Path) -> None:
    quantize_file(bf16_files["draft"], tmp_path / "out.gguf", "BF16")
    given, out = open_gguf(bf16_files["draft"]), open_gguf(tmp_path / "out.gguf")
    assert sorted(tensor_rows(out)) == sorted(tensor_rows(given))
    assert list(out.kv)[-2:] == ["general.quantization_version", "general.file_type"]
    assert out.get("general.file_type") == 32


def test_a_long_array_is_copied_without_being_decoded(bf16_files: dict[str, Path], tmp_path: Path) -> None:
    plan = quantize_file(bf16_files["draft"], tmp_path / "out.gguf", "Q8_0")
    (planned,) = (kv.value for kv in plan.kv if kv.key == LONG_ARRAY.key)
    assert isinstance(planned, LazyArray)
    assert "items" not in vars(planned)
    assert open_gguf(tmp_path / "out.gguf").get(LONG_ARRAY.key) == LONG_ARRAY.value


def test_the_plan_knows_the_size_and_progress_adds_up_to_it(bf16_files: dict[str, Path], tmp_path: Path) -> None:
    steps: list[int] = []
    plan = quantize_file(bf16_files["draft"], tmp_path / "out.gguf", "Q4_K_M", progress=steps.append)
    assert plan.file_size == (tmp_path / "out.gguf").stat().st_size == sum(steps)


@pytest.mark.parametrize("threads", [1, 3])
def test_small_blocks_and_threads_change_no_byte(
    threads: int, bf16_files: dict[str, Path], tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MODULE, "BLOCK_WEIGHTS", 5 * 256)  # five rows at a time: the last block of a tensor is short
    quantize_file(bf16_files["target"], tmp_path / "out.gguf", "Q4_K_S", threads=threads)
    assert tensor_rows(open_gguf(tmp_path / "out.gguf")) == golden_rows(expected(tiny_pair, "target", "Q4_K_S"))


# -- made up models ------------------------------------------------------------------------------------------------


def test_rows_that_do_not_divide_fall_back_and_are_noted(tmp_path: Path) -> None:
    x = {f"blk.0.attn_{part}.weight": weights(4, 64) for part in "qkv"}
    x["blk.0.ffn_down.weight"] = weights(4, 96)
    x["blk.0.ffn_up.weight"] = weights(4, 40)
    src = one_layer(tmp_path, x)
    plan = quantize_file(src, tmp_path / "out.gguf", "Q4_K_M")
    out = open_gguf(tmp_path / "out.gguf")
    assert {t.name: t.type for t in out.tensors.values()} == {
        "blk.0.attn_k.weight": G.Q5_0, "blk.0.attn_q.weight": G.Q5_0, "blk.0.attn_v.weight": G.Q8_0,
        "blk.0.ffn_down.weight": G.Q8_0, "blk.0.ffn_up.weight": G.F16,
    }  # fmt: skip
    for name, values in x.items():
        assert np.array_equal(out.raw(name), quantize(values, out.tensors[name].type.name))
    assert [note.text for note in plan.notes] == [
        "Q5_0 instead of Q4_K for blk.0.attn_k.weight and 1 more: rows of 64 do not divide into blocks of Q4_K",
        "Q8_0 instead of Q6_K for blk.0.attn_v.weight: rows of 64 do not divide into blocks of Q6_K",
        "Q8_0 instead of Q6_K for blk.0.ffn_down.weight: rows of 96 do not divide into blocks of Q6_K",
        "F16 instead of Q4_K for blk.0.ffn_up.weight: rows of 40 do not divide into blocks of Q4_K",
    ]
    assert plan.tensors[0].transform == "F32 → Q5_0 instead of Q4_K: rows of 64 do not divide into blocks of Q4_K"
    assert [(c.nominal, c.type) for c in plan.choices[:1]] == [(G.Q4_K, G.Q5_0)]


def test_a_dry_run_writes_nothing_and_plans_the_same(bf16_files: dict[str, Path], tmp_path: Path) -> None:
    plan = plan_file(bf16_files["draft"], "q4_k_m")
    assert list(tmp_path.iterdir()) == []
    assert plan == quantize_file(bf16_files["draft"], tmp_path / "out.gguf", "Q4_K_M")


def test_the_alignment_stays_and_the_keys_of_splitting_go(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "in.gguf", arch="toy")
    writer.add_custom_alignment(64)
    for key, value in {"toy.block_count": 1, "split.no": 0, "split.count": 1, "split.tensors.count": 2}.items():
        writer.add_uint32(key, value)
    writer.add_tensor("b.weight", weights(3, 32))
    writer.add_tensor("a.weight", weights(3, 32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "Q8_0")
    out = open_gguf(tmp_path / "out.gguf")
    assert list(out.kv) == [
        "general.architecture", "general.alignment", "toy.block_count",
        "general.quantization_version", "general.file_type",
    ]  # fmt: skip
    assert [t.offset % 64 for t in out.tensors.values()] == [0, 0]
    assert list(out.tensors) == ["a.weight", "b.weight"]


def test_three_dimensions_are_rows_of_experts(tmp_path: Path) -> None:
    x = weights(2, 3, 256)
    src = one_layer(tmp_path, {"blk.0.ffn_up_exps.weight": x})
    quantize_file(src, tmp_path / "out.gguf", "Q4_K_S")
    out = open_gguf(tmp_path / "out.gguf")
    assert out.tensors["blk.0.ffn_up_exps.weight"].shape == (2, 3, 256)
    assert np.array_equal(out.raw("blk.0.ffn_up_exps.weight"), quantize(x.reshape(6, 256), "Q4_K"))


def test_requantizing_goes_through_the_decoded_values(tmp_path: Path) -> None:
    raw = quantize(weights(4, 256), "Q8_0")
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": (G.Q8_0, raw)})
    quantize_file(src, tmp_path / "out.gguf", "Q4_K_M", allow_requantize=True)
    got = open_gguf(tmp_path / "out.gguf").raw("blk.0.ffn_up.weight")
    assert np.array_equal(got, quantize(dequantize(raw, "Q8_0"), "Q4_K"))


def test_a_tensor_already_of_its_type_is_copied_not_requantized(tmp_path: Path) -> None:
    raw = quantize(weights(4, 256), "Q4_K")
    raw[0, 20] ^= 0xFF  # bytes that quantizing the decoded values would not give
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": (G.Q4_K, raw)})
    quantize_file(src, tmp_path / "out.gguf", "Q4_K_M")
    assert np.array_equal(open_gguf(tmp_path / "out.gguf").raw("blk.0.ffn_up.weight"), raw)


def test_a_copy_takes_integers_and_blocks_and_guesses_the_number(tmp_path: Path) -> None:
    blocks = {f"blk.0.{part}.weight": (G.Q4_K, quantize(weights(4, 256), "Q4_K")) for part in ("a", "b")}
    src = one_layer(tmp_path, blocks | {"blk.0.table.weight": np.arange(32, dtype=np.int32).reshape(2, 16)})
    quantize_file(src, tmp_path / "out.gguf", "COPY")
    out = open_gguf(tmp_path / "out.gguf")
    assert sorted(tensor_rows(out)) == sorted(tensor_rows(open_gguf(src)))
    assert out.get("general.file_type") == 1024 + 15


def test_a_copy_with_a_number_of_another_kind_guesses_too(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.a.weight": weights(4, 32)}, general__file_type="F32")
    assert plan_file(src, "COPY").kv[-1].value == 1024


def test_experts_become_mxfp4(tmp_path: Path) -> None:
    x = weights(2, 3, 64)
    src = one_layer(tmp_path, {"blk.0.ffn_up_exps.weight": x, "blk.0.ffn_down_exps.weight": weights(2, 3, 48)})
    quantize_file(src, tmp_path / "out.gguf", "MXFP4_MOE")
    out = open_gguf(tmp_path / "out.gguf")
    assert np.array_equal(out.raw("blk.0.ffn_up_exps.weight"), quantize(x.reshape(6, 64), "MXFP4"))
    assert out.tensors["blk.0.ffn_down_exps.weight"].type == G.F16


def test_experts_in_mxfp4_are_copied(tmp_path: Path) -> None:
    raw = np.arange(2 * 3 * 17, dtype=np.uint8).reshape(2, 3, 17)
    src = one_layer(tmp_path, {"blk.0.ffn_up_exps.weight": (G.MXFP4, raw), "blk.0.attn_q.weight": weights(4, 32)})
    quantize_file(src, tmp_path / "out.gguf", "MXFP4_MOE")
    out = open_gguf(tmp_path / "out.gguf")
    assert out.raw("blk.0.ffn_up_exps.weight").tobytes() == raw.tobytes()
    assert out.tensors["blk.0.attn_q.weight"].type == G.Q8_0


def test_keys_of_one_head_count_are_as_many_as_queries(tmp_path: Path) -> None:
    """head_count_kv may be missing; then it equals head_count, and no head of keys serves four of queries."""
    src = one_layer(tmp_path, {"blk.0.attn_v.weight": weights(4, 256)}, toy__attention__head_count=16)
    assert plan_file(src, "Q2_K").tensors[0].type == G.Q3_K


def test_zeros_stay_zeros(tmp_path: Path) -> None:
    src = one_layer(tmp_path, {"blk.0.ffn_up.weight": np.zeros((2, 256), np.float32)})
    for file_type in ("Q4_K_M", "Q6_K", "Q8_0"):
        quantize_file(src, tmp_path / "out.gguf", file_type, force=True)
        out = open_gguf(tmp_path / "out.gguf")
        name = out.tensors["blk.0.ffn_up.weight"].type.name
        assert not dequantize(np.array(out.raw("blk.0.ffn_up.weight")), name).any()
