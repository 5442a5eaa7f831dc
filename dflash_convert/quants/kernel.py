"""How the functions of this package are compiled.

`kernel`: called from Python with arrays; compiled at its first call, kept on disk beside its file (or in the user's
cache, or not at all where neither can be written), free of the GIL. `inlined`: a piece of kernels, pasted in where it
is called, so that constant shapes and strides stay constant there.

Both keep IEEE arithmetic as it is written: no fastmath, hence no reordered sums and no fused multiply-add; a division
by zero gives Inf or NaN. A kernel is cached under the time stamp of its own file: after a change to an inlined function
of another file, delete `__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numba import njit

Array = np.ndarray[Any, np.dtype[Any]]
Scalar = Any  # a float32, int32 or uint32 of a kernel

Function = TypeVar("Function", bound=Callable[..., Any])

_compile: Any = partial(njit, nogil=True, error_model="numpy")


def kernel(function: Function) -> Function:
    """Compile `function` at its first call, or load it; see the module's docstring."""
    compiled: Function
    try:
        compiled = _compile(cache=True)(function)
    except RuntimeError:  # numba found no place for a cache
        compiled = _compile()(function)
    return compiled


def inlined(function: Function) -> Function:
    """Paste `function` into the kernels that call it."""
    compiled: Function = _compile(inline="always")(function)
    return compiled
