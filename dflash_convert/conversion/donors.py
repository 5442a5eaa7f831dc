"""What a draft takes of its target: the vocabulary, and what the pair must agree on; from a folder or from a GGUF.

In: a resolved target. Out: a `Donor`. Of a folder only the small files are needed; of a GGUF only the header is read,
and its `tokenizer.*` keys are copied as they are, whatever kind of tokenizer they hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dflash_convert.checkpoints.checkpoint import SourceTensor, read_config
from dflash_convert.checkpoints.tokenizer_files import read_tokenizer
from dflash_convert.conversion.config import TargetConfig, read_target_config
from dflash_convert.conversion.rows.schema import TensorRow
from dflash_convert.conversion.target_tables import TargetTables
from dflash_convert.conversion.vocab import CONTROL, tokens_named_mask, vocab_rows
from dflash_convert.errors import CheckpointError, GGUFError, VocabError
from dflash_convert.gguf_io.reader import KV, GGUFFile, open_gguf
from dflash_convert.hub import client as hub

PREFIX, TOKENS, TYPES = "tokenizer.", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
MASK = "tokenizer.ggml.mask_token_id"
SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}
QUANT_LABEL = re.compile(r"[-.](?:UD-)?(?:I?Q\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True)
class Donor:
    """A target, as far as its draft needs it.

    facts: what the pair must agree on. vocab: rows of the embedding table → the `tokenizer.*` keys. masks: tokens that
    look like a mask token. tables: its embeddings and head, for drafts that carry them.
    """

    source: hub.Source
    facts: TargetConfig
    vocab: Callable[[int], tuple[KV, ...]]
    masks: Mapping[str, int]
    tables: TargetTables


def open_donor(source: hub.Source, pre: str | None, progress: hub.Progress) -> Donor:
    """Raises VocabError, ConfigError, GGUFError: files that are missing, damaged, or without a vocabulary."""
    return _from_gguf(source, pre) if source.is_gguf else _from_folder(source, pre, progress)


def name_of(source: hub.Source) -> str:
    """The model's name as a user knows it: the repo's last part, or the folder's or file's name."""
    if source.repo:
        return source.repo.split("/")[-1]
    path = source.root.resolve()
    return QUANT_LABEL.sub("", path.stem) if source.is_gguf else path.name


# ── a folder ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _from_folder(source: hub.Source, pre: str | None, progress: hub.Progress) -> Donor:
    files = read_tokenizer(source.root)
    facts = read_target_config(read_config(source.root), name_of(source))
    tables = TargetTables(source, facts.tie_word_embeddings, progress)
    return Donor(source, facts, partial(vocab_rows, files, pre=pre), tokens_named_mask(files), tables)


# ── a GGUF ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class NoTables(TargetTables):
    """A GGUF's tables are not taken: they may be quantized, and their names are another schema's."""

    def find(self, row: TensorRow) -> SourceTensor:
        raise CheckpointError(
            f"the draft's file has to carry the target's {row.source.removesuffix('.weight')}, and "
            f"{self.source.root.name} is a GGUF",
            hint="pass the target's Hub id, or a folder that has the shard(s) with embed_tokens and lm_head",
        )


def _from_gguf(source: hub.Source, pre: str | None) -> Donor:
    gguf = open_gguf(source.root)
    if pre is not None:
        raise VocabError("--pre is for a tokenizer.json; a GGUF says itself how its text is cut", hint="leave it out")
    if gguf.get(TOKENS) is None:
        raise VocabError(
            f"{gguf.path.name} has no vocabulary (no {TOKENS})",
            hint="pass the target's own GGUF: not an adapter, an mmproj, or a later part of a split file",
        )
    if gguf.architecture == "dflash":
        raise VocabError(f"{gguf.path.name} is a draft itself", hint="--target names the model that the draft is for")
    rows = tuple(replace(kv, source=gguf.path.name) for key, kv in gguf.kv.items() if key.startswith(PREFIX))
    tables = NoTables(source, "output.weight" not in gguf.tensors)
    return Donor(source, _facts(gguf, name_of(source)), partial(_copied, rows, gguf), _masks(gguf), tables)


def _copied(rows: tuple[KV, ...], gguf: GGUFFile, vocab_size: int) -> tuple[KV, ...]:
    n = len(gguf.get(TOKENS))
    if n != vocab_size:
        raise VocabError(
            f"{gguf.path.name} has {n} tokens, the draft's vocab_size is {vocab_size}",
            hint="is this the target the draft was trained for?",
        )
    return rows


def _facts(gguf: GGUFFile, name: str) -> TargetConfig:
    """The header's values in the words of a config. Raises GGUFError: one of the wrong kind."""
    arch = gguf.architecture

    def number(key: str) -> int | None:
        value = gguf.get(f"{arch}.{key}")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value <= 0):
            raise GGUFError(f"{gguf.path.name}: {arch}.{key} is {value!r}; a positive integer was expected")
        return value

    theta = gguf.get(f"{arch}.rope.freq_base")
    special = {word: gguf.get(f"tokenizer.ggml.{key}_token_id") for word, key in SPECIAL.items()}
    return TargetConfig(
        name=name,
        architecture=arch.capitalize(),  # "Gemma4": only the family's name is asked for
        hidden_size=number("embedding_length"),
        num_hidden_layers=_depth(number("block_count"), number("nextn_predict_layers")),
        vocab_size=len(gguf.get(TOKENS)),
        rope_theta=float(theta) if isinstance(theta, float) and theta > 0 else None,
        tie_word_embeddings="output.weight" not in gguf.tensors,
        uses_mrope=f"{arch}.rope.dimension_sections" in gguf.kv,
        special_ids={word: (i,) for word, i in special.items() if isinstance(i, int)},
    )


def _depth(layers: int | None, predicting: Any) -> int | None:
    """Layers of the target proper: block_count also counts those that predict several tokens ahead."""
    return None if layers is None else layers - (predicting or 0)


def _masks(gguf: GGUFFile) -> dict[str, int]:
    tokens, kinds = gguf.get(TOKENS), gguf.get(TYPES) or ()
    if len(tokens) != len(kinds):
        return {}
    return {
        t: i for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind == CONTROL and "mask" in t.lower()
    }
