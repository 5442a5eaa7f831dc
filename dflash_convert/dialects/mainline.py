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
# Below `dflash.`: the type that mainline takes each key in; `[t]` is an array of t.
TYPES = {
    "block_count": "u32", "context_length": "u32", "embedding_length": "u32", "feed_forward_length": "u32",
    "attention.head_count": "u32", "attention.head_count_kv": "u32", "attention.key_length": "u32",
    "attention.value_length": "u32", "attention.layer_norm_rms_epsilon": "f32", "attention.causal": "bool",
    "attention.scale": "f32", "attention.value_scale": "f32", "attention.sliding_window": "u32",
    "attention.sliding_window_pattern": "[bool]", "rope.freq_base": "f32", "rope.dimension_count": "u32",
    "rope.dimension_sections": "[i32]", "rope.scaling.type": "str", "rope.scaling.factor": "f32",
    "rope.scaling.original_context_length": "u32", "rope.scaling.attn_factor": "f32",
    "rope.scaling.yarn_ext_factor": "f32", "rope.scaling.yarn_attn_factor": "f32",
    "rope.scaling.yarn_beta_fast": "f32", "rope.scaling.yarn_beta_slow": "f32", "block_size": "u32",
    "target_layers": "[i32]", "embedding_scale": "f32", "logit_scale": "f32", "final_logit_softcapping": "f32",
    "hidden_activation": "str", "conv_kernel_size": "u32", "conv_group_size": "u32", "selector_rank": "u32",
    "selector_top_k": "u32", "sample_from_anchor": "bool", "has_confidence_head": "bool", "vocab_size": "u32",
}  # fmt: skip
