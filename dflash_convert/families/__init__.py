"""Draft families: one file each, with the family's rows and its detection, and nothing else.

`FAMILIES` is asked in order; the first whose `is_mine(config, names)` says yes converts the checkpoint. Detection goes
by keys and tensor names, never by the `architectures` label: one label covers several schemas.
"""

from __future__ import annotations

from dflash_convert.families import dflash, mimo
from dflash_convert.families.family import Family

FAMILIES: tuple[Family, ...] = (mimo.FAMILY, dflash.FAMILY)

__all__ = ["FAMILIES", "Family"]
