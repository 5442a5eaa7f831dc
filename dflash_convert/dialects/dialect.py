"""What there is to say of a dialect. `{a}` in a name stands for the file's architecture; names may be fnmatch patterns.

Taps are stored in one of two conventions. A checkpoint names the layer whose *output* is tapped (its raw ids); mainline
llama.cpp names the layer whose *input* is tapped, which is one more. Which one a file means, only its dialect tells.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUTS = "layer inputs (checkpoint id + 1)"
OUTPUTS = "layer outputs (checkpoint ids)"

ALL = "all"
ALL_BUT_LAST = "all but the last"


@dataclass(frozen=True)
class TapKey:
    """A key that holds taps, and in which convention."""

    key: str
    convention: str

    @property
    def shift(self) -> int:
        """What mainline's numbers have more than these."""
        return 0 if self.convention == INPUTS else 1


@dataclass(frozen=True)
class Dialect:
    """One GGUF format.

    has, any_of, lacks: names of keys or tensors that are all there, of which one is there, of which none is there.
    block_size, mask, taps, window, softcap: the keys that may hold the value, the one that counts first.
    names: standard key (below `{a}.`) → the dialect's own, where it has one. extra: further keys it is known to write.
    slides: which layers slide where a window stands without a pattern; "" where nothing says.
    renamed: its tensor names (patterns) → mainline's. notes: what to know before trusting such a file.
    """

    name: str
    title: str
    purpose: str
    architecture: str
    mainline_loads: bool
    taps: tuple[TapKey, ...]
    block_size: tuple[str, ...]
    mask: tuple[str, ...]
    has: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    window: tuple[str, ...] = ("{a}.attention.sliding_window",)
    names: tuple[tuple[str, str], ...] = ()
    extra: tuple[str, ...] = ()
    slides: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


# Below `{a}.`: what mainline's loader cannot do without, in every dialect under these names or its own.
REQUIRED = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
# Below `{a}.`: everything mainline reads of a draft, except where a dialect keeps taps, block size and mask.
STANDARD = (
    *REQUIRED, "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.causal",
    "attention.scale", "attention.value_scale", "attention.sliding_window", "attention.sliding_window_pattern",
    "rope.freq_base", "rope.dimension_count", "rope.dimension_sections", "rope.scaling.*", "embedding_scale",
    "logit_scale", "final_logit_softcapping", "hidden_activation", "conv_kernel_size", "conv_group_size",
    "selector_rank", "selector_top_k", "sample_from_anchor", "has_confidence_head", "vocab_size",
)  # fmt: skip

MASK_KEY = "tokenizer.ggml.mask_token_id"
NESTED_BLOCK = "{a}.dflash.block_size"
NESTED_MASK = "{a}.dflash.mask_token_id"
RAW_TAPS = TapKey("{a}.dflash.target_layer_ids", OUTPUTS)
FORK_TENSORS = (
    ("dflash_fc.weight", "fc.weight"),
    ("dflash_hidden_norm.weight", "enc.output_norm.weight"),
    ("blk.*.post_attention_norm.weight", "blk.*.ffn_norm.weight"),
)
DOTTED_TENSORS = (("dflash.fc.weight", "fc.weight"), ("dflash.hidden_norm.weight", "enc.output_norm.weight"))
NO_TOKENIZER = "it carries no tokenizer: mainline needs the target's"
