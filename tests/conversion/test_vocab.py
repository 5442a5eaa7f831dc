"""tokenizer.json and its kin → `tokenizer.*`. The gguf package's SpecialVocab is the oracle for all but the tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf.constants import GGUFValueType as V
from tokenizers import Tokenizer
from toys import GONE, TARGET, edited, read_json, toy_target

from dflash_convert.checkpoints.tokenizer_files import read_tokenizer
from dflash_convert.conversion.vocab import (
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNUSED,
    USER_DEFINED,
    pre_tokenizer,
    tokens_named_mask,
    vocab_rows,
)
from dflash_convert.errors import VocabError

MERGES: list[list[str]] = read_json(TARGET / "tokenizer.json")["model"]["merges"]
ADDED: list[dict[str, Any]] = read_json(TARGET / "tokenizer.json")["added_tokens"]


def rows(root: Path, vocab_size: int = 320, pre: str | None = None) -> dict[str, Any]:
    return {kv.key: kv.value for kv in vocab_rows(read_tokenizer(root), vocab_size, pre)}


def token(number: int, content: str, special: bool = False) -> dict[str, Any]:
    return {"id": number, "content": content, "special": special, "normalized": False}


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_are_those_of_the_tokenizers_library_padded_to_the_embedding_rows() -> None:
    by_id = {i: t for t, i in Tokenizer.from_file(str(TARGET / "tokenizer.json")).get_vocab().items()}
    tokens, types = rows(TARGET)["tokenizer.ggml.tokens"], rows(TARGET)["tokenizer.ggml.token_type"]
    assert tokens == [by_id.get(i, f"[PAD{i}]") for i in range(320)]
    assert (types[:300], types[304:]) == ([NORMAL] * 300, [UNUSED] * 16)


@pytest.mark.parametrize(
    ("content", "special", "expected"),
    [
        ("<tool>", False, ("<tool>", USER_DEFINED)),
        ("<tool>", True, ("<tool>", CONTROL)),
        ("<|fim_prefix|>", False, ("<|fim_prefix|>", CONTROL)),
        ("<｜begin｜>", False, ("<｜begin｜>", CONTROL)),
        ("<unused7>", False, ("<unused7>", CONTROL)),
        ("<pad>", False, ("<pad>", CONTROL)),
        ("▁▁", False, ("  ", USER_DEFINED)),
    ],
)
def test_added_tokens_have_the_type_llama_cpp_gives_them(
    tmp_path: Path, content: str, special: bool, expected: tuple[str, int]
) -> None:
    found = rows(toy_target(tmp_path / "t", tokenizer={"added_tokens": [*ADDED, token(304, content, special)]}))
    assert (found["tokenizer.ggml.tokens"][304], found["tokenizer.ggml.token_type"][304]) == expected


def test_tokens_only_tokenizer_config_has_are_added_too(tmp_path: Path) -> None:
    extra = {"301": {"content": "<|im_start|>", "special": True}, "310": {"content": "<|MASK|>", "special": True}}
    root = toy_target(tmp_path / "t", tokenizer_config={"added_tokens_decoder": extra})
    found = rows(root)
    assert found["tokenizer.ggml.tokens"][300:311:10] == ["<|endoftext|>", "<|MASK|>"]
    assert found["tokenizer.ggml.token_type"][310] == CONTROL
    assert tokens_named_mask(read_tokenizer(root)) == {"<|MASK|>": 310}


def test_a_tokenizer_larger_than_the_embedding_table_is_refused() -> None:
    with pytest.raises(VocabError, match=r"ids up to 303 \('<tool_call>'\), the embedding table 303 rows"):
        rows(TARGET, vocab_size=303)


# ── merges ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "merges",
    [MERGES, [" ".join(pair) for pair in MERGES], [["a ", "b"], [" ", "  "], ["Ġ", "t"]]],
    ids=["pairs", "strings", "pairs with spaces"],
)
def test_both_spellings_of_merges(tmp_path: Path, merges: list[Any]) -> None:
    root = toy_target(tmp_path / "t", tokenizer={"model.merges": merges})
    assert rows(root)["tokenizer.ggml.merges"] == gguf.SpecialVocab(root, load_merges=True).merges


def test_spaces_in_merges_are_spelled_out(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t", tokenizer={"model.merges": [["a ", "b"]]})
    assert rows(root)["tokenizer.ggml.merges"] == ["aĠ b"]


# ── special tokens and flags, against SpecialVocab ────────────────────────────────────────────────────────────────────

SPECIALS: dict[str, dict[str, dict[str, Any]]] = {
    "as it is": {},
    "an object": {"tokenizer_config": {"eos_token": {"content": "<|im_start|>", "lstrip": False}}},
    "not an added token": {"tokenizer_config": {"eos_token": "</s>"}},
    "only in config.json": {
        "tokenizer_config": {"eos_token": None, "pad_token": None},
        "config": {"pad_token_id": 301},
    },
    "tokenizer_config first": {"tokenizer_config": {"bos_token": "<|im_start|>"}, "config": {"bos_token_id": 300}},
    "a list in config.json": {"tokenizer_config": {"eos_token": None}, "config": {"eos_token_id": [302, 300]}},
    "in text_config": {
        "tokenizer_config": {"eos_token": None},
        "config": {"eos_token_id": GONE, "text_config": {"eos_token_id": 301}},
    },
    "every kind": {
        "tokenizer_config": {f"{w}_token": "<|im_start|>" for w in ("unk", "sep", "cls", "mask")},
    },
    "CLS and SEP for BOS and EOS": {
        "tokenizer_config": {
            "bos_token": None,
            "cls_token": "<|im_start|>",
            "eos_token": None,
            "sep_token": "<tool_call>",
        },
    },
    "flags": {"tokenizer_config": {"add_bos_token": True, "add_eos_token": False, "add_mask_token": True}},
    "flags that are null": {"tokenizer_config": {"add_bos_token": None}},
    "a template that adds BOS": {
        "tokenizer_config": {"bos_token": "<|im_start|>", "add_bos_token": GONE},
        "tokenizer": {
            "post_processor": {
                "type": "Sequence",
                "processors": [
                    {
                        "type": "TemplateProcessing",
                        "single": [{"SpecialToken": {"id": "<|im_start|>"}}, {"Sequence": {"id": "A"}}],
                    },
                ],
            }
        },
    },
    "a template that adds EOS": {
        "tokenizer": {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<|im_end|>"}}],
            }
        },
    },
}


@pytest.mark.parametrize("changes", SPECIALS.values(), ids=SPECIALS)
def test_special_ids_and_flags_are_those_of_the_gguf_package(tmp_path: Path, changes: dict[str, Any]) -> None:
    root = toy_target(tmp_path / "t", **changes)
    oracle = gguf.SpecialVocab(root, load_merges=True)
    writer = gguf.GGUFWriter(path=None, arch="qwen3")
    oracle.add_to_gguf(writer, quiet=True)
    expected = {k: v.value for k, v in writer.kv_data[0].items() if k.startswith("tokenizer.")}
    found = rows(root)
    assert {k: v for k, v in found.items() if k in expected or k.endswith(("_token_id", "_token"))} == expected


def test_a_byte_level_post_processor_adds_neither_bos_nor_eos_whatever_the_config_says(tmp_path: Path) -> None:
    steps = {"type": "ByteLevel", "trim_offsets": False}
    root = toy_target(tmp_path / "t", tokenizer={"post_processor": steps}, tokenizer_config={"add_bos_token": True})
    found = rows(root)
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.add_eos_token"]) == (False, False)


def test_a_special_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t", config={"bos_token_id": -1})
    with pytest.raises(VocabError, match=r"config.json: bos_token_id is -1, outside the vocabulary of 320") as e:
        rows(root)
    assert e.value.hint


# ── chat templates ────────────────────────────────────────────────────────────────────────────────────────────────────

NAMED = [{"name": "default", "template": "D"}, {"name": "tool use", "template": "T"}, {"name": "empty"}]


@pytest.mark.parametrize(
    ("inline", "files", "expected"),
    [
        ("I", {}, {"chat_template": "I"}),
        ("I", {"chat_template.jinja": "J"}, {"chat_template": "I"}),
        (NAMED, {}, {"chat_template.tool_use": "T", "chat_templates": ["tool_use"], "chat_template": "D"}),
        (GONE, {"chat_template.jinja": "J"}, {"chat_template": "J"}),
        (None, {"chat_template.jinja": "J"}, {"chat_template": "J"}),
        (GONE, {"chat_template.json": '{"chat_template": "N"}'}, {"chat_template": "N"}),
        (GONE, {"chat_template.jinja": "J", "chat_template.json": '{"chat_template": "N"}'}, {"chat_template": "J"}),
        (GONE, {}, {}),
    ],
    ids=["string", "string first", "list", "jinja", "null and jinja", "json", "jinja before json", "none"],
)
def test_where_the_chat_template_comes_from(tmp_path: Path, inline: Any, files: Any, expected: dict[str, Any]) -> None:
    root = toy_target(tmp_path / "t", tokenizer_config={"chat_template": inline})
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    found = {k.removeprefix("tokenizer."): v for k, v in rows(root).items() if "chat" in k}
    assert found == expected
    assert list(found) == list(expected)


# ── the pre-tokenizer ─────────────────────────────────────────────────────────────────────────────────────────────────

PATTERN = "pre_tokenizer.pretokenizers"


@pytest.mark.parametrize("row", PRE_TOKENIZERS, ids=lambda r: r.name)
def test_a_pre_tokenizer_is_known_by_its_pattern(tmp_path: Path, row: Any) -> None:
    split = {"type": "Split", "pattern": {"Regex": row.pattern}}
    model = {} if row.ignore_merges is None else {"model.ignore_merges": row.ignore_merges}
    root = toy_target(tmp_path / "t", tokenizer={PATTERN: [split, {"type": "ByteLevel"}], **model})
    assert pre_tokenizer(read_tokenizer(root)) == row.name
    assert row.source


def test_an_unknown_pre_tokenizer_is_shown_with_the_nearest_and_never_defaulted(tmp_path: Path) -> None:
    pattern = PRE_TOKENIZERS[0].pattern.replace(r"\p{N}|", r"\p{N}{1,3}|")
    split = {"type": "Split", "pattern": {"Regex": pattern}}
    root = toy_target(tmp_path / "t", tokenizer={PATTERN: [split, {"type": "ByteLevel"}]})
    with pytest.raises(VocabError) as e:
        rows(root)
    assert pattern in e.value.message
    assert e.value.hint
    assert "nearest known one is llama-bpe" in e.value.hint  # which also sets ignore_merges: glm4 does not
    assert "--pre NAME" in e.value.hint
    assert rows(root, pre="llama-bpe")["tokenizer.ggml.pre"] == "llama-bpe"


def test_a_tokenizer_without_a_pattern_is_unknown_too(tmp_path: Path) -> None:
    with pytest.raises(VocabError, match="the pre-tokenizer is not known: it has no pattern"):
        rows(toy_target(tmp_path / "t", tokenizer={"pre_tokenizer": None}))


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_row_says_its_file() -> None:
    sources = {kv.key: kv.source for kv in vocab_rows(read_tokenizer(TARGET), 320, "qwen2")}
    assert sources["tokenizer.ggml.tokens"] == "tokenizer.json"
    assert sources["tokenizer.ggml.pre"] == "--pre"
    assert sources["tokenizer.ggml.eos_token_id"] == "tokenizer_config.json"
    assert sources["tokenizer.ggml.bos_token_id"] == "config.json"
    assert all(sources.values())


def test_types_of_the_arrays() -> None:
    types = {
        kv.key.removeprefix("tokenizer.ggml."): (kv.type, kv.item_type)
        for kv in vocab_rows(read_tokenizer(TARGET), 320)
    }
    assert types["tokens"] == types["merges"] == (V.ARRAY, V.STRING)
    assert types["token_type"] == (V.ARRAY, V.INT32)
    assert types["eos_token_id"] == (V.UINT32, None)
    assert types["add_bos_token"] == (V.BOOL, None)


def test_a_folder_without_tokenizer_json_is_told_what_it_needs_and_has(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t")
    (root / "tokenizer.json").rename(root / "tiktoken.model")
    with pytest.raises(VocabError, match=r"there is no tokenizer\.json") as e:
        read_tokenizer(root)
    assert e.value.hint == (
        "a target folder needs config.json, tokenizer.json, tokenizer_config.json (a few MB, no weights); "
        "it has: config.json, tokenizer_config.json, tiktoken.model"
    )


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TARGET / "tokenizer.json").read_bytes())
    assert not [key for key in rows(tmp_path) if key.endswith("_token_id")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model.byte_fallback": True}, "a BPE tokenizer with decoder ByteLevel is not supported"),
        ({"decoder": {"type": "Sequence"}}, "a BPE tokenizer with decoder Sequence is not supported"),
        ({"model.type": "Unigram"}, "a Unigram tokenizer with decoder ByteLevel is not supported"),
        ({"model.vocab": {}}, "there is no vocabulary in it"),
        ({"model": None}, "there is no vocabulary in it"),
    ],
)
def test_tokenizers_of_another_kind_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VocabError) as e:
        read_tokenizer(toy_target(tmp_path / "t", tokenizer=changes))
    assert said in e.value.message
    assert e.value.hint


def test_a_broken_tokenizer_json_says_where(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t")
    (root / "tokenizer.json").write_text(json.dumps(edited({}, {}))[:-1] + ',"a"', encoding="utf-8")
    with pytest.raises(VocabError, match=r"tokenizer\.json, line 1 column 2: not valid JSON"):
        read_tokenizer(root)
