"""Demands beside a file type. Whole files were compared with llama-quantize's for each of these, and equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as T
from typer.testing import CliRunner
from verify_cases import DRAFT, TARGET, variant_source

from dflash_convert.cli import app
from dflash_convert.conversion.run import convert
from dflash_convert.errors import UsageError
from dflash_convert.quantization.overrides import read_overrides
from dflash_convert.quantization.plan import plan_file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The trained target, its draft, and a DSpark draft with a reduced vocabulary."""
    folder = tmp_path_factory.mktemp("bf16")
    reduced = variant_source("dspark-draft-vocab", folder / "source")
    return {
        "target": convert(TARGET, None, folder / "target.gguf"),
        "draft": convert(DRAFT, TARGET, folder / "draft.gguf"),
        "dspark": convert(reduced, TARGET, folder / "dspark.gguf", outtype="bf16"),
    }


def types(path: Path, file_type: str, **given: Any) -> dict[str, str]:
    return {t.name: t.type.name for t in plan_file(path, file_type, overrides=read_overrides(**given)).tensors}


CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "pure": ("target", "Q4_K_M", {"pure": True}, {"token_embd.weight": "Q4_K", "blk.0.attn_v.weight": "Q4_K"}),
    "by name": (
        "draft", "Q4_K_M", {"tensor_types": ["attn_v=q8_0"]},
        {"blk.0.attn_v.weight": "Q8_0", "blk.1.attn_v.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_K"},
    ),
    "the first pattern counts": (
        "draft", "Q4_K_M", {"tensor_types": [r"blk\.1\..*q=Q5_K", "attn_q=Q6_K"]},
        {"blk.0.attn_q.weight": "Q6_K", "blk.1.attn_q.weight": "Q5_K"},
    ),
    "patterns are small": ("draft", "Q4_K_M", {"tensor_types": ["ATTN_V=q8_0"]}, {"blk.0.attn_v.weight": "Q8_0"}),
    "by name in a pure file": (
        "target", "Q5_K_M", {"tensor_types": ["attn_v=q6_k"], "pure": True},
        {"blk.0.attn_v.weight": "Q6_K", "blk.0.ffn_down.weight": "Q5_K", "token_embd.weight": "Q5_K"},
    ),
    "names say nothing of floats": (
        "draft", "F16", {"tensor_types": ["attn_v=q8_0"]}, {"blk.0.attn_v.weight": "F16", "fc.weight": "F16"},
    ),
    "embeddings": (
        "target", "Q4_K_M", {"token_embedding_type": "q5_0"}, {"token_embd.weight": "Q5_0"},
    ),
    "embeddings that are the output": (
        "target", "Q4_K_M", {"output_tensor_type": "q8_0"}, {"token_embd.weight": "Q8_0"},
    ),
    "an output": ("dspark", "Q4_K_M", {"output_tensor_type": "q8_0"}, {"output.weight": "Q8_0"}),
    "an output left alone": ("dspark", "Q4_K_M", {"leave_output_tensor": True}, {"output.weight": "BF16"}),
    "safe": (
        "dspark", "Q4_K_M", {"recipe": "safe"},
        {"fc.weight": "Q8_0", "markov_w1.weight": "Q8_0", "markov_w2.weight": "Q8_0", "blk.0.attn_q.weight": "Q4_K"},
    ),
    "safe, but for a name": (
        "dspark", "Q4_K_M", {"recipe": "safe", "tensor_types": ["^fc=Q6_K"]}, {"fc.weight": "Q6_K"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("file", "file_type", "given", "expected"), CASES.values(), ids=CASES)
def test_what_is_demanded_is_planned(
    files: dict[str, Path], file: str, file_type: str, given: dict[str, Any], expected: dict[str, str]
) -> None:
    found = types(files[file], file_type, **given)
    assert {name: found[name] for name in expected} == expected


def test_nothing_demanded_changes_nothing(files: dict[str, Path]) -> None:
    for path in files.values():
        assert plan_file(path, "Q4_K_M", overrides=read_overrides()) == plan_file(path, "Q4_K_M")


def test_patterns_from_a_file(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "types.txt").write_text("attn_v=q8_0\n ffn_down=Q6_K\tattn_k=q5_1")
    found = types(files["draft"], "Q4_K_M", tensor_type_file=tmp_path / "types.txt")
    assert [found[f"blk.0.{n}.weight"] for n in ("attn_v", "ffn_down", "attn_k")] == ["Q8_0", "Q6_K", "Q5_1"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no equals": ({"tensor_types": ["attn_v"]}, "--tensor-type attn_v: REGEX=TYPE was expected", "attn_v=Q8_0"),
    "no name": ({"tensor_types": ["=q8_0"]}, "--tensor-type =q8_0: REGEX=TYPE was expected", "attn_v=Q8_0"),
    "no expression": ({"tensor_types": ["(=q8_0"]}, "--tensor-type (=q8_0: '(' is no regular expression", "quote it"),
    "no type": ({"tensor_types": ["a=q4_k_m"]}, "'q4_k_m' is no tensor type that can be written", "is Q4_K meant?"),
    "no encoder": ({"output_tensor_type": "IQ1_S"}, "'IQ1_S' is no tensor type that can be written", "meant?"),
    "contradiction": (
        {"leave_output_tensor": True, "output_tensor_type": "Q8_0"},
        "--leave-output-tensor and --output-tensor-type exclude each other",
        "give one",
    ),
    "no recipe": ({"recipe": "best"}, "there is no recipe 'best'", "--recipe safe"),
    "no file": ({"tensor_type_file": Path("/none/types.txt")}, "/none/types.txt: cannot be read", "REGEX=TYPE"),
}


@pytest.mark.parametrize(("given", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(UsageError) as e:
        read_overrides(**given)
    assert e.value.message.startswith(message)
    assert hint in str(e.value.hint)


def test_rows_that_do_not_divide(tmp_path: Path) -> None:
    from make import weights
    from one_layer import one_layer

    path = one_layer(tmp_path, {"blk.0.ffn_up.weight": weights(8, 160), "token_embd.weight": weights(8, 160)})
    assert types(path, "Q4_K_M")["blk.0.ffn_up.weight"] == "Q5_0"
    with pytest.raises(UsageError) as e:
        plan_file(path, "Q4_K_M", overrides=read_overrides(no_fallback=True))
    assert "rows of 160 do not divide into blocks of" in e.value.message
    assert e.value.message.endswith("and --no-fallback is given")
    assert "or demand a type for it with --tensor-type" in str(e.value.hint)
    with pytest.raises(UsageError) as e:
        plan_file(path, "Q4_K_M", overrides=read_overrides(token_embedding_type="Q4_K"))
    assert e.value.message == (
        "--token-embedding-type Q4_K: token_embd.weight has rows of 160, which do not divide into its blocks of 256"
    )


def test_from_the_command_line(files: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    args = [
        "quantize",
        str(files["draft"]),
        str(out),
        "Q4_K_M",
        "--tensor-type",
        "attn_v=q8_0",
        "--tensor-type",
        "fc=q6_k",
    ]
    ran = CliRunner().invoke(app, [*args, "--recipe", "safe", "-q"])
    assert ran.exit_code == 0, ran.output
    from dflash_convert.gguf_io.reader import open_gguf

    file = open_gguf(out)
    assert (file.tensors["blk.0.attn_v.weight"].type, file.tensors["fc.weight"].type) == (T.Q8_0, T.Q6_K)
