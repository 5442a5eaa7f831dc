"""The tensors of a draft in a checkpoint, by the names of the code that trained it.

Sources: z-lab's dflash.py and dflash2.py (and SpecForge's), deepseek-ai/DeepSpec (modeling/dspark: qwen3, gemma4),
vllm-project/speculators (models/dflash, models/dspark). A class is a part of the file; which ones a file must have
follows from a tensor of each. A `model.` in front of the names is taken off by whoever hands over the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dflash_convert.runtime.weights import Module, OptionalTensor, Tensor

MARKOV, SELECTOR = "markov_head.markov_w1.weight", "candidate_selector.hidden_projection.weight"
CONFIDENCE = ("confidence_head.proj.weight", "confidence_proj.weight")
SANDWICH = "layers.0.pre_feedforward_layernorm.weight"

# part of a tensor's name → what it belongs to, for those that no part below claims
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "markov_head.gate_proj": "a gated Markov head",
        "markov_head.joint_proj": "an RNN Markov head",
        "markov_head": "a Markov head without markov_w1",
        "confidence_": "a confidence head of this kind",
        "candidate_selector": "a candidate selector without hidden_projection",
        "_conv.": "convolutions without a candidate selector",
        "prefix_gru": "Domino drafts",
        "embed_proj": "Domino drafts",
        "qkv_proj": "fused projections (Laguna)",
        "g_proj": "gated attention (Laguna, KDA)",
        "aux_hidden_norms": "Laguna drafts",
        "_conv1d": "linear attention (KDA)",
        "A_log": "linear attention (KDA)",
        "log_snr": "log-SNR conditioning (Bonsai)",
        "experts": "experts in the draft",
        "mtp.": "a draft inside its target (DeepSeek-V4)",
        "feedforward_layernorm": "Gemma's norms on some layers only",
        "layer_scalar": "Gemma's layer scale without its norms",
    }
)


class Layer(Module):
    """One block. post_attention_layernorm is the norm before the MLP here (Qwen3's sense). v_proj: only Gemma drafts
    with attention_k_eq_v have none, which reference.py checks."""

    input_layernorm = Tensor("layers.{i}.input_layernorm.weight", "hidden_size")
    q_proj = Tensor("layers.{i}.self_attn.q_proj.weight", "q_size", "hidden_size")
    k_proj = Tensor("layers.{i}.self_attn.k_proj.weight", "kv_size", "hidden_size")
    v_proj = OptionalTensor("layers.{i}.self_attn.v_proj.weight", "kv_size", "hidden_size")
    o_proj = Tensor("layers.{i}.self_attn.o_proj.weight", "hidden_size", "q_size")
    q_bias = OptionalTensor("layers.{i}.self_attn.q_proj.bias", "q_size")
    k_bias = OptionalTensor("layers.{i}.self_attn.k_proj.bias", "kv_size")
    v_bias = OptionalTensor("layers.{i}.self_attn.v_proj.bias", "kv_size")
    o_bias = OptionalTensor("layers.{i}.self_attn.o_proj.bias", "hidden_size")
    q_norm = Tensor("layers.{i}.self_attn.q_norm.weight", "head_dim")
    k_norm = Tensor("layers.{i}.self_attn.k_norm.weight", "head_dim")
    attention_sink_bias = OptionalTensor("layers.{i}.self_attn.attention_sink_bias", "num_attention_heads")
    post_attention_layernorm = Tensor("layers.{i}.post_attention_layernorm.weight", "hidden_size")
    gate_proj = Tensor("layers.{i}.mlp.gate_proj.weight", "intermediate_size", "hidden_size")
    up_proj = Tensor("layers.{i}.mlp.up_proj.weight", "intermediate_size", "hidden_size")
    down_proj = Tensor("layers.{i}.mlp.down_proj.weight", "hidden_size", "intermediate_size")


class ConvLayer(Layer):
    """A block of DFlash2."""

    attention_base = Tensor("layers.{i}.attention_conv.base_kernel", "two", "conv_kernel_size", "hidden_size")
    attention_projection = Tensor(
        "layers.{i}.attention_conv.kernel_projection.weight", "kernel_projection_size", "hidden_size"
    )
    mlp_base = Tensor("layers.{i}.mlp_conv.base_kernel", "two", "conv_kernel_size", "hidden_size")
    mlp_projection = Tensor("layers.{i}.mlp_conv.kernel_projection.weight", "kernel_projection_size", "hidden_size")


class SandwichLayer(Layer):
    """A block of Gemma 4: norms on both sides of attention and MLP, and a scale for the layer. Here
    post_attention_layernorm is what its name says."""

    pre_feedforward_layernorm = Tensor("layers.{i}.pre_feedforward_layernorm.weight", "hidden_size")
    post_feedforward_layernorm = Tensor("layers.{i}.post_feedforward_layernorm.weight", "hidden_size")
    layer_scalar = OptionalTensor("layers.{i}.layer_scalar", "one", also=("layers.{i}.layer_scalar.weight",))


class Ends(Module):
    """What lies before and behind the blocks. d2t: of each token the draft knows, how far the target's id is from its
    own; t2d says the same the other way round and is not read."""

    fc = Tensor("fc.weight", "hidden_size", "features_size", also=("encoder.fc.weight",))
    hidden_norm = Tensor("hidden_norm.weight", "hidden_size", also=("encoder.output_norm_enc.weight",))
    norm = Tensor("norm.weight", "hidden_size")
    embed_tokens = OptionalTensor("embed_tokens.weight", "vocab_size", "hidden_size")
    lm_head = OptionalTensor("lm_head.weight", "draft_vocab_size", "hidden_size")
    mask_embedding = OptionalTensor("mask_embedding", "hidden_size")
    d2t = OptionalTensor("d2t", "draft_vocab_size", also=("draft_id_to_target_id",))
    t2d = OptionalTensor("t2d", "vocab_size")


class Markov(Module):
    """DSpark's Markov head: w1 looks up the target's token, w2 gives a bias for every token the draft knows."""

    markov_w1 = Tensor(MARKOV, "vocab_size", "markov_rank")
    markov_w2 = Tensor("markov_head.markov_w2.weight", "draft_vocab_size", "markov_rank")


class Confidence(Module):
    """DSpark's confidence head, over the hidden state and, if it is that wide, the Markov embedding."""

    weight = Tensor(CONFIDENCE[0], "confidence_size", also=CONFIDENCE[1:])
    bias = OptionalTensor("confidence_head.proj.bias", "one", also=("confidence_proj.bias",))


class Selector(Module):
    """DFlash2's candidate selector."""

    hidden_projection = Tensor(SELECTOR, "selector_rank", "hidden_size")
    predecessor_codebook = Tensor(
        "candidate_selector.predecessor_codebook",
        "vocab_size",
        "selector_rank",
        also=("candidate_selector.predecessor_codebook.weight",),
    )
    successor_codebook = Tensor(
        "candidate_selector.successor_codebook",
        "vocab_size",
        "selector_rank",
        also=("candidate_selector.successor_codebook.weight",),
    )
