"""Random drafts of every family: widths that do and do not divide into blocks, one to four layers, windows or not.

Configs and shapes come from `published` (by the published schemas), weights are seeded normals.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from make import make_checkpoint
from published import CONFIDENCE, DFLASH2, DSPARK, GEMMA, MUSE, REDUCED, SINKS, TABLES, shapes
from toys import toy_target

VOCAB, DEPTH = 320, 8
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "DFlash": (),
    "DFlash, reduced vocabulary": (REDUCED,),
    "DFlash2": (DFLASH2,),
    "DSpark": (DSPARK, CONFIDENCE),
    "DSpark, own tables": (DSPARK, TABLES),
    "DSpark (Gemma 4)": (DSPARK, CONFIDENCE, TABLES, GEMMA),
    "DFlash (MiMo)": (SINKS,),
    "DFlash (Muse assistant)": (MUSE,),
}


def random_config(family: str, rng: random.Random) -> dict[str, Any]:
    """A flat config of a family."""
    parts, layers, head_dim = FAMILIES[family], rng.randint(1, 4), rng.choice((16, 32, 64))
    kv, width = rng.choice((1, 2)), rng.choice((64, 96, 128, 160, 256, 288))
    taps = sorted(rng.sample(range(DEPTH), rng.randint(1, 4)))
    config: dict[str, Any] = {
        "hidden_size": width, "num_hidden_layers": layers, "intermediate_size": rng.choice((64, 96, 256, 272)),
        "num_attention_heads": kv * rng.choice((1, 2, 3)), "num_key_value_heads": kv, "head_dim": head_dim,
        "max_position_embeddings": 1024, "rms_norm_eps": rng.choice((1e-5, 1e-6)), "vocab_size": VOCAB,
        "hidden_act": "silu", "rope_theta": rng.choice((1e4, 1e6, 1e7)), "block_size": rng.choice((4, 7, 8)),
        "mask_token_id": rng.randrange(VOCAB), "target_layer_ids": taps, "tie_word_embeddings": False,
        **_window(layers, rng),
    }  # fmt: skip
    if DSPARK in parts:
        config |= {"markov_rank": 32, "architectures": ["DSparkDraftModel"]}
    if DFLASH2 in parts:
        config |= {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 32}
        config |= {"selector_top_k": rng.choice((2, 4, 7))}
    if REDUCED in parts:
        config |= {"draft_vocab_size": rng.choice((128, 200))}
    return config | (_gemma(config, head_dim) if GEMMA in parts else {})


def _window(layers: int, rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.4:
        return {"is_causal": rng.random() < 0.5}
    kinds = [rng.choice(("sliding_attention", "full_attention")) for _ in range(layers)]
    kinds[rng.randrange(layers)] = "sliding_attention"
    return {"layer_types": kinds, "sliding_window": rng.choice((5, 16)), "use_sliding_window": True}


def _gemma(config: Mapping[str, Any], head_dim: int) -> dict[str, Any]:
    rope = {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6}}
    return {
        "global_head_dim": head_dim, "num_global_key_value_heads": config["num_key_value_heads"],
        "rope_parameters": rope,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_act": None, "rope_theta": None, "attention_k_eq_v": True,
        "architectures": ["Gemma4DSparkModel"], "layer_types": None, "sliding_window": None, "use_sliding_window": None,
    }  # fmt: skip


def make(folder: Path, family: str, seed: int) -> tuple[Path, Path]:
    """(draft, target) folders of one random draft."""
    config = random_config(family, random.Random(f"{family} {seed}"))
    rng = np.random.default_rng(seed)
    tensors = {name: _values(name, shape, rng) for name, shape in shapes(config, FAMILIES[family]) if name != "t2d"}
    facts = {"hidden_size": config["hidden_size"], "num_hidden_layers": DEPTH, "vocab_size": VOCAB}
    return make_checkpoint(folder / "draft", tensors, config), toy_target(folder / "target", config=facts)


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if name == "d2t":
        tokens = np.sort(rng.choice(VOCAB, shape[0], replace=False))
        return (tokens - np.arange(shape[0])).astype(np.int64)
    spread = 0.1 if len(shape) == 1 else 1 / np.sqrt(shape[-1])
    centre = 1.0 if len(shape) == 1 and "bias" not in name else 0.0
    return (centre + spread * rng.standard_normal(shape)).astype(ml_dtypes.bfloat16)
