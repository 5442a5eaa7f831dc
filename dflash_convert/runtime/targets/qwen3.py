"""The graph of a dense Qwen3 target: pre-norm blocks, q and k norms, rope, grouped-query attention, gated SiLU MLP.

In: token ids and a cache. Out: `TargetOutput`. The names and keys of a GGUF and of a checkpoint are in qwen3_gguf.py
and qwen3_checkpoint.py; this file knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dflash_convert.errors import UsageError
from dflash_convert.runtime.cache import KVCache
from dflash_convert.runtime.interface import TargetOutput
from dflash_convert.runtime.ops import (
    Array,
    Rope,
    RopeTable,
    attention,
    gated_mlp,
    heads,
    linear,
    rms_norm,
    rope_table,
    rotate_half,
    silu,
)


class Layer(Protocol):
    """Tensors of one block, whatever the file calls them; matrices are (out, in)."""

    @property
    def input_norm(self) -> Array: ...
    @property
    def q(self) -> Array: ...
    @property
    def k(self) -> Array: ...
    @property
    def v(self) -> Array: ...
    @property
    def o(self) -> Array: ...
    @property
    def q_norm(self) -> Array: ...
    @property
    def k_norm(self) -> Array: ...
    @property
    def mlp_norm(self) -> Array: ...
    @property
    def gate(self) -> Array: ...
    @property
    def up(self) -> Array: ...
    @property
    def down(self) -> Array: ...


class Ends(Protocol):
    """Tensors before and after the blocks; `head` is None where the embeddings serve as the head."""

    @property
    def embeddings(self) -> Array: ...
    @property
    def norm(self) -> Array: ...
    @property
    def output(self) -> Array | None: ...


@dataclass(frozen=True)
class Qwen3:
    """A dense Qwen3 model; fulfils `Target`."""

    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    eps: float
    rope: Rope
    ends: Ends
    layers: Sequence[Layer]

    @property
    def n_layer(self) -> int:
        return len(self.layers)

    def embed(self, ids: Sequence[int]) -> Array:
        """Embeddings (T, n_embd). Raises UsageError: an id outside the vocabulary."""
        wrong = next((i for i in ids if not 0 <= i < self.n_vocab), None)
        if wrong is not None:
            raise UsageError(
                f"token id {wrong} is outside the target's vocabulary of {self.n_vocab}",
                hint="the tokenizer or the mask token belongs to another model",
            )
        return self.ends.embeddings[list(ids)]

    def head(self, hidden: Array) -> Array:
        """Logits (T, n_vocab) of hidden states (T, n_embd) after a final norm."""
        output = self.ends.output
        return linear(hidden, self.ends.embeddings if output is None else output)

    def new_cache(self) -> KVCache:
        return KVCache(self.n_layer, self.n_head_kv, self.n_embd_head)

    def forward(self, ids: Sequence[int], cache: KVCache) -> TargetOutput:
        """Run `ids` behind the cached positions, and cache them."""
        start, end = len(cache), len(cache) + len(ids)
        positions = np.arange(start, end)
        table = rope_table(self.rope, positions)
        causal = np.arange(end)[None, :] <= positions[:, None]  # (T, start + T)
        states = [self.embed(ids)]
        for i, layer in enumerate(self.layers):
            states.append(self._block(layer, i, states[-1], cache, table, causal))
        normed = rms_norm(states[-1], self.ends.norm, self.eps)
        return TargetOutput(self.head(normed), tuple(states))

    def _block(self, layer: Layer, i: int, x: Array, cache: KVCache, table: RopeTable, causal: Array) -> Array:
        normed = rms_norm(x, layer.input_norm, self.eps)
        q = rms_norm(heads(linear(normed, layer.q), self.n_head), layer.q_norm, self.eps)
        k = rms_norm(heads(linear(normed, layer.k), self.n_head_kv), layer.k_norm, self.eps)
        v = heads(linear(normed, layer.v), self.n_head_kv)
        all_k, all_v = cache.append(i, rotate_half(k, table), v)
        attended = attention(rotate_half(q, table), all_k, all_v, causal, self.n_embd_head**-0.5)
        x = x + linear(attended, layer.o)
        normed = rms_norm(x, layer.mlp_norm, self.eps)
        return x + gated_mlp(normed, layer.gate, layer.up, layer.down, silu)
