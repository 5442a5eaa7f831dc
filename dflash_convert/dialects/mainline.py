"""The format of merged llama.cpp: what hf-to-gguf writes. The last row of its architecture: it needs no clue."""

from __future__ import annotations

from dflash_convert.dialects.dialect import INPUTS, MASK_KEY, Dialect, TapKey

MAINLINE = Dialect(
    name="mainline",
    title="mainline format",
    purpose="llama.cpp since June 2026, and what reads its files",
    architecture="dflash",
    mainline_loads=True,
    taps=(TapKey("{a}.target_layers", INPUTS),),
    block_size=("{a}.block_size",),
    mask=(MASK_KEY,),
    extra=("variant",),
)

# Tensors that mainline's graph takes; any other stops its loader.
TENSORS = (
    "fc.weight", "enc.output_norm.weight", "output_norm.weight", "token_embd.weight", "output.weight", "d2t",
    "rope_freqs.weight", "markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "conf_proj.bias",
    "selector_predecessor.weight", "selector_successor.weight", "selector_hidden.weight",
    "blk.*.attn_norm.weight", "blk.*.attn_q.weight", "blk.*.attn_k.weight", "blk.*.attn_v.weight",
    "blk.*.attn_output.weight", "blk.*.attn_q_norm.weight", "blk.*.attn_k_norm.weight", "blk.*.attn_sinks.weight",
    "blk.*.ffn_norm.weight", "blk.*.ffn_gate.weight", "blk.*.ffn_up.weight", "blk.*.ffn_down.weight",
    "blk.*.post_attention_norm.weight", "blk.*.post_ffw_norm.weight", "blk.*.layer_output_scale.weight",
    "blk.*.attn_conv_base", "blk.*.ffn_conv_base", "blk.*.attn_conv_proj.weight", "blk.*.ffn_conv_proj.weight",
)  # fmt: skip
# Tensors no draft does without; the layers' are asked of the first layer.
NEEDED = (
    "fc.weight", "enc.output_norm.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
    "blk.0.attn_k.weight", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight",
    "blk.0.ffn_up.weight", "blk.0.ffn_down.weight",
)  # fmt: skip
