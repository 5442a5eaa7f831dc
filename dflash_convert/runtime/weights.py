"""Where a model's tensors come from, and how a model says which ones it has.

In: a GGUF (or anything that fulfils `Weights`, such as a checkpoint). Out: float32 arrays on access.

A model class declares its tensors as attributes that carry the file's own names:

    class Layer(Module):
        attn_q = Tensor("blk.{i}.attn_q.weight", "n_embd_q", "n_embd")

and `check` is the one walk over such declarations: every tensor declared is there with the shape its sizes say, and
every tensor there is declared. After it, `layer.attn_q` cannot fail. Nothing is decoded before it is used.

A class that inherits from a module declares what that one does, and more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dflash_convert.errors import DflashError, GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.quants import TYPES, dequantize
from dflash_convert.runtime.ops import Array

RESIDENT_BYTES = 8 << 30


class Weights(Protocol):
    """The tensors of a model: names as in the file, shapes as numpy sees them, values as float32."""

    def names(self) -> Sequence[str]:
        """All tensor names."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, slowest axis first."""
        ...

    def __call__(self, name: str) -> Array:
        """The tensor, decoded to float32, in its shape. Integers (a table of token ids) are exact below 2^24."""
        ...

    def __contains__(self, name: object) -> bool: ...


@dataclass(frozen=True)
class GGUFWeights:
    """The tensors of a GGUF file, of any block type."""

    gguf: GGUFFile

    def names(self) -> Sequence[str]:
        return tuple(self.gguf.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.gguf.tensors[name].shape

    def __call__(self, name: str) -> Array:
        """Decoded to float32; I64, which holds token ids, as it is. Raises GGUFError: another type of integers."""
        info = self.gguf.tensors[name]
        if info.type.name == "I64":
            return np.frombuffer(self.gguf.raw(name), "<i8").reshape(info.shape)
        if info.type.name not in TYPES:
            raise GGUFError(f"{self.gguf.path.name}: {name} is of the type {info.type.name}, which holds no weights")
        return dequantize(self.gguf.raw(name), info.type.name, threads=None).reshape(info.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.gguf.tensors


class Resident:
    """Weights whose float32 arrays stay in memory, up to `limit` bytes in all; beyond it they are decoded each time."""

    def __init__(self, source: Weights, limit: int = RESIDENT_BYTES) -> None:
        self.source, self.limit = source, limit
        self._kept: dict[str, Array] = {}
        self._bytes = 0

    def names(self) -> Sequence[str]:
        return self.source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)

    def __contains__(self, name: object) -> bool:
        return name in self.source

    def __call__(self, name: str) -> Array:
        if name in self._kept:
            return self._kept[name]
        array = self.source(name)
        if self._bytes + array.nbytes <= self.limit:
            self._kept[name] = array
            self._bytes += array.nbytes
        return array


@dataclass(frozen=True)
class Module:
    """A part of a model: its weights, its sizes (an object with an attribute for every word used in a shape) and, for
    a layer, its index."""

    weights: Weights
    sizes: Any
    index: int = 0


class Declared:
    """A tensor a module declares: `name` as in the file (`{i}` = the layer), `shape` in words of its sizes, `also` the
    other names it goes by. Axes of one in front do not count, as they do not in ggml."""

    required = True

    def __init__(self, name: str, *shape: str, also: Sequence[str] = ()) -> None:
        self.names, self.shape = (name, *also), shape

    def found(self, module: Module) -> str | None:
        """The name under which the file has it, None if it does not."""
        names = (name.format(i=module.index) for name in self.names)
        return next((name for name in names if name in module.weights), None)


class Tensor(Declared):
    """A tensor that must be there; on a module, its value."""

    def __get__(self, module: Module, owner: type) -> Array:
        name = self.found(module)
        assert name is not None, f"{self.names[0]} was not checked"
        return module.weights(name)


class OptionalTensor(Declared):
    """A tensor that may be there; on a module, its value or None."""

    required = False

    def __get__(self, module: Module, owner: type) -> Array | None:
        name = self.found(module)
        return None if name is None else module.weights(name)


def declared(module: Module) -> Sequence[Declared]:
    """What a module declares, in the order of its classes, the general ones first."""
    classes = reversed(type(module).__mro__)
    by_name = {name: v for cls in classes for name, v in vars(cls).items() if isinstance(v, Declared)}
    return list(by_name.values())


def check(
    modules: Iterable[Module], where: str, error: type[DflashError], unsupported: Mapping[str, str] | None = None
) -> None:
    """Raise `error`, naming the tensor, unless declarations and file agree: presence, shapes, nothing left over.

    where: the file, for the message. unsupported: part of a tensor's name → what it belongs to, for those left over.
    """
    claimed: set[str] = set()
    weights: Weights | None = None
    for module in modules:
        weights = module.weights
        claimed.update(_check_tensor(module, tensor, where, error) for tensor in declared(module))
    if weights is not None:
        _check_leftovers(weights, claimed, where, error, unsupported or {})


def _check_tensor(module: Module, tensor: Declared, where: str, error: type[DflashError]) -> str:
    name = tensor.found(module)
    if name is None:
        name = tensor.names[0].format(i=module.index)
        if tensor.required:
            raise error(f"{where}: the tensor {name} is missing ({_expected(module, tensor)})")
        return name
    shape = module.weights.shape(name)
    if _without_ones(shape) != _without_ones(_sizes(module, tensor)):
        raise error(
            f"{where}: {name} has the shape {_times(shape)}, but {_expected(module, tensor)}",
            hint="the tensor belongs to another model, or a size in the header is wrong",
        )
    return name


def _sizes(module: Module, tensor: Declared) -> tuple[int, ...]:
    return tuple(getattr(module.sizes, word) for word in tensor.shape)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return _without_ones(shape[1:]) if shape[:1] == (1,) else shape


def _expected(module: Module, tensor: Declared) -> str:
    return f"{' × '.join(tensor.shape)} = {_times(_sizes(module, tensor))} is expected"


def _times(shape: Iterable[int]) -> str:
    return "×".join(str(n) for n in shape)


def _check_leftovers(
    weights: Weights, claimed: set[str], where: str, error: type[DflashError], unsupported: Mapping[str, str]
) -> None:
    left = [name for name in weights.names() if name not in claimed]
    for name in left:
        for part, what in unsupported.items():
            if part in name:
                raise error(f"{where}: not supported yet: {what} (the tensor {name})")
    if left:
        raise error(f"{where}: {len(left)} tensor(s) that no part of this model uses, {left[0]} for one")
