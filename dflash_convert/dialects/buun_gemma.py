"""buun's newer drafts of Gemma 4 targets: taps in both conventions side by side, and a tokenizer."""

from __future__ import annotations

from dflash_convert.dialects.dialect import (
    DOTTED_TENSORS,
    INPUTS,
    MASK_KEY,
    NESTED_BLOCK,
    NESTED_MASK,
    RAW_TAPS,
    Dialect,
    TapKey,
)

BUUN_GEMMA = Dialect(
    name="buun-gemma",
    title="buun's format for Gemma 4",
    purpose="buun-llama-cpp",
    architecture="gemma4-dflash-draft",
    mainline_loads=False,
    has=("{a}.target_layers",),
    taps=(TapKey("{a}.target_layers", INPUTS), RAW_TAPS),
    block_size=("{a}.block_size", NESTED_BLOCK),
    mask=(MASK_KEY, NESTED_MASK),
    renamed=DOTTED_TENSORS,
    notes=("its loader knows no sliding layers, so the file may lack a window that was trained",),
)
