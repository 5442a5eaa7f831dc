"""DSpark: a DFlash draft with a Markov head, which biases each position's logits by the token before it.

One family for all its layouts, since the tensors are the same and every value has one row whatever its place: DeepSpec
(flat), SpecForge (nested, split into `dspark_config`, flattened), speculators (`transformer_layer_config`), LiquidAI
(interleaved rope), MiniMax-M3 (everything in `dflash_config`) and Nemotron (sinks, embeddings of its own). The
confidence head is optional.

Source: deepseek-ai/dspark_qwen3_4b_block7; vllm-project/speculators, src/speculators/models/dspark; llama.cpp's
src/models/dflash.cpp (build_dspark_markov_head).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.conversion.rows.families import dflash
from dflash_convert.conversion.rows.schema import DRAFT_KEYS, DSPARK_KEYS, DSPARK_TENSORS


def is_mine(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return dflash.is_mine(config, names) and any(n.startswith("markov_head.") for n in names)


FAMILY = replace(
    dflash.FAMILY,
    name="DSpark",
    prefix="dspark",
    is_mine=is_mine,
    keys=(*DRAFT_KEYS, *DSPARK_KEYS),
    tensors=(*dflash.FAMILY.tensors, *DSPARK_TENSORS),
)
