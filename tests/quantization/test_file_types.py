"""The mixes, rule by rule: layers, experts, grouped queries, Falcon, 70B; names and aliases of file types."""

from __future__ import annotations

import pytest
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.errors import UsageError
from dflash_convert.quantization.file_types import (
    Model,
    Place,
    Role,
    file_type,
    first_eighth,
    guessed_number,
    like_llama_70b,
    use_more_bits,
)
from dflash_convert.quantization.recipes import Tensor, choose, without_imatrix


def tensor(name: str, *shape: int, ggml_type: G = G.BF16) -> Tensor:
    return Tensor(name, shape or (512, 256), ggml_type)


def layers(part: str, n: int) -> list[Tensor]:
    return [tensor(f"blk.{i}.{part}.weight") for i in range(n)]


def chosen(name: str, tensors: list[Tensor], model: Model) -> list[str]:
    return [c.type.name for c in choose(file_type(name), tensors, model)]


def place(index: int, count: int, model: Model | None = None) -> Place:
    return Place(Role.ATTN_V, index, count, model or Model("toy", count))


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


# -- the other mixes, rule by rule -----------------------------------------------------------------------------------

PARTS = ("attn_k", "attn_output", "attn_q", "attn_v", "ffn_down", "ffn_up")


def mix(name: str, model: Model) -> str:
    """The types of PARTS in layer 0 of a 32-layer model, without what all share."""
    tensors = [t for part in PARTS for t in layers(part, 32)] + [tensor("output.weight")]
    found = {c.tensor.name: c.type.name for c in choose(file_type(name), tensors, model)}
    return " ".join(found[f"blk.{layer}.{part}.weight"] for part in PARTS for layer in (0, 31)[: 1 + (part in ENDS)])


ENDS = ("attn_v", "ffn_down")  # parts whose types differ by layer: the first and the last are looked at


@pytest.mark.parametrize(
    ("name", "dense", "falcon", "eight_experts"),
    [  # attn_k attn_output attn_q attn_v (2) ffn_down (2) ffn_up
        ("Q4_0", "Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0", "Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0 Q4_0",
            "Q8_0 Q4_0 Q4_0 Q8_0 Q8_0 Q4_0 Q4_0 Q4_0"),
        ("Q2_K", "Q2_K Q3_K Q2_K Q3_K Q3_K Q3_K Q3_K Q2_K", "Q2_K Q2_K Q2_K Q3_K Q3_K Q3_K Q3_K Q2_K",
            "Q8_0 Q5_K Q2_K Q8_0 Q8_0 Q3_K Q3_K Q2_K"),
        ("Q2_K_S", "Q2_K Q2_K Q2_K Q2_K Q2_K Q4_K Q2_K Q2_K", "Q2_K Q2_K Q2_K Q2_K Q2_K Q4_K Q2_K Q2_K",
            "Q8_0 Q2_K Q2_K Q8_0 Q8_0 Q4_K Q2_K Q2_K"),
        ("Q3_K_S", "Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K", "Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K Q3_K",
            "Q8_0 Q5_K Q3_K Q8_0 Q8_0 Q3_K Q3_K Q3_K"),
        ("Q3_K_M", "Q3_K Q4_K Q3_K Q5_K Q4_K Q5_K Q4_K Q3_K", "Q3_K Q3_K Q3_K Q5_K Q4_K Q5_K Q4_K Q3_K",
            "Q8_0 Q5_K Q3_K Q8_0 Q8_0 Q5_K Q4_K Q3_K"),
        ("Q3_K_L", "Q3_K Q5_K Q3_K Q5_K Q5_K Q5_K Q5_K Q3_K", "Q3_K Q4_K Q3_K Q5_K Q5_K Q4_K Q4_K Q3_K",
            "Q8_0 Q3_K Q3_K Q8_0 Q8_0 Q5_K Q5_K Q3_K"),
        ("Q4_K_S", "Q4_K Q4_K Q4_K Q5_K Q4_K Q5_K Q4_K Q4_K", "Q4_K Q4_K Q4_K Q5_K Q4_K Q4_K Q4_K Q4_K",
            "Q8_0 Q5_K Q4_K Q8_0 Q8_0 Q5_K Q4_K Q4_K"),
        ("Q4_K_M", "Q4_K Q4_K Q4_K Q6_K Q6_K Q6_K Q6_K Q4_K", "Q4_K Q4_K Q4_K Q6_K Q6_K Q6_K Q5_K Q4_K",
            "Q8_0 Q5_K Q4_K Q8_0 Q8_0 Q6_K Q6_K Q4_K"),
        ("Q5_K_S", "Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K", "Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K Q5_K",
            "Q8_0 Q5_K Q5_K Q8_0 Q8_0 Q5_K Q5_K Q5_K"),
        ("Q5_K_M", "Q5_K Q5_K Q5_K Q6_K Q6_K Q6_K Q6_K Q5_K", "Q5_K Q5_K Q5_K Q6_K Q6_K Q6_K Q6_K Q5_K",
            "Q8_0 Q5_K Q5_K Q8_0 Q8_0 Q6_K Q6_K Q5_K"),
        ("IQ4_XS", "IQ4_XS IQ4_XS IQ4_XS IQ4_XS IQ4_XS Q5_K IQ4_XS IQ4_XS",
            "IQ4_XS IQ4_XS IQ4_XS IQ4_XS IQ4_XS Q5_K IQ4_XS IQ4_XS",
            "Q8_0 Q5_K IQ4_XS Q8_0 Q8_0 Q5_K IQ4_XS IQ4_XS"),
    ],
)  # fmt: skip
def test_mixes(name: str, dense: str, falcon: str, eight_experts: str) -> None:
    assert mix(name, Model("toy", 32)) == dense
    assert mix(name, Model("falcon", 32)) == falcon
    assert mix(name, Model("toy", 32, n_expert=8)) == eight_experts


def test_the_middle_of_falcon_gets_less() -> None:
    found = chosen("Q3_K_M", layers("ffn_down", 32), Model("falcon", 32))
    assert found[:8] == ["Q5_K"] * 2 + ["Q4_K"] * 2 + ["Q3_K", "Q3_K", "Q4_K", "Q3_K"]
    assert (
        chosen("Q4_K_M", layers("ffn_down", 32), Model("falcon", 32))[:6] == ["Q6_K"] * 2 + ["Q5_K"] * 2 + ["Q4_K"] * 2
    )
    assert chosen("Q4_K_M", [tensor("output.weight")], Model("falcon", 32)) == ["Q8_0"]


def test_keys_that_serve_four_queries_lift_attn_v() -> None:
    for name, few, many in (("Q2_K", "Q3_K", "Q4_K"), ("Q2_K_S", "Q2_K", "Q4_K"), ("IQ4_NL", "IQ4_NL", "Q5_K")):
        assert chosen(name, layers("attn_v", 1), Model("toy", 1, n_head=12, n_head_kv=4)) == [few]
        assert chosen(name, layers("attn_v", 1), Model("toy", 1, n_head=16, n_head_kv=4)) == [many]
        assert chosen(name, layers("attn_v", 1), Model("toy", 1, n_head=16, n_head_kv=0)) == [few]


def test_a_70b_lifts_attn_v_of_three_and_four_bits() -> None:
    model = Model("llama", 80, n_head=64, n_head_kv=8)
    for name in ("Q2_K", "Q2_K_S", "Q3_K_S", "Q3_K_M"):
        assert set(chosen(name, layers("attn_v", 80), model)) == {"Q5_K"}
    assert set(chosen("Q4_0", layers("attn_v", 80), model)) == {"Q4_0"}


def test_an_importance_matrix_changes_the_first_ffn_down() -> None:
    for name, before, after in (("Q4_0", "Q4_0", "Q4_1"), ("Q5_0", "Q5_0", "Q5_1"), ("IQ4_XS", "Q5_K", "IQ4_XS")):
        assert chosen(name, layers("ffn_down", 8), Model("toy", 8))[0] == before
        assert chosen(name, layers("ffn_down", 8), Model("toy", 8, has_imatrix=True))[0] == after


def test_only_experts_become_mxfp4() -> None:
    stacks = [tensor("blk.0.attn_v_b.weight", 4, 8, 64), tensor("blk.0.ffn_up_exps.weight", 4, 8, 64)]
    assert chosen("MXFP4_MOE", [*stacks, tensor("blk.0.z.weight")], Model("toy", 1)) == ["MXFP4", "MXFP4", "Q8_0"]
    assert chosen("MXFP4_MOE", stacks, Model("bailingmoe3", 1)) == ["Q8_0", "MXFP4"]


def test_delicate_tensors_of_glm() -> None:
    parts = [tensor(f"blk.0.{part}.weight") for part in ("attn_k_b", "attn_q_a", "hc_attn_fn")]
    assert chosen("Q2_K", parts, Model("glm5-next", 1)) == ["BF16", "Q8_0", "BF16"]
    assert chosen("MXFP4_MOE", parts, Model("glm5-next", 1)) == ["BF16", "Q8_0", "BF16"]
    assert chosen("F16", parts, Model("glm5-next", 1)) == ["BF16", "F16", "BF16"]
    assert chosen("Q2_K", parts, Model("toy", 1)) == ["Q2_K"] * 3


def test_a_copy_keeps_every_type() -> None:
    tensors = [tensor("b.weight", ggml_type=G.I32), tensor("a.weight", ggml_type=G.Q4_K)]
    choices = choose(file_type("COPY"), tensors, Model("toy", 1))
    assert [(c.tensor.name, c.type, c.reason) for c in choices] == [
        ("a.weight", G.Q4_K, "COPY"), ("b.weight", G.I32, "COPY"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("types", "number"),
    [
        ([], 0), ([G.F32], 0), ([G.F32, G.BF16], 0), ([G.BF16, G.F32], 32), ([G.F32, G.BF16, G.BF16, G.F32], 32),
        ([G.Q4_K], 15), ([G.Q2_K], 10), ([G.Q6_K], 18), ([G.MXFP4], 0), ([G.IQ4_XS], 30),
    ],
)  # fmt: skip
def test_a_file_types_number_guessed_from_its_tensors(types: list[G], number: int) -> None:
    assert guessed_number(types) == 1024 + number


def test_q2_k_s_wants_an_importance_matrix_only_where_q2_k_is_written() -> None:
    given = [tensor("token_embd.weight"), tensor("output.weight"), tensor("blk.0.ffn_up.weight")]
    choices = choose(file_type("Q2_K_S"), given, Model("toy", 1))
    wanting = without_imatrix(file_type("Q2_K_S"), choices)
    assert wanting
    assert wanting.tensor.name == "blk.0.ffn_up.weight"
    assert without_imatrix(file_type("Q2_K_S"), choices[:2]) is None
    assert without_imatrix(file_type("Q2_K"), choices) is None


# -- names ---


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Q4_K", "Q4_K_M"),
        ("q3_k", "Q3_K_M"),
        ("Q5_K", "Q5_K_M"),
        ("q8_0", "Q8_0"),
        ("q4-k-s", "Q4_K_S"),
        ("bf16", "BF16"),
    ],
)
def test_names_in_any_case_and_aliases(given: str, name: str) -> None:
    assert file_type(given).name == name


def test_an_unknown_name_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        file_type("Q4_KM")
    assert caught.value.message == (
        "'Q4_KM' is not a file type that can be written; these are: F32, F16, BF16, COPY, Q8_0, Q4_0, Q4_1, Q5_0, "
        "Q5_1, Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, IQ4_NL, IQ4_XS, MXFP4_MOE"
    )
    assert caught.value.hint == "the nearest is Q4_K_M"
