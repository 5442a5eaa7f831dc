"""config.json of a draft → what its published definition says, whatever schema it is written in.

In: the raw dict, and the checkpoint's tensors where only their shapes tell. Out: `DraftConfig`. The schemas:

- z-lab (DFlash and DFlash2), MiMo, LiquidAI, NVIDIA, SpecForge: values at the top or in `dflash_config`, SpecForge's
  heads also in `dspark_config`. The inner one wins.
- DeepSpec: everything at the top. A Gemma 4 draft uses its full-attention sizes and rope for all layers.
- speculators: the decoder in `transformer_layer_config`, the rest at the top, taps as `aux_hidden_state_layer_ids`,
  which are one higher. A null inside never hides a value above.

A key may be there and say nothing (null). What was trained in and is nowhere is a ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dflash_convert.errors import ConfigError
from dflash_convert.runtime.hf_config import DecoderConfig, first, read_decoder, require, said
from dflash_convert.runtime.ops import Array, RopeTable, gelu_erf, gelu_tanh, rotate_half, rotate_pairs, silu
from dflash_convert.runtime.reference_tensors import CONFIDENCE, MARKOV, SANDWICH
from dflash_convert.runtime.weights import Weights

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({
    "silu": silu, "gelu": gelu_erf, "gelu_pytorch_tanh": gelu_tanh,
})  # fmt: skip
GEMMA_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}
CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "MuseGlimmerAssistantModel": {"hidden_act": "silu"},
    "Gemma4DSparkModel": {"hidden_act": "gelu_pytorch_tanh"},
})  # fmt: skip

# key → the one value of it that runs; another one belongs to a draft of a kind that does not
ONLY: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "markov_head_type": ("vanilla", "a Markov head of the type"),
        "dspark_fixup_head_type": ("markov", "a fix-up head of the type"),
        "causal_head": (False, "JetSpec's causal_head"),
        "log_snr_conditioning": (False, "log_snr_conditioning"),
        "gating": (False, "Laguna's gating"),
        "topk_context": (0, "topk_context"),
    }
)
UNSUPPORTED_CLASSES = ("DFlashLagunaForCausalLM", "Qwen35DSparkModel", "KimiK3DSpark4KDA1MLADraftModel")


@dataclass(frozen=True)
class DraftConfig(DecoderConfig):
    """What config.json says of a draft. windows: one a layer, None for a full one; is_causal: one a layer;
    window_from_anchor: windows reach back from the block's first position, not from each query; output_multiplier and
    final_logit_softcapping: 0 for none. The sizes of DSpark and DFlash2 are 0 in a draft of another kind."""

    vocab_size: int
    draft_vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    target_hidden_size: int
    windows: tuple[int | None, ...]
    is_causal: tuple[bool, ...]
    window_from_anchor: bool
    rotate: Callable[[Array, RopeTable], Array]
    scaling: float
    attention_value_scale: float
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float
    hidden_act: Callable[[Array], Array]
    sample_from_anchor: bool
    tie_word_embeddings: bool
    markov_rank: int
    confidence_size: int
    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    one: int = 1
    two: int = 2

    @property
    def features_size(self) -> int:
        """Width of the features: what `fc` reads."""
        return len(self.target_layer_ids) * self.target_hidden_size

    @property
    def kernel_projection_size(self) -> int:
        """Rows of a kernel projection: two sides, all taps, all groups."""
        return 2 * self.conv_kernel_size * (self.hidden_size // self.conv_group_size)


@dataclass(frozen=True)
class Schema:
    """A raw config, seen through: `inner` is `dflash_config`, `flat` the decoder's values and all others together."""

    config: Mapping[str, Any]
    inner: Mapping[str, Any]
    flat: Mapping[str, Any]
    architecture: str
    is_speculators: bool
    is_gemma: bool

    def first(self, key: str) -> Any:
        """The first value of a key that is not null: inside, at the top, or where a schema moves it."""
        return first(key, self.inner, self.flat)

    def require(self, key: str) -> Any:
        return require(key, self.inner, self.flat)


def read_schema(config: Mapping[str, Any], weights: Weights) -> Schema:
    """Raises ConfigError: a kind of draft that does not run."""
    inner = said(config, "dflash_config")
    names = config.get("architectures") or [""]
    flat = {**inner, **said(config, "dspark_config"), **{k: v for k, v in config.items() if v is not None}}
    flat |= said(config, "transformer_layer_config")
    is_gemma = SANDWICH in weights
    schema = Schema(config, inner, _gemma(flat) if is_gemma else flat, str(names[0]), _is_speculators(config), is_gemma)
    _refuse(schema)
    return schema


def _is_speculators(config: Mapping[str, Any]) -> bool:
    return "transformer_layer_config" in config or "speculators_model_type" in config


def _refuse(schema: Schema) -> None:
    if schema.architecture in UNSUPPORTED_CLASSES:
        raise ConfigError(f"config.json: not supported yet: drafts of the class {schema.architecture}")
    for key, (only, what) in ONLY.items():
        value = schema.first(key)
        if value is not None and value != only:
            raise ConfigError(f"config.json: not supported yet: {what}: {key} is {value!r}")


def _gemma(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A Gemma 4 draft's sizes and rope: those of full attention, for all layers (DeepSpec: Gemma4DSparkAttention)."""
    if flat.get("enable_moe_block") or flat.get("hidden_size_per_layer_input"):
        raise ConfigError("config.json: not supported yet: a Gemma 4 draft with experts or per-layer inputs")
    kv = "num_global_key_value_heads" if flat.get("attention_k_eq_v") else "num_key_value_heads"
    rope = flat.get("rope_parameters") or {"full_attention": GEMMA_ROPE}
    return {
        **flat,
        "head_dim": require("global_head_dim", flat),
        "num_key_value_heads": require(kv, flat),
        "rope_parameters": rope.get("full_attention") or rope,
        "rope_scaling": None,
    }


def read_draft_config(schema: Schema, weights: Weights, target_model_type: str) -> DraftConfig:
    """Everything the reference runs by. Raises ConfigError: what is missing, contradicts itself or does not run."""
    base = read_decoder(decoder_keys(schema))
    windows, vocab_size = read_windows(schema, base.num_hidden_layers), _read_vocab_size(schema, weights)
    neox = [schema.first(key) for key in ("rope_is_neox_style", "is_neox_style")]
    return DraftConfig(
        **vars(base),
        vocab_size=vocab_size,
        draft_vocab_size=_read_draft_vocab_size(schema, weights, vocab_size),
        block_size=int(schema.require("block_size")),
        mask_token_id=read_mask(schema),
        target_layer_ids=read_taps(schema),
        target_hidden_size=int(schema.first("target_hidden_size") or base.hidden_size),
        windows=windows,
        is_causal=read_causal(schema, windows),
        window_from_anchor=schema.is_speculators,
        rotate=rotate_pairs if False in neox else rotate_half,
        scaling=1.0 if schema.is_gemma else base.head_dim**-0.5,
        attention_value_scale=float(schema.first("attention_value_scale") or 1.0),
        input_embedding_scale=read_embedding_scale(schema, weights, base.hidden_size, target_model_type),
        output_multiplier=float(schema.first("output_multiplier") or schema.first("logit_scale") or 0.0),
        final_logit_softcapping=float(schema.first("final_logit_softcapping") or 0.0),
        hidden_act=_read_activation(schema),
        sample_from_anchor=read_anchor(schema, weights),
        tie_word_embeddings=read_tied(schema),
        **_read_head_sizes(schema, weights, base.hidden_size),
    )


def decoder_keys(schema: Schema) -> dict[str, Any]:
    """The decoder's values; of rope for each layer type, the entry that speculators' trainer gives to all layers."""
    rope = schema.flat.get("rope_parameters")
    if schema.is_speculators and isinstance(rope, Mapping) and isinstance(rope.get("sliding_attention"), Mapping):
        return {**schema.flat, "rope_parameters": rope["sliding_attention"]}
    return dict(schema.flat)


def _read_vocab_size(schema: Schema, weights: Weights) -> int:
    """Tokens of the target: said, or the rows of a table that has one for each; 0 where nothing needs it."""
    tables = ("embed_tokens.weight", MARKOV, "candidate_selector.predecessor_codebook", "lm_head.weight")
    rows = next((weights.shape(name)[0] for name in tables if name in weights), 0)
    return int(schema.first("vocab_size") or rows)


def _read_draft_vocab_size(schema: Schema, weights: Weights, vocab_size: int) -> int:
    size = int(schema.first("draft_vocab_size") or vocab_size)
    if size > vocab_size:
        raise ConfigError(f"config.json: draft_vocab_size is {size}, more than the vocab_size of {vocab_size}")
    if size < vocab_size and "d2t" not in weights and "draft_id_to_target_id" not in weights:
        raise ConfigError(f"config.json: draft_vocab_size is {size} of {vocab_size}, but there is no d2t")
    return size


def read_mask(schema: Schema) -> int:
    value = schema.first("mask_token_id")
    value = schema.first("pard_token") if value is None else value
    return int(schema.require("mask_token_id") if value is None else value)


def read_taps(schema: Schema) -> tuple[int, ...]:
    """The layers whose outputs are tapped; EAGLE's habit counts the embeddings as the first."""
    shifted = schema.first("aux_hidden_state_layer_ids") or schema.first("eagle_aux_hidden_state_layer_ids")
    ids = schema.first("target_layer_ids")
    if ids is None and shifted:
        ids = [int(i) - 1 for i in shifted]
    return tuple(int(i) for i in (schema.require("target_layer_ids") if ids is None else ids))


def _first_of(*places: tuple[Mapping[str, Any], str]) -> Any:
    return next((place[key] for place, key in places if place.get(key) is not None), None)


def read_windows(schema: Schema, n_layers: int) -> tuple[int | None, ...]:
    """A window a layer: `layer_types` says which slide; without it `use_swa` means all. Where `use_sliding_window` is
    false, a window left in the config means nothing."""
    window = _first_of((schema.inner, "swa_window_size"), (schema.flat, "sliding_window"))
    everywhere = "sliding_attention" if schema.first("use_swa") else "full_attention"
    kinds = schema.flat.get("layer_types") or [everywhere] * n_layers
    if schema.flat.get("use_sliding_window") is False:
        kinds = ["full_attention"] * len(kinds)
    if len(kinds) != n_layers:
        raise ConfigError(f"config.json: layer_types has {len(kinds)} entries for {n_layers} layers")
    if "sliding_attention" in kinds and window is None:
        raise ConfigError("config.json: there are sliding_attention layers, but no sliding_window")
    return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)


def read_causal(schema: Schema, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Whether a block's position hides the ones after it, layer by layer. A config that does not say trained a
    bidirectional block; speculators' sliding layers are causal unless `sliding_window_non_causal`."""
    value = _first_of((schema.config, "is_causal"), (schema.inner, "causal"))
    value = schema.first("dflash_query_causal") if value is None else value
    if value is None and schema.is_speculators and not schema.first("sliding_window_non_causal"):
        return tuple(window is not None for window in windows)
    return (bool(value),) * len(windows)


def read_embedding_scale(schema: Schema, weights: Weights, hidden_size: int, target_model_type: str) -> float:
    """What the embeddings of a block are multiplied by. The definitions take Gemma's from a module that scales them by
    the root of the width: DeepSpec the draft's own, z-lab the target's."""
    value = schema.first("input_embedding_scale")
    if value is not None:
        return float(value)
    from_gemma = target_model_type.startswith("gemma") and "embed_tokens.weight" not in weights
    return float(hidden_size**0.5) if schema.is_gemma or from_gemma else 1.0


def activation_name(schema: Schema) -> str:
    """transformers' name of the MLP's activation."""
    name = first("hidden_act", schema.flat) or first("hidden_activation", schema.flat)
    return str(name or require("hidden_act", CLASS_DEFAULTS.get(schema.architecture, {})))


def _read_activation(schema: Schema) -> Callable[[Array], Array]:
    name = activation_name(schema)
    if name not in ACTIVATIONS:
        raise ConfigError(f"config.json: not supported yet: hidden_act {name!r}")
    return ACTIVATIONS[name]


def read_anchor(schema: Schema, weights: Weights) -> bool:
    """Whether the last accepted token's own position proposes. Where nothing says so: DeepSpec's and SpecForge's DSpark
    do, also with a Markov rank of 0; z-lab's DFlash does not, nor do the speculators files from before the key."""
    value, bonus = schema.first("sample_from_anchor"), schema.first("dspark_bonus_anchor")
    if value is not None or bonus is not None:
        return bool(not bonus if value is None else value)
    is_dspark = MARKOV in weights or "DSpark" in schema.architecture or schema.first("projector_type") == "dspark"
    return is_dspark and not schema.is_speculators


def read_tied(schema: Schema) -> bool:
    """Whether the draft's own embeddings are its head. DeepSpec's models have both; z-lab's and speculators' take the
    target's head where the draft has none, and leave a `tie_word_embeddings` of the target's in the config."""
    return bool(schema.first("tie_word_embeddings")) and not schema.inner and not schema.is_speculators


def _read_head_sizes(schema: Schema, weights: Weights, hidden_size: int) -> dict[str, Any]:
    """Sizes of DSpark's and DFlash2's heads: said, or by the shape of what is there."""
    rank = int(schema.first("markov_rank") or schema.first("dspark_markov_rank") or 0)
    rank = rank or (weights.shape(MARKOV)[-1] if MARKOV in weights else 0)
    confidence = next((weights.shape(name)[-1] for name in CONFIDENCE if name in weights), 0)
    names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
    sizes = {name: int(schema.first(name) or 0) for name in names}
    if sizes["conv_group_size"] and hidden_size % sizes["conv_group_size"]:
        group = sizes["conv_group_size"]
        raise ConfigError(f"config.json: conv_group_size {group} does not divide the hidden_size of {hidden_size}")
    wide = confidence == hidden_size
    return {"markov_rank": rank, "confidence_size": hidden_size + (0 if wide else rank), **sizes}
