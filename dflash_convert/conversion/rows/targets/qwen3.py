"""Qwen3, dense (Qwen/Qwen3-4B and its like). Tied models have no lm_head; the engine then uses the embeddings."""

from __future__ import annotations

from dflash_convert.conversion.rows.schema import LAYER_TENSORS, TARGET_KEYS, TensorRow
from dflash_convert.conversion.rows.targets.target import Target

TARGET = Target(
    name="Qwen3",
    arch="qwen3",
    architectures=("Qwen3ForCausalLM",),
    keys=TARGET_KEYS,
    tensors=(
        TensorRow("token_embd.weight", "embed_tokens.weight", ("vocab_size", "hidden_size"), "token_embd"),
        *LAYER_TENSORS,
        TensorRow("output_norm.weight", "norm.weight", ("hidden_size",), "norm"),
        TensorRow("output.weight", "lm_head.weight", ("vocab_size", "hidden_size"), "output", required=False),
    ),
)
