"""Laguna drafts (poolside, CachyLLama, ROCmFPX): mainline's keys over another graph."""

from __future__ import annotations

from dflash_convert.dialects.dialect import INPUTS, MASK_KEY, Dialect, TapKey

LAGUNA = Dialect(
    name="laguna",
    title="the Laguna drafts' format",
    purpose="poolside's llama.cpp, CachyLLama, ROCmFPX",
    architecture="dflash",
    mainline_loads=False,
    any_of=("dflash.decoder_arch", "enc.aux_norm.weight", "blk.*.attn_gate.weight"),
    taps=(TapKey("{a}.target_layers", INPUTS),),
    block_size=("{a}.block_size",),
    mask=(MASK_KEY,),
    extra=("decoder_arch",),
    notes=(
        "its graph is another one (gated attention, a norm on each tap): without those tensors it loads and is wrong",
    ),
)
