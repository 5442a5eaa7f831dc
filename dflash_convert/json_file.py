"""The one door for JSON: a file → a dict, or an error that says which file, where in it, and what is wrong.

UTF-8, with or without a byte order mark (editors on Windows write one). What Python's parser would let through in
silence is refused here: a key twice in one object (it keeps the last), NaN and Infinity, a lone half of a surrogate
pair. `Node` is for reading what came in: a value that knows its place, so that a wrong kind of value has a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from reprlib import Repr
from typing import Any, TypeVar

from dflash_convert.errors import ConfigError, DflashError

AGAIN = "download the file again"
MAX_DEPTH = 500  # objects and lists inside one another, where the parser gives up (real files have some ten)


class _Short(Repr):
    """reprlib's, with keys in their own order."""

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if not x or level <= 0:
            return "{...}" if x else "{}"
        shown = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in islice(x.items(), self.maxdict)]
        return "{" + ", ".join(shown + ["..."] * (len(x) > self.maxdict)) + "}"


_shorten = _Short()
_shorten.maxlevel, _shorten.maxdict, _shorten.maxlist, _shorten.maxtuple = 3, 6, 12, 12
_shorten.maxstring, _shorten.maxother = 120, 80


def brief(value: Any) -> str:
    """A value for a message: short, whatever it is."""
    return _shorten.repr(value)


def read_json(path: Path, error: type[DflashError] = ConfigError) -> dict[str, Any]:
    """The JSON object in a file. Raises `error`: unreadable, not JSON (it says where), not an object."""
    return parse_object(_read(path, error), str(path), error)


def read_text(path: Path, error: type[DflashError] = ConfigError) -> str:
    """The text in a file, UTF-8 with or without a byte order mark. Raises `error`: unreadable, or not such text."""
    return _decode(_read(path, error), str(path), error)


def _read(path: Path, error: type[DflashError]) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise error(f"{path}: {e.strerror or e}", hint="name a file that can be read") from e


def parse_object(data: bytes, name: str, error: type[DflashError] = ConfigError) -> dict[str, Any]:
    """The JSON object in `data`. name: what messages call it. Raises `error`."""
    _refuse_lookalikes(data, name, error)
    text = _decode(data, name, error)
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as e:
        raise error(f"{name}, line {e.lineno} column {e.colno}: not valid JSON: {e.msg}", hint=AGAIN) from None
    except (ValueError, RecursionError):
        raise _explained(text, name, error) from None
    if not isinstance(value, dict):
        raise error(f"{name}: an object was expected, not {_kind(value)}", hint=AGAIN)
    if _HALF.search(data):
        _check_halves(text, name, error)
    return value


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_LOOKALIKES = (
    (b"version https://git-lfs", "is a Git-LFS pointer, not the file", "run `git lfs pull`, or `hf download`"),
    (b"<", "is a web page (or XML), not JSON", "download it with `hf download`"),
)
_WIDE = (b"\xff\xfe", b"\xfe\xff")


def _refuse_lookalikes(data: bytes, name: str, error: type[DflashError]) -> None:
    data = data.removeprefix(b"\xef\xbb\xbf")
    start = data[:1024].lstrip()
    if not start and not data.strip():
        raise error(f"{name} is empty", hint=AGAIN)
    for head, what, hint in _LOOKALIKES:
        if start.startswith(head):
            raise error(f"{name} {what}", hint=hint)


def _decode(data: bytes, name: str, error: type[DflashError]) -> str:
    if data.startswith(_WIDE) or b"\0" in data[:4]:
        raise error(f"{name}, line 1 column 1: UTF-16 or UTF-32 text, UTF-8 was expected", hint="save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        place = _place(data[: e.start].decode("utf-8"), e.start)
        raise error(
            f"{name}, {place}: the byte 0x{data[e.start]:02x} is not UTF-8",
            hint="save it as UTF-8, or download it",
        ) from None
    if (at := text.find("\0")) >= 0:
        raise error(f"{name}, {_place(text, at)}: a NUL byte; the file is damaged", hint=AGAIN)
    return text


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at)
    return f"line {line + 1} column {at - text.rfind(chr(10), 0, at)}"


def _kind(value: Any) -> str:
    return {list: "a list", str: "a string", bool: "true or false", type(None): "null"}.get(type(value), "a number")


# ── what the parser lets through ──────────────────────────────────────────────────────────────────────────────────────

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a surrogate pair, escaped
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_PAIRS = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\\\")
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")
MAX_DIGITS = 4300


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def _no_constant(_: str) -> Any:
    raise ValueError


def _check_halves(text: str, name: str, error: type[DflashError]) -> None:
    for token in _STRING.finditer(text):
        if _HALF.search(_PAIRS.sub("", token.group()).encode()):
            place = _place(text, token.start())
            raise error(f"{name}, {place}: {brief(token.group())} has half of a surrogate pair, no text", hint=AGAIN)


def _explained(text: str, name: str, error: type[DflashError]) -> DflashError:
    """The error for a text that the parser gave up on. Only now is it worth walking through it token by token."""
    at, what = next(_faults(text), (0, "not valid JSON"))
    hint = "keep the right one of the two" if "twice" in what else AGAIN
    return error(f"{name}, {_place(text, at)}: {what}", hint=hint)


def _faults(text: str) -> Iterator[tuple[int, str]]:
    """(position, what is wrong there), for the faults that are not of grammar."""
    open_objects: list[dict[str, str] | None] = []  # the keys so far of each object we are in; None for a list
    key = ""
    tokens = list(_TOKEN.finditer(text))
    for i, token in enumerate(tokens):
        word, at = token.group(), token.start()
        if word in "{[":
            open_objects.append({} if word == "{" else None)
            if len(open_objects) > MAX_DEPTH:
                yield at, f"nested more than {MAX_DEPTH} deep"
        elif word in "}]":
            del open_objects[-1:]
        elif word[0] == '"':
            keys = open_objects[-1] if open_objects else None
            if keys is not None and i + 1 < len(tokens) and tokens[i + 1].group() == ":":
                key = json.loads(word, strict=False)
                value = tokens[i + 2].group() if i + 2 < len(tokens) else ""
                if key in keys:
                    yield at, f"the key {brief(key)} is there twice" + _values(keys[key], value)
                keys[key] = value
        elif word in _NOT_NUMBERS:
            yield at, f"{word} is not a number that JSON has"
        elif len(word) > MAX_DIGITS:
            yield at, f"a number of {len(word)} digits"


def _values(first: str, second: str) -> str:
    return "" if {first, second} & {"{", "["} else f": {first[:80]} and {second[:80]}"


T = TypeVar("T")

# ── reading what came in ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Node:
    """A value and where it stands. A method gives it as the kind it must be, or raises `error` with its place.

    null, and what is not there, is the empty one of each kind. place: of a file's top level "name:".
    """

    value: Any
    place: str
    error: type[DflashError] = ConfigError

    def get(self, key: str) -> Node:
        """What an object has under `key`."""
        return Node(self.object().get(key), self._inside(key), self.error)

    def object(self) -> dict[str, Any]:
        return self._of("an object", {})

    def list(self) -> list[Any]:
        return self._of("a list", [])

    def text(self) -> str:
        return self._of("a string", "")

    def flag(self) -> bool:
        return self._of("true or false", False)

    def entries(self) -> Iterator[Node]:
        """The entries of a list."""
        for i, value in enumerate(self.list()):
            yield Node(value, f"{self.place}[{i}]", self.error)

    def members(self) -> Iterator[tuple[str, Node]]:
        """The keys and values of an object."""
        for key, value in self.object().items():
            yield key, Node(value, self._inside(key), self.error)

    def wrong(self, expected: str) -> DflashError:
        """The error: another kind of value was expected."""
        return self.error(f"{self.place} is {brief(self.value)}; {expected} was expected", hint=AGAIN)

    def _inside(self, key: str) -> str:
        return f"{self.place}{' ' if self.place.endswith(':') else '.'}{key}"

    def _of(self, expected: str, empty: T) -> T:
        if self.value is None:
            return empty
        if type(self.value) is not type(empty):
            raise self.wrong(expected)
        return self.value
