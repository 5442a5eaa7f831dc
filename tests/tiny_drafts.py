"""Tiny random drafts, one a published schema: as a checkpoint, and as the GGUF that says the same.

Both halves of a row are written by hand, from configs as they are published and from llama.cpp's names and keys, so
that agreement of the two sides is agreement about what the schema means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from handmade_gguf import draft_names, without_none, write_gguf
from runtime_pair import ROTARY, SafetensorsWeights, halves

from dflash_convert.runtime.draft import DFlashDraft, load_draft
from dflash_convert.runtime.interface import TargetOutput
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import DFlashReference, load_reference

HIDDEN, FFN, N_HEAD, N_KV, HEAD_DIM, VOCAB, DRAFT_VOCAB, RANK, TAPS = 64, 96, 4, 2, 32, 320, 100, 16, 3

DECODER: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 2,
    "num_attention_heads": N_HEAD, "num_key_value_heads": N_KV, "head_dim": HEAD_DIM, "hidden_act": "silu",
    "rms_norm_eps": 1e-6, "max_position_embeddings": 4096, "vocab_size": VOCAB,
}  # fmt: skip
KEYS: dict[str, Any] = {
    "general.architecture": "dflash", "dflash.block_count": 2, "dflash.context_length": 4096,
    "dflash.embedding_length": HIDDEN, "dflash.feed_forward_length": FFN, "dflash.attention.head_count": N_HEAD,
    "dflash.attention.head_count_kv": N_KV, "dflash.attention.key_length": HEAD_DIM,
    "dflash.attention.value_length": HEAD_DIM, "dflash.attention.layer_norm_rms_epsilon": 1e-6,
    "dflash.rope.freq_base": 1e6, "dflash.block_size": 7, "dflash.target_layers": [2, 4, 6],
    "tokenizer.ggml.mask_token_id": 319,
}  # fmt: skip
LAYER_SHAPES: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (HIDDEN,), "post_attention_layernorm.weight": (HIDDEN,),
    "self_attn.q_proj.weight": (N_HEAD * HEAD_DIM, HIDDEN), "self_attn.k_proj.weight": (N_KV * HEAD_DIM, HIDDEN),
    "self_attn.v_proj.weight": (N_KV * HEAD_DIM, HIDDEN), "self_attn.o_proj.weight": (HIDDEN, N_HEAD * HEAD_DIM),
    "self_attn.q_norm.weight": (HEAD_DIM,), "self_attn.k_norm.weight": (HEAD_DIM,),
    "mlp.gate_proj.weight": (FFN, HIDDEN), "mlp.up_proj.weight": (FFN, HIDDEN), "mlp.down_proj.weight": (HIDDEN, FFN),
}  # fmt: skip
SHAPES: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, TAPS * HIDDEN), "hidden_norm.weight": (HIDDEN,), "norm.weight": (HIDDEN,),
    **{f"layers.{i}.{name}": shape for i in (0, 1) for name, shape in LAYER_SHAPES.items()},
}  # fmt: skip
MARKOV = {"markov_head.markov_w1.weight": (VOCAB, RANK), "markov_head.markov_w2.weight": (VOCAB, RANK)}
CONFIDENCE = {"confidence_head.proj.weight": (1, HIDDEN + RANK), "confidence_head.proj.bias": (1,)}
TABLES = {"embed_tokens.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
SINKS = {f"layers.{i}.self_attn.attention_sink_bias": (N_HEAD,) for i in (0, 1)}


@dataclass(frozen=True)
class Tiny:
    """config: config.json. shapes: tensors added to the usual ones; None takes one away. given: tensors with these
    values. keys: GGUF keys added to the usual ones. names: checkpoint name → GGUF name, where a schema has its own.
    made: GGUF tensors that are no copies, from the checkpoint's and the target's. target_model_type: see
    `load_reference`."""

    config: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    given: Mapping[str, Array] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    made: Any = None
    target_model_type: str = ""

    def tensors(self) -> dict[str, Array]:
        """The checkpoint: matrices of about unit gain, vectors around 1, tables and heads of unit rows."""
        rng = np.random.default_rng(0)
        shapes = without_none({**SHAPES, **self.shapes})
        return {**{name: _random(rng, name, shape) for name, shape in shapes.items()}, **self.given}

    def reference(self) -> DFlashReference:
        return load_reference(self.config, SafetensorsWeights(self.tensors()), self.target_model_type)

    def gguf_tensors(self) -> dict[str, Array]:
        """The GGUF's tensors: the checkpoint's under their other names, and what is made of them."""
        tensors = self.tensors()
        origins = {**draft_names(), **{ours: theirs for theirs, ours in self.names.items()}}
        renamed = {ours: tensors[theirs] for ours, theirs in origins.items() if theirs in tensors}
        return {**renamed, **(self.made(tensors) if self.made else {})}

    def draft(self, folder: Path) -> DFlashDraft:
        return load_draft(write_gguf(folder / "draft.gguf", {**KEYS, **self.keys}, self.gguf_tensors(), "F32"))


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Array:
    x = rng.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return x * 0.1 if name.endswith("bias") else 1 + 0.2 * x
    return x / np.float32(np.sqrt(shape[-1]) if "codebook" not in name else 1.0)


class TinyTarget:
    """A target that only lends its tables: what a draft asks of it besides features."""

    n_layer, n_embd, n_vocab = 8, HIDDEN, VOCAB

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.table, self.weight = (rng.standard_normal((VOCAB, HIDDEN), dtype=np.float32) for _ in range(2))

    def embed(self, ids: Sequence[int]) -> Array:
        return self.table[list(ids)]

    def head(self, hidden: Array) -> Array:
        out: Array = hidden @ self.weight.T
        return out

    def new_cache(self) -> Any:
        raise NotImplementedError

    def forward(self, ids: Sequence[int], cache: Any) -> TargetOutput:
        raise NotImplementedError


def layers(names: Mapping[str, str]) -> dict[str, str]:
    """Checkpoint name → GGUF name of both layers."""
    return {f"layers.{i}.{theirs}": f"blk.{i}.{ours}" for i in (0, 1) for theirs, ours in names.items()}


def interleaved(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The rotary rows of both layers put into halves."""
    names = draft_names()
    return {n: halves(tensors[names[n]], HEAD_DIM) for n in names if n.endswith(ROTARY)}


def absolute_d2t(tensors: Mapping[str, Array]) -> dict[str, Array]:
    offsets = tensors.get("d2t", tensors.get("draft_id_to_target_id"))
    assert offsets is not None
    return {"d2t": offsets + np.arange(len(offsets))}


def patched_tables(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """MiMo: the target's embeddings with the draft's row for the mask token, and the target's head."""
    table = TinyTarget().table.copy()
    table[319] = tensors["mask_embedding"]
    return {"token_embd.weight": table, "output.weight": TinyTarget().weight}


def borrowed_head(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Nemotron: the draft has embeddings of its own and takes the target's head."""
    return {"output.weight": TinyTarget().weight}


def standing_dimensions(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Gemma 4: a quarter of the 32 pairs turn, the others are slowed down to nothing."""
    return {"rope_freqs.weight": np.array([1.0] * 8 + [1e30] * 24, np.float32)}
