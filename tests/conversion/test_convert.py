"""hf-to-gguf end to end: the golden files, the engine's variants, the arguments, and what happens to the disk."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from make import make_checkpoint
from toys import CASES, FLAT, TARGET, TINY_PAIR, engine_variant, flat_tensors, read_json, toy_draft, toy_target

from dflash_convert.checkpoints.checkpoint import Checkpoint
from dflash_convert.conversion.run import convert, plan_conversion, write_conversion
from dflash_convert.errors import DflashError, OutputError, UsageError, VocabError
from dflash_convert.gguf_io.reader import GGUFFile, open_gguf


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def converted(draft: Path, target: Path | None, out: Path, **options: Any) -> GGUFFile:
    return open_gguf(convert(draft, target, out, **options))


def tensors_of(file: GGUFFile) -> list[tuple[str, str, list[int], str]]:
    """Name, type, ggml's shape and hash of each tensor, in file order."""
    return [
        (t.name, t.type.name, list(t.shape[::-1]), digest(file.raw(t.name).tobytes())) for t in file.tensors.values()
    ]


# ── the golden files ──────────────────────────────────────────────────────────────────────────────────────────────────

GOLDEN = {
    "dflash-flat": (FLAT, TARGET, CASES / "dflash-flat/upstream.json"),
    "dflash-nested-swa": (CASES / "dflash-nested-swa/draft", TARGET, CASES / "dflash-nested-swa/upstream.json"),
    "dflash-odd-shards": (CASES / "dflash-odd-shards/draft", TARGET, CASES / "dflash-odd-shards/upstream.json"),
    "dflash-yarn": (CASES / "dflash-yarn/draft", TARGET, CASES / "dflash-yarn/upstream.json"),
    "dflash-mimo": (CASES / "dflash-mimo/draft", TARGET, CASES / "dflash-mimo/upstream.json"),
    "dflash-mrope-target": (
        CASES / "dflash-mrope-target/draft",
        CASES / "target-mrope",
        CASES / "dflash-mrope-target/upstream.json",
    ),
    "dflash2": (CASES / "dflash2/draft", TARGET, CASES / "dflash2/upstream.json"),
    "dspark-deepspec": (CASES / "dspark-deepspec/draft", TARGET, CASES / "dspark-deepspec/upstream.json"),
    "dspark-gemma4": (CASES / "dspark-gemma4/draft", TARGET, CASES / "dspark-gemma4/upstream.json"),
    "dspark-specforge": (CASES / "dspark-specforge/draft", TARGET, CASES / "dspark-specforge/upstream.json"),
    "dspark-speculators": (CASES / "dspark-speculators/draft", TARGET, CASES / "dspark-speculators/upstream.json"),
    "muse-assistant": (CASES / "muse-assistant/draft", CASES / "target-muse", CASES / "muse-assistant/upstream.json"),
    "target-qwen3": (TARGET, None, TARGET / "upstream.json"),
    "tiny draft": (TINY_PAIR / "draft", TINY_PAIR / "target", TINY_PAIR / "expected/draft-bf16.json"),
    "tiny target": (TINY_PAIR / "target", None, TINY_PAIR / "expected/target-bf16.json"),
}


def shown(value: Any, like: Any) -> Any:
    """A value as the golden files show it: an array of more than 40 entries by its length, ends and hash."""
    value = value if isinstance(value, (str, int, float)) else list(value)
    if not isinstance(like, dict):
        return value
    texts = (json.dumps(value, ensure_ascii=ascii_only) for ascii_only in (True, False))
    return like["sha256"] if like["sha256"] in map(digest, map(str.encode, texts)) else value


# Where llama.cpp's converter is wrong and we are not: case → keys with another value, tensors that it leaves out.
# dspark-deepspec: it drops the draft's head but keeps its embeddings, which its loader then takes for the head too.
RIGHT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "dspark-deepspec": ({"general.size_label": "150K"}, ["output.weight"]),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_the_file_is_the_one_llama_cpps_converter_writes(tmp_path: Path, case: str) -> None:
    draft, target, expected = GOLDEN[case]
    file = converted(draft, target, tmp_path / "o.gguf", outtype="bf16")
    golden, (values, ours) = read_json(expected), RIGHT.get(case, ({}, []))
    keys = {k: v for k, v in golden["kv"].items() if not k.startswith("GGUF.")}
    assert list(file.kv) == list(keys)
    for key, want in keys.items():
        kv = file.kv[key]
        assert [t.name for t in (kv.type, kv.item_type) if t is not None] == want["type"], key
        value = values.get(key, want["value"])
        assert shown(kv.value, value) == (value["sha256"] if isinstance(value, dict) else value), key
    found = tensors_of(file)
    assert [t[0] for t in found if t[0] in ours] == ours
    assert [t for t in found if t[0] not in ours] == [
        (t["name"], t["type"], t["shape"], t["sha256"]) for t in golden["tensors"]
    ]


# ── the engine's variants of the trained draft ────────────────────────────────────────────────────────────────────────

VARIANTS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "all-full": {"attention.sliding_window": None, "attention.sliding_window_pattern": None},
    "yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 256,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
    },
    "partial-rotary": {"rope.dimension_count": 32},
    "causal": {"attention.causal": True},
    "sinks-value-scale": {"attention.value_scale": pytest.approx(0.9)},
    "interleaved-rope": {},
}


@pytest.mark.parametrize(("name", "changes"), VARIANTS.items(), ids=VARIANTS)
def test_a_variant_differs_from_the_trained_draft_in_its_own_keys_and_tensors(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    plain = converted(TINY_PAIR / "draft", TINY_PAIR / "target", tmp_path / "plain.gguf")
    file = converted(engine_variant(tmp_path / "draft", name), TINY_PAIR / "target", tmp_path / "variant.gguf")
    values, before = ({k: kv.value for k, kv in f.kv.items() if k.startswith("dflash.")} for f in (file, plain))
    expected = {**before, **{f"dflash.{k}": v for k, v in changes.items()}}
    assert values == {k: v for k, v in expected.items() if v is not None}
    added = [t for t in tensors_of(file) if t not in tensors_of(plain)]
    sinks = [f"blk.{i}.attn_sinks.weight" for i in (0, 1)] if name == "sinks-value-scale" else []
    assert [t[0] for t in added] == sinks
    assert [t for t in tensors_of(file) if t not in added] == tensors_of(plain)


# ── the plan and the file ─────────────────────────────────────────────────────────────────────────────────────────────


def test_prefixed_names_give_the_same_file(tmp_path: Path) -> None:
    prefixed = {f"model.{name}": tensor for name, tensor in flat_tensors().items()}
    draft = make_checkpoint(tmp_path / "draft", prefixed, read_json(FLAT / "config.json"))
    out = convert(draft, TARGET, tmp_path / "a.gguf")
    assert out.read_bytes() == convert(FLAT, TARGET, tmp_path / "b.gguf").read_bytes()


def test_planning_reads_no_tensor_data(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "rows", lambda *_: pytest.fail("tensor data was read"))
        patch.chdir(tmp_path)
        job = plan_conversion(FLAT, TARGET)
    assert job.path == Path("dflash-target-qwen3-BF16.gguf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("outtype", ["bf16", "q8_0"])
def test_the_planned_size_is_the_files_and_two_runs_give_the_same_bytes(tmp_path: Path, outtype: str) -> None:
    job = plan_conversion(FLAT, TARGET, tmp_path / "a.gguf", outtype=outtype)
    first = write_conversion(job)
    second = convert(FLAT, TARGET, tmp_path / "b.gguf", outtype=outtype)
    assert first.stat().st_size == job.plan.file_size
    assert first.read_bytes() == second.read_bytes()


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    seen: list[tuple[int, str, list[int]]] = []

    @contextmanager
    def progress(total: int, label: str) -> Iterator[Callable[[int], object]]:
        seen.append((total, label, []))
        yield seen[-1][2].append

    convert(FLAT, TARGET, tmp_path / "o.gguf", progress=progress)
    ((total, label, steps),) = seen
    assert (label, total) == ("o.gguf", (tmp_path / "o.gguf").stat().st_size)
    assert 0 <= total - sum(steps) < 32 * 25  # the padding behind each tensor is not counted


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def error_of(*args: Any, **options: Any) -> DflashError:
    with pytest.raises(DflashError) as e:
        convert(*args, **options)
    return e.value


def test_a_draft_without_its_target() -> None:
    error = error_of(FLAT)
    assert isinstance(error, UsageError)
    assert error.message == "draft is a draft: it has no tokenizer of its own and needs its target's"
    assert (
        error.hint == "pass --target with the target's Hub id or folder (only its small files are needed), or its GGUF"
    )


def test_a_target_with_a_target() -> None:
    error = error_of(TARGET, FLAT)
    assert error.message == "target-qwen3 is a Qwen3 model, not a draft: --target makes no sense with it"


def test_a_target_with_values_for_a_draft() -> None:
    assert error_of(TARGET, overrides={"block_size": 8}).message == "block_size can only be given for a draft"


def test_a_gguf_as_draft_or_as_target(tmp_path: Path) -> None:
    file = convert(FLAT, TARGET, tmp_path / "t.gguf")
    assert "t.gguf is a GGUF already" in error_of(file).message
    assert error_of(FLAT, file).message == "t.gguf is a draft itself"


def test_a_target_folder_without_its_files(tmp_path: Path) -> None:
    target = toy_target(tmp_path / "t")
    (target / "tokenizer.json").unlink()
    assert isinstance(error_of(FLAT, target, tmp_path / "o.gguf"), VocabError)
    (target / "config.json").unlink()
    assert "there is no" in error_of(FLAT, target, tmp_path / "o.gguf").message


def test_pre_names_an_unknown_pre_tokenizer(tmp_path: Path) -> None:
    target = toy_target(tmp_path / "t", tokenizer={"pre_tokenizer.pretokenizers": [{"type": "ByteLevel"}]})
    assert "the pre-tokenizer is not known" in error_of(FLAT, target, tmp_path / "o.gguf").message
    file = converted(FLAT, target, tmp_path / "o.gguf", pre="seed-coder")
    assert file.get("tokenizer.ggml.pre") == "seed-coder"


def test_an_output_that_exists_is_refused_before_any_work_and_replaced_by_force(tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    out.write_bytes(b"precious")
    error = error_of("no/such/draft", "no/such/target", out)
    assert isinstance(error, OutputError)
    assert error.message == f"{out} exists"
    assert out.read_bytes() == b"precious"
    assert converted(FLAT, TARGET, out, force=True).architecture == "dflash"


@pytest.mark.parametrize("name", ["d/model.safetensors", "d/config.json", "t/tokenizer.json"])
def test_an_output_that_is_an_input_is_refused_even_by_force(tmp_path: Path, name: str) -> None:
    draft, target = toy_draft(tmp_path / "d"), toy_target(tmp_path / "t")
    before = (tmp_path / name).read_bytes()
    assert error_of(draft, target, tmp_path / name, force=True).message == f"{tmp_path / name}: the output is the input"
    assert (tmp_path / name).read_bytes() == before


def test_the_default_name_is_one_llama_cpp_finds_beside_the_target(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert convert(FLAT, toy_target(tmp_path / "Qwen3-Toy"), outtype="q8_0") == Path("dflash-Qwen3-Toy-Q8_0.gguf")
    assert (tmp_path / "dflash-Qwen3-Toy-Q8_0.gguf").is_file()


# ── origins ───────────────────────────────────────────────────────────────────────────────────────────────────────────

COMMIT = "89abcdef" * 5


def test_a_draft_out_of_a_hub_cache_says_where_it_came_from(tmp_path: Path) -> None:
    root = tmp_path / "models--z-lab--Toy-DFlash" / "snapshots" / COMMIT
    shutil.copytree(FLAT, root)
    file = converted(root, TARGET, tmp_path / "o.gguf")
    assert file.get("general.name") == "Toy DFlash"
    assert file.get("general.source.repo_url") == "https://huggingface.co/z-lab/Toy-DFlash"
    assert file.get("general.source.commit") == COMMIT


def test_the_notes_of_a_checkpoint_reach_the_plan(tmp_path: Path) -> None:
    draft = toy_draft(tmp_path / "d")
    shutil.copyfile(draft / "model.safetensors", draft / "consolidated.safetensors")
    texts = [n.text for n in plan_conversion(draft, TARGET).plan.notes]
    assert [t for t in texts if "consolidated.safetensors" in t]
