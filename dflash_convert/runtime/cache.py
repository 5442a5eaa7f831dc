"""Keys and values of the positions a model has seen: the one thing in the runtime that changes.

A cache belongs to one sequence. It grows at the end, is cut at the end when drafted tokens are refused, and can be read
together with keys that are never stored (a draft's noise block).
"""

from __future__ import annotations

import numpy as np

from dflash_convert.runtime.ops import Array


class KVCache:
    """Keys and values of `n_layer` layers, (n, n_head_kv, d) each; n is `len()` once all layers have been appended."""

    def __init__(self, n_layer: int, n_head_kv: int, n_embd_head: int) -> None:
        empty = np.empty((0, n_head_kv, n_embd_head), np.float32)
        self._layers = [(empty, empty)] * n_layer

    def __len__(self) -> int:
        return len(self._layers[-1][0])

    def joined(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        """Stored keys and values of a layer followed by `k` and `v`, which are not stored."""
        stored_k, stored_v = self._layers[layer]
        return np.concatenate([stored_k, k]), np.concatenate([stored_v, v])

    def append(self, layer: int, k: Array, v: Array) -> tuple[Array, Array]:
        """Store `k` and `v` at the end of a layer; returns all of its keys and values."""
        self._layers[layer] = self.joined(layer, k, v)
        return self._layers[layer]

    def truncate(self, n: int) -> None:
        """Forget every position from `n` on."""
        self._layers = [(k[:n], v[:n]) for k, v in self._layers]
