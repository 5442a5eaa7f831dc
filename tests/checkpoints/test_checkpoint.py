"""A checkpoint folder opens whole, or says what is missing and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make import make_checkpoint, make_index, make_safetensors, weights
from safetensors.numpy import load_file

from dflash_convert.checkpoints.checkpoint import open_checkpoint, open_tensors, read_config
from dflash_convert.errors import CheckpointError, ConfigError, DflashError
from dflash_convert.json_file import read_json

TENSORS = {"b": weights(2, 3, seed=1), "a": weights(4, seed=2), "c": weights(3, 2, seed=3)}
INDEX = "model.safetensors.index.json"


def refused(root: Path, error: type[DflashError] = CheckpointError) -> tuple[str, str | None]:
    with pytest.raises(error) as caught:
        open_checkpoint(root)
    return caught.value.message.replace(str(root), "ROOT"), caught.value.hint


# -- folders that open ---------------------------------------------------------------------------------------------


def test_one_file_gives_its_tensors_by_name(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path, TENSORS, {"hidden_size": 3}))
    assert (checkpoint.root, checkpoint.config, checkpoint.notes) == (tmp_path, {"hidden_size": 3}, ())
    assert list(checkpoint.tensors) == ["a", "b", "c"]
    assert all(np.array_equal(checkpoint.float32(name), TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("index", [INDEX, "draft.safetensors.index.json"])
def test_shards_under_any_name_are_read_in_their_order(tmp_path: Path, index: str) -> None:
    (tmp_path / "more").mkdir()
    shards = {"z.safetensors": ["a"], "more/part.weights": ["c"], "odd name.safetensors": ["b"]}
    make_checkpoint(tmp_path, TENSORS, shards=shards)
    (tmp_path / INDEX).rename(tmp_path / index)
    checkpoint = open_checkpoint(tmp_path)
    assert [(n, t.file.relative_to(tmp_path).as_posix()) for n, t in checkpoint.tensors.items()] == [
        ("c", "more/part.weights"), ("b", "odd name.safetensors"), ("a", "z.safetensors"),
    ]  # fmt: skip
    assert all(np.array_equal(checkpoint.float32(name), TENSORS[name]) for name in TENSORS)
    assert checkpoint.notes == ()


def test_files_without_an_index_are_merged(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS, shards={"2.safetensors": ["a"], "1.safetensors": ["b", "c"]})
    (tmp_path / INDEX).unlink()
    assert list(open_checkpoint(tmp_path).tensors) == ["b", "c", "a"]


def test_a_consolidated_twin_is_left_out_with_a_note(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS)
    make_safetensors(tmp_path / "consolidated.safetensors", {"a": weights(1)})
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.notes == ("consolidated.safetensors is a second copy and was left out",)
    assert checkpoint.tensors["a"].shape == (4,)


def test_consolidated_weights_alone_are_the_weights(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path, TENSORS, shards={"consolidated.safetensors": list(TENSORS)}))
    assert (len(checkpoint.tensors), checkpoint.notes) == (3, ())
    (tmp_path / INDEX).unlink()
    assert (len(open_checkpoint(tmp_path).tensors), open_checkpoint(tmp_path).notes) == (3, ())


def test_a_file_outside_the_index_is_left_out_with_a_note(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS, shards={"1.safetensors": ["a", "b", "c"]})
    make_safetensors(tmp_path / "old.safetensors", {"a": weights(1)})
    assert open_checkpoint(tmp_path).notes == (f"old.safetensors is not named in {INDEX} and was left out",)


def test_of_several_indexes_the_usual_one_counts(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS, shards={"1.safetensors": ["a", "b", "c"]})
    make_index(tmp_path, {"a": "gone.safetensors"}, "another.safetensors.index.json")
    assert len(open_checkpoint(tmp_path).tensors) == 3


def test_the_tiny_pair_opens(tiny_pair: Path) -> None:
    checkpoint = open_checkpoint(tiny_pair / "draft")
    theirs = load_file(tiny_pair / "draft" / "model.safetensors")
    assert list(checkpoint.tensors) == sorted(theirs)
    for name, array in theirs.items():
        assert np.array_equal(checkpoint.rows(name).reshape(array.shape), array)


# -- folders that do not -------------------------------------------------------------------------------------------

NAME_THE_FOLDER = "name the folder that holds config.json and the weights"


def test_an_empty_folder_has_no_weights(tmp_path: Path) -> None:
    message, hint = refused(tmp_path)
    assert message == (
        "no weights found in ROOT: looked for *.safetensors.index.json and *.safetensors; files there: none"
    )
    assert hint == "name the folder that holds the weights"


def test_pickles_are_named_and_not_read(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "model.pth", "config.json"):
        (tmp_path / name).touch()
    (tmp_path / "dir.safetensors").mkdir()
    message, hint = refused(tmp_path)
    assert message.endswith("files there: config.json, dir.safetensors, model.pth, pytorch_model.bin")
    assert hint == (
        "only pickle files are there (model.pth, pytorch_model.bin); they are not read: get the safetensors version"
    )


def test_what_is_no_folder_is_told(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == ("ROOT is not a folder", NAME_THE_FOLDER)


CONFIGS: dict[str, tuple[bytes | None, str, str | None]] = {
    "none": (None, "ROOT: there is no config.json", NAME_THE_FOLDER),
    "not JSON": (
        b'{"a": 1',
        "ROOT/config.json, line 1 column 8: not valid JSON: Expecting ',' delimiter",
        "download the file again",
    ),
    "not text": (
        b"\xff",
        "ROOT/config.json, line 1 column 1: the byte 0xff is not UTF-8",
        "save it as UTF-8, or download it",
    ),
    "a list": (b"[]", "ROOT/config.json: an object was expected, not a list", "download the file again"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_no_object_is_told(tmp_path: Path, case: str) -> None:
    content, message, hint = CONFIGS[case]
    make_checkpoint(tmp_path, TENSORS)
    (tmp_path / "config.json").unlink()
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert refused(tmp_path, ConfigError) == (message, hint)
    with pytest.raises(ConfigError):
        read_config(tmp_path)


def test_a_json_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_json(tmp_path)
    assert caught.value.message == f"{tmp_path}: Is a directory"


# -- an index that lies --------------------------------------------------------------------------------------------

TRUE_MAP = {"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
REVISIONS = "index and shards are of different revisions; download both again"
TRUST = "do not use an index from a source you do not trust"
LIES: dict[str, tuple[Any, str, str]] = {
    "missing shards": (
        TRUE_MAP | {"c": "9.safetensors", "d": "9.safetensors", "e": "8.safetensors"},
        f"{INDEX} names 2 shard(s) that are not there: 8.safetensors (1 tensors), 9.safetensors (2 tensors)",
        "finish the download: every shard named in the index is needed",
    ),
    "a tensor in no shard": (
        TRUE_MAP | {"d": "1.safetensors", "e": "2.safetensors"},
        f"d is in {INDEX} but in no shard (2 such tensors)",
        REVISIONS,
    ),
    "the wrong shard": (
        TRUE_MAP | {"b": "2.safetensors"},
        f"b is not in the shard that {INDEX} names (1 such tensors)",
        REVISIONS,
    ),
    "a way out": (
        TRUE_MAP | {"a": "../1.safetensors"},
        f"{INDEX}: a is said to be in '../1.safetensors', which is no file of this folder",
        TRUST,
    ),
    "a way out through a folder": (
        TRUE_MAP | {"a": "more/../../1.safetensors"},
        f"{INDEX}: a is said to be in 'more/../../1.safetensors', which is no file of this folder",
        TRUST,
    ),
    "an absolute path": (
        TRUE_MAP | {"a": "/1.safetensors"},
        f"{INDEX}: a is said to be in '/1.safetensors', which is no file of this folder",
        TRUST,
    ),
    "a number": (TRUE_MAP | {"a": 1}, f"{INDEX}: a is said to be in 1, which is no file of this folder", TRUST),
    "a list": ([], f"{INDEX}: there is no 'weight_map' in it", "download the index again"),
    "nothing": ({}, f"{INDEX}: there is no 'weight_map' in it", "download the index again"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    weight_map, message, hint = LIES[lie]
    root = make_checkpoint(tmp_path / "root", TENSORS, shards={"1.safetensors": ["a", "b"], "2.safetensors": ["c"]})
    make_safetensors(tmp_path / "1.safetensors", {"a": TENSORS["a"], "b": TENSORS["b"]})
    (root / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert refused(root) == (message, hint)


def test_the_index_decides_which_copy_counts(tmp_path: Path) -> None:
    """An overlay: a fixed tensor in a file of its own, the old one still in its shard."""
    shards = {"1.safetensors": ["a", "b"], "2.safetensors": ["c"]}
    root = make_checkpoint(tmp_path / "root", TENSORS, shards=shards)
    make_safetensors(root / "fix.safetensors", {"a": weights(4, seed=9), "c": TENSORS["c"]})
    make_index(root, {"a": "fix.safetensors", "b": "1.safetensors", "c": "2.safetensors"})
    for checkpoint in (open_checkpoint(root), open_tensors(root, ["a", "c"])):
        assert np.array_equal(checkpoint.float32("a"), weights(4, seed=9))
        assert checkpoint.tensors["c"].file.name == "2.safetensors"
    assert open_checkpoint(root).notes == (
        f"2 older copies of tensors were left out ({INDEX} names another shard), such as a in 1.safetensors",
    )


def test_a_tensor_that_no_index_knows_is_there_all_the_same(tmp_path: Path) -> None:
    shards = {"1.safetensors": ["a", "b"], "2.safetensors": ["c"]}
    root = make_checkpoint(tmp_path / "root", TENSORS, shards=shards)
    make_index(root, {"a": "1.safetensors", "c": "2.safetensors"})
    checkpoint = open_checkpoint(root)
    assert checkpoint.notes == (f"1 tensors of a shard are not in {INDEX}, such as b in 1.safetensors",)
    assert np.array_equal(checkpoint.float32("b"), TENSORS["b"])
    make_safetensors(root / "2.safetensors", {"b": TENSORS["b"], "c": TENSORS["c"]})
    assert refused(root)[0] == "b is in both 1.safetensors and 2.safetensors"


def test_shards_of_one_name_in_two_folders_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    make_checkpoint(tmp_path, TENSORS, shards={"1.safetensors": ["a", "b"], "more/1.safetensors": ["c"]})
    assert len(open_checkpoint(tmp_path).tensors) == 3
    make_index(tmp_path, {"a": "1.safetensors", "b": "more/1.safetensors", "c": "more/1.safetensors"})
    assert refused(tmp_path) == (f"b is not in the shard that {INDEX} names (1 such tensors)", REVISIONS)


def test_an_index_without_a_map_or_json_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS)
    (tmp_path / INDEX).write_text("{}")
    assert refused(tmp_path)[0] == f"{INDEX}: there is no 'weight_map' in it"
    (tmp_path / INDEX).write_text("<html>")
    assert refused(tmp_path, ConfigError)[0] == f"ROOT/{INDEX} is a web page (or XML), not JSON"


def test_several_indexes_without_the_usual_one_are_refused(tmp_path: Path) -> None:
    for name in ("b.safetensors.index.json", "a.safetensors.index.json"):
        make_index(tmp_path, TRUE_MAP, name)
    message, hint = refused(tmp_path)
    assert message == (f"ROOT: several indexes and none is {INDEX}: a.safetensors.index.json, b.safetensors.index.json")
    assert hint == f"rename the right one to {INDEX}"


def test_one_name_in_two_shards_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, TENSORS, shards={"1.safetensors": ["a", "b"], "2.safetensors": ["b", "c"]})
    (tmp_path / INDEX).unlink()
    assert refused(tmp_path) == (
        "b is in both 1.safetensors and 2.safetensors",
        "keep the weights of one model in the folder, or the index that says which files count",
    )
