"""What a plan says: notes, where each key came from, and the types of the output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import BF16, make_checkpoint, weights
from toys import FLAT, TARGET, flat_tensors, notes, plan, read_json, refusal

from dflash_convert.conversion.run import plan_conversion
from dflash_convert.errors import UsageError
from dflash_convert.hub import client as hub
from dflash_convert.hub.client import Source


def test_keys_nothing_reads_are_warned_of(tmp_path: Path) -> None:
    assert notes(plan(tmp_path, {"dflash_config.residual_scale": 0.7}), "warning") == [
        "dflash_config.residual_scale = 0.7 is not known and was not used; the draft may need it"
    ]


@pytest.mark.parametrize(("causal", "told"), [(None, True), (True, False), (False, False)])
def test_a_missing_causal_flag_is_told_and_nothing_invented(tmp_path: Path, causal: bool | None, told: bool) -> None:
    job = plan(tmp_path, {"is_causal": causal})
    text = "no causal flag in config.json: llama.cpp runs the block bidirectionally"
    assert (text in notes(job, "info")) is told
    assert [kv.value for kv in job.plan.kv if kv.key == "dflash.attention.causal"] == ([] if told else [causal])


def test_a_rope_base_other_than_the_targets_is_told(tmp_path: Path) -> None:
    assert "the draft's rope_theta is 10000, the target's 1e+06" in notes(plan(tmp_path, {"rope_theta": 10000}), "info")


@pytest.mark.parametrize(
    ("refs", "told"),
    [
        ((FLAT, TARGET), ["draft from the cache", "target-qwen3 from the cache"]),
        ((TARGET,), ["target-qwen3 from the cache"]),
    ],
    ids=["draft", "target"],
)
def test_what_the_hub_has_to_say_is_told(monkeypatch: pytest.MonkeyPatch, refs: Any, told: list[str]) -> None:
    monkeypatch.setattr(hub, "resolve", lambda ref, **_: Source(Path(ref), notes=(f"{Path(ref).name} from the cache",)))
    assert [t for t in notes(plan_conversion(*refs), "info") if "cache" in t] == told


def test_rows_without_a_token_are_counted(tmp_path: Path) -> None:
    assert "16 rows of the embedding table have no token: [PAD304] … [PAD319]" in notes(plan(tmp_path), "info")


def test_each_key_says_where_it_came_from(tmp_path: Path) -> None:
    job = plan(
        tmp_path,
        {"layer_types": None, "use_sliding_window": None, "dflash_config.use_swa": True, "sliding_window": 64},
        overrides={"block_size": 4},
        outtype="f16",
    )
    sources = {kv.key: kv.source for kv in job.plan.kv}
    assert all(sources.values()), [k for k, v in sources.items() if not v]
    assert sources["dflash.block_size"] == "--block-size"
    assert sources["dflash.attention.sliding_window"] == "sliding_window"
    assert sources["dflash.attention.sliding_window_pattern"] == "dflash_config.use_swa"
    assert sources["dflash.rope.freq_base"] == "rope_theta"
    assert sources["general.file_type"] == "--outtype"
    assert sources["tokenizer.ggml.tokens"] == "tokenizer.json"


# ── types of the output ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0"])
def test_outtype_is_for_matrices_and_norms_stay_f32(tmp_path: Path, outtype: str) -> None:
    job = plan(tmp_path, outtype=outtype)
    types = {t.name: t.type for t in job.plan.tensors}
    assert {types[n] for n in types if "norm" in n} == {G.F32}
    assert {types[n] for n in types if "norm" not in n} == {G[outtype.upper()]}
    expected = {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[outtype]
    assert [kv.value for kv in job.plan.kv if kv.key == "general.file_type"] == [expected]


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_outtype_auto_is_the_stored_type(tmp_path: Path, dtype: Any) -> None:
    job = plan(tmp_path, tensors={n: t.astype(dtype if t.ndim > 1 else np.float32) for n, t in flat_tensors().items()})
    expected = {BF16: G.BF16, np.float16: G.F16, np.float32: G.F32}[dtype]
    assert {t.type for t in job.plan.tensors if t.name == "fc.weight"} == {expected}


def test_outtype_auto_goes_by_the_first_matrix_not_by_a_norm_before_it(tmp_path: Path) -> None:
    tensors = {n: t.astype(np.float32) if t.ndim == 1 else t for n, t in flat_tensors().items()}
    shards = {"1.safetensors": [n for n in tensors if tensors[n].ndim == 1]}
    shards["2.safetensors"] = [n for n in tensors if n not in shards["1.safetensors"]]
    draft = make_checkpoint(tmp_path / "draft", tensors, read_json(FLAT / "config.json"), shards)
    assert plan_conversion(draft, TARGET).path.name == "dflash-target-qwen3-BF16.gguf"


def test_an_unknown_outtype(tmp_path: Path) -> None:
    error = refusal(UsageError, tmp_path, outtype="q4_k")
    assert (error.message, error.hint) == ("--outtype q4_k is not known", "choose from f32, f16, bf16, q8_0, auto")


def test_rows_that_do_not_divide_stay_f16_in_a_q8_0_file_and_are_told(tmp_path: Path) -> None:
    narrow = {
        f"layers.{i}.mlp.{n}.weight": weights(*shape, dtype=BF16)
        for i in (0, 1)
        for n, shape in {"gate_proj": (80, 64), "up_proj": (80, 64), "down_proj": (64, 80)}.items()
    }
    job = plan(tmp_path, {"intermediate_size": 80}, narrow, outtype="q8_0")
    types = {t.name: t.type for t in job.plan.tensors}
    assert (types["blk.0.ffn_down.weight"], types["blk.0.ffn_up.weight"]) == (G.F16, G.Q8_0)
    assert notes(job, "warning") == ["2 tensor(s) stay F16, their rows do not divide by 32: blk.0.ffn_down.weight, …"]
