"""The standalone convert_dflash_to_gguf.py: architecture dflash, and `dflash.` once more before its own keys."""

from __future__ import annotations

from dflash_convert.dialects.dialect import FORK_TENSORS, NESTED_BLOCK, NESTED_MASK, RAW_TAPS, Dialect

EARLY_CONVERTER = Dialect(
    name="early-converter",
    title="an early standalone converter's format",
    purpose="forks of llama.cpp from before the merge, ROCmFPX",
    architecture="dflash",
    mainline_loads=False,
    any_of=("dflash.dflash.*",),
    taps=(RAW_TAPS,),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK,),
    extra=("dflash.num_target_layers", "target_hidden_size"),
    renamed=FORK_TENSORS[:2],
    notes=(
        "it has no key_length, and its rope.dimension_count is embedding_length / head_count, wrong where heads are "
        "of another size",
    ),
)
