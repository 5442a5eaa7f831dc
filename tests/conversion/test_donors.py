"""A target GGUF as the source of a draft's vocabulary: the same file as from the target's folder, byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGUFValueType as V
from make import make_gguf, weights
from toys import FLAT, GONE, TARGET, notes, toy_draft
from verify_cases import planted, source_of, target_of

from dflash_convert.conversion.run import convert, plan_conversion
from dflash_convert.errors import CheckpointError, ConfigError, DflashError, GGUFError, VocabError
from dflash_convert.gguf_io.reader import KV, open_gguf
from dflash_convert.quantization.run import quantize_file
from dflash_convert.verification import verify
from dflash_convert.verification.report import STRUCTURE


@pytest.fixture(scope="module")
def target_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(TARGET, None, tmp_path_factory.mktemp("target") / "Toy-Target-BF16.gguf")


def refused(kind: type[DflashError], donor: Path, draft: Path = FLAT, **options: Any) -> DflashError:
    with pytest.raises(DflashError) as e:
        plan_conversion(draft, donor, **options)
    assert type(e.value) is kind
    return e.value


@pytest.mark.parametrize("file_type", ["BF16", "Q8_0", "Q4_K_M"])
def test_folder_and_gguf_of_any_type_give_the_same_file(target_gguf: Path, tmp_path: Path, file_type: str) -> None:
    donor = target_gguf
    if file_type != "BF16":
        donor = tmp_path / f"Toy-Target-{file_type}.gguf"
        quantize_file(target_gguf, donor, file_type)
    by_folder = convert(FLAT, TARGET, tmp_path / "folder.gguf").read_bytes()
    assert convert(FLAT, donor, tmp_path / "gguf.gguf").read_bytes() == by_folder


def test_what_is_written_verifies_against_the_folder_and_the_gguf(target_gguf: Path, tmp_path: Path) -> None:
    path = convert(FLAT, target_gguf, tmp_path / "x.gguf")
    for target in (TARGET, target_gguf):
        assert verify(path, source=FLAT, target=target, only={STRUCTURE}).ok


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3-4B-Q4_K_M.gguf", "dflash-Qwen3-4B-BF16.gguf"),
        ("Qwen3-4B-UD-IQ2_XXS.gguf", "dflash-Qwen3-4B-BF16.gguf"),
        ("qwen3.f16.gguf", "dflash-qwen3-BF16.gguf"),
        ("Qwen3-4B.gguf", "dflash-Qwen3-4B-BF16.gguf"),
    ],
)
def test_the_output_is_named_after_the_model_not_its_type(
    target_gguf: Path, tmp_path: Path, name: str, expected: str
) -> None:
    (tmp_path / name).symlink_to(target_gguf)
    renamed = tmp_path / "copy" / name
    renamed.parent.mkdir()
    renamed.write_bytes(target_gguf.read_bytes())
    assert plan_conversion(FLAT, renamed).path.name == expected


def test_the_drafts_mask_token_wins(target_gguf: Path, tmp_path: Path) -> None:
    other = KV("tokenizer.ggml.mask_token_id", V.UINT32, 7)
    donor = planted(target_gguf, tmp_path / "donor.gguf", {other.key: other})
    mask = next(kv.value for kv in plan_conversion(FLAT, donor).plan.kv if kv.key == other.key)
    assert mask == open_gguf(convert(FLAT, TARGET, tmp_path / "x.gguf")).get(other.key) != 7


def test_any_kind_of_tokenizer_is_copied_as_it_is(target_gguf: Path, tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(320)]
    keys: dict[str, Any] = {
        "general.architecture": "llama", "llama.embedding_length": 64, "llama.block_count": 8,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": KV("", V.ARRAY, [0.5] * 320, V.FLOAT32),
        "tokenizer.ggml.bos_token_id": KV("", V.UINT32, 1),
    }  # fmt: skip
    donor = make_gguf(tmp_path / "spm.gguf", keys, {"token_embd.weight": weights(320, 64)})
    file = open_gguf(convert(FLAT, donor, tmp_path / "x.gguf"))
    assert file.get("tokenizer.ggml.model") == "llama"
    assert list(file.get("tokenizer.ggml.tokens")) == tokens
    assert list(file.get("tokenizer.ggml.scores")) == [0.5] * 320


def test_a_target_that_ropes_over_several_axes_is_seen(target_gguf: Path, tmp_path: Path) -> None:
    sections = KV("qwen3.rope.dimension_sections", V.ARRAY, [4, 4, 4, 0], V.INT32)
    donor = planted(target_gguf, tmp_path / "donor.gguf", {sections.key: sections})
    case = "dflash-mrope-target"
    expected = convert(source_of(case), target_of(case), tmp_path / "folder.gguf")
    found = convert(source_of(case), donor, tmp_path / "gguf.gguf")
    key = "dflash.rope.dimension_sections"
    assert open_gguf(found).get(key) == open_gguf(expected).get(key) == [16, 0, 0, 0]


FACTS: dict[str, tuple[Mapping[str, Any], str]] = {
    "width": ({"qwen3.embedding_length": 128}, "draft and target differ in width: 64"),
    "depth": ({"qwen3.block_count": 4}, "taps layer 5, but the target Toy-Target has 4 layers (0 to 3)"),
}


@pytest.mark.parametrize(("keys", "said"), FACTS.values(), ids=FACTS)
def test_the_pair_is_checked(target_gguf: Path, tmp_path: Path, keys: Mapping[str, Any], said: str) -> None:
    donor = planted(target_gguf, tmp_path / "Toy-Target.gguf", keys)
    assert said in refused(ConfigError, donor).message


def test_layers_that_only_predict_are_not_counted(target_gguf: Path, tmp_path: Path) -> None:
    key = KV("qwen3.nextn_predict_layers", V.UINT32, 3)
    donor = planted(target_gguf, tmp_path / "Toy-Target.gguf", {key.key: key})
    assert "has 5 layers (0 to 4)" in refused(ConfigError, donor).message


def test_another_vocabulary_is_refused(target_gguf: Path, tmp_path: Path) -> None:
    draft = toy_draft(tmp_path / "draft", {"vocab_size": 321})
    error = refused(ConfigError, target_gguf, draft)
    assert "draft and target differ in vocabulary: 321" in error.message


def test_what_is_no_target_is_refused(target_gguf: Path, tmp_path: Path) -> None:
    draft = convert(FLAT, TARGET, tmp_path / "draft.gguf")
    assert refused(VocabError, draft).message == "draft.gguf is a draft itself"
    bare = make_gguf(tmp_path / "bare.gguf", {"general.architecture": "clip"})
    error = refused(VocabError, bare)
    assert error.message == "bare.gguf has no vocabulary (no tokenizer.ggml.tokens)"
    assert "not an adapter, an mmproj, or a later part of a split file" in str(error.hint)
    assert "--pre is for a tokenizer.json" in refused(VocabError, target_gguf, pre="qwen2").message
    odd = KV("qwen3.block_count", V.STRING, "eight")
    donor = planted(target_gguf, tmp_path / "odd.gguf", {odd.key: odd})
    assert (
        refused(GGUFError, donor).message == "odd.gguf: qwen3.block_count is 'eight'; a positive integer was expected"
    )


def test_a_draft_that_needs_the_targets_tables_needs_its_checkpoint(target_gguf: Path, tmp_path: Path) -> None:
    draft = toy_draft(
        tmp_path / "draft", {"tie_word_embeddings": False}, tensors={"embed_tokens.weight": weights(320, 64)}
    )
    error = refused(CheckpointError, target_gguf, draft)
    assert error.message == "the draft's file has to carry the target's lm_head, and Toy-Target-BF16.gguf is a GGUF"
    assert "pass the target's Hub id, or a folder" in str(error.hint)


def test_a_missing_mask_token_is_suggested_from_the_tokens(target_gguf: Path, tmp_path: Path) -> None:
    tokens = list(open_gguf(target_gguf).get("tokenizer.ggml.tokens"))
    tokens[301] = "<|MASK|>"
    named = KV("tokenizer.ggml.tokens", V.ARRAY, tokens, V.STRING)
    donor = planted(target_gguf, tmp_path / "donor.gguf", {named.key: named})
    draft = toy_draft(tmp_path / "draft", {"dflash_config.mask_token_id": GONE})
    assert "the target's tokenizer has <|MASK|> (id 301)" in refused(ConfigError, donor, draft).message


def test_notes_compare_with_the_gguf(target_gguf: Path, tmp_path: Path) -> None:
    donor = planted(target_gguf, tmp_path / "donor.gguf", {"qwen3.rope.freq_base": 123456.0})
    assert any("the target's 123456" in text for text in notes(plan_conversion(FLAT, donor), "info"))
