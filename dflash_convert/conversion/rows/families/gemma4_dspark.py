"""DSpark for Gemma 4: layers like the target's own.

Sandwich norms, a scalar behind each layer, values that are the keys (no v_proj), GELU, no scale on the attention
scores, embeddings times sqrt(width), and "proportional" rope: a part of each head turns with the frequencies of the
whole, the rest stays in place, which llama.cpp is told by a table of factors (1, or 1e30 for "does not turn").

Source: deepseek-ai/dspark_gemma4_12b_block7; llama.cpp's conversion/gemma.py, Gemma4DSparkModel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.conversion.rows.families import dspark
from dflash_convert.conversion.rows.fields import DRAFT_FIELDS, replaced
from dflash_convert.conversion.rows.schema import (
    DRAFT_KEYS,
    DRAFT_TENSORS,
    DSPARK_KEYS,
    DSPARK_TENSORS,
    LAYER_TENSORS,
    OWN_TABLES,
    KeyRow,
    TensorRow,
    in_layer,
)

NAMES = ("blk.{i}.attn_v.weight", "blk.{i}.ffn_norm.weight")


def is_mine(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return dspark.is_mine(config, names) and any(n.endswith(".pre_feedforward_layernorm.weight") for n in names)


def embedding_scale(config: Any) -> float:
    return float(config.embedding_scale or config.hidden_size**0.5)


def attention_scale(_: Any) -> float:
    """Gemma 4 normalises queries and keys and scales no further."""
    return 1.0


FULL = "rope_parameters.full_attention"  # every layer of the draft is a full one
FIELDS = replaced(
    DRAFT_FIELDS,
    head_dim=("global_head_dim",),
    num_key_value_heads=("num_global_key_value_heads",),
    hidden_act=("hidden_activation",),
    rope_theta=(f"{FULL}.rope_theta",),
    rope_type=(f"{FULL}.rope_type",),
    partial_rotary_factor=(f"{FULL}.partial_rotary_factor",),
)

LAYER: tuple[TensorRow, ...] = (
    *(row for row in LAYER_TENSORS if row.name not in NAMES),
    in_layer("post_attention_norm", "post_attention_layernorm", ("hidden_size",), "norm"),
    in_layer("ffn_norm", "pre_feedforward_layernorm", ("hidden_size",), "norm"),
    in_layer("post_ffw_norm", "post_feedforward_layernorm", ("hidden_size",), "norm"),
    TensorRow("blk.{i}.layer_output_scale.weight", "layers.{i}.layer_scalar", ("single",), "norm"),
)

FAMILY = replace(
    dspark.FAMILY,
    name="DSpark (Gemma 4)",
    is_mine=is_mine,
    keys=(
        *(
            replace(row, field="head_dim", value=None) if row.key == "{arch}.rope.dimension_count" else row
            for row in DRAFT_KEYS
            if row.field not in ("embedding_scale", "hidden_act")
        ),
        KeyRow("{arch}.embedding_scale", "f32", "embedding_scale", embedding_scale),
        KeyRow("{arch}.attention.scale", "f32", "attention_scale", attention_scale),
        KeyRow("{arch}.hidden_activation", "str", "hidden_act"),
        *DSPARK_KEYS,
    ),
    tensors=(*(row for row in DRAFT_TENSORS if row not in LAYER_TENSORS), *LAYER, *OWN_TABLES, *DSPARK_TENSORS),
    fields=FIELDS,
)
