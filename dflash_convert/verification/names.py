"""The verifier's own table of names: which GGUF tensor stands for which checkpoint tensor, and which rows are permuted.

In: the tensor names of a source. Out: `Pair`s (GGUF name, source name, rotary) and what has no place on either side.
Written from the published checkpoints and llama.cpp's loader, on purpose not from the converter's schema: the two must
agree without having copied from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Name:
    """One kind of tensor. `{i}` is the layer. rotary: rows (or entries) lie per head in rope's order."""

    gguf: str
    source: str
    optional: bool = False
    rotary: bool = False


NAMES = (
    Name("fc.weight", "fc.weight"),
    Name("enc.output_norm.weight", "hidden_norm.weight"),
    Name("output_norm.weight", "norm.weight"),
    Name("token_embd.weight", "embed_tokens.weight", optional=True),
    Name("output.weight", "lm_head.weight", optional=True),
    Name("blk.{i}.attn_norm.weight", "layers.{i}.input_layernorm.weight"),
    Name("blk.{i}.attn_q.weight", "layers.{i}.self_attn.q_proj.weight", rotary=True),
    Name("blk.{i}.attn_k.weight", "layers.{i}.self_attn.k_proj.weight", rotary=True),
    Name("blk.{i}.attn_v.weight", "layers.{i}.self_attn.v_proj.weight"),
    Name("blk.{i}.attn_output.weight", "layers.{i}.self_attn.o_proj.weight"),
    Name("blk.{i}.attn_q_norm.weight", "layers.{i}.self_attn.q_norm.weight", rotary=True),
    Name("blk.{i}.attn_k_norm.weight", "layers.{i}.self_attn.k_norm.weight", rotary=True),
    Name("blk.{i}.attn_sinks.weight", "layers.{i}.self_attn.attention_sink_bias", optional=True),
    Name("blk.{i}.ffn_norm.weight", "layers.{i}.post_attention_layernorm.weight"),
    Name("blk.{i}.ffn_gate.weight", "layers.{i}.mlp.gate_proj.weight"),
    Name("blk.{i}.ffn_up.weight", "layers.{i}.mlp.up_proj.weight"),
    Name("blk.{i}.ffn_down.weight", "layers.{i}.mlp.down_proj.weight"),
)
PREFIX = "model."
# part of a source tensor's name → the family it belongs to, which this table does not describe
UNSUPPORTED: Mapping[str, str] = {
    "markov_head.": "DSpark drafts",
    "candidate_selector.": "DFlash2 drafts",
    "aux_hidden_norms.": "Laguna drafts",
    "prefix_gru.": "Domino drafts",
    "d2t": "drafts with a vocabulary of their own",
}
BUFFERS = ("rotary_emb.inv_freq",)  # recomputed from the config by every runtime; no weights


@dataclass(frozen=True)
class Pair:
    """A tensor of the GGUF and the checkpoint tensor it must hold; `source` is None when the checkpoint has none."""

    gguf: str
    source: str | None
    rotary: bool = False


def pairs(source_names: Iterable[str], n_layer: int, *, own_embeddings: bool = True) -> tuple[Pair, ...]:
    """Every tensor the GGUF of a draft with `n_layer` layers must have, by this table.

    own_embeddings: False when the config says that an `embed_tokens` in the file is not the draft's own.
    """
    known = {_plain(name): name for name in source_names}
    found = []
    for row in NAMES:
        for i in range(n_layer) if "{i}" in row.gguf else (0,):
            source = known.get(_plain(row.source.format(i=i)))
            unused = row.gguf == "token_embd.weight" and not own_embeddings
            if not row.optional or (source is not None and not unused):
                found.append(Pair(row.gguf.format(i=i), source, row.rotary))
    return tuple(found)


def leftovers(source_names: Iterable[str], used: Iterable[Pair]) -> list[str]:
    """Source tensors that no GGUF tensor stands for (buffers apart)."""
    taken = {pair.source for pair in used}
    return sorted(n for n in source_names if n not in taken and not n.endswith(BUFFERS))


def _plain(name: str) -> str:
    """The name without the optional prefix; sinks are named with and without `.weight`."""
    name = name.removeprefix(PREFIX)
    return name.removesuffix(".weight") if name.endswith("sink_bias.weight") else name


def neox_order(n_rows: int, head_dim: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where each row of a NEOX-ordered tensor lies in an interleaved one: a head's even dimensions, then its odd."""
    rows = np.arange(n_rows, dtype=np.int64).reshape(-1, head_dim)  # (n_head, head_dim)
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1).reshape(-1)  # (n_rows)


def is_interleaved(config: Mapping[str, Any]) -> bool:
    """Whether the checkpoint's q and k rows lie in pairs (rope's original order) instead of halves."""
    return config.get("rope_is_neox_style") is False
