"""What BeeLlama's convert-dflash-draft-to-upstream.py makes of a fork's file: mainline's names, unshifted taps."""

from __future__ import annotations

from dflash_convert.dialects.dialect import INPUTS, MASK_KEY, Dialect, TapKey

BEELLAMA_REWRITTEN = Dialect(
    name="beellama-rewritten",
    title="a fork's file rewritten by BeeLlama's script",
    purpose="mainline llama.cpp, by intention",
    architecture="dflash",
    mainline_loads=True,
    has=("dflash.n_target_features", "dflash.target_layers"),
    taps=(TapKey("{a}.target_layers", INPUTS),),
    block_size=("{a}.block_size",),
    mask=(MASK_KEY,),
    extra=("n_target_features",),
    notes=("the script copies taps unshifted: made from a fork's file, each is one layer early, and nothing says so",),
)
