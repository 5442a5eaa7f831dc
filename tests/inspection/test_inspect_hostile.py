"""A file may hold any value under any key: an inspection says what it can, and never fails on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from foreign_gguf import FILES
from make import make_gguf
from toys import CASES

from dflash_convert.inspection import inspect_checkpoint, inspect_gguf
from dflash_convert.inspection.render import checkpoint_rows, remarks, rows

FLAT = CASES / "dflash-flat/draft"
VALUES = ("x", 0, 2**31 - 1, True, 1.5, [1], [True, False], ["a"], [0] * 70)


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_any_value_under_any_key(value: Any, tmp_path: Path) -> None:
    for name, (keys, tensors) in FILES.items():
        for key in keys:
            if key == "general.architecture":
                continue
            found = inspect_gguf(make_gguf(tmp_path / "d.gguf", {**keys, key: value}, tensors))
            assert found.dialect is not None
            assert found.dialect.name == name
            assert rows(found)
            list(remarks(found))


@pytest.mark.parametrize("absent", ["dflash_config", "head_dim", "intermediate_size", "num_hidden_layers"])
def test_a_missing_value_beside_any_other(absent: str, tmp_path: Path) -> None:
    """What the weights imply of a value that is missing is told by other values, which may be anything."""
    (tmp_path / "model.safetensors").symlink_to(FLAT / "model.safetensors")
    config = json.loads((FLAT / "config.json").read_text())
    del config[absent]
    for key in config:
        for value in ("x", 0, -1, 2**40, True, 1.5, [1], {"id": 1}, None):
            (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
            found = inspect_checkpoint(tmp_path)
            assert any("is missing" in line for line in found.odd), (key, value)
            assert checkpoint_rows(found)


def test_no_escape_sequence_reaches_the_terminal(tmp_path: Path) -> None:
    keys, tensors = FILES["mainline"]
    red = {"general.name": "\x1b[31mred", "dflash.\x1b[31m": 1}
    found = inspect_gguf(make_gguf(tmp_path / "d.gguf", {**keys, **red}, tensors))
    text = "".join([*(value for _, value in rows(found)), *remarks(found)])
    assert "red" in text
    assert "\x1b" not in text
