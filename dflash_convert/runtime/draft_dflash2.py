"""DFlash2's convolutions and selector as llama.cpp builds them (src/models/dflash.cpp: build_dflash2_conv,
build_dflash2_selector; common/speculative.cpp walks the lattice).

- A convolution mixes a position of the block with those before it, channel by channel. Its weights are a base for each
  side (0 before the sublayer, 1 behind it), tap and channel, plus what a projection of the sublayer's normed input says
  for each side, tap and group of channels. Taps that reach before the block read zeros.
- The selector keeps the `top_k` best tokens of each position and scores every pair of neighbours: the logit of the
  later one, plus (predecessor row of the earlier · gate of the position) · successor row of the later one. The path is
  greedy, from the token before the block.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.runtime.draft_tensors import Selector
from dflash_convert.runtime.ops import Array, linear


def conv_weights(normed: Array, base: Array, proj: Array) -> Array:
    """Weights of both sides, (2, kernel, B, n_embd), from the sublayer's normed input (B, n_embd).

    base: (2, kernel, n_embd); proj: (2 · kernel · n_groups, n_embd).
    """
    n_sides, kernel, n_embd = base.shape
    n_groups = len(proj) // (n_sides * kernel)
    coeffs = linear(normed, proj).reshape(len(normed), n_sides, kernel, n_groups)
    spread = np.repeat(coeffs, n_embd // n_groups, axis=-1)  # (B, 2, kernel, n_embd)
    weights: Array = spread.transpose(1, 2, 0, 3) + base[:, :, None, :]
    return weights


def convolve(x: Array, weights: Array) -> Array:
    """Σ over taps of weights[tap] · x shifted by tap rows: (B, n_embd). weights: (kernel, B, n_embd)."""
    result = np.zeros_like(x)
    for tap in range(min(len(weights), len(x))):
        result[tap:] += weights[tap, tap:] * x[: len(x) - tap]
    return result


def lattice(head: Selector, logits: Array, hidden: Array, last: int, top_k: int) -> tuple[Array, Array]:
    """Candidates (B, k) and pair scores (B, k, k), [position, earlier, later]; row 0 means nothing.

    logits: (B, n_vocab), scaled and capped; hidden: (B, n_embd). At position 1 all earlier ones are `last`.
    """
    candidates = np.argpartition(-logits, top_k - 1, axis=1)[:, :top_k]
    unary = np.take_along_axis(logits, candidates, axis=1)
    gate = linear(hidden, head.hidden)  # (B, rank)
    earlier = np.concatenate([np.full((2, top_k), last), candidates[1:-1]])[: len(logits)]
    condition = head.predecessor[earlier] * gate[:, None, :]  # (B, k, rank)
    scores = condition @ head.successor[candidates].transpose(0, 2, 1)  # (B, k, k)
    return candidates, scores + unary[:, None, :]


def walk(candidates: Array, scores: Array) -> list[int]:
    """The tokens of the positions from 1 on: from each token to the best-scored next one."""
    tokens, at = [], 0
    for position in range(1, len(candidates)):
        at = int(scores[position, at].argmax())
        tokens.append(int(candidates[position, at]))
    return tokens
