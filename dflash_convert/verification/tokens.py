"""The tokenizer a draft must carry: the target's, derived again from tokenizer.json or read from the target's GGUF.

In: a target. Out: the expected `tokenizer.ggml.*` values by key. Byte-level BPE only, which is what every published
DFlash target of the Qwen and Llama lines uses; for another kind `expected_tokenizer` gives None and the level says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_convert.checkpoints.tokenizer_files import TokenizerFiles, checked, open_tokenizer, other_kind
from dflash_convert.errors import VocabError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.json_file import Node
from dflash_convert.verification.targets import Target

PREFIX = "tokenizer."
MASK = "tokenizer.ggml.mask_token_id"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # llama.cpp's token types

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# pre-tokenizer name of llama.cpp → the split pattern of tokenizer.json that it stands for
PATTERNS: Mapping[str, str] = {
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+{_END}",
    "qwen35": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+{_END}",
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+{_END}",
}
SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
MARKED_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")  # control tokens that some files do not mark as special


def expected_tokenizer(target: Target, n_vocab: int) -> dict[str, Any] | None:
    """The `tokenizer.*` keys of a draft for `target`, mask token apart; None if its kind is not byte-level BPE.

    n_vocab: rows of the vocabulary; ids without a token become `[PAD i]`. A value of None means "not known".
    Raises VocabError: tokenizer.json missing or damaged.
    """
    if target.gguf is not None:
        return {k: kv.value for k, kv in target.gguf.kv.items() if k.startswith(PREFIX) and k != MASK}
    nodes = open_tokenizer(target.path)
    if other_kind(nodes[0]) or not _is_byte_level(nodes[0]):
        return None
    files = checked(target.path, *nodes)
    tokens, types = _vocabulary(files, n_vocab)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre(files.tokenizer),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": _merges(files),
        **_special_ids(files),
        **_added_tokens(files),
        **_chat_template(files),
    }


def _vocabulary(files: TokenizerFiles, n_vocab: int) -> tuple[list[str], list[int]]:
    """(tokens, types), one entry an id."""
    by_id = {i: (token, NORMAL) for token, i in files.vocab.items()}
    for entry in files.added:
        control = entry.special or _looks_special(entry.content)
        text = entry.content if control else entry.content.replace("\u2581", " ")
        by_id[entry.id] = (text, CONTROL if control else USER_DEFINED)
    rows = [by_id.get(i, (f"[PAD{i}]", UNUSED)) for i in range(n_vocab)]
    return [token for token, _ in rows], [kind for _, kind in rows]


def _looks_special(token: str) -> bool:
    framed = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return token in MARKED_SPECIAL or any(token.startswith(a) and token.endswith(b) for a, b in framed)


def _merges(files: TokenizerFiles) -> list[str]:
    """ "a b" strings; in the pair form a space within a part is written as Ġ."""
    return [m if isinstance(m, str) else " ".join(part.replace(" ", "Ġ") for part in m) for m in files.merges]


def _steps(node: Node, parts: str) -> Sequence[Node]:
    """The steps of a pre-tokenizer or post-processor, a Sequence taken apart."""
    return list(node.get(parts).entries()) or ([node] if node.value is not None else [])


def _is_byte_level(tokenizer: Node) -> bool:
    steps = _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    return any(step.get("type").text() == "ByteLevel" for step in steps)


def _pre(tokenizer: Node) -> str | None:
    """llama.cpp's name of the pre-tokenizer, None for a pattern not in the table."""
    steps = _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    patterns = [step.get("pattern").get("Regex").text() for step in steps if step.get("type").text() == "Split"]
    found = next((name for name, pattern in PATTERNS.items() if patterns == [pattern]), None)
    if found == "llama-bpe" and not tokenizer.get("model").get("ignore_merges").flag():
        return None  # glm4 cuts the same way, but merges whole words too
    return found


def _special_ids(files: TokenizerFiles) -> dict[str, int]:
    """Ids of the special tokens: by name from tokenizer_config.json first, else by id from config.json."""
    added = {entry.content: entry.id for entry in files.added}
    found = {}
    for kind, name in SPECIAL.items():
        key = f"{kind}_token_id"
        numbers = (
            added.get(_text_of(files.settings.get(f"{kind}_token"))),
            files.config.get(key).value,
            files.config.get("text_config").get(key).value,
        )
        ids = [i for i in numbers if isinstance(i, int)]
        if ids and kind != "mask":
            found[f"tokenizer.ggml.{name}_token_id"] = ids[0]
    return found


def _text_of(token: Node) -> str:
    return (token.get("content") if isinstance(token.value, dict) else token).text()


def _added_tokens(files: TokenizerFiles) -> dict[str, bool]:
    """Whether BOS and EOS are put around a prompt: the post-processor says so, else tokenizer_config.json."""
    said: dict[str, bool] = {}
    for step in _steps(files.tokenizer.get("post_processor"), "processors"):
        if step.get("type").text() == "ByteLevel":
            said = {"bos": False, "eos": False} | said
        if step.get("type").text() == "TemplateProcessing":
            said |= _template_ends(list(step.get("single").entries()), files.settings)
    for kind in SPECIAL:
        flag = files.settings.get(f"add_{kind}_token")
        if flag.value is not None:
            said.setdefault(kind, flag.flag())
    return {f"tokenizer.ggml.add_{kind}_token": flag for kind, flag in said.items()}


def _template_ends(single: Sequence[Node], settings: Node) -> dict[str, bool]:
    """What a post-processing template puts first and last."""
    ends = (("bos", single[0]), ("eos", single[-1])) if len(single) > 1 else ()
    tokens = {kind: end.get("SpecialToken").get("id").text() for kind, end in ends}
    return {kind: True for kind, token in tokens.items() if token and token == _text_of(settings.get(f"{kind}_token"))}


def _chat_template(files: TokenizerFiles) -> dict[str, str]:
    return {"tokenizer.chat_template": files.chat_template} if isinstance(files.chat_template, str) else {}


def encoder_of(target: Target) -> Any:
    """A `tokenizers.Tokenizer` of the target: from tokenizer.json, or built from a GGUF's tokens and merges.

    Raises VocabError: a GGUF whose tokenizer is not a byte-level BPE of the table.
    """
    from tokenizers import Tokenizer  # costs 100 ms, and only the acceptance level encodes text

    if target.gguf is None:
        return Tokenizer.from_file(str(target.path / "tokenizer.json"))
    return _encoder_of_gguf(target.gguf)


def _encoder_of_gguf(gguf: GGUFFile) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    pattern = PATTERNS.get(gguf.get("tokenizer.ggml.pre", ""))
    if gguf.get("tokenizer.ggml.model") != "gpt2" or pattern is None:
        raise VocabError(
            f"{gguf.path.name}: text cannot be encoded: tokenizer.ggml.model is {gguf.get('tokenizer.ggml.model')}, "
            f"tokenizer.ggml.pre {gguf.get('tokenizer.ggml.pre')}",
            hint="give the target as a folder with tokenizer.json",
        )
    tokens, kinds = list(gguf.get("tokenizer.ggml.tokens")), list(gguf.get("tokenizer.ggml.token_type"))
    merges = [tuple(m.split(" ", 1)) for m in gguf.get("tokenizer.ggml.merges")]
    encoder = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    encoder.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken(t, normalized=False) for t in _of_kind(tokens, kinds, CONTROL)])
    encoder.add_tokens([AddedToken(t, normalized=False) for t in _of_kind(tokens, kinds, USER_DEFINED)])
    return encoder


def _of_kind(tokens: Iterable[str], kinds: Iterable[int], kind: int) -> list[str]:
    return [token for token, k in zip(tokens, kinds, strict=True) if k == kind]
