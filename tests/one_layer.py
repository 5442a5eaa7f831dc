"""A GGUF of one layer, to quantize."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from make import make_gguf


def one_layer(path: Path, tensors: Mapping[str, Any], **keys: Any) -> Path:
    """A one-layer GGUF with the given tensors; keyword `a__b` is the key `a.b`."""
    given = {"general.architecture": "toy", "toy.block_count": 1}
    return make_gguf(path / "in.gguf", given | {k.replace("__", "."): v for k, v in keys.items()}, tensors)
