"""Every lie a GGUF file can tell is told by name, with something to do."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V
from gguf_bytes import ONE, SAMPLE, array, image, key, line, opened, text
from hypothesis import example, given
from hypothesis import strategies as st

from dflash_convert.errors import GGUFError

CUT = "the file is incomplete: download or write it again"
HUGE = 2**63
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "not GGUF": (b"PK\3\4" + bytes(60), "not a GGUF file: it starts with b'PK\\x03\\x04', not b'GGUF'"),
    "big-endian": (
        b"GGUF" + bytes([0, 0, 0, 3]),
        "big-endian GGUF files are not supported (2 and 3, little-endian, are)",
    ),
    "version 1": (
        b"GGUF" + bytes([1, 0, 0, 0]),
        "version 1 GGUF files are not supported (2 and 3, little-endian, are)",
    ),
    "absurd key count": (
        image(ONE, front=struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE)),
        f"the file ends inside key 2 of {HUGE}: 8 bytes wanted at offset 43, 43 bytes in all",
    ),
    "absurd tensor count": (
        image(front=struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0)),
        f"the file ends inside line 1 of the tensor table, which has {HUGE}: "
        "8 bytes wanted at offset 24, 24 bytes in all",
    ),
    "absurd key length": (
        image(struct.pack("<Q", HUGE)),
        f"the file ends inside key 1 of 1: {HUGE} bytes wanted at offset 32, 32 bytes in all",
    ),
    "absurd array of numbers": (
        image(array("k", V.INT64, HUGE)),
        f"the file ends inside the value of k: {8 * HUGE} bytes wanted at offset 49, 49 bytes in all",
    ),
    "absurd array of strings": (
        image(array("k", V.STRING, HUGE)),
        f"the file ends inside the value of k: {8 * HUGE} bytes wanted at offset 49, 49 bytes in all",
    ),
    "a string that runs off the file": (
        image(array("k", V.STRING, 2, struct.pack("<Q", HUGE) + text(""))),
        f"the file ends inside the value of k: {HUGE + 16} bytes wanted at offset 49, 65 bytes in all",
    ),
    "a string cut behind its length": (
        image(array("k", V.STRING, 1, struct.pack("<Q", 5))),
        "the file ends inside the value of k: 13 bytes wanted at offset 49, 57 bytes in all",
    ),
    "too few strings": (
        image(array("k", V.STRING, 2, text("a longer word"))),
        "the file ends inside the value of k: 29 bytes wanted at offset 49, 70 bytes in all",
    ),
    "key twice": (image(ONE, ONE), "the key one is there twice"),
    "unknown value type": (image(key("k", 13, b"")), "the key k has the unknown value type 13"),
    "unknown item type": (image(array("k", 77, 0)), "the key k has the unknown value type 77"),
    "nested array": (
        image(array("k", V.ARRAY, 1)),
        "the key k is an array of arrays, which GGUF readers do not support",
    ),
    "alignment 48": (
        image(key("general.alignment", V.UINT32, struct.pack("<I", 48))),
        "general.alignment is 48 (UINT32); it must be a UINT32 that is a power of two",
    ),
    "alignment 0": (
        image(key("general.alignment", V.UINT32, bytes(4))),
        "general.alignment is 0 (UINT32); it must be a UINT32 that is a power of two",
    ),
    "alignment in words": (
        image(key("general.alignment", V.STRING, text("wide"))),
        "general.alignment is 'wide' (STRING); it must be a UINT32 that is a power of two",
    ),
    "a name in no encoding": (
        image(*[struct.pack("<Q", 1) + b"\xff" + ONE[11:]] * 2),
        "the key \\udcff is there twice",
    ),
    "tensor twice": (image(lines=(line("t", (1,)), line("t", (1,)))), "the tensor t is there twice"),
    "5 dimensions": (image(lines=(line("t", (1,) * 5),)), "the tensor t has 5 dimensions; ggml knows up to 4"),
    "absurd shape": (
        image(lines=(line("t", (HUGE, HUGE)),)),
        f"the tensor t has the shape [{HUGE}, {HUGE}]: more weights than ggml can count",
    ),
    "absurd empty shape": (
        image(lines=(line("t", (0, HUGE)),)),
        f"the tensor t has the shape [{HUGE}, 0]: more weights than ggml can count",
    ),
    "unknown ggml type": (image(lines=(line("t", (1,), 4),)), "the tensor t has the unknown ggml type 4"),
    "broken row": (
        image(lines=(line("t", (33,), G.Q8_0),)),
        "the tensor t: a row of 33 weights is not a multiple of Q8_0's block size 32",
    ),
    "misaligned": (
        image(lines=(line("t", (1,), offset=4),), data=bytes(64)),
        "the tensor t lies at offset 4, not a multiple of 32",
    ),
    "overlap": (
        image(lines=(line("a", (16,)), line("b", (1,), offset=32)), data=bytes(96)),
        "the tensor b lies at offset 32, 32 bytes too early: tensors must follow one another without overlap or gap",
    ),
    "gap": (
        image(lines=(line("a", (1,)), line("b", (1,), offset=64)), data=bytes(96)),
        "the tensor b lies at offset 64, 32 bytes too late: tensors must follow one another without overlap or gap",
    ),
    "data cut": (
        image(lines=(line("t", (9,)),), data=bytes(35)),
        "truncated: the tensor t ends at byte 100, the file at 99",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_told_by_name(tmp_path: Path, damage: str) -> None:
    content, message = DAMAGED[damage]
    with pytest.raises(GGUFError) as caught:
        opened(tmp_path, content)
    assert caught.value.message == f"file.gguf: {message}"


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        ("data cut", CUT),
        ("too few strings", CUT),
        ("empty", "download or write it again"),
        ("overlap", "llama.cpp refuses such a file too; write it again with the tool it comes from"),
        (
            "unknown ggml type",
            "it was written for a fork of llama.cpp with types of its own; ask for a file in mainline types",
        ),
    ],
)
def test_damage_comes_with_something_to_do(tmp_path: Path, damage: str, hint: str) -> None:
    with pytest.raises(GGUFError) as caught:
        opened(tmp_path, DAMAGED[damage][0])
    assert caught.value.hint == hint


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, SAMPLE)
    for length in range(len(SAMPLE)):
        with pytest.raises(GGUFError):
            opened(tmp_path, SAMPLE[:length])


@given(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8))
@example(0, b"\xff").via("the magic number")
def test_a_garbled_file_is_refused_or_readable_to_its_end(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes
) -> None:
    garbled = SAMPLE[:at] + noise + SAMPLE[at + len(noise) :]
    try:
        gguf = opened(tmp_path_factory.mktemp("garbled"), garbled)
    except GGUFError:
        return
    assert all(len(list(kv.value)) == len(kv.value) for kv in gguf.kv.values() if kv.type == V.ARRAY)
    assert all(gguf.raw(name).size == info.nbytes for name, info in gguf.tensors.items())
