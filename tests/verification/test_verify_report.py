"""verify() as a whole: which levels run, what a report says to people and to machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file
from verify_cases import TARGET, golden_file, planted, source_of, target_of

from dflash_convert.checkpoints.checkpoint import open_checkpoint
from dflash_convert.errors import CheckpointError, ConfigError, GGUFError, UsageError
from dflash_convert.verification import LEVELS, verify
from dflash_convert.verification.prompts import PROMPTS, read_prompts
from dflash_convert.verification.render import lines, verdict
from dflash_convert.verification.report import FAIL, PASS, SCHEMA, SKIP, Check, LevelResult, Report, judged, show

CASE = "dflash-flat"
SOURCE, FLAT_TARGET = source_of(CASE), target_of(CASE)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_file(CASE, tmp_path_factory.mktemp("good"))


@pytest.fixture(scope="module")
def whole(good: Path) -> Report:
    """Every level of a good file."""
    return verify(good, source=SOURCE, target=FLAT_TARGET, prompts=["a = 1\n"], n_tokens=4)


@pytest.fixture(scope="module")
def faulty(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two levels of a file whose taps were not shifted."""
    path = planted(good, tmp_path_factory.mktemp("bad") / "x.gguf", {"dflash.target_layers": [1, 3, 5]})
    return verify(path, source=SOURCE, only={"structure", "tensors"})


# -- which levels run ----------------------------------------------------------------------------------------------


def statuses(report: Report) -> list[str]:
    return [level.status for level in report.levels]


def test_all_four_levels_run_with_a_source_and_a_target(whole: Report) -> None:
    assert tuple(level.name for level in whole.levels) == LEVELS
    assert statuses(whole) == [PASS] * 4
    assert whole.ok


def test_levels_that_cannot_run_say_why(good: Path) -> None:
    report = verify(good)
    assert statuses(report) == [PASS, SKIP, SKIP, SKIP]
    assert [level.reason for level in report.levels[1:]] == ["no source was given"] * 2 + ["no target was given"]


def test_a_target_of_small_files_leaves_out_acceptance(good: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(FLAT_TARGET / name, tmp_path / name)
    report = verify(good, source=SOURCE, target=tmp_path)
    assert statuses(report) == [PASS, PASS, PASS, SKIP]
    assert report.level("acceptance").reason == "the target has no weights"
    assert report.ok


def test_a_target_of_another_architecture_leaves_out_acceptance(tmp_path: Path) -> None:
    case = "dflash-mrope-target"
    report = verify(golden_file(case, tmp_path), source=source_of(case), target=target_of(case))
    assert statuses(report) == [PASS, PASS, PASS, SKIP]
    assert "Qwen3_5ForConditionalGeneration cannot be run" in report.level("acceptance").reason


def test_levels_can_be_chosen(good: Path) -> None:
    report = verify(good, source=SOURCE, only={"tensors"})
    assert statuses(report) == [SKIP, PASS, SKIP, SKIP]
    assert report.level("structure").reason == "not asked for"


@pytest.mark.parametrize(
    ("only", "options", "text"),
    [
        ({"tensor"}, {}, "there is no level 'tensor'"),
        (set(), {}, "no level was named"),
        ({"tensors"}, {}, "the level tensors was asked for, but no source was given"),
        ({"forward"}, {"target": FLAT_TARGET}, "the level forward was asked for, but no source was given"),
        ({"acceptance"}, {"source": SOURCE}, "the level acceptance was asked for, but no target was given"),
        (
            {"acceptance"},
            {"source": SOURCE, "target": target_of("dflash-mrope-target")},
            "the level acceptance was asked for, but targets of the architecture Qwen3_5ForConditionalGeneration",
        ),
    ],
)
def test_asking_for_what_cannot_run_is_an_error(good: Path, only: set[str], options: Any, text: str) -> None:
    with pytest.raises(UsageError) as e:
        verify(good, only=only, **options)
    assert text in e.value.message
    assert e.value.hint


def test_a_file_that_is_not_there_is_an_error_not_an_answer(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file") as e:
        verify(tmp_path / "x.gguf", source=SOURCE)
    assert e.value.hint


def test_a_file_that_is_no_gguf_is_the_answer_no(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    report = verify(tmp_path / "x.gguf", source=SOURCE)
    assert statuses(report) == [FAIL, SKIP, SKIP, SKIP]
    assert not report.ok


def test_asking_for_a_later_level_of_a_damaged_file_is_the_answer_no_too(good: Path, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(good.read_bytes()[:50_000])
    report = verify(tmp_path / "x.gguf", source=SOURCE, only={"tensors"})
    assert not report.ok


@pytest.mark.parametrize("option", ["source", "target"])
def test_a_source_or_target_that_is_not_there_is_an_error(good: Path, tmp_path: Path, option: str) -> None:
    with pytest.raises(UsageError, match="no such") as e:
        verify(good, **{option: tmp_path / "nothing"})  # type: ignore[arg-type]
    assert f"--{option}" in str(e.value.hint)


def test_a_checkpoint_may_be_given_opened(good: Path) -> None:
    assert verify(good, source=open_checkpoint(SOURCE), only={"tensors"}).source == str(SOURCE)


def test_a_source_without_sizes_is_an_error(good: Path, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "draft")
    (tmp_path / "draft/config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"config.json: num_hidden_layers is missing"):
        verify(good, source=tmp_path / "draft")


def test_a_family_without_a_table_is_refused_by_name(good: Path, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "draft")
    tensors = load_file(SOURCE / "model.safetensors")
    extra = {"aux_hidden_norms.0.weight": tensors["norm.weight"]}
    save_file({**tensors, **extra}, tmp_path / "draft/model.safetensors")
    with pytest.raises(CheckpointError, match=r"Laguna drafts cannot be verified .*aux_hidden_norms.0.weight"):
        verify(good, source=tmp_path / "draft")


# -- the report as a value -----------------------------------------------------------------------------------------


def test_the_json_form_holds_everything_and_names_its_schema(faulty: Report) -> None:
    document = json.loads(json.dumps(faulty.to_json(), allow_nan=False))
    assert document["schema"] == SCHEMA == "dflash-convert/verify/1"
    assert document["ok"] is False
    assert document["source"] == str(SOURCE)
    assert [level["status"] for level in document["levels"]] == [FAIL, PASS, SKIP, SKIP]
    check = document["levels"][0]["checks"][0]
    assert (check["id"], check["status"], check["subject"]) == ("key", FAIL, "dflash.target_layers")
    assert (check["found"], check["expected"]) == ([1, 3, 5], [2, 4, 6])
    assert check["message"].endswith("probably written by an old or fork converter")
    assert document["metrics"]["tensors.tensors"] == 25


def test_what_json_cannot_hold_becomes_text() -> None:
    check = Check("tensor", FAIL, "x", float("nan"), 1.0, data={"max_error": float("inf")})
    report = Report("f", None, None, (judged("tensors", [check], {"worst": float("inf")}),))
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["levels"][0]["checks"][0]["found"] == "nan"
    assert document["levels"][0]["checks"][0]["data"]["max_error"] == "inf"
    assert document["metrics"]["tensors.worst"] == "inf"


def test_failures_come_first_and_unchecked_ones_before_passes() -> None:
    checks = [Check("key", status, status) for status in (PASS, SKIP, FAIL, PASS)]
    assert [c.status for c in judged("structure", checks).checks] == [FAIL, SKIP, PASS, PASS]


def test_a_level_with_unchecked_values_only_is_no_failure() -> None:
    assert judged("structure", [Check("key", SKIP, "x")]).status == PASS


def test_a_report_in_which_nothing_ran_is_not_ok() -> None:
    assert not Report("f", None, None, (LevelResult("structure", SKIP, "no"),)).ok


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "absent"),
        (0.61199998, "0.612"),
        ([True, False], "[True, False]"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, …]"),
        ("qwen2", "qwen2"),
    ],
)
def test_values_are_shown_short(value: Any, text: str) -> None:
    assert show(value) == text


# -- the report for people -----------------------------------------------------------------------------------------


def test_lines_of_a_good_file(whole: Report) -> None:
    text = lines(whole)
    assert text[0].startswith("file    ")
    assert text[-1] == "verified"
    assert "✓ structure   29 of 29 checks passed" in text
    forward = next(line for line in text if line.startswith("✓ forward     the same graph (to "))
    assert "e-07); cosine to the original 1.0000000 over" in forward
    assert forward.endswith("first choices equal: 100.0% (100.0% to 100.0%)")
    assert any(
        line.startswith("✓ acceptance  1.0") and "the original 1.0" in line and "ratio 1.0" in line for line in text
    )


def test_lines_of_a_faulty_file_lead_with_the_fault(faulty: Report) -> None:
    text = lines(faulty)
    at = next(i for i, line in enumerate(text) if line.startswith("✗ structure"))
    assert text[at + 1].strip().startswith("✗ dflash.target_layers is [1, 3, 5]; expected [2, 4, 6]")
    assert "– forward     skipped: not asked for" in text
    assert text[-1] == "not verified: 1 check failed"


def test_lines_without_unicode_are_ascii(faulty: Report) -> None:
    text = "\n".join(lines(faulty, unicode=False))
    assert text.isascii()
    assert "FAIL structure" in text


def test_verbose_lines_show_every_check(whole: Report) -> None:
    n_checks = sum(len(level.checks) for level in whole.levels)
    assert len(lines(whole, verbose=True)) == 3 + len(LEVELS) + n_checks + 1


def test_many_failures_are_counted_not_listed() -> None:
    checks = [Check("key", FAIL, f"k{i}", 1, 2) for i in range(30)]
    text = lines(Report("f", None, None, (judged("structure", checks),)))
    assert sum("expected" in line for line in text) == 20
    assert any(line.endswith("and 10 more") for line in text)


def test_the_verdict_names_what_was_left_out(good: Path) -> None:
    alone = "no fault found, but nothing was compared with a source (without tensors, forward, acceptance)"
    assert verdict(verify(good)) == alone


# -- prompts -------------------------------------------------------------------------------------------------------


def test_bundled_prompts_are_short_and_different() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) == 6
    assert all(20 < len(prompt) < 300 for prompt in PROMPTS)


@pytest.mark.parametrize(
    ("text", "prompts"),
    [
        ("one\n\ntwo\n", ("one", "two")),
        ("def f():\n    pass\n---\ntwo\n---\n\n", ("def f():\n    pass", "two")),
    ],
)
def test_a_prompts_file_is_read_by_line_or_by_separator(tmp_path: Path, text: str, prompts: tuple[str, ...]) -> None:
    (tmp_path / "p.txt").write_text(text)
    assert read_prompts(tmp_path / "p.txt") == prompts


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"\n \n", "there is no prompt in it"), (b"\xff", "the byte 0xff is not UTF-8"), (None, "No such file")],
)
def test_a_prompts_file_without_prompts_is_an_error(tmp_path: Path, content: bytes | None, text: str) -> None:
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(UsageError, match=text) as e:
        read_prompts(tmp_path / "p.txt")
    assert e.value.hint


def test_a_file_of_prompts_is_run(good: Path, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("a\nb\nc\n")
    report = verify(
        good, source=SOURCE, target=FLAT_TARGET, only={"acceptance"}, prompts=tmp_path / "p.txt", n_tokens=2
    )
    assert report.metrics["acceptance.prompts"] == 3


def test_the_wrong_target_is_the_answer_no(good: Path) -> None:
    report = verify(good, source=SOURCE, target=TARGET, prompts=["a"], n_tokens=2)
    assert statuses(report) == [FAIL, PASS, SKIP, FAIL]
    assert report.level("forward").reason == "target_layer_ids are [1, 3, 5], but the target has 4 layers"
    assert "target_layers are [2, 4, 6], but the target has 4 layers" in report.level("acceptance").checks[0].message
