"""DFlash as z-lab publishes it: flat (block_size at the top level) and nested (everything in dflash_config).

Also the drafts that others trained in its image: vllm-project/speculators' `dflash` (with a reduced vocabulary),
NVIDIA's Nemotron and MiniMax drafts, DeepSpec's models with markov_rank 0. Eleven tensors a layer, `fc` and two norms;
no tables of its own, or all of them.

Source: checkpoints of the z-lab organisation; vllm-project/speculators, src/speculators/models/dflash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from dflash_convert.conversion.rows.families.family import Family
from dflash_convert.conversion.rows.schema import DRAFT_KEYS, DRAFT_TENSORS, OWN_TABLES, SINKS


def is_mine(_: Mapping[str, Any], names: Collection[str]) -> bool:
    """A projection of target features and the norm behind it: what every DFlash draft has and no other model."""
    return "fc.weight" in names and "hidden_norm.weight" in names


FAMILY = Family(
    name="DFlash",
    arch="dflash",
    prefix="dflash",
    is_mine=is_mine,
    keys=DRAFT_KEYS,
    tensors=(*DRAFT_TENSORS, *OWN_TABLES, SINKS),
)
