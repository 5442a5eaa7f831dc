"""Recipes as tables: roles, layers, exclusions, fallbacks, order; the mixes against llama.cpp's own choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as G
from hypothesis import given
from hypothesis import strategies as st

from dflash_convert.quantization.file_types import (
    ALIASES,
    FILE_TYPES,
    Model,
    Role,
    file_type,
)
from dflash_convert.quantization.recipes import (
    EXCLUSIONS,
    FALLBACK,
    LAST_RESORT,
    Choice,
    Tensor,
    choose,
    fit_to_row,
    in_order,
    kept_because,
    role_of,
)

DATA = Path(__file__).parent.parent / "data"


def tensor(name: str, *shape: int, ggml_type: G = G.BF16) -> Tensor:
    return Tensor(name, shape or (512, 256), ggml_type)


def chosen(name: str, tensors: list[Tensor], model: Model) -> list[str]:
    return [c.type.name for c in choose(file_type(name), tensors, model)]


@pytest.mark.parametrize("which", ["draft", "target"])
@pytest.mark.parametrize("name", sorted(set(FILE_TYPES) - {"BF16", "Q2_K_S", "COPY"}))
def test_the_types_of_the_trained_pair_are_llama_cpps(which: str, name: str, tiny_pair: Path) -> None:
    given, golden = (json.loads((tiny_pair / "expected" / f"{which}-{t}.json").read_text()) for t in ("bf16", name))
    arch = given["kv"]["general.architecture"]["value"]
    model = Model(arch, given["kv"][f"{arch}.block_count"]["value"])
    tensors = [Tensor(t["name"], tuple(t["shape"][::-1]), G[t["type"]]) for t in given["tensors"]]
    choices = choose(file_type(name), tensors, model)
    assert [(c.tensor.name, c.type.name) for c in choices] == [(t["name"], t["type"]) for t in golden["tensors"]]
    assert file_type(name).number == golden["kv"]["general.file_type"]["value"]


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K_M", "Q3_K_M", "IQ4_XS", "MXFP4_MOE"])
@pytest.mark.parametrize("arch", ["gpt-oss", "llama", "qwen3moe", "qwen35", "qwen35moe"])
def test_the_types_of_other_targets_are_llama_cpps(arch: str, name: str) -> None:
    """Small models of other architectures: experts, tied embeddings, rows that do not divide."""
    golden = json.loads((DATA / "recipes" / f"{arch}.json").read_text())
    keys = ("block_count", "expert_count", "head_count", "head_count_kv")
    model = Model(arch, *(golden.get(key, 0) for key in keys))
    rows = [dict(zip(golden["columns"], row, strict=True)) for row in golden["tensors"]]
    tensors = [Tensor(row["name"], tuple(row["shape"][::-1]), G[row["given"]]) for row in reversed(rows)]
    assert [(c.tensor.name, c.type.name) for c in choose(file_type(name), tensors, model)] == [
        (row["name"], row[name]) for row in rows
    ]


def test_every_row_of_the_table_can_be_written() -> None:
    from dflash_convert.quants import TYPES

    wanted = {f.default for f in FILE_TYPES.values()} | {r.type for f in FILE_TYPES.values() for r in f.rules}
    assert all(TYPES[t.name].encode for t in wanted | set(FALLBACK.values()) | {LAST_RESORT})
    assert set(ALIASES.values()) <= set(FILE_TYPES)
    assert [name for name, row in FILE_TYPES.items() if row.name != name] == []


# -- roles ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("output.weight", Role.OUTPUT),
        ("token_embd.weight", Role.TOKEN_EMBD),
        ("per_layer_token_embd.weight", Role.TOKEN_EMBD),
        ("blk.3.attn_v.weight", Role.ATTN_V),
        ("blk.3.attn_qkv.weight", Role.ATTN_V),
        ("blk.3.attn_kv_b.weight", Role.ATTN_V),
        ("blk.3.attn_output.weight", Role.ATTN_OUTPUT),
        ("blk.3.ffn_down_exps.weight", Role.FFN_DOWN),
        ("blk.3.attn_v.bias", Role.OTHER),
        ("fc.weight", Role.OTHER),
        ("dec.output.weight", Role.OTHER),
    ],
)
def test_roles(name: str, role: Role) -> None:
    assert role_of(name) == role


def test_tied_embeddings_are_an_output() -> None:
    model = Model("toy", 1)
    assert chosen("Q4_K_M", [tensor("token_embd.weight")], model) == ["Q6_K"]
    assert chosen("Q4_K_M", [tensor("token_embd.weight"), tensor("output.weight")], model) == ["Q6_K", "Q4_K"]
    assert chosen("Q8_0", [tensor("token_embd.weight")], model) == ["Q8_0"]


# -- what stays ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("blk.0.attn_q.bias", (4, 256), "not a weight"),
        ("blk.0.attn_q.weight", (256,), "one-dimensional"),
        ("blk.0.attn_q.weight", (1, 256), "one-dimensional"),
        ("blk.0.attn_norm.weight", (4, 256), "a norm"),
        ("blk.0.ffn_gate_inp.weight", (8, 256), "routes tokens to experts"),
        ("position_embd.weight", (8, 256), "positions"),
        ("v.position_embd.weight", (8, 256), "positions"),
        ("blk.0.ssm_conv1d.weight", (8, 4), "a short convolution"),
        ("blk.0.time_mix_w1.weight", (8, 256), "small matrices of RWKV"),
    ],
)
def test_what_keeps_its_type_and_why(name: str, shape: tuple[int, ...], reason: str) -> None:
    assert kept_because(tensor(name, *shape)) == reason
    for ftype in set(FILE_TYPES.values()) - {FILE_TYPES["COPY"]}:
        (choice,) = choose(ftype, [tensor(name, *shape, ggml_type=G.F32)], Model("toy", 1))
        assert choice == Choice(choice.tensor, G.F32, G.F32, f"kept: {reason}")


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.weight", "fc.weight", "blk.0.ffn_gate.weight", "my_position_embd.weight"]
)
def test_what_may_be_quantized(name: str) -> None:
    assert kept_because(tensor(name, 256, 1)) == ""


def test_every_exclusion_has_a_reason_and_none_is_there_twice() -> None:
    assert all(e.reason for e in EXCLUSIONS)
    assert len({e.fragment for e in EXCLUSIONS}) == len(EXCLUSIONS)


# -- fallbacks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nominal", "row", "actual"),
    [
        (G.Q4_K, 512, G.Q4_K), (G.Q4_K, 96, G.Q5_0), (G.Q5_K, 96, G.Q5_1), (G.Q6_K, 96, G.Q8_0),
        (G.Q4_K, 40, G.F16), (G.Q6_K, 40, G.F16), (G.Q8_0, 64, G.Q8_0), (G.Q8_0, 40, G.F16),
        (G.Q2_K, 96, G.Q4_0), (G.Q3_K, 96, G.Q4_0), (G.IQ4_XS, 96, G.IQ4_NL), (G.MXFP4, 40, G.F16), (G.Q4_0, 40, G.F16),
    ],
)  # fmt: skip
def test_the_ladder(nominal: G, row: int, actual: G) -> None:
    assert fit_to_row(nominal, row) == actual


@given(st.sampled_from([*FALLBACK, G.Q8_0, G.Q4_1, G.MXFP4]), st.integers(1, 2000))
def test_what_the_ladder_gives_always_divides(nominal: G, row: int) -> None:
    assert row % GGML_QUANT_SIZES[fit_to_row(nominal, row)][0] == 0


def test_a_fallback_says_what_it_replaces() -> None:
    (choice,) = choose(file_type("Q4_K_M"), [tensor("blk.0.ffn_down.weight", 4, 96)], Model("toy", 1))
    assert choice.is_fallback
    assert (choice.nominal, choice.type) == (G.Q6_K, G.Q8_0)
    assert choice.reason == "rows of 96 do not divide into blocks of Q6_K"


# -- order -----------------------------------------------------------------------------------------------


def test_order_is_by_layer_number_then_name() -> None:
    names = ["blk.10.a.weight", "output.weight", "blk.2.b.weight", "blk.2.a.weight", "fc.weight", "zz.weight"]
    assert [t.name for t in in_order([tensor(n) for n in names])] == [
        "fc.weight", "output.weight", "zz.weight", "blk.2.a.weight", "blk.2.b.weight", "blk.10.a.weight",
    ]  # fmt: skip
