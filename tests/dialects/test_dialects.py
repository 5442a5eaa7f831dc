"""Every dialect's file is recognised by its name, and its values come out the same whatever they are called."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from foreign_gguf import FILES, N_EMBD, RAW, SHIFTED, write

from dflash_convert.dialects.dialect import INPUTS, OUTPUTS
from dflash_convert.dialects.table import DIALECTS, recognise
from dflash_convert.inspection import inspect_gguf


def test_every_dialect_has_a_file() -> None:
    assert {d.name for d in DIALECTS} == set(FILES)
    assert [name for name, n in Counter((d.name, d.architecture) for d in DIALECTS).items() if n > 1] == []


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_recognised_and_says_the_same(name: str, tmp_path: Path) -> None:
    found = inspect_gguf(write(tmp_path / "d.gguf", name))
    assert found.dialect is not None
    assert found.dialect.name == name
    assert found.taps is not None
    assert (list(found.taps.checkpoint), list(found.taps.mainline)) == (RAW, SHIFTED)
    assert (found.block_size, found.mask and found.mask.id) == (8, 7)
    assert (found.layers.count, found.sizes["n_embd"], found.rope.base) == (2, N_EMBD, 1e7)
    assert found.family == {"prismml": "DSpark", "laguna": "Laguna"}.get(name, "DFlash")
    assert [line for line in found.odd if "unknown keys" in line or "required keys" in line] == []


def test_who_stores_which_taps_and_whom_mainline_loads() -> None:
    by_name = {d.name: d for d in DIALECTS}
    inputs = {"mainline", "pull-22105-early", "pull-22105-late", "beellama-rewritten", "laguna", "buun-gemma"}
    assert {n for n, d in by_name.items() if d.taps[0].convention == INPUTS} == inputs
    assert {n for n, d in by_name.items() if d.taps[0].convention == OUTPUTS} == by_name.keys() - inputs
    loads = {"mainline", "pull-22105-late", "beellama-rewritten"}
    assert {n for n, d in by_name.items() if d.mainline_loads} == loads


def test_both_deepseek_architectures_are_one_dialect() -> None:
    found = recognise("deepseek41-dflash-draft", [])
    assert found is not None
    assert found.name == "lucebox-deepseek"


def test_an_architecture_without_a_dialect() -> None:
    assert recognise("qwen3", ["dflash.target_layers"]) is None
