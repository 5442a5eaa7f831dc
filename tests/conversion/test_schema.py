"""The tables by themselves: unambiguous rows, the tap shift in one place, and what each key is made from."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, cast

import pytest
from toys import FLAT, TARGET, flat_tensors, read_json

from dflash_convert.conversion import checks, config, match, plan, stream, vocab, windows
from dflash_convert.conversion import run as conversion
from dflash_convert.conversion.config import DraftConfig, ModelConfig, read_draft_config, read_model_config
from dflash_convert.conversion.match import expand
from dflash_convert.conversion.plan import key_rows
from dflash_convert.conversion.rows import fields, schema
from dflash_convert.conversion.rows.families import FAMILIES, refused
from dflash_convert.conversion.rows.targets import TARGETS


def flat() -> DraftConfig:
    shapes = {name: tensor.shape for name, tensor in flat_tensors().items()}
    return read_draft_config(read_json(FLAT / "config.json"), shapes, {})


def keys(**changes: Any) -> dict[str, Any]:
    return {kv.key: kv.value for kv in key_rows(schema.DRAFT_KEYS, "dflash", replace(flat(), **changes))}


@pytest.mark.parametrize("kind", [*FAMILIES, *TARGETS], ids=lambda k: k.name)
def test_each_tensor_name_stands_once_on_either_side(kind: Any) -> None:
    rows = expand(kind.tensors, 3)
    names = [row.name.format(i=i) for row in kind.tensors for i in (range(3) if "{i}" in row.name else (0,))]
    assert len(names) == len(set(names))
    assert {gguf for _, gguf in rows.values()} == set(names)
    assert len(rows) == sum((3 if "{i}" in row.source else 1) * (1 + len(row.aliases)) for row in kind.tensors)


OF_SOME_FAMILIES = ("selector_rank", "conv_kernel_size", "conv_group_size", "markov_rank", "confidence_size")


@pytest.mark.parametrize("kind", [*FAMILIES, *TARGETS], ids=lambda k: k.name)
def test_rows_speak_of_values_the_config_has(kind: Any) -> None:
    known = flat() if kind in FAMILIES else read_model_config(read_json(TARGET / "config.json"), {})
    assert isinstance(known, ModelConfig)
    for row in kind.keys:
        assert hasattr(known, row.field), row
    known = replace(known, **cast(dict[str, Any], dict.fromkeys(OF_SOME_FAMILIES, 8))) if kind in FAMILIES else known
    for row in kind.tensors:
        assert all(isinstance(getattr(known, dimension), int) for dimension in row.shape), row


@pytest.mark.parametrize("kind", [*FAMILIES, *TARGETS], ids=lambda k: k.name)
def test_no_row_of_what_is_refused_or_ignored_shadows_a_tensor(kind: Any) -> None:
    patterns = [r.pattern for r in (*refused.REFUSED_TENSORS, *kind.ignored)]
    for name in expand(kind.tensors, 2):
        assert not [p for p in patterns if fnmatchcase(name, p)], name


def test_what_is_ignored_has_a_reason() -> None:
    assert all(row.reason for row in schema.IGNORED)


def test_the_tap_shift_is_one_and_written_in_one_place() -> None:
    assert keys()["dflash.target_layers"] == [2, 4, 6]
    modules = (checks, config, conversion, fields, match, plan, schema, stream, vocab, windows)
    sources = {m.__name__: inspect.getsource(m).count("i + 1 for i in") for m in modules}
    assert {name: n for name, n in sources.items() if n} == {"dflash_convert.conversion.rows.schema": 1}


YARN4 = {"rope_type": "yarn", "rope_factor": 4.0, "rope_original_context": 256}
KEYS4 = {"type": "yarn", "factor": 4.0, "original_context_length": 256}
MSCALE4 = 1 + 0.1 * math.log(4)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"rope_type": "default", "rope_factor": 4.0}, {}),
        ({"rope_type": "linear", "rope_factor": 4.0, "rope_beta_fast": 32.0}, {"type": "linear", "factor": 4.0}),
        (
            {
                "rope_type": "yarn", "rope_factor": 4.0, "rope_original_context": 256, "rope_ext_factor": 1.0,
                "rope_attn_factor": 1 + 0.1 * math.log(4), "rope_beta_fast": 32.0, "rope_beta_slow": 1.0,
            },
            {
                "type": "yarn", "factor": 4.0, "original_context_length": 256, "yarn_ext_factor": 1.0,
                "yarn_attn_factor": 1 + 0.1 * math.log(4), "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0,
            },
        ),
        # llama.cpp multiplies its own 1 + 0.1 ln(factor) by attn_factor
        (YARN4 | {"rope_attn_factor": 1.25}, KEYS4 | {"yarn_attn_factor": 1.25, "attn_factor": 1.25 / MSCALE4}),
        (YARN4 | {"rope_mscale": 1.0, "rope_mscale_all_dim": 1.0}, KEYS4 | {"attn_factor": 1 / MSCALE4}),
        (YARN4 | {"rope_mscale": 1.0}, KEYS4),
        # what its own yarn cannot do is in a table of frequencies
        (YARN4 | {"rope_beta_fast": 32.0, "rope_beta_slow": 2.0}, {"type": "none", "attn_factor": MSCALE4}),
        (YARN4 | {"rope_truncate": False}, {"type": "none", "attn_factor": MSCALE4}),
    ],
    ids=["none", "default", "linear", "yarn", "attention factor", "mscale", "one mscale", "betas", "no rounding"],
)  # fmt: skip
def test_rope_scaling_keys(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    prefix = "dflash.rope.scaling."
    assert {k.removeprefix(prefix): v for k, v in keys(**changes).items() if k.startswith(prefix)} == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        ({"partial_rotary_factor": 0.25}, "rope.dimension_count", 8),
        ({"partial_rotary_factor": None}, "rope.dimension_count", None),
        ({"attention_value_scale": 0.612}, "attention.value_scale", 0.612),
        ({"embedding_scale": 8.0}, "embedding_scale", 8.0),
        ({"output_multiplier": 0.5}, "logit_scale", 0.5),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping", 30.0),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping", None),
        ({"sliding_window": 64}, "attention.sliding_window", None),
        ({"sliding_window": 64, "sliding_layers": (True, False)}, "attention.sliding_window", 64),
        ({"sliding_layers": (True, False)}, "attention.sliding_window_pattern", [True, False]),
        ({}, "attention.sliding_window_pattern", None),
        ({"mrope_sections": (16, 0, 0, 0)}, "rope.dimension_sections", [16, 0, 0, 0]),
        ({}, "attention.causal", None),
    ],
)
def test_keys_are_written_only_where_they_have_a_value(changes: dict[str, Any], key: str, value: Any) -> None:
    assert keys(**changes).get(f"dflash.{key}") == value


@pytest.mark.parametrize(
    ("place", "causal", "before_rope"),
    [("is_causal", False, True), ("is_causal", True, False), ("dflash_config.causal", False, False)],
)
def test_causality_stands_where_llama_cpp_writes_it(place: str, causal: bool, before_rope: bool) -> None:
    names = list(keys(is_causal=causal, where={"is_causal": place}))
    assert names.count("dflash.attention.causal") == 1
    assert (names.index("dflash.attention.causal") < names.index("dflash.rope.freq_base")) is before_rope
    assert keys(is_causal=causal, where={"is_causal": place})["dflash.attention.causal"] is causal
