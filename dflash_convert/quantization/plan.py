"""What quantizing a GGUF will write, decided before a tensor is read; what cannot be quantized is refused here.

In: an opened GGUF, a file type's name and, if there is one, an importance matrix. Out: a `QuantizePlan`. Promised: the
keys, tensors, order and types of llama.cpp's own quantizer.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType

from dflash_convert import quants
from dflash_convert.errors import GGUFError, UsageError
from dflash_convert.gguf_io.layout import Note, Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV, GGUFFile, odd_bytes, open_gguf
from dflash_convert.quantization import file_types, recipes
from dflash_convert.quantization.file_types import FileType, Model
from dflash_convert.quantization.imatrix import Array, Imatrix, fitting, keys_of, notes_of, open_imatrix
from dflash_convert.quantization.overrides import NONE, Overrides

QUANTIZATION_VERSION, FILE_TYPE = "general.quantization_version", "general.file_type"
SPLIT_COUNT = "split.count"
SPLIT_KEYS = frozenset({"split.no", SPLIT_COUNT, "split.tensors.count"})
FLOATS = frozenset({"F32", "F16", "BF16"})


@dataclass(frozen=True)
class QuantizePlan(Plan):
    """A `Plan` that remembers why: one `Choice` for each of its tensors.

    importances: of the tensors that have some, by name; flat, one matrix of a stack after the other.
    """

    choices: tuple[recipes.Choice, ...] = ()
    importances: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)


def plan_quantize(
    gguf: GGUFFile,
    file_type: str,
    *,
    allow_requantize: bool = False,
    imatrix: Imatrix | None = None,
    overrides: Overrides = NONE,
) -> QuantizePlan:
    """What quantizing `gguf` to `file_type` will write; no tensor data is read.

    overrides: what is demanded beside the file type. Raises UsageError: an unknown file type, one that needs
    importances that are not given, or a demand that cannot be met. Raises GGUFError: a part
    of a split file, bytes that belong to nothing, a missing block count, a tensor that cannot be quantized (integers),
    or is quantized already and `allow_requantize` is not set; importances of another shape than their tensor.
    """
    recipe = file_types.file_type(file_type)
    _refuse_split(gguf)
    _refuse_odd_bytes(gguf)
    tensors = [recipes.Tensor(t.name, t.shape, t.type) for t in gguf.tensors.values()]
    choices = recipes.choose(recipe, tensors, _model(gguf, imatrix), overrides)
    importances = fitting(imatrix, choices) if imatrix else {}
    _refuse_without_imatrix(recipe, choices, importances)
    for choice in choices:
        _check_source(choice, allow_requantize)
    return QuantizePlan(
        kv=_keys(gguf, recipe, imatrix),
        tensors=tuple(_planned(c) for c in choices),
        notes=(*_fallback_notes(choices), *(notes_of(imatrix, choices, importances) if imatrix else ())),
        choices=choices,
        importances=importances,
    )


def plan_file(
    src: str | os.PathLike[str],
    file_type: str,
    *,
    allow_requantize: bool = False,
    imatrix: str | os.PathLike[str] | None = None,
    overrides: Overrides = NONE,
) -> QuantizePlan:
    """`plan_quantize` for the files at `src` and `imatrix`. Raises GGUFError also where one cannot be opened."""
    importances = None if imatrix is None else open_imatrix(imatrix)
    gguf = open_gguf(src)
    return plan_quantize(gguf, file_type, allow_requantize=allow_requantize, imatrix=importances, overrides=overrides)


def _refuse_split(gguf: GGUFFile) -> None:
    parts = gguf.get(SPLIT_COUNT, 1)
    if parts > 1:
        raise GGUFError(
            f"{gguf.path.name} is one of {parts} parts of a model",
            hint="join them first: llama-gguf-split --merge FIRST_PART OUT.gguf",
        )


def _refuse_odd_bytes(gguf: GGUFFile) -> None:
    for what in odd_bytes(gguf):
        raise GGUFError(
            f"{gguf.path.name}: {what}",
            hint="a resumed download may have appended, or two files were joined: download or write it again",
        )


def _model(gguf: GGUFFile, imatrix: Imatrix | None) -> Model:
    arch = gguf.architecture
    n_layer = gguf.get(f"{arch}.block_count")
    if n_layer is None:
        raise GGUFError(
            f"{gguf.path.name} has no key {arch or '<architecture>'}.block_count, so its layers cannot be told apart",
            hint="quantize a model file; vocabulary-only and adapter files have nothing to quantize",
        )
    n_head = _first(gguf.get(f"{arch}.attention.head_count", 0))
    n_head_kv = _first(gguf.get(f"{arch}.attention.head_count_kv", n_head))
    return Model(arch, n_layer, gguf.get(f"{arch}.expert_count", 0), n_head, n_head_kv, imatrix is not None)


def _first(value: Any) -> int:
    """A count that may be given layer by layer: that of the first layer."""
    return int(value[0] if isinstance(value, Sequence) else value)


def _check_source(choice: recipes.Choice, allow_requantize: bool) -> None:
    tensor = choice.tensor
    if choice.type == tensor.type or tensor.type.name in FLOATS:
        return
    if tensor.type.name not in quants.TYPES:
        raise GGUFError(
            f"{tensor.name} holds {tensor.type.name}, which cannot become {choice.type.name}",
            hint="only floating-point and block-quantized weights can be quantized",
        )
    if not allow_requantize:
        raise GGUFError(
            f"{tensor.name} is quantized already: {tensor.type.name} would become {choice.type.name}",
            hint="quantize from the BF16, F16 or F32 file, or accept the loss with --allow-requantize",
        )


def _refuse_without_imatrix(recipe: FileType, choices: Iterable[recipes.Choice], known: Container[str]) -> None:
    choice = recipes.without_imatrix(recipe, choices, known)
    if choice:
        raise UsageError(
            f"{recipe.name} needs an importance matrix: without one, {choice.tensor.name} in {choice.type.name} "
            "would be garbage",
            hint="give one that covers it with --imatrix; Q2_K is the smallest file type that needs none",
        )


def _keys(gguf: GGUFFile, recipe: FileType, imatrix: Imatrix | None) -> tuple[KV, ...]:
    """All keys as they are, but for those of splitting; those that describe the quantization move to the end."""
    replaced = (
        KV(QUANTIZATION_VERSION, GGUFValueType.UINT32, GGML_QUANT_VERSION, source="the block formats' version"),
        KV(FILE_TYPE, GGUFValueType.UINT32, _number(gguf, recipe), source=recipe.name),
        *(keys_of(imatrix) if imatrix else ()),
    )
    dropped = SPLIT_KEYS | {kv.key for kv in replaced}
    kept = (replace(kv, source=gguf.path.name) for kv in gguf.kv.values() if kv.key not in dropped)
    return (*kept, *replaced)


def _number(gguf: GGUFFile, recipe: FileType) -> int:
    """The file type's number; of a copy, the one that the file has, or that its tensors suggest."""
    if recipe.number is not None:
        return int(recipe.number)
    tensors = recipes.in_order(recipes.Tensor(t.name, t.shape, t.type) for t in gguf.tensors.values())
    given = gguf.kv.get(FILE_TYPE)
    is_number = given and given.type == GGUFValueType.UINT32
    return int(given.value) if given and is_number else file_types.guessed_number(t.type for t in tensors)


def _planned(choice: recipes.Choice) -> PlannedTensor:
    tensor = choice.tensor
    change = "" if choice.type == tensor.type else f"{tensor.type.name} → {choice.type.name}"
    if choice.is_fallback:
        change += f" instead of {choice.nominal.name}: {choice.reason}"
    return PlannedTensor(tensor.name, tensor.shape, choice.type, source=tensor.name, transform=change.strip())


def _fallback_notes(choices: Iterable[recipes.Choice]) -> Iterator[Note]:
    """One note for all tensors that share nominal type, actual type and reason."""
    groups: dict[tuple[GGMLQuantizationType, GGMLQuantizationType, str], list[str]] = {}
    for c in choices:
        if c.is_fallback:
            groups.setdefault((c.nominal, c.type, c.reason), []).append(c.tensor.name)
    for (nominal, actual, reason), names in groups.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Note("warning", f"{actual.name} instead of {nominal.name} for {names[0]}{more}: {reason}")
