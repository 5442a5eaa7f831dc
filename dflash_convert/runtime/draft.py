"""A draft of the DFlash family as its GGUF says, run by llama.cpp's definition (src/models/dflash.cpp,
common/speculative.cpp).

In: a GGUF of the architecture `dflash`, then target states. Out: hidden states of a drafted block, and its tokens.

- Features are what *enters* the target's layers `dflash.target_layers`, side by side.
- Accepted positions pass `fc` and `enc.output_norm` once; each layer's keys and values of them go into a KV cache.
- A block of the last token and masks attends to that cache and to itself. It leaves no trace in the cache.
- A windowed layer hides a key that lies `sliding_window` positions or more before the query; later keys of the block
  are visible unless `attention.causal` is set.
- Tokens are the best of each position; DSpark's depend on the one before (draft_dspark.py), DFlash2's come from a
  lattice of candidates (draft_dflash2.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime import draft_dflash2, draft_dspark
from dflash_convert.runtime.cache import KVCache
from dflash_convert.runtime.draft_hparams import DraftHparams, read_draft_hparams
from dflash_convert.runtime.draft_tensors import (
    DFLASH2,
    DSPARK,
    UNSUPPORTED,
    ConvLayer,
    Ends,
    Layer,
    Markov,
    Selector,
)
from dflash_convert.runtime.interface import Proposal, Target
from dflash_convert.runtime.ops import (
    Array,
    Rope,
    RopeTable,
    attention,
    gated_mlp,
    heads,
    linear,
    rms_norm,
    rms_unit,
    rope_table,
    rotate_half,
    softcapped,
)
from dflash_convert.runtime.weights import GGUFWeights, Resident, check


@dataclass(frozen=True)
class DFlashDraft:
    """A draft on the GGUF's side; fulfils `Drafter`, with a `KVCache` as its context. markov: DSpark's heads;
    selector: DFlash2's, with layers that are `ConvLayer`s."""

    name: str
    hparams: DraftHparams
    ends: Ends
    layers: Sequence[Layer]
    markov: Markov | None = None
    selector: Selector | None = None

    @property
    def block_size(self) -> int:
        return self.hparams.block_size

    @property
    def first_slot(self) -> int:
        """0 only with a Markov head: that is what llama.cpp tells DSpark by (common/speculative.cpp)."""
        return 0 if self.markov is not None and self.hparams.sample_from_anchor else 1

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
    def mask_embedding(self) -> Array | None:
        """None: in a GGUF the mask token's embedding is a row of `token_embd`."""
        return None

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
        for i in range(h.n_layer):
            visible = _visible(positions, np.arange(n + len(block)), h.windows[i], h.causal)
            x = self._layer(i, x, ctx, table, visible)
        return rms_norm(x, self.ends.output_norm, h.norm_rms_eps)

    def logits(self, hidden: Array, target: Target) -> Array:
        """Logits (B, target.n_vocab); llama.cpp scales and caps them for DFlash2 only. Raises GGUFError: a d2t that
        names tokens the target does not have."""
        h, weight, d2t = self.hparams, self.output_weight, self.ends.d2t
        logits = target.head(hidden) if weight is None else linear(hidden, weight)
        if self.selector is not None:
            logits = logits * np.float32(h.logit_scale or 1.0)
            logits = softcapped(logits, h.softcap) if h.softcap > 0 else logits
        if d2t is None:
            return logits
        if d2t.min() < 0 or d2t.max() >= target.n_vocab:
            raise GGUFError(
                f"{self.name}: d2t has the token ids {d2t.min()} to {d2t.max()}, the target has {target.n_vocab} tokens"
            )
        scattered = np.full((len(logits), target.n_vocab), -np.inf, np.float32)
        scattered[:, d2t] = logits
        return scattered

    def propose(self, hidden: Array, last: int, target: Target) -> Proposal:
        """The tokens of the block's positions from `first_slot` on. Raises GGUFError: heads of another target."""
        h, has_heads = self.hparams, self.markov is not None or self.selector is not None
        if has_heads and h.n_vocab != target.n_vocab:
            raise GGUFError(f"{self.name}: the draft's heads know {h.n_vocab} tokens, the target has {target.n_vocab}")
        logits = self.logits(hidden, target)
        if self.markov is not None:
            return draft_dspark.chain(self.markov, logits, hidden, last, self.first_slot, self.ends.d2t)
        if self.selector is not None:
            pairs = draft_dflash2.lattice(self.selector, logits, hidden, last, h.selector_top_k)
            return Proposal(tuple(draft_dflash2.walk(*pairs)))
        return Proposal(tuple(int(i) for i in logits[1:].argmax(axis=-1)))

    def _layer(self, i: int, x: Array, ctx: KVCache, table: RopeTable, visible: Array) -> Array:
        eps, layer = self.hparams.norm_rms_eps, self.layers[i]
        out = self._attend(i, rms_norm(x, layer.attn_norm, eps), ctx, table, visible)
        x = x + _post_normed(out, layer.post_attention_norm, eps)
        out = self._ffn(layer, rms_norm(x, layer.ffn_norm, eps))
        x = x + _post_normed(out, layer.post_ffw_norm, eps)
        return x if layer.layer_output_scale is None else x * layer.layer_output_scale

    def _attend(self, i: int, normed: Array, ctx: KVCache, table: RopeTable, visible: Array) -> Array:
        layer = self.layers[i]
        if not isinstance(layer, ConvLayer):
            return self._plain_attend(i, normed, ctx, table, visible)
        before, behind = draft_dflash2.conv_weights(normed, layer.attn_conv_base, layer.attn_conv_proj)
        out = self._plain_attend(i, draft_dflash2.convolve(normed, before), ctx, table, visible)
        return draft_dflash2.convolve(out, behind)

    def _plain_attend(self, i: int, x: Array, ctx: KVCache, table: RopeTable, visible: Array) -> Array:
        h, layer = self.hparams, self.layers[i]
        q = rms_norm(heads(linear(x, layer.attn_q), h.n_head), layer.attn_q_norm, h.norm_rms_eps)
        k, v = ctx.joined(i, *self._keys_values(layer, x, table))
        out = attention(rotate_half(q, table), k, v, visible, h.attention_scale, layer.attn_sinks)
        return linear(out, layer.attn_output) * np.float32(h.value_scale)

    def _keys_values(self, layer: Layer, x: Array, table: RopeTable) -> tuple[Array, Array]:
        """Keys and values (T, n_head_kv, n_embd_head). Without attn_v the keys before norm and rope, normed without a
        weight, are the values."""
        h, weight = self.hparams, layer.attn_v
        raw = heads(linear(x, layer.attn_k), h.n_head_kv)
        k = rotate_half(rms_norm(raw, layer.attn_k_norm, h.norm_rms_eps), table)
        return k, rms_unit(raw, h.norm_rms_eps) if weight is None else heads(linear(x, weight), h.n_head_kv)

    def _ffn(self, layer: Layer, normed: Array) -> Array:
        if not isinstance(layer, ConvLayer):
            return self._plain_ffn(layer, normed)
        before, behind = draft_dflash2.conv_weights(normed, layer.ffn_conv_base, layer.ffn_conv_proj)
        return draft_dflash2.convolve(self._plain_ffn(layer, draft_dflash2.convolve(normed, before)), behind)

    def _plain_ffn(self, layer: Layer, x: Array) -> Array:
        return gated_mlp(x, layer.ffn_gate, layer.ffn_up, layer.ffn_down, self.hparams.activation)


def _post_normed(x: Array, weight: Array | None, eps: float) -> Array:
    return x if weight is None else rms_norm(x, weight, eps)


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
    weights, hparams = Resident(GGUFWeights(gguf)), read_draft_hparams(gguf)
    layer_class = ConvLayer if DFLASH2 in weights else Layer
    ends, layers = Ends(weights, hparams), [layer_class(weights, hparams, i) for i in range(hparams.n_layer)]
    markov = Markov(weights, hparams) if DSPARK in weights else None
    selector = Selector(weights, hparams) if DFLASH2 in weights else None
    parts = [part for part in (ends, *layers, markov, selector) if part is not None]
    check(parts, gguf.path.name, GGUFError, UNSUPPORTED)
    if ends.d2t is not None and ends.output is None:
        raise GGUFError(f"{gguf.path.name}: there is a d2t, but no output.weight: llama.cpp needs both or neither")
    hparams = replace(hparams, rope=_rope(gguf, hparams.rope, ends.rope_freqs))
    return DFlashDraft(gguf.path.name, hparams, ends, layers, markov, selector)


def _rope(gguf: GGUFFile, rope: Rope, factors: Array | None) -> Rope:
    """Rope with its frequencies divided by `rope_freqs`; llama.cpp does not use those with sections (M-RoPE)."""
    if factors is None or gguf.get("dflash.rope.dimension_sections") is not None:
        return rope
    return Rope(rope.freqs / factors[: len(rope.freqs)].astype(np.float64), rope.magnitude)
