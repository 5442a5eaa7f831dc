"""Which target architectures run, and how one is loaded: from a GGUF, or from a checkpoint.

Out: a `Target` (see interface.py). A new architecture is a file in targets/ and a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dflash_convert.errors import CheckpointError, GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.interface import Target
from dflash_convert.runtime.targets import qwen3_checkpoint, qwen3_gguf
from dflash_convert.runtime.weights import Weights

GGUF_TARGETS: Mapping[str, Callable[[GGUFFile], Target]] = MappingProxyType({"qwen3": qwen3_gguf.load})

CHECKPOINT_TARGETS: Mapping[str, Callable[[Mapping[str, Any], Weights], Target]] = MappingProxyType({
    "Qwen3ForCausalLM": qwen3_checkpoint.load,
})  # fmt: skip


def load_target_gguf(gguf: GGUFFile) -> Target:
    """A target from a GGUF of any block type. Raises GGUFError: an architecture, key or tensor that cannot be run."""
    load = GGUF_TARGETS.get(gguf.architecture)
    if load is None:
        raise GGUFError(
            f"{gguf.path.name}: targets of the architecture {gguf.architecture!r} cannot be run",
            hint=f"those that can: {', '.join(sorted(GGUF_TARGETS))}",
        )
    return load(gguf)


def load_target_checkpoint(config: Mapping[str, Any], weights: Weights) -> Target:
    """A target from its config.json and tensors. Raises CheckpointError or ConfigError: what cannot be run."""
    names = config.get("architectures") or []
    load = next((CHECKPOINT_TARGETS[name] for name in names if name in CHECKPOINT_TARGETS), None)
    if load is None:
        raise CheckpointError(
            f"targets of the architecture {', '.join(names) or '(none named)'} cannot be run",
            hint=f"those that can: {', '.join(sorted(CHECKPOINT_TARGETS))}",
        )
    return load(config, weights)
