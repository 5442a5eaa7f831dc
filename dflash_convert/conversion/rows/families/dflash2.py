"""DFlash2: dynamic convolutions around attention and feed-forward, and a selector of candidates.

Source: z-lab/Qwen3.8-27B-DFlash2 and Muse-Glimmer-30B-DFlash2; llama.cpp's src/models/dflash.cpp (build_dflash2_conv,
the selector lattice). The logits that the selector reads are scaled (`output_multiplier`) and soft-capped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.conversion.rows.families import dflash
from dflash_convert.conversion.rows.fields import DRAFT_FIELDS, required
from dflash_convert.conversion.rows.schema import DFLASH2_TENSORS


def is_mine(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return dflash.is_mine(config, names) and any(n.startswith("candidate_selector.") for n in names)


FAMILY = replace(
    dflash.FAMILY,
    name="DFlash2",
    is_mine=is_mine,
    tensors=(*dflash.FAMILY.tensors, *DFLASH2_TENSORS),
    fields=required(DRAFT_FIELDS, "conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
)
