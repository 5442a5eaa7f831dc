"""Level 1: the file is whole, its keys say what the configs say, its tensors are all there, its tokenizer is the
target's.

In: an opened GGUF, the source checkpoint (or None) and the target (or None). Out: checks. Reads no tensor data. What
`open_gguf` refuses (bounds, offsets, overlaps, alignment, duplicate names) comes here as its message: `damaged`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import KV, GGUFFile, odd_bytes
from dflash_convert.verification.expect import (
    FOREIGN,
    KEYS,
    UNKNOWN,
    Configs,
    Key,
    check_agreement,
    expected,
    has_table,
    tap_cause,
)
from dflash_convert.verification.names import IDS, Pair, leftovers, pairs
from dflash_convert.verification.report import FAIL, PASS, SKIP, STRUCTURE, Check, LevelResult, judged
from dflash_convert.verification.sources import Source
from dflash_convert.verification.targets import Target
from dflash_convert.verification.tokens import MASK, PREFIX, expected_tokenizer

FREE = ("general.", "quantize.", "split.")  # descriptive keys: any value is fine
ROPE_FREQS = "rope_freqs.weight"
NO_VOCAB = (None, "none", "no_vocab")


def damaged(error: GGUFError) -> LevelResult:
    """The level for a file that cannot even be opened."""
    return judged(STRUCTURE, [Check("file", FAIL, "the file", "damaged", "a whole GGUF", cause=error.message)])


def structure(gguf: GGUFFile, source: Source | None, target: Target | None) -> LevelResult:
    """All checks of the level.

    Raises ConfigError: two places of the source's config disagree. VocabError: no usable tokenizer files.
    """
    checks = list(_whole(gguf))
    if source is not None:
        check_agreement(source.config)
        configs = Configs(source, target)
        checks += [*_keys(gguf, configs), *_tensor_set(gguf, configs)]
    checks += [*_tap_count(gguf), *_mask(gguf), *_fits_target(gguf, target), *_tokenizer(gguf, source, target)]
    metrics = {"keys": float(len(gguf.kv)), "tensors": float(len(gguf.tensors))}
    return judged(STRUCTURE, checks, metrics)


def _whole(gguf: GGUFFile) -> Iterator[Check]:
    """Nothing in the file but its header, its tensors and padding."""
    cause = "a resumed download that appended, or two files joined: download or write it again"
    odd = list(odd_bytes(gguf))
    yield from (Check("file", FAIL, "the file", what, "zeros and nothing else", cause=cause) for what in odd)
    if not odd:
        yield Check("file", PASS, "the file", "whole")


# -- keys ----------------------------------------------------------------------------------------------------------


def _keys(gguf: GGUFFile, configs: Configs) -> Iterator[Check]:
    for key in KEYS:
        check = _key(gguf, key, configs)
        if check is not None:
            yield check
    known = {key.name for key in KEYS}
    for name, kv in gguf.kv.items():
        if name not in known and not name.startswith((*FREE, PREFIX)):
            cause = FOREIGN.get(name, "a key that no draft of this kind has")
            yield Check("key", FAIL, name, _plain(kv.value), None, "nothing in the config asks for it", cause)


def _key(gguf: GGUFFile, key: Key, configs: Configs) -> Check | None:
    """The check of one key; None where it has no business and is not there."""
    kv, wanted = gguf.kv.get(key.name), expected(key, configs)
    found = None if kv is None else _plain(kv.value)
    if wanted is UNKNOWN:
        return _unknown(key, found)
    if kv is None and wanted in (None, key.default(configs)):
        return None
    if kv is not None and _type(kv) not in key.types:
        return Check("key", FAIL, key.name, f"{_type(kv)} {found}", " or ".join(key.types), "what llama.cpp reads")
    good = kv is not None and _same(found, key.default(configs) if wanted is None else wanted)
    cause = "" if good else _cause(key, found, configs)
    return Check("key", PASS if good else FAIL, key.name, found, wanted, key.basis, cause)


ASKS_THE_TARGET = ("dflash.rope.dimension_sections", "dflash.embedding_scale")


def _unknown(key: Key, found: Any) -> Check | None:
    """A value that the given configs do not say: listed as unchecked, if the file has it."""
    if key.name in ASKS_THE_TARGET:
        return None if found is None else Check("key", SKIP, key.name, found, cause="no target was given")
    if key.name == "dflash.attention.causal":
        return Check(
            "key", SKIP, key.name, found, cause="sliding layers are causal and full ones are not: no flag fits"
        )
    return Check("key", SKIP, key.name, found, cause=f"the source's config.json has no {key.basis}")


def _cause(key: Key, found: Any, configs: Configs) -> str:
    return tap_cause(configs, found) if key.name == "dflash.target_layers" and found is not None else key.cause


def _type(kv: KV) -> str:
    return f"ARRAY of {kv.item_type.name}" if kv.item_type is not None else kv.type.name


def _same(found: Any, expected: Any) -> bool:
    """Equal as the file can store it: floats as float32 (or a rounding apart), flags as 0 and 1."""
    if isinstance(found, float) and isinstance(expected, (int, float)):
        return bool(np.float32(found) == np.float32(expected)) or math.isclose(found, expected, rel_tol=1e-6)
    return bool(found == expected)


def _plain(value: Any) -> Any:
    """A key's value for the report; a long array only by its length."""
    if isinstance(value, (str, bool, int, float, list)):
        return value
    return f"an array of {len(value)}"


# -- tensors by name, shape and type -------------------------------------------------------------------------------


def _tensor_set(gguf: GGUFFile, configs: Configs) -> Iterator[Check]:
    source = configs.source
    wanted = pairs(source)
    names = [p.gguf for p in wanted] + ([ROPE_FREQS] if has_table(configs) else [])
    basis = f"a DFlash draft of {source.n_layer} layers has {len(names)} tensors"
    missing = [name for name in names if name not in gguf.tensors]
    extra = sorted(gguf.tensors.keys() - set(names))
    made = {p.gguf: p.source for p in wanted} | {ROPE_FREQS: "the rope of config.json"}
    yield from (Check("tensor set", FAIL, n, None, "a tensor", basis, f"made from {made[n]}") for n in missing)
    yield from (Check("tensor set", FAIL, name, "a tensor", None, basis, "llama.cpp refuses it") for name in extra)
    for pair in wanted:
        yield from _pair(gguf, pair)
    for name in leftovers(source, wanted):
        yield Check("tensor set", FAIL, name, None, "a tensor", "it is in the checkpoint", "its weights were lost")
    if not missing and not extra:
        yield Check("tensor set", PASS, "the tensor set", len(names), len(names), basis)


def _pair(gguf: GGUFFile, pair: Pair) -> Iterator[Check]:
    if pair.source is None:
        yield Check("tensor set", SKIP, pair.gguf, "unproved", cause=pair.why)
        return
    info = gguf.tensors.get(pair.gguf)
    if info is None:
        return
    if pair.shape not in (None, info.shape):
        yield Check("shape", FAIL, pair.gguf, list(info.shape), list(pair.shape or ()), f"the shape of {pair.source}")
    if pair.change == IDS and info.type.name != "I64":
        yield Check("type", FAIL, pair.gguf, info.type.name, "I64", "llama.cpp reads token ids in I64 only")
    if pair.change != IDS and len(info.shape) == 1 and info.type.name != "F32":
        yield Check("type", FAIL, pair.gguf, info.type.name, "F32", "llama.cpp computes with vectors in F32 only")


# -- values that must fit each other -------------------------------------------------------------------------------


def _tap_count(gguf: GGUFFile) -> Iterator[Check]:
    layers, n_embd = gguf.get("dflash.target_layers"), gguf.get("dflash.embedding_length")
    fc = gguf.tensors.get("fc.weight")
    if isinstance(layers, list) and isinstance(n_embd, int) and fc is not None:
        count = fc.row_length // n_embd if n_embd else 0
        basis = f"fc.weight takes {fc.row_length} = {count} × {n_embd} features"
        yield _equal("taps", "the number of target_layers", len(layers), count, basis)


def _mask(gguf: GGUFFile) -> Iterator[Check]:
    """The mask token must be a row of the vocabulary: beyond it llama.cpp crashes, without one it never drafts."""
    mask, tokens = gguf.get(MASK), gguf.get("tokenizer.ggml.tokens")
    if gguf.get("tokenizer.ggml.model") in NO_VOCAB or tokens is None:
        found = gguf.get("tokenizer.ggml.model")
        yield Check(
            "tokenizer", FAIL, "tokenizer.ggml.model", found, "the target's", cause="every draft fails without one"
        )
    elif mask is None:
        yield Check("key", FAIL, MASK, None, "a token id", cause="llama.cpp makes no drafts without it, and only warns")
    elif not 0 <= mask < len(tokens):
        yield Check("key", FAIL, MASK, mask, f"below {len(tokens)}", "the size of the vocabulary", "llama.cpp crashes")


def _fits_target(gguf: GGUFFile, target: Target | None) -> Iterator[Check]:
    if target is None:
        return
    layers, name = gguf.get("dflash.target_layers"), target.path.name
    if isinstance(layers, list) and target.n_layer is not None:
        outside = [i for i in layers if not 0 <= i <= target.n_layer]
        if outside:
            basis = f"{name} has {target.n_layer} layers"
            yield Check(
                "target", FAIL, "dflash.target_layers", layers, f"0 to {target.n_layer}", basis, "wrong target?"
            )
    for what, found, wanted in (
        ("dflash.embedding_length", gguf.get("dflash.embedding_length"), target.n_embd),
        ("the vocabulary", len(gguf.get("tokenizer.ggml.tokens", ())), target.n_vocab),
    ):
        if wanted is not None:
            yield _equal("target", what, found, wanted, f"as in {name}")


def _equal(kind: str, subject: str, found: Any, expected: Any, basis: str) -> Check:
    return Check(kind, PASS if found == expected else FAIL, subject, found, expected, basis)


# -- the tokenizer -------------------------------------------------------------------------------------------------


def _tokenizer(gguf: GGUFFile, source: Source | None, target: Target | None) -> Iterator[Check]:
    if target is None:
        yield Check("tokenizer", SKIP, "the tokenizer", gguf.get("tokenizer.ggml.model"), cause="no target was given")
        return
    n_vocab = int((source.schema.first("vocab_size") if source else None) or target.n_vocab or 0)
    expected = expected_tokenizer(target, n_vocab)
    if expected is None:
        why = "the target's tokenizer.json is not a byte-level BPE"
        yield Check("tokenizer", SKIP, "the tokenizer", gguf.get("tokenizer.ggml.model"), cause=why)
        return
    for key, value in expected.items():
        yield _token_key(key, gguf.get(key), value, target)
    for key in gguf.kv:
        if key.startswith(PREFIX) and key != MASK and key not in expected:
            yield Check("tokenizer", FAIL, key, _plain(gguf.get(key)), None, f"{target.path.name} has no such value")


def _token_key(key: str, found: Any, expected: Any, target: Target) -> Check:
    basis = f"the tokenizer of {target.path.name}"
    if expected is None:
        return Check("tokenizer", SKIP, key, found, cause="the split pattern in tokenizer.json is not a known one")
    if isinstance(expected, str) or not isinstance(expected, Sequence) or found is None:
        shown = expected if isinstance(expected, (str, int, float)) else f"an array of {len(expected)}"
        return Check("tokenizer", PASS if found == expected else FAIL, key, found, shown, basis)
    return _array(key, list(found), list(expected), basis)


def _array(key: str, found: list[Any], expected: list[Any], basis: str) -> Check:
    """Two long arrays: the first difference and how many there are, or their length."""
    if len(found) != len(expected):
        return Check("tokenizer", FAIL, key, f"an array of {len(found)}", f"an array of {len(expected)}", basis)
    differ = [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b]
    if not differ:
        return Check("tokenizer", PASS, key, f"an array of {len(found)}", f"an array of {len(expected)}", basis)
    i = differ[0]
    cause = f"{len(differ)} of {len(found)} entries differ"
    return Check("tokenizer", FAIL, key, repr(found[i]), repr(expected[i]), basis, cause, where=f"entry {i}")
