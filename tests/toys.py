"""Toy checkpoints to break: the golden flat draft and its target, with one thing changed at a time.

`changes` are dotted paths into config.json → new values (None is a null, GONE takes the key away); `tensors` likewise.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from make import Array, make_checkpoint, make_safetensors
from safetensors.numpy import load_file

from dflash_convert.conversion.run import Conversion, plan_conversion
from dflash_convert.errors import DflashError

DATA = Path(__file__).parent / "data"
CASES, ENGINE, TINY_PAIR = DATA / "convert", DATA / "engine", DATA / "tiny-pair"
FLAT, TARGET = CASES / "dflash-flat" / "draft", CASES / "target-qwen3"
SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
GONE: Any = object()


def read_json(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


@cache
def flat_tensors() -> dict[str, Array]:
    """The golden flat draft's 25 tensors, bf16: 2 layers, width 64, 3 taps, vocabulary 320."""
    tensors: dict[str, Array] = load_file(FLAT / "model.safetensors")
    return tensors


def edited(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` with dotted paths set, or taken away."""
    copy = deepcopy(dict(config))
    for path, value in changes.items():
        *groups, key = path.split(".")
        inner = copy
        for group in groups:
            inner[group] = inner.get(group) or {}
            inner = inner[group]
        inner[key] = value
        if value is GONE:
            del inner[key]
    return copy


def toy_draft(root: Path, changes: Mapping[str, Any] | None = None, tensors: Mapping[str, Any] | None = None) -> Path:
    """The flat draft in `root`, changed."""
    root.mkdir()
    config = edited(read_json(FLAT / "config.json"), changes or {})
    (root / "config.json").write_text(json.dumps(config), encoding="utf-8")
    all_tensors = {**flat_tensors(), **(tensors or {})}
    make_safetensors(root / "model.safetensors", {n: t for n, t in all_tensors.items() if t is not GONE})
    return root


def toy_target(root: Path, **changes: Mapping[str, Any]) -> Path:
    """The golden target's small files in `root`; changes by file: config, tokenizer, tokenizer_config."""
    root.mkdir()
    for name in SMALL_FILES:
        shutil.copyfile(TARGET / name, root / name)
    for stem, edits in changes.items():
        path = root / f"{stem}.json"
        path.write_text(json.dumps(edited(read_json(path), edits)), encoding="utf-8")
    return root


def plan(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    target: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Conversion:
    """Plan the flat draft with its config, its tensors and its target changed."""
    draft = toy_draft(folder / "Toy-DFlash", changes, tensors)
    donor = toy_target(folder / "Toy-Target", **(target or {}))
    return plan_conversion(draft, donor, folder / "out.gguf", **options)


def refusal(kind: type[DflashError], folder: Path, *args: Any, **options: Any) -> DflashError:
    """The error with which a plan is refused: of exactly this kind, in one line."""
    with pytest.raises(DflashError) as e:
        plan(folder, *args, **options)
    assert type(e.value) is kind
    assert "\n" not in e.value.message
    return e.value


def notes(job: Conversion, level: str) -> list[str]:
    return [n.text for n in job.plan.notes if n.level == level]


def engine_variant(root: Path, name: str) -> Path:
    """The trained draft with a variant's config, and its extra tensors over the draft's."""
    extra = ENGINE / name / "extra.safetensors"
    tensors = {**load_file(TINY_PAIR / "draft/model.safetensors"), **(load_file(extra) if extra.is_file() else {})}
    return make_checkpoint(root, tensors, read_json(ENGINE / name / "config.json"))
