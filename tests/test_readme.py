"""The README stays true: its commands run, and nothing that a user can meet is missing from it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dflash_convert import errors
from dflash_convert.conversion.rows.families import FAMILIES
from dflash_convert.conversion.rows.schema import TARGET_KEYS
from dflash_convert.quantization.file_types import FILE_TYPES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def help_of(*command: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "dflash_convert", *command, "--help"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("command", [(), ("hf-to-gguf",), ("quantize",), ("verify",), ("inspect",), ("migrate",)])
def test_every_command_and_option_is_there(command: tuple[str, ...]) -> None:
    text = help_of(*command)
    options = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text.split("Options:")[1].split("Commands:")[0]))
    commands = re.findall(r"^  ([a-z][\w-]*)  ", text.partition("Commands:")[2], flags=re.MULTILINE)
    assert {"--help"} <= options
    assert [word for word in sorted(options) if f"`{word}" not in README] == []
    assert [word for word in commands if f"### `{word} " not in README] == []


def test_every_exit_code_is_there() -> None:
    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    assert sorted(codes) == [0, 1, 2, 70, 130]
    assert [code for code in codes if f"| {code} | " not in README] == []


def test_every_environment_variable_is_there() -> None:
    source = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "dflash_convert").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\"(\w+)\"", source)) - {"TERM"}
    assert "DFLASH_DEBUG" in read
    assert [name for name in sorted(read) if f"`{name}" not in README] == []


def test_every_key_and_tensor_that_is_written_is_there() -> None:
    keys = {row.key.format(arch="dflash") for f in FAMILIES for row in f.keys} | {
        row.key.format(arch="dflash") for row in TARGET_KEYS
    }
    tensors = {row.name for f in FAMILIES for row in f.tensors}
    assert [name for name in sorted(keys | tensors) if f"`{name}`" not in README] == []


def test_every_file_type_is_there() -> None:
    assert [name for name in FILE_TYPES if f"`{name}`" not in README] == []


def test_the_library_example_runs(tiny_pair: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "path").mkdir()
    (tmp_path / "path/to").symlink_to(tiny_pair)
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, check=True)


def test_nothing_is_left_to_fill_in() -> None:
    assert "@@" not in README
