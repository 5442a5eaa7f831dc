"""Greedy speculative decoding: how many drafted tokens a target accepts, and the proof that the text stays the same.

In: a target, a drafter and a prompt. Out: a `Run`. A step drafts a block, runs the last token and the draft through the
target once, keeps the drafted tokens that are the target's own choice, and adds the target's next one. Nothing stops at
an end-of-text token: accepted length is counted over a fixed number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.errors import UsageError
from dflash_convert.runtime.blas import blas_threads
from dflash_convert.runtime.interface import Drafter, Target, TargetOutput
from dflash_convert.runtime.ops import Array


@dataclass(frozen=True)
class Run:
    """What a loop did. tokens: all that were generated, the last step whole; accepted_per_step: drafted tokens kept in
    each step; drafted: tokens proposed in all."""

    tokens: tuple[int, ...]
    accepted_per_step: tuple[int, ...]
    drafted: int

    @property
    def accepted(self) -> int:
        """Drafted tokens kept, in all."""
        return sum(self.accepted_per_step)

    @property
    def mean_length(self) -> float:
        """Tokens gained a step: drafted ones kept, and the target's own."""
        return 1 + self.accepted / max(1, len(self.accepted_per_step))


def greedy(target: Target, prompt_ids: Sequence[int], n_tokens: int) -> list[int]:
    """`n_tokens` tokens of plain greedy decoding behind the prompt."""
    cache = target.new_cache()
    with blas_threads(target.n_embd):
        tokens = [_choices(_prefill(target, prompt_ids, cache))[-1]]
        while len(tokens) < n_tokens:
            tokens += _choices(target.forward(tokens[-1:], cache))
    return tokens


def speculate(
    target: Target, drafter: Drafter, prompt_ids: Sequence[int], n_tokens: int, n_max: int | None = None
) -> Run:
    """Decode greedily with drafts until at least `n_tokens` tokens are there (the first comes from the prompt alone).

    n_max: tokens drafted a step; at most, and without it, what a block can propose. The last step is kept whole.
    """
    with blas_threads(target.n_embd):
        cache, ctx = target.new_cache(), drafter.new_context()
        out = _prefill(target, prompt_ids, cache)
        drafter.extend(ctx, drafter.features(out.layer_inputs))
        tokens, accepted, drafted = _choices(out)[-1:], [], 0
        while len(tokens) < n_tokens:
            draft = propose(target, drafter, ctx, tokens[-1], n_max)
            kept, gained = _step(target, drafter, cache, ctx, tokens[-1], draft)
            tokens += gained
            accepted.append(kept)
            drafted += len(draft)
    return Run(tuple(tokens), tuple(accepted), drafted)


def propose(target: Target, drafter: Drafter, ctx: Any, last: int, n_max: int | None = None) -> list[int]:
    """The tokens a drafter proposes to follow `last`."""
    hidden = drafter.hidden_block(ctx, draft_block(target, drafter, last, n_max))
    return list(drafter.propose(hidden, last, target).tokens)


def draft_block(target: Target, drafter: Drafter, last: int, n_max: int | None = None) -> Array:
    """Embeddings (B, n_embd) of `last` and the masks behind it, by the draft's own table or the target's.

    B is what n_max tokens take: as many positions where the draft samples from its anchor, else one more.
    """
    most = drafter.block_size - drafter.first_slot
    n = most if n_max is None else min(n_max, most)
    if n < 1:
        raise UsageError(f"n_max is {n}: at least one token a step must be drafted")
    ids = [last] + [drafter.mask_token_id] * (n - 1 + drafter.first_slot)
    table, mask = drafter.embedding_table, drafter.mask_embedding
    block: Array = target.embed(ids) if table is None else table[ids]
    return block if mask is None else np.concatenate([block[:1], np.tile(mask, (len(ids) - 1, 1))])


def _step(target: Target, drafter: Drafter, cache: Any, ctx: Any, last: int, draft: list[int]) -> tuple[int, list[int]]:
    """Verify a draft; caches then end with its accepted part. Returns how much was kept, and the tokens gained."""
    out = target.forward([last, *draft], cache)
    choices = _choices(out)
    agrees = np.equal(draft, choices[:-1])
    kept = len(draft) if agrees.all() else int(agrees.argmin())
    cache.truncate(len(cache) - (len(draft) - kept))
    drafter.extend(ctx, drafter.features(out.layer_inputs)[: kept + 1])
    return kept, choices[: kept + 1]


def _prefill(target: Target, prompt_ids: Sequence[int], cache: Any) -> TargetOutput:
    if not prompt_ids:
        raise UsageError("the prompt is empty", hint="give a prompt of at least one token")
    return target.forward(prompt_ids, cache)


def _choices(out: TargetOutput) -> list[int]:
    return [int(i) for i in out.logits.argmax(axis=-1)]
