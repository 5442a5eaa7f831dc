"""A DFlash draft as its GGUF says, run by llama.cpp's definition (src/models/dflash.cpp, common/speculative.cpp).

In: a GGUF of the architecture `dflash`, then target states. Out: hidden states of a drafted block.

- Features are what *enters* the target's layers `dflash.target_layers`, side by side.
- Accepted positions pass `fc` and `enc.output_norm` once; each layer's keys and values of them go into a KV cache.
- A block of the last token and masks attends to that cache and to itself. It leaves no trace in the cache.
- A windowed layer hides a key that lies `sliding_window` positions or more before the query; later keys of the block
  are visible unless `attention.causal` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_file import GGUFFile
from dflash_convert.runtime.cache import KVCache
from dflash_convert.runtime.hparams import Hparams, Keys, read_hparams
from dflash_convert.runtime.ops import (
    Array,
    RopeTable,
    attention,
    gated_mlp,
    gelu_tanh,
    heads,
    linear,
    rms_norm,
    rope_table,
    rotate_half,
    silu,
)
from dflash_convert.runtime.weights import GGUFWeights, Module, OptionalTensor, Resident, Tensor, check

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({
    "silu": silu, "gelu": gelu_tanh, "gelu_pytorch_tanh": gelu_tanh,
})  # fmt: skip

# part of a tensor's name → what it belongs to
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "markov_": "DSpark's Markov head",
        "conf_proj": "DSpark's confidence head",
        "d2t": "a reduced draft vocabulary",
        "selector_": "DFlash2's candidate selector",
        "_conv_": "DFlash2's convolutions",
        "hc_": "DeepSeek-V4 drafts",
        "post_attention_norm": "Gemma 4 drafts",
        "post_ffw_norm": "Gemma 4 drafts",
        "layer_output_scale": "Gemma 4 drafts",
        "rope_freqs": "rope frequency factors",
    }
)


class Layer(Module):
    attn_norm = Tensor("blk.{i}.attn_norm.weight", "n_embd")
    attn_q = Tensor("blk.{i}.attn_q.weight", "n_embd_q", "n_embd")
    attn_k = Tensor("blk.{i}.attn_k.weight", "n_embd_kv", "n_embd")
    attn_v = Tensor("blk.{i}.attn_v.weight", "n_embd_kv", "n_embd")
    attn_output = Tensor("blk.{i}.attn_output.weight", "n_embd", "n_embd_q")
    attn_q_norm = Tensor("blk.{i}.attn_q_norm.weight", "n_embd_head")
    attn_k_norm = Tensor("blk.{i}.attn_k_norm.weight", "n_embd_head")
    attn_sinks = OptionalTensor("blk.{i}.attn_sinks.weight", "n_head")
    ffn_norm = Tensor("blk.{i}.ffn_norm.weight", "n_embd")
    ffn_gate = Tensor("blk.{i}.ffn_gate.weight", "n_ff", "n_embd")
    ffn_up = Tensor("blk.{i}.ffn_up.weight", "n_ff", "n_embd")
    ffn_down = Tensor("blk.{i}.ffn_down.weight", "n_embd", "n_ff")


class Ends(Module):
    fc = Tensor("fc.weight", "n_embd", "n_embd_inp")
    enc_output_norm = Tensor("enc.output_norm.weight", "n_embd")
    output_norm = Tensor("output_norm.weight", "n_embd")
    token_embd = OptionalTensor("token_embd.weight", "n_vocab", "n_embd")
    output = OptionalTensor("output.weight", "n_vocab", "n_embd")


@dataclass(frozen=True)
class DraftHparams(Hparams):
    """What the header says of a draft. windows: one a layer, None for a full one; n_vocab: rows of its own embeddings
    or head, 0 without either."""

    block_size: int
    mask_token_id: int
    target_layers: tuple[int, ...]
    windows: tuple[int | None, ...]
    causal: bool
    attention_scale: float
    value_scale: float
    embedding_scale: float
    activation: Callable[[Array], Array]
    n_vocab: int

    @property
    def n_embd_inp(self) -> int:
        """Width of the features: what `fc` reads."""
        return len(self.target_layers) * self.n_embd


@dataclass(frozen=True)
class DFlashDraft:
    """A draft on the GGUF's side; fulfils `Drafter`, with a `KVCache` as its context."""

    name: str
    hparams: DraftHparams
    ends: Ends
    layers: Sequence[Layer]

    @property
    def block_size(self) -> int:
        return self.hparams.block_size

    @property
    def mask_token_id(self) -> int:
        return self.hparams.mask_token_id

    @property
    def n_taps(self) -> int:
        return len(self.hparams.target_layers)

    @property
    def embedding_table(self) -> Array | None:
        return self.ends.token_embd

    @property
    def output_weight(self) -> Array | None:
        """The draft's head; llama.cpp takes the draft's embeddings for it where only those are there."""
        output = self.ends.output
        return self.ends.token_embd if output is None else output

    def features(self, layer_inputs: Sequence[Array]) -> Array:
        """What enters the tapped layers: (T, n_taps · n_embd). Raises GGUFError: a target that does not fit."""
        last, taps = len(layer_inputs) - 1, self.hparams.target_layers
        if max(taps) > last:
            raise GGUFError(f"{self.name}: target_layers are {list(taps)}, but the target has {last} layers")
        picked = np.concatenate([layer_inputs[t] for t in taps], axis=1)
        if picked.shape[1] != self.hparams.n_embd_inp:
            raise GGUFError(
                f"{self.name}: fc reads {self.n_taps} taps of width {self.hparams.n_embd}, "
                f"the target's width is {layer_inputs[0].shape[1]}"
            )
        return picked

    def new_context(self) -> KVCache:
        h = self.hparams
        return KVCache(h.n_layer, h.n_head_kv, h.n_embd_head)

    def extend(self, ctx: KVCache, features: Array) -> None:
        """Encode features (T, n_taps · n_embd) of accepted positions and put their keys and values into the cache."""
        encoded = rms_norm(linear(features, self.ends.fc), self.ends.enc_output_norm, self.hparams.norm_rms_eps)
        table = rope_table(self.hparams.rope, len(ctx) + np.arange(len(features)))
        for i, layer in enumerate(self.layers):
            ctx.append(i, *self._keys_values(layer, encoded, table))

    def hidden_block(self, ctx: KVCache, block: Array) -> Array:
        """Hidden states (B, n_embd) after `output_norm` of a block of embeddings (B, n_embd) behind the context."""
        h, n = self.hparams, len(ctx)
        positions = n + np.arange(len(block))
        table = rope_table(h.rope, positions)
        x = block * np.float32(h.embedding_scale)
        for i, layer in enumerate(self.layers):
            visible = _visible(positions, np.arange(n + len(block)), h.windows[i], h.causal)
            x = x + self._attend(i, x, ctx, table, visible)
            normed = rms_norm(x, layer.ffn_norm, h.norm_rms_eps)
            x = x + gated_mlp(normed, layer.ffn_gate, layer.ffn_up, layer.ffn_down, h.activation)
        return rms_norm(x, self.ends.output_norm, h.norm_rms_eps)

    def _attend(self, i: int, x: Array, ctx: KVCache, table: RopeTable, visible: Array) -> Array:
        h, layer = self.hparams, self.layers[i]
        normed = rms_norm(x, layer.attn_norm, h.norm_rms_eps)
        q = rms_norm(heads(linear(normed, layer.attn_q), h.n_head), layer.attn_q_norm, h.norm_rms_eps)
        k, v = ctx.joined(i, *self._keys_values(layer, normed, table))
        out = attention(rotate_half(q, table), k, v, visible, h.attention_scale, layer.attn_sinks)
        return linear(out, layer.attn_output) * np.float32(h.value_scale)

    def _keys_values(self, layer: Layer, x: Array, table: RopeTable) -> tuple[Array, Array]:
        h = self.hparams
        k = rms_norm(heads(linear(x, layer.attn_k), h.n_head_kv), layer.attn_k_norm, h.norm_rms_eps)
        return rotate_half(k, table), heads(linear(x, layer.attn_v), h.n_head_kv)


def _visible(queries: Array, keys: Array, n_swa: int | None, causal: bool) -> Array:
    """(B, S) bool: which keys a query sees. LLAMA_SWA_TYPE_STANDARD hides p_query - p_key >= n_swa."""
    ahead = queries[:, None] - keys[None, :]
    hidden = np.zeros(ahead.shape, bool) if n_swa is None else ahead >= n_swa
    return ~(hidden | (ahead < 0)) if causal else ~hidden


def load_draft(gguf: GGUFFile) -> DFlashDraft:
    """The draft in an opened GGUF.

    Raises GGUFError: another architecture, a key or tensor that is missing, a shape that does not fit, a tensor left
    over (of a draft family that is not supported yet, or of none).
    """
    if gguf.architecture != "dflash":
        raise GGUFError(
            f"{gguf.path.name}: the architecture is {gguf.architecture!r}, a draft's is 'dflash'",
            hint="name the draft's file, not the target's; a draft in another tool's format has to be migrated first",
        )
    weights = Resident(GGUFWeights(gguf))
    hparams = _read_draft_hparams(gguf, weights)
    ends, layers = Ends(weights, hparams), [Layer(weights, hparams, i) for i in range(hparams.n_layer)]
    check([ends, *layers], gguf.path.name, GGUFError, UNSUPPORTED)
    return DFlashDraft(gguf.path.name, hparams, ends, layers)


def _read_draft_hparams(gguf: GGUFFile, weights: Resident) -> DraftHparams:
    keys, base = Keys(gguf), read_hparams(gguf)
    mask_token_id = gguf.get("tokenizer.ggml.mask_token_id")
    if mask_token_id is None:
        raise GGUFError(f"{gguf.path.name}: the key tokenizer.ggml.mask_token_id is missing: llama.cpp would not draft")
    own = [weights.shape(name)[0] for name in ("token_embd.weight", "output.weight") if name in weights]
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
        activation=_read_activation(keys),
        n_vocab=own[0] if own else 0,
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
