"""dflash-convert: DFlash drafts for llama.cpp, converted, quantized and verified.

Five functions, the same grain as the five commands (for arrays: `dflash_convert.quants.quantize` and `dequantize`).

    convert(draft, target, out)         a checkpoint → a GGUF
    quantize(src, dst, file_type)       a GGUF → a smaller GGUF
    verify(gguf, source=…, target=…)    a GGUF against its original → a Report
    migrate(src, dst)                   a draft's GGUF in a fork's format → mainline's
    inspect(path)                       what a GGUF or a checkpoint is and says → a value

Nothing heavy is imported until one of them is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dflash_convert.conversion.run import convert
    from dflash_convert.errors import DflashError
    from dflash_convert.gguf_io.reader import open_gguf
    from dflash_convert.inspection.run import inspect_path as inspect
    from dflash_convert.migration.run import migrate_file as migrate
    from dflash_convert.quantization.run import quantize_file as quantize
    from dflash_convert.verification import verify

__version__ = "0.1.0"
__all__ = ["DflashError", "convert", "inspect", "migrate", "open_gguf", "quantize", "verify"]

# public name → (module, name in it). No module may carry a public name: importing it would put the module in its place.
_HOMES = {
    "DflashError": ("errors", "DflashError"),
    "convert": ("conversion.run", "convert"),
    "inspect": ("inspection.run", "inspect_path"),
    "migrate": ("migration.run", "migrate_file"),
    "open_gguf": ("gguf_io.reader", "open_gguf"),
    "quantize": ("quantization.run", "quantize_file"),
    "verify": ("verification", "verify"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
