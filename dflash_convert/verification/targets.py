"""What the verifier knows of the target: a folder (with or without weights) or a GGUF → `Target`.

Nothing is loaded here but config.json or a GGUF header; the weights are opened by the level that needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_convert.checkpoints.checkpoint import read_config
from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.reader import GGUFFile, open_gguf
from dflash_convert.json_file import Node


@dataclass(frozen=True)
class Target:
    """The target and its size; None for what its files do not say.

    path: the folder or file. config: the text part of config.json (empty for a GGUF). mrope: whether it ropes over
    several axes, as vision models do. has_weights: whether it can be run.
    """

    path: Path
    gguf: GGUFFile | None
    config: Mapping[str, Any]
    n_layer: int | None
    n_embd: int | None
    n_vocab: int | None
    mrope: bool
    has_weights: bool


def open_target(path: Path) -> Target:
    """A target folder or target GGUF.

    Raises UsageError: neither. ConfigError: a folder without a config.json. GGUFError: a damaged GGUF.
    """
    if path.is_file():
        return _from_gguf(path)
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder", hint="--target takes a model folder or a .gguf file")
    return _from_folder(path)


def _from_folder(path: Path) -> Target:
    top = Node(read_config(path), f"{path / 'config.json'}:")
    text = top.get("text_config") if top.get("text_config").object() else top
    rope = text.get("rope_parameters").object() or text.get("rope_scaling").object()
    return Target(
        path=path,
        gguf=None,
        config=text.object(),
        n_layer=_count(text.get("num_hidden_layers")),
        n_embd=_count(text.get("hidden_size")),
        n_vocab=_count(text.get("vocab_size")),
        mrope="mrope_section" in rope,
        has_weights=any(path.glob("*.safetensors")) or any(path.glob("*.safetensors.index.json")),
    )


MOST = 1 << 24


def _count(node: Node) -> int | None:
    """A number of layers, dimensions or tokens, None where nothing says."""
    if node.value is None:
        return None
    if type(node.value) is not int or not 0 < node.value <= MOST:
        raise node.wrong(f"a positive integer of at most {MOST}")
    return node.value


def _from_gguf(path: Path) -> Target:
    gguf = open_gguf(path)
    arch = gguf.architecture
    tokens = gguf.get("tokenizer.ggml.tokens")
    return Target(
        path=path,
        gguf=gguf,
        config={},
        n_layer=gguf.get(f"{arch}.block_count"),
        n_embd=gguf.get(f"{arch}.embedding_length"),
        n_vocab=None if tokens is None else len(tokens),
        mrope=f"{arch}.rope.dimension_sections" in gguf.kv,
        has_weights="token_embd.weight" in gguf.tensors,
    )
