"""Which layers of a draft slide, and by how much they look back: five spellings in, one pattern out.

In: the resolved `layer_types`, `use_swa`, `use_sliding_window` and `sliding_window`, and where each was found. Out: one
truth value a layer, or () where no layer slides. What a config contradicts or leaves open is a ConfigError; the flags
--layer-types and --sliding-window settle it.

Where we differ from llama.cpp's converter, and why: it writes a window only if use_sliding_window or use_swa is true,
so that sliding layers without either silently become full ones, and it lets use_swa overrule layer_types. Here sliding
layers in layer_types slide, unless the config says use_sliding_window: false, which is an error; so is a use_swa that
layer_types contradicts. A window that no layer uses is left out, where it would be written with a pattern of all false.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash_convert.conversion.rows.fields import FULL, SLIDING
from dflash_convert.errors import ConfigError

USE_FLAG = "pass --layer-types, e.g. S,S,S,S,F (S = sliding, F = full, one for each layer; one alone stands for all)"


def sliding_layers(values: Mapping[str, Any], where: Mapping[str, str]) -> tuple[tuple[bool, ...], str]:
    """(pattern, the place it was found in). Raises ConfigError: contradictory, incomplete, or without a window."""
    slides = _by_layer_types(values, where) if values.get("layer_types") else _by_switches(values)
    origin = where.get("layer_types") or where.get("use_swa", "")
    if any(slides) and values.get("sliding_window") is None:
        raise ConfigError(f"{origin} has sliding layers, but no window size is given", hint="pass --sliding-window")
    if not any(slides) and where.get("sliding_window", "").startswith("--"):
        raise ConfigError("--sliding-window is given, but no layer slides", hint=USE_FLAG)
    return (slides if any(slides) else ()), origin


def _by_layer_types(values: Mapping[str, Any], where: Mapping[str, str]) -> tuple[bool, ...]:
    kinds, n, place = values["layer_types"], values["num_hidden_layers"], where["layer_types"]
    by_flag = place.startswith("--")
    kinds = kinds * n if by_flag and len(kinds) == 1 else kinds
    if len(kinds) != n:
        raise ConfigError(f"{place} has {len(kinds)} entries for {n} layers: {', '.join(kinds)}", hint=USE_FLAG)
    if unknown := [k for k in kinds if k not in (SLIDING, FULL)]:
        raise ConfigError(f"{place} names {unknown[0]!r}; a draft in llama.cpp has {SLIDING} and {FULL} only")
    slides = tuple(k == SLIDING for k in kinds)
    if not by_flag:
        _check_switches(slides, values, where)
    return slides


def _check_switches(slides: tuple[bool, ...], values: Mapping[str, Any], where: Mapping[str, str]) -> None:
    """layer_types against the switches beside it."""
    count = f"layer_types has {sum(slides)} sliding layer(s) of {len(slides)}"
    for name in ("use_sliding_window", "use_swa"):
        if values.get(name) is False and any(slides):
            raise ConfigError(f"{where[name]} is false, but {count}", hint=USE_FLAG)
    if values.get("use_swa") and not all(slides):
        raise ConfigError(f"{where['use_swa']} is true, which means every layer, but {count}", hint=USE_FLAG)


def _by_switches(values: Mapping[str, Any]) -> tuple[bool, ...]:
    """Without layer_types: use_swa means every layer; a window or a switch alone does not say which."""
    if values.get("use_swa"):
        return (True,) * int(values["num_hidden_layers"])
    window, switch = values.get("sliding_window"), values.get("use_sliding_window")
    if switch or (window is not None and switch is None and values.get("use_swa") is None):
        said = f"a sliding window of {window}" if window else "use_sliding_window"
        raise ConfigError(f"{said} is set, but layer_types does not say which layers slide", hint=USE_FLAG)
    return ()
