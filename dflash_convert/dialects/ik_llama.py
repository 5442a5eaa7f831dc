"""ik_llama.cpp's drafts where they say what the other forks' do not: a second rope base, Laguna, a value scale."""

from __future__ import annotations

from dflash_convert.dialects.dialect import (
    ALL,
    FORK_TENSORS,
    MASK_KEY,
    NESTED_BLOCK,
    NESTED_MASK,
    RAW_TAPS,
    Dialect,
)

IK_LLAMA = Dialect(
    name="ik-llama",
    title="ik_llama.cpp's format",
    purpose="ik_llama.cpp",
    architecture="dflash-draft",
    mainline_loads=False,
    any_of=("dflash-draft.dflash.backbone_rotary_base", "dflash-draft.dflash.laguna", "blk.*.attn_sinks*"),
    taps=(RAW_TAPS,),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK, MASK_KEY),
    extra=("dflash.n_target_features", "dflash.backbone_rotary_base", "dflash.laguna"),
    slides=ALL,
    renamed=FORK_TENSORS,
    notes=("a backbone_rotary_base other than rope.freq_base, and Laguna, have no place in mainline",),
)
