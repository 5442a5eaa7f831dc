"""PrismML's DSpark drafts (Bonsai): mainline's word `target_layers` with the checkpoint's ids behind it."""

from __future__ import annotations

from dflash_convert.dialects.dialect import MASK_KEY, OUTPUTS, Dialect, TapKey

PRISMML = Dialect(
    name="prismml",
    title="PrismML's format for its Bonsai drafts",
    purpose="PrismML's llama.cpp",
    architecture="dspark",
    mainline_loads=False,
    taps=(TapKey("{a}.dspark.target_layers", OUTPUTS),),
    block_size=("{a}.dspark.block_size",),
    mask=("{a}.dspark.mask_token_id", MASK_KEY),
    extra=(
        "dspark.confidence_head", "dspark.confidence_head_with_markov", "dspark.markov_rank",
        "dspark.log_snr_conditioning", "dspark.min_log_snr", "dspark.max_log_snr", "dspark.hidden_correction",
        "dspark.markov_deploy_exposure", "dspark.correction_size",
    ),
    renamed=(
        ("dspark.fc.weight", "fc.weight"),
        ("dspark.hidden_norm.weight", "enc.output_norm.weight"),
        ("dspark.markov_head_a*", "markov_w1.weight"),
        ("dspark.markov_head_b*", "markov_w2.weight"),
        ("dspark.confidence_head.*", "conf_proj.*"),
    ),
    notes=("log-SNR conditioning and corrections have no place in mainline's graph", "its tokenizer may be `none`"),
)  # fmt: skip
