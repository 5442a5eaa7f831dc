"""llama.cpp's pull request 22105 as of April and May 2026, before EAGLE3 was merged beneath it."""

from __future__ import annotations

from dflash_convert.dialects.dialect import INPUTS, Dialect, TapKey

PULL_22105_EARLY = Dialect(
    name="pull-22105-early",
    title="the early format of llama.cpp's pull request 22105",
    purpose="builds of that branch (April to May 2026), llama-cpp-turboquant",
    architecture="dflash",
    mainline_loads=False,
    has=("dflash.target_layer_ids",),
    lacks=("dflash.target_layers", "dflash.dflash.*"),
    taps=(TapKey("{a}.target_layer_ids", INPUTS),),
    block_size=("{a}.block_size",),
    mask=("{a}.mask_token_id",),
    renamed=(("hidden_norm.weight", "enc.output_norm.weight"),),
    notes=(
        "its taps are shifted already, under a name that elsewhere means checkpoint ids",
        "it never says which layers slide: renamed for mainline without that, a sliding draft runs with full attention",
    ),
)
