"""A golden draft, written in a dialect by hand and migrated, is the golden draft again; every refusal by its text."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from foreign_gguf import FILES, write
from gguf.constants import GGMLQuantizationType
from gguf.constants import GGUFValueType as V
from make import make_gguf
from toys import CASES, TARGET

from dflash_convert import cli
from dflash_convert.conversion.run import convert
from dflash_convert.dialects.migrations import MIGRATIONS, REFUSED
from dflash_convert.dialects.table import DIALECTS
from dflash_convert.errors import DflashError, GGUFError, OutputError
from dflash_convert.gguf_io.reader import KV, GGUFFile, open_gguf
from dflash_convert.migration.run import migrate_file
from dflash_convert.quantization.run import quantize_file
from dflash_convert.verification import verify

MASK = "tokenizer.ggml.mask_token_id"
SWA = "dflash-nested-swa"

# ── the dialects, by hand ─────────────────────────────────────────────────────────────────────────────────────────────

Keys = dict[str, Any]


def pull_22105_late(keys: Keys) -> Keys:
    return {("dflash.mask_token_id" if k == MASK else k): v for k, v in keys.items()}


def pull_22105_early(keys: Keys) -> Keys:
    kept = {k: v for k, v in keys.items() if "sliding_window" not in k}
    renamed = {MASK: "dflash.mask_token_id", "dflash.target_layers": "dflash.target_layer_ids"}
    return {renamed.get(k, k): v for k, v in kept.items()}


def beellama(keys: Keys) -> Keys:
    """Everything below dflash-draft; block size, mask and unshifted taps below dflash-draft.dflash."""
    nested = {
        MASK: "dflash-draft.dflash.mask_token_id",
        "dflash.block_size": "dflash-draft.dflash.block_size",
        "dflash.target_layers": "dflash-draft.dflash.target_layer_ids",
    }
    out = {nested.get(k, k.replace("dflash.", "dflash-draft.", 1)): v for k, v in keys.items()}
    taps = keys["dflash.target_layers"].value
    out["dflash-draft.dflash.target_layer_ids"] = KV("", V.ARRAY, [i - 1 for i in taps], V.UINT32)
    out["dflash-draft.dflash.n_target_features"] = len(taps) * keys["dflash.embedding_length"].value
    return {**out, "general.architecture": "dflash-draft"}


def early_tensor(name: str) -> str:
    return "hidden_norm.weight" if name == "enc.output_norm.weight" else name


def beellama_tensor(name: str) -> str:
    renamed = {"fc.weight": "dflash_fc.weight", "enc.output_norm.weight": "dflash_hidden_norm.weight"}
    return renamed.get(name, name.replace("ffn_norm", "post_attention_norm"))


WRITERS: dict[str, tuple[Callable[[Keys], Keys], Callable[[str], str]]] = {
    "pull-22105-late": (pull_22105_late, str),
    "pull-22105-early": (pull_22105_early, early_tensor),
    "beellama": (beellama, beellama_tensor),
}


def rewritten(gguf: GGUFFile, dialect: str, path: Path, *, halved: bool = False) -> Path:
    """The mainline file in another dialect. halved: its norms in BF16."""
    keys, name_of = WRITERS[dialect]
    given: Keys = {k: replace(v, value=list(v.value)) if v.item_type is not None else v for k, v in gguf.kv.items()}
    given["general.architecture"] = "dflash"

    def tensor(name: str) -> Any:
        info, raw = gguf.tensors[name], gguf.raw(name)
        if halved and name.endswith("norm.weight"):
            return raw.view(np.float32).reshape(-1).astype(ml_dtypes.bfloat16)
        rows = raw.reshape(*info.shape[:-1], -1)
        return rows.view(np.float32) if info.type == GGMLQuantizationType.F32 else (info.type, rows)

    return make_gguf(path, keys(given), {name_of(n): tensor(n) for n in gguf.tensors})


def golden(case: str, out: Path, file_type: str = "bf16") -> Path:
    path = convert(CASES / case / "draft", TARGET, out / "bf16.gguf")
    if file_type != "bf16":
        quantize_file(path, out / "q.gguf", file_type)
        return out / "q.gguf"
    return path


def same(a: GGUFFile, b: GGUFFile) -> bool:
    def keys(f: GGUFFile) -> dict[str, Any]:
        return {k: (v.type, v.item_type, v.value) for k, v in f.kv.items()}

    return keys(a) == keys(b) and [(t.name, t.type, t.shape, f_raw(a, t.name)) for t in a.tensors.values()] == [
        (t.name, t.type, t.shape, f_raw(b, t.name)) for t in b.tensors.values()
    ]


def f_raw(gguf: GGUFFile, name: str) -> bytes:
    return gguf.raw(name).tobytes()


def options(dialect: str, case: str) -> dict[str, Any]:
    """What the early format does not say."""
    if dialect != "pull-22105-early":
        return {}
    return {
        SWA: {"window": 128, "layer_types": "S,F"}, "dflash2": {"window": 2048, "layer_types": "S"},
    }.get(case, {"window": 0})  # fmt: skip


# ── there and back ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_dialect_is_migrated_or_refused() -> None:
    assert {m.dialect for m in MIGRATIONS} == set(WRITERS)
    assert {m.dialect for m in MIGRATIONS} | set(REFUSED) | {"mainline"} == {d.name for d in DIALECTS}
    assert not {m.dialect for m in MIGRATIONS} & set(REFUSED)


@pytest.mark.parametrize("dialect", WRITERS)
@pytest.mark.parametrize("file_type", ["bf16", "Q8_0"])
@pytest.mark.parametrize("case", [SWA, "dflash-flat", "dflash-yarn"])
def test_the_mainline_file_comes_back(dialect: str, file_type: str, case: str, tmp_path: Path) -> None:
    source = open_gguf(golden(case, tmp_path, file_type))
    foreign = rewritten(source, dialect, tmp_path / "f.gguf")
    migrate_file(foreign, tmp_path / "m.gguf", **options(dialect, case))
    assert same(open_gguf(tmp_path / "m.gguf"), source)
    report = verify(tmp_path / "m.gguf", source=CASES / case / "draft", target=TARGET, only=["structure"])
    assert report.ok


@pytest.mark.parametrize("case", ["dflash2", "dspark-deepspec"])
def test_the_other_families_with_the_mask_in_its_old_key(case: str, tmp_path: Path) -> None:
    source = open_gguf(golden(case, tmp_path))
    migrate_file(rewritten(source, "pull-22105-late", tmp_path / "f.gguf"), tmp_path / "m.gguf")
    assert same(open_gguf(tmp_path / "m.gguf"), source)


@pytest.mark.parametrize("dialect", WRITERS)
def test_halved_norms_are_widened(dialect: str, tmp_path: Path) -> None:
    source = open_gguf(golden(SWA, tmp_path))
    foreign = rewritten(source, dialect, tmp_path / "f.gguf", halved=True)
    migrate_file(foreign, tmp_path / "m.gguf", **options(dialect, SWA))
    assert same(open_gguf(tmp_path / "m.gguf"), source)  # the checkpoint's norms are BF16: nothing is lost


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(path: Path, kind: type[DflashError] = DflashError, **given: Any) -> str:
    out = path.with_name("out.gguf")
    with pytest.raises(kind) as e:
        migrate_file(path, out, **given)
    assert not out.exists()
    return f"{e.value.message} | {e.value.hint}"


@pytest.mark.parametrize("name", REFUSED)
def test_other_dialects_are_refused_by_name(name: str, tmp_path: Path) -> None:
    said = refused(write(tmp_path / "d.gguf", name), GGUFError)
    title = next(d.title for d in DIALECTS if d.name == name)
    assert f"({title}): cannot be " in said
    assert REFUSED[name] in said
    assert "hf-to-gguf" in said


def test_mainline_is_mainline_already(tmp_path: Path) -> None:
    assert "d.gguf is in mainline format already" in refused(write(tmp_path / "d.gguf", "mainline"), GGUFError)


def test_no_draft(tmp_path: Path) -> None:
    path = make_gguf(tmp_path / "d.gguf", {"general.architecture": "qwen3"})
    assert "no draft in a known format (architecture qwen3)" in refused(path, GGUFError)


D, N = "dflash-draft__", "dflash-draft__dflash__"


@pytest.mark.parametrize(
    ("name", "changes", "given", "said"),
    [
        ("pull-22105-early", {}, {}, "does not say which layers slide, nor over which window | pass --window N"),
        ("pull-22105-early", {}, {"window": 32}, "has a window of 32, and does not say which layers slide"),
        ("pull-22105-early", {}, {"layer_types": "S,F"}, "nor over which window"),
        ("pull-22105-early", {}, {"window": 0, "layer_types": "S"}, "has sliding layers, and the window is 0"),
        ("pull-22105-early", {}, {"window": 32, "layer_types": "S,S,F"}, "has 3 layers, the draft has 2"),
        ("pull-22105-early", {}, {"window": 32, "layer_types": "S,X"}, "--layer-types 'S,X' cannot be read"),
        ("beellama", {}, {"window": 64}, "--window says 64, the file 32"),
        ("beellama", {}, {"layer_types": "F,S"}, "--layer-types says [False, True], the file [True, False]"),
        ("beellama", {D + "attention__sliding_window_pattern": None}, {}, "which layers slide | pass --window N"),
        ("beellama", {D + "attention__sliding_window_pattern": [True]}, {}, "has 1 entries for 2 layers"),
        ("beellama", {"tokenizer__ggml__tokens": None}, {}, "it carries no tokenizer (tokenizer.ggml.*)"),
        ("beellama", {"tokenizer__ggml__model": "none"}, {}, "it carries no tokenizer (tokenizer.ggml.*)"),
        ("beellama", {"tokenizer__ggml__mask_token_id": 6}, {}, "two values for the mask token"),
        ("beellama", {N + "mask_token_id": 8}, {}, "the mask token 8 lies outside the vocabulary"),
        ("beellama", {N + "mask_token_id": None}, {}, "cannot be known: no mask token"),
        ("beellama", {N + "block_size": None}, {}, "cannot be known: no block size"),
        ("beellama", {N + "block_size": "eight"}, {}, "is 'eight', not a block size"),
        ("beellama", {N + "target_layer_ids": None}, {}, "cannot be known: no taps"),
        ("beellama", {N + "target_layer_ids": [1, 2]}, {}, "has 2 taps of width 8, fc.weight takes 40 features"),
        ("beellama", {N + "target_layer_ids": [2, 6, 10, 14, 18]}, {}, "as if shifted already"),
        ("beellama", {N + "target_layer_ids": 3}, {}, "is 3, not a list of layers"),
        ("beellama", {N + "n_target_features": 41}, {}, "is 41, but fc.weight takes 40 features"),
        ("beellama", {D + "rope__freq_base": None}, {}, "cannot be known: dflash-draft.rope.freq_base is missing"),
        ("beellama", {D + "rope__freq_base": "x"}, {}, "mainline takes f32 for dflash.rope.freq_base"),
        ("beellama", {D + "block_count": None}, {}, "dflash-draft.block_count is missing or no positive number"),
        ("beellama", {D + "target_layers": [2, 6, 10, 14, 18]}, {}, "would both become dflash.target_layers"),
        ("beellama", {N + "context_length": 32}, {}, "would both become dflash.context_length"),
        ("pull-22105-early", {"tokenizer__ggml__mask_token_id": 6}, {"window": 0}, "two values for the mask token"),
        ("beellama", {D + "attention__sliding_window": "x"}, {}, "attention.sliding_window is 'x', not a window"),
        ("beellama", {D + "attention__sliding_window_pattern": ["a", "b"]}, {}, "not a flag for each layer"),
        ("beellama", {D + "attention__sliding_window_pattern": True}, {}, "which layers slide | pass --window N"),
        ("pull-22105-early", {}, {"window": 2**32, "layer_types": "S"}, "--window 4294967296 is no window"),
        ("beellama", {D + "block_count": 1}, {}, "is of none of its 1 layers"),
        ("beellama", {"split__count": 2}, {}, "it is a part of a split model"),
        ("pull-22105-late", {"dflash__target_layers": [1, 5, 9, 13, 17]}, {}, "is evenly spaced, as checkpoint ids"),
    ],
)
def test_a_file_that_does_not_say_enough(
    name: str, changes: dict[str, Any], given: dict[str, Any], said: str, tmp_path: Path
) -> None:
    assert said in refused(write(tmp_path / "d.gguf", name, **changes), **given)


ODD = (
    KV("", V.INT32, -1), KV("", V.UINT64, 2**63), KV("", V.FLOAT64, 1e300), KV("", V.FLOAT32, float("nan")),
    KV("", V.STRING, "x"), KV("", V.BOOL, True), KV("", V.ARRAY, [2**40], V.UINT64), KV("", V.ARRAY, ["a"], V.STRING),
    KV("", V.ARRAY, [-1, -1], V.INT32), KV("", V.ARRAY, [0] * 100, V.INT32),
)  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("value", ODD, ids=lambda kv: f"{kv.type.name}-{str(kv.value)[:9]}")
def test_any_value_under_any_key_is_migrated_or_refused(name: str, value: KV, tmp_path: Path) -> None:
    for key in FILES[name][0]:
        if key == "general.architecture":
            continue
        path = write(tmp_path / "d.gguf", name, **{key.replace(".", "__"): value})
        for given in GIVEN:
            with suppress(DflashError):
                migrate_file(path, tmp_path / "m.gguf", force=True, **given)


GIVEN: tuple[dict[str, Any], ...] = ({}, {"window": 32, "layer_types": "S,F"})
VECTOR, MATRIX = np.ones(8, np.float32), np.ones((8, 8), np.float16)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        ({"blk.0.attn_q.bias": VECTOR}, "mainline's graph has no place for blk.0.attn_q.bias"),
        ({"colour.weight": VECTOR}, "mainline's graph has no place for colour.weight"),
        ({"blk.0.ffn_norm.weight": VECTOR}, "with blk.0.ffn_norm.weight beside it"),
        ({"blk.0.post_ffw_norm.weight": VECTOR}, "with blk.0.post_ffw_norm.weight beside it"),
        ({"fc.weight": MATRIX}, "dflash_fc.weight and fc.weight would both become fc.weight"),
        ({"token_embd.weight": MATRIX}, "it has token_embd.weight without output.weight"),
        ({"d2t": VECTOR}, "whether its d2t holds offsets"),
        ({"markov_w1.weight": MATRIX}, "a DSpark draft that does not say sample_from_anchor"),
        ({"blk.1.ffn_up.weight": None}, "the tensor blk.1.ffn_up.weight is missing"),
        (
            {"output_norm.weight": (GGMLQuantizationType.Q8_0, np.zeros((1, 34), np.uint8))},
            "the norm output_norm.weight holds Q8_0, mainline takes F32",
        ),
    ],
)
def test_tensors_that_cannot_be_migrated(tensor: dict[str, Any], said: str, tmp_path: Path) -> None:
    kv, tensors = FILES["beellama"]
    given = {k: v for k, v in {**tensors, **tensor}.items() if v is not None}
    assert said in refused(make_gguf(tmp_path / "d.gguf", kv, given), GGUFError)


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def run(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(["migrate", *map(str, args)])
    out, err = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, out = write(tmp_path / "d.gguf", "beellama"), tmp_path / "m.gguf"
    code, shown, err = run(capsys, src, out)
    assert (code, shown) == (0, f"{out}\n")
    assert "dflash-draft.dflash.target_layer_ids + 1 → dflash.target_layers [2, 6, 10, 14, 18]" in err
    assert "dropped, as mainline has no use for it: dflash-draft.dflash.n_target_features" in err
    assert run(capsys, src, out)[0] == 2
    assert run(capsys, src, out, "--force", "-q")[:2] == (0, f"{out}\n")


def test_a_dry_run_touches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    src, out = write(tmp_path / "d.gguf", "pull-22105-early"), tmp_path / "m.gguf"
    code, shown, _ = run(capsys, src, out, "--window", "32", "--layer-types", "S,F", "--dry-run", "--json")
    keys = {k["key"]: k for k in json.loads(shown)["keys"]}
    assert (code, out.exists()) == (0, False)
    assert keys["dflash.attention.sliding_window_pattern"]["value"] == [True, False]
    assert keys[MASK]["from"] == "dflash.mask_token_id"


def test_an_unknown_key_is_kept_and_named(tmp_path: Path) -> None:
    src = write(tmp_path / "d.gguf", "beellama", **{"dflash-draft__colour": "red"})
    plan = migrate_file(src, tmp_path / "m.gguf")
    assert open_gguf(tmp_path / "m.gguf").get("dflash.colour") == "red"
    assert [n.text for n in plan.notes if "does not know" in n.text] == [
        "kept, though mainline does not know it: dflash.colour"
    ]


def test_the_output_is_the_input(tmp_path: Path) -> None:
    src = write(tmp_path / "d.gguf", "beellama")
    with pytest.raises(OutputError, match="the output is the input"):
        migrate_file(src, src, force=True)
