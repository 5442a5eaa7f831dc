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

from make import Array, make_safetensors
from safetensors.numpy import load_file

CASES = Path(__file__).parent / "data" / "convert"
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
    config = deepcopy(dict(config))
    for path, value in changes.items():
        *groups, key = path.split(".")
        inner = config
        for group in groups:
            inner[group] = inner.get(group) or {}
            inner = inner[group]
        inner.pop(key, None) if value is GONE else inner.__setitem__(key, value)
    return config


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
