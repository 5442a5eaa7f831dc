"""The trained pair of tests/data for the runtime's tests: its models on both sides, and small GGUFs made by hand.

The GGUF side is written here from a table of names and a table of keys, so that the runtime is judged without the
converter; `draft_gguf` takes the mistakes a converter could make as changes to either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gguf.quants
import ml_dtypes  # noqa: F401  numpy knows bfloat16 once this is imported
import numpy as np
from handmade_gguf import LAYER_NAMES, draft_names, without_none, write_gguf
from safetensors.numpy import load_file

from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.accept import Run, propose
from dflash_convert.runtime.draft import DFlashDraft, load_draft
from dflash_convert.runtime.interface import Drafter, Target
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import DFlashReference, load_reference
from dflash_convert.runtime.target import load_target_checkpoint

DATA = Path(__file__).parent / "data"
PAIR, ENGINE = DATA / "tiny-pair", DATA / "engine"
VARIANTS = ("dflash", "all-full", "yarn", "partial-rotary", "causal", "sinks-value-scale", "interleaved-rope")
DSPARK = ("dspark-bonus-anchor", "dspark-from-anchor", "dspark-draft-vocab")
EVERY = (*VARIANTS, "dflash2", *DSPARK)
N_HEAD, N_HEAD_KV, HEAD_DIM = 4, 2, 64

ROTARY = ("attn_q.weight", "attn_k.weight", "attn_q_norm.weight", "attn_k_norm.weight")
SIZES = {
    "context_length": 1024,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": N_HEAD,
    "attention.head_count_kv": N_HEAD_KV,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 10000.0,
}
DRAFT_KEYS: dict[str, Any] = {
    "general.architecture": "dflash",
    "dflash.block_count": 2,
    **{f"dflash.{key}": value for key, value in SIZES.items()},
    "dflash.block_size": 8,
    "dflash.target_layers": [1, 2, 3],
    "tokenizer.ggml.mask_token_id": 1023,
}
TARGET_KEYS: dict[str, Any] = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 4,
    **{f"qwen3.{key}": value for key, value in SIZES.items()},
}
WINDOW = {"dflash.attention.sliding_window": 32, "dflash.attention.sliding_window_pattern": [True, False]}
YARN = {
    "dflash.rope.scaling.type": "yarn",
    "dflash.rope.scaling.factor": 4.0,
    "dflash.rope.scaling.original_context_length": 256,
}
VARIANT_KEYS: dict[str, dict[str, Any]] = {
    "dflash": WINDOW,
    "all-full": {},
    "yarn": {**WINDOW, **YARN},
    "partial-rotary": {**WINDOW, "dflash.rope.dimension_count": 32},
    "causal": {**WINDOW, "dflash.attention.causal": True},
    "sinks-value-scale": {**WINDOW, "dflash.attention.value_scale": 0.9},
    "interleaved-rope": WINDOW,
    "dflash2": {
        **WINDOW,
        "dflash.conv_kernel_size": 2,
        "dflash.conv_group_size": 16,
        "dflash.selector_rank": 32,
        "dflash.selector_top_k": 8,
    },
    "dspark-bonus-anchor": {**WINDOW, "dflash.sample_from_anchor": False},
    "dspark-from-anchor": {**WINDOW, "dflash.block_size": 7},
    "dspark-draft-vocab": {**WINDOW, "dflash.sample_from_anchor": False},
}


class SafetensorsWeights:
    """The tensors of some safetensors files, later files over earlier ones, with changes over both."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self.tensors = tensors

    def names(self) -> Sequence[str]:
        return tuple(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def __call__(self, name: str) -> Array:
        return self.tensors[name].astype(np.float32)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors


@cache
def golden() -> list[dict[str, Any]]:
    return list(json.loads((PAIR / "expected/golden.json").read_text()))


def engine_json(name: str) -> dict[str, list[dict[str, Any]]]:
    return dict(json.loads((ENGINE / name).read_text()))


@cache
def target_config() -> dict[str, Any]:
    return dict(json.loads((PAIR / "target/config.json").read_text()))


@cache
def target_tensors() -> dict[str, Array]:
    return dict(load_file(PAIR / "target/model.safetensors"))


@cache
def target() -> Target:
    return load_target_checkpoint(target_config(), SafetensorsWeights(target_tensors()))


def variant_config(variant: str) -> dict[str, Any]:
    return dict(json.loads((ENGINE / variant / "config.json").read_text()))


@cache
def variant_tensors(variant: str) -> dict[str, Array]:
    extra = ENGINE / variant / "extra.safetensors"
    return {**load_file(PAIR / "draft/model.safetensors"), **(load_file(extra) if extra.exists() else {})}


@cache
def reference(variant: str = "dflash") -> DFlashReference:
    return load_reference(variant_config(variant), SafetensorsWeights(variant_tensors(variant)))


def first_drafts(target: Target, drafter: Drafter, ids: Sequence[int], run: Run) -> list[list[int]]:
    """The drafts of a run's first three steps, each from a context computed at once."""
    drafts, n = [], 1
    for kept in run.accepted_per_step[:3]:
        known, last = [*ids, *run.tokens[: n - 1]], run.tokens[n - 1]
        ctx = drafter.new_context()
        drafter.extend(ctx, drafter.features(target.forward(known, target.new_cache()).layer_inputs))
        drafts.append(propose(target, drafter, ctx, last))
        n += kept + 1
    return drafts


def changed_reference(
    config: Mapping[str, Any] | None = None, tensors: Mapping[str, Array | None] | None = None
) -> DFlashReference:
    """The unchanged variant's reference with some config keys or tensors replaced; a tensor of None is taken away."""
    all_tensors = without_none({**variant_tensors("dflash"), **(tensors or {})})
    return load_reference({**variant_config("dflash"), **(config or {})}, SafetensorsWeights(all_tensors))


def target_names() -> dict[str, str]:
    """GGUF name → checkpoint name of the target's tensors."""
    ends = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    return {**ends, **{f"blk.{i}.{g}": f"model.layers.{i}.{c}" for i in range(4) for g, c in LAYER_NAMES.items()}}


def decoded(file: GGUFFile, names: Mapping[str, str]) -> dict[str, Array]:
    """A file's tensors as the gguf package decodes them, under their checkpoint names."""
    return {
        names[name]: gguf.quants.dequantize(file.raw(name), info.type).reshape(info.shape)
        for name, info in file.tensors.items()
    }


def draft_tensors(variant: str) -> dict[str, Array]:
    """A variant's tensors under their GGUF names; interleaved rotary rows are put into halves, head by head; d2t holds
    token ids instead of their distances."""
    source = variant_tensors(variant)
    tensors = {name: source[origin] for name, origin in draft_names().items() if origin in source}
    if "d2t" in tensors:
        tensors["d2t"] = tensors["d2t"] + np.arange(len(tensors["d2t"]))
    if variant == "interleaved-rope":
        return {name: halves(t) if name.endswith(ROTARY) else t for name, t in tensors.items()}
    return tensors


def halves(rows: Array, head_dim: int = HEAD_DIM) -> Array:
    """Rows of each head: even ones first, then odd ones."""
    by_head = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:])  # (heads, pairs, 2, ...)
    return np.swapaxes(by_head, 1, 2).reshape(rows.shape)


def target_gguf_tensors() -> dict[str, Array]:
    source = target_tensors()
    return {name: source[origin] for name, origin in target_names().items() if origin in source}


def draft_file(
    folder: Path,
    variant: str = "dflash",
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    matrix: str = "BF16",
) -> GGUFFile:
    """A variant as a GGUF, with some keys or tensors replaced; a value of None takes one away."""
    all_keys = {**DRAFT_KEYS, **VARIANT_KEYS[variant], **(keys or {})}
    return write_gguf(folder / "draft.gguf", all_keys, {**draft_tensors(variant), **(tensors or {})}, matrix)


def draft(folder: Path, variant: str = "dflash", **changes: Any) -> DFlashDraft:
    return load_draft(draft_file(folder, variant, **changes))


def target_file(
    folder: Path,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
    matrix: str = "BF16",
) -> GGUFFile:
    """The target as a GGUF, with some keys or tensors replaced; a value of None takes one away."""
    return write_gguf(
        folder / "target.gguf", {**TARGET_KEYS, **(keys or {})}, {**target_gguf_tensors(), **(tensors or {})}, matrix
    )
