"""DFlash2's convolutions and candidate selector by their published definition (z-lab: GroupedDynamicCausalConv and
CandidateSelector of dflash2.py).

    conv: out[t, c] = Σ_o (base[o, c] + dynamic[t, o, c // group]) · x[t - o, c]          x before the block: 0
    selector: from `last` on, at each position the candidate c with the best logit[c] + Σ_r predecessor[previous, r] ·
              projected[t, r] · successor[c, r], of the top_k by logit
"""

from __future__ import annotations

import numpy as np

from dflash_convert.runtime.ops import Array, linear
from dflash_convert.runtime.reference_tensors import Selector


class Convolution:
    """The pair of convolutions around one sublayer: `prepare` its normed input, `finish` what it returns."""

    def __init__(self, normed: Array, base_kernel: Array, kernel_projection: Array) -> None:
        """normed: (B, hidden_size); base_kernel: (2, kernel, hidden_size); kernel_projection: (2 · kernel · groups,
        hidden_size)."""
        _, kernel_size, _ = base_kernel.shape
        dynamic = linear(normed, kernel_projection)
        self._normed, self._base = normed, base_kernel
        self._dynamic = dynamic.reshape(len(normed), 2, kernel_size, -1)  # (B, 2, kernel, groups)

    def prepare(self) -> Array:
        return self._convolved(self._normed, 0)

    def finish(self, hidden: Array) -> Array:
        return self._convolved(hidden, 1)

    def _convolved(self, hidden: Array, side: int) -> Array:
        length, hidden_size = hidden.shape
        kernel_size, groups = self._dynamic.shape[2:]
        grouped = hidden.reshape(length, groups, hidden_size // groups)
        base = self._base[side].reshape(kernel_size, groups, hidden_size // groups)
        out = np.zeros_like(grouped)
        for t in range(length):
            for offset in range(min(kernel_size, t + 1)):
                weight = base[offset] + self._dynamic[t, side, offset, :, None]
                out[t] += weight * grouped[t - offset]
        return out.reshape(length, hidden_size)


def select(selector: Selector, logits: Array, hidden: Array, last: int, top_k: int) -> tuple[int, ...]:
    """The greedy path through the positions given, whose logits (positions, vocab_size) and hidden states (positions,
    hidden_size) these are."""
    projected = linear(hidden, selector.hidden_projection)
    path = [last]
    for unary, gate in zip(logits, projected, strict=True):
        candidates = np.argsort(-unary, kind="stable")[:top_k]
        context = selector.predecessor_codebook[path[-1]] * gate
        scores = unary[candidates] + selector.successor_codebook[candidates] @ context
        path.append(int(candidates[np.argmax(scores)]))
    return tuple(path[1:])
