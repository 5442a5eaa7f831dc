"""The speculative loop from GGUFs alone: the tokens, and how many are accepted, on every variant and prompt."""

from __future__ import annotations

import pytest
from runtime_pair import EVERY, draft, engine_json, first_drafts, golden, target_file

from dflash_convert.runtime.accept import Run, speculate
from dflash_convert.runtime.draft import DFlashDraft
from dflash_convert.runtime.interface import Target
from dflash_convert.runtime.target import load_target_gguf

PROMPTS = range(7)
LOOPED = [v for v in EVERY if v != "interleaved-rope"]  # that one is the unchanged file: test_runtime_draft


@pytest.fixture(scope="module")
def gguf_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """The target from a bf16 GGUF."""
    return load_target_gguf(target_file(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DFlashDraft]:
    """Every variant from a bf16 GGUF."""
    return {v: draft(tmp_path_factory.mktemp(v), v) for v in LOOPED}


@pytest.fixture(scope="module")
def all_runs(gguf_target: Target, drafts: dict[str, DFlashDraft]) -> dict[str, list[Run]]:
    """Every variant on every prompt, for as many tokens as the torch runs predicted."""
    lengths = {v: [e["predicted"] for e in engine_json("reference.json")[v]] for v in drafts}
    return {
        v: [speculate(gguf_target, d, g["ids"], n) for g, n in zip(golden(), lengths[v], strict=True)]
        for v, d in drafts.items()
    }


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_loop_gives_the_golden_tokens(prompt: int, all_runs: dict[str, list[Run]]) -> None:
    g, run = golden()[prompt], all_runs["dflash"][prompt]
    assert list(run.tokens[:96]) == g["generated"]
    assert list(run.accepted_per_step[: len(g["accepted_per_step"])]) == g["accepted_per_step"]


@pytest.mark.parametrize("variant", LOOPED)
def test_every_variant_drafts_and_accepts_what_the_torch_runs_do(
    variant: str, gguf_target: Target, drafts: dict[str, DFlashDraft], all_runs: dict[str, list[Run]]
) -> None:
    for g, run, expected in zip(golden(), all_runs[variant], engine_json("reference.json")[variant], strict=True):
        assert first_drafts(gguf_target, drafts[variant], g["ids"], run) == expected["first_drafts"]
        assert list(run.accepted_per_step) == expected["accepted_per_step"]


@pytest.mark.parametrize("variant", LOOPED)
def test_every_variant_accepts_what_the_engine_accepts(variant: str, all_runs: dict[str, list[Run]]) -> None:
    expected = sum(e["accepted"] for e in engine_json("engine.json")[variant])
    assert sum(run.accepted for run in all_runs[variant]) == pytest.approx(expected, rel=0.03)
