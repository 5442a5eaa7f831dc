"""Checkpoints that are quantized already are refused by what their config says, and plain ones are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import GONE, plan, refusal, toy_draft, toy_target

from dflash_convert.conversion.run import plan_conversion
from dflash_convert.errors import CheckpointError

PACKED = {
    "layers.0.mlp.gate_proj.weight": GONE,
    "layers.0.mlp.gate_proj.qweight": np.zeros((8, 96), np.int32),
}
SECTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq, 4 bits"),
    "gptq": ({"quant_method": "gptq", "bits": 8}, "gptq, 8 bits"),
    "fp8": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, "fp8, e4m3"),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}, "targets": ["Linear"]}},
        },
        "compressed-tensors, 4 bits",
    ),
    "bitsandbytes": ({"quant_method": "bitsandbytes", "_load_in_4bit": True}, "bitsandbytes, 4 bits"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt, FP8"),
    "nameless": ({"quant_algo": "W4A8_AWQ"}, "W4A8_AWQ, W4A8_AWQ"),
    "odd": ({"quant_method": ["x"], "config_groups": 7, "bits": "four"}, "['x']"),
    "nothing known": ({"a": 1}, "no method named"),
}


@pytest.mark.parametrize(("section", "scheme"), SECTIONS.values(), ids=SECTIONS)
def test_the_method_and_its_bits_are_named(tmp_path: Path, section: dict[str, Any], scheme: str) -> None:
    error = refusal(CheckpointError, tmp_path, {"quantization_config": section}, PACKED)
    assert error.message == (
        f"config.json: quantization_config says that the weights are quantized ({scheme}), and "
        "layers.0.mlp.gate_proj.qweight is I32: only NVFP4 can be read"
    )
    assert error.hint == "the unquantized original is needed"


@pytest.mark.parametrize("card", ["base_model: org/original", "base_model: [org/original, org/other]"])
def test_the_model_card_names_the_original(tmp_path: Path, card: str) -> None:
    draft = toy_draft(tmp_path / "d", {"quantization_config": {"quant_method": "awq"}}, PACKED)
    (draft / "README.md").write_text(f"---\n{card}\n---\n# A draft\n")
    with pytest.raises(CheckpointError) as e:
        plan_conversion(draft, toy_target(tmp_path / "t"))
    assert e.value.hint == "the unquantized original is needed: the model card names org/original"


@pytest.mark.parametrize("section", [None, {}, {"quant_method": "awq", "bits": 4}])
def test_plain_weights_are_taken_whatever_a_copied_section_says(tmp_path: Path, section: Any) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole, copied = plan(tmp_path / "a"), plan(tmp_path / "b", {"quantization_config": section})
    assert copied.plan.tensors == whole.plan.tensors


def test_without_a_section_the_tensor_is_named(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"quantization_config": None}, PACKED)
    assert "layers.0.mlp.gate_proj.qweight" in error.message
    assert "quantization_config" not in error.message
