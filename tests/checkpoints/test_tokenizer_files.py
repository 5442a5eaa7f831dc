"""Tokenizer files that are not what they must be: each place of each file, with every other kind of value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys import GONE, TARGET, read_json, toy_target

from dflash_convert.checkpoints.tokenizer_files import checked, open_tokenizer, read_tokenizer
from dflash_convert.conversion.vocab import vocab_rows
from dflash_convert.errors import VocabError

WHOLE = read_json(TARGET / "tokenizer.json")
ADDED: list[dict[str, Any]] = WHOLE["added_tokens"]
KINDS: tuple[Any, ...] = (7, 1.5, "text", "", True, [], [1], [None], [["a"]], {}, {"a": 1}, {"type": 3}, 10**30, -1)


def refusal(root: Path) -> VocabError:
    with pytest.raises(VocabError) as e:
        vocab_rows(read_tokenizer(root), 320)
    assert "\n" not in e.value.message
    assert e.value.hint
    return e.value


def said(folder: Path, **changes: Any) -> str:
    return refusal(toy_target(folder / f"t{len(list(folder.iterdir()))}", **changes)).message


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [None, 1.5, "7", True, -1, [], {}, 2**31, 10**30])
def test_an_id_of_the_vocabulary_is_an_integer_from_0_up(tmp_path: Path, value: Any) -> None:
    vocab = {**WHOLE["model"]["vocab"], "zz": value}
    shown = "1000000000000000000000000000000" if value == 10**30 else repr(value)
    assert said(tmp_path, tokenizer={"model.vocab": vocab}) == (
        f"tokenizer.json: model.vocab: the id of 'zz' is {shown}, which is no token id"
    )


def test_two_texts_for_one_id_are_both_named(tmp_path: Path) -> None:
    vocab = {**WHOLE["model"]["vocab"], "zz": 5}
    first = next(t for t, i in vocab.items() if i == 5)
    assert said(tmp_path, tokenizer={"model.vocab": vocab}) == (
        f"tokenizer.json: model.vocab: the id 5 has two texts, {first!r} and 'zz'"
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"id": 5, "content": "<new>"}, "tokenizer.json: added_tokens[4]: the id 5 has two texts, {5!r} and '<new>'"),
        (
            {"id": 300, "content": "<new>"},
            "tokenizer.json: added_tokens[4]: the id 300 has two texts, '<|endoftext|>' and '<new>'",
        ),
        (
            {"id": 310, "content": "<tool_call>"},
            "tokenizer.json: added_tokens[4]: '<tool_call>' has two ids, 303 and 310",
        ),
        ({"id": 310, "content": "!"}, "tokenizer.json: added_tokens[4]: '!' has two ids, 0 and 310"),
    ],
)
def test_an_added_token_goes_with_the_vocabulary(tmp_path: Path, extra: Any, message: str) -> None:
    vocab = WHOLE["model"]["vocab"]
    expected = message.replace("{5!r}", repr(next(t for t, i in vocab.items() if i == 5)))
    expected = expected.replace("ids, 0 and", f"ids, {vocab['!']} and")
    assert said(tmp_path, tokenizer={"added_tokens": [*ADDED, extra]}) == expected


def test_two_lists_of_added_tokens_must_agree(tmp_path: Path) -> None:
    def decoder(**entries: Any) -> dict[str, Any]:
        return {"added_tokens_decoder": {k.removeprefix("i"): v for k, v in entries.items()}}

    same = decoder(i300={"content": "<|endoftext|>", "special": True})
    assert len(read_tokenizer(toy_target(tmp_path / "same", tokenizer_config=same)).added) == len(ADDED)
    assert said(tmp_path, tokenizer_config=decoder(i300={"content": "<eot>"})) == (
        "tokenizer_config.json: added_tokens_decoder.300: the id 300 has two texts, '<|endoftext|>' and '<eot>'"
    )
    assert said(tmp_path, tokenizer_config=decoder(i310={"content": "<|endoftext|>"})) == (
        "tokenizer_config.json: added_tokens_decoder.310: '<|endoftext|>' has two ids, 300 and 310"
    )


ENTRIES: dict[str, tuple[Any, str]] = {
    "a number": (7, " is 7; an object was expected"),
    "empty": ({}, ": the id is None, which is no token id"),
    "no content": ({"id": 310}, ".content is None; a string was expected"),
    "no id": ({"content": "x"}, ": the id is None, which is no token id"),
    "id true": ({"id": True, "content": "x"}, ": the id is True, which is no token id"),
    "id list": ({"id": [1], "content": "x"}, ": the id is [1], which is no token id"),
    "id text": ({"id": "310", "content": "x"}, ": the id is '310', which is no token id"),
    "id 1.0": ({"id": 1.0, "content": "x"}, ": the id is 1.0, which is no token id"),
    "content 7": ({"id": 310, "content": 7}, ".content is 7; a string was expected"),
    "content list": ({"id": 310, "content": ["x"]}, ".content is ['x']; a string was expected"),
    "content true": ({"id": 310, "content": True}, ".content is True; a string was expected"),
    "special 1": ({"id": 310, "content": "x", "special": 1}, ".special is 1; true or false was expected"),
}


@pytest.mark.parametrize(("entry", "message"), ENTRIES.values(), ids=ENTRIES)
def test_an_added_token_has_an_id_and_a_text(tmp_path: Path, entry: Any, message: str) -> None:
    assert said(tmp_path, tokenizer={"added_tokens": [*ADDED, entry]}) == f"tokenizer.json: added_tokens[4]{message}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, " is 7; an object was expected"),
        ({"310": 7}, ".310 is 7; an object was expected"),
        ({"310": {}}, ".310.content is None; a string was expected"),
        ({"310": {"content": True}}, ".310.content is True; a string was expected"),
        ({"x": {"content": "a"}}, ".x: the id is 'x', which is no token id"),
        ({"-1": {"content": "a"}}, ".-1: the id is '-1', which is no token id"),
        ({"²": {"content": "a"}}, ".²: the id is '²', which is no token id"),
        ({"9" * 5000: {"content": "a"}}, None),
    ],
)
def test_the_settings_added_tokens_likewise(tmp_path: Path, value: Any, message: str | None) -> None:
    found = said(tmp_path, tokenizer_config={"added_tokens_decoder": value})
    start = "tokenizer_config.json: added_tokens_decoder"
    assert found == start + message if message else found.startswith(start + ".999")


# ── merges ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "merge", ["", "a", "a b c", " a", "a ", "a  b", [], ["a"], ["a", "b", "c"], ["a", 1], ["", "b"], 7, None, True, {}]
)
@pytest.mark.parametrize("spelling", ["words", "lists"])
def test_a_merge_has_two_parts(tmp_path: Path, merge: Any, spelling: str) -> None:
    good = [["a", "b"], ["c", "d"]] if spelling == "lists" else ["a b", "c d"]
    message = said(tmp_path, tokenizer={"model.merges": [*good, merge]})
    assert message == (
        f'tokenizer.json: model.merges[2] is {merge!r}; two parts ("a b", or a list of two strings; one spelling '
        "throughout) was expected"
    )


def test_two_spellings_of_merges_are_refused(tmp_path: Path) -> None:
    message = said(tmp_path, tokenizer={"model.merges": ["a b", ["c", "d"]]})
    assert message.startswith("tokenizer.json: model.merges[1] is ['c', 'd']; two parts")


# ── every other place ─────────────────────────────────────────────────────────────────────────────────────────────────

PLACES = (
    "model", "model.vocab", "model.merges", "model.type", "model.byte_fallback", "decoder", "decoder.type",
    "post_processor", "post_processor.type", "post_processor.processors", "added_tokens",
    "pre_tokenizer", "pre_tokenizer.type",
    "pre_tokenizer.pretokenizers",
)  # fmt: skip
SETTINGS = (
    "added_tokens_decoder", "bos_token", "eos_token", "pad_token", "unk_token", "chat_template", "add_bos_token",
    "add_eos_token",
)  # fmt: skip
CONFIG = ("bos_token_id", "eos_token_id", "text_config", "text_config.unk_token_id")


@pytest.mark.parametrize(
    ("file", "place"),
    [
        *(("tokenizer", p) for p in PLACES),
        *(("tokenizer_config", p) for p in SETTINGS),
        *(("config", p) for p in CONFIG),
    ],
)
def test_any_value_at_any_place_reads_or_is_refused_by_its_place(tmp_path: Path, file: str, place: str) -> None:
    refusals = []
    for value in KINDS:
        root = toy_target(tmp_path / str(len(list(tmp_path.iterdir()))), **{file: {place: value}})
        try:
            vocab_rows(read_tokenizer(root), 320)
        except VocabError as e:
            refusals.append(e.message)
    assert refusals
    assert all(f"{file}.json" in m for m in refusals)


@pytest.mark.parametrize("value", [v for v in KINDS if v not in ([], {})], ids=repr)
def test_parts_of_a_step_are_checked(tmp_path: Path, value: Any) -> None:
    if not isinstance(value, dict):
        split = {"type": "Split", "pattern": value}
        assert said(tmp_path, tokenizer={"pre_tokenizer": split}).startswith("tokenizer.json: pre_tokenizer.pattern")
    if not isinstance(value, list):
        template = {"type": "TemplateProcessing", "single": value}
        message = said(tmp_path, tokenizer={"post_processor": template})
        assert message.startswith("tokenizer.json: post_processor.single")
    ends = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}, value]}
    if not isinstance(value, dict):
        assert "post_processor.single[1]" in said(tmp_path, tokenizer={"post_processor": ends})


def test_pre_tokenizers_may_nest_as_deep_as_they_like(tmp_path: Path) -> None:
    split = {"type": "Split", "pattern": {"Regex": "x"}}
    nested: dict[str, Any] = split
    for _ in range(400):
        nested = {"type": "Sequence", "pretokenizers": [nested]}
    assert "the pre-tokenizer is not known: x" in said(tmp_path, tokenizer={"pre_tokenizer": nested})


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t")
    plain = vocab_rows(read_tokenizer(root), 320)
    for path in root.glob("*.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert vocab_rows(read_tokenizer(root), 320) == plain


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t", tokenizer_config={"chat_template": GONE})
    (root / "chat_template.jinja").write_bytes(b"a\xff")
    assert refusal(root).message == f"{root}/chat_template.jinja, line 1 column 2: the byte 0xff is not UTF-8"
    (root / "chat_template.jinja").unlink()
    (root / "chat_template.json").write_text(json.dumps({"chat_template": 7}))
    assert refusal(root).message == "chat_template.json: chat_template is 7; a string was expected"


def test_an_empty_vocabulary_is_refused_by_both_readers(tmp_path: Path) -> None:
    root = toy_target(tmp_path / "t", tokenizer={"model.vocab": {}})
    assert refusal(root).message == f"{root}/tokenizer.json: there is no vocabulary in it"
    with pytest.raises(VocabError, match="there is no vocabulary in it"):
        checked(root, *open_tokenizer(root))
