"""A key's value in the type that mainline takes it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from gguf.constants import GGUFValueType as V

from dflash_convert.dialects.mainline import TYPES
from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import KV

LARGEST = 3.4028234663852886e38  # of float32


def whole(value: Any) -> int | None:
    """A number without fraction that is no truth value."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_u32(value: Any) -> bool:
    """A number that 32 bits without a sign hold."""
    return whole(value) is not None and 0 <= value < 2**32


def is_i32(value: Any) -> bool:
    """A number that 32 bits hold."""
    return whole(value) is not None and -(2**31) <= value < 2**31


def _is_real(value: Any) -> bool:
    """A finite number that float32 reaches."""
    return (whole(value) is not None or isinstance(value, float)) and abs(value) <= LARGEST


def is_truth(value: Any) -> bool:
    """True or false, or 1 or 0."""
    return isinstance(value, bool) or whole(value) in (0, 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# mainline's word → the format's type, which values can have it, and how they get it
KINDS: Mapping[str, tuple[V, Callable[[Any], bool], Callable[[Any], Any]]] = MappingProxyType({
    "u32": (V.UINT32, is_u32, int), "i32": (V.INT32, is_i32, int), "f32": (V.FLOAT32, _is_real, float),
    "bool": (V.BOOL, is_truth, bool), "str": (V.STRING, _is_text, str),
})  # fmt: skip


def key_value(kv: KV, below: str) -> KV:
    """The key as `dflash.<below>`. One that mainline does not know keeps its type. Raises GGUFError: no such value."""
    name = f"dflash.{below}"
    word = TYPES.get(below)
    if word is None:
        return replace(kv, key=name, source=kv.key)
    vtype, fits, convert = KINDS[word.strip("[]")]
    is_list = isinstance(kv.value, Sequence) and not isinstance(kv.value, str)
    items = list(kv.value) if is_list else [kv.value]
    if is_list != word.startswith("[") or not all(map(fits, items)):
        raise GGUFError(f"{kv.key} is {kv.value!r}: mainline takes {word} for {name}")
    if is_list:
        return KV(name, V.ARRAY, [convert(i) for i in items], vtype, kv.key)
    return KV(name, vtype, convert(kv.value), source=kv.key)
