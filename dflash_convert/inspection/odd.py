"""What is odd about a file, by the file alone: a table of checks, each a function from `Facts` to sentences.

Nothing here proves a fault, and a file without a finding may still be wrong: only `verify` compares it to its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from dflash_convert.dialects.dialect import INPUTS, REQUIRED, STANDARD
from dflash_convert.dialects.mainline import MAINLINE, NEEDED, TENSORS
from dflash_convert.dialects.spacing import evenly_spaced
from dflash_convert.gguf_io.reader import odd_bytes
from dflash_convert.inspection.facts import TOKENS, Facts, all_taps, block_size, layers, mask, vocabulary, whole
from dflash_convert.inspection.roles import family
from dflash_convert.inspection.values import Taps

FUSIONS = ("fc.weight", "dflash_fc.weight", "dflash.fc.weight", "dspark.fc.weight")
SHOWN = 5  # names in a sentence
NO_VOCAB = (None, "none", "no_vocab")


def missing_keys(facts: Facts) -> Iterator[str]:
    missing = [facts.name(key) for key in REQUIRED if facts.value(key) is None]
    if missing:
        yield f"required keys are missing: {', '.join(missing)}"
    if facts.value("rope.freq_base") is None:
        yield f"{facts.name('rope.freq_base')} is missing: llama.cpp takes 10000"


def missing_values(facts: Facts) -> Iterator[str]:
    """What was fixed in training, and the file does not say."""
    assert facts.dialect is not None
    if not all_taps(facts):
        yield f"no taps ({_or(facts, [t.key for t in facts.dialect.taps])}): which layers are tapped is not known"
    if block_size(facts) is None:
        yield f"no block size ({_or(facts, facts.dialect.block_size)}): llama.cpp takes 16"
    if mask(facts) is None:
        yield f"no mask token ({_or(facts, facts.dialect.mask)}): llama.cpp makes no drafts without one"


def tap_numbers(facts: Facts) -> Iterator[str]:
    found = all_taps(facts)
    for taps in found[:1]:
        if list(taps.stored) != sorted(set(taps.stored)):
            yield f"{taps.key} is {list(taps.stored)}: not in ascending order; fc depends on the order"
        width, n_embd = fusion_width(facts), whole(facts.value("embedding_length"))
        if width and n_embd and width != len(taps.stored) * n_embd:
            yield f"{taps.key} has {len(taps.stored)} taps of width {n_embd}, fc.weight takes {width} features"
        yield from fingerprint(facts, taps)
    for other in found[1:]:
        if other.mainline != found[0].mainline:
            yield (
                f"{found[0].key} = {list(found[0].stored)} and {other.key} = {list(other.stored)} "
                "do not mean the same layers"
            )


def fingerprint(facts: Facts, taps: Taps) -> Iterator[str]:
    """z-lab spaces the taps of DFlash evenly from layer 1: such a list tells which convention it is in.

    No published config has ids that are such a list less 1; two DSpark drafts have ids that are one plus 1.
    """
    assert facts.dialect is not None
    shifted = next(t.convention for t in facts.dialect.taps if facts.full(t.key) == taps.key) == INPUTS
    if shifted and evenly_spaced(taps.stored):
        yield (
            f"{taps.key} {list(taps.stored)} is what evenly spaced checkpoint ids look like: the + 1 of this format "
            "seems to be missing, so each tap is one layer early"
        )
    if not shifted and family(facts.gguf.tensors) == "DFlash" and evenly_spaced([i - 1 for i in taps.stored]):
        yield (
            f"{taps.key} {list(taps.stored)} is what evenly spaced checkpoint ids look like with 1 added: this format "
            "stores them as they are, so each tap seems one layer late"
        )


def fusion_width(facts: Facts) -> int | None:
    return next((facts.gguf.tensors[n].row_length for n in FUSIONS if n in facts.gguf.tensors), None)


def windows(facts: Facts) -> Iterator[str]:
    found = layers(facts)
    key = facts.name("attention.sliding_window_pattern")
    pattern = facts.gguf.get(key)
    if found.window and pattern is None:
        yield f"a window of {found.window} without {key}: which layers slide is not said, and mainline refuses it"
    elif isinstance(pattern, (bool, int)):
        yield f"{key} is {pattern}: mainline takes one flag a layer"
    elif pattern is not None and not found.window:
        yield f"{key} without a window: every layer attends fully"
    elif found.kinds and found.count is not None and len(found.kinds) != found.count:
        yield f"{key} has {len(found.kinds)} entries for {found.count} layers"


def tied_head(facts: Facts) -> Iterator[str]:
    tensors = facts.gguf.tensors
    if "token_embd.weight" in tensors and "output.weight" not in tensors:
        yield "token_embd.weight without output.weight: llama.cpp takes the embeddings for the output head"


def tokens(facts: Facts) -> Iterator[str]:
    vocab, found = vocabulary(facts), mask(facts)
    if vocab.model in NO_VOCAB or facts.gguf.get(TOKENS) is None:
        yield f"no vocabulary (tokenizer.ggml.model: {vocab.model or 'none'}): llama.cpp cannot draft without one"
    if found and vocab.size is not None and not 0 <= found.id < vocab.size:
        yield f"the mask token {found.id} lies outside the vocabulary of {vocab.size}"
    assert facts.dialect is not None
    ids = {key: whole(facts.gguf.get(key)) for key in map(facts.full, facts.dialect.mask)}
    said = {key: i for key, i in ids.items() if i is not None}
    if len(set(said.values())) > 1:
        yield f"two mask tokens: {', '.join(f'{key} = {i}' for key, i in said.items())}"


def anchor(facts: Facts) -> Iterator[str]:
    key = facts.name("sample_from_anchor")
    if family(facts.gguf.tensors) == "DSpark" and key not in facts.gguf.kv:
        yield f"a DSpark draft without {key}: llama.cpp takes true"


def unknown_keys(facts: Facts) -> Iterator[str]:
    assert facts.dialect is not None
    d, prefix = facts.dialect, facts.gguf.architecture + "."
    below = [*STANDARD, *d.extra, *(own for _, own in d.names)]
    whole_names = [*(t.key for t in d.taps), *d.block_size, *d.mask, *d.window]
    known = [*(prefix + name for name in below), *map(facts.full, whole_names)]
    unknown = [k for k in facts.gguf.kv if k.startswith(prefix) and not any(fnmatchcase(k, p) for p in known)]
    if unknown:
        yield f"unknown keys: {_some(unknown)}"


def tensor_set(facts: Facts) -> Iterator[str]:
    """Of mainline's format only: the names of the others are not all known."""
    if facts.dialect != MAINLINE:
        return
    there = facts.gguf.tensors
    if missing := [name for name in NEEDED if name not in there]:
        yield f"tensors are missing: {_some(missing)}"
    if extra := [name for name in there if not any(fnmatchcase(name, p) for p in TENSORS)]:
        yield f"tensors that mainline's graph does not have: {_some(extra)}; it refuses the file"


def vectors(facts: Facts) -> Iterator[str]:
    found = [t.name for t in facts.gguf.tensors.values() if len(t.shape) == 1 and t.type.name in ("F16", "BF16")]
    if found:
        yield f"vectors that are not F32: {_some(found)}; llama.cpp computes with vectors in F32 only"


DRAFT_CHECKS: tuple[Callable[[Facts], Iterator[str]], ...] = (
    missing_keys, missing_values, tap_numbers, windows, tied_head, tokens, anchor, unknown_keys, tensor_set, vectors,
)  # fmt: skip


def odd(facts: Facts) -> tuple[str, ...]:
    """Every finding, in the order of the table; of what is no draft only whether the file is whole."""
    checks = DRAFT_CHECKS if facts.dialect else ()
    return (*(text for check in checks for text in check(facts)), *odd_bytes(facts.gguf))


def _or(facts: Facts, keys: Sequence[str]) -> str:
    return " or ".join(map(facts.full, keys))


def _some(names: Sequence[Any]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
