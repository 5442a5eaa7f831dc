"""What a convertible target is: the rows that turn its checkpoints into a GGUF."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_convert.conversion.rows.schema import IGNORED, IgnoredRow, KeyRow, TensorRow


@dataclass(frozen=True)
class Target:
    """A model architecture: `architectures` are the labels of its config.json, `arch` llama.cpp's name."""

    name: str
    arch: str
    architectures: tuple[str, ...]
    keys: tuple[KeyRow, ...]
    tensors: tuple[TensorRow, ...]
    ignored: tuple[IgnoredRow, ...] = IGNORED
