"""The door for JSON: what reads, and what is refused with its file, its place and the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_convert.errors import ConfigError, VocabError
from dflash_convert.json_file import Node, brief, parse_object, read_json, read_text

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (BOM + b'{"a": 1}', {"a": 1}),
        (BOM + '\r\n {"a": "é"}'.encode(), {"a": "é"}),
        (rb'{"a": "\ud83d\ude00"}', {"a": "😀"}),
        (rb'{"a": "\\ud83d"}', {"a": r"\ud83d"}),
        (b'{"a": {"b": 1}, "b": {"b": 2}}', {"a": {"b": 1}, "b": {"b": 2}}),
        (b'{"a": "NaN", "b": [{}, {}]}', {"a": "NaN", "b": [{}, {}]}),
    ],
)
def test_what_reads(data: bytes, value: object) -> None:
    assert parse_object(data, "f") == value


AGAIN = "download the file again"
REFUSED = {
    "utf-16": ('{"a": 1}'.encode("utf-16"), "f, line 1 column 1: UTF-16 or UTF-32 text, UTF-8 was expected"),
    "utf-16 without a mark": (
        '{"a": 1}'.encode("utf-16-le"),
        "f, line 1 column 1: UTF-16 or UTF-32 text, UTF-8 was expected",
    ),
    "utf-32": ('{"a": 1}'.encode("utf-32"), "f, line 1 column 1: UTF-16 or UTF-32 text, UTF-8 was expected"),
    "latin-1": ('{\n "ü": "é"}'.encode("latin-1"), "f, line 2 column 3: the byte 0xfc is not UTF-8"),
    "a NUL byte": (b'{"a":\n1}\0\0', "f, line 2 column 3: a NUL byte; the file is damaged"),
    "a web page": (b"  <!DOCTYPE html>", "f is a web page (or XML), not JSON"),
    "an LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "f is a Git-LFS pointer, not the file"),
    "empty": (b"", "f is empty"),
    "blank": (BOM + b" \n", "f is empty"),
    "a list": (b"[1]", "f: an object was expected, not a list"),
    "a number": (b"1", "f: an object was expected, not a number"),
    "null": (b"null", "f: an object was expected, not null"),
    "cut": (b'{"a": 1,\n"b"', "f, line 2 column 4: not valid JSON: Expecting ':' delimiter"),
    "a key twice": (b'{"x": {"n": 16,\n "n": 8}}', "f, line 2 column 2: the key 'n' is there twice: 16 and 8"),
    "an escaped key": (b'{"n": 1, "\\u006e": 2}', "f, line 1 column 10: the key 'n' is there twice: 1 and 2"),
    "a group twice": (b'{"a": {}, "a": {}}', "f, line 1 column 11: the key 'a' is there twice"),
    "NaN": (b'{"a": [1, NaN]}', "f, line 1 column 11: NaN is not a number that JSON has"),
    "Infinity": (b'{"a": -Infinity}', "f, line 1 column 7: -Infinity is not a number that JSON has"),
    "5000 digits": (b'{"a": ' + b"1" * 5000 + b"}", "f, line 1 column 7: a number of 5000 digits"),
    "endless": (b'{"a": ' + b"[" * 100_000, "f, line 1 column 506: nested more than 500 deep"),
    "half a pair": (rb'{"a": "\ud83d"}', r"""f, line 1 column 7: '"\\ud83d"' has half of a surrogate pair, no text"""),
    "a pair turned": (
        rb'{"a": "\ude00\ud83d"}',
        r"""f, line 1 column 7: '"\\ude00\\ud83d"' has half of a surrogate pair, no text""",
    ),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError) as e:
        parse_object(data, "f")
    assert e.value.message == message
    assert e.value.hint


def test_every_prefix_of_a_file_reads_or_is_refused() -> None:
    data = json.dumps({"a": [1, 2.5, None, True, {"b": "é\n"}], "c": {"d": -1e5}}).encode()
    for n in range(len(data)):
        with pytest.raises(ConfigError):
            parse_object(data[:n], "f")


def test_a_file_that_cannot_be_read_is_told_with_the_callers_error(tmp_path: Path) -> None:
    for read in (read_json, read_text):
        with pytest.raises(VocabError) as e:
            read(tmp_path, VocabError)
        assert e.value.message == f"{tmp_path}: Is a directory"
    (tmp_path / "t").write_bytes(b"a\n\xff")
    with pytest.raises(ConfigError, match="line 2 column 1: the byte 0xff is not UTF-8"):
        read_text(tmp_path / "t")
    (tmp_path / "t").write_bytes(BOM + b"<a>")
    assert read_text(tmp_path / "t") == "<a>"


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_knows_its_place() -> None:
    top = Node({"a": {"b": [1, {"c": "x"}]}, "n": None, "f": True}, "f.json:")
    assert top.get("a").get("b").place == "f.json: a.b"
    first, second = top.get("a").get("b").entries()
    assert (first.place, second.get("c").text()) == ("f.json: a.b[0]", "x")
    assert [(k, v.place) for k, v in top.get("a").members()] == [("b", "f.json: a.b")]
    assert (top.get("n").text(), top.get("x").list(), top.get("n").get("y").object()) == ("", [], {})
    assert (top.get("f").flag(), top.get("n").flag()) == (True, False)


@pytest.mark.parametrize(
    ("kind", "expected"), [("object", "an object"), ("list", "a list"), ("text", "a string"), ("flag", "true or false")]
)
def test_a_value_of_another_kind_is_told(kind: str, expected: str) -> None:
    for value in (0, 1, 1.5, True, "s", [], [1], {}, {"a": 1}):
        node = Node(value, "f.json: a", VocabError)
        good = {"object": dict, "list": list, "text": str, "flag": bool}[kind]
        if type(value) is good:
            assert getattr(node, kind)() == value
        else:
            with pytest.raises(VocabError) as e:
                getattr(node, kind)()
            assert e.value.message == f"f.json: a is {value!r}; {expected} was expected"


def test_a_value_is_shown_short() -> None:
    assert len(brief("x" * 10_000)) < 200
    assert len(brief([[[[list(range(100))] * 50] * 50] * 50])) < 3000
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert brief(deep) == "[[[[...]]]]"
