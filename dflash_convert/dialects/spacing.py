"""How z-lab chooses taps: by it, a list of layers may tell which convention it is in."""

from __future__ import annotations

from collections.abc import Sequence

FEWEST = 4  # taps whose spacing is no accident


def evenly_spaced(ids: Sequence[int]) -> bool:
    """Whether these are n layers spread evenly from 1 to the last, a layer or more apart."""
    n, last = len(ids), ids[-1]
    if n < FEWEST or last - 1 < 2 * (n - 1):
        return False
    return list(ids) == [round(1 + i * (last - 1) / (n - 1)) for i in range(n)]
