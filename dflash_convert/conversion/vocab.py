"""A target's tokenizer files → the `tokenizer.*` keys of a GGUF.

In: a folder with tokenizer.json (and, where present, tokenizer_config.json, config.json, chat_template.*). Out: the
rows, in the order in which llama.cpp's converter writes them. Nothing of the files is executed and transformers is not
needed: byte-level BPE is read straight from the JSON.

Source of the rules: llama.cpp conversion/base.py (`_set_vocab_gpt2`) and gguf-py/gguf/vocab.py (`SpecialVocab`).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

from gguf.constants import GGUFValueType as V

from dflash_convert.checkpoints.tokenizer_files import AddedToken, TokenizerFiles
from dflash_convert.errors import VocabError
from dflash_convert.gguf_io.reader import KV
from dflash_convert.json_file import Node

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5


@dataclass(frozen=True)
class PreTokenizer:
    """llama.cpp's name for the way text is cut before BPE, by the regular expressions of tokenizer.json.

    ignore_merges: what the model must say of whole words besides, None for either: it tells names of one pattern apart.
    """

    name: str
    pattern: str
    source: str
    ignore_merges: bool | None = None


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}| ", r"|\p{N}{1,3}| ")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (  # three steps; the control characters stand as themselves
    "\\p{N}{1,3} | [一-龥\u3040-ゟ゠-ヿ]+ | [!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
    "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer("qwen2", QWEN2, "llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN2 (Qwen2, Qwen2.5, Qwen3)"),
    PreTokenizer("qwen35", QWEN35, "llama.cpp src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_QWEN35 (Qwen3.5, Qwen3.6)"),
    PreTokenizer(
        "llama-bpe", LLAMA3, "Llama 3.1's tokenizer.json; LLAMA_VOCAB_PRE_TYPE_LLAMA3 (glm4 has the same pattern)", True
    ),
    PreTokenizer("gpt-4o", GPT4O, "gpt-oss's tokenizer.json; LLAMA_VOCAB_PRE_TYPE_GPT4O"),
    PreTokenizer("deepseek-v3", DEEPSEEK3, "DeepSeek-V3's tokenizer.json; LLAMA_VOCAB_PRE_TYPE_DEEPSEEK3_LLM"),
)

# Special tokens: the word in Hugging Face's files → the word in the GGUF key, in the order of the keys. The engine has
# no key for CLS.
SPECIAL_KEYS: Mapping[str, str] = MappingProxyType({
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask",
})  # fmt: skip
ADD_KEYS = ("bos", "eos", "sep")  # the words for which there is an add_…_token key
STAND_IN: Mapping[str, str] = MappingProxyType({"bos": "cls", "eos": "sep"})


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
    found = " | ".join(_patterns(files.tokenizer.get("pre_tokenizer")))
    whole_words = files.tokenizer.get("model").get("ignore_merges").flag()
    for row in PRE_TOKENIZERS:
        if row.pattern == found and row.ignore_merges in (None, whole_words):
            return row.name
    near = max(PRE_TOKENIZERS, key=lambda r: difflib.SequenceMatcher(None, r.pattern, found).ratio())
    raise VocabError(
        f"{files.path}: the pre-tokenizer is not known: {found or 'it has no pattern'}",
        hint=f"the nearest known one is {near.name} ({near.pattern}); if llama.cpp has a name for it, pass --pre NAME",
    )


def special_ids(files: TokenizerFiles) -> dict[str, tuple[int, str]]:
    """Special token word → (id, file): tokenizer_config.json first, then what config.json adds."""
    by_content = {t.content: t.id for t in files.added}
    contents = {word: _special_token(files, word) for word in SPECIAL_KEYS}
    found = {w: (by_content[c], "tokenizer_config.json") for w, c in contents.items() if c in by_content}
    for word in SPECIAL_KEYS:
        number = _configured_id(files.config, word)
        if number is not None and word not in found:
            found[word] = number, "config.json"
    return found


def _configured_id(config: Node, word: str) -> int | None:
    """`<word>_token_id` of config.json; a list of several says nothing."""
    places = (config.get(f"{word}_token_id"), config.get("text_config").get(f"{word}_token_id"))
    for place in places:
        if not isinstance(place.value, (list, type(None))):
            if type(place.value) is not int:
                raise place.wrong("a token id")
            return place.value
    return None


def _special_token(files: TokenizerFiles, word: str) -> str:
    """The text of a special token in tokenizer_config.json, ""; BERT's names stand in for BOS and EOS."""
    entry = files.settings.get(f"{word}_token")
    if not entry.value and word in STAND_IN:
        entry = files.settings.get(f"{STAND_IN[word]}_token")
    return (entry.get("content") if isinstance(entry.value, Mapping) else entry).text()


def tokens_named_mask(files: TokenizerFiles) -> dict[str, int]:
    """Tokens that look like a mask token, for a suggestion (never applied by itself)."""
    return {t.content: t.id for t in files.added if "mask" in t.content.lower()}


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _checked(ids: Mapping[str, tuple[int, str]], vocab_size: int) -> Mapping[str, tuple[int, str]]:
    for word, (number, source) in ids.items():
        if not 0 <= number < vocab_size:
            raise VocabError(
                f"{source}: {word}_token_id is {number}, outside the vocabulary of {vocab_size}",
                hint=f"correct it in a copy of {source}, or set it to null",
            )
    return ids


def _tokens(files: TokenizerFiles, vocab_size: int) -> tuple[list[str], list[int]]:
    """Tokens and their types by id, padded with `[PAD i]` up to the rows of the embedding table."""
    _check_highest(files, vocab_size)
    tokens, types = [""] * vocab_size, [UNUSED] * vocab_size
    for token, i in files.vocab.items():  # 150,000 of them: filled in place, no object for each
        tokens[i] = token
        types[i] = NORMAL
    for added in files.added:
        tokens[added.id], types[added.id] = _added_token(added)
    for i in (i for i, kind in enumerate(types) if kind == UNUSED):
        tokens[i] = f"[PAD{i}]"
    return tokens, types


def _check_highest(files: TokenizerFiles, vocab_size: int) -> None:
    highest = max(max(files.vocab.values()), max((t.id for t in files.added), default=-1))
    if highest >= vocab_size:
        texts = chain(((t.content, t.id) for t in files.added), files.vocab.items())
        token = next(text for text, i in texts if i == highest)
        raise VocabError(
            f"the tokenizer has ids up to {highest} ({token!r}), the embedding table {vocab_size} rows",
            hint="draft and target do not belong together, or vocab_size in config.json is wrong",
        )


def _added_token(token: AddedToken) -> tuple[str, int]:
    if token.special or _looks_special(token.content):
        return token.content, CONTROL
    return token.content.replace("▁", " "), USER_DEFINED


def _looks_special(content: str) -> bool:
    """Tokens that models forget to mark as special."""
    wrapped = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return content in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or any(
        content.startswith(a) and content.endswith(b) for a, b in wrapped
    )


def _merges(files: TokenizerFiles) -> list[str]:
    """Merges in the old spelling, "a b"; a space inside a part is written as Ġ."""
    merges = files.merges
    if merges and isinstance(merges[0], str):
        return list(merges)
    joined = list(map(" ".join, merges))
    if "".join(joined).count(" ") == len(joined):  # no part has a space of its own, as in all but a few vocabularies
        return joined
    return [f"{a.replace(' ', 'Ġ')} {b.replace(' ', 'Ġ')}" for a, b in merges]


def _patterns(pre: Node) -> list[str]:
    """All regular expressions of a pre-tokenizer, in order."""
    found, waiting = [], [pre]
    while waiting:  # no recursion: a damaged file may nest as deep as it likes
        step = waiting.pop()
        if step.get("type").text() == "Sequence":
            waiting += reversed(list(step.get("pretokenizers").entries()))
        else:
            pattern = step.get("pattern")
            found += [text for kind in ("Regex", "String") if (text := pattern.get(kind).text())]
    return found


def _add_flags(files: TokenizerFiles) -> dict[str, bool]:
    """`add_bos_token` and its kin: what the post-processor says, else tokenizer_config.json."""
    found: dict[str, bool] = {}
    post = files.tokenizer.get("post_processor")
    steps = list(post.get("processors").entries()) if "processors" in post.object() else [post]
    for step in steps:
        if step.get("type").text() == "ByteLevel":
            found = {"bos": False, "eos": False} | found
        elif step.get("type").text() == "TemplateProcessing":
            found |= _template_adds(step, files)
    for word in ADD_KEYS:
        flag = files.settings.get(f"add_{word}_token")
        if flag.value is not None:
            found.setdefault(word, flag.flag())
    return found


def _template_adds(step: Node, files: TokenizerFiles) -> dict[str, bool]:
    """A template that begins with BOS or ends with EOS adds it."""
    single = list(step.get("single").entries())
    if len(single) < 2:
        return {}
    ends = {"bos": single[0].get("SpecialToken"), "eos": single[-1].get("SpecialToken")}
    return {w: token.get("id").text() == _special_token(files, w) for w, token in ends.items() if token.object()}


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
