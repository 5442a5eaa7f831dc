"""The table of tiny drafts: a published schema, and what llama.cpp calls the same."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import tiny_drafts as t
from tiny_drafts import CONFIDENCE, DECODER, DRAFT_VOCAB, HIDDEN, MARKOV, RANK, SINKS, TABLES, VOCAB, Tiny

TAPS: dict[str, Any] = {"target_layer_ids": [1, 3, 5], "mask_token_id": 319}
DSPARK: dict[str, Any] = {"markov_rank": RANK, "markov_head_type": "vanilla"}
SLIDING = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": True}
WINDOW = {"dflash.attention.sliding_window": 8, "dflash.attention.sliding_window_pattern": [True, True]}
FAR = {"dflash.attention.sliding_window": 64, "dflash.attention.sliding_window_pattern": [True, True]}
BONUS = {"dflash.sample_from_anchor": False, "dflash.block_size": 8}
CONV = {
    f"layers.{i}.{conv}.{name}": shape
    for i in (0, 1)
    for conv in ("attention_conv", "mlp_conv")
    for name, shape in {"base_kernel": (2, 2, HIDDEN), "kernel_projection.weight": (16, HIDDEN)}.items()
}
SELECTOR = {
    "candidate_selector.hidden_projection.weight": (RANK, HIDDEN),
    "candidate_selector.predecessor_codebook": (VOCAB, RANK),
    "candidate_selector.successor_codebook": (VOCAB, RANK),
}
OFFSETS = np.sort(np.random.default_rng(2).choice(VOCAB, DRAFT_VOCAB, replace=False)) - np.arange(DRAFT_VOCAB)
REDUCED = {**TABLES, "lm_head.weight": (DRAFT_VOCAB, HIDDEN), "markov_head.markov_w2.weight": (DRAFT_VOCAB, RANK)}
NULLS = {"layer_types": None, "sliding_window": None, "rope_scaling": None, "use_sliding_window": None}
GEMMA_SHAPES = {
    name: shape
    for i in (0, 1)
    for name, shape in {
        f"layers.{i}.pre_feedforward_layernorm.weight": (HIDDEN,),
        f"layers.{i}.post_feedforward_layernorm.weight": (HIDDEN,),
        f"layers.{i}.layer_scalar": (1,),
        f"layers.{i}.self_attn.q_proj.weight": (256, HIDDEN),
        f"layers.{i}.self_attn.k_proj.weight": (64, HIDDEN),
        f"layers.{i}.self_attn.v_proj.weight": None,
        f"layers.{i}.self_attn.o_proj.weight": (HIDDEN, 256),
        f"layers.{i}.self_attn.q_norm.weight": (64,),
        f"layers.{i}.self_attn.k_norm.weight": (64,),
    }.items()
}
GEMMA_NAMES = {
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
}
GEMMA_ROPE = {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
    "rope_theta": None,
    "rope_type": "default",
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}
YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0}

TINY: Mapping[str, Tiny] = MappingProxyType({
    "DFlash2": Tiny(
        {**DECODER, **SLIDING, "architectures": ["DFlash2DraftModel"], "is_causal": False,
         "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
         "dflash_config": {**TAPS, "block_size": 7, "conv_group_size": 16, "conv_kernel_size": 2, "selector_rank": RANK,
                           "selector_top_k": 7, "output_multiplier": 0.25, "final_logit_softcapping": 3.0}},
        {**CONV, **SELECTOR},
        keys={**WINDOW, "dflash.attention.causal": False, "dflash.conv_kernel_size": 2, "dflash.conv_group_size": 16,
              "dflash.selector_rank": RANK, "dflash.selector_top_k": 7, "dflash.logit_scale": 0.25,
              "dflash.final_logit_softcapping": 3.0},
    ),
    "DeepSpec": Tiny(
        {**DECODER, **TAPS, **DSPARK, "architectures": ["Qwen3DSparkModel"], "block_size": 7, "rope_theta": 1e6,
         "layer_types": ["full_attention"] * 2},
        {**MARKOV, **CONFIDENCE, **TABLES},
    ),
    "SpecForge, nested": Tiny(
        {**DECODER, "architectures": ["DSparkDraftModel"], "block_size": 7, "rope_theta": 1e6,
         "dflash_config": {**TAPS, **DSPARK, "projector_type": "dspark"}, "sliding_window": None,
         "use_sliding_window": False},
        {**MARKOV, **CONFIDENCE, "confidence_head.proj.bias": None},
    ),
    "SpecForge, split": Tiny(
        {**DECODER, "architectures": ["DSparkDraftModel"], "block_size": 7, "rope_theta": 1e6, "dflash_config": TAPS,
         "dspark_config": DSPARK, "is_causal": True},
        MARKOV,
        keys={"dflash.attention.causal": True},
    ),
    "SpecForge, flattened": Tiny(
        {**DECODER, **TAPS, **DSPARK, "architectures": ["Qwen3DSparkModel"], "block_size": 7, "rope_theta": 1e6,
         "projector_type": "dspark", "attention_mode": "gqa", "confidence_head_alpha": 1.0},
        {**MARKOV, **CONFIDENCE},
    ),
    "LiquidAI": Tiny(
        {**DECODER, **DSPARK, "architectures": ["Lfm2DSparkDraftModel"], "block_size": 7, "rope_theta": 1e6,
         "rope_is_neox_style": False, "dflash_config": {**TAPS, "num_target_layers": 8}},
        {**MARKOV, **CONFIDENCE},
        made=t.interleaved,
    ),
    "speculators DSpark": Tiny(
        {"architectures": ["DSparkDraftModel"], "speculators_model_type": "dspark", "block_size": 8,
         "aux_hidden_state_layer_ids": [2, 4, 6], "mask_token_id": 319, "draft_vocab_size": DRAFT_VOCAB, **DSPARK,
         "target_hidden_size": None, "sliding_window_non_causal": False, "layer_types": ["sliding_attention"] * 2,
         "sliding_window": 64,
         "transformer_layer_config": {**DECODER, **NULLS, "rope_parameters": {
             "rope_theta": 1e6, "rope_type": "default", "partial_rotary_factor": 0.25}}},
        {**MARKOV, **CONFIDENCE, **REDUCED},
        given={"d2t": OFFSETS, "t2d": np.zeros(VOCAB, bool)},
        keys={**FAR, **BONUS, "dflash.attention.causal": True, "dflash.rope.dimension_count": 8},
        made=t.absolute_d2t,
    ),
    "speculators DFlash": Tiny(
        {"architectures": ["DFlashDraftModel"], "speculators_model_type": "dflash", "block_size": 8,
         "aux_hidden_state_layer_ids": [2, 4, 6], "mask_token_id": 319, "draft_vocab_size": DRAFT_VOCAB,
         "transformer_layer_config": {**DECODER, "model_type": "llama", "layer_types": ["full_attention"] * 2,
                                      "rope_parameters": GEMMA_ROPE}},
        {**TABLES, "lm_head.weight": (DRAFT_VOCAB, HIDDEN)},
        given={"draft_id_to_target_id": OFFSETS},
        keys={"dflash.block_size": 8, "dflash.rope.freq_base": 10000.0},
        made=t.absolute_d2t,
    ),
    "MiMo": Tiny(
        {**DECODER, "architectures": ["DFlashDraftModel"], "block_size": 7, "rope_theta": 1e6, "sliding_window": 8,
         "partial_rotary_factor": 0.5,
         "dflash_config": {**TAPS, "block_size": 7, "use_swa": True, "swa_window_size": 8,
                           "attention_value_scale": 0.612,
                           "attention_sink_bias": True, "backbone_rotary_base": 5000000}},
        {**SINKS, "mask_embedding": (HIDDEN,)},
        keys={**WINDOW, "dflash.attention.value_scale": 0.612, "dflash.rope.dimension_count": 16},
        made=t.patched_tables,
    ),
    "Nemotron DSpark": Tiny(
        {**DECODER, **TAPS, **DSPARK, "architectures": ["Qwen3DSparkModel"], "block_size": 8, "rope_theta": 1e6,
         "rope_parameters": None, "attention_sink_bias": True, "dspark_bonus_anchor": True, "draft_vocab_size": None,
         "dspark_fixup_head_type": "markov", "dspark_markov_rank": RANK, "has_embed_tokens": True, "has_lm_head": False,
         "dflash_query_causal": True, "eagle_aux_hidden_state_layer_ids": [2, 4, 6], "pard_token": 319,
         "layer_types": ["sliding_attention"] * 2, "sliding_window": 8,
         "dflash_config": {**TAPS, "attention_sink_bias": True, "causal": True, "use_swa": True, "swa_window_size": 8}},
        {**MARKOV, **SINKS, "embed_tokens.weight": (VOCAB, HIDDEN)},
        keys={**WINDOW, **BONUS, "dflash.attention.causal": True},
        made=t.borrowed_head,
    ),
    "MiniMax-M3": Tiny(
        {**DECODER, "architectures": ["Qwen3DSparkModel"], "rope_theta": 1e6,
         "dflash_config": {**TAPS, **DSPARK, "block_size": 7, "num_target_layers": 8, "use_confidence_head": True,
                           "causal": False, "use_swa": True, "swa_window_size": 8, "projector_type": "dspark"}},
        {**MARKOV, **CONFIDENCE},
        keys={**WINDOW, "dflash.attention.causal": False},
    ),
    "Muse": Tiny(
        {**{k: v for k, v in DECODER.items() if k not in ("hidden_act", "vocab_size", "model_type")}, **TAPS,
         "architectures": ["MuseGlimmerAssistantModel"], "block_size": 16, "rope_parameters": {"rope_theta": 1e6},
         "layer_types": ["sliding_attention"] * 2, "sliding_window": 8},
        {"fc.weight": None, "hidden_norm.weight": None, "encoder.fc.weight": (HIDDEN, 3 * HIDDEN),
         "encoder.output_norm_enc.weight": (HIDDEN,)},
        keys={**WINDOW, "dflash.block_size": 16},
        names={"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "enc.output_norm.weight"},
    ),
    "Gemma 4": Tiny(
        {**{k: v for k, v in DECODER.items() if k != "hidden_act"}, **TAPS, **DSPARK, "model_type": "gemma4_text",
         "architectures": ["Gemma4DSparkModel"], "block_size": 7, "attention_k_eq_v": True, "global_head_dim": 64,
         "num_global_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh", "rope_parameters": GEMMA_ROPE,
         "layer_types": ["full_attention"] * 2, "sliding_window": 1024, "tie_word_embeddings": True},
        {**GEMMA_SHAPES, **MARKOV, "embed_tokens.weight": (VOCAB, HIDDEN), "confidence_proj.weight": (1, HIDDEN + RANK),
         "confidence_proj.bias": (1,)},
        keys={"dflash.attention.key_length": 64, "dflash.attention.value_length": 64,
              "dflash.attention.head_count_kv": 1,
              "dflash.attention.scale": 1.0, "dflash.embedding_scale": 8.0, "dflash.rope.dimension_count": 64,
              "dflash.hidden_activation": "gelu_pytorch_tanh"},
        names={**t.layers(GEMMA_NAMES), "confidence_proj.weight": "conf_proj.weight",
               "confidence_proj.bias": "conf_proj.bias"},
        made=t.standing_dimensions,
    ),
    "z-lab for a Gemma target": Tiny(
        {**DECODER, "architectures": ["DFlashDraftModel"], "block_size": 7, "rope_theta": 1e6, "dflash_config": TAPS,
         "final_logit_softcapping": 30.0, "tie_word_embeddings": True},
        keys={"dflash.embedding_scale": 8.0},
        target_model_type="gemma4_text",
    ),
    "Kimi": Tiny(
        {**DECODER, "architectures": ["DFlashDraftModel"], "block_size": 7, "rope_theta": 1e6, "dflash_config": TAPS,
         "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
        keys={"dflash.rope.scaling.type": "yarn", "dflash.rope.scaling.factor": 64.0,
              "dflash.rope.scaling.original_context_length": 64,
              "dflash.rope.scaling.attn_factor": 1 / (1 + 0.1 * float(np.log(64)))},
    ),
})  # fmt: skip
