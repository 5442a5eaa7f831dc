"""The kernels' inlined scalar functions, called from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, np.dtype[Any]]


def over(function: Any, x: Array, dtype: Any) -> Array:
    """The inlined scalar `function` on every entry of x."""

    def loop(x: Array, out: Array) -> None:
        for i in range(x.shape[0]):
            out[i] = function(x[i])

    out = np.empty(x.shape, dtype)
    compiled: Any = njit(loop)
    compiled(x, out)
    return out
