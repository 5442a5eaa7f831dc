"""A tiny draft GGUF in every dialect, by hand from published files and loaders: keys and tensor names, made-up weights.

All of them say the same: 2 layers, 5 taps whose checkpoint ids are 1, 5, 9, 13, 17, block size 8, mask token 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from make import make_gguf

N_EMBD = 8
RAW, SHIFTED = [1, 5, 9, 13, 17], [2, 6, 10, 14, 18]
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e", "f", "g", "<mask>"],
}  # fmt: skip
MASK = {"tokenizer.ggml.mask_token_id": 7}
COMMON = {
    "block_count": 2, "context_length": 64, "embedding_length": N_EMBD, "feed_forward_length": 16,
    "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 4, "attention.value_length": 4,
    "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e7,
}  # fmt: skip
NESTED = {"dflash.block_size": 8, "dflash.mask_token_id": 7, "dflash.target_layer_ids": RAW}
WINDOW = {"attention.sliding_window": 32, "attention.sliding_window_pattern": [True, False]}
LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm", "ffn_norm",
         "ffn_gate", "ffn_up", "ffn_down")  # fmt: skip


def keys(arch: str, *groups: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Keys below the architecture's prefix, and others as they are."""
    below = {f"{arch}.{k}": v for group in groups for k, v in group.items()}
    return {"general.architecture": arch, **below, **(others or {})}


def tensors(fc: str, norm: str, *more: str, ffn_norm: str = "ffn_norm") -> dict[str, Any]:
    """The usual tensors under the names a dialect has for them."""
    layers = [f"blk.{i}.{ffn_norm if n == 'ffn_norm' else n}.weight" for i in (0, 1) for n in LAYER]
    vectors = {n: np.ones(N_EMBD, np.float32) for n in (norm, "output_norm.weight", *layers) if "norm" in n}
    matrices = {n: np.ones((N_EMBD, N_EMBD), np.float16) for n in (*layers, *more) if "norm" not in n}
    return {fc: np.ones((N_EMBD, len(RAW) * N_EMBD), np.float16), **vectors, **matrices}


UPSTREAM = tensors("fc.weight", "enc.output_norm.weight")
EARLY = tensors("fc.weight", "hidden_norm.weight")
FORK = tensors("dflash_fc.weight", "dflash_hidden_norm.weight", ffn_norm="post_attention_norm")
DOTTED = tensors("dflash.fc.weight", "dflash.hidden_norm.weight")
FLAT = {"block_size": 8, "target_layers": SHIFTED}
HF_NAMES = {
    "num_hidden_layers": 2, "max_position_embeddings": 64, "hidden_size": N_EMBD, "intermediate_size": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e7,
    "block_size": 8, "mask_token_id": 7, "target_layer_ids": RAW, "num_target_layers": 12,
}  # fmt: skip
WITH_VOCAB = {**TOKENIZER, **MASK}

# dialect → keys, tensors
FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mainline": (keys("dflash", COMMON, FLAT, WINDOW, others=WITH_VOCAB), UPSTREAM),
    "pull-22105-early": (
        keys(
            "dflash", COMMON, {"block_size": 8, "target_layer_ids": SHIFTED, "mask_token_id": 7}, others=TOKENIZER
        ),
        EARLY,
    ),
    "pull-22105-late": (keys("dflash", COMMON, FLAT, {"mask_token_id": 7}, others=TOKENIZER), UPSTREAM),
    "beellama-rewritten": (keys("dflash", COMMON, FLAT, {"n_target_features": 40}, others=WITH_VOCAB), UPSTREAM),
    "laguna": (
        keys("dflash", COMMON, FLAT, {"decoder_arch": "laguna"}, others=WITH_VOCAB),
        {**UPSTREAM, **tensors("fc.weight", "enc.aux_norm.weight", "blk.0.attn_gate.weight")},
    ),
    "early-converter": (
        keys("dflash", COMMON, NESTED, {"dflash.num_target_layers": 5}, others=TOKENIZER),
        tensors("dflash_fc.weight", "dflash_hidden_norm.weight"),
    ),
    "beellama": (
        keys("dflash-draft", COMMON, NESTED, WINDOW, {"dflash.n_target_features": 40}, others=TOKENIZER), FORK,
    ),
    "ik-llama": (
        keys("dflash-draft", COMMON, NESTED, WINDOW, {"dflash.backbone_rotary_base": 1e7}, others=TOKENIZER), FORK,
    ),
    "oxidize": (keys("dflash-draft", HF_NAMES, {f"dflash.{k}": v for k, v in HF_NAMES.items()}), FORK),
    "lucebox": (
        keys("qwen35-dflash-draft", COMMON, NESTED, WINDOW, {"dflash.n_target_layers": 5, "vocab_size": 8}), DOTTED,
    ),
    "lucebox-gemma": (keys("gemma4-dflash-draft", COMMON, NESTED, {"attention.sliding_window": 32}), DOTTED),
    "buun-gemma": (keys("gemma4-dflash-draft", COMMON, NESTED, FLAT, others=WITH_VOCAB), DOTTED),
    "lucebox-deepseek": (
        keys(
            "deepseek4-dflash-draft", COMMON, NESTED,
            {"dflash.target_layer_ids": SHIFTED, "dflash.capture_layer_ids": RAW},
        ),
        DOTTED,
    ),
    "prismml": (
        keys(
            "dspark", COMMON, {"dspark.block_size": 8, "dspark.mask_token_id": 7, "dspark.target_layers": RAW},
            others=TOKENIZER,
        ),
        tensors("dspark.fc.weight", "dspark.hidden_norm.weight", "dspark.markov_head_a.weight"),
    ),
}  # fmt: skip


def write(path: Path, name: str, **changes: Any) -> Path:
    """The file of a dialect. changes: keys (dots as `__`) with another value, None for none."""
    kv, given = FILES[name]
    changed = {**kv, **{k.replace("__", "."): v for k, v in changes.items()}}
    return make_gguf(path, {k: v for k, v in changed.items() if v is not None}, given)
