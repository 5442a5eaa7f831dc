"""What an inspection finds, how it is shown, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from foreign_gguf import FILES, write
from make import make_gguf
from toys import CASES, TARGET

from dflash_convert import cli
from dflash_convert.conversion.run import convert
from dflash_convert.errors import DflashError
from dflash_convert.inspection import Inspection, inspect_gguf
from dflash_convert.inspection.render import layers, rows
from dflash_convert.inspection.values import Layers


def golden(case: str, out: Path) -> Inspection:
    return inspect_gguf(convert(CASES / case / "draft", TARGET, out / "d.gguf"))


def shown(found: Inspection) -> dict[str, str]:
    return dict(rows(found))


def odd(tmp_path: Path, name: str, **changes: Any) -> str:
    return "\n".join(inspect_gguf(write(tmp_path / "d.gguf", name, **changes)).odd)


# ── mainline's files ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mainline_file_with_all_its_values(tmp_path: Path) -> None:
    found = golden("dflash-nested-swa", tmp_path)
    text = shown(found)
    assert text["dialect"] == "mainline format; mainline llama.cpp loads it"
    assert text["family"] == "DFlash"
    assert text["taps"] == "checkpoint ids [1, 3, 5], target_layers [2, 4, 6] (stored in dflash.target_layers)"
    assert (text["block size"], text["layers"]) == ("8", "S F window 128")
    assert text["mask token"].startswith("319 ")
    assert text["rope"] == "base 10000000"
    assert text["sizes"] == "n_embd 64, n_ff 96, n_head 4, n_head_kv 2, context 4096"
    assert text["vocabulary"] == "gpt2, pre qwen2, 320 tokens"
    assert found.odd == ()
    assert sum(w.tensors for w in found.weights) == 25
    assert {(w.role, w.type) for w in found.weights} == {
        ("norms", "F32"), ("attention", "BF16"), ("feed-forward", "BF16"), ("fusion of the taps", "BF16"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "family", "part", "value"),
    [
        ("dflash2", "DFlash2", "layers", "S"),
        ("dspark-deepspec", "DSpark", "family", "DSpark"),
        ("dspark-gemma4", "DSpark", "family", "DSpark"),
        ("dflash-yarn", "DFlash", "rope", "yarn × "),
        ("dflash-mimo", "DFlash", "rope", " of 32 dimensions"),
    ],
)
def test_other_golden_drafts(tmp_path: Path, case: str, family: str, part: str, value: str) -> None:
    found = golden(case, tmp_path)
    assert (found.dialect and found.dialect.name, found.family) == ("mainline", family)
    assert value in shown(found)[part]
    assert [line for line in found.odd if "unknown" in line or "missing" in line or "graph" in line] == []


# ── what is odd ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_file_has_nothing_odd(tmp_path: Path) -> None:
    assert odd(tmp_path, "mainline") == ""
    assert odd(tmp_path, "beellama") == ""


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("mainline", {"dflash__context_length": None}, "required keys are missing: dflash.context_length"),
        ("mainline", {"dflash__rope__freq_base": None}, "dflash.rope.freq_base is missing: llama.cpp takes 10000"),
        ("mainline", {"dflash__block_size": None}, "no block size (dflash.block_size): llama.cpp takes 16"),
        ("mainline", {"dflash__target_layers": None}, "no taps (dflash.target_layers)"),
        ("mainline", {"tokenizer__ggml__mask_token_id": None}, "no mask token (tokenizer.ggml.mask_token_id)"),
        ("mainline", {"tokenizer__ggml__mask_token_id": 8}, "the mask token 8 lies outside the vocabulary of 8"),
        ("mainline", {"dflash__target_layers": [1, 5, 9, 13, 17]}, "each tap is one layer early"),
        ("mainline", {"dflash__target_layers": [6, 2, 10, 14, 18]}, "not in ascending order"),
        ("mainline", {"dflash__target_layers": [2, 6]}, "has 2 taps of width 8, fc.weight takes 40 features"),
        ("beellama", {"dflash-draft__dflash__target_layer_ids": [2, 6, 10, 14, 18]}, "each tap seems one layer late"),
        ("beellama-rewritten", {"dflash__target_layers": [1, 5, 9, 13, 17]}, "each tap is one layer early"),
        ("mainline", {"dflash__attention__sliding_window_pattern": None}, "a window of 32 without dflash.attention."),
        ("mainline", {"dflash__attention__sliding_window_pattern": [True]}, "has 1 entries for 2 layers"),
        ("mainline", {"dflash__attention__sliding_window": None}, "without a window: every layer attends fully"),
        ("mainline", {"dflash__attention__sliding_window_pattern": False}, "mainline takes one flag a layer"),
        ("mainline", {"dflash__colour": "red"}, "unknown keys: dflash.colour"),
        ("mainline", {"tokenizer__ggml__model": "none"}, "no vocabulary (tokenizer.ggml.model: none)"),
        ("beellama", {"tokenizer__ggml__mask_token_id": 6}, "two mask tokens: dflash-draft.dflash.mask_token_id = 7"),
        (
            "buun-gemma",
            {"gemma4-dflash-draft__dflash__target_layer_ids": [2, 6, 10, 14, 18]},
            "do not mean the same layers",
        ),
        ("prismml", {}, "a DSpark draft without dspark.sample_from_anchor: llama.cpp takes true"),
        ("mainline", {"dflash__block_size": "eight"}, "no block size"),
    ],
)
def test_an_odd_file(tmp_path: Path, name: str, changes: dict[str, Any], said: str) -> None:
    assert said in odd(tmp_path, name, **changes)


def test_odd_tensors(tmp_path: Path) -> None:
    import numpy as np

    kv, tensors = FILES["mainline"]
    more = {"token_embd.weight": np.ones((8, 8), np.float16), "blk.0.attn_q.bias": np.ones(8, np.float16)}
    less = {k: v for k, v in tensors.items() if k != "blk.0.ffn_up.weight"}
    text = "\n".join(inspect_gguf(make_gguf(tmp_path / "d.gguf", kv, {**less, **more})).odd)
    assert "token_embd.weight without output.weight" in text
    assert "tensors that mainline's graph does not have: blk.0.attn_q.bias" in text
    assert "tensors are missing: blk.0.ffn_up.weight" in text
    assert "vectors that are not F32: blk.0.attn_q.bias" in text


def test_layers_as_text() -> None:
    assert layers(Layers(5, tuple("SSSSF"), 2048)) == "S S S S F window 2048"
    assert layers(Layers(48, (), None)) == "48"
    assert layers(Layers(2, (), 32)) == "2 window 32"
    assert layers(Layers(20, tuple("SF" * 10), 32)) == "20, 10 of them full window 32"
    assert layers(Layers(None, (), None)) == ""


def test_a_dialects_rule_says_what_slides(tmp_path: Path) -> None:
    pattern = {"dflash-draft__attention__sliding_window_pattern": None}
    assert inspect_gguf(write(tmp_path / "i.gguf", "ik-llama", **pattern)).layers.kinds == ("S", "S")
    assert inspect_gguf(write(tmp_path / "l.gguf", "lucebox-gemma")).layers.kinds == ("S", "F")
    assert inspect_gguf(write(tmp_path / "b.gguf", "beellama", **pattern)).layers.kinds == ()


# ── other files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_target_has_what_a_model_has(tmp_path: Path) -> None:
    found = inspect_gguf(convert(TARGET, None, tmp_path / "t.gguf"))
    assert (found.kind, found.architecture, found.dialect, found.family, found.taps) == ("model", "qwen3", *[None] * 3)
    assert shown(found)["kind"] == "a model; in no draft's format"
    assert found.vocabulary.size == 320
    assert found.odd == ()


def test_an_unrelated_file_is_told_as_such(tiny_pair: Path, tmp_path: Path) -> None:
    found = inspect_gguf(tiny_pair / "imatrix.gguf")
    assert (found.kind, found.provenance["general.type"]) == ("other", "imatrix")
    bare = inspect_gguf(make_gguf(tmp_path / "x.gguf", {"general.architecture": "clip", "clip.n": 1}))
    assert (bare.kind, bare.weights, bare.odd) == ("other", (), ())


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def run(capsys: Any, *args: str | Path) -> tuple[Any, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(a) for a in args])
    return stop.value.code, *capsys.readouterr()


def test_the_text(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "d.gguf", "beellama")
    code, out, err = run(capsys, "inspect", path)
    lines = [re.sub(" {2,}", "  ", line) for line in out.splitlines()]
    assert (code, err, lines[0]) == (0, "", str(path))
    for line in (
        "dialect  BeeLlama/buun fork format; mainline llama.cpp does not load it",
        "layers  S F window 32",
        "mask token  7 '<mask>'",
        "rope  base 10000000",
        "norms  F32  10  320",
    ):
        assert line in lines
    assert any(line.startswith("about this format: its converters fill in") for line in lines)


def test_json_is_the_inspection(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "d.gguf", "mainline")
    code, out, _ = run(capsys, "inspect", path, "--json")
    document = json.loads(out)
    assert code == 0
    assert list(document) == [
        "path", "bytes", "kind", "architecture", "dialect", "family", "taps", "block_size", "mask", "layers", "sizes",
        "rope", "vocabulary", "weights", "provenance", "odd",
    ]  # fmt: skip
    assert document["dialect"]["mainline_loads"] is True
    assert document["taps"] == {
        "key": "dflash.target_layers", "stored": [2, 6, 10, 14, 18], "checkpoint": [1, 5, 9, 13, 17],
        "mainline": [2, 6, 10, 14, 18],
    }  # fmt: skip
    assert document["layers"] == {"count": 2, "kinds": ["S", "F"], "window": 32}
    assert document["mask"]["text"] == "<mask>"


def test_quiet_prints_the_path(capsys: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "d.gguf", "mainline")
    assert run(capsys, "inspect", path, "-q") == (0, f"{path}\n", "")


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("version https://git-lfs")
    whole = write(tmp_path / "d.gguf", "mainline").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    for name, said in (
        (".", "is a folder, not a GGUF"),
        ("none.gguf", "none.gguf: No such file"),
        ("empty.gguf", "the file is empty"),
        ("text.gguf", "text.gguf: "),
        ("cut.gguf", "truncated"),
    ):
        with pytest.raises(DflashError, match=said):
            inspect_gguf(tmp_path / name)
