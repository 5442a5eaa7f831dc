"""What a draft family is: the rows that turn its checkpoints into a GGUF."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dflash_convert.conversion.rows.fields import DRAFT_FIELDS, Field
from dflash_convert.conversion.rows.schema import DRAFT_IGNORED, IgnoredRow, KeyRow, TensorRow


@dataclass(frozen=True)
class Family:
    """A kind of draft. prefix: what llama.cpp looks for in the file name beside the target (`dflash-…`).

    fields: where its config keeps each value.
    """

    name: str
    arch: str
    prefix: str
    is_mine: Callable[[Mapping[str, Any], Collection[str]], bool]
    keys: tuple[KeyRow, ...]
    tensors: tuple[TensorRow, ...]
    ignored: tuple[IgnoredRow, ...] = DRAFT_IGNORED
    fields: tuple[Field, ...] = DRAFT_FIELDS
