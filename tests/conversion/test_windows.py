"""Which layers slide: every combination of the four spellings, and the flags that settle a contradiction."""

from __future__ import annotations

from typing import Any

import pytest
from toys import FLAT, edited, flat_tensors, read_json

from dflash_convert.conversion.config import DraftConfig, read_draft_config
from dflash_convert.errors import ConfigError

FLAT_CONFIG = read_json(FLAT / "config.json")
SHAPES = {name: tensor.shape for name, tensor in flat_tensors().items()}


def read(config: dict[str, Any], **overrides: Any) -> DraftConfig:
    return read_draft_config(config, SHAPES, overrides)


S, F = "sliding_attention", "full_attention"
NONE: tuple[bool, ...] = ()
# layer_types, use_sliding_window, use_swa, sliding_window → pattern, or words of the error
WINDOWS: list[tuple[Any, Any, Any, Any, Any]] = [
    ([S, F], True, None, 64, (True, False)),
    ([S, F], None, None, 64, (True, False)),  # llama.cpp's converter would drop the window
    ([S, S], True, None, 64, (True, True)),
    ([S, S], None, True, 64, (True, True)),
    ([F, F], True, None, 64, NONE),
    ([F, F], False, None, 64, NONE),
    ([F, F], False, None, None, NONE),
    ([F, F], None, False, None, NONE),
    ([S, F], False, None, 64, "use_sliding_window is false, but layer_types has 1 sliding layer(s) of 2"),
    ([S, F], None, False, 64, "dflash_config.use_swa is false, but layer_types has 1 sliding layer(s) of 2"),
    ([S, F], None, True, 64, "dflash_config.use_swa is true, which means every layer, but layer_types has 1"),
    ([F, F], None, True, 64, "dflash_config.use_swa is true, which means every layer, but layer_types has 0"),
    ([S, F], True, None, None, "layer_types has sliding layers, but no window size is given"),
    ([S, F, F], True, None, 64, "layer_types has 3 entries for 2 layers"),
    ([S], True, None, 64, "layer_types has 1 entries for 2 layers"),
    ([S, "chunked_attention"], True, None, 64, "layer_types names 'chunked_attention'"),
    (None, None, True, 64, (True, True)),
    (None, True, True, 64, (True, True)),
    (None, False, True, 64, (True, True)),
    (None, None, True, None, "dflash_config.use_swa has sliding layers, but no window size is given"),
    (None, None, None, 64, "a sliding window of 64 is set, but layer_types does not say which layers slide"),
    (None, True, None, 64, "a sliding window of 64 is set, but layer_types does not say which layers slide"),
    (None, True, None, None, "use_sliding_window is set, but layer_types does not say which layers slide"),
    (None, False, None, 64, NONE),
    (None, None, False, 64, NONE),
    (None, False, None, None, NONE),
    (None, None, None, None, NONE),
]


@pytest.mark.parametrize(("types", "use_sliding_window", "use_swa", "window", "expected"), WINDOWS)
def test_which_layers_slide(types: Any, use_sliding_window: Any, use_swa: Any, window: Any, expected: Any) -> None:
    changes = {"layer_types": types, "use_sliding_window": use_sliding_window, "sliding_window": window}
    config = edited(FLAT_CONFIG, {**changes, "dflash_config.use_swa": use_swa})
    if isinstance(expected, tuple):
        assert read(config).sliding_layers == expected
        return
    with pytest.raises(ConfigError) as e:
        read(config)
    assert expected in e.value.message


@pytest.mark.parametrize(
    ("flag", "expected"), [(("S", "F"), (True, False)), (("S",), (True, True)), (("F",), NONE), (("F", "F"), NONE)]
)
def test_the_layer_types_flag_settles_what_the_config_contradicts(flag: tuple[str, ...], expected: Any) -> None:
    torn = edited(FLAT_CONFIG, {"layer_types": [S, F], "use_sliding_window": False, "sliding_window": 64})
    config = read(torn, layer_types=flag)
    assert config.sliding_layers == expected
    assert config.where["sliding_layers"] == "--layer-types"


def test_a_layer_types_flag_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="--layer-types has 3 entries for 2 layers"):
        read(FLAT_CONFIG, layer_types=("S", "S", "F"), sliding_window=8)


def test_a_window_flag_that_no_layer_uses_is_refused() -> None:
    with pytest.raises(ConfigError, match="--sliding-window is given, but no layer slides"):
        read(FLAT_CONFIG, sliding_window=8)
