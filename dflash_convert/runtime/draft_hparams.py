"""GGUF keys of a draft → what llama.cpp would run it with (src/models/dflash.cpp, common/speculative.cpp).

In: an opened GGUF of the architecture `dflash`. Out: `DraftHparams`. Defaults are llama.cpp's, also the silent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.draft_tensors import DFLASH2, DSPARK
from dflash_convert.runtime.hparams import Hparams, Keys, read_hparams
from dflash_convert.runtime.ops import Array, gelu_tanh, silu

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({
    "silu": silu, "gelu": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh,
})  # fmt: skip

# Tensors with a row for every token of the target, and with one for every row of the draft's head.
VOCAB_TENSORS = ("token_embd.weight", DSPARK, "selector_predecessor.weight", "output.weight")
DFLASH2_KEYS = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")


@dataclass(frozen=True)
class DraftHparams(Hparams):
    """What the header says of a draft. windows: one a layer, None for a full one; n_vocab: the target's tokens, as far
    as the draft's own tables tell (else 0); n_vocab_draft: rows of the draft's head; logit_scale, softcap: 0 for none.
    The sizes of DSpark and of DFlash2 are 0 in a draft of another kind."""

    block_size: int
    mask_token_id: int
    target_layers: tuple[int, ...]
    windows: tuple[int | None, ...]
    causal: bool
    attention_scale: float
    value_scale: float
    embedding_scale: float
    logit_scale: float
    softcap: float
    activation: Callable[[Array], Array]
    n_vocab: int
    n_vocab_draft: int
    sample_from_anchor: bool
    markov_rank: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    one: int = 1
    two: int = 2

    @property
    def n_embd_inp(self) -> int:
        """Width of the features: what `fc` reads."""
        return len(self.target_layers) * self.n_embd

    @property
    def n_embd_head_half(self) -> int:
        return self.n_embd_head // 2

    @property
    def n_conf(self) -> int:
        """What the confidence head reads."""
        return self.n_embd + self.markov_rank

    @property
    def n_conv_proj(self) -> int:
        """Rows of a kernel projection: two sides, all taps, all groups."""
        return 2 * self.conv_kernel_size * (self.n_embd // self.conv_group_size)


def read_draft_hparams(gguf: GGUFFile) -> DraftHparams:
    """What the header says. Raises GGUFError: a key that is missing, or a value that llama.cpp refuses."""
    keys, base = Keys(gguf), read_hparams(gguf)
    mask_token_id = gguf.get("tokenizer.ggml.mask_token_id")
    if mask_token_id is None:
        raise GGUFError(f"{gguf.path.name}: the key tokenizer.ggml.mask_token_id is missing: llama.cpp would not draft")
    n_vocab = next((gguf.tensors[name].shape[0] for name in VOCAB_TENSORS if name in gguf.tensors), 0)
    return DraftHparams(
        **vars(base),
        block_size=keys.size("block_size"),
        mask_token_id=int(mask_token_id),
        target_layers=tuple(keys.require("target_layers")),
        windows=_read_windows(keys, base.n_layer),
        causal=bool(keys.get("attention.causal", False)),
        attention_scale=keys.get("attention.scale", 0.0) or base.n_embd_head**-0.5,
        value_scale=keys.get("attention.value_scale", 0.0) or 1.0,
        embedding_scale=keys.get("embedding_scale", 0.0) or 1.0,
        logit_scale=float(keys.get("logit_scale", 0.0)),
        softcap=float(keys.get("final_logit_softcapping", 0.0)),
        activation=_read_activation(keys),
        n_vocab=n_vocab,
        n_vocab_draft=gguf.tensors["d2t"].shape[0] if "d2t" in gguf.tensors else n_vocab,
        sample_from_anchor=bool(keys.get("sample_from_anchor", True)),
        markov_rank=gguf.tensors[DSPARK].shape[-1] if DSPARK in gguf.tensors else 0,
        **_read_dflash2(keys, base.n_embd),
    )


def _read_windows(keys: Keys, n_layer: int) -> tuple[int | None, ...]:
    """A window a layer: all None without `sliding_window`; layers past the end of the pattern are full."""
    n_swa = int(keys.get("attention.sliding_window", 0))
    if not n_swa:
        return (None,) * n_layer
    pattern = [bool(flag) for flag in keys.require("attention.sliding_window_pattern")]
    return tuple(n_swa if i < len(pattern) and pattern[i] else None for i in range(n_layer))


def _read_activation(keys: Keys) -> Callable[[Array], Array]:
    name = str(keys.get("hidden_activation", "silu"))
    if name not in ACTIVATIONS:
        raise GGUFError(f"{keys.gguf.path.name}: dflash.hidden_activation is {name!r}, which llama.cpp does not know")
    return ACTIVATIONS[name]


def _read_dflash2(keys: Keys, n_embd: int) -> dict[str, Any]:
    """The sizes of convolutions and selector, with llama.cpp's own checks of them."""
    if DFLASH2 not in keys.gguf.tensors:
        return dict.fromkeys(DFLASH2_KEYS, 0)
    sizes, where = {key: keys.size(key) for key in DFLASH2_KEYS}, keys.gguf.path.name
    for key, value in sizes.items():
        if value <= 0:
            raise GGUFError(f"{where}: dflash.{key} is {value}, a DFlash2 draft needs at least 1")
    top_k, group = sizes["selector_top_k"], sizes["conv_group_size"]
    if n_embd % group:
        raise GGUFError(f"{where}: dflash.conv_group_size is {group}, which does not divide the width of {n_embd}")
    if n_embd < top_k * (top_k + 1):
        raise GGUFError(
            f"{where}: dflash.selector_top_k is {top_k}: k · (k + 1) is more than the width of {n_embd}, "
            "which llama.cpp packs the lattice into"
        )
    return sizes
