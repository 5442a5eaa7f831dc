"""The keys of a GGUF by their meaning, whatever its dialect calls them.

A value of another kind than its key has (a text where a number belongs) is no value here; `odd` names it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from dflash_convert.dialects.dialect import ALL, ALL_BUT_LAST, Dialect, TapKey
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.inspection.values import FULL, SLIDING, Layers, Mask, Rope, Taps, Vocabulary

TOKENS = "tokenizer.ggml.tokens"
SIZES = (
    ("n_embd", "embedding_length"), ("n_ff", "feed_forward_length"), ("n_head", "attention.head_count"),
    ("n_head_kv", "attention.head_count_kv"), ("context", "context_length"),
)  # fmt: skip
PROVENANCE = (
    "general.type", "general.name", "general.size_label", "general.license", "general.quantized_by", "general.author",
    "general.organization", "general.repo_url", "general.url", "quantize.imatrix.file",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """An opened GGUF and its dialect (None: no draft)."""

    gguf: GGUFFile
    dialect: Dialect | None

    @property
    def names(self) -> Collection[str]:
        """Of keys and tensors."""
        return {*self.gguf.kv, *self.gguf.tensors}

    def full(self, pattern: str) -> str:
        """A key's whole name, `{a}` being the architecture."""
        return pattern.replace("{a}", self.gguf.architecture)

    def name(self, standard: str) -> str:
        """The key for what mainline keeps under `{a}.standard`: the dialect's own, if only that is there."""
        usual = self.full("{a}." + standard)
        own = dict(self.dialect.names).get(standard) if self.dialect else None
        return self.full("{a}." + own) if own and usual not in self.gguf.kv else usual

    def value(self, standard: str) -> Any:
        return self.gguf.get(self.name(standard))

    def first(self, keys: Sequence[str]) -> tuple[str, int] | None:
        """The first of `keys` that holds a whole number, and the number."""
        found = ((key, whole(self.gguf.get(key))) for key in map(self.full, keys))
        return next(((key, value) for key, value in found if value is not None), None)


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def real(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def wholes(value: Any) -> tuple[int, ...] | None:
    """A short array of whole numbers."""
    if not isinstance(value, (list, tuple)) or not all(whole(v) is not None for v in value):
        return None
    return tuple(value)


def all_taps(facts: Facts) -> list[Taps]:
    """The taps of every key that holds some, the one that counts first."""
    rows = facts.dialect.taps if facts.dialect else ()
    found = ((row, wholes(facts.gguf.get(facts.full(row.key)))) for row in rows)
    return [_taps(facts.full(row.key), row, ids) for row, ids in found if ids]


def _taps(key: str, row: TapKey, ids: tuple[int, ...]) -> Taps:
    mainline = tuple(i + row.shift for i in ids)
    return Taps(key, ids, checkpoint=tuple(i - 1 for i in mainline), mainline=mainline)


def block_size(facts: Facts) -> int | None:
    found = facts.first(facts.dialect.block_size) if facts.dialect else None
    return found[1] if found else None


def mask(facts: Facts) -> Mask | None:
    found = facts.first(facts.dialect.mask) if facts.dialect else None
    if found is None:
        return None
    tokens = facts.gguf.get(TOKENS, ())
    there = not isinstance(tokens, str) and isinstance(tokens, Sequence) and 0 <= found[1] < len(tokens)
    return Mask(*found, text(tokens[found[1]]) if there else None)


def layers(facts: Facts) -> Layers:
    """Which layers slide: by the pattern; without a window none does; else by the dialect's rule, if it has one."""
    count = whole(facts.value("block_count"))
    found = facts.first(facts.dialect.window if facts.dialect else ("{a}.attention.sliding_window",))
    window = (found[1] if found else None) or None
    if facts.dialect is None:
        return Layers(count, (), window)
    pattern = facts.value("attention.sliding_window_pattern")
    if window and isinstance(pattern, Sequence) and not isinstance(pattern, str):
        return Layers(count, tuple(SLIDING if flag else FULL for flag in pattern), window)
    return Layers(count, _ruled(count or 0, bool(window), facts.dialect.slides), window)


def _ruled(count: int, window: bool, rule: str) -> tuple[str, ...]:
    if count > 1024:
        return ()
    if not window:
        return (FULL,) * count
    return {ALL: (SLIDING,) * count, ALL_BUT_LAST: (SLIDING,) * (count - 1) + (FULL,) * (count > 0)}.get(rule, ())


def rope(facts: Facts) -> Rope:
    head, n_embd = whole(facts.value("attention.key_length")), whole(facts.value("embedding_length"))
    n_head = whole(facts.value("attention.head_count"))
    size = head or (n_embd // n_head if n_embd and n_head else None)
    return Rope(
        base=real(facts.value("rope.freq_base")),
        scaling=text(facts.value("rope.scaling.type")),
        factor=real(facts.value("rope.scaling.factor")),
        original_context=whole(facts.value("rope.scaling.original_context_length")),
        rotated=whole(facts.value("rope.dimension_count")) or size,
        head_size=size,
        sections=wholes(facts.value("rope.dimension_sections")),
    )


def vocabulary(facts: Facts) -> Vocabulary:
    tokens, get = facts.gguf.get(TOKENS), facts.gguf.get
    size = (
        len(tokens)
        if isinstance(tokens, Sequence) and not isinstance(tokens, str)
        else whole(facts.value("vocab_size"))
    )
    return Vocabulary(text(get("tokenizer.ggml.model")), text(get("tokenizer.ggml.pre")), size)


def sizes(facts: Facts) -> dict[str, int]:
    found = {word: whole(facts.value(key)) for word, key in SIZES}
    return {word: n for word, n in found.items() if n is not None}


def provenance(facts: Facts) -> dict[str, str]:
    """What the file says of where it comes from."""
    keys = [k for k in facts.gguf.kv if k in PROVENANCE or k.startswith(("general.source.", "general.base_model."))]
    return {key: str(value) for key in keys if isinstance(value := facts.gguf.get(key), (str, int, float))}
