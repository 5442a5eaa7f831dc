"""The verifier's own table of names: which GGUF tensor stands for which checkpoint tensor, what becomes of its rows.

In: a source. Out: `Pair`s (GGUF name, source name, change) and what has no place. Written from the published
checkpoints and llama.cpp's loader, on purpose not from the converter's schema: the two must agree without having copied
from each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.runtime.reference_config import read_tied
from dflash_convert.runtime.reference_tensors import CONFIDENCE, MARKOV, SANDWICH, SELECTOR
from dflash_convert.verification.sources import MASK, Source

Order = np.ndarray[Any, np.dtype[np.int64]]

# what becomes of a checkpoint's rows in the GGUF, besides being copied
ROTARY = "rotary"  # rows (or entries) lie per head in rope's order: turned where the checkpoint interleaves them
IDS = "ids"  # offsets of a reduced vocabulary → the tokens themselves
MARKOV_ZEROS = "zeros"  # a confidence head without Markov features gets zeros for them


@dataclass(frozen=True)
class Name:
    """One kind of tensor. `{i}` is the layer. also: other names of the source."""

    gguf: str
    source: str
    change: str = ""
    optional: bool = False
    also: tuple[str, ...] = ()


def _layer(gguf: str, source: str, change: str = "", *, optional: bool = False) -> Name:
    return Name(f"blk.{{i}}.{gguf}.weight", f"layers.{{i}}.{source}", change, optional)


ENDS = (
    Name("fc.weight", "fc.weight", also=("encoder.fc.weight",)),
    Name("enc.output_norm.weight", "hidden_norm.weight", also=("encoder.output_norm_enc.weight",)),
    Name("output_norm.weight", "norm.weight"),
)
LAYER = (
    _layer("attn_norm", "input_layernorm.weight"),
    _layer("attn_q", "self_attn.q_proj.weight", ROTARY),
    _layer("attn_k", "self_attn.k_proj.weight", ROTARY),
    _layer("attn_output", "self_attn.o_proj.weight"),
    _layer("attn_q_norm", "self_attn.q_norm.weight", ROTARY),
    _layer("attn_k_norm", "self_attn.k_norm.weight", ROTARY),
    Name(
        "blk.{i}.attn_sinks.weight", "layers.{i}.self_attn.attention_sink_bias", optional=True,
        also=("layers.{i}.self_attn.attention_sink_bias.weight", "layers.{i}.self_attn.sinks"),
    ),
    _layer("ffn_gate", "mlp.gate_proj.weight"),
    _layer("ffn_up", "mlp.up_proj.weight"),
    _layer("ffn_down", "mlp.down_proj.weight"),
)  # fmt: skip
PLAIN = (_layer("attn_v", "self_attn.v_proj.weight"), _layer("ffn_norm", "post_attention_layernorm.weight"))
SANDWICHED = (
    _layer("attn_v", "self_attn.v_proj.weight", optional=True),
    _layer("post_attention_norm", "post_attention_layernorm.weight"),
    _layer("ffn_norm", "pre_feedforward_layernorm.weight"),
    _layer("post_ffw_norm", "post_feedforward_layernorm.weight"),
    _layer("layer_output_scale", "layer_scalar", optional=True),
)
CONVOLUTIONS = (
    Name("blk.{i}.attn_conv_base", "layers.{i}.attention_conv.base_kernel"),
    _layer("attn_conv_proj", "attention_conv.kernel_projection.weight"),
    Name("blk.{i}.ffn_conv_base", "layers.{i}.mlp_conv.base_kernel"),
    _layer("ffn_conv_proj", "mlp_conv.kernel_projection.weight"),
    *(
        Name(f"selector_{ours}.weight", f"candidate_selector.{theirs}", also=(f"candidate_selector.{theirs}.weight",))
        for ours, theirs in (("predecessor", "predecessor_codebook"), ("successor", "successor_codebook"))
    ),
    Name("selector_hidden.weight", SELECTOR),
)
DSPARK = (
    Name("markov_w1.weight", MARKOV),
    Name("markov_w2.weight", "markov_head.markov_w2.weight"),
    Name("conf_proj.weight", CONFIDENCE[0], MARKOV_ZEROS, optional=True, also=CONFIDENCE[1:]),
    Name("conf_proj.bias", "confidence_head.proj.bias", optional=True, also=("confidence_proj.bias",)),
)
TABLES = (
    Name("token_embd.weight", "embed_tokens.weight", optional=True),
    Name("output.weight", "lm_head.weight", optional=True),
    Name("d2t", "d2t", IDS, optional=True, also=("draft_id_to_target_id",)),
)
INVERSES = ("t2d", "target_id_to_draft_id")  # say the same as d2t, the other way round
THE_TARGETS = "it is the target's own, which is not compared"


@dataclass(frozen=True)
class Pair:
    """A tensor of the GGUF and the checkpoint tensor it must hold; `source` None: the checkpoint has none, for `why`.

    shape: what the GGUF's must be, None where nothing says.
    """

    gguf: str
    source: str | None
    change: str = ""
    shape: tuple[int, ...] | None = None
    why: str = "the checkpoint has no tensor for it"


def pairs(source: Source) -> tuple[Pair, ...]:
    """Every tensor the GGUF of a draft must have, by this table."""
    found = [pair for name in _names(source) for pair in _expanded(name, source)]
    return (*found, *_borrowed(source, {p.gguf for p in found}))


def _names(source: Source) -> Iterator[Name]:
    yield from ENDS
    yield from TABLES
    yield from LAYER
    yield from SANDWICHED if SANDWICH in source.weights else PLAIN
    yield from CONVOLUTIONS if SELECTOR in source.weights else ()
    yield from DSPARK if MARKOV in source.weights else ()


def _expanded(name: Name, source: Source) -> Iterator[Pair]:
    for i in range(source.n_layer) if "{i}" in name.gguf else (0,):
        spelled = [n.format(i=i) for n in (name.source, *name.also)]
        there = next((n for n in spelled if n in source.weights), None)
        if there is not None or not name.optional:
            yield _pair(name.gguf.format(i=i), there, name.change, source)


def _pair(gguf: str, there: str | None, change: str, source: Source) -> Pair:
    """With the change that is really made of this source, and the shape that it gives."""
    if there is None:
        return Pair(gguf, None)
    shape = source.weights.shape(there)
    if change == MARKOV_ZEROS:
        full = (1, source.hidden_size + source.weights.shape(MARKOV)[-1])
        return Pair(gguf, there, change if shape != full else "", full)
    if change == ROTARY and not source.is_interleaved:
        return Pair(gguf, there, "", shape)
    return Pair(gguf, there, change, shape)


def _borrowed(source: Source, found: set[str]) -> Iterator[Pair]:
    """A file carries embeddings and head both or not at all; which the checkpoint lacks, it has of the target."""
    apart = MASK in source.weights  # the mask token's row lies in a file of its own
    has_table, has_head = "token_embd.weight" in found or apart, "output.weight" in found
    if apart and "token_embd.weight" not in found:
        yield Pair("token_embd.weight", None, why=THE_TARGETS)
    if has_table and not has_head and (apart or not read_tied(source.schema)):
        yield Pair("output.weight", None, why=THE_TARGETS)


def leftovers(source: Source, used: Iterable[Pair]) -> list[str]:
    """Source tensors that no GGUF tensor stands for (biases of zeros and inverse tables apart)."""
    taken = {pair.source for pair in used} | {MASK, *INVERSES}
    return sorted(n for n in source.weights.names() if n not in taken and not _adds_nothing(n, source))


def _adds_nothing(name: str, source: Source) -> bool:
    return name.endswith("_proj.bias") and name.startswith("layers.") and not source.weights(name).any()


def neox_order(n_rows: int, head_dim: int) -> Order:
    """Where each row of a NEOX-ordered tensor lies in an interleaved one: a head's even dimensions, then its odd."""
    rows = np.arange(n_rows, dtype=np.int64).reshape(-1, head_dim)  # (n_head, head_dim)
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1).reshape(-1)  # (n_rows)
