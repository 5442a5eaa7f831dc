"""What an inspection says, as frozen values: the names of their fields are the keys of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLIDING, FULL = "S", "F"

DRAFT, MODEL, OTHER = "draft", "model", "other"  # kinds of file


@dataclass(frozen=True)
class Format:
    """The dialect of a draft: see `dialects.dialect`. taps: in which convention its own numbers are."""

    name: str
    title: str
    purpose: str
    mainline_loads: bool
    taps: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Taps:
    """The tapped layers, as stored under `key` and in both conventions."""

    key: str
    stored: tuple[int, ...]
    checkpoint: tuple[int, ...]  # layers whose output is tapped
    mainline: tuple[int, ...]  # layers whose input is tapped: one more


@dataclass(frozen=True)
class Layers:
    """How many layers, and which slide: one letter a layer, or () where the file does not say."""

    count: int | None
    kinds: tuple[str, ...]
    window: int | None


@dataclass(frozen=True)
class Mask:
    """The mask token; text: what the file's vocabulary has at that id."""

    key: str
    id: int
    text: str | None


@dataclass(frozen=True)
class Rope:
    """The rotary embedding. rotated: dimensions of a head that rotate; head_size: all of them."""

    base: float | None
    scaling: str | None
    factor: float | None
    original_context: int | None
    rotated: int | None
    head_size: int | None
    sections: tuple[int, ...] | None


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer in the file."""

    model: str | None
    pre: str | None
    size: int | None


@dataclass(frozen=True)
class Weights:
    """The tensors of one role in one type."""

    role: str
    type: str
    tensors: int
    bytes: int


@dataclass(frozen=True)
class Inspection:
    """A GGUF as it stands. family and what follows it up to mask: of drafts; None where the file does not say."""

    path: Path
    bytes: int
    kind: str
    architecture: str
    dialect: Format | None
    family: str | None
    taps: Taps | None
    block_size: int | None
    mask: Mask | None
    layers: Layers
    sizes: Mapping[str, int]
    rope: Rope
    vocabulary: Vocabulary
    weights: tuple[Weights, ...]
    provenance: Mapping[str, str]
    odd: tuple[str, ...]


@dataclass(frozen=True)
class Value:
    """One value of a config.json, and the place it was found in."""

    name: str
    value: Any
    place: str


@dataclass(frozen=True)
class CheckpointInspection:
    """A checkpoint folder as it stands. label: its `architectures`. stopped: something in `odd` stops hf-to-gguf."""

    path: Path
    kind: str
    label: str
    family: str | None
    stopped: bool
    taps: Taps | None
    layers: Layers
    values: tuple[Value, ...]
    weights: tuple[Weights, ...]
    odd: tuple[str, ...]
