"""What is found in a checkpoint folder, complete or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from make import make_checkpoint, weights
from toys import CASES, TARGET

from dflash_convert import cli
from dflash_convert.errors import DflashError
from dflash_convert.inspection import inspect_checkpoint
from dflash_convert.inspection.render import checkpoint_rows

SWA = CASES / "dflash-nested-swa/draft"


def changed(tmp_path: Path, **dflash: Any) -> Path:
    """The golden draft with other values in dflash_config."""
    config = json.loads((SWA / "config.json").read_text())
    config["dflash_config"] = {k: v for k, v in {**config["dflash_config"], **dflash}.items() if v is not None}
    for file in SWA.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_each_value_with_its_place() -> None:
    found = inspect_checkpoint(SWA)
    text = {what: (value, place) for what, value, place in checkpoint_rows(found)}
    assert (found.family, found.stopped, found.odd) == ("DFlash", False, ())
    assert text["family"] == ("DFlash", "the tensors")
    assert text["taps"][0].startswith("checkpoint ids [1, 3, 5], target_layers [2, 4, 6]")
    assert text["layers"][0] == "S F window 128"
    assert text["block_size"] == ("8", "dflash_config.block_size")
    assert text["rope_theta"] == ("10000000.0", "rope_parameters.rope_theta")
    assert sum(w.tensors for w in found.weights) == 25


def test_what_is_missing_or_unknown_is_told_and_the_rest_shown(tmp_path: Path) -> None:
    found = inspect_checkpoint(changed(tmp_path, block_size=None, colour="red"))
    assert found.stopped
    assert any("block_size is missing; looked for" in line and "--block-size" in line for line in found.odd)
    assert "dflash_config.colour = 'red' is not known and would not be used" in found.odd
    assert found.taps is not None


def test_what_cannot_be_converted_is_told(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path / "x", {"conv.weight": weights(4, 4)}, {"architectures": ["Other"]})
    found = inspect_checkpoint(root)
    assert (found.family, found.label, found.stopped) == (None, "Other", True)
    assert "neither a DFlash draft" in found.odd[0]
    assert checkpoint_rows(found)[0][1] == "not convertible"


def test_taps_that_are_counted_from_the_embeddings() -> None:
    found = inspect_checkpoint(CASES / "dspark-speculators/draft")
    assert found.taps is not None
    assert (found.taps.key, found.taps.stored) == ("aux_hidden_state_layer_ids", (2, 4, 6))
    assert found.taps.checkpoint == (1, 3, 5)


@pytest.mark.parametrize("case", sorted(p.parent.name for p in CASES.glob("*/draft")))
def test_every_golden_draft_has_a_family_and_nothing_stops_it(case: str) -> None:
    found = inspect_checkpoint(CASES / case / "draft")
    assert found.family is not None
    assert (found.stopped, found.taps is not None) == (False, True)


def test_a_tensor_of_another_shape_is_told(tmp_path: Path) -> None:
    root = changed(tmp_path, target_layer_ids=[1, 3])
    found = inspect_checkpoint(root)
    assert found.stopped
    assert found.odd[0].startswith("fc.weight")


def test_a_target() -> None:
    found = inspect_checkpoint(TARGET)
    assert (found.family, found.taps, found.odd) == ("Qwen3", None, ())


def test_the_command(capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["inspect", str(SWA), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (stop.value.code, document["kind"], document["family"]) == (0, "checkpoint", "DFlash")
    assert {"name": "mask_token_id", "value": 319, "place": "dflash_config.mask_token_id"} in document["values"]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DflashError):
        inspect_checkpoint(tmp_path)
