"""How many cores a matrix product may use: one for a small model, all for a large one.

Handing a 256-wide product to a second core costs more than it saves, and on a machine with other work, where the
threads wait for each other to be scheduled, a hundred times more.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

SMALL = 1024  # models narrower than this run on one core


def blas_threads(n_embd: int) -> AbstractContextManager[Any]:
    """A context in which numpy's products use as many cores as suit a model of this width."""
    return _controller().limit(limits=1, user_api="blas") if n_embd < SMALL else nullcontext()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # type: ignore[no-untyped-call]
