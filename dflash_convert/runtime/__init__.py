"""The numpy runtime: targets, drafts and the greedy speculative loop, in float32 on a CPU, to judge files by.

    weights ─► target.py (targets/*)          the model that decides
            ─► draft.py                       a draft as its GGUF says, by llama.cpp's definition
            ─► reference.py                   a draft as its checkpoint says, by the published definition
    target + drafter ─► accept.py             greedy decoding, drafted and plain

`draft.py` and `reference.py` share the numeric primitives of `ops.py` and nothing else: neither reads a mapping between
the two formats, so a tensor renamed wrongly, a permutation or a shift forgotten shows as a difference between them.
"""
