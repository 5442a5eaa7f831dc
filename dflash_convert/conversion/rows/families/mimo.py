"""MiMo's DFlash: attention sinks, a value scale, partial rotary, and (V2.5) `use_swa` for all layers.

Source: XiaomiMiMo/MiMo-V2.5 and V2.6, folder `dflash/`. Value scale, rotary part and window are ordinary rows of the
config table; the sinks are tensors that every layer must have. The mask token's embedding lies apart, in
`mask_embedding.pt`: the target never trained its own row (conversion.py writes the target's table with that row).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.conversion.rows.families import dflash
from dflash_convert.conversion.rows.schema import DRAFT_TENSORS, OWN_TABLES, SINKS


def is_mine(config: Mapping[str, Any], names: Collection[str]) -> bool:
    return dflash.is_mine(config, names) and any(n.endswith(".attention_sink_bias") for n in names)


FAMILY = replace(
    dflash.FAMILY,
    name="DFlash (MiMo)",
    is_mine=is_mine,
    tensors=(*DRAFT_TENSORS, *OWN_TABLES, replace(SINKS, required=True)),
)
