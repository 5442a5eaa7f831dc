"""llama.cpp's pull request 22105 from late May 2026 to its merge: mainline's format but for the mask token's key."""

from __future__ import annotations

from dflash_convert.dialects.dialect import INPUTS, MASK_KEY, Dialect, TapKey

PULL_22105_LATE = Dialect(
    name="pull-22105-late",
    title="the late format of llama.cpp's pull request 22105",
    purpose="builds of that branch (May to June 2026)",
    architecture="dflash",
    mainline_loads=True,
    has=("dflash.target_layers", "dflash.mask_token_id"),
    lacks=(MASK_KEY,),
    taps=(TapKey("{a}.target_layers", INPUTS),),
    block_size=("{a}.block_size",),
    mask=("{a}.mask_token_id",),
    notes=(f"mainline loads it and makes no drafts: it looks for {MASK_KEY}",),
)
