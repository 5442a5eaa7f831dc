"""Every published draft whose config is known: planned at full size, or refused with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published import EXPECTED, extras, names, outcome, read, shapes, status, table

OUTCOMES: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text())
README = Path(__file__).parent.parent.parent / "README.md"


@pytest.mark.parametrize("name", names())
def test_a_published_config_has_the_keys_it_had(name: str) -> None:
    """expected.json is made by `python tests/published.py` and read by people whenever it changes."""
    assert json.loads(json.dumps(outcome(name))) == OUTCOMES[name]


def test_the_table_is_in_the_readme_and_has_no_unknown_row() -> None:
    assert sorted(OUTCOMES) == names()
    assert table(OUTCOMES) in README.read_text(encoding="utf-8")
    assert not [n for n, o in OUTCOMES.items() if "unknown" in status(o)]


def test_what_a_snapshot_holds_is_right_where_it_is_known() -> None:
    """By hand, from the configs: what people lose days over."""
    nested = OUTCOMES["z-lab__Qwen3.6-35B-A3B-DFlash.rev-nested"]["keys"]
    assert nested["dflash.target_layers"] == [2, 7, 12, 17, 23, 28, 33, 38]
    assert nested["dflash.attention.sliding_window_pattern"] == [True] * 5 + [False]
    assert (nested["dflash.attention.sliding_window"], nested["dflash.block_size"]) == (4096, 16)
    assert nested["tokenizer.ggml.mask_token_id"] == 248077
    assert nested["dflash.rope.freq_base"] == 1e7
    flat = OUTCOMES["z-lab__Qwen3-4B-DFlash-b16"]["keys"]
    assert (flat["dflash.target_layers"], flat["tokenizer.ggml.mask_token_id"]) == ([2, 10, 18, 26, 34], 151669)
    assert "dflash.attention.sliding_window" not in flat
    speculators = OUTCOMES["RedHatAI__GLM-5.3-speculator.dspark"]["keys"]
    assert speculators["dflash.target_layers"] == [2, 20, 39, 58, 75]  # stored one higher already
    assert speculators["dflash.attention.causal"] is True
    assert speculators["dflash.sample_from_anchor"] is True
    gemma = OUTCOMES["z-lab__gemma-4-31B-it-DFlash"]["keys"]
    assert gemma["dflash.embedding_scale"] == pytest.approx(5376**0.5)
    kimi = OUTCOMES["SpecForge__kimi-k2.7-code-dflash"]["keys"]
    assert kimi["dflash.rope.scaling.factor"] == 64
    mimo = OUTCOMES["XiaomiMiMo__MiMo-V2.5-Pro-FP4-DFlash"]["keys"]
    assert mimo["dflash.attention.sliding_window_pattern"] == [True] * len(
        mimo["dflash.attention.sliding_window_pattern"]
    )
    assert mimo["dflash.attention.value_scale"] == 0.612
    assert mimo["dflash.rope.dimension_count"] == 64


@pytest.mark.parametrize(
    ("name", "count"),
    [("z-lab__Qwen3-4B-DFlash-b16", 58), ("z-lab__Qwen3.8-27B-DFlash2", 81), ("SpecForge__glm-5.2-dspark", 62)],
)
def test_the_synthetic_weights_are_as_many_as_the_published_ones(name: str, count: int) -> None:
    assert len(dict(shapes(read(name), extras(name)))) == count
