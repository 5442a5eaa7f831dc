"""What a user demands beside a file type: llama-quantize's options of these names, and two of our own.

In: texts from the command line. Out: `Overrides`, a value that `recipes.choose` asks. Source: llama.cpp's
src/llama-quant.cpp (llama_tensor_get_type).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGMLQuantizationType

from dflash_convert import quants
from dflash_convert.errors import UsageError

# Low bits hurt a draft where few weights steer all others: `--recipe safe` keeps these at Q8_0.
DELICATE_IN_DRAFTS = r"^fc\.weight$|_conv_proj\.weight$|^selector_|^markov_|^conf_proj\."


@dataclass(frozen=True)
class Overrides:
    """patterns: (regular expression, type) for tensors by name, the first that is found in it counts. output,
    token_embd: types of these tensors, taken as they are. leave_output: output.weight stays. pure: no mix, the file
    type's own type for all. fallback: whether a row that does not divide may get a bigger type."""

    patterns: tuple[tuple[re.Pattern[str], GGMLQuantizationType], ...] = ()
    output: GGMLQuantizationType | None = None
    token_embd: GGMLQuantizationType | None = None
    leave_output: bool = False
    pure: bool = False
    fallback: bool = True

    def named(self, name: str) -> GGMLQuantizationType | None:
        """The type that a pattern demands for a tensor."""
        return next((kind for pattern, kind in self.patterns if pattern.search(name)), None)


NONE = Overrides()


def read_overrides(
    tensor_types: Sequence[str] = (),
    tensor_type_file: Path | None = None,
    output_tensor_type: str | None = None,
    token_embedding_type: str | None = None,
    recipe: str | None = None,
    *,
    leave_output_tensor: bool = False,
    pure: bool = False,
    no_fallback: bool = False,
) -> Overrides:
    """The options as a value. Raises UsageError: no regular expression, no type that can be written, options that
    contradict one another."""
    if recipe not in (None, "safe"):
        raise UsageError(f"there is no recipe {recipe!r}", hint="--recipe safe, or none: llama.cpp's own mix")
    if leave_output_tensor and output_tensor_type:
        raise UsageError("--leave-output-tensor and --output-tensor-type exclude each other", hint="give one of them")
    given = [*tensor_types, *(_lines(tensor_type_file) if tensor_type_file else ())]
    patterns = [_pattern(text) for text in given]
    if recipe == "safe":
        patterns.append((re.compile(DELICATE_IN_DRAFTS), GGMLQuantizationType.Q8_0))
    return Overrides(
        tuple(patterns),
        _type(output_tensor_type),
        _type(token_embedding_type),
        leave_output_tensor,
        pure,
        not no_fallback,
    )


def _lines(path: Path) -> list[str]:
    """One REGEX=TYPE a line, as llama-quantize reads such a file (any white space between them)."""
    try:
        return path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"{path}: cannot be read: {e}", hint="a text file of REGEX=TYPE") from e


def _pattern(text: str) -> tuple[re.Pattern[str], GGMLQuantizationType]:
    name, equals, kind = text.rpartition("=")
    found = _type(kind) if equals else None
    if not name or found is None:
        raise UsageError(f"--tensor-type {text}: REGEX=TYPE was expected", hint="e.g. --tensor-type 'attn_v=Q8_0'")
    try:
        return re.compile(name.lower()), found
    except re.error as e:
        raise UsageError(f"--tensor-type {text}: {name!r} is no regular expression: {e}", hint="quote it well") from e


def _type(name: str | None) -> GGMLQuantizationType | None:
    if name is None:
        return None
    known = [n for n, t in quants.TYPES.items() if t.encode is not None]
    if name.upper() not in known:
        near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"{name!r} is no tensor type that can be written; these are: {', '.join(known)}", hint=f"is {near} meant?"
        )
    return GGMLQuantizationType[name.upper()]
