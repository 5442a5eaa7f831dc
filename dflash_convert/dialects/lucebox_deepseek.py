"""Lucebox's DSpark drafts of DeepSeek-V4 targets; two architectures, one format."""

from __future__ import annotations

from dataclasses import replace

from dflash_convert.dialects.dialect import MASK_KEY, NESTED_BLOCK, NESTED_MASK, OUTPUTS, Dialect, TapKey

LUCEBOX_DEEPSEEK = Dialect(
    name="lucebox-deepseek",
    title="Lucebox's format for DeepSeek-V4",
    purpose="Lucebox",
    architecture="deepseek4-dflash-draft",
    mainline_loads=False,
    taps=(TapKey("{a}.dflash.capture_layer_ids", OUTPUTS),),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK, MASK_KEY),
    extra=("*",),
    notes=(
        "target_layer_ids and capture_layer_ids differ by one, and which of them is the checkpoint's is not settled",
        "it cannot be rewritten for mainline without loss: convert the checkpoint",
    ),
)
LUCEBOX_DEEPSEEK_41 = replace(LUCEBOX_DEEPSEEK, architecture="deepseek41-dflash-draft")
