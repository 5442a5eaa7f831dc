"""A GGUF file is read exactly, and no more of it than was asked for."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V
from gguf_bytes import ONE, SAMPLE, array, image, line, opened, text
from make import make_gguf, weights

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.header import EAGER_ARRAY
from dflash_convert.gguf_io.reader import KV, LazyArray, odd_bytes, open_gguf, row_bytes


def test_a_file_worked_out_by_hand(tmp_path: Path) -> None:
    gguf = opened(tmp_path, SAMPLE)
    assert (gguf.version, gguf.architecture, gguf.alignment) == (3, "dflash", 32)
    assert gguf.kv["numbers"] == KV("numbers", V.ARRAY, [-1, 2], V.INT16)
    assert gguf.get("words") == ["a", "", "ä"]
    assert gguf.get("ones") == [1] * 100
    assert gguf.get("two") is None
    assert gguf.data_offset == len(SAMPLE) - 66
    a, b = gguf.tensors.values()
    assert (a.name, a.shape, a.type, a.offset, a.nbytes) == ("a", (3, 2), G.F32, gguf.data_offset, 24)
    assert (b.name, b.shape, b.type, b.offset, b.nbytes) == ("b", (32,), G.Q8_0, gguf.data_offset + 32, 34)
    assert gguf.raw("a").view("<f4").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert gguf.raw("b").tolist() == [list(range(34))]


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read(tmp_path: Path, version: int) -> None:
    assert opened(tmp_path, image(ONE, front=struct.pack("<4sIQQ", b"GGUF", version, 0, 1))).version == version


@pytest.mark.parametrize("words", [["a", ""], ["", "a"], [""], []])
def test_the_last_string_may_end_the_file(tmp_path: Path, words: list[str]) -> None:
    gguf = opened(tmp_path, image(array("words", V.STRING, len(words), b"".join(map(text, words)))))
    assert gguf.get("words") == words


# -- what the gguf package writes ----------------------------------------------------------------------------------

VALUES: dict[V, tuple[Any, Any]] = {
    V.UINT8: (0, 255), V.INT8: (-128, 127), V.UINT16: (0, 65535), V.INT16: (-32768, 32767),
    V.UINT32: (0, 2**32 - 1), V.INT32: (-(2**31), 2**31 - 1), V.UINT64: (0, 2**64 - 1), V.INT64: (-(2**63), 2**63 - 1),
    V.FLOAT32: (0.5, -1e6), V.FLOAT64: (0.1, 1e300), V.BOOL: (True, False), V.STRING: ("", "Grüße 🦙"),
}  # fmt: skip


@pytest.mark.parametrize("vtype", VALUES, ids=lambda v: v.name)
def test_every_value_type_is_read_alone_and_in_arrays(tmp_path: Path, vtype: V) -> None:
    low, high = VALUES[vtype]
    long = [low, high] * EAGER_ARRAY
    keys = [
        KV("low", vtype, low), KV("high", vtype, high),
        KV("short", V.ARRAY, [low, high], vtype), KV("long", V.ARRAY, long, vtype),
    ]  # fmt: skip
    gguf = open_gguf(make_gguf(tmp_path / "x.gguf", {kv.key: kv for kv in keys}))
    assert [gguf.kv[kv.key] for kv in keys] == keys
    assert type(gguf.get("low")) is type(low)
    assert (type(gguf.get("short")), type(gguf.get("long"))) == (list, LazyArray)
    assert [type(v) for v in gguf.get("long")] == [type(v) for v in long]


def test_tensors_of_every_storage_are_views_of_the_file(tmp_path: Path) -> None:
    blocks = np.arange(2 * 34, dtype=np.uint8).reshape(2, 34)
    tensors: dict[str, Any] = {"f": weights(2, 1, 3, 5), "h": weights(7, dtype=np.float16), "q": (G.Q8_0, blocks)}
    gguf = open_gguf(make_gguf(tmp_path / "x.gguf", {}, tensors))
    assert [(t.shape, t.type, t.n_rows, t.row_length) for t in gguf.tensors.values()] == [
        ((2, 1, 3, 5), G.F32, 6, 5), ((7,), G.F16, 1, 7), ((2, 32), G.Q8_0, 2, 32),
    ]  # fmt: skip
    assert np.array_equal(gguf.raw("f").view("<f4").reshape(2, 1, 3, 5), tensors["f"])
    assert np.array_equal(gguf.raw("h").view("<f2")[0], tensors["h"])
    assert np.array_equal(gguf.raw("q"), blocks)
    assert not gguf.raw("q").flags.writeable
    assert not gguf.raw("q").flags.owndata


@pytest.mark.parametrize(("ne", "rows"), [((0, 4), (4, 0)), ((4, 0), (0, 16)), ((), (1, 4))])
def test_empty_tensors_and_scalars_keep_their_rows(tmp_path: Path, ne: tuple[int, ...], rows: tuple[int, int]) -> None:
    assert opened(tmp_path, image(lines=(line("t", ne),), data=bytes(32))).raw("t").shape == rows


@pytest.mark.parametrize(("ggml_type", "length", "nbytes"), [(G.F32, 3, 12), (G.Q8_0, 64, 68), (G.Q4_K, 512, 288)])
def test_a_row_is_blocks_times_block_size(ggml_type: G, length: int, nbytes: int) -> None:
    assert row_bytes(ggml_type, length) == nbytes


# -- long arrays ---------------------------------------------------------------------------------------------------


def test_a_vocabulary_is_not_decoded_until_it_is_asked_for(tmp_path: Path) -> None:
    words = [f"▁token{i}" for i in range(152_000)]
    kinds = [i % 7 for i in range(len(words))]
    packed = struct.pack(f"<{len(kinds)}i", *kinds)
    tokens = array("tokens", V.STRING, len(words), b"".join(map(text, words)))
    gguf = opened(tmp_path, image(tokens, array("kinds", V.INT32, len(kinds), packed), ONE))
    assert gguf.get("one") == 1
    lazy = gguf.get("tokens")
    assert (len(lazy), "items" in vars(lazy), "items" in vars(gguf.get("kinds"))) == (len(words), False, False)
    assert gguf.get("kinds").raw == packed
    assert (lazy[0], lazy[-1], lazy[3:5]) == (words[0], words[-1], (words[3], words[4]))
    assert lazy == words
    assert gguf.get("kinds") == kinds


def test_lazy_arrays_equal_by_type_and_content(tmp_path: Path) -> None:
    def lazy(item: V, fmt: str, *values: float) -> LazyArray:
        return LazyArray(item, len(values), memoryview(struct.pack(f"<{len(values)}{fmt}", *values)))

    ours = lazy(V.INT32, "i", 1, 2)
    assert ours == lazy(V.INT32, "i", 1, 2)
    assert ours == lazy(V.INT64, "q", 1, 2)
    assert ours != lazy(V.INT32, "i", 1, 3)
    assert ours != lazy(V.INT32, "i", 1)
    assert ours != [1]
    assert ours != 1


# -- the file system -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "reason"), [("none.gguf", "No such file or directory"), ("", "Is a directory")])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(GGUFError) as caught:
        open_gguf(tmp_path / name)
    assert caught.value.message == f"{tmp_path / name}: {reason}"


def test_a_file_that_takes_over_the_name_changes_nothing(tmp_path: Path) -> None:
    old = opened(tmp_path, SAMPLE)
    (tmp_path / "new").write_bytes(SAMPLE[:-34] + bytes(34))
    (tmp_path / "new").replace(old.path)
    assert old.raw("b").tolist() == [list(range(34))]
    assert open_gguf(old.path).raw("b").tolist() == [[0] * 34]


# -- bytes that belong to nothing ----------------------------------------------------------------------------------


def test_what_lies_beside_header_and_tensors_is_told(tmp_path: Path) -> None:
    """SAMPLE: tensor a has 24 bytes, then 8 of padding, then b with 34."""
    whole = opened(tmp_path, SAMPLE)
    start, end = whole.data_offset, len(SAMPLE)
    padded = start + 96
    assert list(odd_bytes(whole)) == []
    assert list(odd_bytes(opened(tmp_path, SAMPLE + bytes(padded - end)))) == []
    assert list(odd_bytes(opened(tmp_path, SAMPLE + bytes(padded - end + 1)))) == [
        f"1 bytes lie behind the last tensor, from byte {padded}"
    ]
    assert list(odd_bytes(opened(tmp_path, SAMPLE + b"\1"))) == [
        f"the padding behind the last tensor (bytes {end} to {padded}) does not hold zeros"
    ]
    gap = SAMPLE[: start + 24] + b"\0\0\0\0\0\0\0\1" + SAMPLE[start + 32 :]
    assert list(odd_bytes(opened(tmp_path, gap))) == [
        f"the padding before b (bytes {start + 24} to {start + 32}) does not hold zeros"
    ]


def test_bytes_behind_a_header_without_tensors_are_told(tmp_path: Path) -> None:
    assert list(odd_bytes(opened(tmp_path, image(ONE) + bytes(64)))) != []
    assert list(odd_bytes(opened(tmp_path, image(ONE)))) == []
