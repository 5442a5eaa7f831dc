"""Lucebox's drafts of Qwen targets."""

from __future__ import annotations

from dflash_convert.dialects.dialect import (
    DOTTED_TENSORS,
    NESTED_BLOCK,
    NESTED_MASK,
    NO_TOKENIZER,
    RAW_TAPS,
    Dialect,
)

LUCEBOX = Dialect(
    name="lucebox",
    title="Lucebox's format",
    purpose="Lucebox",
    architecture="qwen35-dflash-draft",
    mainline_loads=False,
    taps=(RAW_TAPS,),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK,),
    extra=("dflash.n_target_layers", "dflash.feat_dim_per_capture", "dflash.dspark.*", "dflash.domino.*"),
    renamed=(
        *DOTTED_TENSORS,
        ("dflash.dspark.markov.w1", "markov_w1.weight"),
        ("dflash.dspark.markov.w2", "markov_w2.weight"),
        ("dflash.dspark.confidence.*", "conf_proj.*"),
    ),
    notes=(
        NO_TOKENIZER,
        "its converter reads the rope base at the top of config.json only, else writes 1000000: compare it",
        "its quantizer drops what makes a DFlash2 draft: a block size of 8 without selector is the sign of it",
        "made from a config with aux_hidden_state_layer_ids, its taps may be shifted already: nothing in it says so",
    ),
)
