"""Which layers slide: said by the file, or by the user; never by nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gguf.constants import GGUFValueType as V

from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.reader import KV
from dflash_convert.migration.source import Source
from dflash_convert.migration.values import is_truth, is_u32, whole

WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"
ASK = "pass --window N and --layer-types S,S,F (from the checkpoint's config.json), or --window 0 if no layer slides"


@dataclass(frozen=True)
class Windows:
    """added: the keys of windows to write. replaced: the file's keys below its architecture that give way to them."""

    added: tuple[KV, ...] = ()
    replaced: tuple[str, ...] = (WINDOW, PATTERN)


def windows_of(source: Source, window: int | None, layer_types: str | None) -> Windows:
    """The keys of windows. Raises UsageError: options that contradict the file. GGUFError: nobody says."""
    if window is not None and not is_u32(window):
        raise UsageError(f"--window {window} is no window", hint="for example: --window 2048")
    n = source.layer_count()
    letters = None if layer_types is None else _letters(layer_types, n)
    said, stored = _size(source), _stored(source)
    _check_agrees("--window", window, said)
    _check_agrees("--layer-types", letters, stored)
    size = said if window is None else window
    slides = stored if letters is None else letters
    if size is None and slides is not None and not any(slides):
        size = 0
    if size is None and source.rules.says_windows and slides is None:
        return Windows()
    if size is None:
        source.refuse("cannot be known: it does not say which layers slide, nor over which window", ASK)
    if size == 0:
        return _without(letters)
    if slides is None:
        source.refuse(f"cannot be known: it has a window of {size}, and does not say which layers slide", ASK)
    if len(slides) != n:
        source.refuse(f"{source.full('{a}.' + PATTERN)} has {len(slides)} entries for {n} layers", ASK)
    if (window, letters) == (None, None):
        return Windows(replaced=())
    return _written(size, slides)


def _without(letters: Sequence[bool] | None) -> Windows:
    if letters is not None and any(letters):
        raise UsageError("--layer-types has sliding layers, and the window is 0", hint=ASK)
    return Windows()


def _written(size: int, slides: Sequence[bool]) -> Windows:
    if not any(slides):
        return Windows()
    return Windows((
        KV(f"dflash.{WINDOW}", V.UINT32, size, source="--window"),
        KV(f"dflash.{PATTERN}", V.ARRAY, list(slides), V.BOOL, "--layer-types"),
    ))  # fmt: skip


def _letters(text: str, n: int) -> list[bool]:
    letters = [part.strip().upper() for part in text.split(",")]
    if not set(letters) <= {"S", "F"}:
        raise UsageError(f"--layer-types {text!r} cannot be read", hint="for example: --layer-types S,S,F")
    letters = letters * n if len(letters) == 1 else letters
    if len(letters) != n:
        raise UsageError(f"--layer-types {text!r} has {len(letters)} layers, the draft has {n}")
    return [letter == "S" for letter in letters]


def _size(source: Source) -> int | None:
    """The file's window."""
    key = source.full("{a}." + WINDOW)
    said = source.gguf.get(key)
    if said is not None and not is_u32(said):
        source.refuse(f"{key} is {said!r}, not a window")
    return whole(said)


def _stored(source: Source) -> list[bool] | None:
    """The file's pattern; one flag for all layers is none, for nobody reads it."""
    key = source.full("{a}." + PATTERN)
    pattern = source.gguf.get(key)
    if pattern is None or is_truth(pattern):
        return None
    if not isinstance(pattern, Sequence) or not all(map(is_truth, pattern)):
        source.refuse(f"{key} is {pattern!r}, not a flag for each layer")
    return [bool(i) for i in pattern]


def _check_agrees(flag: str, given: Any, said: Any) -> None:
    if given is not None and said is not None and given != said:
        raise UsageError(f"{flag} says {given}, the file {said}", hint=f"leave {flag} out: the file says it")
