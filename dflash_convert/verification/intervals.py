"""How sure a figure is: percentile intervals by bootstrap, and a user's threshold held against one.

In: samples. Out: an `Interval`; with a threshold, a check. A threshold is missed where the whole interval lies below
it; where it lies within, there are too few samples to tell, which is no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_convert.verification.report import FAIL, PASS, SKIP, Check

Array = np.ndarray[Any, np.dtype[Any]]

DRAWS = 1000
LEVEL = 0.95
SEED = 0  # the same samples give the same interval


@dataclass(frozen=True)
class Interval:
    """A figure and the range that holds it with 95 % confidence."""

    value: float
    low: float
    high: float

    def metrics(self, name: str) -> dict[str, float]:
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def bootstrap(samples: tuple[Array, ...], figure: Callable[..., float]) -> Interval:
    """figure(*samples), and its interval: each array of samples is drawn anew, with replacement and independently."""
    rng = np.random.default_rng(SEED)
    drawn = [figure(*(s[rng.integers(0, len(s), len(s))] for s in samples)) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(figure(*samples), float(low), float(high))


def held(kind: str, subject: str, found: Interval, least: float, basis: str) -> Check:
    """The check of a figure against a user's least value."""
    shown, wanted = f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g})", f"at least {least:.4g}"
    if found.high < least:
        return Check(kind, FAIL, subject, shown, wanted, basis)
    if found.low < least:
        return Check(kind, SKIP, subject, shown, wanted, basis, cause=f"too few samples to tell whether it is {wanted}")
    return Check(kind, PASS, subject, shown, wanted, basis)
