"""Draft families: one file each, with the family's rows and its detection, and nothing else.

`FAMILIES` is asked in order; the first whose `is_mine(config, names)` says yes converts the checkpoint. Detection goes
by tensor names, never by the `architectures` label: one label covers several schemas, and labels lie. What cannot be
converted is recognised by the tables of refused.py, before and after.
"""

from __future__ import annotations

from dflash_convert.conversion.rows.families import dflash, dflash2, dspark, gemma4_dspark, mimo, muse
from dflash_convert.conversion.rows.families.family import Family

FAMILIES: tuple[Family, ...] = (
    muse.FAMILY,
    gemma4_dspark.FAMILY,
    dspark.FAMILY,
    dflash2.FAMILY,
    mimo.FAMILY,
    dflash.FAMILY,
)

__all__ = ["FAMILIES", "Family"]
