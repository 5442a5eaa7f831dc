"""`general.*`: names, sampling defaults, and where the checkpoint came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGUFValueType as V

from dflash_convert.conversion.metadata import general_rows, source_rows

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def rows(root: Path, **origin: Any) -> dict[str, Any]:
    return {kv.key: kv.value for kv in general_rows(root, "dflash", 99_000, **{"repo": None, "commit": None, **origin})}


def test_a_folder_gives_its_name_and_nothing_of_an_origin(tmp_path: Path) -> None:
    root = tmp_path / "Toy-DFlash"
    root.mkdir()
    found = rows(root)
    assert list(found)[:2] == ["general.architecture", "general.type"]
    assert (found["general.architecture"], found["general.type"]) == ("dflash", "model")
    assert found["general.name"] == "Toy DFlash"
    assert found["general.size_label"] == "99K"
    assert not [key for key in found if key.startswith("general.source")]


def test_a_repo_gives_name_organisation_and_origin(tmp_path: Path) -> None:
    found = rows(tmp_path, repo="z-lab/Qwen3-4B-DFlash", commit=COMMIT)
    assert found["general.name"] == "Qwen3 4B DFlash"
    assert found["general.source.repo_url"] == "https://huggingface.co/z-lab/Qwen3-4B-DFlash"
    assert found["general.source.url"] == f"https://huggingface.co/z-lab/Qwen3-4B-DFlash/tree/{COMMIT}"
    assert found["general.source.commit"] == COMMIT


@pytest.mark.parametrize(
    ("origin", "keys"),
    [
        ((None, None), []),
        ((None, COMMIT), []),
        (("a/b", None), ["repo_url"]),
        (("a/b", COMMIT), ["repo_url", "url", "commit"]),
    ],
)
def test_only_what_is_known_of_the_origin_is_written(origin: tuple[str | None, str | None], keys: list[str]) -> None:
    assert [kv.key for kv in source_rows(*origin)] == [f"general.source.{k}" for k in keys]


def test_a_draft_in_a_folder_of_a_repo_points_there() -> None:
    (url,) = [kv.value for kv in source_rows("a/b", COMMIT, "dflash") if kv.key == "general.source.url"]
    assert url == f"https://huggingface.co/a/b/tree/{COMMIT}/dflash"


def test_the_model_card_gives_licence_and_base_model(tmp_path: Path) -> None:
    card = "---\nlicense: mit\nbase_model: Qwen/Qwen3-4B\ntags: [dflash]\n---\n# Card\n"
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    found = rows(tmp_path)
    assert found["general.license"] == "mit"
    assert found["general.base_model.0.repo_url"] == "https://huggingface.co/Qwen/Qwen3-4B"
    assert found["general.tags"] == ["dflash"]


def test_sampling_defaults_have_llama_cpps_types_and_nulls_are_none(tmp_path: Path) -> None:
    settings = {"temperature": 0.6, "top_k": 20.0, "top_p": 0.95, "min_p": None, "repetition_penalty": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    found = {kv.key: (kv.type, kv.value) for kv in general_rows(tmp_path, "qwen3", 1, None, None)}
    assert all(type(v) is (int if t == V.INT32 else float) for t, v in found.values() if t != V.STRING)
    assert {k: v for k, v in found.items() if k.startswith("general.sampling.")} == {
        "general.sampling.top_k": (V.INT32, 20),
        "general.sampling.top_p": (V.FLOAT32, 0.95),
        "general.sampling.temp": (V.FLOAT32, 0.6),
        "general.sampling.penalty_repeat": (V.FLOAT32, 1.0),
    }


@pytest.mark.parametrize("card", ["---\nlicense: [unclosed\n---\n", "---\n- a\n- list\n---\n", "no card at all", ""])
def test_a_broken_model_card_stops_nothing(tmp_path: Path, card: str) -> None:
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert rows(tmp_path)["general.type"] == "model"
