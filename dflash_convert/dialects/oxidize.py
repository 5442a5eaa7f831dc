"""oxidize's drafts: every key twice, flat under the checkpoint's own name and nested as the forks have it."""

from __future__ import annotations

from dflash_convert.dialects.dialect import (
    FORK_TENSORS,
    NESTED_BLOCK,
    NESTED_MASK,
    NO_TOKENIZER,
    OUTPUTS,
    RAW_TAPS,
    Dialect,
    TapKey,
)

OXIDIZE = Dialect(
    name="oxidize",
    title="oxidize's format",
    purpose="oxidize",
    architecture="dflash-draft",
    mainline_loads=False,
    has=("dflash-draft.block_size", NESTED_BLOCK),
    taps=(RAW_TAPS, TapKey("{a}.target_layer_ids", OUTPUTS)),
    block_size=(NESTED_BLOCK, "{a}.block_size"),
    mask=(NESTED_MASK, "{a}.mask_token_id"),
    names=(
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("rope.freq_base", "rope_theta"),
    ),
    extra=("num_target_layers", "dflash.*"),
    renamed=FORK_TENSORS,
    notes=(NO_TOKENIZER,),
)
