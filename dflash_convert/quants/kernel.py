"""How the functions of this package are compiled.

`kernel`: called from Python with arrays; compiled at its first call, kept on disk beside its file, free of the GIL.
`inlined`: a piece of kernels, pasted in where it is called, so that constant shapes and strides stay constant there.

Both keep IEEE arithmetic as it is written: no fastmath, hence no reordered sums and no fused multiply-add; a division
by zero gives Inf or NaN. A kernel is cached under the time stamp of its own file: after a change to an inlined function
of another file, delete `__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, np.dtype[Any]]
Scalar = Any  # a float32, int32 or uint32 of a kernel

kernel = njit(cache=True, nogil=True, error_model="numpy")
inlined = njit(inline="always")
