"""A checkpoint's tensors: each has a row, is left out with a reason, or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from make import BF16, make_checkpoint, weights
from safetensors.numpy import load_file
from toys import FLAT, GONE, TARGET, edited, flat_tensors, notes, plan, read_json, refusal

from dflash_convert.conversion.match import CANNOT
from dflash_convert.conversion.rows.families import refused
from dflash_convert.conversion.rows.families.refused import BF16 as BF16_ONLY
from dflash_convert.conversion.rows.families.refused import (
    DOMINO_NEEDS,
    EMBEDDED_NEEDS,
    KDA_NEEDS,
    LAGUNA_NEEDS,
    LOG_SNR_NEEDS,
    MARKOV_NEEDS,
    MASK_NEEDS,
    MLA_NEEDS,
    MOE_NEEDS,
    PACKED,
    SCALE,
)
from dflash_convert.conversion.run import plan_conversion
from dflash_convert.errors import CheckpointError

TWO = weights(64, 64, dtype=BF16)
TABLE = weights(320, 64, dtype=BF16)
REFUSED = {
    "markov_head.gate_proj.weight": ("a gated or recurrent Markov head", MARKOV_NEEDS),
    "markov_head.joint_proj.bias": ("a gated or recurrent Markov head", MARKOV_NEEDS),
    "prefix_gru.weight_ih_l0": ("a Domino draft (a GRU over the draft's prefix)", DOMINO_NEEDS),
    "embed_proj.0.weight": ("a Domino draft (a GRU over the draft's prefix)", DOMINO_NEEDS),
    "log_snr_fc1.weight": ("a log-SNR conditioned draft (Bonsai)", LOG_SNR_NEEDS),
    "aux_hidden_norms.0.weight": ("a Laguna draft (a gate on each head, a norm for each tap)", LAGUNA_NEEDS),
    "layers.0.self_attn.g_proj.weight": ("the gate of gated attention", LAGUNA_NEEDS),
    "layers.0.self_attn.qkv_proj.weight": ("a fused projection of queries, keys and values", LAGUNA_NEEDS),
    "layers.0.self_attn.A_log": ("a KDA hybrid (linear attention)", KDA_NEEDS),
    "layers.0.self_attn.q_conv1d.weight": ("a KDA hybrid (linear attention)", KDA_NEEDS),
    "layers.0.self_attn.dt_bias": ("a KDA hybrid (linear attention)", KDA_NEEDS),
    "layers.0.self_attn.kv_a_proj_with_mqa.weight": ("an MLA draft (latent attention)", MLA_NEEDS),
    "layers.0.self_attn.q_a_proj.weight": ("an MLA draft (latent attention)", MLA_NEEDS),
    "layers.0.mlp.experts.3.up_proj.weight": ("an expert of a mixture", MOE_NEEDS),
    "layers.0.mlp.shared_experts.up_proj.weight": ("an expert of a mixture", MOE_NEEDS),
    "layers.0.mlp.gate.weight": ("the router of a mixture of experts", MOE_NEEDS),
    "mtp.fc.weight": ("a multi-token prediction layer", EMBEDDED_NEEDS),
    "confidence_head.proj.bias": ("a confidence head in a draft without a Markov head", CANNOT),
    "confidence_proj.weight": ("a confidence head in a draft without a Markov head", CANNOT),
    "mask_embedding": ("the mask token's embedding inside the weights", MASK_NEEDS),
    "layers.0.mlp.up_proj.weight_scale_inv": (SCALE, BF16_ONLY),
    "fc.input_scale": (SCALE, BF16_ONLY),
    "layers.0.mlp.up_proj.SCB": (SCALE, BF16_ONLY),
    "layers.0.mlp.up_proj.qzeros": (SCALE, BF16_ONLY),
    "layers.0.mlp.up_proj.g_idx": (SCALE, BF16_ONLY),
    "layers.0.mlp.up_proj.scales": (SCALE, BF16_ONLY),
    "layers.0.mlp.up_proj.qweight": (PACKED, BF16_ONLY),
    "layers.0.self_attn.o_proj.bias": ("a bias that is not zero", "llama.cpp's dflash has no place for biases"),
}


@pytest.mark.parametrize(("name", "said"), REFUSED.items())
def test_a_tensor_that_cannot_be_converted_is_refused_by_name(tmp_path: Path, name: str, said: tuple[str, str]) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={name: TWO})
    assert (error.message, error.hint) == (f"{name}: this is {said[0]}", said[1])


def test_each_row_of_the_refused_has_a_case_here() -> None:
    rows = (*refused.REFUSED_TENSORS, *refused.UNPLACED)
    unseen = [r.pattern for r in rows if not any(fnmatchcase(name, r.pattern) for name in REFUSED)]
    assert unseen == ["candidate_selector.*", "*_packed"]  # see below, and NVFP4


def test_parts_of_two_families_in_one_checkpoint(tmp_path: Path) -> None:
    markov = {f"markov_head.markov_w{i}.weight": weights(320, 16, dtype=BF16) for i in (1, 2)}
    error = refusal(CheckpointError, tmp_path, tensors={**markov, "candidate_selector.hidden_projection.weight": TWO})
    assert error.message == "candidate_selector.hidden_projection.weight: this is a part of a DFlash2 selector"


def test_a_label_of_a_target_does_not_rescue_a_draft_that_cannot_run(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"architectures": ["Qwen3ForCausalLM"]}, {"prefix_gru.x": TWO})
    assert error.message == "prefix_gru.x: this is a Domino draft (a GRU over the draft's prefix)"


def test_what_cannot_run_is_named_before_its_config_is_found_wanting(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"dflash_config": GONE}, {"markov_head.gate_proj.weight": TWO})
    assert error.message == "markov_head.gate_proj.weight: this is a gated or recurrent Markov head"


def test_queries_with_a_gate_beside_them_are_named(tmp_path: Path) -> None:
    name = "layers.0.self_attn.q_proj.weight"
    error = refusal(CheckpointError, tmp_path, tensors={name: weights(256, 64, dtype=BF16)})
    assert error.message == f"{name} has twice the rows: this is a Qwen3.5 DSpark draft with gated queries"
    assert error.hint == refused.GATED_Q_NEEDS


def test_biases_of_zeros_are_left_out_and_told(tmp_path: Path) -> None:
    sizes = {"q": 128, "k": 64, "v": 64, "o": 64}
    zeros = {f"layers.{i}.self_attn.{p}_proj.bias": np.zeros(n, BF16) for p, n in sizes.items() for i in (0, 1)}
    job = plan(tmp_path, {"attention_bias": True}, zeros)
    assert len(job.plan.tensors) == 25
    assert "8 tensor(s) left out: a bias of zeros, which adds nothing" in notes(job, "info")


KEYS = {
    "dflash_config.causal_head": (True, refused.JETSPEC),
    "dflash_config.projector_type": ("domino", refused.DOMINO),
    "projector_type": ("domino", refused.DOMINO),
    "dflash_config.attention_modes": (["kda"], refused.KDA),
    "dflash_config.attention_mode": ("mla", refused.KDA),
    "attention_mode": ("kda", refused.KDA),
    "linear_attn_config": ({"heads": 4}, refused.KDA),
    "kv_lora_rank": (512, refused.MLA),
    "n_routed_experts": (8, refused.MOE),
    "num_experts": (8, refused.MOE),
    "enable_moe_block": (True, refused.MOE),
    "moe_preset": ("small", refused.MOE),
    "log_snr_conditioning": (True, refused.LOG_SNR),
    "gating": (True, refused.LAGUNA),
    "enable_qwen35_gated_q_proj": (True, refused.GATED_Q),
    "markov_head_type": ("gated", refused.MARKOV),
    "dflash_config.markov_head_type": ("rnn", refused.MARKOV),
    "dspark_config.markov_head_type": ("rnn", refused.MARKOV),
    "transformer_layer_config.markov_head_type": ("gated", refused.MARKOV),
    "dspark_fixup_head_type": ("gru", refused.MARKOV),
    "dspark_target_layer_ids": ([40, 41, 42], refused.EMBEDDED),
}


@pytest.mark.parametrize(("path", "case"), KEYS.items())
def test_a_config_that_cannot_be_converted_is_refused_by_name(tmp_path: Path, path: str, case: tuple[Any, str]) -> None:
    error = refusal(CheckpointError, tmp_path, {path: case[0]})
    assert error.message == f"config.json: {path}: this is {case[1]}"
    assert error.hint


def test_each_key_of_the_refused_has_a_case_here() -> None:
    assert [row.path for row in refused.REFUSED_KEYS] == list(KEYS)


def test_a_draft_inside_its_target_is_named_though_it_has_no_fc(tmp_path: Path) -> None:
    root = make_checkpoint(tmp_path / "t", {"mtp.0.x": TWO}, {"dspark_target_layer_ids": [40, 41, 42]})
    with pytest.raises(CheckpointError, match="dspark_target_layer_ids: this is a DSpark draft inside its target's"):
        plan_conversion(root)


def test_what_marks_another_family_only_by_being_set_may_be_there_and_off(tmp_path: Path) -> None:
    plan(
        tmp_path,
        {
            "dflash_config.causal_head": False,
            "n_routed_experts": None,
            "dflash_config.projector_type": "dflash",
            "dflash_config.attention_mode": "gqa",
            "markov_head_type": "vanilla",
        },
    )


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={"layers.0.surprise.weight": TWO})
    assert (
        error.message == "layers.0.surprise.weight has no place in the GGUF, and leaving it out would change the model"
    )


def test_rope_caches_are_left_out(tmp_path: Path) -> None:
    caches = {"layers.0.self_attn.rotary_emb.inv_freq": np.ones(16, np.float32), "rotary_emb.inv_freq": TWO}
    assert len(plan(tmp_path, tensors=caches).plan.tensors) == 25


@pytest.mark.parametrize("missing", [["fc.weight"], ["hidden_norm.weight"]])
def test_neither_draft_nor_target(tmp_path: Path, missing: list[str]) -> None:
    error = refusal(CheckpointError, tmp_path, tensors=dict.fromkeys(missing, GONE))
    assert "neither a DFlash draft (no fc.weight and hidden_norm.weight) nor a known target" in error.message
    assert "(architecture: DFlashDraftModel)" in error.message
    assert error.hint == "targets that can be converted: Qwen3ForCausalLM"


def test_missing_tensors_are_listed(tmp_path: Path) -> None:
    names = ["layers.1.self_attn.v_proj.weight", "norm.weight"]
    error = refusal(CheckpointError, tmp_path, tensors=dict.fromkeys(names, GONE))
    assert error.message == f"2 tensor(s) are missing from Toy-DFlash: {', '.join(names)}"


def test_many_missing_tensors_are_counted_and_the_first_eight_named(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"num_hidden_layers": 3, "layer_types": None})
    assert error.message.startswith("11 tensor(s) are missing from Toy-DFlash: layers.2.")
    assert error.message.endswith(", …")
    assert error.message.count("layers.2.") == 8


def test_a_layer_too_many_is_named(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"num_hidden_layers": 1, "layer_types": None})
    assert error.message == "layers.1.input_layernorm.weight: the config has 1 layers (0 to 0)"


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("layers.0.self_attn.k_proj.weight", (32, 64), "the config says [64, 64] (kv_size 64 × hidden_size 64)"),
        ("layers.1.self_attn.q_norm.weight", (64,), "the config says [32] (head_dim 32)"),
        ("layers.1.mlp.down_proj.weight", (96, 64), "the config says [64, 96] (hidden_size 64 × intermediate_size 96)"),
        ("norm.weight", (1, 64), "the config says [64] (hidden_size 64)"),
    ],
)
def test_a_wrong_shape_is_told_in_the_configs_words(
    tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={name: weights(*shape, dtype=BF16)})
    assert error.message == f"{name} has shape {list(shape)}; {words}"


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (np.int64, "I64: a quantized or integer tensor"),
        (np.uint8, "U8: a quantized or integer tensor"),
        (ml_dtypes.float8_e4m3fn, "F8_E4M3: a quantized or integer tensor"),
        (np.float64, "F64: more digits than a GGUF holds"),
    ],
)
def test_a_weight_of_no_convertible_type_is_named(tmp_path: Path, dtype: Any, said: str) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={"layers.0.mlp.up_proj.weight": np.zeros((96, 64), dtype)})
    assert error.message == f"layers.0.mlp.up_proj.weight is stored as {said}"


@pytest.mark.parametrize("prefix", ["model.", "backbone.", "draft_model."])
def test_prefixed_names_give_the_same_plan(tmp_path: Path, prefix: str) -> None:
    prefixed = {prefix + name: tensor for name, tensor in flat_tensors().items()}
    draft = make_checkpoint(tmp_path / "draft", prefixed, read_json(FLAT / "config.json"))
    plain, found = plan_conversion(FLAT, TARGET).plan, plan_conversion(draft, TARGET).plan
    assert [(t.name, t.shape, t.type) for t in found.tensors] == [(t.name, t.shape, t.type) for t in plain.tensors]
    assert found.header == plain.header


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={"model.fc.weight": flat_tensors()["fc.weight"]})
    assert error.message == "fc.weight and model.fc.weight are one tensor under two names"


def test_a_drafts_own_tables_are_kept_together_or_refused(tmp_path: Path) -> None:
    table = weights(320, 64, dtype=BF16)
    names = [
        t.name for t in plan(tmp_path, tensors={"embed_tokens.weight": table, "lm_head.weight": table}).plan.tensors
    ]
    assert {"token_embd.weight", "output.weight"} < set(names)


@pytest.mark.parametrize("key", ["dflash_config.attention_sink_bias", "add_swa_attention_sink_bias"])
def test_sinks_that_are_promised_but_absent(tmp_path: Path, key: str) -> None:
    assert refusal(CheckpointError, tmp_path, {key: True}).message == (
        f"{key} is true, but no layer has an attention_sink_bias"
    )


def test_sinks_in_one_layer_only_are_missing_in_the_other(tmp_path: Path) -> None:
    error = refusal(
        CheckpointError, tmp_path, tensors={"layers.0.self_attn.attention_sink_bias": weights(4, dtype=BF16)}
    )
    assert error.message.endswith("layers.1.self_attn.attention_sink_bias")


# ── a target by itself ────────────────────────────────────────────────────────────────────────────────────────────────


def target_checkpoint(root: Path, changes: Mapping[str, Any], tensors: Mapping[str, Any] | None = None) -> Path:
    config = edited(read_json(TARGET / "config.json"), changes)
    all_tensors = {**load_file(TARGET / "model.safetensors"), **(tensors or {})}
    make_checkpoint(root, {n: t for n, t in all_tensors.items() if t is not GONE}, config)
    (root / "tokenizer.json").write_bytes((TARGET / "tokenizer.json").read_bytes())
    return root


def test_an_untied_target_without_its_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lm_head.weight is missing, and config.json does not say tie_word"):
        plan_conversion(target_checkpoint(tmp_path / "t", {"tie_word_embeddings": False}))


def test_an_untied_target_keeps_its_head(tmp_path: Path) -> None:
    head = {"lm_head.weight": weights(320, 64, dtype=BF16)}
    job = plan_conversion(target_checkpoint(tmp_path / "t", {"tie_word_embeddings": False}, head))
    assert "output.weight" in [t.name for t in job.plan.tensors]
    assert job.path.name == "t-BF16.gguf"


def test_a_bias_in_a_target_is_refused(tmp_path: Path) -> None:
    bias = {"model.layers.0.self_attn.q_proj.bias": weights(128, dtype=BF16)}
    with pytest.raises(CheckpointError, match=r"q_proj\.bias: this is a bias that is not zero"):
        plan_conversion(target_checkpoint(tmp_path / "t", {}, bias))


def test_a_target_of_another_architecture_is_not_taken_for_a_draft(tmp_path: Path) -> None:
    experts = {"model.layers.0.mlp.experts.0.up_proj.weight": weights(8, 64, dtype=BF16)}
    changes = {"architectures": ["Qwen3MoeForCausalLM"], "n_routed_experts": 8}
    with pytest.raises(CheckpointError, match=r"nor a known target \(architecture: Qwen3MoeForCausalLM\)"):
        plan_conversion(target_checkpoint(tmp_path / "t", changes, experts))


def test_a_layers_number_may_be_of_any_length(tmp_path: Path) -> None:
    name = f"layers.{'9' * 5000}.mlp.up_proj.weight"
    error = refusal(CheckpointError, tmp_path, tensors={name: flat_tensors()["norm.weight"]})
    assert error.message.startswith("layers.9999")
    assert error.message.endswith("…")
    assert error.hint == "the checkpoint is of a kind this version does not know; nothing was written"
