"""MiMo's DFlash: attention sinks, a value scale, partial rotary, and (V2.5) `use_swa` for all layers.

Source: XiaomiMiMo/MiMo-V2.5 and V2.6, folder `dflash/`. Value scale, rotary part and window are ordinary rows of the
config table; only the sinks are tensors of its own. In the checkpoint their names lack `.weight`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.families import dflash
from dflash_convert.schema import TensorRow

SINKS = TensorRow(
    "blk.{i}.attn_sinks.weight",
    "layers.{i}.self_attn.attention_sink_bias",
    ("num_attention_heads",),
    "attn_sinks",
)


def is_mine(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return dflash.is_mine(config, names) and any(n.endswith(".attention_sink_bias") for n in names)


FAMILY = replace(
    dflash.FAMILY,
    name="DFlash (MiMo)",
    is_mine=is_mine,
    tensors=(*dflash.FAMILY.tensors, SINKS),
)
