"""A target's tokenizer files → the `tokenizer.*` keys of a GGUF.

In: a folder with tokenizer.json (and, where present, tokenizer_config.json, config.json, chat_template.*). Out: the
rows, in the order in which llama.cpp's converter writes them. Nothing of the files is executed and transformers is not
needed: byte-level BPE is read straight from the JSON.

Source of the rules: llama.cpp conversion/base.py (`_set_vocab_gpt2`) and gguf-py/gguf/vocab.py (`SpecialVocab`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gguf.constants import GGUFValueType as V

from dflash_convert.checkpoint import read_json
from dflash_convert.errors import VocabError
from dflash_convert.gguf_file import KV

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
UNREAD = ("tokenizer.model", "tiktoken.model", "vocab.json", "spiece.model")  # tokenizers of other kinds


@dataclass(frozen=True)
class PreTokenizer:
    """llama.cpp's name for the way text is cut before BPE, by the regular expression of tokenizer.json."""

    name: str
    pattern: str
    source: str


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer("qwen2", QWEN2, "llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN2 (Qwen2, Qwen2.5, Qwen3)"),
    PreTokenizer("qwen35", QWEN35, "llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN35 (Qwen3.5, Qwen3.6)"),
)

# Special tokens: the word in Hugging Face's files → the word in the GGUF key, in the order of the keys. The engine has
# no key for CLS.
SPECIAL_KEYS: Mapping[str, str] = MappingProxyType({
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask",
})  # fmt: skip
ADD_KEYS = ("bos", "eos", "sep")  # the words for which there is an add_…_token key
STAND_IN: Mapping[str, str] = MappingProxyType({"bos": "cls", "eos": "sep"})


@dataclass(frozen=True)
class TokenizerFiles:
    """The JSON of a tokenizer's files; `{}` for a file that is not there."""

    root: Path
    tokenizer: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    config: Mapping[str, Any]
    chat_template: Any


def read_tokenizer(root: Path) -> TokenizerFiles:
    """Read the small files of a folder. Raises VocabError: no tokenizer.json, or a kind that is not byte-level BPE."""
    if not (root / "tokenizer.json").is_file():
        there = ", ".join(n for n in (*NEEDED, *UNREAD) if (root / n).is_file())
        raise VocabError(
            f"{root}: there is no tokenizer.json (a draft has no vocabulary of its own; it is the target's)",
            hint=f"a target folder needs {', '.join(NEEDED)} (a few MB, no weights); it has: {there or 'none'}",
        )
    optional = {
        n: read_json(root / n) if (root / n).is_file() else {} for n in ("tokenizer_config.json", "config.json")
    }
    files = TokenizerFiles(
        root,
        read_json(root / "tokenizer.json"),
        optional["tokenizer_config.json"],
        optional["config.json"],
        _chat_template(root, optional["tokenizer_config.json"]),
    )
    _check_kind(files)
    return files


def vocab_rows(files: TokenizerFiles, vocab_size: int, pre: str | None = None) -> tuple[KV, ...]:
    """The `tokenizer.*` keys for an embedding table of `vocab_size` rows. `pre` overrides the pre-tokenizer's name."""
    where = "tokenizer.json"
    tokens, types = _tokens(files, vocab_size)
    rows = [
        KV("tokenizer.ggml.model", V.STRING, "gpt2", source=where),
        KV("tokenizer.ggml.pre", V.STRING, pre or pre_tokenizer(files), source="--pre" if pre else where),
        KV("tokenizer.ggml.tokens", V.ARRAY, tokens, V.STRING, where),
        KV("tokenizer.ggml.token_type", V.ARRAY, types, V.INT32, where),
        KV("tokenizer.ggml.merges", V.ARRAY, _merges(files), V.STRING, where),
    ]
    rows += [
        KV(f"tokenizer.ggml.{SPECIAL_KEYS[word]}_token_id", V.UINT32, number, source=source)
        for word, (number, source) in _checked(special_ids(files), vocab_size).items()
    ]
    rows += [
        KV(f"tokenizer.ggml.add_{word}_token", V.BOOL, flag, source="tokenizer_config.json")
        for word, flag in _add_flags(files).items()
    ]
    return (*rows, *_template_rows(files.chat_template))


def pre_tokenizer(files: TokenizerFiles) -> str:
    """llama.cpp's name for the pre-tokenizer. Raises VocabError for an unknown pattern; there is no default."""
    found = " | ".join(_patterns(files.tokenizer.get("pre_tokenizer") or {}))
    for row in PRE_TOKENIZERS:
        if row.pattern == found:
            return row.name
    near = max(PRE_TOKENIZERS, key=lambda r: difflib.SequenceMatcher(None, r.pattern, found).ratio())
    raise VocabError(
        f"{files.root / 'tokenizer.json'}: the pre-tokenizer is not known: {found or 'it has no pattern'}",
        hint=f"the nearest known one is {near.name} ({near.pattern}); if llama.cpp has a name for it, pass --pre NAME",
    )


def special_ids(files: TokenizerFiles) -> dict[str, tuple[int, str]]:
    """Special token word → (id, file): tokenizer_config.json first, then what config.json adds."""
    by_content = {t["content"]: t["id"] for t in _added(files)}
    contents = {word: _special_token(files, word) for word in SPECIAL_KEYS}
    found = {w: (by_content[c], "tokenizer_config.json") for w, c in contents.items() if c in by_content}
    inner = files.config.get("text_config") or {}
    for word in SPECIAL_KEYS:
        number = files.config.get(f"{word}_token_id")
        number = inner.get(f"{word}_token_id") if number is None else number
        if isinstance(number, int) and word not in found:
            found[word] = number, "config.json"
    return found


def _special_token(files: TokenizerFiles, word: str) -> str:
    """The text of a special token in tokenizer_config.json, ""; BERT's names stand in for BOS and EOS."""
    entry = files.tokenizer_config.get(f"{word}_token") or files.tokenizer_config.get(f"{STAND_IN.get(word)}_token")
    content = entry.get("content") if isinstance(entry, Mapping) else entry
    return content if isinstance(content, str) else ""


def tokens_named_mask(files: TokenizerFiles) -> dict[str, int]:
    """Tokens that look like a mask token, for a suggestion (never applied by itself)."""
    return {t["content"]: t["id"] for t in _added(files) if "mask" in t["content"].lower()}


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_kind(files: TokenizerFiles) -> None:
    model = files.tokenizer.get("model") or {}
    decoder = (files.tokenizer.get("decoder") or {}).get("type")
    if not model.get("vocab"):
        raise VocabError(f"{files.root / 'tokenizer.json'}: there is no vocabulary in it", hint="download it again")
    if model.get("type") != "BPE" or model.get("byte_fallback") or decoder != "ByteLevel":
        raise VocabError(
            f"{files.root / 'tokenizer.json'}: a {model.get('type')} tokenizer with decoder {decoder} is not supported",
            hint="byte-level BPE (Qwen, Llama 3 and their like) is",
        )


def _checked(ids: Mapping[str, tuple[int, str]], vocab_size: int) -> Mapping[str, tuple[int, str]]:
    for word, (number, source) in ids.items():
        if not 0 <= number < vocab_size:
            raise VocabError(
                f"{source}: {word}_token_id is {number}, outside the vocabulary of {vocab_size}",
                hint=f"correct it in a copy of {source}, or set it to null",
            )
    return ids


def _added(files: TokenizerFiles) -> list[Mapping[str, Any]]:
    """Added tokens: those of tokenizer.json, then those that only tokenizer_config.json has."""
    known = list(files.tokenizer.get("added_tokens") or [])
    contents = {t["content"] for t in known}
    extra = files.tokenizer_config.get("added_tokens_decoder") or {}
    return known + [{"id": int(i), **t} for i, t in extra.items() if t.get("content") not in contents]


def _tokens(files: TokenizerFiles, vocab_size: int) -> tuple[list[str], list[int]]:
    """Tokens and their types by id, padded with `[PAD i]` up to the rows of the embedding table."""
    vocab: Mapping[str, int] = files.tokenizer["model"]["vocab"]
    added = {t["id"]: _added_token(t) for t in _added(files)}
    _check_highest(vocab, added, vocab_size)
    tokens, types = [""] * vocab_size, [UNUSED] * vocab_size
    for token, i in vocab.items():  # 150,000 of them: filled in place, no object for each
        tokens[i] = token
        types[i] = NORMAL
    for i, (token, kind) in added.items():
        tokens[i], types[i] = token, kind
    for i in (i for i, kind in enumerate(types) if kind == UNUSED):
        tokens[i] = f"[PAD{i}]"
    return tokens, types


def _check_highest(vocab: Mapping[str, int], added: Mapping[int, tuple[str, int]], vocab_size: int) -> None:
    highest = max(max(vocab.values(), default=-1), max(added, default=-1))
    if highest >= vocab_size:
        token = added[highest][0] if highest in added else next(t for t, i in vocab.items() if i == highest)
        raise VocabError(
            f"the tokenizer has ids up to {highest} ({token!r}), the embedding table {vocab_size} rows",
            hint="draft and target do not belong together, or vocab_size in config.json is wrong",
        )


def _added_token(entry: Mapping[str, Any]) -> tuple[str, int]:
    content = str(entry["content"])
    if entry.get("special") or _looks_special(content):
        return content, CONTROL
    return content.replace("▁", " "), USER_DEFINED


def _looks_special(content: str) -> bool:
    """Tokens that models forget to mark as special."""
    wrapped = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return content in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        content.startswith(a) and content.endswith(b) for a, b in wrapped
    )


def _merges(files: TokenizerFiles) -> list[str]:
    """Merges in the old spelling, "a b"; a space inside a part is written as Ġ."""
    merges: Sequence[Any] = files.tokenizer["model"].get("merges") or []
    if merges and isinstance(merges[0], str):
        return list(merges)
    joined = list(map(" ".join, merges))
    if "".join(joined).count(" ") == len(joined):  # no part has a space of its own, as in all but a few vocabularies
        return joined
    return [f"{a.replace(' ', 'Ġ')} {b.replace(' ', 'Ġ')}" for a, b in merges]


def _patterns(pre: Mapping[str, Any]) -> list[str]:
    """All regular expressions of a pre-tokenizer, in order."""
    if pre.get("type") == "Sequence":
        return [p for inner in pre.get("pretokenizers", []) for p in _patterns(inner)]
    pattern = pre.get("pattern") or {}
    return [str(v) for v in (pattern.get("Regex"), pattern.get("String")) if v]


def _add_flags(files: TokenizerFiles) -> dict[str, bool]:
    """`add_bos_token` and its kin: what the post-processor says, else tokenizer_config.json."""
    found: dict[str, bool] = {}
    post = files.tokenizer.get("post_processor") or {}
    for step in post.get("processors", [post]):
        if step.get("type") == "ByteLevel":
            found = {"bos": False, "eos": False} | found
        elif step.get("type") == "TemplateProcessing":
            found |= _template_adds(step, files)
    for word in ADD_KEYS:
        flag = files.tokenizer_config.get(f"add_{word}_token")
        if isinstance(flag, bool):
            found.setdefault(word, flag)
    return found


def _template_adds(step: Mapping[str, Any], files: TokenizerFiles) -> dict[str, bool]:
    """A template that begins with BOS or ends with EOS adds it."""
    single = step.get("single") or []
    if len(single) < 2:
        return {}
    ends = {"bos": single[0].get("SpecialToken"), "eos": single[-1].get("SpecialToken")}
    return {w: token.get("id") == _special_token(files, w) for w, token in ends.items() if token}


def _chat_template(root: Path, tokenizer_config: Mapping[str, Any]) -> Any:
    """tokenizer_config.json's template (a string or a list of named ones), else chat_template.jinja or .json."""
    if (template := tokenizer_config.get("chat_template")) is not None:
        return template
    if (root / "chat_template.jinja").is_file():
        return (root / "chat_template.jinja").read_text(encoding="utf-8")
    older = root / "chat_template.json"
    return read_json(older).get("chat_template") if older.is_file() else None


def _named_templates(templates: Any) -> dict[str, str]:
    """A list of {"name": …, "template": …}; an entry without either is none."""
    entries = [t for t in templates if isinstance(t, Mapping)] if isinstance(templates, list) else []
    return {t["name"]: t["template"] for t in entries if t.get("name") and isinstance(t.get("template"), str)}


def _template_rows(template: Any) -> list[KV]:
    if template is None:
        return []
    named = {"default": template} if isinstance(template, str) else _named_templates(template)
    others = {"".join(c if c.isascii() and c.isalnum() else "_" for c in n): n for n in named if n != "default"}
    rows = [
        KV(f"tokenizer.chat_template.{key}", V.STRING, named[n], source="chat template") for key, n in others.items()
    ]
    if others:
        rows.append(KV("tokenizer.chat_templates", V.ARRAY, list(others), V.STRING, "chat template"))
    if "default" in named:
        rows.append(KV("tokenizer.chat_template", V.STRING, named["default"], source="chat template"))
    return rows
