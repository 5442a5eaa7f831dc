"""A short round of the fuzzer (tests/fuzzing.py): scripts/fuzz goes on for as long as one likes."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path

import crashes
import pytest
from fuzzing import KINDS, Bench, Fault, mutate_json, rounds

from dflash_convert.errors import LONGEST, DflashError, one_line

INPUTS = 4000


def test_nothing_but_our_own_errors_comes_out_of_mutated_files(tmp_path: Path) -> None:
    seen: Counter[tuple[str, str]] = Counter()
    for kind, outcome in islice(rounds(Bench(tmp_path), seed=2026), INPUTS):
        assert not isinstance(outcome, Fault), f"{kind}: {outcome.text}\n{outcome.data[:300]!r}"
        seen[kind, outcome] += 1
    for name in (kind.name for kind in KINDS):
        assert sum(n for (tried, _), n in seen.items() if tried == name) > INPUTS / 100
    assert seen["draft config", "refused"] > 100
    assert seen["draft config", "accepted, the same file"] > 50
    assert seen["target tokenizer.json", "accepted, shows in the output"] > 10
    assert seen["gguf", "refused"] > 100


def test_mutations_change_the_file_and_not_each_other() -> None:
    data = b'{"a": [1, 2, {"b": null}], "c": "x"}'
    rng = random.Random(0)
    assert len({mutate_json(data, rng) for _ in range(300)}) > 150


def test_a_fault_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the fuzzer would do with a bug."""

    def bug(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    bench = Bench(tmp_path)
    monkeypatch.setattr("fuzzing.open_gguf", bug)
    faults = [o for k, o in islice(rounds(bench, seed=1), 60) if k == "gguf"]
    assert faults
    assert all(isinstance(f, Fault) and "KeyError: 'a bug'" in f.text for f in faults)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain ä ✓", "plain ä ✓"), ("a\nb\0c", "a\\nb\\x00c"), ("\udcff\x1b[31m", "\\udcff\\x1b[31m")],
)
def test_a_message_is_one_line_that_any_terminal_can_show(text: str, shown: str) -> None:
    assert DflashError(text, hint=text).message == shown
    assert DflashError("m", hint=text).hint == shown
    assert len(one_line("x" * 10_000)) == LONGEST + 1


def test_a_crash_leaves_the_older_bytes_or_the_whole_new_ones() -> None:
    """A short round of tests/crashes.py; scripts/fuzz --faults goes on longer."""
    names = list(crashes.FAULTS)
    done = {what.split(", ")[1] for what, _ in islice(crashes.rounds(seed=1), 11)}
    assert done == set(names)
