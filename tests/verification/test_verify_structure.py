"""Level 1: good files pass, and every planted fault is named: the key or tensor, what it is, what it should be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from verify_cases import (
    CASES,
    DRAFT,
    GOLDEN,
    GONE,
    MROPE,
    TARGET,
    failures,
    flag,
    golden_file,
    ints,
    messages,
    number,
    planted,
    source_of,
    target_of,
)

from dflash_convert.conversion.run import convert
from dflash_convert.errors import ConfigError, VocabError
from dflash_convert.gguf_io.reader import open_gguf
from dflash_convert.verification import verify
from dflash_convert.verification.report import PASS, SKIP, STRUCTURE, LevelResult, Report

NESTED, MIMO, YARN, FLAT = "dflash-nested-swa", "dflash-mimo", "dflash-yarn", "dflash-flat"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A golden case → its converted file."""
    folder = tmp_path_factory.mktemp("good")
    made: dict[str, Path] = {}

    def get(case: str) -> Path:
        if case not in made:
            made[case] = golden_file(case, folder)
        return made[case]

    return get


def checked(path: Path, case: str, *, with_target: bool = True) -> Report:
    target = target_of(case) if with_target else None
    return verify(path, source=source_of(case), target=target, only={STRUCTURE})


def level(path: Path, case: str, **options: Any) -> LevelResult:
    return checked(path, case, **options).level(STRUCTURE)


# -- good files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN)
def test_a_converted_draft_passes_in_every_check(good: Callable[[str], Path], case: str) -> None:
    result = level(good(case), case)
    assert result.status == PASS
    assert {check.status for check in result.checks} == {PASS}


def test_every_key_and_the_whole_tokenizer_are_compared(good: Callable[[str], Path]) -> None:
    """No key of the file but the descriptive ones goes unchecked."""
    subjects = {check.subject for check in level(good(YARN), YARN).checks}
    keys = {key for key in open_gguf(good(YARN)).kv if not key.startswith("general.")}
    assert keys <= subjects


def test_the_trained_pair_passes(tmp_path: Path) -> None:
    path = convert(DRAFT, TARGET, tmp_path / "draft.gguf")
    assert verify(path, source=DRAFT, target=TARGET, only={STRUCTURE}).ok


def test_a_target_gguf_serves_as_well_as_its_folder(good: Callable[[str], Path], tmp_path: Path) -> None:
    target = convert(target_of(FLAT), None, tmp_path / "target.gguf")
    report = verify(good(FLAT), source=source_of(FLAT), target=target, only={STRUCTURE})
    assert report.ok
    wrong = planted(good(FLAT), tmp_path / "x.gguf", {"tokenizer.ggml.merges": lambda m: list(m)[::-1]})
    report = verify(wrong, source=source_of(FLAT), target=target, only={STRUCTURE})
    assert [check.subject for check in failures(report)] == ["tokenizer.ggml.merges"]


# -- keys ----------------------------------------------------------------------------------------------------------

# (case, changed keys, what the message must say)
KEY_FAULTS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "taps not shifted": (
        FLAT,
        {"dflash.target_layers": [1, 3, 5]},
        "dflash.target_layers is [1, 3, 5]; expected [2, 4, 6] (the checkpoint's ids + 1): "
        "probably written by an old or fork converter",
    ),
    "taps shifted twice": (
        FLAT,
        {"dflash.target_layers": [3, 5, 7]},
        "dflash.target_layers is [3, 5, 7]; expected [2, 4, 6] (the checkpoint's ids + 1): 1 was added twice",
    ),
    "taps in another order": (
        FLAT,
        {"dflash.target_layers": [4, 2, 6]},
        "is [4, 2, 6]; expected [2, 4, 6] (the checkpoint's ids + 1): the right layers in another order",
    ),
    "taps of another draft": (FLAT, {"dflash.target_layers": [2, 4, 7]}, "the taps of another draft, or a guess"),
    "taps missing": (FLAT, {"dflash.target_layers": GONE}, "dflash.target_layers is absent; expected [2, 4, 6]"),
    "window missing": (
        NESTED,
        {"dflash.attention.sliding_window": GONE, "dflash.attention.sliding_window_pattern": GONE},
        "dflash.attention.sliding_window is absent; expected 128 (sliding_window)",
    ),
    "window wrong": (NESTED, {"dflash.attention.sliding_window": 129}, "sliding_window is 129; expected 128"),
    "pattern flipped": (
        NESTED,
        {"dflash.attention.sliding_window_pattern": [False, True]},
        "sliding_window_pattern is [False, True]; expected [True, False] (layer_types)",
    ),
    "pattern too short": (NESTED, {"dflash.attention.sliding_window_pattern": [True]}, "is [True]; expected [True, F"),
    "all layers of use_swa slide": (
        MIMO,
        {"dflash.attention.sliding_window_pattern": [True, False]},
        "is [True, False]; expected [True, True]",
    ),
    "window where there is none": (
        FLAT,
        {"dflash.attention.sliding_window": number("dflash.attention.sliding_window", 128)},
        "dflash.attention.sliding_window is 128; expected absent",
    ),
    "rope base": (NESTED, {"dflash.rope.freq_base": 1e6}, "freq_base is 1000000; expected 10000000 (rope_theta)"),
    "rope base missing": (NESTED, {"dflash.rope.freq_base": GONE}, "freq_base is absent; expected 10000000"),
    "partial rotary lost": (MIMO, {"dflash.rope.dimension_count": 32}, "dimension_count is 32; expected 16 (head_dim"),
    "rotary width where all turns": (
        FLAT,
        {"dflash.rope.dimension_count": number("dflash.rope.dimension_count", 16)},
        "dflash.rope.dimension_count is 16; expected absent",
    ),
    "yarn dropped": (YARN, {"dflash.rope.scaling.type": GONE}, "dflash.rope.scaling.type is absent; expected yarn"),
    "yarn factor": (YARN, {"dflash.rope.scaling.factor": 16.0}, "dflash.rope.scaling.factor is 16; expected 32"),
    "yarn context": (
        YARN,
        {"dflash.rope.scaling.original_context_length": 8192},
        "original_context_length is 8192; expected 4096",
    ),
    "sections missing": (
        MROPE,
        {"dflash.rope.dimension_sections": GONE},
        "dimension_sections is absent; expected [16, 0, 0, 0] (the target uses M-RoPE): prompts with images get almost",
    ),
    "the target's own sections": (
        MROPE,
        {"dflash.rope.dimension_sections": [11, 11, 10, 0]},
        "dflash.rope.dimension_sections is [11, 11, 10, 0]; expected [16, 0, 0, 0]",
    ),
    "sections without M-RoPE": (
        FLAT,
        {"dflash.rope.dimension_sections": ints("dflash.rope.dimension_sections", [16, 0, 0, 0])},
        "dflash.rope.dimension_sections is [16, 0, 0, 0]; expected absent",
    ),
    "mask wrong": (FLAT, {"tokenizer.ggml.mask_token_id": 318}, "mask_token_id is 318; expected 319 (mask_token_id)"),
    "mask missing": (FLAT, {"tokenizer.ggml.mask_token_id": GONE}, "mask_token_id is absent; expected 319"),
    "mask under the early key": (
        FLAT,
        {
            "tokenizer.ggml.mask_token_id": GONE,
            "dflash.mask_token_id": number("dflash.mask_token_id", 319),
        },
        "dflash.mask_token_id is 319; expected absent (nothing in the config asks for it): llama.cpp reads "
        "tokenizer.ggml.mask_token_id only",
    ),
    "mask beyond the vocabulary": (
        FLAT,
        {"tokenizer.ggml.mask_token_id": 320},
        "tokenizer.ggml.mask_token_id is 320; expected below 320 (the size of the vocabulary): llama.cpp crashes",
    ),
    "causal flipped": (NESTED, {"dflash.attention.causal": True}, "dflash.attention.causal is True; expected False"),
    "causal invented": (
        FLAT,
        {"dflash.attention.causal": flag("dflash.attention.causal", True)},
        "dflash.attention.causal is True; expected False",
    ),
    "block size": (FLAT, {"dflash.block_size": 8}, "dflash.block_size is 8; expected 16 (block_size)"),
    "block size missing": (MIMO, {"dflash.block_size": GONE}, "block_size is absent; expected 8 (block_size): llama"),
    "epsilon": (FLAT, {"dflash.attention.layer_norm_rms_epsilon": 1e-5}, "epsilon is 1e-05; expected 1e-06 (rms_norm"),
    "value scale dropped": (MIMO, {"dflash.attention.value_scale": GONE}, "value_scale is absent; expected 0.612"),
    "value scale": (MIMO, {"dflash.attention.value_scale": 0.7}, "value_scale is 0.7; expected 0.612"),
    "heads": (FLAT, {"dflash.attention.head_count_kv": 4}, "head_count_kv is 4; expected 2 (num_key_value_heads)"),
    "head length": (FLAT, {"dflash.attention.key_length": 16}, "key_length is 16; expected 32 (head_dim)"),
    "context": (FLAT, {"dflash.context_length": 2048}, "context_length is 2048; expected 4096 (max_position_e"),
    "feed forward": (FLAT, {"dflash.feed_forward_length": 128}, "feed_forward_length is 128; expected 96"),
    "layers": (FLAT, {"dflash.block_count": 3}, "dflash.block_count is 3; expected 2 (num_hidden_layers)"),
    "width": (FLAT, {"dflash.embedding_length": 32}, "dflash.embedding_length is 32; expected 64 (hidden_size)"),
    "architecture": (
        FLAT,
        {"general.architecture": "dflash-draft"},
        "architecture is dflash-draft; expected dflash (mainline's name for a DFlash draft): probably written by an",
    ),
    "a fork's leftover": (
        FLAT,
        {"dflash.n_target_features": number("dflash.n_target_features", 192)},
        "dflash.n_target_features is 192; expected absent (nothing in the config asks for it): left behind by a fork's",
    ),
    "an unknown key": (FLAT, {"dflash.surprise": number("dflash.surprise", 1)}, "surprise is 1; expected absent"),
    "the wrong type": (
        FLAT,
        {"dflash.attention.causal": number("dflash.attention.causal", 0)},
        "dflash.attention.causal is UINT32 0; expected BOOL (what llama.cpp reads)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", KEY_FAULTS)
def test_a_wrong_key_is_named_with_both_values(good: Callable[[str], Path], tmp_path: Path, fault: str) -> None:
    case, keys, text = KEY_FAULTS[fault]
    report = checked(planted(good(case), tmp_path / "x.gguf", keys), case)
    assert not report.ok
    assert text in "\n".join(messages(report))


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        (FLAT, {"dflash.attention.causal": flag("dflash.attention.causal", False)}),
        (FLAT, {"dflash.vocab_size": number("dflash.vocab_size", 320)}),
        (FLAT, {"dflash.rope.dimension_count": number("dflash.rope.dimension_count", 32)}),
        (FLAT, {"general.url": "https://example.org", "general.name": "X"}),
    ],
)
def test_a_default_spelled_out_and_descriptions_are_fine(
    good: Callable[[str], Path], tmp_path: Path, case: str, keys: Mapping[str, Any]
) -> None:
    keys = {k: v for k, v in keys.items() if not isinstance(v, str) or k == "general.name"}
    assert checked(planted(good(case), tmp_path / "x.gguf", keys), case).ok


def edited_source(case: str, folder: Path, **changes: Any) -> Path:
    """A case's checkpoint with top-level config keys changed, or taken away."""
    shutil.copytree(source_of(case), folder)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not GONE}))
    return folder


def test_what_the_config_does_not_say_is_listed_not_passed(good: Callable[[str], Path], tmp_path: Path) -> None:
    source = edited_source(FLAT, tmp_path / "draft", block_size=GONE)
    result = verify(good(FLAT), source=source, only={STRUCTURE}).level(STRUCTURE)
    check = next(c for c in result.checks if c.subject == "dflash.block_size")
    assert check.status == SKIP
    assert check.message == "dflash.block_size is 16; not checked: the source's config.json has no block_size"


def test_two_places_that_disagree_are_an_error(good: Callable[[str], Path], tmp_path: Path) -> None:
    nested = json.loads((source_of(FLAT) / "config.json").read_text())["dflash_config"] | {"block_size": 8}
    source = edited_source(FLAT, tmp_path / "draft", dflash_config=nested)
    with pytest.raises(ConfigError, match=r"config.json says dflash_config.block_size = 8 and block_size = 16") as e:
        verify(good(FLAT), source=source, only={STRUCTURE})
    assert e.value.hint


def test_a_leftover_window_counts_for_nothing_when_switched_off(good: Callable[[str], Path], tmp_path: Path) -> None:
    source = edited_source(FLAT, tmp_path / "draft", sliding_window=128, layer_types=["sliding_attention"] * 2)
    assert verify(good(FLAT), source=source, only={STRUCTURE}).ok


def test_layer_types_alone_make_layers_slide(good: Callable[[str], Path], tmp_path: Path) -> None:
    source = edited_source(NESTED, tmp_path / "draft", use_sliding_window=GONE)
    assert verify(good(NESTED), source=source, only={STRUCTURE}).ok


# -- tensors -------------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(FLAT), tmp_path / "x.gguf", tensors={"blk.1.ffn_up.weight": GONE})
    assert messages(checked(path, FLAT)) == [
        "blk.1.ffn_up.weight is absent; expected a tensor (a DFlash draft of 2 layers has 25 tensors): "
        "made from layers.1.mlp.up_proj.weight"
    ]


def test_an_extra_tensor_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(FLAT), tmp_path / "x.gguf", tensors={"blk.0.attn_gate.weight": np.ones((4, 64))})
    assert messages(checked(path, FLAT)) == [
        "blk.0.attn_gate.weight is a tensor; expected absent (a DFlash draft of 2 layers has 25 tensors): "
        "llama.cpp refuses it"
    ]


def test_sinks_belong_to_the_set_when_the_checkpoint_has_them(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(MIMO), tmp_path / "x.gguf", tensors={"blk.0.attn_sinks.weight": GONE})
    assert [c.subject for c in failures(checked(path, MIMO))] == ["blk.0.attn_sinks.weight"]
    assert "has 27 tensors" in messages(checked(path, MIMO))[0]


def test_a_vector_that_is_not_f32_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(FLAT), tmp_path / "x.gguf", types={"output_norm.weight": "F16"})
    assert messages(checked(path, FLAT)) == [
        "output_norm.weight is F16; expected F32 (llama.cpp computes with vectors in F32 only)"
    ]


def test_a_source_tensor_without_a_place_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    folder = edited_source(FLAT, tmp_path / "draft")
    tensors = load_file(folder / "model.safetensors")
    extra = {"layers.0.self_attn.g_proj.weight": np.ones((4, 64), np.float32)}
    save_file({**tensors, **extra}, folder / "model.safetensors")
    report = verify(good(FLAT), source=folder, only={STRUCTURE})
    assert messages(report) == [
        "layers.0.self_attn.g_proj.weight is absent; expected a tensor (it is in the checkpoint): its weights were lost"
    ]


def test_a_shape_that_is_not_the_sources_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    """The file of a draft with one layer's matrix turned."""
    shutil.copytree(source_of(FLAT), tmp_path / "draft")
    tensors = load_file(tmp_path / "draft" / "model.safetensors")
    name = "layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: np.ascontiguousarray(tensors[name].T)}, tmp_path / "draft" / "model.safetensors")
    report = verify(good(FLAT), source=tmp_path / "draft", only={STRUCTURE})
    assert messages(report) == [f"blk.0.ffn_up.weight is [96, 64]; expected [64, 96] (the shape of {name})"]


# -- the target ----------------------------------------------------------------------------------------------------


def test_taps_outside_the_target_are_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(FLAT), tmp_path / "x.gguf", {"dflash.target_layers": [2, 4, 9]})
    assert any("is [2, 4, 9]; expected 0 to 8 (target-qwen3 has 8 layers)" in m for m in messages(checked(path, FLAT)))


def test_the_output_of_the_last_layer_may_be_tapped(good: Callable[[str], Path]) -> None:
    assert open_gguf(good(MIMO)).get("dflash.target_layers") == [1, 4, 8]
    assert checked(good(MIMO), MIMO).ok


def test_a_target_of_another_size_is_named(good: Callable[[str], Path]) -> None:
    report = verify(good(FLAT), source=source_of(FLAT), target=TARGET, only={STRUCTURE})
    text = "\n".join(messages(report))
    assert "dflash.embedding_length is 64; expected 256 (as in target)" in text
    assert "the vocabulary is 320; expected 1024 (as in target)" in text


def test_a_tap_too_many_for_fc_is_named(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = planted(good(FLAT), tmp_path / "x.gguf", {"dflash.target_layers": [2, 4, 6, 7]})
    text = "the number of target_layers is 4; expected 3 (fc.weight takes 192 = 3 × 64 features)"
    assert text in messages(checked(path, FLAT))


# -- the tokenizer -------------------------------------------------------------------------------------------------


def swapped(tokens: Any) -> list[Any]:
    items = list(tokens)
    items[5], items[9] = items[9], items[5]
    return items


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"tokenizer.ggml.tokens": swapped}, "tokenizer.ggml.tokens is '*' at entry 5; expected '&' (the tokenizer of"),
        (
            {"tokenizer.ggml.merges": lambda m: list(m)[::-1]},
            "tokenizer.ggml.merges is 'Ġ se' at entry 0; expected 'o r'",
        ),
        ({"tokenizer.ggml.merges": lambda m: list(m)[:-1]}, "merges is an array of 43; expected an array of 44"),
        ({"tokenizer.ggml.token_type": lambda t: [1] * len(t)}, "token_type is 1 at entry 300; expected 3"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer.ggml.pre is llama-bpe; expected qwen2"),
        ({"tokenizer.ggml.eos_token_id": 300}, "tokenizer.ggml.eos_token_id is 300; expected 302"),
        ({"tokenizer.ggml.bos_token_id": GONE}, "tokenizer.ggml.bos_token_id is absent; expected 300"),
        ({"tokenizer.ggml.add_bos_token": True}, "tokenizer.ggml.add_bos_token is True; expected False"),
        ({"tokenizer.chat_template": "{}"}, "tokenizer.chat_template is {}; expected {% for m in messages %}"),
        (
            {"tokenizer.ggml.unknown_token_id": number("tokenizer.ggml.unknown_token_id", 0)},
            "tokenizer.ggml.unknown_token_id is 0; expected absent (target-qwen3 has no such value)",
        ),
        ({"tokenizer.ggml.model": "none"}, "tokenizer.ggml.model is none; expected the target's: every draft fails"),
    ],
)
def test_a_wrong_tokenizer_is_named(
    good: Callable[[str], Path], tmp_path: Path, keys: Mapping[str, Any], text: str
) -> None:
    report = checked(planted(good(FLAT), tmp_path / "x.gguf", keys), FLAT)
    assert text in "\n".join(messages(report))


def test_without_a_target_the_tokenizer_is_listed_as_unchecked(good: Callable[[str], Path]) -> None:
    result = level(good(FLAT), FLAT, with_target=False)
    assert [c.message for c in result.checks if c.status == SKIP] == [
        "the tokenizer is gpt2; not checked: no target was given"
    ]


def test_a_target_without_tokenizer_files_is_an_error(good: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copyfile(CASES / "target-qwen3" / "config.json", tmp_path / "config.json")
    with pytest.raises(VocabError, match=r"there is no tokenizer.json") as e:
        verify(good(FLAT), source=source_of(FLAT), target=tmp_path, only={STRUCTURE})
    assert "no weights" in str(e.value.hint)


def test_a_tokenizer_of_another_kind_is_listed_as_unchecked(good: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copyfile(CASES / "target-qwen3" / "config.json", tmp_path / "config.json")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
    result = verify(good(FLAT), source=source_of(FLAT), target=tmp_path, only={STRUCTURE}).level(STRUCTURE)
    assert any("not a byte-level BPE" in c.message for c in result.checks if c.status == SKIP)


# -- damaged files -------------------------------------------------------------------------------------------------


def test_a_truncated_file_is_the_answer_no(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(good(FLAT).read_bytes()[:-4096])
    report = verify(path, source=source_of(FLAT), target=target_of(FLAT))
    assert not report.ok
    assert "truncated: the tensor blk.1.attn_v.weight ends at byte" in messages(report)[0]
    assert [(x.status, x.reason) for x in report.levels[1:]] == [(SKIP, "the file is damaged")] * 3


def test_a_tensor_there_twice_is_the_answer_no(good: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    data = good(FLAT).read_bytes()
    path.write_bytes(data.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"))
    assert "the tensor blk.0.attn_q.weight is there twice" in messages(checked(path, FLAT))[0]


def test_tensors_over_each_other_are_the_answer_no(good: Callable[[str], Path], tmp_path: Path) -> None:
    """The offset of one tensor set to that of another."""
    file = open_gguf(good(FLAT))
    moved, other = file.tensors["output_norm.weight"], file.tensors["fc.weight"]
    data = bytearray(good(FLAT).read_bytes())
    at = data.rindex(b"\0output_norm.weight") + 1 + len(moved.name) + 4 + 8 + 4
    assert int.from_bytes(data[at : at + 8], "little") == moved.offset - file.data_offset
    data[at : at + 8] = (other.offset - file.data_offset).to_bytes(8, "little")
    (tmp_path / "x.gguf").write_bytes(data)
    assert "overlap" in messages(checked(tmp_path / "x.gguf", FLAT))[0]


@pytest.mark.parametrize("extra", [1, 4096])
def test_bytes_that_belong_to_nothing_are_named(good: Callable[[str], Path], tmp_path: Path, extra: int) -> None:
    path = tmp_path / "x.gguf"
    whole = good("dflash-flat").read_bytes()
    path.write_bytes(whole + bytes(extra))
    (failed,) = failures(verify(path, source=source_of("dflash-flat"), only={STRUCTURE}))
    assert failed.found == f"{extra} bytes lie behind the last tensor, from byte {len(whole)}"
    assert failed.cause == "a resumed download that appended, or two files joined: download or write it again"
