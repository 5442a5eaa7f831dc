"""A dense Qwen3 target from a checkpoint: the names and config of transformers' Qwen3ForCausalLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.runtime.hf_config import DecoderConfig, read_decoder, require
from dflash_convert.runtime.targets.qwen3 import Qwen3
from dflash_convert.runtime.weights import Module, OptionalTensor, Resident, Tensor, Weights, check


@dataclass(frozen=True)
class TargetConfig(DecoderConfig):
    """Sizes of the target and its vocabulary."""

    vocab_size: int


class Layer(Module):
    input_norm = Tensor("model.layers.{i}.input_layernorm.weight", "hidden_size")
    q = Tensor("model.layers.{i}.self_attn.q_proj.weight", "q_size", "hidden_size")
    k = Tensor("model.layers.{i}.self_attn.k_proj.weight", "kv_size", "hidden_size")
    v = Tensor("model.layers.{i}.self_attn.v_proj.weight", "kv_size", "hidden_size")
    o = Tensor("model.layers.{i}.self_attn.o_proj.weight", "hidden_size", "q_size")
    q_norm = Tensor("model.layers.{i}.self_attn.q_norm.weight", "head_dim")
    k_norm = Tensor("model.layers.{i}.self_attn.k_norm.weight", "head_dim")
    mlp_norm = Tensor("model.layers.{i}.post_attention_layernorm.weight", "hidden_size")
    gate = Tensor("model.layers.{i}.mlp.gate_proj.weight", "intermediate_size", "hidden_size")
    up = Tensor("model.layers.{i}.mlp.up_proj.weight", "intermediate_size", "hidden_size")
    down = Tensor("model.layers.{i}.mlp.down_proj.weight", "hidden_size", "intermediate_size")


class Ends(Module):
    """The untied model."""

    embeddings = Tensor("model.embed_tokens.weight", "vocab_size", "hidden_size")
    norm = Tensor("model.norm.weight", "hidden_size")
    output = Tensor("lm_head.weight", "vocab_size", "hidden_size")


class TiedEnds(Module):
    """The tied model: a copy of the head may lie in the file, and is not used."""

    embeddings = Tensor("model.embed_tokens.weight", "vocab_size", "hidden_size")
    norm = Tensor("model.norm.weight", "hidden_size")
    unused_copy = OptionalTensor("lm_head.weight", "vocab_size", "hidden_size")
    output = None


def load(config: Mapping[str, Any], weights: Weights) -> Qwen3:
    """The target of a checkpoint. Raises ConfigError, CheckpointError: what is missing, left over or unsupported."""
    if config.get("use_sliding_window"):
        raise ConfigError("config.json: not supported yet: a Qwen3 target with use_sliding_window")
    kept, vocab_size = Resident(weights), int(require("vocab_size", config))
    c = TargetConfig(**vars(read_decoder(config)), vocab_size=vocab_size)
    ends = (TiedEnds if config.get("tie_word_embeddings") else Ends)(kept, c)
    layers = [Layer(kept, c, i) for i in range(c.num_hidden_layers)]
    check([ends, *layers], "the target's checkpoint", CheckpointError)
    return Qwen3(
        n_embd=c.hidden_size,
        n_vocab=vocab_size,
        n_head=c.num_attention_heads,
        n_head_kv=c.num_key_value_heads,
        n_embd_head=c.head_dim,
        eps=c.rms_norm_eps,
        rope=c.rope,
        ends=ends,
        layers=layers,
    )
