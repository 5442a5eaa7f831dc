"""The tokenizer as the verifier derives it: where each value comes from, and which tokenizers it does not know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from toys import edited, read_json
from verify_cases import TARGET, planted, target_of

from dflash_convert.conversion.run import convert
from dflash_convert.errors import VocabError
from dflash_convert.verification import verify
from dflash_convert.verification.report import ACCEPTANCE, FORWARD, SKIP
from dflash_convert.verification.targets import open_target
from dflash_convert.verification.tokens import PATTERNS, encoder_of, expected_tokenizer

FLAT = target_of("dflash-flat")


def expected(folder: Path, n_vocab: int = 320, **changes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The expected keys for the golden target with dotted changes by file: config, tokenizer, tokenizer_config."""
    for stem in ("config", "tokenizer", "tokenizer_config"):
        value = edited(read_json(FLAT / f"{stem}.json"), changes.get(stem, {}))
        (folder / f"{stem}.json").write_text(json.dumps(value))
    return expected_tokenizer(open_target(folder), n_vocab)


def known(folder: Path, **changes: Any) -> dict[str, Any]:
    found = expected(folder, **changes)
    assert found is not None
    return found


def test_a_named_special_token_goes_before_an_id_in_the_config(tmp_path: Path) -> None:
    keys = known(tmp_path, config={"eos_token_id": 300})
    assert keys["tokenizer.ggml.eos_token_id"] == 302
    assert keys["tokenizer.ggml.bos_token_id"] == 300  # not named, so the config's


def test_a_special_token_may_be_an_object(tmp_path: Path) -> None:
    keys = known(tmp_path, tokenizer_config={"eos_token": {"content": "<|im_start|>"}})
    assert keys["tokenizer.ggml.eos_token_id"] == 301


def test_the_ids_of_a_text_config_count_last(tmp_path: Path) -> None:
    keys = known(tmp_path, config={"bos_token_id": None, "text_config": {"bos_token_id": 301, "vocab_size": 320}})
    assert keys["tokenizer.ggml.bos_token_id"] == 301


def test_the_mask_token_is_the_drafts_not_the_targets(tmp_path: Path) -> None:
    keys = known(tmp_path, tokenizer_config={"mask_token": "<|im_start|>"})
    assert "tokenizer.ggml.mask_token_id" not in keys


@pytest.mark.parametrize(
    ("processor", "flags"),
    [
        (None, {"bos": False}),  # tokenizer_config's own word
        ({"type": "ByteLevel"}, {"bos": False, "eos": False}),
        (
            {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]},
            {"bos": True},
        ),
        (
            {
                "type": "Sequence",
                "processors": [
                    {"type": "ByteLevel"},
                    {"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"SpecialToken": {"id": "</s>"}}]},
                ],
            },
            {"bos": False, "eos": True},
        ),
    ],
)
def test_tokens_put_around_a_prompt(tmp_path: Path, processor: Any, flags: Mapping[str, bool]) -> None:
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    keys = known(tmp_path, tokenizer={"post_processor": processor}, tokenizer_config=settings)
    found = {key.split("_")[1]: value for key, value in keys.items() if ".add_" in key}
    assert found == flags


def test_merges_may_be_strings_or_pairs(tmp_path: Path) -> None:
    assert known(tmp_path, tokenizer={"model.merges": ["a b", "c d"]})["tokenizer.ggml.merges"] == ["a b", "c d"]
    assert known(tmp_path, tokenizer={"model.merges": [["a", " b"]]})["tokenizer.ggml.merges"] == ["a Ġb"]


def test_gaps_are_padded_and_unmarked_control_tokens_recognised(tmp_path: Path) -> None:
    added = [{"id": 300, "content": "<|x|>", "special": False}, {"id": 301, "content": "▁a", "special": False}]
    keys = known(tmp_path, tokenizer={"added_tokens": added}, tokenizer_config={"added_tokens_decoder": None})
    assert keys["tokenizer.ggml.tokens"][300:303] == ["<|x|>", " a", "[PAD302]"]
    assert keys["tokenizer.ggml.token_type"][299:303] == [1, 3, 4, 5]


def test_a_chat_template_may_lie_beside(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ x }}")
    assert known(tmp_path, tokenizer_config={"chat_template": None})["tokenizer.chat_template"] == "{{ x }}"


@pytest.mark.parametrize("name", PATTERNS)
def test_known_split_patterns_have_their_name(tmp_path: Path, name: str) -> None:
    steps = [{"type": "Split", "pattern": {"Regex": PATTERNS[name]}}, {"type": "ByteLevel"}]
    pre = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    keys = known(tmp_path, tokenizer={**pre, "model.ignore_merges": name == "llama-bpe"})
    assert keys["tokenizer.ggml.pre"] == name


def test_one_pattern_of_two_names_is_told_apart_by_whole_words(tmp_path: Path) -> None:
    steps = [{"type": "Split", "pattern": {"Regex": PATTERNS["llama-bpe"]}}, {"type": "ByteLevel"}]
    pre = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    assert known(tmp_path, tokenizer=pre)["tokenizer.ggml.pre"] is None


def test_an_unknown_split_pattern_is_listed_as_unchecked(tmp_path: Path) -> None:
    steps = [{"type": "Split", "pattern": {"Regex": "x"}}, {"type": "ByteLevel"}]
    changes = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}
    assert known(tmp_path, tokenizer=changes)["tokenizer.ggml.pre"] is None
    draft = convert(FLAT.parent / "dflash-flat" / "draft", FLAT, tmp_path / "x.gguf")
    checks = verify(draft, target=tmp_path, only={"structure"}).level("structure").checks
    assert [c.message for c in checks if c.status == SKIP] == [
        "tokenizer.ggml.pre is qwen2; not checked: the split pattern in tokenizer.json is not a known one"
    ]


def test_a_tokenizer_without_byte_level_steps_is_not_known(tmp_path: Path) -> None:
    assert expected(tmp_path, tokenizer={"pre_tokenizer": None}) is None


def test_broken_tokenizer_files_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(VocabError, match="not valid JSON") as e:
        expected_tokenizer(open_target(tmp_path), 320)
    assert e.value.hint


def test_a_ggufs_encoder_agrees_with_tokenizer_json(tmp_path: Path) -> None:
    """Words, digits, line breaks, contractions and a control token."""
    gguf = convert(TARGET, None, tmp_path / "target.gguf")
    text = "def f(x):\n    return x + 123  # it's <|im_start|>naïve\n\n"
    ours, theirs = encoder_of(open_target(gguf)), encoder_of(open_target(TARGET))
    assert ours.encode(text).ids == theirs.encode(text).ids
    assert 1021 in ours.encode(text).ids


def test_a_gguf_whose_text_cannot_be_encoded_leaves_out_acceptance(tmp_path: Path) -> None:
    gguf = convert(TARGET, None, tmp_path / "target.gguf")
    strange = planted(gguf, tmp_path / "strange.gguf", {"tokenizer.ggml.pre": "tekken"})
    with pytest.raises(VocabError, match=r"tokenizer.ggml.model is gpt2, tokenizer.ggml.pre tekken") as e:
        encoder_of(open_target(strange))
    assert "tokenizer.json" in str(e.value.hint)
    draft = convert(TARGET.parent / "draft", TARGET, tmp_path / "draft.gguf")
    report = verify(draft, source=TARGET.parent / "draft", target=strange)
    assert "tekken" in report.level(ACCEPTANCE).reason
    assert "seeded features" in report.level(FORWARD).checks[0].basis
