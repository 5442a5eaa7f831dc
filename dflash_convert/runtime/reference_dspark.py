"""DSpark's heads by their published definition (deepseek-ai/DeepSpec, modeling/dspark: markov_head.py, and
sample_draft_tokens and predict_confidence_step of the models; vllm-project/speculators, models/dspark).

The token of a slot is the best of its logits plus markov_w2(markov_w1[token before]); the token before the first slot
is the last accepted one. Everything happens in the draft's own vocabulary but for the token before, which is the
target's: a draft with fewer tokens says by `d2t` how far each of its ids is from the target's.
"""

from __future__ import annotations

import numpy as np

from dflash_convert.runtime.interface import Proposal
from dflash_convert.runtime.ops import Array, sigmoid
from dflash_convert.runtime.reference_tensors import Confidence, Markov


def sample_block(
    markov: Markov | None, confidence: Confidence | None, logits: Array, hidden: Array, last: int, d2t: Array | None
) -> Proposal:
    """Greedy tokens for the slots given. logits: (slots, draft_vocab_size); hidden: (slots, hidden_size)."""
    before, tokens, sure = last, list[int](), list[float]()
    for step_logits, state in zip(logits, hidden, strict=True):
        embedding = np.zeros(0, np.float32) if markov is None else markov.markov_w1[before]
        biased = step_logits if markov is None else step_logits + embedding @ markov.markov_w2.T
        if confidence is not None:
            sure.append(predict(confidence, state, embedding))
        best = int(np.argmax(biased))
        before = best if d2t is None else best + int(d2t[best])
        tokens.append(before)
    return Proposal(tuple(tokens), None if confidence is None else np.array(sure, np.float32))


def predict(head: Confidence, state: Array, embedding: Array) -> float:
    """How likely a slot's token is accepted. The head tells by its width whether it reads the Markov embedding."""
    weight = head.weight.ravel()  # (hidden_size) or (hidden_size + markov_rank)
    score = weight[: len(state)] @ state
    if len(weight) > len(state):
        score = score + weight[len(state) :] @ embedding
    return float(sigmoid(score if head.bias is None else score + head.bias[0]))
