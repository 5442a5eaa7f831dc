"""A checkpoint that is quantized already, in a scheme that is not read here: refused by what its config says of it.

In: a config's `quantization_config` (null and {} say nothing), the tensors, the model card. NVFP4 is read (nvfp4.py);
of the others the unquantized original is needed. The section alone refuses nothing: where all weights are plain, it
was copied from the target's config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from dflash_convert.checkpoints.safetensors_header import SourceTensor
from dflash_convert.errors import CheckpointError
from dflash_convert.json_file import Node, brief

SECTION = "quantization_config"
PLAIN = ("F64", "F32", "F16", "BF16", "NVFP4", "BOOL", "I64")  # weights, and tables of ids


def refuse_quantized(
    config: Mapping[str, Any], tensors: Iterable[SourceTensor], base_model: Callable[[], str | None]
) -> None:
    """Raise CheckpointError where `config` says how the weights are quantized, and they are, but not in NVFP4.

    base_model: what the model card says the checkpoint was made from, asked for only then.
    """
    section = Node(config, "config.json:").get(SECTION)
    odd = next((t for t in tensors if t.dtype not in PLAIN), None)
    if not section.object() or odd is None:
        return
    original = base_model()
    raise CheckpointError(
        f"config.json: {SECTION} says that the weights are quantized ({_scheme(section)}), and {odd.name} is "
        f"{odd.dtype}: only NVFP4 can be read",
        hint="the unquantized original is needed" + (f": the model card names {original}" if original else ""),
    )


def _scheme(section: Node) -> str:
    """The method and its bits, in the section's own words."""
    named = section.get("quant_method").value or section.get("quant_algo").value or "no method named"
    method = named if isinstance(named, str) else brief(named)
    bits = next((found for read in BITS if (found := read(section.object()))), "")
    return f"{method}, {bits}" if bits else method


def _named(*keys: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda section: next((f"{section[k]} bits" for k in keys if isinstance(section.get(k), int)), "")


def _bitsandbytes(section: Mapping[str, Any]) -> str:
    loads: Mapping[str, str] = MappingProxyType({"load_in_4bit": "4 bits", "load_in_8bit": "8 bits"})
    return next((bits for key, bits in loads.items() if section.get(key) or section.get(f"_{key}")), "")


def _groups(section: Mapping[str, Any]) -> str:
    """compressed-tensors: bits for each group of layers."""
    groups = section.get("config_groups")
    weights = [g.get("weights") for g in groups.values() if isinstance(g, dict)] if isinstance(groups, dict) else []
    bits = sorted({w["num_bits"] for w in weights if isinstance(w, dict) and isinstance(w.get("num_bits"), int)})
    return f"{'/'.join(map(str, bits))} bits" if bits else ""


def _algorithm(section: Mapping[str, Any]) -> str:
    found = section.get("quant_algo") or section.get("fmt") or section.get("format")
    return found if isinstance(found, str) else ""


BITS = (_named("bits", "w_bit", "num_bits", "wbits"), _bitsandbytes, _groups, _algorithm)
