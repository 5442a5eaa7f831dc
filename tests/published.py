"""Every published draft whose config is known, at full size: which kind it is, which key values it gets, or why not.

    python tests/published.py     writes tests/data/configs/expected.json, and prints the README's table

A config is planned with tensors of the shapes that its family has (plans read no data). Which tensors a checkpoint has
besides those of every DFlash draft is said in EXTRAS, from what is known of the published files.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dflash_convert.checkpoints.checkpoint import Checkpoint
from dflash_convert.checkpoints.safetensors_header import DTYPES, SourceTensor
from dflash_convert.conversion.config import DraftConfig, TargetConfig, read_draft_config, read_target_config
from dflash_convert.conversion.match import bare, classify
from dflash_convert.conversion.own_tables import Beside
from dflash_convert.conversion.plan import choose_outtype, plan_draft
from dflash_convert.conversion.rows.families import Family
from dflash_convert.conversion.rows.schema import TensorRow
from dflash_convert.errors import DflashError

FOLDER = Path(__file__).parent / "data/configs"
EXPECTED = FOLDER / "expected.json"
Shape = tuple[int, ...]

DSPARK, CONFIDENCE, TABLES, TABLE, REDUCED = "markov", "confidence", "tables", "embeddings", "reduced vocabulary"
DFLASH2, SINKS, MUSE, GEMMA = "dflash2", "sinks", "muse", "gemma"
FULL_DSPARK = (DSPARK, CONFIDENCE)

# what a draft's weights have besides, by the part of its name that says so; the first that fits counts
EXTRAS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("causal-noconf", (DSPARK,)),
    ("draftvocab32k", (*FULL_DSPARK, REDUCED)),
    ("deepseek-ai__dflash_qwen3_4b", (TABLES,)),
    ("deepseek-ai__dspark_gemma4", (*FULL_DSPARK, TABLES, GEMMA)),
    ("deepseek-ai__dspark_qwen3", (*FULL_DSPARK, TABLES)),
    ("Nemotron-3.5-Lightning-30B-A3B-NVFP4-DSpark", (DSPARK, TABLE, SINKS)),
    ("Nemotron-3.5-Lightning-30B-A3B-NVFP4-DFlash", (TABLE,)),
    ("GLM-5.3-speculator.dspark", FULL_DSPARK),
    ("speculator.dspark", (*FULL_DSPARK, REDUCED)),
    ("speculator.dflash", (REDUCED,)),
    ("Ornith-1.0-35B-DSpark", (*FULL_DSPARK, REDUCED)),
    ("GLM-5.3-Flash-DFlash2-G", (DFLASH2, TABLES)),
    ("DFlash2", (DFLASH2,)),
    ("dflash2", (DFLASH2,)),
    ("MiMo", (SINKS,)),
    ("Muse-Glimmer-30B-assistant", (MUSE,)),
    ("DSpark", FULL_DSPARK),
    ("dspark", FULL_DSPARK),
    ("DSPARK", FULL_DSPARK),
)

# the config of each draft's target, where it is known
TARGETS: tuple[tuple[str, str], ...] = tuple(
    (name, f"target__{name}.json")
    for name in (
        "Qwen3-30B-A3B", "Qwen3-4B", "Qwen3-8B", "Qwen3.5-0.8B", "Qwen3.5-27B", "Qwen3.5-4B", "Qwen3.5-9B",
        "Qwen3.6-35B-A3B", "gpt-oss-120b", "gpt-oss-20b", "MiniMax-M2.7", "Kimi-K2.5", "gemma-4-31B-it",
        "gemma-4-26B-A4B-it", "Llama-3.1-8B-Instruct",
    )
)  # fmt: skip


def names() -> list[str]:
    """Every draft's file, without .json."""
    found = (p.stem for p in FOLDER.glob("*.json"))
    return sorted(n for n in found if not n.startswith("target__") and n != EXPECTED.stem)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def extras(name: str) -> tuple[str, ...]:
    return next((parts for fragment, parts in EXTRAS if fragment in name), ())


# ── weights of the right shapes ───────────────────────────────────────────────────────────────────────────────────────


class Sizes:
    """A config's sizes, wherever it keeps them; 1 for what it does not say, so that planning says what is missing."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        groups = ("transformer_layer_config", "dflash_config", "dspark_config")
        self.places = [config, *(config.get(g) or {} for g in groups)]

    def __getattr__(self, key: str) -> int:
        found = next((p[key] for p in self.places if p.get(key) is not None), None)
        return int(found) if isinstance(found, int) else 1

    @property
    def taps(self) -> int:
        lists = ("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
        return next((len(p[key]) for key in lists for p in self.places if p.get(key)), 5)


def shapes(config: Mapping[str, Any], parts: tuple[str, ...]) -> Iterator[tuple[str, Shape]]:
    s = Sizes(config)
    n, taps, vocab = s.hidden_size, s.taps, s.vocab_size
    ends = ("encoder.fc", "encoder.output_norm_enc") if MUSE in parts else ("fc", "hidden_norm")
    yield f"{ends[0]}.weight", (n, taps * (s.target_hidden_size if s.target_hidden_size > 1 else n))
    yield from ((f"{name}.weight", (n,)) for name in (ends[1], "norm"))
    for i in range(s.num_hidden_layers):
        yield from ((f"layers.{i}.{name}", shape) for name, shape in layer(config, s, parts))
    yield from heads(s, parts, vocab)


def layer(config: Mapping[str, Any], s: Sizes, parts: tuple[str, ...]) -> Iterator[tuple[str, Shape]]:
    n, ff, h = s.hidden_size, s.intermediate_size, s.num_attention_heads
    hd = s.global_head_dim if GEMMA in parts else s.head_dim
    kv = (s.num_global_key_value_heads if GEMMA in parts else s.num_key_value_heads) * hd
    norms = ["input_layernorm", "post_attention_layernorm"]
    norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if GEMMA in parts else []
    yield from ((f"{name}.weight", (n,)) for name in norms)
    yield from ((f"self_attn.{name}_norm.weight", (hd,)) for name in "qk")
    matrices = {"self_attn.q_proj": (h * hd, n), "self_attn.k_proj": (kv, n), "self_attn.o_proj": (n, h * hd),
                "mlp.gate_proj": (ff, n), "mlp.up_proj": (ff, n), "mlp.down_proj": (n, ff)}  # fmt: skip
    matrices |= {} if GEMMA in parts else {"self_attn.v_proj": (kv, n)}
    yield from ((f"{name}.weight", shape) for name, shape in matrices.items())
    if config.get("attention_bias") and config.get("model_type") == "gpt_oss":
        yield from ((f"self_attn.{k}_proj.bias", (matrices[f"self_attn.{k}_proj"][0],)) for k in "qkvo")
    if GEMMA in parts:
        yield "layer_scalar", (1,)
    if SINKS in parts:
        yield "self_attn.attention_sink_bias", (h,)
    if DFLASH2 in parts:
        k = s.conv_kernel_size
        for side in ("attention", "mlp"):
            yield f"{side}_conv.base_kernel", (2, k, n)
            yield f"{side}_conv.kernel_projection.weight", (2 * k * n // s.conv_group_size, n)


def heads(s: Sizes, parts: tuple[str, ...], vocab: int) -> Iterator[tuple[str, Shape]]:
    n, rows = s.hidden_size, s.draft_vocab_size if REDUCED in parts else vocab
    if {TABLES, TABLE, REDUCED} & set(parts):
        yield "embed_tokens.weight", (vocab, n)
    if {TABLES, REDUCED} & set(parts):
        yield "lm_head.weight", (rows, n)
    if REDUCED in parts:
        yield from (("d2t", (rows,)), ("t2d", (vocab,)))
    if DFLASH2 in parts:
        yield "candidate_selector.hidden_projection.weight", (s.selector_rank, n)
        yield from (
            (f"candidate_selector.{w}_codebook", (vocab, s.selector_rank)) for w in ("predecessor", "successor")
        )
    if DSPARK in parts:
        yield "markov_head.markov_w1.weight", (vocab, s.markov_rank)
        yield "markov_head.markov_w2.weight", (rows, s.markov_rank)
    if CONFIDENCE in parts:
        yield "confidence_head.proj.weight", (1, n + s.markov_rank)
        yield "confidence_head.proj.bias", (1,)


class Sized(Checkpoint):
    """A checkpoint of shapes alone. Tables of ids are the first tokens; biases are zeros."""

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray[Any, np.dtype[Any]]:
        tensor = self.tensors[name]
        if name == "t2d":
            kept = self.tensors["d2t"].shape[0]
            return (np.arange(tensor.shape[0]) < kept)[None, :]
        return np.zeros((1, tensor.shape[-1]), DTYPES[tensor.dtype])


DTYPE = {"d2t": "I64", "t2d": "BOOL"}


def checkpoint(name: str) -> Checkpoint:
    config = read(name)
    tensors = {
        t: SourceTensor(t, DTYPE.get(t, "BF16"), shape, Path(name), 0, int(np.prod(shape)) * 2)
        for t, shape in sorted(shapes(config, extras(name)))
    }
    return Sized(Path(name), config, tensors, {})


# ── what becomes of them ──────────────────────────────────────────────────────────────────────────────────────────────


def target_of(name: str) -> TargetConfig:
    file = next((f for fragment, f in TARGETS if f"__{fragment}-" in name or f"-{fragment}-" in name), None)
    if file is None:
        return read_target_config({}, "unknown")
    return read_target_config(json.loads((FOLDER / file).read_text()), file.removesuffix(".json"))


def table_of_target(config: DraftConfig, row: TensorRow) -> SourceTensor:
    """The target's embeddings or head, for a draft whose file has to carry them."""
    shape = (config.vocab_size, config.hidden_size)
    return SourceTensor(row.source, "BF16", shape, Path("target"), 0, 2 * shape[0] * shape[1])


def outcome(name: str) -> dict[str, Any]:
    """Family and keys of a draft's plan, or why it is refused."""
    source = checkpoint(name)
    try:
        family = classify(source)
        assert isinstance(family, Family)
        shapes_of = {bare(n): t.shape for n, t in source.tensors.items()}
        config = read_draft_config(source.config, shapes_of, {}, {}, family.fields)
        outtype, beside = choose_outtype(source, "auto"), Beside(partial(table_of_target, config))
        plan = plan_draft(source, family, config, target_of(name), (), lambda _: (), outtype, beside)
    except DflashError as e:
        return {"refused": e.message.split("; layers.")[0]}  # what placeholders of unknown size would imply
    keys = {kv.key: list(kv.value) if isinstance(kv.value, (list, tuple)) else kv.value for kv in plan.kv}
    warnings = [n.text for n in plan.notes if n.level == "warning"]
    return {"family": family.name, "keys": keys, "tensors": len(plan.tensors), "warnings": warnings}


def status(found: Mapping[str, Any]) -> str:
    """A row of the README's table in words."""
    if "family" in found:
        return f"converts as {found['family']}"
    said = str(found["refused"])
    missing = re.match(r"config\.json: (\w+) is missing", said)
    return f"its config is known in part: no {missing[1]}" if missing else f"refused: {said.split(': this is ')[-1]}"


def table(outcomes: Mapping[str, Mapping[str, Any]]) -> str:
    """The README's table."""
    rows = (f"| {n.replace('__', '/')} | {status(o).replace('|', '∣')} |" for n, o in sorted(outcomes.items()))
    return "\n".join(("| draft | |", "|---|---|", *rows)) + "\n"


if __name__ == "__main__":
    found = {name: outcome(name) for name in names()}
    EXPECTED.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(table(found))
