"""A folder's tokenizer files → `TokenizerFiles`: everything in them that is used, held against what it must be.

In: tokenizer.json and, where present, tokenizer_config.json, config.json, chat_template.*. Out: the vocabulary with its
ids proved (integers from 0 up, one text for one id), merges of two parts, added tokens, and the rest as `Node`s, which
check a value where it is read. Real vocabularies have 150,000 entries: they are checked as whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert.errors import VocabError
from dflash_convert.json_file import AGAIN, Node, brief, read_json, read_text

TOKENIZER, SETTINGS, CONFIG = "tokenizer.json", "tokenizer_config.json", "config.json"
NEEDED = (CONFIG, TOKENIZER, SETTINGS)
UNREAD = ("tokenizer.model", "tiktoken.model", "vocab.json", "spiece.model")  # tokenizers of other kinds


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper. place: where it stands."""

    id: int
    content: str
    special: bool
    place: str


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer's files, read and checked; a file that is not there is an empty object.

    vocab: text → id. merges: pairs as they are spelled, "a b" or two strings. added: tokenizer.json's added tokens,
    then those that only tokenizer_config.json has. chat_template: a string, a list of named ones, or None.
    """

    root: Path
    tokenizer: Node
    settings: Node
    config: Node
    vocab: Mapping[str, int]
    merges: Sequence[Any]
    added: tuple[AddedToken, ...]
    chat_template: Any

    @property
    def path(self) -> Path:
        return self.root / TOKENIZER


def read_tokenizer(root: Path) -> TokenizerFiles:
    """Read the small files of a folder. Raises VocabError: missing, damaged, or of a kind that is not known."""
    tokenizer, settings, config = open_tokenizer(root)
    _refuse_empty(tokenizer, root)
    if other := other_kind(tokenizer):
        raise VocabError(
            f"{root / TOKENIZER}: {other} is not supported", hint="byte-level BPE (Qwen, Llama 3 and their like) is"
        )
    return checked(root, tokenizer, settings, config)


def open_tokenizer(root: Path) -> tuple[Node, Node, Node]:
    """tokenizer.json, tokenizer_config.json and config.json of a folder. Raises VocabError: not there, or not JSON."""
    if not (root / TOKENIZER).is_file():
        there = ", ".join(n for n in (*NEEDED, *UNREAD) if (root / n).is_file())
        raise VocabError(
            f"{root}: there is no tokenizer.json (a draft has no vocabulary of its own; it is the target's)",
            hint=f"a target folder needs {', '.join(NEEDED)} (a few MB, no weights); it has: {there or 'none'}",
        )
    return _node(root, TOKENIZER), _node(root, SETTINGS), _node(root, CONFIG)


def _refuse_empty(tokenizer: Node, root: Path) -> None:
    if not tokenizer.get("model").get("vocab").value:
        raise VocabError(f"{root / TOKENIZER}: there is no vocabulary in it", hint="download it again")


def checked(root: Path, tokenizer: Node, settings: Node, config: Node) -> TokenizerFiles:
    """The files of a byte-level BPE, held against what they must be. Raises VocabError."""
    _refuse_empty(tokenizer, root)
    vocab = tokenizer.get("model").get("vocab").object()
    added = tuple(_added(tokenizer, settings))
    _check_ids(vocab)
    _check_added(vocab, added)
    merges = _checked_merges(tokenizer.get("model").get("merges"))
    return TokenizerFiles(root, tokenizer, settings, config, vocab, merges, added, _chat_template(root, settings))


def _node(root: Path, name: str) -> Node:
    value = read_json(root / name, VocabError) if (root / name).is_file() else {}
    return Node(value, f"{name}:", VocabError)


def other_kind(tokenizer: Node) -> str:
    """What a tokenizer.json is where it is no byte-level BPE, else ""."""
    model, decoder = tokenizer.get("model"), tokenizer.get("decoder").get("type").text()
    kind = model.get("type").text()
    if kind == "BPE" and not model.get("byte_fallback").flag() and decoder == "ByteLevel":
        return ""
    return f"a {kind or 'nameless'} tokenizer with decoder {decoder or 'none'}"


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

PLACE = "tokenizer.json: model.vocab"
MAX_ID = 2**31 - 1
ONE_EACH = "every token has one id and every id one token; the file was edited or damaged: download it again"


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID


def _check_ids(vocab: Mapping[str, int]) -> None:
    """Integers (no bool), not negative, each once."""
    values = vocab.values()
    whole = set(map(type, values)) <= {int} and min(values) >= 0 and max(values) <= MAX_ID
    if not whole:
        token, value = next((t, v) for t, v in vocab.items() if not _is_id(v))
        raise VocabError(f"{PLACE}: the id of {brief(token)} is {brief(value)}, which is no token id", hint=AGAIN)
    ids = np.sort(np.fromiter(values, np.int64, len(vocab)), kind="stable")
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if twice.size:
        number = int(ids[twice[0]])
        first, second, *_ = (t for t, i in vocab.items() if i == number)
        raise _two_texts(number, first, second, PLACE)


def _two_texts(number: int, first: str, second: str, place: str) -> VocabError:
    return VocabError(f"{place}: the id {number} has two texts, {brief(first)} and {brief(second)}", hint=ONE_EACH)


def _check_added(vocab: Mapping[str, int], added: Sequence[AddedToken]) -> None:
    """One text for one id and one id for one text, over both lists and the vocabulary."""
    texts, numbers = _among(vocab, {t.id for t in added}), dict[str, int]()
    for token in added:
        if (known := texts.setdefault(token.id, token.content)) != token.content:
            raise _two_texts(token.id, known, token.content, token.place)
        number = numbers.setdefault(token.content, vocab.get(token.content, token.id))
        if number != token.id:
            raise VocabError(
                f"{token.place}: {brief(token.content)} has two ids, {number} and {token.id}", hint=ONE_EACH
            )


def _among(vocab: Mapping[str, int], wanted: set[int]) -> dict[int, str]:
    """The texts that the vocabulary has for some ids."""
    ids = np.fromiter(vocab.values(), np.int64, len(vocab))
    at = np.flatnonzero(np.isin(ids, list(wanted)))
    tokens = list(vocab) if at.size else []
    return {int(ids[k]): tokens[k] for k in at}


# ── added tokens, merges, templates ───────────────────────────────────────────────────────────────────────────────────


def _added(tokenizer: Node, settings: Node) -> Iterator[AddedToken]:
    """Those of tokenizer.json, then what tokenizer_config.json has besides (it repeats most of them)."""
    known = []
    for entry in tokenizer.get("added_tokens").entries():
        known.append(_added_token(entry, entry.get("id").value))
        yield known[-1]
    seen = {(t.id, t.content) for t in known}
    for key, entry in settings.get("added_tokens_decoder").members():
        token = _added_token(entry, int(key) if key.isascii() and key.isdecimal() and len(key) < 11 else key)
        if (token.id, token.content) not in seen:
            yield token


def _added_token(entry: Node, number: Any) -> AddedToken:
    content = entry.get("content")
    if not _is_id(number):
        raise VocabError(f"{entry.place}: the id is {brief(number)}, which is no token id", hint=AGAIN)
    if content.value is None:
        raise content.wrong("a string")
    return AddedToken(number, content.text(), entry.get("special").flag(), entry.place)


def _checked_merges(merges: Node) -> list[Any]:
    """Merges of two parts each, in either spelling."""
    found = merges.list()
    kinds = set(map(type, found))
    if kinds <= {str} and _all_pairs_of_words(found):
        return found
    if kinds == {list} and set(map(len, found)) == {2}:
        parts = list(chain.from_iterable(found))
        if set(map(type, parts)) == {str} and all(parts):
            return found
    first = type(found[0])
    odd = next(m for m in merges.entries() if type(m.value) is not first or not _is_merge(m.value))
    raise odd.wrong('two parts ("a b", or a list of two strings; one spelling throughout)')


def _all_pairs_of_words(merges: Sequence[str]) -> bool:
    """One space in each, and something on both sides of it."""
    at_an_end = chain(map(str.startswith, merges, repeat(" ")), map(str.endswith, merges, repeat(" ")))
    return set(map(str.count, merges, repeat(" "))) <= {1} and not any(at_an_end)


def _is_merge(value: Any) -> bool:
    parts = value.split(" ") if isinstance(value, str) else value
    return isinstance(parts, list) and len(parts) == 2 and all(isinstance(p, str) and p for p in parts)


def _chat_template(root: Path, settings: Node) -> Any:
    """tokenizer_config.json's template (a string or a list of named ones), else chat_template.jinja or .json."""
    if (template := settings.get("chat_template")).value is not None:
        return _checked_template(template)
    if (root / "chat_template.jinja").is_file():
        return read_text(root / "chat_template.jinja", VocabError)
    older = _node(root, "chat_template.json").get("chat_template")
    return _checked_template(older)


def _checked_template(template: Node) -> Any:
    if not isinstance(template.value, list):
        return template.text() or None
    for entry in template.entries():
        entry.get("name").text(), entry.get("template").text()
    return template.value
