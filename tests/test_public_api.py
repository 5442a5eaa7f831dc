"""The package's public names: sorted, lazy, and the functions they promise to be, however often they are asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import dflash_convert


def test_the_names_are_sorted_and_all_there() -> None:
    assert dflash_convert.__all__ == sorted(dflash_convert.__all__)
    assert set(dflash_convert.__all__) <= set(dir(dflash_convert))


@pytest.mark.parametrize("name", ["convert", "inspect", "migrate", "quantize", "verify", "open_gguf"])
def test_a_function_stays_a_function(name: str) -> None:
    first = getattr(dflash_convert, name)
    for module in (
        "conversion.run",
        "quantization.run",
        "verification",
        "inspection",
        "migration.run",
        "gguf_io.reader",
    ):
        importlib.import_module(f"dflash_convert.{module}")
    assert getattr(dflash_convert, name) is first
    assert type(first).__name__ == "function"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dflash_convert.nonsense


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, dflash_convert; print(*sorted({'numpy', 'gguf', 'numba', 'rich', 'typer'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
