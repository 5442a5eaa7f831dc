"""Which files of a repo are wanted: a table, and how its patterns meet a listing.

In: the names a repo (or a snapshot of one) holds, and a folder inside it. Out: the names wanted, or what is lacking.
A pattern speaks of names directly in that folder: what lies further down is never wanted.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

What = Literal["draft", "target"]
INDEX = "*.safetensors.index.json"


@dataclass(frozen=True)
class FileSet:
    """Files of a repo, by patterns on the name inside the folder. One match is enough for "required"."""

    purpose: str
    patterns: tuple[str, ...]
    rule: Literal["required", "optional", "never"]
    reason: str


TOKENIZER = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt",
            "chat_template.jinja", "chat_template.json")  # fmt: skip
CONFIG = (
    FileSet("config", ("config.json",), "required", "shapes, and everything that was trained in"),
    FileSet("generation config", ("generation_config.json",), "optional", "the ids that end a text"),
    FileSet("tokenizer settings", SETTINGS, "optional", "added tokens, special ids, chat template"),
)
WEIGHT_INDEX = FileSet("weight index", (INDEX,), "optional", "which shard holds which tensor")
WEIGHTS = (
    FileSet("weights", ("*.safetensors",), "required", "the tensors"),
    WEIGHT_INDEX,
    FileSet("second copy", ("consolidated*.safetensors",), "never", "the same weights again, in Mistral's layout"),
)
FILES: Mapping[What, tuple[FileSet, ...]] = MappingProxyType({
    "draft": (
        *CONFIG,
        *WEIGHTS,
        FileSet("mask embedding", ("mask_embedding.pt",), "optional", "the mask token's row, where it is kept apart"),
        FileSet("tokenizer", TOKENIZER, "optional", "only a target that is converted on its own has one"),
        FileSet("model card", ("README.md",), "optional", "license, base model and tags for general.*"),
    ),
    "target": (
        *CONFIG,
        FileSet("tokenizer", TOKENIZER, "required", "the vocabulary that the draft shares"),
    ),
})  # fmt: skip


def matches(names: Iterable[str], folder: str, row: FileSet) -> list[str]:
    """The names directly in `folder` that a pattern of `row` fits."""
    here = [PurePosixPath(name) for name in names if PurePosixPath(name).parent == PurePosixPath(folder)]
    return [str(path) for path in here if any(fnmatchcase(path.name, pattern) for pattern in row.patterns)]


def wanted(names: Collection[str], folder: str, files: tuple[FileSet, ...]) -> list[str]:
    """The names to fetch, sorted."""
    never = {name for row in files if row.rule == "never" for name in matches(names, folder, row)}
    return sorted({name for row in files for name in matches(names, folder, row)} - never)


def lacking(names: Collection[str], folder: str, files: tuple[FileSet, ...]) -> str:
    """The first required row that no name fits, in words; "" if there is none."""
    found = wanted(names, folder, files)
    rows = [row for row in files if row.rule == "required" and not matches(found, folder, row)]
    return f"{rows[0].purpose} ({', '.join(rows[0].patterns)})" if rows else ""


def patterns(folder: str, files: tuple[FileSet, ...]) -> dict[str, Any]:
    """`files` as the client's patterns, in which `*` also matches a slash: so folders further down are ignored."""
    prefix = glob.escape(f"{folder}/") if folder else ""
    allow = [prefix + pattern for row in files if row.rule != "never" for pattern in row.patterns]
    never = [prefix + pattern for row in files if row.rule == "never" for pattern in row.patterns]
    return {"allow_patterns": allow, "ignore_patterns": [f"{prefix}*/*", *never]}
