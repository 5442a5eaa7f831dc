"""The file's own weights under the checkpoint's names: what the reference is run on to compare graphs alone.

In: an opened GGUF and the source it claims to be of. Out: `Weights` with the checkpoint's names and shapes and the
file's dequantized numbers, every change of a pair (names.py) undone. What the file has no place for (inverse tables,
biases of zeros) stays the checkpoint's. Shared are the numbers; the names that the reference looks up are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.weights import GGUFWeights
from dflash_convert.verification.names import IDS, MARKOV_ZEROS, ROTARY, Pair, neox_order, pairs
from dflash_convert.verification.sources import MASK, Source

Array = np.ndarray[Any, np.dtype[Any]]
BORROWED = MappingProxyType({"token_embd.weight": "embed_tokens.weight", "output.weight": "lm_head.weight"})


@dataclass(frozen=True)
class FileWeights:
    """The weights of `gguf` as a checkpoint of `source` would hold them."""

    gguf: GGUFFile
    source: Source

    @cached_property
    def _pairs(self) -> Mapping[str, Pair]:
        """Checkpoint name → pair, for every tensor that the file has."""
        named = [(p.source or BORROWED.get(p.gguf), p) for p in pairs(self.source)]
        return {name: p for name, p in named if name is not None and p.gguf in self.gguf.tensors}

    def names(self) -> Sequence[str]:
        return tuple(dict.fromkeys((*self.source.weights.names(), *self._pairs)))

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self.source.weights:
            return self.source.weights.shape(name)
        return self.gguf.tensors[self._pairs[name].gguf].shape

    def __contains__(self, name: object) -> bool:
        return name in self._pairs or name in self.source.weights

    def __call__(self, name: str) -> Array:
        """Raises GGUFError: the file's tensor is of another shape."""
        if name == MASK:
            return self._mask_row()
        pair = self._pairs.get(name)
        if pair is None:
            return self.source.weights(name)
        values = UNDO[pair.change](GGUFWeights(self.gguf)(pair.gguf), self.shape(name), self.source.head_dim)
        if values.shape != self.shape(name):
            raise GGUFError(f"{pair.gguf} is of shape {list(values.shape)}, {name} of {list(self.shape(name))}")
        return values

    def _mask_row(self) -> Array:
        """The mask token's own embedding lies in the file's table."""
        table, mask = self._pairs.get("embed_tokens.weight"), self.gguf.get("tokenizer.ggml.mask_token_id")
        if table is None or not isinstance(mask, int):
            return self.source.weights(MASK)
        values = GGUFWeights(self.gguf)(table.gguf)
        return values[mask] if 0 <= mask < len(values) else self.source.weights(MASK)


def _as_it_is(values: Array, *_: Any) -> Array:
    return values


def _turned_back(values: Array, _: tuple[int, ...], head_dim: int) -> Array:
    """NEOX order → pairs: of rows, or of a norm's entries."""
    n = values.shape[0]
    return values[np.argsort(neox_order(n, head_dim))] if n % head_dim == 0 else values


def _offsets(values: Array, *_: Any) -> Array:
    return values - np.arange(len(values))


def _narrowed(values: Array, shape: tuple[int, ...], _: int) -> Array:
    return values[:, : shape[-1]]


UNDO: Mapping[str, Callable[[Array, tuple[int, ...], int], Array]] = MappingProxyType({
    "": _as_it_is, ROTARY: _turned_back, IDS: _offsets, MARKOV_ZEROS: _narrowed,
})  # fmt: skip
