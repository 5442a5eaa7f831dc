"""Recipes as tables: roles, layers, exclusions, fallbacks, order; the mixes against llama.cpp's own choices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as G
from hypothesis import given
from hypothesis import strategies as st

from dflash_convert.errors import UsageError
from dflash_convert.recipes import (
    EXCLUSIONS,
    FALLBACK,
    FILE_TYPES,
    Choice,
    Model,
    Place,
    Role,
    Tensor,
    choose,
    file_type,
    first_eighth,
    fit_to_row,
    in_order,
    kept_because,
    like_llama_70b,
    role_of,
    use_more_bits,
)


def tensor(name: str, *shape: int, ggml_type: G = G.BF16) -> Tensor:
    return Tensor(name, shape or (512, 256), ggml_type)


def layers(part: str, n: int) -> list[Tensor]:
    return [tensor(f"blk.{i}.{part}.weight") for i in range(n)]


def chosen(name: str, tensors: list[Tensor], model: Model) -> list[str]:
    return [c.type.name for c in choose(file_type(name), tensors, model)]


def place(index: int, count: int, model: Model | None = None) -> Place:
    return Place(Role.ATTN_V, index, count, model or Model("toy", count))


@pytest.mark.parametrize("which", ["draft", "target"])
@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K_S", "Q4_K_M", "Q6_K"])
def test_the_types_of_the_trained_pair_are_llama_cpps(which: str, name: str, tiny_pair: Path) -> None:
    given, golden = (json.loads((tiny_pair / "expected" / f"{which}-{t}.json").read_text()) for t in ("bf16", name))
    arch = given["kv"]["general.architecture"]["value"]
    model = Model(arch, given["kv"][f"{arch}.block_count"]["value"])
    tensors = [Tensor(t["name"], tuple(t["shape"][::-1]), G[t["type"]]) for t in given["tensors"]]
    choices = choose(file_type(name), tensors, model)
    assert [(c.tensor.name, c.type.name) for c in choices] == [(t["name"], t["type"]) for t in golden["tensors"]]
    assert int(file_type(name).number) == golden["kv"]["general.file_type"]["value"]


def test_every_row_of_the_table_can_be_written() -> None:
    from dflash_convert.quants import TYPES

    wanted = {f.default for f in FILE_TYPES.values()} | {r.type for f in FILE_TYPES.values() for r in f.rules}
    assert all(TYPES[t.name].encode for t in wanted | set(FALLBACK.values()) | {G.F16})


# -- layers --------------------------------------------------------------------------------------------------------


def test_more_bits_go_to_both_ends_and_every_third_between() -> None:
    # 32 layers: 0–3 and 28–31, and of the others those with (i - 4) % 3 == 2
    assert [i for i in range(32) if use_more_bits(place(i, 32))] == [
        0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31,
    ]  # fmt: skip
    # 5 layers: an eighth is none, seven eighths are four
    assert [i for i in range(5) if use_more_bits(place(i, 5))] == [2, 4]


def test_the_first_eighth_rounds_down() -> None:
    assert [i for i in range(23) if first_eighth(place(i, 23))] == [0, 1]
    assert not first_eighth(place(0, 7))


def test_q4_k_m_by_layer() -> None:
    model = Model("toy", 5)
    assert chosen("Q4_K_M", layers("ffn_down", 5), model) == ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"]
    assert chosen("Q4_K_M", layers("attn_v", 5), model) == ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"]
    assert chosen("Q4_K_M", layers("attn_q", 5), model) == ["Q4_K"] * 5


def test_q4_k_s_by_layer() -> None:
    model = Model("toy", 16)
    assert chosen("Q4_K_S", layers("attn_v", 16), model) == ["Q5_K"] * 4 + ["Q4_K"] * 12
    assert chosen("Q4_K_S", layers("ffn_down", 16), model) == ["Q5_K"] * 2 + ["Q4_K"] * 14


def test_attn_v_is_counted_where_there_is_one_ffn_down_over_all_layers() -> None:
    """A hybrid has attention in some layers only: the eighths of attn_v are of those, of ffn_down of all."""
    model = Model("toy", 16)
    some = [tensor(f"blk.{i}.attn_v.weight") for i in (3, 7, 11, 15)]
    assert chosen("Q4_K_M", some, model) == ["Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    some = [tensor(f"blk.{i}.ffn_down.weight") for i in (3, 7, 11, 15)]
    assert chosen("Q4_K_M", some, model) == ["Q6_K", "Q6_K", "Q4_K", "Q4_K"]


def test_with_experts_the_layer_is_read_from_the_name() -> None:
    tensors = [tensor(f"blk.{i}.ffn_down{kind}.weight") for i in range(8) for kind in ("_exps", "_shexp")]
    dense, sparse = Model("toy", 8), Model("toy", 8, n_expert=4)
    by_layer = ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]
    assert chosen("Q4_K_M", tensors, sparse) == [t for t in by_layer for _ in range(2)]
    assert chosen("Q4_K_M", tensors, dense)[:8] == by_layer


@pytest.mark.parametrize("name", ["Q4_K_S", "Q4_K_M"])
def test_eight_experts_lift_attention(name: str) -> None:
    parts = [tensor(f"blk.0.{part}.weight") for part in ("attn_k", "attn_output", "attn_q", "attn_v")]
    assert chosen(name, parts, Model("toy", 1, n_expert=8)) == ["Q8_0", "Q5_K", "Q4_K", "Q8_0"]
    assert chosen("Q6_K", parts, Model("toy", 1, n_expert=8)) == ["Q8_0", "Q6_K", "Q6_K", "Q8_0"]


def test_attn_v_of_a_70b_is_lifted_where_no_other_rule_does() -> None:
    model = Model("llama", 80, n_head=64, n_head_kv=8)
    # an eighth is 10 layers; of the others those with (i - 10) % 3 == 2 have more bits already
    assert chosen("Q4_K_M", layers("attn_v", 80), model)[9:14] == ["Q6_K", "Q5_K", "Q5_K", "Q6_K", "Q5_K"]
    assert chosen("Q4_K_S", layers("attn_v", 80), model) == ["Q5_K"] * 80
    assert not like_llama_70b(place(0, 80, Model("llama", 80, n_head=64, n_head_kv=64)))  # the old 65B
    assert like_llama_70b(place(0, 80, Model("qwen2", 80)))
    assert not like_llama_70b(place(0, 80, Model("qwen3", 80)))


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
    for ftype in FILE_TYPES.values():
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
    ],
)  # fmt: skip
def test_the_ladder(nominal: G, row: int, actual: G) -> None:
    assert fit_to_row(nominal, row) == actual


@given(st.sampled_from([G.Q4_K, G.Q5_K, G.Q6_K, G.Q8_0]), st.integers(1, 2000))
def test_what_the_ladder_gives_always_divides(nominal: G, row: int) -> None:
    assert row % GGML_QUANT_SIZES[fit_to_row(nominal, row)][0] == 0


def test_a_fallback_says_what_it_replaces() -> None:
    (choice,) = choose(file_type("Q4_K_M"), [tensor("blk.0.ffn_down.weight", 4, 96)], Model("toy", 1))
    assert choice.is_fallback
    assert (choice.nominal, choice.type) == (G.Q6_K, G.Q8_0)
    assert choice.reason == "rows of 96 do not divide into blocks of Q6_K"


# -- order and names -----------------------------------------------------------------------------------------------


def test_order_is_by_layer_number_then_name() -> None:
    names = ["blk.10.a.weight", "output.weight", "blk.2.b.weight", "blk.2.a.weight", "fc.weight", "zz.weight"]
    assert [t.name for t in in_order([tensor(n) for n in names])] == [
        "fc.weight", "output.weight", "zz.weight", "blk.2.a.weight", "blk.2.b.weight", "blk.10.a.weight",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "name"), [("Q4_K", "Q4_K_M"), ("q8_0", "Q8_0"), ("q4-k-s", "Q4_K_S"), ("bf16", "BF16")]
)
def test_names_in_any_case_and_aliases(given: str, name: str) -> None:
    assert file_type(given).name == name


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        file_type("Q4_KM")
    assert caught.value.message == (
        "'Q4_KM' is not a file type that can be written; these are: F32, F16, BF16, Q8_0, Q6_K, Q4_K_S, Q4_K_M"
    )
    assert caught.value.hint == "the nearest is Q4_K_M"
