"""What the runtime cannot run, it refuses in words: the file, the key or tensor, the values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_pair import (
    SafetensorsWeights,
    changed_reference,
    draft,
    draft_file,
    reference,
    target_config,
    target_file,
    target_tensors,
    variant_config,
    variant_tensors,
)

from dflash_convert.errors import CheckpointError, ConfigError, GGUFError
from dflash_convert.runtime.draft import load_draft
from dflash_convert.runtime.ops import Array
from dflash_convert.runtime.reference import load_reference
from dflash_convert.runtime.target import load_target_checkpoint, load_target_gguf

# --- the GGUF's side

NO_MASK = "tokenizer.ggml.mask_token_id is missing: llama.cpp would not draft"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dflash.block_size": None}, "the key dflash.block_size is missing"),
        ({"dflash.target_layers": None}, "the key dflash.target_layers is missing"),
        ({"dflash.block_count": None}, "the key dflash.block_count is missing"),
        ({"tokenizer.ggml.mask_token_id": None}, NO_MASK),
        ({"dflash.attention.sliding_window_pattern": None}, "sliding_window_pattern is missing"),
        ({"dflash.hidden_activation": "relu"}, "hidden_activation is 'relu', which llama.cpp does not know"),
        ({"dflash.attention.head_count": [4, 4]}, "dflash.attention.head_count has a value a layer"),
        ({"dflash.attention.value_length": 32}, r"key and value lengths differ \(64 and 32\)"),
        ({"dflash.rope.scaling.type": "longrope"}, "rope scaling of the type 'longrope'"),
        (
            {"dflash.rope.scaling.type": "yarn", "dflash.context_length": None},
            "yarn needs rope.scaling.original_context",
        ),
    ],
)
def test_a_header_that_cannot_be_run_is_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=message) as caught:
        draft(tmp_path, keys=keys)
    assert caught.value.message.startswith("draft.gguf: ")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"blk.1.ffn_up.weight": None},
            r"the tensor blk\.1\.ffn_up\.weight is missing \(n_ff × n_embd = 512×256 is exp",
        ),
        (
            {"fc.weight": np.zeros((256, 512))},
            r"fc\.weight has the shape 256×512, but n_embd × n_embd_inp = 256×768 is",
        ),
        ({"blk.0.attn_sinks.weight": np.zeros(3)}, r"attn_sinks\.weight has the shape 3, but n_head = 4 is expected"),
        (
            {"markov_w1.weight": np.zeros((1024, 32))},
            r"markov_w2\.weight is missing \(n_vocab_draft × markov_rank = 1024",
        ),
        ({"markov_w2.weight": np.zeros((8, 32))}, "not supported yet: a Markov head without markov_w1.weight"),
        ({"conf_proj.weight": np.zeros(256)}, "not supported yet: a confidence head without a Markov head"),
        ({"selector_successor.weight": np.zeros((8, 4))}, "not supported yet: a candidate selector without selector_h"),
        ({"blk.0.attn_conv_base": np.zeros(32)}, "not supported yet: convolutions without a candidate selector"),
        (
            {"blk.0.attn_q.bias": np.zeros(32)},
            r"biases in the draft, which llama\.cpp does not load \(the tensor blk\.0",
        ),
        ({"blk.0.hc_attn_fn.weight": np.zeros(32)}, "not supported yet: DeepSeek-V4 drafts"),
        ({"blk.0.ffn_up_exps.weight": np.zeros(32)}, "not supported yet: experts in the draft"),
        ({"enc.aux_norm.weight": np.zeros(32)}, "not supported yet: Laguna drafts"),
        ({"blk.0.attn_gate.weight": np.zeros(32)}, "not supported yet: gated attention"),
        ({"blk.0.something.weight": np.zeros(32)}, r"1 tensor.* that no part of this model uses, blk\.0\.something"),
        ({"d2t": np.arange(640)}, "there is a d2t, but no output.weight: llama.cpp needs both or neither"),
        ({"rope_freqs.weight": np.ones(16)}, "rope_freqs.weight has the shape 16, but n_embd_head_half = 32 is"),
    ],
)
def test_tensors_of_a_gguf_that_do_not_fit_are_refused_by_name(
    tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(GGUFError, match=message) as caught:
        draft(tmp_path, tensors=tensors)
    assert caught.value.message.startswith("draft.gguf: ")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=r"target\.gguf: the architecture is 'qwen3', a draft's is 'dflash'") as caught:
        load_draft(target_file(tmp_path))
    assert "name the draft's file" in str(caught.value.hint)


def test_a_target_that_does_not_fit_a_gguf_is_refused(tmp_path: Path) -> None:
    states = [np.zeros((1, 256), np.float32)] * 3
    drafter = draft(tmp_path)
    with pytest.raises(GGUFError, match=r"target_layers are \[1, 2, 3\], but the target has 2 layers"):
        drafter.features(states)
    with pytest.raises(GGUFError, match="fc reads 3 taps of width 256, the target's width is 128"):
        drafter.features([s[:, :128] for s in states * 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: draft_file(p), r"draft\.gguf: targets of the architecture 'dflash' cannot be run"),
        (lambda p: target_file(p, keys={"qwen3.rope.dimension_count": 32}), "32 rotary dimensions in heads of 64"),
        (lambda p: target_file(p, tensors={"token_embd.weight": None}), r"the tensor token_embd\.weight is missing"),
        (
            lambda p: target_file(p, keys={"qwen3.feed_forward_length": 64}),
            r"ffn_gate\.weight has the shape 512×256",
        ),
    ],
)
def test_target_files_that_cannot_be_run_are_refused(make: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match=message):
        load_target_gguf(make(tmp_path))


# --- the checkpoint's side


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": None}, "block_size is missing"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"hidden_act": "relu"}, "not supported yet: hidden_act 'relu'"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 2 layers"),
        ({"sliding_window": None}, "sliding_attention layers, but no sliding_window"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "not supported yet: rope of the type 'llama3'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters for each layer type"),
        ({"dflash_config": {"mask_token_id": 1023}}, "target_layer_ids is missing"),
        ({"dflash_config": {"target_layer_ids": [0, 1, 2]}}, "mask_token_id is missing"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed_reference(changes)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"layers.1.mlp.up_proj.weight": None}, r"the tensor layers\.1\.mlp\.up_proj\.weight is missing"),
        (
            {"fc.weight": np.zeros((256, 512))},
            r"fc\.weight has the shape 256×512, but hidden_size × features_size = 256×768",
        ),
        (
            {"markov_head.markov_w1.weight": np.zeros((1024, 8))},
            r"markov_w2\.weight is missing \(draft_vocab_size × markov_rank = 1024×8 is expected",
        ),
        ({"markov_head.gate_proj.weight": np.zeros(1)}, "not supported yet: a gated Markov head"),
        ({"markov_head.joint_proj.bias": np.zeros(1)}, "not supported yet: an RNN Markov head"),
        ({"markov_head.markov_w2.weight": np.zeros(1)}, "not supported yet: a Markov head without markov_w1"),
        ({"confidence_head.other": np.zeros(1)}, "not supported yet: a confidence head of this kind"),
        ({"candidate_selector.successor_codebook": np.zeros(1)}, "a candidate selector without hidden_projection"),
        ({"layers.0.attention_conv.base_kernel": np.zeros(1)}, "convolutions without a candidate selector"),
        ({"prefix_gru.weight_ih_l0": np.zeros(1)}, "not supported yet: Domino drafts"),
        ({"embed_proj.0.weight": np.zeros(1)}, "not supported yet: Domino drafts"),
        ({"layers.0.self_attn.qkv_proj.weight": np.zeros(1)}, r"not supported yet: fused projections \(Laguna\)"),
        ({"layers.0.self_attn.g_proj.weight": np.zeros(1)}, r"not supported yet: gated attention \(Laguna, KDA\)"),
        ({"aux_hidden_norms.0.weight": np.zeros(1)}, "not supported yet: Laguna drafts"),
        ({"layers.0.self_attn.q_conv1d.weight": np.zeros(1)}, r"not supported yet: linear attention \(KDA\)"),
        ({"layers.0.self_attn.A_log": np.zeros(1)}, r"not supported yet: linear attention \(KDA\)"),
        ({"log_snr_fc1.weight": np.zeros(1)}, r"not supported yet: log-SNR conditioning \(Bonsai\)"),
        ({"layers.0.mlp.experts.0.up_proj.weight": np.zeros(1)}, "not supported yet: experts in the draft"),
        ({"mtp.0.norm.weight": np.zeros(1)}, r"not supported yet: a draft inside its target \(DeepSeek-V4\)"),
        ({"layers.1.pre_feedforward_layernorm.weight": np.zeros(1)}, "Gemma's norms on some layers only"),
        ({"layers.0.layer_scalar": np.zeros(1)}, "Gemma's layer scale without its norms"),
        ({"something.weight": np.zeros(1)}, r"1 tensor.* that no part of this model uses, something\.weight"),
        (
            {"layers.1.self_attn.v_proj.weight": None},
            r"does not say attention_k_eq_v, but no layers\.1\.self_attn\.v_proj",
        ),
    ],
)
def test_tensors_of_a_checkpoint_that_do_not_fit_are_refused_by_name(tensors: dict[str, Array], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        changed_reference(tensors=tensors)


def test_sinks_that_are_announced_must_be_there() -> None:
    with pytest.raises(CheckpointError, match="says attention_sink_bias, but no"):
        load_reference(variant_config("sinks-value-scale"), SafetensorsWeights(variant_tensors("dflash")))


def test_a_target_that_does_not_fit_a_checkpoint_is_refused() -> None:
    states = [np.zeros((1, 256), np.float32)] * 3
    with pytest.raises(CheckpointError, match=r"target_layer_ids are \[0, 1, 2\], but the target has 2 layers"):
        reference().features(states)
    with pytest.raises(CheckpointError, match="fc reads 3 taps of width 256, the target's width is 128"):
        reference().features([s[:, :128] for s in states * 2])


def test_target_checkpoints_that_cannot_be_run_are_refused() -> None:
    weights = SafetensorsWeights(target_tensors())
    with pytest.raises(CheckpointError, match="targets of the architecture MambaForCausalLM cannot be run") as caught:
        load_target_checkpoint({**target_config(), "architectures": ["MambaForCausalLM"]}, weights)
    assert caught.value.hint == "those that can: Qwen3ForCausalLM"
    with pytest.raises(CheckpointError, match=r"architecture \(none named\)"):
        load_target_checkpoint({}, weights)
    with pytest.raises(ConfigError, match="a Qwen3 target with use_sliding_window"):
        load_target_checkpoint({**target_config(), "use_sliding_window": True}, weights)
    with pytest.raises(CheckpointError, match=r"the tensor lm_head\.weight is missing"):
        load_target_checkpoint({**target_config(), "tie_word_embeddings": False}, weights)
