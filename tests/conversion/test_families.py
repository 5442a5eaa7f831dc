"""Each draft family beyond plain DFlash: what its checkpoints become, where llama.cpp's converter is wrong, refusals.

The golden files (test_convert.py) show the whole of one checkpoint of each; here one thing at a time is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import BF16, Array, make_checkpoint, weights
from safetensors.numpy import load_file
from toys import CASES, GONE, TARGET, edited, engine_variant, notes, plan, read_json, refusal, toy_target

from dflash_convert.conversion.run import Conversion, plan_conversion, write_conversion
from dflash_convert.errors import CheckpointError, ConfigError, DflashError
from dflash_convert.gguf_io.reader import open_gguf

CONFIDENCE = "confidence_head.proj.weight"


def case(
    folder: Path,
    name: str,
    changes: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
    target: Path = TARGET,
    **options: Any,
) -> Conversion:
    """Plan a golden case with its config and its tensors changed."""
    config = edited(read_json(CASES / name / "draft/config.json"), changes or {})
    merged = {**load_file(CASES / name / "draft/model.safetensors"), **(tensors or {})}
    draft = make_checkpoint(folder / "draft", {n: t for n, t in merged.items() if t is not GONE}, config)
    return plan_conversion(draft, target, folder / "out.gguf", **options)


def refused(kind: type[DflashError], folder: Path, *args: Any, **options: Any) -> DflashError:
    with pytest.raises(DflashError) as e:
        case(folder, *args, **options)
    assert type(e.value) is kind
    assert "\n" not in e.value.message
    return e.value


def value(job: Conversion, key: str) -> Any:
    return next((kv.value for kv in job.plan.kv if kv.key == f"dflash.{key}"), None)


def written(job: Conversion, name: str) -> Array:
    """A tensor of the written file, bf16 and f32 as float32."""
    file = open_gguf(write_conversion(job, force=True))
    info, raw = file.tensors[name], file.raw(name)
    dtype = {G.F32: np.dtype(np.float32), G.BF16: BF16, G.I64: np.dtype(np.int64)}[info.type]
    return np.frombuffer(raw.tobytes(), dtype).reshape(info.shape)


def names(job: Conversion) -> list[str]:
    return [t.name for t in job.plan.tensors]


# ── classification ────────────────────────────────────────────────────────────────────────────────────────────────────

KINDS = {
    "dflash-flat": "DFlash", "dflash-mimo": "DFlash (MiMo)", "dflash2": "DFlash2",
    "muse-assistant": "DFlash (Muse assistant)",
    "dspark-deepspec": "DSpark", "dspark-specforge": "DSpark", "dspark-speculators": "DSpark",
    "dspark-gemma4": "DSpark (Gemma 4)",
}  # fmt: skip


@pytest.mark.parametrize("label", ["DFlashDraftModel", "Qwen3DSparkModel", "Qwen3ForCausalLM", None])
@pytest.mark.parametrize(("name", "family"), KINDS.items())
def test_tensors_tell_the_family_whatever_the_label_says(tmp_path: Path, name: str, family: str, label: Any) -> None:
    job = case(tmp_path, name, {"architectures": [label] if label else None})
    assert job.family == family


def test_a_deepspec_draft_with_markov_rank_0_is_a_dflash(tmp_path: Path) -> None:
    heads = dict.fromkeys((f"markov_head.markov_w{i}.weight" for i in (1, 2)), GONE)
    confidence = {"confidence_head.proj.weight": GONE, "confidence_head.proj.bias": GONE}
    job = case(tmp_path, "dspark-deepspec", {"markov_rank": 0}, heads | confidence)
    assert (job.family, value(job, "sample_from_anchor")) == ("DFlash", None)


@pytest.mark.parametrize(("name", "prefix"), [("dflash2", "dflash-"), ("dspark-specforge", "dspark-")])
def test_the_name_is_one_llama_cpp_discovers(name: str, prefix: str) -> None:
    job = plan_conversion(CASES / name / "draft", TARGET)
    assert job.path.name == f"{prefix}target-qwen3-BF16.gguf"


# ── DSpark: the anchor ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "changes", "anchor"),
    [
        ("dspark-specforge", {}, True),
        ("dspark-specforge", {"sample_from_anchor": False}, False),
        ("dspark-specforge", {"dflash_config.sample_from_anchor": False}, False),
        ("dspark-specforge", {"dspark_config.sample_from_anchor": False}, False),
        ("dspark-specforge", {"dspark_bonus_anchor": True}, False),
        ("dspark-specforge", {"dspark_bonus_anchor": False}, True),
        ("dspark-speculators", {}, True),
        ("dspark-speculators", {"sample_from_anchor": None}, False),
        ("dspark-speculators", {"sample_from_anchor": None, "speculators_model_type": None}, False),
        ("dspark-gemma4", {}, True),
    ],
)
def test_the_anchor_by_key_or_by_the_default_of_the_schema(
    tmp_path: Path, name: str, changes: Any, anchor: bool
) -> None:
    assert value(case(tmp_path, name, changes), "sample_from_anchor") is anchor


def test_two_spellings_of_the_anchor_that_disagree(tmp_path: Path) -> None:
    error = refused(
        ConfigError, tmp_path, "dspark-specforge", {"sample_from_anchor": True, "dspark_bonus_anchor": True}
    )
    assert error.message == (
        "config.json gives two values for sample_from_anchor: sample_from_anchor = True, dspark_bonus_anchor = True"
    )
    assert error.hint == "pass --sample-from-anchor to say which is right"


def test_the_anchor_is_told_with_its_reason_and_proposals_that_contradict_it_are_warned_of(tmp_path: Path) -> None:
    job = case(tmp_path, "dspark-speculators", {"sample_from_anchor": None})
    assert "sample_from_anchor is false (the default of its schema): the first draft is read behind the anchor" in (
        notes(job, "info")
    )
    assert notes(job, "warning") == []  # 7 proposals for a block of 8 go with it
    job = case(tmp_path, "dspark-speculators", {"sample_from_anchor": True})
    assert notes(job, "warning") == [
        "speculators_config proposes 7 tokens for a block of 8, which goes with sample_from_anchor false: if drafts "
        "are accepted one position late, pass --sample-from-anchor false"
    ]


# ── DSpark: the confidence head ───────────────────────────────────────────────────────────────────────────────────────


def test_a_confidence_head_without_markov_features_reads_zeros_there(tmp_path: Path) -> None:
    narrow = weights(1, 64, dtype=BF16)
    job = case(tmp_path, "dspark-deepspec", {"confidence_head_with_markov": False}, {CONFIDENCE: narrow})
    found = written(job, "conf_proj.weight")
    assert found.shape == (1, 80)
    assert found[:, :64].tobytes() == narrow.tobytes()
    assert not found[:, 64:].astype(np.float32).any()
    assert "conf_proj.weight has zeros where the Markov features are read: this head does not use them" in (
        notes(job, "info")
    )


@pytest.mark.parametrize(
    ("gone", "has"),
    [((), True), (("confidence_head.proj.bias",), True), (("confidence_head.proj.bias", CONFIDENCE), False)],
)
def test_the_confidence_head_is_told_by_its_tensors(tmp_path: Path, gone: tuple[str, ...], has: bool) -> None:
    job = case(tmp_path, "dspark-deepspec", tensors=dict.fromkeys(gone, GONE))
    assert value(job, "has_confidence_head") is has
    assert ("conf_proj.weight" in names(job)) is has


def test_a_confidence_head_that_is_promised_but_absent_is_warned_of(tmp_path: Path) -> None:
    gone = dict.fromkeys(("confidence_head.proj.bias", CONFIDENCE), GONE)
    job = case(tmp_path, "dspark-deepspec", {"enable_confidence_head": True}, gone)
    assert notes(job, "warning") == ["enable_confidence_head is true, but there is no confidence head"]


@pytest.mark.parametrize(
    ("changes", "width", "said"),
    [
        ({}, 72, "the confidence head reads 72 values: neither the width 64 nor that and the Markov rank 16"),
        (
            {"confidence_head_with_markov": True}, 64,
            "confidence_head_with_markov is true, but the confidence head reads 64 values (width 64, Markov rank 16)",
        ),
        (
            {"confidence_head_with_markov": False}, 80,
            "confidence_head_with_markov is false, but the confidence head reads 80 values (width 64, Markov rank 16)",
        ),
    ],
)  # fmt: skip
def test_a_confidence_head_of_another_width(tmp_path: Path, changes: Any, width: int, said: str) -> None:
    error = refused(ConfigError, tmp_path, "dspark-deepspec", changes, {CONFIDENCE: weights(1, width, dtype=BF16)})
    assert error.message == said


# ── a reduced vocabulary ──────────────────────────────────────────────────────────────────────────────────────────────

D2T = np.asarray(load_file(CASES / "dspark-speculators/draft/model.safetensors")["d2t"])
IDS = D2T + np.arange(64)


@pytest.mark.parametrize(
    ("table", "allowed"),
    [
        ({}, True),
        ({"t2d": GONE}, True),
        ({"d2t": GONE, "draft_id_to_target_id": D2T}, True),
        ({"d2t": GONE, "draft_id_to_target_id": IDS}, True),
        ({"d2t": D2T.astype(np.int32)}, True),
    ],
    ids=["d2t", "no t2d", "alias with offsets", "alias with ids", "32 bits"],
)
def test_offsets_become_the_tokens_themselves(tmp_path: Path, table: dict[str, Any], allowed: bool) -> None:
    job = case(tmp_path, "dspark-speculators", tensors=table)
    assert written(job, "d2t").tolist() == IDS.tolist()
    assert names(job)[-1] == "d2t"


def changed(row: int, offset: int) -> Array:
    table = D2T.copy()
    table[row] = offset
    return table


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"d2t": changed(5, 400)}, "d2t: row 5 means token 405, outside the vocabulary of 320"),
        ({"d2t": changed(5, -6)}, "d2t: row 5 means token -1, outside the vocabulary of 320"),
        ({"d2t": changed(5, int(IDS[9]) - 5), "t2d": GONE}, f"d2t: several rows mean token {IDS[9]}"),
        ({"t2d": np.arange(320) < 64}, "d2t and t2d disagree on which tokens the draft's vocabulary has"),
        ({"d2t": D2T.astype(np.float32)}, "d2t is stored as F32: not a table of ids"),
        ({"d2t": D2T[:60]}, "d2t has shape [60]; the config says [64] (draft_vocab_rows 64)"),
        ({"d2t": GONE, "t2d": GONE}, "draft_vocab_size is 64 of 320 tokens, but d2t is not in the checkpoint"),
        ({"lm_head.weight": GONE}, "draft_vocab_size is 64 of 320 tokens, but output.weight is not in the checkpoint"),
        (
            {"draft_id_to_target_id": D2T},
            "d2t and draft_id_to_target_id are one tensor under two names",
        ),
    ],
)
def test_a_damaged_vocabulary(tmp_path: Path, table: dict[str, Any], said: str) -> None:
    assert refused(CheckpointError, tmp_path, "dspark-speculators", tensors=table).message == said


def test_a_draft_vocabulary_larger_than_the_targets(tmp_path: Path) -> None:
    error = refused(ConfigError, tmp_path, "dspark-speculators", {"draft_vocab_size": 321})
    assert error.message == "draft_vocab_size is 321, more than the vocabulary of 320"


# ── speculators: the nested part, nulls, causality ────────────────────────────────────────────────────────────────────

L = "transformer_layer_config"
SLIDING = {f"{L}.layer_types": ["sliding_attention"] * 2, f"{L}.sliding_window": 64}


def test_nulls_in_the_nested_part_never_overwrite_what_stands_above(tmp_path: Path) -> None:
    above = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 64}
    job = case(tmp_path, "dspark-speculators", {**above, f"{L}.layer_types": None, f"{L}.sliding_window": None})
    assert value(job, "attention.sliding_window") == 64
    assert value(job, "attention.sliding_window_pattern") == [True, True]


@pytest.mark.parametrize(
    ("changes", "causal"),
    [
        ({"sliding_window_non_causal": False}, True),
        ({"sliding_window_non_causal": None}, True),
        ({"sliding_window_non_causal": True}, False),
        ({"sliding_window_non_causal": False, "is_causal": False}, False),
    ],
)
def test_sliding_layers_of_speculators_are_causal_unless_it_says_otherwise(
    tmp_path: Path, changes: Any, causal: bool
) -> None:
    job = case(tmp_path, "dspark-speculators", {**SLIDING, **changes})
    assert value(job, "attention.causal") is causal


def test_full_layers_of_speculators_are_not_causal(tmp_path: Path) -> None:
    assert value(case(tmp_path, "dspark-speculators"), "attention.causal") is None


def test_causality_that_differs_between_layers_cannot_be_expressed(tmp_path: Path) -> None:
    mixed = {**SLIDING, f"{L}.layer_types": ["sliding_attention", "full_attention"]}
    error = refused(ConfigError, tmp_path, "dspark-speculators", mixed)
    assert error.message == (
        "sliding_window_non_causal makes 1 sliding layer(s) causal and 1 full one(s) bidirectional; a GGUF has one "
        "flag for all"
    )
    assert error.hint
    assert "--causal true or --causal false" in error.hint
    job = case(tmp_path, "dspark-speculators", mixed, overrides={"is_causal": False})
    assert value(job, "attention.causal") is False


def test_a_speculators_dflash_needs_no_values_at_the_top(tmp_path: Path) -> None:
    heads = {f"markov_head.markov_w{i}.weight": GONE for i in (1, 2)}
    heads |= {"confidence_head.proj.bias": GONE, CONFIDENCE: GONE}
    changes = {"speculators_model_type": "dflash", "architectures": ["DFlashDraftModel"], "sample_from_anchor": None}
    job = case(tmp_path, "dspark-speculators", changes, heads)
    assert (job.family, value(job, "target_layers"), value(job, "block_size")) == ("DFlash", [2, 4, 6], 8)
    assert {"token_embd.weight", "output.weight", "d2t"} < set(names(job))


# ── embeddings and heads ──────────────────────────────────────────────────────────────────────────────────────────────

TABLE = weights(320, 64, dtype=BF16, seed=5)
HEAD = weights(320, 64, dtype=BF16, seed=6)


def untied_target(folder: Path, tensors: Mapping[str, Array], **changes: Any) -> Path:
    root = toy_target(folder / "Target", config={"tie_word_embeddings": False, **changes})
    make_checkpoint(root, tensors, read_json(root / "config.json"))
    return root


def test_embeddings_without_a_head_get_the_targets_head(tmp_path: Path) -> None:
    target = untied_target(tmp_path, {"model.embed_tokens.weight": TABLE, "lm_head.weight": HEAD})
    job = case(tmp_path, "dspark-specforge", tensors={"embed_tokens.weight": TABLE}, target=target)
    assert names(job)[0] == "output.weight"
    assert written(job, "output.weight").tobytes() == HEAD.tobytes()
    assert written(job, "token_embd.weight").tobytes() == TABLE.tobytes()
    assert "output.weight is the target's lm_head.weight: the draft needs a table of its own" in notes(job, "info")


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.language_model.embed_tokens.weight"])
def test_the_head_of_a_tied_target_is_its_table(tmp_path: Path, name: str) -> None:
    target = untied_target(tmp_path, {name: HEAD}, tie_word_embeddings=True)
    job = case(tmp_path, "dspark-specforge", tensors={"embed_tokens.weight": TABLE}, target=target)
    assert written(job, "output.weight").tobytes() == HEAD.tobytes()


def test_only_the_shards_that_hold_the_tables_are_needed(tmp_path: Path) -> None:
    target = toy_target(tmp_path / "Target", config={"tie_word_embeddings": False})
    tensors = {"lm_head.weight": HEAD, "model.layers.0.x": TABLE}
    make_checkpoint(target, tensors, read_json(target / "config.json"), {"a.safetensors": ["lm_head.weight"],
                    "b.safetensors": ["model.layers.0.x"]})  # fmt: skip
    (target / "b.safetensors").unlink()
    job = case(tmp_path, "dspark-specforge", tensors={"embed_tokens.weight": TABLE}, target=target)
    assert written(job, "output.weight").tobytes() == HEAD.tobytes()


def test_a_draft_that_ties_its_own_table_needs_no_other(tmp_path: Path) -> None:
    job = case(tmp_path, "dspark-gemma4")
    assert "token_embd.weight" in names(job)
    assert "output.weight" not in names(job)


@pytest.mark.parametrize(
    ("tensors", "changes", "said"),
    [
        (None, {}, "file has to carry the target's embeddings or head, and they cannot be read: no weights"),
        ({"model.norm.weight": TABLE}, {}, "they cannot be read: "),
        ({"model.embed_tokens.weight": TABLE}, {}, "the target's weights have no lm_head: looked for lm_head.weight, "),
        (
            {"lm_head.weight": weights(320, 32, dtype=BF16)}, {},
            "the target's lm_head.weight has shape [320, 32]; the draft needs [320, 64] (vocab_size × hidden_size)",
        ),
    ],
)  # fmt: skip
def test_a_target_that_cannot_lend_its_head(tmp_path: Path, tensors: Any, changes: Any, said: str) -> None:
    target = untied_target(tmp_path, tensors) if tensors else toy_target(tmp_path / "Target")
    error = refused(
        CheckpointError, tmp_path, "dspark-specforge", changes, {"embed_tokens.weight": TABLE}, target=target
    )
    assert said in error.message
    assert error.hint


# ── Gemma ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

GEMMA = {"architectures": ["Gemma4ForConditionalGeneration"]}


def test_a_draft_of_a_gemma_target_is_given_the_scale_of_its_embeddings(tmp_path: Path) -> None:
    (kv,) = [kv for kv in plan(tmp_path, target={"config": GEMMA}).plan.kv if kv.key == "dflash.embedding_scale"]
    assert (kv.value, kv.source) == (8.0, "the target scales its embeddings by sqrt(hidden_size)")


def test_a_scale_that_the_config_gives_and_a_table_of_its_own_are_left_alone(tmp_path: Path) -> None:
    own = {"embed_tokens.weight": TABLE, "lm_head.weight": HEAD}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert value(plan(tmp_path / "a", tensors=own, target={"config": GEMMA}), "embedding_scale") is None
    given = plan(tmp_path / "b", {"dflash_config.input_embedding_scale": 3.0}, target={"config": GEMMA})
    assert value(given, "embedding_scale") == 3.0


def test_the_real_gemma_drafts_softcap_is_kept_and_told(tmp_path: Path) -> None:
    job = case(tmp_path, "dspark-gemma4", {"final_logit_softcapping": 30.0})
    assert value(job, "final_logit_softcapping") == 30.0
    assert any("llama.cpp applies a softcap to DFlash2 drafts only" in text for text in notes(job, "info"))


def test_proportional_rope_is_a_table_of_factors(tmp_path: Path) -> None:
    found = written(case(tmp_path, "dspark-gemma4"), "rope_freqs.weight")
    assert found.tolist() == [1.0] * 8 + [np.float32(1e30)] * 24
    default = {"rope_parameters.full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    assert "rope_freqs.weight" not in names(case(tmp_path / "default", "dspark-gemma4", default))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"global_head_dim": None}, "config.json: head_dim is missing; looked for global_head_dim"),
        (
            {"rope_parameters.full_attention.partial_rotary_factor": None},
            "full_attention.rope_type is proportional, but partial_rotary_factor is not given beside it",
        ),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu', which llama.cpp cannot run in this architecture"),
    ],
)
def test_a_gemma_draft_that_lacks_what_it_was_trained_with(tmp_path: Path, changes: Any, said: str) -> None:
    assert said in refused(ConfigError, tmp_path, "dspark-gemma4", changes).message


# ── DFlash2 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"])
def test_a_dflash2_without_one_of_its_sizes(tmp_path: Path, key: str) -> None:
    error = refused(ConfigError, tmp_path, "dflash2", {f"dflash_config.{key}": None})
    assert error.message.startswith(f"config.json: {key} is missing; looked for dflash_config.{key}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"dflash_config.conv_group_size": 24},
            "dflash_config.conv_group_size is 24, which does not divide the width 64: llama.cpp refuses that",
        ),
        (
            {"dflash_config.selector_top_k": 8},
            "dflash_config.selector_top_k is 8: its lattice of 72 scores does not fit the width 64, "
            "which llama.cpp needs",
        ),
    ],
)
def test_a_dflash2_that_llama_cpp_would_not_load(tmp_path: Path, changes: Any, said: str) -> None:
    assert refused(ConfigError, tmp_path, "dflash2", changes).message == said


def test_a_selector_for_a_part_of_the_vocabulary_is_warned_of(tmp_path: Path) -> None:
    assert notes(case(tmp_path, "dflash2", {"dflash_config.selector_vocab_size": 300}), "warning") == [
        "selector_vocab_size is 300 of 320: llama.cpp's selector considers every token"
    ]


# ── rope ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}


def test_a_yarn_that_llama_cpp_cannot_rope_is_written_out(tmp_path: Path) -> None:
    job = plan(tmp_path, {"rope_scaling": {**YARN, "truncate": False}, "rope_theta": 10000.0})
    assert names(job)[0] == "rope_freqs.weight"
    factors = written(job, "rope_freqs.weight")
    # dimension i turns freq·1024/2π times; ends of the ramp: 16·ln(1024/2πβ)/ln(10000) for β = 32 and 1
    low, high = 16 * np.log(1024 / (64 * np.pi)) / np.log(1e4), 16 * np.log(1024 / (2 * np.pi)) / np.log(1e4)
    ramp = np.clip((np.arange(16) - low) / (high - low), 0, 1)
    np.testing.assert_allclose(1 / factors, (1 - ramp) + ramp / 4, rtol=1e-6)
    assert factors[0] == 1.0
    assert factors[-1] == 4.0


def test_a_rope_copied_from_the_target_is_warned_of(tmp_path: Path) -> None:
    job = plan(tmp_path, {"rope_scaling": {"mrope_section": [4, 6, 6], "partial_rotary_factor": 0.25}})
    assert notes(job, "warning") == [
        "rope_scaling.partial_rotary_factor = 0.25 stands beside an mrope_section, as if copied from the target: "
        "measure the acceptance with and without it"
    ]


def test_gelu_is_written_where_a_draft_has_it(tmp_path: Path) -> None:
    assert value(plan(tmp_path, {"hidden_act": "gelu_pytorch_tanh"}), "hidden_activation") == "gelu_pytorch_tanh"


# ── what is missing ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_taps_that_no_config_gives_are_suggested_by_the_trainers_rule_but_not_taken(tmp_path: Path) -> None:
    fc = {"fc.weight": weights(64, 128, dtype=BF16)}
    error = refusal(ConfigError, tmp_path, {"dflash_config.target_layer_ids": None}, fc)
    assert error.message.endswith("if it was trained with the default for a target of 8 layers, they are 1,5")


def test_nvidias_block_size_is_suggested_but_not_taken(tmp_path: Path) -> None:
    looks = {"block_size": None, "pard_token": 319, "eagle_aux_hidden_state_layer_ids": [2, 4, 6]}
    error = refusal(ConfigError, tmp_path, looks)
    assert error.message.endswith("whose config looks like this one, was trained with blocks of 8")
    assert error.hint == "it was fixed in training and cannot be guessed: pass --block-size"


@pytest.mark.parametrize("variant", ["dflash2", "dspark-bonus-anchor", "dspark-from-anchor", "dspark-draft-vocab"])
def test_the_engines_variants_convert(tmp_path: Path, variant: str) -> None:
    draft = engine_variant(tmp_path / "draft", variant)
    assert write_conversion(plan_conversion(draft, CASES.parent / "tiny-pair/target", tmp_path / "o.gguf")).is_file()
