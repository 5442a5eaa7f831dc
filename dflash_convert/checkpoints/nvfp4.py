"""NVFP4 weights in a checkpoint: which tensors make one up, and their values in float32.

A weight of shape (out, in) lies in three tensors: 4-bit floats (E2M1) two to a byte, (out, in / 2), the first of a pair
in the low nibble; an E4M3 scale for each 16 of a row, (out, in / 16); and one float32 scale for all. NVIDIA's ModelOpt
multiplies by that one (`weight_scale_2`), compressed-tensors divides by its (`weight_global_scale`). A scale for the
layer's input may lie beside them: it concerns activations only.

Source: NVIDIA/TensorRT-Model-Optimizer, modelopt/torch/quantization/qtensor/nvfp4_tensor.py; vllm-project/compressed-
tensors, nvfp4-pack-quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.errors import CheckpointError

Array = np.ndarray[Any, np.dtype[Any]]
Stored = tuple[str, tuple[int, ...]]  # dtype, shape

GROUP = 16  # weights that share an E4M3 scale
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


@dataclass(frozen=True)
class Scheme:
    """How one tool names the parts of a weight. divides: the scale for all divides instead of multiplying."""

    packed: str
    scale: str
    beside: str
    divides: bool = False


SCHEMES = (
    Scheme(".weight", ".weight_scale_2", ".input_scale"),
    Scheme(".weight_packed", ".weight_global_scale", ".input_global_scale", divides=True),
)
SCALES = ".weight_scale"


@dataclass(frozen=True)
class Layout:
    """The parts of one weight, by name. shape: the weight's own, (out, in). parts: all that belong to it."""

    packed: str
    scales: str
    scale: str
    shape: tuple[int, int]
    divides: bool
    parts: tuple[str, ...]

    def factor(self, stored: Array) -> np.float32:
        """What every value is multiplied by. stored: the tensor `scale`."""
        value = np.float32(stored.reshape(-1)[0])
        with np.errstate(divide="ignore", over="ignore"):
            factor = np.float32(1) / value if self.divides else value
        if not np.isfinite(value) or value <= 0 or not np.isfinite(factor):
            raise CheckpointError(
                f"{self.scale} is {value}, which is no scale", hint="the checkpoint is damaged: download it again"
            )
        return factor


def layouts(tensors: Mapping[str, Stored]) -> dict[str, Layout]:
    """The NVFP4 weights among `tensors`, by the name that the weight would have unpacked (`….weight`).

    Raises CheckpointError: a part without the others, or parts whose types or shapes do not go together.
    """
    return {
        stem + ".weight": _layout(stem, scheme, tensors)
        for scheme in SCHEMES
        for name in tensors
        if (stem := _stem(name, scheme, tensors)) is not None
    }


def _stem(name: str, scheme: Scheme, tensors: Mapping[str, Stored]) -> str | None:
    """Whose part a tensor is, by its scale for all, or where that is missing by bytes that have E4M3 scales."""
    if name.endswith(scheme.scale):
        return name.removesuffix(scheme.scale)
    stem = name.removesuffix(scheme.packed)
    scales_type, _ = tensors.get(stem + SCALES, ("", ()))
    packed = name.endswith(scheme.packed) and tensors[name][0] == "U8" and scales_type == "F8_E4M3"
    return stem if packed and stem + scheme.scale not in tensors else None


def _layout(stem: str, scheme: Scheme, tensors: Mapping[str, Stored]) -> Layout:
    packed, scales, scale = stem + scheme.packed, stem + SCALES, stem + scheme.scale
    missing = [name for name in (packed, scales, scale) if name not in tensors]
    if missing:
        found = scale if scale in tensors else packed
        raise CheckpointError(
            f"{found} is there, but {' and '.join(missing)} is not: an NVFP4 weight lies in three tensors",
            hint="the download is incomplete, or the weight is quantized in a scheme that is not known",
        )
    if packed != stem + ".weight" and stem + ".weight" in tensors:
        raise CheckpointError(
            f"{stem}.weight and {packed} are one weight, plain and packed",
            hint="files of two versions of the model lie in one folder: keep one of them",
        )
    (packed_type, bytes_shape), (scales_type, scales_shape), (scale_type, scale_shape) = (
        tensors[name] for name in (packed, scales, scale)
    )
    out, width = (bytes_shape[0], 2 * bytes_shape[1]) if len(bytes_shape) == 2 else (0, 0)
    fits = scales_shape == (out, width // GROUP) and width % GROUP == 0 and int(np.prod(scale_shape)) == 1
    if (packed_type, scales_type, scale_type) != ("U8", "F8_E4M3", "F32") or not fits:
        raise CheckpointError(
            f"{packed} {packed_type} {list(bytes_shape)}, {scales} {scales_type} {list(scales_shape)} and "
            f"{scale} {scale_type} {list(scale_shape)} do not make an NVFP4 weight (U8 [out, in/2], F8_E4M3 "
            f"[out, in/{GROUP}], F32 [1])",
            hint="the weight is quantized in a scheme that is not known: get the unquantized original",
        )
    there = tuple(name for name in (packed, scales, scale, stem + scheme.beside) if name in tensors)
    return Layout(packed, scales, scale, (out, width), scheme.divides, there)


def dequantize(packed: Array, scales: Array, factor: np.float32, name: str = "an NVFP4 weight") -> Array:
    """Values of rows: nibble · scale of its 16 · factor. packed: (n, in / 2) U8; scales: (n, in / 16) E4M3.

    name: of the weight, for errors. A value beyond float32 is Inf.
    """
    nibbles = np.stack([packed & 0x0F, packed >> 4], axis=-1).reshape(packed.shape[0], -1, GROUP)  # (n, group, 16)
    steps = scales.astype(np.float32)[..., None]
    if not np.isfinite(steps).all():
        raise CheckpointError(f"{name} has a scale that is NaN", hint="the checkpoint is damaged: download it again")
    with np.errstate(over="ignore"):
        values: Array = E2M1[nibbles] * steps * factor  # the first product is exact
    return values.reshape(packed.shape[0], -1)
