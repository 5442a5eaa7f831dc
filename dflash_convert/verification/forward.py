"""Level 3: the file's draft and the checkpoint's reference, run on the same target states, must say the same.

In: both drafters, and either a target with texts (real features) or nothing more (seeded ones). Out: checks on the
cosine of the hidden states, their worst difference, and with a target the share of equal first choices.

**Limits.** Let ρ be the relative rms error of the file's weights: per type what rounding costs a normal-distributed
block (`RELATIVE_ERROR`, measured on ggml's own blocks), averaged over the file's weights. Independent errors of the
three or four matrices on a way through a layer add up to about 4ρ² of relative square error, and layers average rather
than multiply, as each adds its part to the residual: 1 - cosine = half of it, 2ρ². That is the limit on real features;
a trained 2-layer draft shows 0.3ρ². Seeded features are like nothing it was trained on, its attention is undecided and
turns small errors into large ones: measured 5ρ², limit 20ρ². A file in the checkpoint's own precision has only float32
sums in another order: `FLOAT_FLOOR`, 1 - cosine = 1e-8, an error of 1.4e-4.

The worst single difference may be 6 standard deviations of an error at that limit. First choices flip where two logits
lie closer than their errors, which is as likely as ρ times a density of a few: at least 1 - 3ρ must be equal, one
near-tie apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_file import GGUFFile
from dflash_convert.runtime.accept import draft_block
from dflash_convert.runtime.blas import blas_threads
from dflash_convert.runtime.interface import Drafter
from dflash_convert.runtime.interface import Target as TargetModel
from dflash_convert.verification.expect import Configs, window
from dflash_convert.verification.models import Models
from dflash_convert.verification.prompts import PROMPTS
from dflash_convert.verification.report import FAIL, FORWARD, PASS, Check, LevelResult, judged, not_runnable

Array = np.ndarray[Any, np.dtype[Any]]

RELATIVE_ERROR: Mapping[str, float] = MappingProxyType({
    "F32": 0.0, "F16": 2.0**-12, "BF16": 2.0**-9,
    "Q8_0": 0.006, "Q6_K": 0.019, "Q5_K": 0.037, "Q5_1": 0.038, "Q5_0": 0.043,
    "Q4_K": 0.075, "Q4_1": 0.078, "IQ4_NL": 0.078, "IQ4_XS": 0.08, "Q4_0": 0.085,
    "Q3_K": 0.15, "Q2_K": 0.3,
})  # fmt: skip
WORST_ERROR = 0.3  # of a type without a row
FLOAT_FLOOR = 1e-8
REAL, SEEDED = 2.0, 20.0  # limits on 1 - cosine, in ρ²
SHORT, LONG = 64, 320  # positions of context: without a window, and at most
N_ROUNDS = 5


@dataclass(frozen=True)
class Scene:
    """What both sides are given. Of each pair the first belongs to the reference, the second to the file.

    features: (T, n_taps · n_embd). blocks: one pair of embeddings (B, n_embd) a round. cuts: context length of each.
    lasts: the token that each block follows, none of them for seeded blocks.
    """

    features: tuple[Array, Array]
    blocks: tuple[tuple[Array, Array], ...]
    cuts: tuple[int, ...]
    lasts: tuple[int, ...] = ()


def forward(models: Models, target: TargetModel | None, texts: Sequence[str], seed: int) -> LevelResult:
    """Run both drafters and compare. target: None for seeded features.

    A file that cannot be loaded or does not fit fails; a source that cannot be raises CheckpointError or ConfigError.
    """
    reference = models.reference
    try:
        drafter = models.drafter
        if misfits := list(_misfits(reference, drafter, models)):
            return judged(FORWARD, misfits)
        if target is not None and (reason := models.misfit(target)):
            return not_runnable(FORWARD, reason)
        n = context_length(models)
        scene = _real(models, target, texts, n) if target is not None else _seeded(models, n, seed)
        hidden = _run(reference, drafter, scene)
        pairs = [] if target is None else _proposals(reference, drafter, scene, hidden, target)
        return _judge(models.gguf, hidden, pairs)
    except GGUFError as e:
        return not_runnable(FORWARD, e.message)


def context_length(models: Models) -> int:
    """Positions of context: enough to pass the window if that is affordable."""
    assert models.source is not None
    size = window(Configs(models.source))
    return SHORT if size is None else min(LONG, size + 2 * models.reference.block_size)


def weight_error(gguf: GGUFFile) -> float:
    """ρ: the relative rms error that the file's types cost, averaged over its weights."""
    matrices = [t for t in gguf.tensors.values() if len(t.shape) > 1]
    n = [t.n_rows * t.row_length for t in matrices]
    squares = [RELATIVE_ERROR.get(t.type.name, WORST_ERROR) ** 2 for t in matrices]
    return float(np.sqrt(np.average(squares, weights=n))) if n else 0.0


def _misfits(reference: Drafter, drafter: Drafter, models: Models) -> Iterator[Check]:
    assert models.source is not None
    width = models.source.hidden_size
    for subject, found, expected in (
        ("dflash.embedding_length", models.gguf.get("dflash.embedding_length"), width),
        ("the number of target_layers", drafter.n_taps, reference.n_taps),
        ("dflash.block_size", drafter.block_size, reference.block_size),
        ("the first position of a block that proposes", drafter.first_slot, reference.first_slot),
    ):
        if found != expected:
            yield Check("forward", FAIL, subject, found, expected, "as in the checkpoint", "the two cannot be compared")


# -- what they are given -------------------------------------------------------------------------------------------


def _cuts(n: int) -> tuple[int, ...]:
    """Context lengths of the rounds, growing to n."""
    return tuple(sorted({max(1, n * (i + 1) // N_ROUNDS) for i in range(N_ROUNDS)}))


def _real(models: Models, target: TargetModel, texts: Sequence[str], n: int) -> Scene:
    """The states of a target that reads the texts (and the bundled ones): taps and mask token are each side's own."""
    ids = [i for text in models.encode([*texts, *PROMPTS]) for i in text][: n + 1]
    states = target.forward(ids, target.new_cache()).layer_inputs
    sides = (models.reference, models.drafter)
    cuts = _cuts(len(ids) - 1)
    blocks = tuple((draft_block(target, sides[0], ids[c]), draft_block(target, sides[1], ids[c])) for c in cuts)
    lasts = tuple(ids[c] for c in cuts)
    return Scene((sides[0].features(states), sides[1].features(states)), blocks, cuts, lasts)


def _seeded(models: Models, n: int, seed: int) -> Scene:
    """Normal features and block embeddings, the same for both sides."""
    assert models.source is not None
    rng, width = np.random.default_rng(seed), models.source.hidden_size
    features = rng.standard_normal((n, models.reference.n_taps * width), dtype=np.float32)
    cuts = _cuts(n)
    blocks = [rng.standard_normal((models.reference.block_size, width), dtype=np.float32) for _ in cuts]
    return Scene((features, features), tuple((b, b) for b in blocks), cuts)


# -- what comes out ------------------------------------------------------------------------------------------------


def _run(reference: Drafter, drafter: Drafter, scene: Scene) -> tuple[Array, Array]:
    """Hidden states of every round and position, (rounds · B, n_embd), of each side."""
    theirs, ours = (
        _hidden(side, scene.features[i], [pair[i] for pair in scene.blocks], scene.cuts)
        for i, side in enumerate((reference, drafter))
    )
    return theirs, ours


def _hidden(side: Drafter, features: Array, blocks: Sequence[Array], cuts: Sequence[int]) -> Array:
    """The context grows from cut to cut, as it does while decoding."""
    ctx, done, hidden = side.new_context(), 0, []
    with blas_threads(blocks[0].shape[1]):
        for block, cut in zip(blocks, cuts, strict=True):
            side.extend(ctx, features[done:cut])
            hidden.append(side.hidden_block(ctx, block))
            done = cut
    return np.concatenate(hidden).astype(np.float64)


def _proposals(
    reference: Drafter, drafter: Drafter, scene: Scene, hidden: tuple[Array, Array], target: TargetModel
) -> list[tuple[int, int]]:
    """The tokens that both sides propose, round by round up to the first difference: what follows one is drafted behind
    another token, and says nothing where tokens depend on each other."""
    pairs: list[tuple[int, int]] = []
    rounds = zip(*(np.split(h.astype(np.float32), len(scene.lasts)) for h in hidden), scene.lasts, strict=True)
    for theirs, ours, last in rounds:
        sides = ((reference, theirs), (drafter, ours))
        both = list(zip(*(side.propose(states, last, target).tokens for side, states in sides), strict=True))
        first = next((i for i, (a, b) in enumerate(both) if a != b), len(both))
        pairs += both[: first + 1]
    return pairs


def _judge(gguf: GGUFFile, hidden: tuple[Array, Array], proposals: Sequence[tuple[int, int]]) -> LevelResult:
    """proposals: pairs of tokens, the reference's first; none for seeded features."""
    theirs, ours = hidden
    rho = weight_error(gguf)
    limit = FLOAT_FLOOR + (REAL if proposals else SEEDED) * rho**2
    kind = "real" if proposals else "seeded"
    basis = f"weights with a relative error of {rho:.2g}, on {kind} features"
    cosine = float(np.mean(_cosines(theirs, ours)))
    worst = float(np.abs(theirs - ours).max() / np.sqrt(np.mean(theirs**2)))
    checks = [
        _at_least("the cosine of the hidden states", cosine, 1 - limit, basis),
        _at_most(
            "the worst difference, in rms of the hidden states,", worst, 6 * np.sqrt(2 * limit), basis, theirs, ours
        ),
    ]
    metrics = {"cosine": cosine, "worst_difference": worst, "positions": float(len(theirs)), "weight_error": rho}
    if proposals:
        metrics["top1_agreement"] = float(np.mean([a == b for a, b in proposals]))
        least = 1 - 3 * rho - 1 / len(proposals)
        checks.append(_at_least("the share of equal first choices", metrics["top1_agreement"], least, basis))
    return judged(FORWARD, checks, metrics)


def _cosines(a: Array, b: Array) -> Array:
    """Cosine of each row, (rows); 0 where one side is zero or not finite."""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    good = np.isfinite(norms) & (norms > 0)
    return np.where(good, np.sum(a * b, axis=1) / np.where(good, norms, 1), 0.0)


def _at_least(subject: str, value: float, limit: float, basis: str) -> Check:
    status = PASS if value >= limit else FAIL
    return Check("forward", status, subject, round(value, 9), f"at least {limit:.9g}", basis)


def _at_most(subject: str, value: float, limit: float, basis: str, theirs: Array, ours: Array) -> Check:
    position, at = np.unravel_index(int(np.abs(theirs - ours).argmax()), theirs.shape)
    where = f"position {position}, element {at}"
    status = PASS if value <= limit else FAIL
    return Check("forward", status, subject, round(value, 9), f"at most {limit:.3g}", basis, where=where)
