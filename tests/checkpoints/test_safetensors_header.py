"""A safetensors file is believed only when its bytes add up, and each way they may not has its own words."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from make import make_safetensors, weights
from safetensors import safe_open

from dflash_convert.checkpoints.safetensors_header import DTYPES, SourceTensor, read_header
from dflash_convert.errors import CheckpointError


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def image(header: Any, data: bytes = bytes(8)) -> bytes:
    packed = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(packed)) + packed + data


def headed(folder: Path, content: bytes) -> dict[str, SourceTensor]:
    path = folder / "w.safetensors"
    path.write_bytes(content)
    return read_header(path)


def test_a_file_worked_out_by_hand(tmp_path: Path) -> None:
    header = {
        "b": entry("BF16", [2, 3], [8, 20]),
        "__metadata__": {"format": "pt"},
        "a": entry(),
        "s": entry("I8", [], [20, 21]),
    }
    content = image(header, bytes(21))
    tensors = headed(tmp_path, content)
    assert list(tensors) == ["a", "b", "s"]
    start, file = len(content) - 21, tmp_path / "w.safetensors"
    assert tensors["a"] == SourceTensor("a", "F32", (2,), file, start, 8)
    assert tensors["b"] == SourceTensor("b", "BF16", (2, 3), file, start + 8, 12)
    assert [(t.n_rows, t.row_length) for t in tensors.values()] == [(1, 2), (2, 3), (1, 1)]


def test_the_safetensors_package_agrees_on_every_dtype(tmp_path: Path) -> None:
    arrays = {
        str(d): weights(3, 2, dtype=d) for d in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, np.int64, bool)
    }
    path = make_safetensors(tmp_path / "w.safetensors", arrays)
    tensors = read_header(path)
    with safe_open(path, "np") as theirs:
        assert sorted(theirs.keys()) == list(tensors)
        for name, tensor in tensors.items():
            assert theirs.get_slice(name).get_dtype() == tensor.dtype
            assert DTYPES[tensor.dtype] == arrays[name].dtype
            assert path.read_bytes()[tensor.offset :][: tensor.nbytes] == arrays[name].tobytes()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1073741824\n"
AGAIN = "download the file again"
DAMAGED: dict[str, tuple[bytes, str, str]] = {
    "LFS pointer": (
        POINTER,
        "w.safetensors is a 75-byte Git-LFS pointer, not the weights",
        "run `git lfs pull`, or `hf download`",
    ),
    "web page": (
        b"\n <!DOCTYPE html><title>Sign in</title>",
        "w.safetensors is a web page, not weights",
        "download it with `hf download`",
    ),
    "bare web page": (
        b"<html><body>404</body></html>",
        "w.safetensors is a web page, not weights",
        "download it with `hf download`",
    ),
    "empty": (b"", "w.safetensors has 0 bytes: not a safetensors file", AGAIN),
    "7 bytes": (bytes(7), "w.safetensors has 7 bytes: not a safetensors file", AGAIN),
    "absurd header length": (
        struct.pack("<Q", 2**63) + b"{}",
        f"w.safetensors is not a safetensors file, or is cut: its first 8 bytes announce a header of {2**63} bytes, "
        "the file has 10",
        AGAIN,
    ),
    "cut in the header": (
        image({"a": entry()}, b"")[:-1],
        "w.safetensors is not a safetensors file, or is cut: its first 8 bytes announce a header of 54 bytes, "
        "the file has 61",
        AGAIN,
    ),
    "not JSON": (
        image(b"{'a'"),
        "w.safetensors: the header, line 1 column 2: not valid JSON: Expecting property name enclosed in double quotes",
        AGAIN,
    ),
    "not text": (
        image(b"\xff" * 4),
        "w.safetensors: the header, line 1 column 1: the byte 0xff is not UTF-8",
        "save it as UTF-8, or download it",
    ),
    "a list": (image([]), "w.safetensors: the header: an object was expected, not a list", AGAIN),
    "a dtype of the future": (
        image({"a": entry("F4")}),
        "w.safetensors: a has the dtype F4, which is not supported",
        "known: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, U64, U32, U16, U8, BOOL",
    ),
    "too many bytes": (
        image({"a": entry(shape=[1])}),
        "w.safetensors: a is F32 of shape [1], so 4 bytes, but the header gives it 8",
        AGAIN,
    ),
    "too few bytes": (
        image({"a": entry(shape=[3])}),
        "w.safetensors: a is F32 of shape [3], so 12 bytes, but the header gives it 8",
        AGAIN,
    ),
    "a size that wraps at 64 bits": (
        image({"a": entry(shape=[2**32, 2**32], offsets=[0, 0])}, b""),
        f"w.safetensors: a is F32 of shape [{2**32}, {2**32}], so {2**66} bytes, but the header gives it 0",
        AGAIN,
    ),
    "overlap": (
        image({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "w.safetensors: a and b lie over the same bytes, from 120 to 124",
        "each tensor needs bytes of its own: save it again with safetensors' save_model",
    ),
    "two names over one range": (
        image({"b": entry(), "a": entry()}),
        "w.safetensors: a and b lie over the same bytes, from 115 to 123",
        "each tensor needs bytes of its own: save it again with safetensors' save_model",
    ),
    "a name twice": (
        image(b'{"a":%b,"a":%b}' % (json.dumps(entry()).encode(), json.dumps(entry("I32")).encode())),
        "w.safetensors: the header, line 1 column 61: the key 'a' is there twice",
        "keep the right one of the two",
    ),
    "what only the library knows": (
        image({"__metadata__": {"format": 1}, "a": entry()}),
        "w.safetensors: Error while deserializing header: invalid JSON in header: "
        "invalid type: integer `1`, expected a string at line 1 column 27",
        AGAIN,
    ),
    "gap": (
        image({"a": entry(), "b": entry(offsets=[9, 17])}, bytes(17)),
        "w.safetensors: b leaves a gap before it: at byte 125, not 124",
        "download w.safetensors again",
    ),
    "truncated": (
        image({"a": entry()}, bytes(5)),
        "w.safetensors is truncated: 3 bytes are missing (8 + header + data = 70, the file has 67)",
        "download w.safetensors again",
    ),
    "too long": (
        image({"a": entry()}, bytes(9)),
        "w.safetensors has 1 bytes too many (8 + header + data = 70, the file has 71)",
        "download w.safetensors again",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_told_by_name(tmp_path: Path, damage: str) -> None:
    content, message, hint = DAMAGED[damage]
    with pytest.raises(CheckpointError) as caught:
        headed(tmp_path, content)
    assert (caught.value.message, caught.value.hint) == (message, hint)


BROKEN: list[Any] = [
    None, [], "F32", {}, entry(dtype=7), entry(shape=None), entry(shape="12"), entry(shape=[2.0]), entry(shape=[-2]),
    entry(shape=[True]), entry(offsets=None), entry(offsets=[0]), entry(offsets=[0, 4, 8]), entry(offsets=["0", "8"]),
    entry(offsets=[-8, 0]),
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=json.dumps)
def test_a_broken_entry_is_shown(tmp_path: Path, broken: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        headed(tmp_path, image({"a": broken}))
    shown = json.loads(json.dumps(broken))
    assert caught.value.message == f"w.safetensors: the header entry of a is damaged: {shown!r}"


def test_nesting_without_end_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the header, line 1 column 501: nested more than 500 deep"):
        headed(tmp_path, image(b"[" * 100_000))


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path, limit = tmp_path / "w.safetensors", 100 << 20
    with path.open("wb") as f:
        f.write(struct.pack("<Q", limit + 1))
        f.truncate(2 * limit)  # a sparse file
    with pytest.raises(CheckpointError, match=f"announce a header of {limit + 1} bytes"):
        read_header(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        read_header(tmp_path / "w.safetensors")
    assert caught.value.message == f"{tmp_path}/w.safetensors: No such file or directory"


SAMPLE = image({"a": entry("F16", [2, 2]), "b": entry("F32", [3], [8, 20])}, bytes(20))


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    headed(tmp_path, SAMPLE)
    for length in range(len(SAMPLE)):
        with pytest.raises(CheckpointError):
            headed(tmp_path, SAMPLE[:length])


@given(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8))
def test_a_garbled_file_is_refused_or_adds_up(tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes) -> None:
    garbled = SAMPLE[:at] + noise + SAMPLE[at + len(noise) :]
    try:
        tensors = headed(tmp_path_factory.mktemp("garbled"), garbled)
    except CheckpointError:
        return
    assert sum(t.nbytes for t in tensors.values()) == 20
