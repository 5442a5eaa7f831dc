"""Levels 3 and 4: the file and its checkpoint run alike; a file with the right weights and a wrong key does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGUFValueType as V
from verify_cases import (
    DRAFT,
    ENGINE,
    GOLDEN,
    GONE,
    TARGET,
    failures,
    flag,
    golden_file,
    messages,
    planted,
    source_of,
    target_of,
    values_of,
    variant_source,
)

from dflash_convert.conversion.run import convert
from dflash_convert.errors import CheckpointError, ConfigError
from dflash_convert.gguf_io.reader import KV, open_gguf
from dflash_convert.quantization.file_types import FILE_TYPES
from dflash_convert.quantization.run import quantize_file
from dflash_convert.quants import TYPES as BLOCK_TYPES
from dflash_convert.runtime.accept import Run
from dflash_convert.verification import verify
from dflash_convert.verification.acceptance import Trial, _judge, mean_length
from dflash_convert.verification.forward import TOLERANCE, _cosines
from dflash_convert.verification.report import (
    ACCEPTANCE,
    FAIL,
    FORWARD,
    PASS,
    SKIP,
    STRUCTURE,
    TENSORS,
    LevelResult,
    Report,
)

GOOD, FAULTY = 1e-5, 1e-3  # worst differences: of every good file at most, of every planted fault at least
PROMPTS = ("def add(a, b):\n    return", "The keeper wrote down the weather, and he noted that")
BLOCKS = [name for name, kind in BLOCK_TYPES.items() if kind.encode]
VARIANTS = sorted(p.name for p in ENGINE.iterdir() if p.is_dir())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A type → the trained draft in that type, each made once."""
    folder = tmp_path_factory.mktemp("types")
    bf16 = convert(DRAFT, TARGET, folder / "bf16.gguf", outtype="bf16")

    def get(name: str) -> Path:
        path = folder / f"{name}.gguf"
        return path if path.exists() else in_type(bf16, path, name)

    return get


def in_type(bf16: Path, path: Path, name: str) -> Path:
    """The file with every matrix whose rows divide in a block type."""
    block = BLOCK_TYPES[name].block
    matrices = {t.name: name for t in open_gguf(bf16).tensors.values() if len(t.shape) > 1 and t.shape[-1] % block == 0}
    return planted(bf16, path, types=matrices)


def forward(path: Path, source: Path = DRAFT, target: Path | None = TARGET) -> LevelResult:
    return verify(path, source=source, target=target, only={FORWARD}).level(FORWARD)


def accepted(path: Path, source: Path | None = DRAFT, target: Path = TARGET, **changes: Any) -> Report:
    options: dict[str, Any] = {"prompts": PROMPTS, "n_tokens": 16, **changes}
    return verify(path, source=source, target=target, only={ACCEPTANCE}, **options)


# -- forward: good files -------------------------------------------------------------------------------------------


def test_a_file_in_the_checkpoints_precision_is_nearly_exact(made: Callable[[str], Path]) -> None:
    level = forward(made("BF16"))
    assert level.status == PASS
    assert level.metrics["cosine"] == pytest.approx(1, abs=1e-10)
    assert level.metrics["worst_difference"] < 1e-4
    assert level.metrics["top1_agreement"] == 1


TYPES = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "Q4_0", "Q5_1")


@pytest.mark.parametrize("name", TYPES)
def test_quantized_files_pass_on_real_and_on_seeded_features(made: Callable[[str], Path], name: str) -> None:
    real, seeded = forward(made(name)), forward(made(name), target=None)
    assert (real.status, seeded.status) == (PASS, PASS)
    assert real.metrics["cosine_low"] < real.metrics["cosine"] < real.metrics["cosine_high"] < 1
    assert real.metrics["top1_agreement_low"] <= real.metrics["top1_agreement"] <= real.metrics["top1_agreement_high"]
    assert "top1_agreement" not in seeded.metrics


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_agrees_with_its_own_checkpoint(variant: str, tmp_path: Path) -> None:
    source = variant_source(variant, tmp_path / "draft")
    level = forward(convert(source, TARGET, tmp_path / "x.gguf"), source, None)
    assert level.status == PASS
    assert level.metrics["cosine"] == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_drafts_agree_with_their_checkpoints_in_every_type(case: str, tmp_path: Path) -> None:
    bf16 = golden_file(case, tmp_path)
    for name in (n for n in FILE_TYPES if n != "Q2_K_S"):  # which needs an importance matrix
        path = tmp_path / f"{name}.gguf"
        quantize_file(bf16, path, name)
        report = verify(path, source=source_of(case), target=target_of(case), only={STRUCTURE, TENSORS, FORWARD})
        assert report.ok, messages(report)
        assert report.metrics["forward.worst_difference"] < GOOD


def test_good_files_and_faults_lie_far_apart() -> None:
    """GOOD bounds the rounding of every good file here, FAULTY every planted key, in every type."""
    assert TOLERANCE >= 10 * GOOD
    assert FAULTY >= 10 * TOLERANCE


def test_seeded_features_repeat_and_depend_on_the_seed(made: Callable[[str], Path]) -> None:
    cosines = [
        verify(made("Q4_K"), source=DRAFT, only={FORWARD}, seed=seed).metrics["forward.cosine"] for seed in (0, 0, 1)
    ]
    assert cosines[0] == cosines[1] != cosines[2]


# -- forward: faults -----------------------------------------------------------------------------------------------

SILENT: Mapping[str, Mapping[str, Any]] = {
    "taps one too low": {"dflash.target_layers": [0, 1, 2]},
    "taps one too high": {"dflash.target_layers": [2, 3, 4]},
    "taps in another order": {"dflash.target_layers": [2, 1, 3]},
    "window lost": {"dflash.attention.sliding_window": GONE, "dflash.attention.sliding_window_pattern": GONE},
    "pattern flipped": {"dflash.attention.sliding_window_pattern": [False, True]},
    "rope base": {"dflash.rope.freq_base": 1e6},
    "mask token": {"tokenizer.ggml.mask_token_id": 1000},
    "epsilon": {"dflash.attention.layer_norm_rms_epsilon": 0.1},
    "causal": {"dflash.attention.causal": flag("dflash.attention.causal", True)},
    "value scale": {"dflash.attention.value_scale": KV("dflash.attention.value_scale", V.FLOAT32, 0.9)},
    "partial rotary": {"dflash.rope.dimension_count": KV("dflash.rope.dimension_count", V.UINT32, 32)},
}


@pytest.mark.parametrize("fault", SILENT)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_wrong_key_shows_in_what_the_draft_says(
    made: Callable[[str], Path], tmp_path: Path, fault: str, name: str
) -> None:
    level = forward(planted(made(name), tmp_path / "x.gguf", SILENT[fault]))
    assert level.status == FAIL
    assert level.metrics["worst_difference"] > FAULTY
    message = level.failed[0].message
    assert message.startswith("the worst difference of the hidden states, in their rms, is ")
    assert "expected at most 0.0001 (both on the file's own weights, on real features)" in message
    assert message.endswith("the file's graph is not the checkpoint's: a key is wrong or missing")


FIRST, LAST = "the first position of a block that proposes", "the token proposed"
LATER: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "drafts from its anchor": ("dspark-from-anchor", {"dflash.sample_from_anchor": False}, FIRST),
    "drafts from the bonus token": ("dspark-bonus-anchor", {"dflash.sample_from_anchor": True}, FIRST),
    "selector": ("dflash2", {"dflash.selector_top_k": 2}, LAST),
}


@pytest.mark.parametrize("fault", LATER)
@pytest.mark.parametrize("name", BLOCKS)
def test_what_follows_the_hidden_states_shows_too(tmp_path: Path, fault: str, name: str) -> None:
    variant, keys, subject = LATER[fault]
    source = variant_source(variant, tmp_path / "draft")
    good = in_type(convert(source, TARGET, tmp_path / "bf16.gguf", outtype="bf16"), tmp_path / "good.gguf", name)
    assert forward(good, source).status == PASS
    level = forward(planted(good, tmp_path / "x.gguf", keys), source)
    assert level.status == FAIL
    assert [c.subject for c in level.failed] == [subject]
    assert subject == FIRST or "head, selector, Markov chain or anchor" in level.failed[0].message


def test_permuted_rows_are_for_the_tensors_level(made: Callable[[str], Path], tmp_path: Path) -> None:
    """Both sides run on the file's numbers: a wrong number is no wrong graph."""
    name = "blk.0.attn_q.weight"
    turned = values_of(made("Q8_0"), name).reshape(4, 32, 2, 256).swapaxes(1, 2).reshape(256, 256)
    path = planted(made("Q8_0"), tmp_path / "x.gguf", tensors={name: turned})
    report = verify(path, source=DRAFT, target=TARGET, only={TENSORS, FORWARD})
    assert (report.level(TENSORS).status, report.level(FORWARD).status) == (FAIL, PASS)
    assert report.metrics["forward.cosine"] < forward(made("Q8_0")).metrics["cosine"]


def test_a_least_share_of_first_choices_is_held_against_its_interval(made: Callable[[str], Path]) -> None:
    options: dict[str, Any] = {"source": DRAFT, "target": TARGET, "only": {FORWARD}}
    level = verify(made("Q2_K"), **options).level(FORWARD)
    low, high = level.metrics["top1_agreement_low"], level.metrics["top1_agreement_high"]
    assert low < high
    assert verify(made("Q2_K"), min_top1=low, **options).ok
    failed = verify(made("Q2_K"), min_top1=min(1.0, high) + 0.01, **options).level(FORWARD)
    assert [c.subject for c in failed.failed] == ["the share of equal first choices"]
    unsure = verify(made("Q2_K"), min_top1=(low + high) / 2, **options)
    assert unsure.ok
    assert "too few samples to tell" in next(c.message for c in unsure.level(FORWARD).checks if c.status == SKIP)


def test_nan_in_the_file_is_no_agreement(made: Callable[[str], Path], tmp_path: Path) -> None:
    norm = values_of(made("BF16"), "output_norm.weight")
    norm[0, 0] = np.nan
    level = forward(planted(made("BF16"), tmp_path / "x.gguf", tensors={"output_norm.weight": norm}), target=None)
    assert level.status == FAIL
    assert level.metrics["cosine"] == 0


def test_a_row_of_zeros_has_no_cosine() -> None:
    assert _cosines(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 0.0], [2.0, 2.0]])).tolist() == [
        0.0,
        pytest.approx(1.0),
    ]


@pytest.mark.parametrize(
    ("keys", "tensors", "text"),
    [
        (
            {},
            {"blk.1.ffn_up.weight": GONE},
            "the draft is not runnable; expected a draft that runs: x.gguf: the tensor blk",
        ),
        ({"tokenizer.ggml.mask_token_id": GONE}, {}, "the key tokenizer.ggml.mask_token_id is missing"),
        ({"dflash.target_layers": [1, 2, 5]}, {}, "target_layers are [1, 2, 5], but the target has 4 layers"),
        ({"dflash.block_size": 4}, {}, "dflash.block_size is 4; expected 8 (as in the checkpoint)"),
        ({"tokenizer.ggml.mask_token_id": 1024}, {}, "mask_token_id is 1024, but the target has 1024 tokens"),
    ],
)
def test_a_file_that_cannot_be_run_is_the_answer_no(
    made: Callable[[str], Path], tmp_path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Any], text: str
) -> None:
    level = forward(planted(made("BF16"), tmp_path / "x.gguf", keys, tensors))
    assert level.status == FAIL
    assert text in level.failed[0].message


def test_another_draft_cannot_be_compared(made: Callable[[str], Path]) -> None:
    level = forward(made("BF16"), source_of("dflash-flat"), None)
    assert level.failed[0].message.startswith("dflash.embedding_length is 256; expected 64 (as in the checkpoint)")


# -- acceptance ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def right(made: Callable[[str], Path]) -> Report:
    """The bf16 file's run on both prompts."""
    return accepted(made("BF16"))


def test_a_file_in_the_checkpoints_precision_is_accepted_as_the_original_is(right: Report) -> None:
    assert right.ok
    assert right.metrics["acceptance.ratio"] == 1
    assert right.metrics["acceptance.mean_length"] > 1.3
    assert right.metrics["acceptance.prompts"] == 2
    assert len(right.level(ACCEPTANCE).checks) == 4  # two texts by each draft


def test_a_quantized_file_is_accepted_almost_as_the_original_is(made: Callable[[str], Path]) -> None:
    report = accepted(made("Q4_K"))
    assert report.ok
    assert report.metrics["acceptance.ratio"] >= 0.9
    assert report.metrics["acceptance.ratio_low"] < report.metrics["acceptance.ratio"]
    assert report.metrics["acceptance.ratio_high"] > report.metrics["acceptance.ratio"]


def test_the_loop_repeats_the_golden_run(made: Callable[[str], Path], data: Path) -> None:
    """Prompt 1 of golden.json, 96 tokens: the accepted tokens of torch's loop."""
    golden = json.loads((data / "tiny-pair/expected/golden.json").read_text())[0]
    report = accepted(made("BF16"), prompts=[golden["prompt"]], n_tokens=96)
    steps = golden["accepted_per_step"]
    assert report.ok
    assert report.metrics["acceptance.mean_length"] == pytest.approx(1 + sum(steps) / len(steps))
    assert report.metrics["acceptance.reference_mean_length"] == pytest.approx(1 + sum(steps) / len(steps))


def test_a_target_gguf_runs_as_its_folder_does(made: Callable[[str], Path], right: Report, tmp_path: Path) -> None:
    """Its tokenizer is built from the GGUF's own tokens and merges."""
    target = convert(TARGET, None, tmp_path / "target.gguf")
    assert accepted(made("BF16"), target=target).metrics == right.metrics


def test_a_draft_with_the_wrong_mask_token_is_accepted_less(made: Callable[[str], Path], tmp_path: Path) -> None:
    """A figure, and a fault only where the user set a least ratio and the whole interval lies below it."""
    path = planted(made("BF16"), tmp_path / "x.gguf", SILENT["mask token"])
    figures = accepted(path)
    assert figures.ok
    assert figures.metrics["acceptance.ratio"] < 0.8
    high = figures.metrics["acceptance.ratio_high"]
    report = accepted(path, min_accept_ratio=high + 0.01)
    assert [c.subject for c in failures(report)] == ["the ratio of mean accepted lengths"]
    assert f"expected at least {high + 0.01:.4g}" in messages(report)[0]
    assert accepted(path, min_accept_ratio=high - 0.01).ok


def test_a_file_the_target_cannot_run_is_not_accepted(made: Callable[[str], Path], tmp_path: Path) -> None:
    for keys, text in (
        ({"tokenizer.ggml.mask_token_id": 1024}, "mask_token_id is 1024, but the target has 1024 tokens"),
        ({"dflash.target_layers": [1, 2, 5]}, "target_layers are [1, 2, 5], but the target has 4 layers"),
    ):
        report = accepted(planted(made("BF16"), tmp_path / "x.gguf", keys))
        assert text in messages(report)[0]


def test_without_a_source_the_text_is_still_proved(made: Callable[[str], Path]) -> None:
    report = accepted(made("BF16"), source=None, prompts=PROMPTS[:1], n_tokens=6)
    assert report.ok
    assert "acceptance.ratio" not in report.metrics
    assert len(report.level(ACCEPTANCE).checks) == 1


def test_fewer_drafted_tokens_a_step_are_accepted_less_often(made: Callable[[str], Path]) -> None:
    report = accepted(made("BF16"), n_max=1, prompts=PROMPTS[:1], n_tokens=8)
    assert 1 < report.metrics["acceptance.mean_length"] <= 2


def test_a_text_that_is_not_greedy_decodings_fails() -> None:
    good, bad = Run((1, 2, 3), (1, 0), 4), Run((1, 9, 3), (1, 0), 4)
    level = _judge([Trial((1, 2, 3), good, good), Trial((1, 2, 3), bad, good)], None)
    assert [c.message for c in level.failed] == [
        "the text of prompt 2 with the file's draft is 9 at token 1; expected 2 (plain greedy decoding)"
    ]


def test_mean_length_counts_the_targets_own_token() -> None:
    assert mean_length([Run((), (3, 0), 7), Run((), (2,), 7)]) == pytest.approx(1 + 5 / 3)


# -- what cannot run -----------------------------------------------------------------------------------------------


def test_a_source_that_cannot_be_run_skips_with_its_reason(made: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(DRAFT, tmp_path / "draft")
    config = json.loads((DRAFT / "config.json").read_text())
    del config["hidden_act"]
    (tmp_path / "draft/config.json").write_text(json.dumps(config))
    report = verify(made("BF16"), source=tmp_path / "draft")
    assert report.ok
    assert report.level(FORWARD).reason == "config.json: hidden_act is missing"


def test_a_broken_target_checkpoint_is_told_apart_from_one_without_weights(
    made: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(TARGET, tmp_path / "target")
    (tmp_path / "target/model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    report = verify(made("BF16"), source=DRAFT, target=tmp_path / "target", prompts=PROMPTS, n_tokens=4)
    assert "Git-LFS pointer" in report.level(ACCEPTANCE).reason


def test_errors_of_the_source_are_not_the_files(made: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights found"):
        verify(made("BF16"), source=tmp_path)
    shutil.copyfile(DRAFT / "model.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"there is no config.json"):
        verify(made("BF16"), source=tmp_path)
