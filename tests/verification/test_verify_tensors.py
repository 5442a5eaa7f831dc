"""Level 2: correct files pass in every type; a swap, a permutation, a changed value, a flipped bit is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGUFValueType
from safetensors.numpy import load_file, save_file
from verify_cases import (
    DRAFT,
    GOLDEN,
    GONE,
    TARGET,
    Array,
    bytes_of,
    failures,
    golden_file,
    messages,
    planted,
    source_of,
    target_of,
    values_of,
    variant_source,
)

from dflash_convert.conversion.run import convert
from dflash_convert.gguf_io.reader import KV, open_gguf
from dflash_convert.verification import tensors as tensors_module
from dflash_convert.verification import verify
from dflash_convert.verification.names import neox_order
from dflash_convert.verification.report import PASS, TENSORS, Report

Q, K, NORM = "blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.0.attn_q_norm.weight"
UP = "blk.1.ffn_up.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A type → the trained draft in that type, each made once."""
    folder = tmp_path_factory.mktemp("types")
    bf16 = convert(DRAFT, TARGET, folder / "bf16.gguf", outtype="bf16")

    def get(name: str) -> Path:
        path = folder / f"{name}.gguf"
        if not path.exists():
            matrices = {t.name: name for t in open_gguf(bf16).tensors.values() if len(t.shape) > 1}
            planted(bf16, path, types=matrices)
        return path

    return get


def checked(path: Path, source: Path = DRAFT) -> Report:
    return verify(path, source=source, only={TENSORS})


def only_failure(report: Report) -> Any:
    failed = failures(report)
    assert len(failed) == 1, messages(report)
    return failed[0]


# -- good files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q4_0", "Q5_1"])
def test_every_type_of_the_trained_draft_passes(made: Callable[[str], Path], name: str) -> None:
    report = checked(made(name))
    assert report.ok
    assert [c.status for c in report.level(TENSORS).checks] == [PASS] * 25


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_drafts_are_exact(case: str, tmp_path: Path) -> None:
    report = verify(golden_file(case, tmp_path), source=source_of(case), only={TENSORS})
    assert report.ok
    assert report.level(TENSORS).metrics["worst_relative_rms"] == 0


def test_the_worst_tensor_comes_first(made: Callable[[str], Path]) -> None:
    errors = [c.data["relative_rms"] for c in checked(made("Q4_K")).level(TENSORS).checks]
    assert errors == sorted(errors, reverse=True)
    assert 0.05 < errors[0] < 0.1
    assert errors[-1] == 0  # the norms


def test_an_interleaved_checkpoint_is_compared_in_halves(tmp_path: Path) -> None:
    source = variant_source("interleaved-rope", tmp_path / "draft")
    path = convert(source, TARGET, tmp_path / "x.gguf")
    assert checked(path, source).ok
    assert checked(path, DRAFT).ok  # the right converter gives exactly the unchanged file


def test_the_model_prefix_is_optional(made: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copyfile(DRAFT / "config.json", tmp_path / "config.json")
    named = {f"model.{name}": t for name, t in load_file(DRAFT / "model.safetensors").items()}
    save_file(named, tmp_path / "model.safetensors")
    assert checked(made("BF16"), tmp_path).ok


def test_progress_tells_the_bytes_of_the_tensors(made: Callable[[str], Path]) -> None:
    seen: list[int] = []
    verify(made("BF16"), source=DRAFT, only={TENSORS}, progress=seen.append)
    assert sum(seen) == sum(t.nbytes for t in open_gguf(made("BF16")).tensors.values())


# -- exact types ---------------------------------------------------------------------------------------------------


def test_one_changed_value_is_located(made: Callable[[str], Path], tmp_path: Path) -> None:
    values = values_of(made("BF16"), UP)
    right = float(values[300, 17])
    values[300, 17] = 2.5
    check = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={UP: values})))
    assert check.message == (
        f"{UP} is 2.5 at row 300, column 17; expected {right:.7g} (layers.1.mlp.up_proj.weight as BF16): "
        f"1 of {values.size} values differ"
    )


def test_one_changed_value_is_located_in_a_later_row_block(
    made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors_module, "BLOCK_WEIGHTS", 1000)
    values = values_of(made("BF16"), UP)
    values[301, 18] = -2.5
    check = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={UP: values})))
    assert check.where == "row 301, column 18"


def test_the_last_bit_of_a_float_is_found(made: Callable[[str], Path], tmp_path: Path) -> None:
    raw = bytes_of(made("F16"), UP)
    raw[7, 10] ^= 1
    assert (
        only_failure(checked(planted(made("F16"), tmp_path / "x.gguf", tensors={UP: raw}))).where == "row 7, column 5"
    )


@pytest.mark.parametrize(("value", "text"), [(np.nan, "nan"), (np.inf, "inf")])
def test_nan_and_inf_are_named(made: Callable[[str], Path], tmp_path: Path, value: float, text: str) -> None:
    values = values_of(made("BF16"), UP)
    values[4, 5] = value
    message = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={UP: values}))).message
    assert f"{UP} is {text} at row 4, column 5; expected" in message
    assert message.endswith("1 values are NaN or Inf")


def test_nan_in_the_source_is_no_pass(made: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copyfile(DRAFT / "config.json", tmp_path / "config.json")
    tensors = load_file(DRAFT / "model.safetensors")
    changed = tensors["norm.weight"].copy()
    changed[3] = np.nan
    save_file({**tensors, "norm.weight": changed}, tmp_path / "model.safetensors")
    check = only_failure(checked(made("BF16"), tmp_path))
    assert (check.subject, check.where) == ("output_norm.weight", "row 0, column 3")
    assert "expected nan" in check.message


def test_a_float32_source_is_due_rounded_to_nearest(made: Callable[[str], Path], tmp_path: Path) -> None:
    """A truncating writer is off by one in the last place for half of the weights."""
    shutil.copyfile(DRAFT / "config.json", tmp_path / "config.json")
    noise = np.random.default_rng(0)
    tensors = {
        name: (t.astype(np.float32) * noise.uniform(0.9, 1.1, t.shape)).astype(np.float32)
        for name, t in load_file(DRAFT / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "model.safetensors")
    good = convert(tmp_path, TARGET, tmp_path / "good.gguf", outtype="bf16")
    assert checked(good, tmp_path).ok
    cut = (tensors["layers.1.mlp.up_proj.weight"].view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    check = only_failure(checked(planted(good, tmp_path / "x.gguf", tensors={UP: cut.reshape(512, -1)}), tmp_path))
    assert check.subject == UP
    assert 0.4 < check.data["outside"] / check.data["weights"] < 0.6


# -- blocks --------------------------------------------------------------------------------------------------------


def flipped(path: Path, name: str, row: int, byte: int, bit: int) -> Array:
    raw = bytes_of(path, name)
    raw[row, byte] ^= 1 << bit
    return raw


@pytest.mark.parametrize(
    ("name", "byte", "bit"),
    [
        ("Q8_0", 1, 6),  # the scale's exponent
        ("Q8_0", 1, 0),  # a middle bit of its mantissa
        ("Q8_0", 12, 6),  # a high bit of a weight
        ("Q4_K", 1, 3),  # d's exponent
        ("Q4_K", 3, 3),  # dmin's exponent
        ("Q4_K", 5, 4),  # a high bit of a sub-block's scale
        ("Q4_K", 9, 4),  # a high bit of a sub-block's minimum
        ("Q4_K", 40, 7),  # the high nibble's high bit
        ("Q4_K", 40, 4),  # the high nibble's lowest bit
        ("Q5_K", 20, 2),  # a fifth bit
        ("Q6_K", 140, 5),  # an upper bit pair
        ("Q6_K", 200, 5),  # an int8 scale
    ],
)
def test_one_flipped_bit_is_found(made: Callable[[str], Path], tmp_path: Path, name: str, byte: int, bit: int) -> None:
    faulty = planted(made(name), tmp_path / "x.gguf", tensors={UP: flipped(made(name), UP, 9, byte, bit)})
    check = only_failure(checked(faulty))
    assert check.subject == UP
    assert check.where.startswith("row 9, column ")
    assert f"(layers.1.mlp.up_proj.weight as {name})" in check.message


def test_a_quantized_weight_is_shown_with_its_bound(made: Callable[[str], Path], tmp_path: Path) -> None:
    faulty = planted(made("Q4_K"), tmp_path / "x.gguf", tensors={UP: flipped(made("Q4_K"), UP, 9, 40, 7)})
    message = only_failure(checked(faulty)).message
    assert " ± " in message
    assert f"1 of {512 * 256} weights lie outside their bound" in message


def test_swapped_nibbles_are_found(made: Callable[[str], Path], tmp_path: Path) -> None:
    raw = bytes_of(made("Q4_0"), UP).reshape(512, -1, 18)
    raw[:, :, 2:] = raw[:, :, 2:] >> 4 | raw[:, :, 2:] << 4
    check = only_failure(checked(planted(made("Q4_0"), tmp_path / "x.gguf", tensors={UP: raw.reshape(512, -1)})))
    assert check.data["outside"] > 0.5 * check.data["weights"]


def test_scales_shifted_by_a_block_are_found(made: Callable[[str], Path], tmp_path: Path) -> None:
    raw = bytes_of(made("Q8_0"), UP).reshape(-1, 34)
    raw[:, :2] = np.roll(raw[:, :2], 1, axis=0)
    check = only_failure(checked(planted(made("Q8_0"), tmp_path / "x.gguf", tensors={UP: raw.reshape(512, -1)})))
    assert check.data["wrong_scales"] > 0.9 * len(raw)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K"])
def test_a_page_of_zeros_is_found(made: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Blocks of zeros decode to zeros, each on the only point of its grid."""
    raw = bytes_of(made(name), UP)
    raw[64:80] = 0
    check = only_failure(checked(planted(made(name), tmp_path / "x.gguf", tensors={UP: raw})))
    assert check.data["lost_blocks"] == raw[64:80].size // {"Q8_0": 34, "Q4_K": 144, "Q6_K": 210}[name]
    assert "blocks lost their signal (a scale of zero?)" in check.message
    assert check.where.startswith("row 64, column ")
    assert check.found == 0


# -- the wrong tensor ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["BF16", "Q4_K"])
def test_tensors_swapped_between_layers_are_recognised(made: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    a, b = "blk.0.ffn_up.weight", "blk.1.ffn_up.weight"
    swap = {a: bytes_of(made(name), b), b: bytes_of(made(name), a)}
    text = "\n".join(messages(checked(planted(made(name), tmp_path / "x.gguf", tensors=swap))))
    assert "is layer 1's, swapped (layers.1.mlp.up_proj.weight)" in text
    assert "is layer 0's, swapped (layers.0.mlp.up_proj.weight)" in text


def test_gate_and_up_swapped_are_recognised(made: Callable[[str], Path], tmp_path: Path) -> None:
    gate = bytes_of(made("BF16"), "blk.1.ffn_gate.weight")
    message = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={UP: gate}))).message
    assert message.endswith(": is blk.1.ffn_gate.weight's, swapped (layers.1.mlp.gate_proj.weight)")


def test_norms_swapped_between_layers_are_recognised(made: Callable[[str], Path], tmp_path: Path) -> None:
    """Norms are all alike, so being near another one proves nothing; being it does."""
    a, b = "blk.0.attn_norm.weight", "blk.1.attn_norm.weight"
    report = checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={a: bytes_of(made("BF16"), b)}))
    assert only_failure(report).message.endswith("is layer 1's, swapped (layers.1.input_layernorm.weight)")


@pytest.mark.parametrize("name", [Q, K, NORM])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_permuted_rows_are_recognised(
    made: Callable[[str], Path], tmp_path: Path, name: str, inverse: bool, kind: str
) -> None:
    values = values_of(made(kind), name)
    axis = 1 if name == NORM else 0
    order = neox_order(values.shape[axis], 64)
    turned = np.take(values, np.argsort(order) if inverse else order, axis)
    check = only_failure(checked(planted(made(kind), tmp_path / "x.gguf", tensors={name: turned})))
    assert check.subject == name
    assert check.cause == "rows look permuted (rope interleave)"


def test_an_interleaved_checkpoint_copied_as_it_is_is_recognised(made: Callable[[str], Path], tmp_path: Path) -> None:
    """The file holds the rows as they lie in the checkpoint."""
    source = variant_source("interleaved-rope", tmp_path / "draft")
    as_it_is = {Q: load_file(source / "model.safetensors")["layers.0.self_attn.q_proj.weight"].astype(np.float32)}
    check = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors=as_it_is), source))
    assert (check.subject, check.cause) == (Q, "rows look permuted (rope interleave)")


def test_noise_is_not_explained_away(made: Callable[[str], Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    check = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={Q: noise})))
    assert check.cause.endswith("values differ")


# -- tensors that cannot be compared -------------------------------------------------------------------------------


def test_a_missing_tensor_does_not_pass(made: Callable[[str], Path], tmp_path: Path) -> None:
    message = only_failure(checked(planted(made("BF16"), tmp_path / "x.gguf", tensors={UP: GONE}))).message
    assert message == f"{UP} is absent; expected a tensor (made from layers.1.mlp.up_proj.weight)"


def test_another_shape_does_not_pass(tmp_path: Path) -> None:
    """The file of one draft against the checkpoint of another."""
    path = convert(source_of("dflash-flat"), target_of("dflash-flat"), tmp_path / "x.gguf")
    report = checked(path)
    assert len(failures(report)) == 25
    assert "fc.weight is [64, 192]; expected [256, 768] (the shape of fc.weight)" in messages(report)


def test_what_the_checkpoint_lacks_is_listed_not_passed(made: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copyfile(DRAFT / "config.json", tmp_path / "config.json")
    tensors = load_file(DRAFT / "model.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    listed = [c.message for c in checked(made("BF16"), tmp_path).level(TENSORS).checks if c.status != PASS]
    assert listed == ["output_norm.weight is F32; not checked: the checkpoint has no tensor for it"]


def test_embeddings_that_are_not_the_drafts_own_are_left_out(made: Callable[[str], Path], tmp_path: Path) -> None:
    config = json.loads((DRAFT / "config.json").read_text()) | {"has_embed_tokens": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(DRAFT / "model.safetensors")
    save_file({**tensors, "embed_tokens.weight": np.ones((1024, 256), np.float32)}, tmp_path / "model.safetensors")
    report = verify(made("BF16"), source=tmp_path, only={"structure", TENSORS})
    assert report.ok


def test_files_made_with_an_importance_matrix_are_judged_by_what_it_leaves_fixed(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its key makes Q4_0 codes free, but a page of zeros still fails."""
    key = {"quantize.imatrix.file": KV("quantize.imatrix.file", GGUFValueType.STRING, "imatrix.gguf")}
    moved = flipped(made("Q4_0"), UP, 9, 7, 1)
    assert not checked(planted(made("Q4_0"), tmp_path / "a.gguf", tensors={UP: moved})).ok
    assert checked(planted(made("Q4_0"), tmp_path / "b.gguf", key, {UP: moved})).ok
    raw = bytes_of(made("Q4_0"), UP)
    raw[64] = 0
    assert not checked(planted(made("Q4_0"), tmp_path / "c.gguf", key, {UP: raw})).ok
