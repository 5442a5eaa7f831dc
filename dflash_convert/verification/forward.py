"""Level 3: is the graph right? And, as figures, what does the type cost?

**The graph.** The checkpoint's reference (its config, its names, its own code) is run on the *file's* dequantized
weights (equal.py), beside the file's draft, on the same target states: both do the same arithmetic on the same numbers,
whatever the type, and may differ only in the order of float32 sums. `TOLERANCE` bounds the worst difference of the
hidden states, in their root mean square. A sum of n float32 terms is off by some sqrt(n) · 2^-24 of its size, a few
1e-6 here; trained and random drafts of up to four layers show at most 4e-5 in any type, while the smallest header
fault that is tried shows far more (tests/test_verify_forward.py holds both apart). With a target also the proposed
tokens must be equal, but for a tie: two logits of the reference that lie closer than the tolerance.

**The cost.** The cosine of the hidden states and the share of equal first choices against the reference on the
checkpoint's own weights are figures with intervals, never a fault: a user's threshold makes them one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dflash_convert.errors import GGUFError
from dflash_convert.runtime.accept import draft_block
from dflash_convert.runtime.blas import blas_threads
from dflash_convert.runtime.interface import Drafter
from dflash_convert.runtime.interface import Target as TargetModel
from dflash_convert.verification.expect import Configs, window
from dflash_convert.verification.intervals import Interval, bootstrap, held
from dflash_convert.verification.models import Models
from dflash_convert.verification.prompts import PROMPTS
from dflash_convert.verification.report import FAIL, FORWARD, PASS, Check, LevelResult, judged, not_runnable

Array = np.ndarray[Any, np.dtype[Any]]

TOLERANCE = 1e-4  # worst difference of the hidden states on equal weights, in their root mean square
SHORT, LONG = 64, 320  # positions of context: without a window, and at most
N_ROUNDS = 5


Trio = tuple[Array, Array, Array]  # one for each side: reference, reference on the file's weights, file


@dataclass(frozen=True)
class Scene:
    """What the sides are given: each its own taps, and its own embeddings where it has a table.

    features: (T, n_taps · n_embd). blocks: embeddings (B, n_embd), a trio a round. cuts: context length of each.
    lasts: the token that each block follows, none of them for seeded blocks.
    """

    features: Trio
    blocks: tuple[Trio, ...]
    cuts: tuple[int, ...]
    lasts: tuple[int, ...] = ()


def forward(
    models: Models, target: TargetModel | None, texts: Sequence[str], seed: int, min_top1: float | None = None
) -> LevelResult:
    """Run both drafters and compare. target: None for seeded features. min_top1: the least share of first choices.

    A file that cannot be loaded or does not fit fails; a source that cannot be raises CheckpointError or ConfigError.
    """
    original = models.reference
    try:
        drafter = models.drafter
        if misfits := list(_misfits(original, drafter, models)):
            return judged(FORWARD, misfits)
        if target is not None and (reason := models.misfit(target)):
            return not_runnable(FORWARD, reason)
        equal = models.reference_on_the_files_weights
        n = context_length(models)
        sides = (original, equal, drafter)
        scene = _seeded(models, n, seed) if target is None else _real(models, sides, target, texts, n)
        hidden = Hidden(*(_hidden(side, scene, i) for i, side in enumerate(sides)))
        checks = list(_same_graph(hidden, scene, equal, drafter, target))
        figures = _cost(hidden, scene, original, drafter, target)
    except GGUFError as e:
        return not_runnable(FORWARD, e.message)
    if min_top1 is not None and figures.top1 is not None:
        checks.append(held("forward", "the share of equal first choices", figures.top1, min_top1, "as demanded"))
    return judged(FORWARD, checks, figures.metrics | {"worst_difference": worst_difference(hidden.equal, hidden.file)})


def context_length(models: Models) -> int:
    """Positions of context: enough to pass the window if that is affordable."""
    assert models.source is not None
    size = window(Configs(models.source))
    return SHORT if size is None else min(LONG, size + 2 * models.reference.block_size)


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


def _real(
    models: Models, sides: tuple[Drafter, Drafter, Drafter], target: TargetModel, texts: Sequence[str], n: int
) -> Scene:
    """The states of a target that reads the texts (and the bundled ones): taps and mask token are each side's own."""
    ids = [i for text in models.encode([*texts, *PROMPTS]) for i in text][: n + 1]
    states = target.forward(ids, target.new_cache()).layer_inputs
    cuts = _cuts(len(ids) - 1)
    first, second, third = sides

    def trio(make: Callable[[Drafter], Array]) -> Trio:
        return make(first), make(second), make(third)

    blocks = tuple(trio(partial(_block, target, ids[c])) for c in cuts)
    return Scene(trio(lambda side: side.features(states)), blocks, cuts, tuple(ids[c] for c in cuts))


def _block(target: TargetModel, last: int, side: Drafter) -> Array:
    return draft_block(target, side, last)


def _seeded(models: Models, n: int, seed: int) -> Scene:
    """Normal features and block embeddings, the same for both sides."""
    assert models.source is not None
    rng, width = np.random.default_rng(seed), models.source.hidden_size
    features = rng.standard_normal((n, models.reference.n_taps * width), dtype=np.float32)
    cuts = _cuts(n)
    blocks = [rng.standard_normal((models.reference.block_size, width), dtype=np.float32) for _ in cuts]
    return Scene((features, features, features), tuple((b, b, b) for b in blocks), cuts)


# -- what comes out ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hidden:
    """Hidden states of every round and position, (rounds · B, n_embd) float64: of the reference on the checkpoint's
    weights, of the reference on the file's, and of the file's draft."""

    original: Array
    equal: Array
    file: Array


@dataclass(frozen=True)
class Cost:
    """What the file's weights change against the checkpoint's: figures."""

    cosine: Interval
    top1: Interval | None
    positions: int

    @property
    def metrics(self) -> dict[str, float]:
        top1 = {} if self.top1 is None else self.top1.metrics("top1_agreement")
        return {**self.cosine.metrics("cosine"), **top1, "positions": float(self.positions)}


def _hidden(side: Drafter, scene: Scene, i: int) -> Array:
    """All rounds of one side; the context grows from cut to cut, as it does while decoding."""
    ctx, done, hidden, features = side.new_context(), 0, [], scene.features[i]
    with blas_threads(features.shape[1]), np.errstate(all="ignore"):  # a broken file's numbers may be of any size
        for blocks, cut in zip(scene.blocks, scene.cuts, strict=True):
            side.extend(ctx, features[done:cut])
            hidden.append(side.hidden_block(ctx, blocks[i]))
            done = cut
    return np.concatenate(hidden).astype(np.float64)


def worst_difference(theirs: Array, ours: Array) -> float:
    """The largest difference of two arrays, in root mean squares of the first; infinite where one has a NaN."""
    with np.errstate(all="ignore"):
        worst = float(np.abs(theirs - ours).max() / np.sqrt(np.mean(theirs**2)))
    return worst if np.isfinite(worst) else float("inf")


def _same_graph(
    hidden: Hidden, scene: Scene, equal: Drafter, drafter: Drafter, target: TargetModel | None
) -> Iterator[Check]:
    """Equal numbers in, equal numbers out."""
    kind = "seeded" if target is None else "real"
    worst, basis = worst_difference(hidden.equal, hidden.file), f"both on the file's own weights, on {kind} features"
    at = np.nan_to_num(np.abs(hidden.equal - hidden.file), nan=np.inf)
    position, element = np.unravel_index(int(at.argmax()), at.shape)
    where = f"position {position}, element {element}"
    status = PASS if worst <= TOLERANCE else FAIL
    cause = "" if status == PASS else "the file's graph is not the checkpoint's: a key is wrong or missing"
    subject = "the worst difference of the hidden states, in their rms,"
    yield Check("forward", status, subject, float(f"{worst:.3g}"), f"at most {TOLERANCE:.3g}", basis, cause, where)
    if target is None or status == FAIL:
        return
    theirs, ours = _tokens(equal, hidden.equal, scene, target), _tokens(drafter, hidden.file, scene, target)
    logits = _logits(equal, hidden.equal, scene, target)
    for k, pair in enumerate(zip(theirs, ours, strict=True)):
        slot = next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), None)
        if slot is not None and not _is_tie(logits[k][slot], pair[0][slot], pair[1][slot]):
            yield Check(
                "forward", FAIL, "the token proposed", pair[1][slot], pair[0][slot], basis,
                "what follows the hidden states is not the checkpoint's: head, selector, Markov chain or anchor",
                f"round {k}, slot {slot}",
            )  # fmt: skip
            return
    yield Check("forward", PASS, "the proposed tokens", f"the reference's in {len(ours)} rounds", basis=basis)


def _rounds(states: Array, scene: Scene) -> list[Array]:
    return np.split(states.astype(np.float32), len(scene.cuts))


def _tokens(side: Drafter, states: Array, scene: Scene, target: TargetModel) -> list[tuple[int, ...]]:
    """The tokens that one side proposes in each round."""
    rounds = zip(_rounds(states, scene), scene.lasts, strict=True)
    return [tuple(side.propose(block, last, target).tokens) for block, last in rounds]


def _logits(side: Drafter, states: Array, scene: Scene, target: TargetModel) -> list[Array]:
    return [side.logits(block, target)[side.first_slot :] for block in _rounds(states, scene)]


def _is_tie(logits: Array, a: int, b: int) -> bool:
    """Whether two tokens are as good as each other to float32."""
    finite = logits[np.isfinite(logits)]
    return bool(abs(float(logits[a]) - float(logits[b])) <= TOLERANCE * float(np.sqrt(np.mean(finite**2))))


def _cost(hidden: Hidden, scene: Scene, original: Drafter, drafter: Drafter, target: TargetModel | None) -> Cost:
    cosine = bootstrap((_cosines(hidden.original, hidden.file),), lambda s: float(np.mean(s)))
    if target is None or not np.isfinite(hidden.file).all():
        return Cost(cosine, None, len(hidden.file))
    theirs = _tokens(original, hidden.original, scene, target)
    ours = _tokens(drafter, hidden.file, scene, target)
    equal = [a == b for pair in zip(theirs, ours, strict=True) for a, b in _up_to_the_first_difference(*pair)]
    return Cost(cosine, bootstrap((np.array(equal),), lambda s: float(np.mean(s))), len(hidden.file))


def _up_to_the_first_difference(theirs: Sequence[int], ours: Sequence[int]) -> list[tuple[int, int]]:
    """What follows a difference is drafted behind another token, and says nothing where tokens depend on each other."""
    both = list(zip(theirs, ours, strict=True))
    first = next((i for i, (a, b) in enumerate(both) if a != b), len(both))
    return both[: first + 1]


def _cosines(a: Array, b: Array) -> Array:
    """Cosine of each row, (rows); 0 where one side is zero or not finite."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        good = np.isfinite(norms) & (norms > 0)
        return np.where(good, np.sum(a * b, axis=1) / np.where(good, norms, 1), 0.0)
