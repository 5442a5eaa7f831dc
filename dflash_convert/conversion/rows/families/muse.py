"""The assistant of Muse-Glimmer: a DFlash draft whose feature projection goes by the names of an encoder.

Its config has every value at the top level and no `use_sliding_window`: layers slide where layer_types says so.

Source: meta-models/Muse-Glimmer-30B-assistant; llama.cpp's conversion/muse_glimmer.py, MuseGlimmerAssistantModel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dflash_convert.conversion.rows.families import dflash

SOURCES = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def is_mine(_: Mapping[str, Any], names: Collection[str]) -> bool:
    return "encoder.fc.weight" in names


FAMILY = replace(
    dflash.FAMILY,
    name="DFlash (Muse assistant)",
    is_mine=is_mine,
    tensors=tuple(replace(row, source=SOURCES.get(row.source, row.source)) for row in dflash.FAMILY.tensors),
)
