"""Kinds of drafts that llama.cpp cannot run, or that this converter cannot write: what shows them, what they are, and
what would be needed. Keys are asked of a draft before anything else is read; tensors of every checkpoint. A label never
rescues a file whose keys or tensors say otherwise.
"""

from __future__ import annotations

from dflash_convert.conversion.rows.schema import RefusedKey, RefusedTensor

JETSPEC = "a JetSpec draft (causal head)"
JETSPEC_NEEDS = "llama.cpp has no graph for its second, causal head"
DOMINO = "a Domino draft (a GRU over the draft's prefix)"
DOMINO_NEEDS = "llama.cpp has no graph for its recurrent prefix"
KDA = "a KDA hybrid (linear attention)"
KDA_NEEDS = "llama.cpp's dflash has softmax attention only"
MLA = "an MLA draft (latent attention)"
MLA_NEEDS = "llama.cpp's dflash has plain grouped-query attention only"
MOE = "a mixture-of-experts draft"
MOE_NEEDS = "llama.cpp's dflash creates no expert tensors outside DeepSeek-V4"
LOG_SNR = "a log-SNR conditioned draft (Bonsai)"
LOG_SNR_NEEDS = "mainline llama.cpp has no such conditioning: use the fork it was published for"
LAGUNA = "a Laguna draft (a gate on each head, a norm for each tap)"
LAGUNA_NEEDS = "mainline llama.cpp has neither gate nor tap norms: use poolside's fork"
GATED_Q = "a Qwen3.5 DSpark draft with gated queries"
GATED_Q_NEEDS = "mainline llama.cpp's dflash has no gate behind the attention"
MARKOV = "a gated or recurrent Markov head"
MARKOV_NEEDS = "llama.cpp runs the vanilla Markov head only"
EMBEDDED = "a DSpark draft inside its target's checkpoint (DeepSeek-V4: mtp.* with hyper-connections)"
MASK_NEEDS = "it is read from mask_embedding.pt only: save the tensor there"
EMBEDDED_NEEDS = "use llama.cpp's own converter for DeepseekV4DSparkModel: hyper-connections are not built here"

REFUSED_KEYS: tuple[RefusedKey, ...] = (
    RefusedKey("dflash_config.causal_head", JETSPEC, JETSPEC_NEEDS),
    RefusedKey("dflash_config.projector_type", DOMINO, DOMINO_NEEDS, value="domino"),
    RefusedKey("projector_type", DOMINO, DOMINO_NEEDS, value="domino"),
    RefusedKey("dflash_config.attention_modes", KDA, KDA_NEEDS),
    RefusedKey("dflash_config.attention_mode", KDA, KDA_NEEDS, known=("gqa", "mha")),
    RefusedKey("attention_mode", KDA, KDA_NEEDS, known=("gqa", "mha")),
    RefusedKey("linear_attn_config", KDA, KDA_NEEDS),
    RefusedKey("kv_lora_rank", MLA, MLA_NEEDS),
    RefusedKey("n_routed_experts", MOE, MOE_NEEDS),
    RefusedKey("num_experts", MOE, MOE_NEEDS),
    RefusedKey("enable_moe_block", MOE, MOE_NEEDS),
    RefusedKey("moe_preset", MOE, MOE_NEEDS),
    RefusedKey("log_snr_conditioning", LOG_SNR, LOG_SNR_NEEDS),
    RefusedKey("gating", LAGUNA, LAGUNA_NEEDS),
    RefusedKey("enable_qwen35_gated_q_proj", GATED_Q, GATED_Q_NEEDS),
    RefusedKey("markov_head_type", MARKOV, MARKOV_NEEDS, known=("vanilla",)),
    RefusedKey("dflash_config.markov_head_type", MARKOV, MARKOV_NEEDS, known=("vanilla",)),
    RefusedKey("dspark_config.markov_head_type", MARKOV, MARKOV_NEEDS, known=("vanilla",)),
    RefusedKey("transformer_layer_config.markov_head_type", MARKOV, MARKOV_NEEDS, known=("vanilla",)),
    RefusedKey("dspark_fixup_head_type", MARKOV, MARKOV_NEEDS, known=("markov",)),
    RefusedKey("dspark_target_layer_ids", EMBEDDED, EMBEDDED_NEEDS),
)

REFUSED_TENSORS: tuple[RefusedTensor, ...] = (
    RefusedTensor("markov_head.gate_proj.*", MARKOV, MARKOV_NEEDS),
    RefusedTensor("markov_head.joint_proj.*", MARKOV, MARKOV_NEEDS),
    RefusedTensor("prefix_gru.*", DOMINO, DOMINO_NEEDS),
    RefusedTensor("embed_proj.*", DOMINO, DOMINO_NEEDS),
    RefusedTensor("log_snr_fc*", LOG_SNR, LOG_SNR_NEEDS),
    RefusedTensor("aux_hidden_norms.*", LAGUNA, LAGUNA_NEEDS),
)

BF16 = "convert the bf16 original"
SCALE = "a scale of quantized weights in a scheme that is not known"
PACKED = "a quantized weight in a scheme that is not known"

# What a tensor without a row most likely is; asked once the family is known.
UNPLACED: tuple[RefusedTensor, ...] = (
    RefusedTensor("*.self_attn.g_proj.*", "the gate of gated attention", LAGUNA_NEEDS),
    RefusedTensor("*.self_attn.qkv_proj.*", "a fused projection of queries, keys and values", LAGUNA_NEEDS),
    RefusedTensor("*.A_log", KDA, KDA_NEEDS),
    RefusedTensor("*_conv1d.*", KDA, KDA_NEEDS),
    RefusedTensor("*.dt_bias", KDA, KDA_NEEDS),
    RefusedTensor("*.kv_a_proj_with_mqa.*", MLA, MLA_NEEDS),
    RefusedTensor("*.q_a_proj.*", MLA, MLA_NEEDS),
    RefusedTensor("*.mlp.experts.*", "an expert of a mixture", MOE_NEEDS),
    RefusedTensor("*.mlp.shared_expert*", "an expert of a mixture", MOE_NEEDS),
    RefusedTensor("*.mlp.gate.weight", "the router of a mixture of experts", MOE_NEEDS),
    RefusedTensor("mtp.*", "a multi-token prediction layer", EMBEDDED_NEEDS),
    RefusedTensor("candidate_selector.*", "a part of a DFlash2 selector"),
    RefusedTensor("markov_head.*", "a part of a Markov head"),
    RefusedTensor("confidence_head.*", "a confidence head in a draft without a Markov head"),
    RefusedTensor("confidence_proj.*", "a confidence head in a draft without a Markov head"),
    RefusedTensor("mask_embedding*", "the mask token's embedding inside the weights", MASK_NEEDS),
    RefusedTensor("*_scale*", SCALE, BF16),
    RefusedTensor("*_packed", PACKED, BF16),
    RefusedTensor("*.qweight", PACKED, BF16),
    RefusedTensor("*.scales", SCALE, BF16),
    RefusedTensor("*.SCB", SCALE, BF16),
    RefusedTensor("*.qzeros", SCALE, BF16),
    RefusedTensor("*.g_idx", SCALE, BF16),
    RefusedTensor("*.bias", "a bias that is not zero", "llama.cpp's dflash has no place for biases"),
)  # fmt: skip
