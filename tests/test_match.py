"""A checkpoint's tensors: each has a row, is left out with a reason, or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from make import BF16, make_checkpoint, weights
from safetensors.numpy import load_file
from toys import FLAT, GONE, TARGET, edited, flat_tensors, plan, read_json, refusal, toy_draft

from dflash_convert.conversion import plan_conversion
from dflash_convert.errors import CheckpointError

TWO = weights(64, 64, dtype=BF16)
FOREIGN = {
    "candidate_selector.hidden_projection.weight": "a DFlash2 draft (candidate selector)",
    "layers.0.attention_conv.base_kernel": "a DFlash2 draft (dynamic convolutions)",
    "layers.1.mlp_conv.kernel_projection.weight": "a DFlash2 draft (dynamic convolutions)",
    "markov_head.markov_w1.weight": "a DSpark draft (Markov head)",
    "confidence_head.proj.bias": "a DSpark draft (confidence head)",
    "d2t": "a draft with a reduced vocabulary",
    "t2d": "a draft with a reduced vocabulary",
    "draft_id_to_target_id": "a draft with a reduced vocabulary",
    "prefix_gru.weight_ih_l0": "a Domino draft, which llama.cpp cannot run",
    "log_snr_fc1.weight": "a log-SNR conditioned draft, which llama.cpp cannot run",
    "aux_hidden_norms.0.weight": "a Laguna draft (a norm for each tap), which llama.cpp cannot run",
    "encoder.fc.weight": "a Muse-Glimmer assistant",
    "layers.0.self_attn.g_proj.weight": "the gate of gated attention, which DFlash in llama.cpp does not have",
    "layers.0.mlp.experts.3.up_proj.weight": "an expert of a mixture, which this architecture does not have",
    "mtp.fc.weight": "a multi-token prediction layer, which this version does not convert",
    "layers.0.mlp.up_proj.weight_scale_inv": "the scale of quantized weights: convert the bf16 original",
    "fc.input_scale": "the scale of quantized weights: convert the bf16 original",
    "layers.0.mlp.up_proj.weight_packed": "a quantized weight: convert the bf16 original",
    "layers.0.mlp.up_proj.SCB": "the scale of quantized weights: convert the bf16 original",
    "layers.0.mlp.up_proj.qzeros": "the zeros of quantized weights: convert the bf16 original",
    "layers.0.mlp.up_proj.g_idx": "the order of quantized weights: convert the bf16 original",
    "layers.0.self_attn.o_proj.bias": "a bias, for which this architecture has no place in a GGUF",
}


@pytest.mark.parametrize(("name", "what"), FOREIGN.items())
def test_a_tensor_of_another_kind_is_refused_by_name(tmp_path: Path, name: str, what: str) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={name: TWO})
    assert error.message == f"{name}: this is {what}"
    assert error.hint == "this version converts plain DFlash drafts"


def test_a_label_of_a_target_does_not_rescue_a_draft_of_another_family(tmp_path: Path) -> None:
    error = refusal(
        CheckpointError, tmp_path, {"architectures": ["Qwen3ForCausalLM"]}, {"markov_head.markov_w1.weight": TWO}
    )
    assert error.message == "markov_head.markov_w1.weight: this is a DSpark draft (Markov head)"


def test_another_family_is_named_before_its_config_is_found_wanting(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, {"dflash_config": GONE}, {"markov_head.markov_w1.weight": TWO})
    assert error.message == "markov_head.markov_w1.weight: this is a DSpark draft (Markov head)"


def test_a_bias_of_zeros_is_refused_too(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={"layers.0.self_attn.q_proj.bias": np.zeros(128, BF16)})
    assert error.message.startswith("layers.0.self_attn.q_proj.bias: this is a bias")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"transformer_layer_config": {"hidden_size": 64}},
            "transformer_layer_config: this is a speculators checkpoint",
        ),
        ({"speculators_model_type": "dflash"}, "speculators_model_type: this is a speculators checkpoint"),
        ({"dflash_config.causal_head": True}, "dflash_config.causal_head: this is a JetSpec draft"),
        ({"dflash_config.projector_type": "domino"}, "dflash_config.projector_type: this is a Domino draft"),
        ({"dflash_config.attention_modes": ["kda"]}, "dflash_config.attention_modes: this is a KDA hybrid"),
        ({"linear_attn_config": {"heads": 4}}, "linear_attn_config: this is a KDA hybrid"),
        ({"n_routed_experts": 8}, "n_routed_experts: this is a mixture-of-experts draft"),
        ({"moe_preset": "small"}, "moe_preset: this is a mixture-of-experts draft"),
    ],
)
def test_a_config_of_another_family_is_refused_by_name(tmp_path: Path, changes: Any, said: str) -> None:
    assert f"config.json: {said}" in refusal(CheckpointError, tmp_path, changes).message


def test_what_marks_another_family_only_by_being_set_may_be_there_and_off(tmp_path: Path) -> None:
    plan(
        tmp_path,
        {"dflash_config.causal_head": False, "n_routed_experts": None, "dflash_config.projector_type": "dflash"},
    )


def test_a_mask_embedding_beside_the_weights_is_not_lost_in_silence(tmp_path: Path) -> None:
    draft = toy_draft(tmp_path / "d")
    (draft / "mask_embedding.pt").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=r"mask_embedding\.pt: this is a trained embedding of the mask token"):
        plan_conversion(draft, TARGET)


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


def test_embeddings_without_a_head_are_refused(tmp_path: Path) -> None:
    error = refusal(CheckpointError, tmp_path, tensors={"model.embed_tokens.weight": weights(320, 64, dtype=BF16)})
    assert "has embed_tokens but no lm_head" in error.message


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
    with pytest.raises(
        CheckpointError, match=r"q_proj\.bias: this is a bias, for which this architecture has no place"
    ):
        plan_conversion(target_checkpoint(tmp_path / "t", {}, bias))


def test_a_target_of_another_architecture_is_not_taken_for_a_draft(tmp_path: Path) -> None:
    experts = {"model.layers.0.mlp.experts.0.up_proj.weight": weights(8, 64, dtype=BF16)}
    changes = {"architectures": ["Qwen3MoeForCausalLM"], "n_routed_experts": 8}
    with pytest.raises(CheckpointError, match=r"nor a known target \(architecture: Qwen3MoeForCausalLM\)"):
        plan_conversion(target_checkpoint(tmp_path / "t", changes, experts))
