"""The draft's checkpoint as the verifier sees it: its config read by the published schemas, its tensors by their own
names.

In: a folder, or an opened checkpoint. Out: a `Source`. Nothing here comes from the converter: schemas and values are
those of the runtime's reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert.checkpoints.checkpoint import Checkpoint, open_checkpoint
from dflash_convert.checkpoints.mask_embedding import read_mask_embedding
from dflash_convert.errors import CheckpointError, UsageError
from dflash_convert.runtime.hf_kinds import check_kinds
from dflash_convert.runtime.reference_config import Schema, read_schema

Array = np.ndarray[Any, np.dtype[Any]]

PREFIXES = ("model.", "backbone.", "draft_model.")  # before every name of some checkpoints
BUFFERS = ("rotary_emb.inv_freq",)  # recomputed from the config by every runtime; no weights
MASK_FILE, MASK = "mask_embedding.pt", "mask_embedding"
# part of a tensor's name → what cannot be verified
UNSUPPORTED: Mapping[str, str] = {
    "aux_hidden_norms.": "Laguna drafts",
    "prefix_gru.": "Domino drafts",
    "weight_scale": "drafts whose weights are quantized",
}


@dataclass(frozen=True)
class CheckpointWeights:
    """A checkpoint as the runtime's `Weights`. names without the prefix; unused: ends of names to leave out; extra:
    arrays that lie in no safetensors file."""

    checkpoint: Checkpoint
    unused: tuple[str, ...] = ()
    extra: Mapping[str, Array] | None = None
    prefixes: tuple[str, ...] = ()

    @cached_property
    def stored(self) -> dict[str, str]:
        """Name without the prefix → name in the file."""
        names = {bare(name, self.prefixes): name for name in self.checkpoint.tensors}
        return {name: stored for name, stored in names.items() if not name.endswith(self.unused or ("\0",))}

    def names(self) -> Sequence[str]:
        return (*self.stored, *(self.extra or {}))

    def shape(self, name: str) -> tuple[int, ...]:
        if self.extra and name in self.extra:
            return tuple(self.extra[name].shape)
        return self.checkpoint.tensors[self.stored[name]].shape

    def __call__(self, name: str) -> Array:
        if self.extra and name in self.extra:
            return self.extra[name].astype(np.float32)
        return self.checkpoint.float32(self.stored[name])

    def __contains__(self, name: object) -> bool:
        return name in self.stored or name in (self.extra or {})


def bare(name: str, prefixes: tuple[str, ...] = PREFIXES) -> str:
    """A tensor's name without what some checkpoints put before all of them."""
    return next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name)


@dataclass(frozen=True)
class Source:
    """A draft's checkpoint. weights: its tensors by their bare names, the mask token's own embedding among them."""

    checkpoint: Checkpoint
    weights: CheckpointWeights
    schema: Schema

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    @property
    def root(self) -> Path:
        return self.checkpoint.root

    @property
    def n_layer(self) -> int:
        return int(self.schema.require("num_hidden_layers"))

    @property
    def hidden_size(self) -> int:
        return int(self.schema.require("hidden_size"))

    @property
    def head_dim(self) -> int:
        found = self.schema.flat.get("head_dim")
        return int(found or self.hidden_size // int(self.schema.require("num_attention_heads")))

    def check(self) -> None:
        """Raise ConfigError where a size is missing without which nothing can be derived."""
        for size in (self.n_layer, self.hidden_size, self.head_dim):
            assert size > 0

    @property
    def is_interleaved(self) -> bool:
        """Whether q and k rows lie in pairs (rope's original order) instead of halves."""
        return False in [self.schema.first(key) for key in ("rope_is_neox_style", "is_neox_style")]


def open_source(source: Path | Checkpoint) -> Source:
    """Open what `--source` names.

    Raises UsageError: no folder. ConfigError: a value of the wrong kind, or without which nothing can be derived.
    CheckpointError: no weights, damaged, or of a kind that cannot be verified.
    """
    if isinstance(source, Path) and not source.is_dir():
        raise UsageError(f"{source}: no such folder", hint="--source takes the folder of the draft's checkpoint")
    checkpoint = open_checkpoint(source) if isinstance(source, Path) else source
    check_kinds(checkpoint.config)
    _refuse_unsupported(checkpoint)
    weights = _weights(checkpoint)
    opened = Source(checkpoint, weights, read_schema(checkpoint.config, weights))
    opened.check()
    return opened


def _weights(checkpoint: Checkpoint) -> CheckpointWeights:
    unused = [*BUFFERS, *(["embed_tokens.weight"] if checkpoint.config.get("has_embed_tokens") is False else [])]
    path = checkpoint.root / MASK_FILE
    extra = {MASK: read_mask_embedding(path).values} if path.is_file() else None
    return CheckpointWeights(checkpoint, tuple(unused), extra, PREFIXES)


def _refuse_unsupported(checkpoint: Checkpoint) -> None:
    for name in checkpoint.tensors:
        for part, family in UNSUPPORTED.items():
            if part in name:
                raise CheckpointError(f"{checkpoint.root}: {family} cannot be verified (the tensor {name})")
