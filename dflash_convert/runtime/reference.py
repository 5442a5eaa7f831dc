"""A draft of the DFlash family as its checkpoint says, run by the published definition (z-lab's DFlashDraftModel and
its kin: DFlash2, DeepSpec's and SpecForge's DSpark, speculators').

In: the raw config.json and the checkpoint's tensors, then target states. Out: hidden states of a drafted block, and its
tokens.

- Features are what *leaves* the target's layers `target_layer_ids`, side by side; `fc` and `hidden_norm` turn them into
  context states.
- In every layer the queries come from the block alone, keys and values from the context states followed by the block.
- A sliding layer sees keys after `query - window` (speculators: from `anchor - window` on, the anchor being the block's
  first position); attention is bidirectional unless the config says causal.
- Rope turns the first `head_dim · partial_rotary_factor` dimensions, in halves, or in neighbouring pairs where
  `rope_is_neox_style` is false; the weights are used as they lie in the file.
- Tokens: the best of each position; DSpark's chain (reference_dspark.py), DFlash2's selector (reference_dflash2.py).

This is the other witness: it takes nothing from the code that converts, and no name or key of a GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.errors import CheckpointError
from dflash_convert.runtime import reference_dflash2, reference_dspark
from dflash_convert.runtime.interface import Proposal, Target
from dflash_convert.runtime.ops import (
    Array,
    RopeTable,
    attention,
    gated_mlp,
    heads,
    linear,
    rms_norm,
    rms_unit,
    rope_table,
    softcapped,
)
from dflash_convert.runtime.reference_config import DraftConfig, Schema, read_draft_config, read_schema
from dflash_convert.runtime.reference_tensors import (
    CONFIDENCE,
    MARKOV,
    SELECTOR,
    UNSUPPORTED,
    Confidence,
    ConvLayer,
    Ends,
    Layer,
    Markov,
    SandwichLayer,
    Selector,
)
from dflash_convert.runtime.weights import Resident, Weights, check


class Context:
    """What the reference keeps of accepted positions: their context states (n, hidden_size), after `hidden_norm`."""

    def __init__(self, hidden_size: int) -> None:
        self.states: Array = np.empty((0, hidden_size), np.float32)

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class DFlashReference:
    """A draft on the checkpoint's side; fulfils `Drafter`, with a `Context` as its context. markov, confidence:
    DSpark's heads; selector: DFlash2's, with layers that are `ConvLayer`s."""

    name: str
    config: DraftConfig
    ends: Ends
    layers: Sequence[Layer]
    markov: Markov | None = None
    confidence: Confidence | None = None
    selector: Selector | None = None

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def first_slot(self) -> int:
        return 0 if self.config.sample_from_anchor else 1

    @property
    def mask_token_id(self) -> int:
        return self.config.mask_token_id

    @property
    def n_taps(self) -> int:
        return len(self.config.target_layer_ids)

    @property
    def embedding_table(self) -> Array | None:
        return self.ends.embed_tokens

    @property
    def mask_embedding(self) -> Array | None:
        """MiMo's, from mask_embedding.pt: the target's own row of it is not trained."""
        return self.ends.mask_embedding

    @property
    def output_weight(self) -> Array | None:
        """The draft's head, or its embeddings where they are tied; a draft that has neither borrows."""
        return (
            self.ends.embed_tokens
            if self.ends.lm_head is None and self.config.tie_word_embeddings
            else self.ends.lm_head
        )

    def features(self, layer_inputs: Sequence[Array]) -> Array:
        """What leaves the tapped layers: (T, taps · hidden_size). Raises CheckpointError: a wrong target."""
        outputs, taps = layer_inputs[1:], self.config.target_layer_ids
        if max(taps) >= len(outputs):
            raise CheckpointError(f"target_layer_ids are {list(taps)}, but the target has {len(outputs)} layers")
        picked = np.concatenate([outputs[t] for t in taps], axis=1)
        if picked.shape[1] != self.config.features_size:
            raise CheckpointError(
                f"fc reads {self.n_taps} taps of width {self.config.target_hidden_size}, "
                f"the target's width is {outputs[0].shape[1]}"
            )
        return picked

    def new_context(self) -> Context:
        return Context(self.config.hidden_size)

    def extend(self, ctx: Context, features: Array) -> None:
        """Append the context states of features (T, taps · hidden_size)."""
        states = rms_norm(linear(features, self.ends.fc), self.ends.hidden_norm, self.config.rms_norm_eps)
        ctx.states = np.concatenate([ctx.states, states])

    def hidden_block(self, ctx: Context, block: Array) -> Array:
        """Hidden states (B, hidden_size) after `norm` of a block of embeddings (B, hidden_size) behind the context."""
        c = self.config
        positions = np.arange(len(ctx) + len(block))
        table = rope_table(c.rope, positions)
        x = block * np.float32(c.input_embedding_scale)
        for i, layer in enumerate(self.layers):
            x = self._layer(layer, x, ctx.states, table, self._visible(i, len(ctx), positions))
        return rms_norm(x, self.ends.norm, c.rms_norm_eps)

    def logits(self, hidden: Array, target: Target) -> Array:
        """Logits (B, target.n_vocab), scaled and capped as the config says. Raises CheckpointError: a d2t that names
        tokens the target does not have."""
        logits, d2t = self._own_logits(hidden, target), self.ends.d2t
        if d2t is None:
            return logits
        ids = np.arange(len(d2t)) + d2t.astype(np.int64)
        if ids.min() < 0 or ids.max() >= target.n_vocab:
            raise CheckpointError(
                f"d2t leads to token ids from {ids.min()} to {ids.max()}, the target has {target.n_vocab} tokens"
            )
        everywhere = np.full((len(logits), target.n_vocab), -np.inf, np.float32)
        everywhere[:, ids] = logits
        return everywhere

    def propose(self, hidden: Array, last: int, target: Target) -> Proposal:
        """The tokens of the block's positions from `first_slot` on. Raises CheckpointError: heads of another target."""
        c, has_heads = self.config, self.markov is not None or self.selector is not None
        if has_heads and c.vocab_size != target.n_vocab:
            raise CheckpointError(f"the draft's heads know {c.vocab_size} tokens, the target has {target.n_vocab}")
        states = hidden[self.first_slot :]
        logits = self._own_logits(states, target)
        if self.selector is not None:
            return Proposal(reference_dflash2.select(self.selector, logits, states, last, c.selector_top_k))
        return reference_dspark.sample_block(self.markov, self.confidence, logits, states, last, self.ends.d2t)

    def _own_logits(self, hidden: Array, target: Target) -> Array:
        """Logits over the tokens the draft knows."""
        c, weight = self.config, self.output_weight
        logits = target.head(hidden) if weight is None else linear(hidden, weight)
        logits = logits * np.float32(c.output_multiplier) if c.output_multiplier else logits
        return softcapped(logits, c.final_logit_softcapping) if c.final_logit_softcapping > 0 else logits

    def _layer(self, layer: Layer, x: Array, context: Array, table: RopeTable, visible: Array) -> Array:
        c, eps = self.config, self.config.rms_norm_eps
        normed = rms_norm(x, layer.input_layernorm, eps)
        if isinstance(layer, SandwichLayer):
            attended = self._attend(layer, normed, context, table, visible)
            x = x + rms_norm(attended, layer.post_attention_layernorm, eps)
            fed = self._mlp(layer, rms_norm(x, layer.pre_feedforward_layernorm, eps))
            x = x + rms_norm(fed, layer.post_feedforward_layernorm, eps)
            return x if layer.layer_scalar is None else x * layer.layer_scalar
        if isinstance(layer, ConvLayer):
            conv = reference_dflash2.Convolution(normed, layer.attention_base, layer.attention_projection)
            x = x + conv.finish(self._attend(layer, conv.prepare(), context, table, visible))
            normed = rms_norm(x, layer.post_attention_layernorm, eps)
            conv = reference_dflash2.Convolution(normed, layer.mlp_base, layer.mlp_projection)
            return x + conv.finish(self._mlp(layer, conv.prepare()))
        x = x + self._attend(layer, normed, context, table, visible)
        return x + self._mlp(layer, rms_norm(x, layer.post_attention_layernorm, c.rms_norm_eps))

    def _attend(self, layer: Layer, normed: Array, context: Array, table: RopeTable, visible: Array) -> Array:
        c, n = self.config, len(context)
        both = np.concatenate([context, normed])  # (n + B, hidden_size)
        q = heads(_linear(normed, layer.q_proj, layer.q_bias), c.num_attention_heads)
        keys = heads(_linear(both, layer.k_proj, layer.k_bias), c.num_key_value_heads)
        v = keys if layer.v_proj is None else heads(_linear(both, layer.v_proj, layer.v_bias), c.num_key_value_heads)
        v = rms_unit(v, c.rms_norm_eps) if isinstance(layer, SandwichLayer) else v
        q = c.rotate(rms_norm(q, layer.q_norm, c.rms_norm_eps), (table[0][n:], table[1][n:]))
        k = c.rotate(rms_norm(keys, layer.k_norm, c.rms_norm_eps), table)
        v = v * np.float32(c.attention_value_scale)
        return _linear(attention(q, k, v, visible, c.scaling, layer.attention_sink_bias), layer.o_proj, layer.o_bias)

    def _mlp(self, layer: Layer, normed: Array) -> Array:
        return gated_mlp(normed, layer.gate_proj, layer.up_proj, layer.down_proj, self.config.hidden_act)

    def _visible(self, i: int, anchor: int, positions: Array) -> Array:
        """(B, S) bool: which keys at `positions` the block's queries, from `anchor` on, see in layer i."""
        query, key, window = positions[anchor:, None], positions[None, :], self.config.windows[i]
        seen = np.full((len(query), key.size), True)
        if window is not None:
            seen &= key >= anchor - window if self.config.window_from_anchor else key > query - window
        return seen & (key <= query) if self.config.is_causal[i] else seen


def _linear(x: Array, weight: Array, bias: Array | None) -> Array:
    return linear(x, weight) if bias is None else linear(x, weight) + bias


def load_reference(config: Mapping[str, Any], weights: Weights, target_model_type: str = "") -> DFlashReference:
    """The draft of a checkpoint: its config.json as it stands, and its tensors.

    target_model_type: the target's `model_type` (or a GGUF's architecture), as far as known: drafts that borrow a Gemma
    target's embeddings get them scaled, and nothing in the draft says so.

    Raises ConfigError: a value that is missing or not supported. CheckpointError: a tensor that is missing, left over
    or of another shape.
    """
    kept = Resident(weights)
    schema = read_schema(config, kept)
    draft = read_draft_config(schema, kept, target_model_type)
    layer_class = SandwichLayer if schema.is_gemma else ConvLayer if SELECTOR in kept else Layer
    reference = DFlashReference(
        "checkpoint",
        draft,
        Ends(kept, draft),
        [layer_class(kept, draft, i) for i in range(draft.num_hidden_layers)],
        Markov(kept, draft) if MARKOV in kept else None,
        Confidence(kept, draft) if any(name in kept for name in CONFIDENCE) else None,
        Selector(kept, draft) if SELECTOR in kept else None,
    )
    heads_ = (reference.markov, reference.confidence, reference.selector)
    parts = [reference.ends, *reference.layers, *(head for head in heads_ if head is not None)]
    check(parts, "the draft's checkpoint", CheckpointError, UNSUPPORTED)
    _check_announced(schema, kept)
    return reference


def _check_announced(schema: Schema, weights: Weights) -> None:
    """What config.json says is there must be there, in every layer."""
    needs_values = not (schema.is_gemma and schema.flat.get("attention_k_eq_v"))
    for what, announced, name in (
        ("does not say attention_k_eq_v", needs_values, "layers.{i}.self_attn.v_proj.weight"),
        ("says attention_sink_bias", schema.first("attention_sink_bias"), "layers.{i}.self_attn.attention_sink_bias"),
        ("says markov_rank", schema.first("markov_rank"), MARKOV),
        ("says selector_rank", schema.first("selector_rank"), SELECTOR),
    ):
        names = [name.format(i=i) for i in range(int(schema.flat["num_hidden_layers"]))] if announced else []
        if missing := next((n for n in names if n not in weights), None):
            raise CheckpointError(f"config.json {what}, but no {missing} is there")
