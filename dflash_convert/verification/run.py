"""`verify()`: a GGUF, its source and its target → a `Report`, level by level.

A level that cannot run is skipped and says why; asking for it by name turns the reason into an error. A damaged or
wrong file is never an error: that is the answer *no*, a failed check in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dflash_convert.checkpoints.checkpoint import Checkpoint
from dflash_convert.errors import CheckpointError, ConfigError, DflashError, GGUFError, UsageError, VocabError
from dflash_convert.gguf_io.reader import GGUFFile, open_gguf
from dflash_convert.runtime.interface import Target as TargetModel
from dflash_convert.verification.acceptance import N_TOKENS, acceptance
from dflash_convert.verification.forward import forward
from dflash_convert.verification.models import Models
from dflash_convert.verification.prompts import PROMPTS, read_prompts
from dflash_convert.verification.report import LEVELS, SKIP, STRUCTURE, LevelResult, Report
from dflash_convert.verification.sources import Source, open_source
from dflash_convert.verification.structure import damaged, structure
from dflash_convert.verification.targets import Target, open_target
from dflash_convert.verification.tensors import Progress, tensors

NO_SOURCE = "no source was given"


@dataclass(frozen=True)
class Case:
    """Everything a level may need."""

    gguf: GGUFFile
    source: Source | None
    target: Target | None
    models: Models
    texts: Sequence[str]
    n_tokens: int
    n_max: int | None
    seed: int
    min_accept_ratio: float | None
    min_top1: float | None
    progress: Progress | None


def verify(
    gguf: str | Path,
    *,
    source: str | Path | Checkpoint | None = None,
    target: str | Path | None = None,
    only: Collection[str] | None = None,
    prompts: Path | Sequence[str] | None = None,
    n_tokens: int = N_TOKENS,
    n_max: int | None = None,
    seed: int = 0,
    min_accept_ratio: float | None = None,
    min_top1: float | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prove a draft GGUF against the checkpoint it was made from.

    source: the draft's checkpoint folder (or opened). target: its target, a folder with or without weights, or a GGUF.
    only: names of levels, by default all that can run. prompts: texts, or a file of them. n_tokens: tokens generated a
    prompt. n_max: tokens drafted a step. seed: of the features where no target can be run. min_accept_ratio,
    min_top1: the least ratio of mean accepted lengths and the least share of equal first choices; without them both are
    figures only. progress: called with the bytes of the GGUF just compared.

    Raises UsageError: an unknown level, or one asked for that cannot run. GGUFError: no such file. ConfigError,
    CheckpointError, VocabError: a source or target that cannot be used.
    """
    wanted = _wanted(only)
    opened_source = None if source is None else open_source(Path(source) if isinstance(source, str) else source)
    opened = None if target is None else open_target(Path(target))
    texts = read_prompts(prompts) if isinstance(prompts, Path) else (prompts or PROMPTS)
    file = _open_file(Path(gguf))
    if isinstance(file, GGUFError):
        levels = tuple(damaged(file) if n == STRUCTURE else _skip(n, "the file is damaged") for n in LEVELS)
    else:
        models = Models(file, opened_source, opened)
        case = Case(
            file, opened_source, opened, models, texts, n_tokens, n_max, seed, min_accept_ratio, min_top1, progress
        )
        levels = tuple(_level(name, case, wanted, explicit=only is not None) for name in LEVELS)
    root = None if opened_source is None else str(opened_source.root)
    return Report(str(gguf), root, None if target is None else str(target), levels)


def _wanted(only: Collection[str] | None) -> frozenset[str]:
    names = frozenset(LEVELS if only is None else only)
    unknown = sorted(names - set(LEVELS))
    if unknown or not names:
        what = f"there is no level {unknown[0]!r}" if unknown else "no level was named"
        raise UsageError(what, hint=f"levels: {', '.join(LEVELS)}")
    return names


def _open_file(path: Path) -> GGUFFile | GGUFError:
    """The file, or what is wrong with it; a file that cannot be read at all is an error."""
    if not path.is_file():
        raise GGUFError(f"{path}: no such file", hint="name the GGUF to verify")
    try:
        return open_gguf(path)
    except GGUFError as e:
        if isinstance(e.__cause__, OSError):
            raise
        return e


def _skip(name: str, reason: str) -> LevelResult:
    return LevelResult(name, SKIP, reason)


def _level(name: str, case: Case, wanted: frozenset[str], *, explicit: bool) -> LevelResult:
    """Run one level, or say why not."""
    if name not in wanted:
        return _skip(name, "not asked for")
    try:
        return RUN[name](case)
    except _CannotRunError as e:
        if explicit:
            raise UsageError(f"the level {name} was asked for, but {e.message}", hint=e.hint) from e
        return _skip(name, e.message)


class _CannotRunError(DflashError):
    """Why a level has nothing to work with."""


def _structure(case: Case) -> LevelResult:
    return structure(case.gguf, case.source, case.target)


def _tensors(case: Case) -> LevelResult:
    return tensors(case.gguf, _source(case), progress=case.progress)


def _forward(case: Case) -> LevelResult:
    _source(case)
    target = _target_or_none(case)
    return _able(lambda: forward(case.models, target, case.texts, case.seed, case.min_top1))


def _acceptance(case: Case) -> LevelResult:
    _target(case)
    return _able(lambda: acceptance(case.models, case.texts, case.n_tokens, case.n_max, case.min_accept_ratio))


RUN: dict[str, Callable[[Case], LevelResult]] = dict(
    zip(LEVELS, (_structure, _tensors, _forward, _acceptance), strict=True)
)


def _source(case: Case) -> Source:
    if case.source is None:
        raise _CannotRunError(NO_SOURCE, hint="pass --source with the draft's checkpoint")
    return case.source


def _target(case: Case) -> TargetModel:
    """The target's model, running, with a tokenizer for its prompts."""
    if case.target is None:
        raise _CannotRunError("no target was given", hint="pass --target with a folder that has weights, or a GGUF")
    if not case.target.has_weights:
        raise _CannotRunError(
            "the target has no weights", hint="pass --target with a folder that has weights, or a GGUF"
        )
    _able(lambda: case.models.encoder)
    return _able(lambda: case.models.target_model)


def _target_or_none(case: Case) -> TargetModel | None:
    try:
        return _target(case)
    except _CannotRunError:
        return None


T = TypeVar("T")


def _able(run: Callable[[], T]) -> T:
    """What `run` gives, or the reason why the source or the target cannot be run."""
    try:
        return run()
    except (CheckpointError, ConfigError, GGUFError, VocabError) as e:
        raise _CannotRunError(e.message, hint=e.hint) from e
