"""A plan knows every byte of its file but the data: header, offsets, padding, size."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V
from hypothesis import given
from hypothesis import strategies as st
from make import make_gguf, weights

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.layout import Plan, PlannedTensor, encode_kv, pad
from dflash_convert.gguf_io.reader import KV, LazyArray, open_gguf

ARCHITECTURE = KV("general.architecture", V.STRING, "test")


def planned(name: str, *shape: int, ggml_type: G = G.F32) -> PlannedTensor:
    return PlannedTensor(name, shape, ggml_type, "")


def aligned_to(n: int) -> KV:
    return KV("general.alignment", V.UINT32, n)


def test_a_header_worked_out_by_hand() -> None:
    plan = Plan((KV("k", V.UINT16, 258),), (planned("t", 3, 2), planned("u", 5, ggml_type=G.F16)))
    assert plan.header == (
        b"GGUF" b"\3\0\0\0" b"\2\0\0\0\0\0\0\0" b"\1\0\0\0\0\0\0\0"  # version 3, 2 tensors, 1 key
        b"\1\0\0\0\0\0\0\0" b"k" b"\2\0\0\0" b"\2\1"  # UINT16 is type 2; 258 is 0x0102
        b"\1\0\0\0\0\0\0\0" b"t" b"\2\0\0\0" b"\2\0\0\0\0\0\0\0" b"\3\0\0\0\0\0\0\0"  # 2 dimensions: rows of 2, 3 rows
        b"\0\0\0\0" b"\0\0\0\0\0\0\0\0"  # F32 is type 0; offset 0
        b"\1\0\0\0\0\0\0\0" b"u" b"\1\0\0\0" b"\5\0\0\0\0\0\0\0"
        b"\1\0\0\0" b"\x20\0\0\0\0\0\0\0"  # F16 is type 1; 24 bytes of t are padded to 32
    ).ljust(128, b"\0")  # fmt: skip
    assert plan.file_size == 128 + 32 + 32


KEYS = (
    KV("u8", V.UINT8, 255), KV("i8", V.INT8, -128), KV("u16", V.UINT16, 65535), KV("i16", V.INT16, -32768),
    KV("u32", V.UINT32, 2**32 - 1), KV("i32", V.INT32, -(2**31)), KV("u64", V.UINT64, 2**64 - 1),
    KV("i64", V.INT64, -(2**63)), KV("f32", V.FLOAT32, 1e-6), KV("f64", V.FLOAT64, 0.1), KV("flag", V.BOOL, True),
    KV("text", V.STRING, "Grüße 🦙"), KV("words", V.ARRAY, ["a", "", "ä"], V.STRING),
    KV("ids", V.ARRAY, [2, 4, 6], V.UINT32), KV("scores", V.ARRAY, [0.5, -1.0], V.FLOAT32),
    KV("flags", V.ARRAY, [True, False], V.BOOL),
)  # fmt: skip


def test_the_gguf_package_writes_the_same_file(tmp_path: Path) -> None:
    arrays = {"a": weights(3, 5), "b": weights(7, dtype=np.float16), "c": weights(2, 2, 2)}
    plan = Plan((ARCHITECTURE, *KEYS), (planned("a", 3, 5), planned("b", 7, ggml_type=G.F16), planned("c", 2, 2, 2)))
    data = b"".join(a.tobytes().ljust(pad(a.nbytes, 32), b"\0") for a in arrays.values())
    theirs = make_gguf(tmp_path / "theirs.gguf", {kv.key: kv for kv in KEYS}, arrays).read_bytes()
    assert plan.header + data == theirs
    assert plan.file_size == len(theirs)


def test_the_gguf_package_reads_every_key(tmp_path: Path) -> None:
    (tmp_path / "ours.gguf").write_bytes(Plan((ARCHITECTURE, *KEYS), ()).header)
    fields = GGUFReader(tmp_path / "ours.gguf").fields
    for kv in KEYS:
        assert fields[kv.key].types == [kv.type] + ([kv.item_type] if kv.item_type is not None else [])
        expected = np.float32(kv.value) if kv.type == V.FLOAT32 else kv.value
        assert fields[kv.key].contents() == expected


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.sampled_from([G.F32, G.F16, G.BF16]))),
    st.sampled_from([1, 8, 32, 4096]),
)
def test_tensors_follow_one_another_at_the_next_multiple(tensors: list[tuple[list[int], G]], alignment: int) -> None:
    plan = Plan((aligned_to(alignment),), tuple(planned(str(i), *s, ggml_type=t) for i, (s, t) in enumerate(tensors)))
    assert (plan.alignment, len(plan.header) % alignment) == (alignment, 0)
    ends = [*plan.offsets, plan.file_size - len(plan.header)]
    assert ends[0] == 0
    assert all(offset % alignment == 0 for offset in ends)
    for tensor, (offset, next_offset) in zip(plan.tensors, pairwise(ends), strict=True):
        assert tensor.nbytes == np.prod(tensor.shape) * (4 if tensor.type == G.F32 else 2)
        assert tensor.nbytes <= next_offset - offset < tensor.nbytes + alignment


@pytest.mark.parametrize(("alignment", "offsets"), [(1, (0, 288, 308)), (8, (0, 288, 312)), (64, (0, 320, 384))])
def test_our_reader_finds_every_tensor_where_the_plan_has_it(
    tmp_path: Path, alignment: int, offsets: tuple[int, ...]
) -> None:
    tensors = (planned("q", 2, 256, ggml_type=G.Q4_K), planned("u", 5), planned("v", 3))
    plan = Plan((ARCHITECTURE, aligned_to(alignment)), tensors)
    (tmp_path / "x.gguf").write_bytes(plan.header + bytes(plan.file_size - len(plan.header)))
    gguf = open_gguf(tmp_path / "x.gguf")
    assert (gguf.alignment, gguf.data_offset) == (alignment, len(plan.header))
    assert [(t.name, t.shape, t.type, t.nbytes) for t in gguf.tensors.values()] == [
        (t.name, t.shape, t.type, t.nbytes) for t in plan.tensors
    ]
    assert tuple(t.offset - gguf.data_offset for t in gguf.tensors.values()) == plan.offsets == offsets


@pytest.mark.parametrize(("n", "alignment", "padded"), [(0, 32, 0), (1, 32, 32), (32, 32, 32), (33, 32, 64), (5, 1, 5)])
def test_padding_rounds_up(n: int, alignment: int, padded: int) -> None:
    assert pad(n, alignment) == padded


def test_an_array_that_was_never_decoded_is_copied_as_it_is(tmp_path: Path) -> None:
    words = [b"\xff\xfe", b"", "ä".encode()] * 40  # tokens may be no UTF-8 at all
    raw = b"".join(struct.pack("<Q", len(w)) + w for w in words)
    source = KV("words", V.ARRAY, LazyArray(V.STRING, len(words), memoryview(raw)), V.STRING)
    encoded = encode_kv(source)
    assert encoded == struct.pack("<Q5sIIQ", 5, b"words", V.ARRAY, V.STRING, len(words)) + raw
    assert "items" not in vars(source.value)
    decoded: list[Any] = list(source.value)
    assert encode_kv(KV("words", V.ARRAY, decoded, V.STRING)) == encoded


def test_a_planned_tensor_is_seen_as_rows() -> None:
    tensor = planned("t", 2, 3, 64, ggml_type=G.Q8_0)
    assert (tensor.n_rows, tensor.row_length, tensor.n_weights, tensor.nbytes) == (6, 64, 384, 6 * 68)
    vector = planned("v", 5)
    assert (vector.n_rows, vector.row_length, vector.n_weights, vector.nbytes) == (1, 5, 5, 20)


def test_sizes_beyond_64_bits_do_not_wrap() -> None:
    assert planned("t", 2**33, 2**33).n_weights == 2**66


def test_a_row_that_does_not_divide_into_blocks_is_refused() -> None:
    with pytest.raises(GGUFError, match=r"^a row of 96 weights is not a multiple of Q4_K's block size 256$"):
        _ = planned("t", 2, 96, ggml_type=G.Q4_K).nbytes
