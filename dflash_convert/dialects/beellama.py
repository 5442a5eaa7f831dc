"""The common format of the forks: buun, BeeLlama, ik_llama.cpp. The last row of its architecture: it needs no clue."""

from __future__ import annotations

from dflash_convert.dialects.dialect import FORK_TENSORS, MASK_KEY, NESTED_BLOCK, NESTED_MASK, RAW_TAPS, Dialect

BEELLAMA = Dialect(
    name="beellama",
    title="BeeLlama/buun fork format",
    purpose="buun-llama-cpp, BeeLlama until July 2026, ik_llama.cpp",
    architecture="dflash-draft",
    mainline_loads=False,
    taps=(RAW_TAPS,),
    block_size=(NESTED_BLOCK,),
    mask=(NESTED_MASK, MASK_KEY),
    extra=("dflash.n_target_features", "target_checkpoint_sha256"),
    renamed=FORK_TENSORS,
    notes=(
        "its converters fill in what they do not find (taps 1,16,31,46,61, mask 248070, block 16) with a mere warning",
        "made from a speculators checkpoint, its taps may be shifted already: nothing in the file says so",
    ),
)
