"""The speculative loop from checkpoints: tokens, drafts and accepted lengths, on every variant and prompt."""

from __future__ import annotations

from functools import cache

import pytest
from runtime_pair import EVERY, engine_json, first_drafts, golden, reference, target

from dflash_convert.runtime.accept import Run, speculate

PROMPTS = range(7)


@cache
def runs(variant: str) -> list[Run]:
    """All prompts, for as many tokens as the torch runs predicted."""
    lengths = [e["predicted"] for e in engine_json("reference.json")[variant]]
    return [speculate(target(), reference(variant), g["ids"], n) for g, n in zip(golden(), lengths, strict=True)]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_loop_gives_the_golden_tokens(prompt: int) -> None:
    # golden.json ends a step earlier than golden/engine where that step reaches 96 tokens exactly
    g, run = golden()[prompt], runs("dflash")[prompt]
    assert run.tokens[0] == g["first"]
    assert list(run.tokens[:96]) == g["generated"]
    assert list(run.accepted_per_step[: len(g["accepted_per_step"])]) == g["accepted_per_step"]
    assert run.drafted == 7 * len(run.accepted_per_step)


@pytest.mark.parametrize("variant", EVERY)
def test_every_variant_drafts_and_accepts_what_the_torch_runs_do(variant: str) -> None:
    for g, run, expected in zip(golden(), runs(variant), engine_json("reference.json")[variant], strict=True):
        assert first_drafts(target(), reference(variant), g["ids"], run) == expected["first_drafts"]
        assert list(run.accepted_per_step) == expected["accepted_per_step"]
        assert (len(run.tokens), run.drafted, run.accepted) == (
            expected["predicted"],
            expected["drafted"],
            expected["accepted"],
        )


@pytest.mark.parametrize("variant", EVERY)
def test_every_variant_accepts_what_the_engine_accepts(variant: str) -> None:
    expected = sum(e["accepted"] for e in engine_json("engine.json")[variant])
    assert sum(run.accepted for run in runs(variant)) == pytest.approx(expected, rel=0.03)
