"""NVFP4 weights: one worked out on paper, every part that can be wrong, and whole drafts whose matrices lie in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import BF16, Array, make_checkpoint, weights
from toys import GONE, flat_tensors, notes, plan, refusal

from dflash_convert.checkpoints.checkpoint import open_checkpoint
from dflash_convert.checkpoints.mask_embedding import MaskEmbedding
from dflash_convert.checkpoints.nvfp4 import Layout, dequantize, layouts
from dflash_convert.conversion import transforms
from dflash_convert.conversion.run import Conversion, write_conversion
from dflash_convert.conversion.transforms import (
    DRAFT,
    MASK_ROW,
    TARGET,
    Material,
    as_stored,
    layouts_of,
    unpacked,
    with_mask_row,
)
from dflash_convert.errors import CheckpointError
from dflash_convert.gguf_io.layout import PlannedTensor
from dflash_convert.gguf_io.reader import open_gguf

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
F32 = np.dtype(np.float32)
SCHEMES = {"modelopt": False, "compressed-tensors": True}  # divides by its scale for all
both = pytest.mark.parametrize("divides", SCHEMES.values(), ids=SCHEMES)


def named(stem: str, packed: Any, scales: Any, scale: Any, divides: bool) -> dict[str, Any]:
    """The parts of a weight under the names of a scheme."""
    ends = (".weight_packed", ".weight_global_scale") if divides else (".weight", ".weight_scale_2")
    return {stem + ends[0]: packed, f"{stem}.weight_scale": scales, stem + ends[1]: scale}


# ── on paper ──────────────────────────────────────────────────────────────────────────────────────────────────────────

# Row 0 has every code in order, twice: 0x10 is code 0 in the low nibble, then code 1. Row 1 has 0x7A (codes 10, 7: -1
# and 6) and 0x08 (codes 8, 0: -0 and 0). Scales of the groups: 1 and 2; 0.5 and 448. For all: 0.25.
PACKED = np.array(
    [[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2, [0x7A] * 8 + [0x08] * 7 + [0x7A]], dtype=np.uint8
)
SCALES = np.array([[1, 2], [0.5, 448]], dtype=np.float32).astype(E4M3)
VALUES = [
    [
        0, 0.125, 0.25, 0.375, 0.5, 0.75, 1, 1.5, -0.0, -0.125, -0.25, -0.375, -0.5, -0.75, -1, -1.5,
        0, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, -0.0, -0.25, -0.5, -0.75, -1, -1.5, -2, -3,
    ],
    [-0.125, 0.75] * 8 + [-0.0, 0] * 7 + [-112, 672],
]  # fmt: skip


def on_paper(divides: bool) -> dict[str, Array]:
    return named("w", PACKED, SCALES, np.array(4 if divides else 0.25, np.float32), divides)


@both
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_weight_worked_out_on_paper(tmp_path: Path, divides: bool, shape: tuple[int, ...]) -> None:
    parts = on_paper(divides)
    scale = list(parts)[2]
    parts[scale] = parts[scale].reshape(shape)
    (layout,) = (found := layouts(types(parts))).values()
    assert list(found) == ["w.weight"]
    assert (layout.shape, layout.divides, layout.parts) == ((2, 32), divides, tuple(parts))
    values = dequantize(parts[layout.packed], parts[layout.scales], layout.factor(parts[layout.scale]))
    assert values.dtype == F32
    assert values.tolist() == VALUES
    assert values.tobytes() == np.array(VALUES, np.float32).tobytes()  # the signs of zeros too


def types(tensors: Mapping[str, Array]) -> dict[str, tuple[str, tuple[int, ...]]]:
    words = {np.dtype(np.uint8): "U8", E4M3: "F8_E4M3", F32: "F32", BF16: "BF16"}
    return {name: (words[t.dtype], t.shape) for name, t in tensors.items()}


@both
def test_rows_are_read_apart(divides: bool) -> None:
    factor = np.float32(0.25)
    rows = [dequantize(PACKED[i : i + 1], SCALES[i : i + 1], factor) for i in range(2)]
    assert np.concatenate(rows).tolist() == VALUES


def test_the_scale_for_an_input_belongs_to_the_weight_and_is_not_read() -> None:
    for divides, name in ((False, "w.input_scale"), (True, "w.input_global_scale")):
        plain = layouts(types(on_paper(divides)))["w.weight"]
        beside = layouts({**types(on_paper(divides)), name: ("F32", ())})["w.weight"]
        assert beside.parts == (*plain.parts, name)
        assert (beside.packed, beside.scales, beside.scale) == (plain.packed, plain.scales, plain.scale)


def test_packed_weights_are_one_tensor_each_and_the_others_stay(tmp_path: Path) -> None:
    tensors = {
        **on_paper(True),
        **named("v", PACKED, SCALES, np.ones(1, np.float32), False),
        "a": weights(3),
        "z": weights(2),
    }
    tensors["w.input_global_scale"] = np.ones(1, np.float32)
    found = unpacked(open_checkpoint(make_checkpoint(tmp_path / "c", tensors))).tensors
    assert [(t.name, t.dtype, t.shape) for t in found.values()] == [
        ("a", "F32", (3,)), ("v.weight", "NVFP4", (2, 32)), ("w.weight", "NVFP4", (2, 32)), ("z", "F32", (2,)),
    ]  # fmt: skip
    assert list(found) == ["a", "v.weight", "w.weight", "z"]


# ── what does not go together ─────────────────────────────────────────────────────────────────────────────────────────

U8, E8, ONE = ("U8", (2, 16)), ("F8_E4M3", (2, 2)), ("F32", (1,))


def misfit(parts: Mapping[str, tuple[str, tuple[int, ...]]]) -> CheckpointError:
    with pytest.raises(CheckpointError) as e:
        layouts(parts)
    assert e.value.hint
    return e.value


@both
@pytest.mark.parametrize("gone", [(0,), (1,), (0, 1), (2,)])
def test_a_part_without_the_others(divides: bool, gone: tuple[int, ...]) -> None:
    parts = named("w", U8, E8, ONE, divides)
    names = list(parts)
    error = misfit({name: part for i, (name, part) in enumerate(parts.items()) if i not in gone})
    assert error.message == (
        f"{names[0 if gone == (2,) else 2]} is there, but {' and '.join(names[i] for i in gone)} is not: "
        "an NVFP4 weight lies in three tensors"
    )
    assert error.hint == "the download is incomplete, or the weight is quantized in a scheme that is not known"


@both
@pytest.mark.parametrize(
    ("packed", "scales", "scale"),
    [
        (("I32", (2, 16)), E8, ONE),
        (U8, ("F32", (2, 2)), ONE),
        (U8, ("U8", (2, 2)), ONE),
        (U8, E8, ("BF16", (1,))),
        (("U8", (32,)), E8, ONE),
        (("U8", (1, 2, 16)), E8, ONE),
        (("U8", (2, 16, 1)), E8, ONE),
        (("U8", (3, 16)), E8, ONE),
        (U8, ("F8_E4M3", (2, 1)), ONE),
        (U8, ("F8_E4M3", (4,)), ONE),
        (U8, ("F8_E4M3", (2, 2, 1)), ONE),
        (("U8", (2, 12)), ("F8_E4M3", (2, 1)), ONE),
        (("U8", (2, 17)), E8, ONE),
        (U8, E8, ("F32", (2,))),
        (U8, E8, ("F32", (0,))),
    ],
)
def test_parts_that_do_not_go_together(packed: Any, scales: Any, scale: Any, divides: bool) -> None:
    parts = named("w", packed, scales, scale, divides)
    told = [f"{name} {kind} {list(shape)}" for name, (kind, shape) in parts.items()]
    error = misfit(parts)
    assert error.message == (
        f"{told[0]}, {told[1]} and {told[2]} do not make an NVFP4 weight "
        "(U8 [out, in/2], F8_E4M3 [out, in/16], F32 [1])"
    )
    assert error.hint == "the weight is quantized in a scheme that is not known: get the unquantized original"


def test_a_weight_plain_and_packed() -> None:
    error = misfit({**named("w", U8, E8, ONE, True), "w.weight": ("BF16", (2, 32))})
    assert error.message == "w.weight and w.weight_packed are one weight, plain and packed"
    assert error.hint == "files of two versions of the model lie in one folder: keep one of them"


LEAST = np.float32(2.0**-149)


@pytest.mark.parametrize(
    ("divides", "scale", "shown"),
    [
        *((divides, bad, bad) for divides in (False, True) for bad in (np.nan, 0.0, -0.0, -1.0, np.inf, -np.inf)),
        (True, LEAST, LEAST),
    ],
)
def test_a_scale_for_all_that_is_none(divides: bool, scale: float, shown: float) -> None:
    layout = Layout("w.p", "w.s", "w.weight_global_scale", (2, 32), divides, ())
    with pytest.raises(CheckpointError) as e:
        layout.factor(np.array([scale], np.float32))
    assert e.value.message == f"w.weight_global_scale is {shown}, which is no scale"
    assert e.value.hint == "the checkpoint is damaged: download it again"


def test_the_scale_for_all_multiplies_or_divides() -> None:
    for divides, factor in ((False, 8.0), (True, 0.125)):
        assert Layout("p", "s", "g", (2, 32), divides, ()).factor(np.array(8, np.float32)) == factor
    assert Layout("p", "s", "g", (2, 32), False, ()).factor(np.array([LEAST])) == LEAST


def test_a_scale_of_a_group_that_is_nan() -> None:
    scales = SCALES.copy()
    scales[1, 0] = np.nan
    with pytest.raises(CheckpointError) as e:
        dequantize(PACKED, scales, np.float32(1), "w.weight")
    assert e.value.message == "w.weight has a scale that is NaN"
    assert e.value.hint == "the checkpoint is damaged: download it again"


# ── whole drafts ──────────────────────────────────────────────────────────────────────────────────────────────────────

MATRICES = ["fc", *(f"layers.{i}.mlp.{part}_proj" for i in range(2) for part in ("gate", "up", "down"))]
IN_GGUF = {"fc": "fc.weight"} | {
    f"layers.{i}.mlp.{part}_proj": f"blk.{i}.ffn_{part}.weight" for i in range(2) for part in ("gate", "up", "down")
}


def code(value: int) -> float:
    """An E2M1 number from its bits: sign, two of exponent, one of mantissa."""
    sign, exponent, mantissa = value >> 3, (value >> 1) & 3, value & 1
    return (-1.0) ** sign * (mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1))


CODES = np.array([code(i) for i in range(16)])


def encoded(stem: str, weight: Array, divides: bool) -> tuple[dict[str, Array], Array]:
    """A weight's parts, and what they mean in float32."""
    groups = weight.astype(np.float64).reshape(len(weight), -1, 16)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    factor = np.float32(largest.max() / (6 * 448))
    scale = np.float32(1) / factor if divides else factor
    factor = np.float32(1) / scale if divides else factor
    steps = (largest / 6 / factor).astype(np.float32).astype(E4M3)
    exact = steps.astype(np.float64)
    found = np.abs(groups[..., None] / np.maximum(exact * factor, 1e-30)[..., None] - CODES).argmin(axis=-1)
    flat = found.reshape(len(weight), -1).astype(np.uint8)
    packed = flat[:, 0::2] | flat[:, 1::2] << 4
    # a product of 2, 4 and 24 bits is exact in float64, so this rounds once
    values = (CODES[found] * exact * float(factor)).astype(np.float32).reshape(weight.shape)
    return named(stem, packed, steps[..., 0], np.array([scale], np.float32), divides), values


def packed_draft(divides: bool, beside: bool = False) -> tuple[dict[str, Any], dict[str, Array]]:
    """Changes to the golden draft that pack its matrices, and the values that they then have."""
    changes: dict[str, Any] = {f"{stem}.weight": GONE for stem in MATRICES}
    values = {}
    for stem in MATRICES:
        parts, values[IN_GGUF[stem]] = encoded(stem, flat_tensors()[f"{stem}.weight"], divides)
        changes |= parts
        if beside:
            changes[stem + (".input_global_scale" if divides else ".input_scale")] = np.array([1e30], np.float32)
    return changes, values


def written(job: Conversion) -> dict[str, Array]:
    file = open_gguf(write_conversion(job, force=True))
    dtypes = {G.F32: F32, G.BF16: BF16}
    return {
        name: np.frombuffer(file.raw(name).tobytes(), dtypes[info.type]).reshape(info.shape)
        for name, info in file.tensors.items()
    }


@both
@pytest.mark.parametrize(("outtype", "others"), [("auto", BF16), ("bf16", BF16), ("f32", F32)])
def test_a_draft_is_written_with_the_values_exactly(
    tmp_path: Path, divides: bool, outtype: str, others: np.dtype[Any]
) -> None:
    changes, values = packed_draft(divides, beside=True)
    job = plan(tmp_path, tensors=changes, outtype=outtype)
    found = written(job)
    for name, expected in values.items():
        assert found[name].dtype == F32
        assert found[name].tobytes() == expected.tobytes(), name
    query = flat_tensors()["layers.0.self_attn.q_proj.weight"]
    assert found["blk.0.attn_q.weight"].dtype == others
    assert found["blk.0.attn_q.weight"].tobytes() == query.astype(others).tobytes()
    assert [text for text in notes(job, "info") if "NVFP4" in text] == [
        "7 NVFP4 weight(s) are dequantized to F32: their values do not fit BF16"
    ]
    assert notes(job, "warning") == []


def test_the_encoder_of_this_test_is_a_good_one() -> None:
    weight = flat_tensors()["fc.weight"].astype(np.float32)
    for divides in SCHEMES.values():
        _, values = encoded("fc", weight, divides)
        assert 0.05 < np.linalg.norm(values - weight) / np.linalg.norm(weight) < 0.15


@both
def test_a_draft_in_q8_0(tmp_path: Path, divides: bool) -> None:
    job = plan(tmp_path, tensors=packed_draft(divides)[0], outtype="q8_0")
    file = open_gguf(write_conversion(job))
    assert {file.tensors[name].type for name in IN_GGUF.values()} == {G.Q8_0}


@both
def test_blocks_of_rows_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, divides: bool) -> None:
    changes, values = packed_draft(divides)
    monkeypatch.setattr(transforms, "BLOCK_BYTES", 4 * 5 * 96)  # 5 rows of fc
    job = plan(tmp_path, tensors=changes)
    (fc,) = [t for t in job.plan.tensors if t.name == "fc.weight"]
    assert job.material.spans(fc, 1) == [(i, min(i + 5, 64)) for i in range(0, 64, 5)]
    found = written(job)
    assert all(found[name].tobytes() == expected.tobytes() for name, expected in values.items())


@both
def test_a_prefix_of_names_is_no_part_of_them(tmp_path: Path, divides: bool) -> None:
    changes, values = packed_draft(divides)
    plain = {**flat_tensors(), **changes}
    moved = dict.fromkeys(plain, GONE) | {f"model.{n}": t for n, t in plain.items() if t is not GONE}
    found = written(plan(tmp_path, tensors=moved))
    assert all(found[name].tobytes() == expected.tobytes() for name, expected in values.items())


@both
def test_a_value_beyond_float32_is_named_by_its_place(tmp_path: Path, divides: bool) -> None:
    changes, _ = packed_draft(divides)
    packed, scales, scale = named("fc", 0, 0, 0, divides)
    zeros = np.zeros_like(changes[packed])
    zeros[63, 95] = 0x70  # the last of row 63: 6
    changes |= {packed: zeros, scales: np.full((64, 12), 448, E4M3)}
    changes[scale] = np.array([1e-38 if divides else 1e38], np.float32)
    job = plan(tmp_path, tensors=changes)
    with pytest.raises(CheckpointError) as e:
        write_conversion(job)
    assert e.value.message == "fc.weight has inf at [63, 191]: the weights are damaged"


@both
@pytest.mark.parametrize(
    ("part", "said"), [(1, "fc.weight has a scale that is NaN"), (2, " is nan, which is no scale")]
)
def test_damaged_scales_stop_the_writing(tmp_path: Path, divides: bool, part: int, said: str) -> None:
    changes, _ = packed_draft(divides)
    name = list(named("fc", 0, 0, 0, divides))[part]
    changes[name] = np.full_like(changes[name], np.nan)
    job = plan(tmp_path, tensors=changes)
    with pytest.raises(CheckpointError) as e:
        write_conversion(job)
    assert e.value.message.endswith(said)
    assert not job.path.exists()


@both
def test_parts_are_checked_before_anything_is_written(tmp_path: Path, divides: bool) -> None:
    changes, _ = packed_draft(divides)
    changes["fc.weight_scale"] = GONE
    message = refusal(CheckpointError, tmp_path, tensors=changes).message
    assert message.endswith("is there, but fc.weight_scale is not: an NVFP4 weight lies in three tensors")


def test_bytes_without_scales_are_no_weight(tmp_path: Path) -> None:
    changes = {"layers.0.mlp.down_proj.weight": np.zeros((64, 96), np.uint8)}
    assert refusal(CheckpointError, tmp_path, tensors=changes).message == (
        "layers.0.mlp.down_proj.weight is stored as U8: a quantized or integer tensor"
    )


def test_a_packed_weight_without_its_scale_for_all(tmp_path: Path) -> None:
    changes, _ = packed_draft(False)
    changes["fc.weight_scale_2"] = GONE
    assert refusal(CheckpointError, tmp_path, tensors=changes).message == (
        "fc.weight is there, but fc.weight_scale_2 is not: an NVFP4 weight lies in three tensors"
    )


def test_a_packed_weight_of_another_shape(tmp_path: Path) -> None:
    changes, _ = packed_draft(False)
    changes |= encoded("layers.0.mlp.down_proj", weights(64, 128), False)[0]
    assert "layers.0.mlp.down_proj.weight has shape [64, 128]; the config says [64, 96] (" in (
        refusal(CheckpointError, tmp_path, tensors=changes).message
    )


@both
def test_a_scaling_of_the_input_that_is_not_undone_is_refused(tmp_path: Path, divides: bool) -> None:
    changes, _ = packed_draft(divides)
    changes["layers.0.mlp.down_proj.pre_quant_scale"] = weights(96)
    assert refusal(CheckpointError, tmp_path, tensors=changes).message.startswith(
        "layers.0.mlp.down_proj.pre_quant_scale"
    )


@both
def test_the_mask_tokens_row_in_a_packed_table(tmp_path: Path, divides: bool) -> None:
    parts, values = encoded("embed", weights(20, 64), divides)
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "c", parts))
    mask = MaskEmbedding(None, weights(64, seed=1))
    material = Material({DRAFT: checkpoint}, 32, (19, mask), layouts_of(checkpoint))
    planned = PlannedTensor("token_embd.weight", (20, 64), G.F32, "embed.weight", MASK_ROW)
    assert with_mask_row(material, planned, 10, 20).tobytes() == (
        np.concatenate([values[10:19], mask.values[None]]).tobytes()
    )


def test_a_table_of_the_target_is_not_unpacked_as_the_drafts_of_that_name(tmp_path: Path) -> None:
    draft = open_checkpoint(make_checkpoint(tmp_path / "d", encoded("embed", weights(20, 64), False)[0]))
    table = weights(20, 64, seed=2)
    target = open_checkpoint(make_checkpoint(tmp_path / "t", {"embed.weight": table}))
    material = Material({DRAFT: draft, TARGET: target}, 32, None, layouts_of(draft))
    planned = PlannedTensor("token_embd.weight", (20, 64), G.F32, "embed.weight", origin=TARGET)
    assert as_stored(material, planned, 0, 20).tobytes() == table.tobytes()
    assert material.of(planned) is target


@both
def test_packed_queries_of_interleaved_rope_are_turned(tmp_path: Path, divides: bool) -> None:
    """As the plain ones are: even rotary dimensions of each head first."""
    changes: dict[str, Any] = {}
    for name in ("q_proj", "k_proj"):
        stem = f"layers.0.self_attn.{name}"
        parts, values = encoded(stem, flat_tensors()[f"{stem}.weight"].astype(np.float32), divides)
        changes |= {f"{stem}.weight": GONE, **parts}
        heads = values.reshape(-1, 16, 2, values.shape[1])  # (head, pair, even/odd, row length); head_dim is 32
        expected = heads.swapaxes(1, 2).reshape(values.shape)
        folder = tmp_path / name
        folder.mkdir()
        found = written(plan(folder, {"rope_is_neox_style": False}, changes))[f"blk.0.attn_{name[0]}.weight"]
        assert np.array_equal(found, expected)
