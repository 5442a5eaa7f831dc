"""GGUF files byte by byte, for what no writer would write."""

from __future__ import annotations

import struct
from pathlib import Path

from gguf.constants import GGMLQuantizationType as G
from gguf.constants import GGUFValueType as V

from dflash_convert.gguf_io.reader import GGUFFile, open_gguf


def text(s: str) -> bytes:
    return struct.pack("<Q", len(s.encode())) + s.encode()


def key(name: str, number: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", number) + payload


def array(name: str, item: int, count: int, payload: bytes = b"") -> bytes:
    return key(name, V.ARRAY, struct.pack("<IQ", item, count) + payload)


def line(name: str, ne: tuple[int, ...], number: int = G.F32, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, number, offset)


def image(*keys: bytes, lines: tuple[bytes, ...] = (), data: bytes = b"", front: bytes | None = None) -> bytes:
    """A whole file; `front` replaces magic, version and the two counts."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(lines), len(keys)) if front is None else front
    head += b"".join((*keys, *lines))
    return head + bytes(-len(head) % 32) * bool(data) + data


ONE = key("one", V.UINT32, struct.pack("<I", 1))
SAMPLE = image(
    key("general.architecture", V.STRING, text("dflash")),
    array("words", V.STRING, 3, text("a") + text("") + text("ä")),
    array("numbers", V.INT16, 2, struct.pack("<2h", -1, 2)),
    array("ones", V.UINT8, 100, bytes([1] * 100)),
    lines=(line("a", (2, 3)), line("b", (32,), G.Q8_0, 32)),
    data=struct.pack("<6f", *range(6)) + bytes(8) + bytes(range(34)),
)


def opened(folder: Path, content: bytes) -> GGUFFile:
    path = folder / "file.gguf"
    path.write_bytes(content)
    return open_gguf(path)
