"""The bytes of a tensor: blocks that add up, every stored type in every output type, damage named by index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import BF16, Array, make_checkpoint, weights
from toys import FLAT, TARGET, TINY_PAIR, engine_variant, flat_tensors, read_json, toy_draft

from dflash_convert.checkpoints.checkpoint import Checkpoint
from dflash_convert.conversion.run import Conversion, convert, plan_conversion, write_conversion
from dflash_convert.conversion.stream import block_bytes, row_blocks
from dflash_convert.conversion.transforms import halves_of_pairs
from dflash_convert.errors import CheckpointError
from dflash_convert.gguf_io.layout import PlannedTensor
from dflash_convert.gguf_io.reader import open_gguf


def test_rotary_pairs_become_halves() -> None:
    rows = np.arange(2 * 8)[:, None] + np.array([0, 100])  # two heads of eight dimensions, two columns
    halves = [0, 2, 4, 6, 1, 3, 5, 7]
    assert halves_of_pairs(rows, 8)[:, 0].tolist() == halves + [i + 8 for i in halves]
    assert halves_of_pairs(rows, 8)[:, 1].tolist() == [100 + i for i in halves + [i + 8 for i in halves]]
    assert halves_of_pairs(np.arange(8)[None, :], 8).tolist() == [halves]


# ── every stored type into every output type ──────────────────────────────────────────────────────────────────────────


def oracle(values: Array, wanted: str) -> bytes:
    """Float32 values in a GGUF type, by numpy, ml_dtypes and the gguf package."""
    if wanted == "q8_0":
        return bytes(gguf.quants.quantize(values, G.Q8_0).tobytes())
    dtype = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}[wanted]
    return values.astype(dtype).tobytes()


@pytest.mark.parametrize("wanted", ["f32", "f16", "bf16", "q8_0", "auto"])
@pytest.mark.parametrize("stored", [np.dtype(np.float32), np.dtype(np.float16), BF16], ids=str)
def test_bytes_of_each_stored_type_in_each_output_type(tmp_path: Path, stored: np.dtype[Any], wanted: str) -> None:
    tensors = {n: weights(*t.shape, seed=len(n)).astype(stored) for n, t in flat_tensors().items()}
    draft = make_checkpoint(tmp_path / "draft", tensors, read_json(FLAT / "config.json"))
    job = plan_conversion(draft, TARGET, tmp_path / "o.gguf", outtype=wanted)
    file = open_gguf(write_conversion(job))
    matrices = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[str(stored)] if wanted == "auto" else wanted
    for planned in job.plan.tensors:
        kind = "f32" if len(planned.shape) == 1 else matrices
        expected = oracle(tensors[planned.source].astype(np.float32), kind)
        assert file.raw(planned.name).tobytes() == expected, planned.name


# ── streaming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def blocks_of(n_bytes: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "spans", partialmethod(Checkpoint.spans, max_bytes=n_bytes))
        yield


def tensor_bytes(job: Conversion, tensor: PlannedTensor) -> list[memoryview]:
    return [block_bytes(job.material, block) for block in row_blocks(job.material, tensor)]


@pytest.mark.parametrize("name", ["dflash", "interleaved-rope"])
def test_a_tensor_comes_in_blocks_that_add_up_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    job = plan_conversion(engine_variant(tmp_path / "draft", name), TINY_PAIR / "target")
    fc, q = (next(t for t in job.plan.tensors if t.name == n) for n in ("fc.weight", "blk.0.attn_q.weight"))
    whole = {t.name: b"".join(tensor_bytes(job, t)) for t in (fc, q)}
    with blocks_of(3000):
        parts = {t.name: tensor_bytes(job, t) for t in (fc, q)}
    assert {n: b"".join(p) for n, p in parts.items()} == whole
    assert max(map(len, parts["fc.weight"])) <= 3000
    head = 64 * 256 * 2  # rows of a head stay together where they are reordered
    assert max(map(len, parts["blk.0.attn_q.weight"])) == (head if name == "interleaved-rope" else 2560)


# ── damaged weights ───────────────────────────────────────────────────────────────────────────────────────────────────


def broken(value: float, dtype: Any, name: str, index: tuple[int, ...]) -> dict[str, Array]:
    tensor = flat_tensors()[name].astype(dtype)
    tensor[index] = value
    return {name: tensor}


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32], ids=str)
@pytest.mark.parametrize(("value", "word"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_nan_and_inf_are_named_by_tensor_and_index(tmp_path: Path, dtype: Any, value: float, word: str) -> None:
    draft = toy_draft(tmp_path / "d", tensors=broken(value, dtype, "fc.weight", (37, 5)))
    with blocks_of(1024), pytest.raises(CheckpointError) as e:
        convert(draft, TARGET, tmp_path / "o.gguf")
    assert e.value.message == f"fc.weight has {word} at [37, 5]: the weights are damaged"
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_nan_in_a_vector_has_one_index(tmp_path: Path) -> None:
    draft = toy_draft(tmp_path / "d", tensors=broken(np.nan, BF16, "norm.weight", (9,)))
    with pytest.raises(CheckpointError, match=re.escape("norm.weight has nan at [9]")):
        convert(draft, TARGET, tmp_path / "o.gguf")


@pytest.mark.parametrize(
    ("value", "outtype", "said"),
    [
        (9.1e4, "f16", "fc.weight has 91136 at [37, 5]; F16 ends at 65504 and would overflow"),
        (-9.1e4, "f16", "fc.weight has -91136 at [37, 5]; F16 ends at 65504 and would overflow"),
        (9e6, "q8_0", "fc.weight has 8.97843e+06 at [37, 5]; Q8_0 ends at 8.31901e+06 and would overflow"),
        (9.1e4, "q8_0", None),
        (9.1e4, "bf16", None),
    ],
)
def test_a_weight_the_output_type_cannot_hold(tmp_path: Path, value: float, outtype: str, said: str | None) -> None:
    draft = toy_draft(tmp_path / "d", tensors=broken(value, BF16, "fc.weight", (37, 5)))
    if said is None:
        assert convert(draft, TARGET, tmp_path / "o.gguf", outtype=outtype).is_file()
        return
    with blocks_of(1024), pytest.raises(CheckpointError) as e:
        convert(draft, TARGET, tmp_path / "o.gguf", outtype=outtype)
    assert (e.value.message, e.value.hint) == (said, "use --outtype bf16")


def test_a_float32_beyond_bf16_would_become_inf(tmp_path: Path) -> None:
    draft = toy_draft(tmp_path / "d", tensors=broken(3.4e38, np.float32, "fc.weight", (0, 0)))
    with pytest.raises(CheckpointError, match="BF16 ends at") as e:
        convert(draft, TARGET, tmp_path / "o.gguf", outtype="bf16")
    assert e.value.hint == "use --outtype f32"
