"""Lucebox's drafts of Gemma 4 targets, by either of its two writers. The last row of its architecture."""

from __future__ import annotations

from dflash_convert.dialects.dialect import (
    ALL_BUT_LAST,
    DOTTED_TENSORS,
    NESTED_BLOCK,
    NESTED_MASK,
    NO_TOKENIZER,
    RAW_TAPS,
    Dialect,
)

LUCEBOX_GEMMA = Dialect(
    name="lucebox-gemma",
    title="Lucebox's format for Gemma 4",
    purpose="Lucebox",
    architecture="gemma4-dflash-draft",
    mainline_loads=False,
    taps=(RAW_TAPS,),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK,),
    window=("{a}.attention.sliding_window", "{a}.dflash.sliding_window"),
    extra=("tie_word_embeddings", "dflash.n_target_layers", "dflash.logit_softcap", "dflash.target_hidden",
           "dflash.feat_dim_per_capture", "dflash.sliding_window"),
    slides=ALL_BUT_LAST,
    renamed=DOTTED_TENSORS,
    notes=(NO_TOKENIZER,),
)  # fmt: skip
