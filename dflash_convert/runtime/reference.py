"""A DFlash draft as its checkpoint says, run by the published definition (z-lab's DFlashDraftModel and its kin).

In: the raw config.json and the checkpoint's tensors, then target states. Out: hidden states of a drafted block.

- Features are what *leaves* the target's layers `target_layer_ids`, side by side; `fc` and `hidden_norm` turn them into
  context states.
- In every layer the queries come from the block alone, keys and values from the context states followed by the block.
- A sliding layer sees keys after `query - window`; attention is bidirectional unless the config says causal.
- Rope turns the first `head_dim · partial_rotary_factor` dimensions, in halves, or in neighbouring pairs where
  `rope_is_neox_style` is false; the weights are used as they lie in the file.

This is the other witness: it takes nothing from the code that converts, and no name or key of a GGUF.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.runtime.hf_config import DecoderConfig, first, read_decoder, require
from dflash_convert.runtime.ops import (
    Array,
    RopeTable,
    attention,
    gated_mlp,
    gelu_erf,
    gelu_tanh,
    heads,
    linear,
    rms_norm,
    rope_table,
    rotate_half,
    rotate_pairs,
    silu,
)
from dflash_convert.runtime.weights import Module, OptionalTensor, Resident, Tensor, Weights, check

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({
    "silu": silu, "gelu": gelu_erf, "gelu_pytorch_tanh": gelu_tanh,
})  # fmt: skip

# part of a tensor's name → what it belongs to
UNSUPPORTED: Mapping[str, str] = MappingProxyType(
    {
        "markov_head": "DSpark's Markov head",
        "confidence_": "DSpark's confidence head",
        "d2t": "a reduced draft vocabulary",
        "t2d": "a reduced draft vocabulary",
        "candidate_selector": "DFlash2's candidate selector",
        "_conv.": "DFlash2's convolutions",
        "feedforward_layernorm": "Gemma 4 drafts",
        "layer_scalar": "Gemma 4 drafts",
        "_proj.bias": "biases in the draft",
    }
)


class Layer(Module):
    input_layernorm = Tensor("layers.{i}.input_layernorm.weight", "hidden_size")
    q_proj = Tensor("layers.{i}.self_attn.q_proj.weight", "q_size", "hidden_size")
    k_proj = Tensor("layers.{i}.self_attn.k_proj.weight", "kv_size", "hidden_size")
    v_proj = Tensor("layers.{i}.self_attn.v_proj.weight", "kv_size", "hidden_size")
    o_proj = Tensor("layers.{i}.self_attn.o_proj.weight", "hidden_size", "q_size")
    q_norm = Tensor("layers.{i}.self_attn.q_norm.weight", "head_dim")
    k_norm = Tensor("layers.{i}.self_attn.k_norm.weight", "head_dim")
    attention_sink_bias = OptionalTensor("layers.{i}.self_attn.attention_sink_bias", "num_attention_heads")
    post_attention_layernorm = Tensor("layers.{i}.post_attention_layernorm.weight", "hidden_size")
    gate_proj = Tensor("layers.{i}.mlp.gate_proj.weight", "intermediate_size", "hidden_size")
    up_proj = Tensor("layers.{i}.mlp.up_proj.weight", "intermediate_size", "hidden_size")
    down_proj = Tensor("layers.{i}.mlp.down_proj.weight", "hidden_size", "intermediate_size")


class Ends(Module):
    fc = Tensor("fc.weight", "hidden_size", "features_size")
    hidden_norm = Tensor("hidden_norm.weight", "hidden_size")
    norm = Tensor("norm.weight", "hidden_size")
    embed_tokens = OptionalTensor("embed_tokens.weight", "vocab_size", "hidden_size")
    lm_head = OptionalTensor("lm_head.weight", "vocab_size", "hidden_size")


@dataclass(frozen=True)
class DraftConfig(DecoderConfig):
    """What config.json says of a draft. windows: one a layer, None for a full one."""

    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    windows: tuple[int | None, ...]
    is_causal: bool
    rotate: Callable[[Array, RopeTable], Array]
    attention_value_scale: float
    input_embedding_scale: float
    hidden_act: Callable[[Array], Array]

    @property
    def features_size(self) -> int:
        """Width of the features: what `fc` reads."""
        return len(self.target_layer_ids) * self.hidden_size


class Context:
    """What the reference keeps of accepted positions: their context states (n, hidden_size), after `hidden_norm`."""

    def __init__(self, hidden_size: int) -> None:
        self.states: Array = np.empty((0, hidden_size), np.float32)

    def __len__(self) -> int:
        return len(self.states)


@dataclass(frozen=True)
class DFlashReference:
    """A draft on the checkpoint's side; fulfils `Drafter`, with a `Context` as its context."""

    name: str
    config: DraftConfig
    ends: Ends
    layers: Sequence[Layer]

    @property
    def block_size(self) -> int:
        return self.config.block_size

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
    def output_weight(self) -> Array | None:
        return self.ends.lm_head

    def features(self, layer_inputs: Sequence[Array]) -> Array:
        """What leaves the tapped layers: (T, taps · hidden_size). Raises CheckpointError: a wrong target."""
        outputs, taps = layer_inputs[1:], self.config.target_layer_ids
        if max(taps) >= len(outputs):
            raise CheckpointError(f"target_layer_ids are {list(taps)}, but the target has {len(outputs)} layers")
        picked = np.concatenate([outputs[t] for t in taps], axis=1)
        if picked.shape[1] != self.config.features_size:
            raise CheckpointError(
                f"fc reads {self.n_taps} taps of width {self.config.hidden_size}, "
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
        for layer, window in zip(self.layers, c.windows, strict=True):
            visible = _visible(positions[len(ctx) :], positions, window, c.is_causal)
            x = x + self._attend(layer, x, ctx.states, table, visible)
            normed = rms_norm(x, layer.post_attention_layernorm, c.rms_norm_eps)
            x = x + gated_mlp(normed, layer.gate_proj, layer.up_proj, layer.down_proj, c.hidden_act)
        return rms_norm(x, self.ends.norm, c.rms_norm_eps)

    def _attend(self, layer: Layer, x: Array, context: Array, table: RopeTable, visible: Array) -> Array:
        c, n = self.config, len(context)
        normed = rms_norm(x, layer.input_layernorm, c.rms_norm_eps)
        both = np.concatenate([context, normed])  # (n + B, hidden_size)
        q = rms_norm(heads(linear(normed, layer.q_proj), c.num_attention_heads), layer.q_norm, c.rms_norm_eps)
        k = rms_norm(heads(linear(both, layer.k_proj), c.num_key_value_heads), layer.k_norm, c.rms_norm_eps)
        v = heads(linear(both, layer.v_proj), c.num_key_value_heads) * np.float32(c.attention_value_scale)
        q, k = c.rotate(q, (table[0][n:], table[1][n:])), c.rotate(k, table)
        out = attention(q, k, v, visible, c.head_dim**-0.5, layer.attention_sink_bias)
        return linear(out, layer.o_proj)


def _visible(queries: Array, keys: Array, window: int | None, is_causal: bool) -> Array:
    """(B, S) bool: which keys a query sees."""
    query, key = queries[:, None], keys[None, :]
    seen = np.full((len(queries), len(keys)), True) if window is None else key > query - window
    return seen & (key <= query) if is_causal else seen


def load_reference(config: Mapping[str, Any], weights: Weights) -> DFlashReference:
    """The draft of a checkpoint: its config.json as it stands, and its tensors.

    Raises ConfigError: a value that is missing or not supported. CheckpointError: a tensor that is missing, left over
    or of another shape.
    """
    draft, kept = _read_draft_config(config), Resident(weights)
    ends, layers = Ends(kept, draft), [Layer(kept, draft, i) for i in range(draft.num_hidden_layers)]
    check([ends, *layers], "the draft's checkpoint", CheckpointError, UNSUPPORTED)
    inner = config.get("dflash_config") or {}
    if first("attention_sink_bias", inner, config) and layers[0].attention_sink_bias is None:
        raise CheckpointError(
            "config.json says attention_sink_bias, but no layers.N.self_attn.attention_sink_bias is there"
        )
    return DFlashReference("checkpoint", draft, ends, layers)


def _read_draft_config(config: Mapping[str, Any]) -> DraftConfig:
    inner = config.get("dflash_config") or {}
    places, base = (inner, config), read_decoder(config)
    neox = first("rope_is_neox_style", config, inner)
    return DraftConfig(
        **vars(base),
        vocab_size=int(first("vocab_size", config) or 0),
        block_size=int(require("block_size", *places)),
        mask_token_id=int(require("mask_token_id", *places)),
        target_layer_ids=tuple(int(i) for i in require("target_layer_ids", *places)),
        windows=_read_windows(config, inner, base.num_hidden_layers),
        is_causal=_read_causal(config, inner),
        rotate=rotate_pairs if neox is False else rotate_half,
        attention_value_scale=float(first("attention_value_scale", *places) or 1.0),
        input_embedding_scale=float(first("input_embedding_scale", *places) or 1.0),
        hidden_act=_read_activation(config),
    )


def _first_of(*places: tuple[Mapping[str, Any], str]) -> Any:
    return next((place[key] for place, key in places if place.get(key) is not None), None)


def _read_causal(config: Mapping[str, Any], inner: Mapping[str, Any]) -> bool:
    """Whether a block's position hides the ones after it; a config that does not say trained a bidirectional block."""
    query_causal = first("dflash_query_causal", inner, config)
    said = _first_of((config, "is_causal"), (inner, "causal"))
    return bool(query_causal if said is None else said)


def _read_windows(config: Mapping[str, Any], inner: Mapping[str, Any], n_layers: int) -> tuple[int | None, ...]:
    """A window a layer: `layer_types` says which slide; without it `use_swa` means all. Where `use_sliding_window` is
    false, a window left in the config means nothing."""
    window = _first_of((inner, "swa_window_size"), (config, "sliding_window"))
    everywhere = "sliding_attention" if first("use_swa", inner, config) else "full_attention"
    kinds = config.get("layer_types") or [everywhere] * n_layers
    if config.get("use_sliding_window") is False:
        kinds = ["full_attention"] * len(kinds)
    if len(kinds) != n_layers:
        raise ConfigError(f"config.json: layer_types has {len(kinds)} entries for {n_layers} layers")
    if "sliding_attention" in kinds and window is None:
        raise ConfigError("config.json: there are sliding_attention layers, but no sliding_window")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def _read_activation(config: Mapping[str, Any]) -> Callable[[Array], Array]:
    name = require("hidden_act", config)
    if name not in ACTIVATIONS:
        raise ConfigError(f"config.json: not supported yet: hidden_act {name!r}")
    return ACTIVATIONS[str(name)]
