"""Target models that can be converted by themselves: one file each, with its rows and its detection."""

from __future__ import annotations

from dflash_convert.conversion.rows.targets import qwen3
from dflash_convert.conversion.rows.targets.target import Target

TARGETS: tuple[Target, ...] = (qwen3.TARGET,)

__all__ = ["TARGETS", "Target"]
