"""The tensors of a draft in a GGUF, by llama.cpp's names (src/models/dflash.cpp, load_arch_tensors).

Every class is a part of the file; which parts a file must have follows from a tensor of each: `markov_w1.weight` makes
it DSpark, `selector_hidden.weight` DFlash2, whose layers then have convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dflash_convert.runtime.weights import Module, OptionalTensor, Tensor

DSPARK, DFLASH2 = "markov_w1.weight", "selector_hidden.weight"

# part of a tensor's name → what it belongs to, for those that no part below claims
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "hc_": "DeepSeek-V4 drafts",
        "exps": "experts in the draft, which llama.cpp's dense graph does not load",
        "_conv_": "convolutions without a candidate selector",
        "selector_": "a candidate selector without selector_hidden.weight",
        "markov_": "a Markov head without markov_w1.weight",
        "conf_proj": "a confidence head without a Markov head, which llama.cpp does not load",
        ".bias": "biases in the draft, which llama.cpp does not load",
        "aux_norm": "Laguna drafts",
        "attn_gate": "gated attention (Laguna)",
    }
)


class Layer(Module):
    """One block. Without attn_v the keys serve as values; the two post norms and the scale are Gemma's."""

    attn_norm = Tensor("blk.{i}.attn_norm.weight", "n_embd")
    attn_q = Tensor("blk.{i}.attn_q.weight", "n_embd_q", "n_embd")
    attn_k = Tensor("blk.{i}.attn_k.weight", "n_embd_kv", "n_embd")
    attn_v = OptionalTensor("blk.{i}.attn_v.weight", "n_embd_kv", "n_embd")
    attn_output = Tensor("blk.{i}.attn_output.weight", "n_embd", "n_embd_q")
    attn_q_norm = Tensor("blk.{i}.attn_q_norm.weight", "n_embd_head")
    attn_k_norm = Tensor("blk.{i}.attn_k_norm.weight", "n_embd_head")
    attn_sinks = OptionalTensor("blk.{i}.attn_sinks.weight", "n_head")
    post_attention_norm = OptionalTensor("blk.{i}.post_attention_norm.weight", "n_embd")
    ffn_norm = Tensor("blk.{i}.ffn_norm.weight", "n_embd")
    ffn_gate = Tensor("blk.{i}.ffn_gate.weight", "n_ff", "n_embd")
    ffn_up = Tensor("blk.{i}.ffn_up.weight", "n_ff", "n_embd")
    ffn_down = Tensor("blk.{i}.ffn_down.weight", "n_embd", "n_ff")
    post_ffw_norm = OptionalTensor("blk.{i}.post_ffw_norm.weight", "n_embd")
    layer_output_scale = OptionalTensor("blk.{i}.layer_output_scale.weight", "one")


class ConvLayer(Layer):
    """A block of DFlash2: convolutions before and after attention and FFN, (side, tap, channel)."""

    attn_conv_base = Tensor("blk.{i}.attn_conv_base", "two", "conv_kernel_size", "n_embd")
    attn_conv_proj = Tensor("blk.{i}.attn_conv_proj.weight", "n_conv_proj", "n_embd")
    ffn_conv_base = Tensor("blk.{i}.ffn_conv_base", "two", "conv_kernel_size", "n_embd")
    ffn_conv_proj = Tensor("blk.{i}.ffn_conv_proj.weight", "n_conv_proj", "n_embd")


class Ends(Module):
    """What lies before and behind the blocks. d2t: the target's token id of every row of the draft's head."""

    fc = Tensor("fc.weight", "n_embd", "n_embd_inp")
    enc_output_norm = Tensor("enc.output_norm.weight", "n_embd")
    output_norm = Tensor("output_norm.weight", "n_embd")
    token_embd = OptionalTensor("token_embd.weight", "n_vocab", "n_embd")
    output = OptionalTensor("output.weight", "n_vocab_draft", "n_embd")
    d2t = OptionalTensor("d2t", "n_vocab_draft")
    rope_freqs = OptionalTensor("rope_freqs.weight", "n_embd_head_half")


class Markov(Module):
    """DSpark's heads. markov_w1 has a row for every token of the target, markov_w2 for every row of the draft's head;
    the confidence reads the hidden state and the markov_w1 row of the token before."""

    markov_w1 = Tensor(DSPARK, "n_vocab", "markov_rank")
    markov_w2 = Tensor("markov_w2.weight", "n_vocab_draft", "markov_rank")
    conf_proj = OptionalTensor("conf_proj.weight", "n_conf")
    conf_proj_b = OptionalTensor("conf_proj.bias", "one")


class Selector(Module):
    """DFlash2's candidate selector: what a token says of its successor, gated by the hidden state."""

    hidden = Tensor(DFLASH2, "selector_rank", "n_embd")
    predecessor = Tensor("selector_predecessor.weight", "n_vocab", "selector_rank")
    successor = Tensor("selector_successor.weight", "n_vocab", "selector_rank")
