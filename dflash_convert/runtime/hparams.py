"""GGUF keys → the sizes and the rope that llama.cpp would run a model with.

Names, defaults and formulas are llama.cpp's (src/llama-model.cpp: load_hparams; src/llama-context.cpp), also where a
default is silent there: a file that relies on one is run here as it would be run there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.ops import Rope, rope_frequencies, yarn_frequencies

# The architectures here never read yarn_beta_fast and yarn_beta_slow, whatever the file says.
YARN_BETA_FAST, YARN_BETA_SLOW = 32.0, 1.0


@dataclass(frozen=True)
class Keys:
    """The keys of one file below its architecture's prefix."""

    gguf: GGUFFile

    def get(self, key: str, default: Any = None) -> Any:
        return self.gguf.get(f"{self.gguf.architecture}.{key}", default)

    def require(self, key: str) -> Any:
        """The value of a key; GGUFError if it is not there."""
        value = self.get(key)
        if value is None:
            raise GGUFError(f"{self.gguf.path.name}: the key {self.gguf.architecture}.{key} is missing")
        return value

    def size(self, key: str) -> int:
        """A required key that is one number (not one a layer)."""
        value = self.require(key)
        if not isinstance(value, int):
            full = f"{self.gguf.architecture}.{key}"
            raise GGUFError(f"{self.gguf.path.name}: not supported yet: {full} has a value a layer")
        return value


@dataclass(frozen=True)
class Hparams:
    """Sizes of a dense decoder, in llama.cpp's words."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_embd_head: int
    norm_rms_eps: float
    rope: Rope

    @property
    def n_embd_q(self) -> int:
        return self.n_head * self.n_embd_head

    @property
    def n_embd_kv(self) -> int:
        return self.n_head_kv * self.n_embd_head


def read_hparams(gguf: GGUFFile) -> Hparams:
    """The sizes in the header. Raises GGUFError: a key that is missing, or sizes the graphs here cannot run."""
    keys = Keys(gguf)
    n_embd, n_head = keys.size("embedding_length"), keys.size("attention.head_count")
    n_embd_head = int(keys.get("attention.key_length", n_embd // n_head))
    n_value = int(keys.get("attention.value_length", n_embd // n_head))
    if n_value != n_embd_head:
        raise GGUFError(f"{gguf.path.name}: key and value lengths differ ({n_embd_head} and {n_value})")
    has_kv = keys.get("attention.head_count_kv") is not None
    return Hparams(
        n_layer=keys.size("block_count"),
        n_embd=n_embd,
        n_ff=keys.size("feed_forward_length"),
        n_head=n_head,
        n_head_kv=keys.size("attention.head_count_kv") if has_kv else n_head,
        n_embd_head=n_embd_head,
        norm_rms_eps=float(keys.require("attention.layer_norm_rms_epsilon")),
        rope=_read_rope(keys, n_embd_head),
    )


def _read_rope(keys: Keys, n_embd_head: int) -> Rope:
    n_rot, base = int(keys.get("rope.dimension_count", n_embd_head)), float(keys.get("rope.freq_base", 10000.0))
    freqs = rope_frequencies(n_rot, base)
    scaling = keys.get("rope.scaling.type", "linear")
    factor = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0))) or 1.0
    magnitude = float(keys.get("rope.scaling.attn_factor", 1.0))
    if scaling == "none":
        return Rope(freqs, magnitude)
    if scaling == "linear":
        return Rope(freqs / factor, magnitude)
    if scaling != "yarn":
        raise GGUFError(f"{keys.gguf.path.name}: not supported yet: rope scaling of the type {scaling!r}")
    n_ctx_orig = int(keys.get("rope.scaling.original_context_length", keys.get("context_length", 0)))
    if n_ctx_orig <= 0:
        raise GGUFError(f"{keys.gguf.path.name}: yarn needs rope.scaling.original_context_length or context_length")
    freqs = yarn_frequencies(freqs, base, factor, n_ctx_orig, YARN_BETA_FAST, YARN_BETA_SLOW)
    # llama-context divides the magnitude by 1 + 0.1 ln(factor) and puts the same back first (yarn_log_multiplier is not
    # read either); ggml's rope then multiplies by it once: once is what remains.
    return Rope(freqs, magnitude * (1 + 0.1 * math.log(factor)))
