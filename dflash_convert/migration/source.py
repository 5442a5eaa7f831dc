"""What is migrated: a file, its dialect, and the rules to rewrite it by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from dflash_convert.dialects.dialect import Dialect
from dflash_convert.dialects.migrations import Migration
from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.migration.values import whole

CONVERT = "convert the checkpoint instead: dflash-convert hf-to-gguf"


@dataclass(frozen=True)
class Source:
    """An opened GGUF, its dialect and the rules to rewrite it by."""

    gguf: GGUFFile
    dialect: Dialect
    rules: Migration

    def full(self, pattern: str) -> str:
        """A key's whole name, `{a}` being the architecture."""
        return pattern.replace("{a}", self.gguf.architecture)

    def given(self, patterns: Sequence[str]) -> list[tuple[str, Any]]:
        """Those of the keys that are there, with their values."""
        return [(key, self.gguf.get(key)) for key in map(self.full, patterns) if key in self.gguf.kv]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names of the keys that mainline has no use for."""
        return tuple("{a}." + key for key in self.rules.dropped)

    def layer_count(self) -> int:
        """Layers of the draft. Raises GGUFError: the file does not say."""
        key = self.full("{a}.block_count")
        count = whole(self.gguf.get(key))
        if not count or count < 0:
            self.refuse(f"{key} is missing or no positive number")
        return count

    def refuse(self, reason: str, hint: str = CONVERT) -> NoReturn:
        raise GGUFError(f"{self.gguf.path.name} ({self.dialect.title}): {reason}", hint=hint)
