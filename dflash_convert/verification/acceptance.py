"""Level 4: how many drafted tokens the target accepts, from the file's draft and from the checkpoint's reference.

In: both drafters, a target and texts. Out: checks that the drafted text is plain greedy decoding's; and, as figures
with intervals, the mean accepted length and its ratio to the reference's. A user's least ratio makes that a check. Only
this level sees what users see: the same text, faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.runtime.accept import Run, greedy, speculate
from dflash_convert.verification.intervals import bootstrap, held
from dflash_convert.verification.models import Models
from dflash_convert.verification.report import ACCEPTANCE, FAIL, PASS, Check, LevelResult, judged, not_runnable

Array = np.ndarray[Any, np.dtype[Any]]

N_TOKENS = 64


@dataclass(frozen=True)
class Trial:
    """One prompt: plain greedy tokens, and a run of each draft (theirs: the reference's, None without a source)."""

    plain: tuple[int, ...]
    ours: Run
    theirs: Run | None


def acceptance(
    models: Models, texts: Sequence[str], n_tokens: int, n_max: int | None, min_ratio: float | None
) -> LevelResult:
    """Run the loop on every text.

    n_tokens: tokens to generate a prompt. n_max: tokens drafted a step, by default block_size - 1. A file that cannot
    be loaded or does not fit the target fails; a source or target that cannot be loaded raises.
    """
    target, prompts = models.target_model, models.encode(texts)
    reference = models.reference if models.source is not None else None
    try:
        drafter = models.drafter
        if reason := models.misfit(target):
            return not_runnable(ACCEPTANCE, reason)
        trials = [
            Trial(
                plain=tuple(greedy(target, ids, n_tokens)),
                ours=speculate(target, drafter, ids, n_tokens, n_max),
                theirs=None if reference is None else speculate(target, reference, ids, n_tokens, n_max),
            )
            for ids in prompts
        ]
    except GGUFError as e:
        return not_runnable(ACCEPTANCE, e.message)
    return _judge(trials, min_ratio)


def mean_length(runs: Sequence[Run]) -> float:
    """Tokens gained a step over all runs: drafted ones kept, and the target's own."""
    steps = sum(len(run.accepted_per_step) for run in runs)
    return 1 + sum(run.accepted for run in runs) / max(1, steps)


def _judge(trials: Sequence[Trial], min_ratio: float | None) -> LevelResult:
    checks = [check for i, trial in enumerate(trials) for check in _same_text(i, trial)]
    ours = _steps([t.ours for t in trials])
    metrics = {**bootstrap((ours,), _length).metrics("mean_length"), "prompts": float(len(trials))}
    if runs := [t.theirs for t in trials if t.theirs is not None]:
        theirs = _steps(runs)
        ratio = bootstrap((ours, theirs), lambda a, b: _length(a) / _length(b))
        metrics |= {"reference_mean_length": _length(theirs), **ratio.metrics("ratio")}
        if min_ratio is not None:
            basis = f"{_length(ours):.3f} tokens a step, the reference {_length(theirs):.3f}"
            checks.append(held("acceptance", "the ratio of mean accepted lengths", ratio, min_ratio, basis))
    return judged(ACCEPTANCE, checks, metrics)


def _steps(runs: Sequence[Run]) -> Array:
    """Drafted tokens kept in each step of all runs."""
    return np.array([n for run in runs for n in run.accepted_per_step] or [0], dtype=np.float64)


def _length(steps: Array) -> float:
    return 1 + float(np.mean(steps))


def _same_text(i: int, trial: Trial) -> Iterator[Check]:
    """Drafts may only change the speed: the tokens are the target's own."""
    for name, run in (("the file's draft", trial.ours), ("the reference", trial.theirs)):
        if run is None:
            continue
        drafted = run.tokens[: len(trial.plain)]
        subject, basis = f"the text of prompt {i + 1} with {name}", "plain greedy decoding"
        if drafted == trial.plain:
            yield Check("acceptance", PASS, subject, "plain greedy decoding's", basis=basis)
            continue
        at = next(j for j, (a, b) in enumerate(zip(drafted, trial.plain, strict=True)) if a != b)
        yield Check("acceptance", FAIL, subject, drafted[at], trial.plain[at], basis, where=f"token {at}")
