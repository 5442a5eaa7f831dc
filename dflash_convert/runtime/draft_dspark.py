"""DSpark's chain as llama.cpp builds it (src/models/dflash.cpp, build_dspark_markov_head).

In: the logits of a block over the target's vocabulary, its hidden states, the token before it. Out: the block's tokens.
Each slot's logits get a bias that depends on the token of the slot before: markov_w2 · markov_w1[previous], put at the
target's ids where the draft has a vocabulary of its own. The chain is greedy. The confidence of a slot, the sigmoid of
conf_proj over [hidden; markov_w1[previous]], is computed with it; llama.cpp cuts the draft at the first slot below
`--spec-draft-p-min`, which is 0 unless asked for, so that nothing is cut here.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.runtime.draft_tensors import Markov
from dflash_convert.runtime.interface import Proposal
from dflash_convert.runtime.ops import Array, sigmoid


def chain(head: Markov, logits: Array, hidden: Array, last: int, i_draft_beg: int, d2t: Array | None) -> Proposal:
    """Tokens of the slots from `i_draft_beg` on.

    logits: (B, n_vocab), -inf where the draft has no token; hidden: (B, n_embd); d2t: target ids of the rows of
    markov_w2, None if they are the target's.
    """
    rows = slice(None) if d2t is None else d2t
    prev, tokens, confidences = last, [], []
    for i in range(i_draft_beg, len(logits)):
        w1_prev = head.markov_w1[prev]  # (markov_rank)
        column = logits[i].copy()
        column[rows] += head.markov_w2 @ w1_prev
        confidences.append(_confidence(head, hidden[i], w1_prev))
        prev = int(column.argmax())
        tokens.append(prev)
    return Proposal(tuple(tokens), None if head.conf_proj is None else np.array(confidences, np.float32))


def _confidence(head: Markov, hidden: Array, w1_prev: Array) -> float:
    if head.conf_proj is None:
        return 1.0
    score = head.conf_proj.reshape(-1) @ np.concatenate([hidden, w1_prev])
    bias = head.conf_proj_b
    return float(sigmoid(score if bias is None else score + bias[0]))
