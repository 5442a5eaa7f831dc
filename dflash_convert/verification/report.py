"""What verifying gives: a `Report` of levels, each a tuple of `Check`s. Plain values, no terminal.

A level is "pass" when none of its checks failed, "fail" when one did, and "skip" with a reason when it could not run.
A check is "skip" when the source does not say what to expect: it is listed, never counted as a pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "dflash-convert/verify/1"  # the JSON form; the number grows when a reader of the old form would break
PASS, FAIL, SKIP = "pass", "fail", "skip"
STRUCTURE, TENSORS, FORWARD, ACCEPTANCE = LEVELS = ("structure", "tensors", "forward", "acceptance")


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    id: the kind of check ("key", "tensor", "tokenizer", …). subject: the key, tensor or measure. found, expected: JSON
    values, None for "absent". basis: where the expectation comes from. cause: what usually makes it go wrong. where:
    place within the subject. data: numbers for machines.
    """

    id: str
    status: str
    subject: str
    found: Any = None
    expected: Any = None
    basis: str = ""
    cause: str = ""
    where: str = ""
    data: Mapping[str, float] = field(default_factory=dict)

    @property
    def message(self) -> str:
        """The check in one line: subject, value, and on failure what it should be and why it may not be."""
        if self.status == SKIP:
            return f"{self.subject} is {show(self.found)}; not checked: {self.cause}"
        at = f" at {self.where}" if self.where else ""
        if self.status == PASS:
            return f"{self.subject} is {show(self.found)}{at}"
        basis = f" ({self.basis})" if self.basis else ""
        cause = f": {self.cause}" if self.cause else ""
        return f"{self.subject} is {show(self.found)}{at}; expected {show(self.expected)}{basis}{cause}"


@dataclass(frozen=True)
class LevelResult:
    """One of the four levels; `checks` worst first. `metrics`: numbers of the level as a whole."""

    name: str
    status: str
    reason: str = ""
    checks: tuple[Check, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(c for c in self.checks if c.status == FAIL)


@dataclass(frozen=True)
class Report:
    """The outcome of `verify`: what was compared with what, and every level, run or not."""

    file: str
    source: str | None
    target: str | None
    levels: tuple[LevelResult, ...]

    @property
    def ok(self) -> bool:
        """True when something ran and nothing failed."""
        return any(level.status == PASS for level in self.levels) and not any(
            level.status == FAIL for level in self.levels
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Every level's numbers as `level.name`."""
        return {f"{level.name}.{name}": value for level in self.levels for name, value in level.metrics.items()}

    def level(self, name: str) -> LevelResult:
        """The level called `name`."""
        return next(level for level in self.levels if level.name == name)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; `schema` names the form."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "file": self.file,
            "source": self.source,
            "target": self.target,
            "metrics": {name: finite(value) for name, value in self.metrics.items()},
            "levels": [_level_json(level) for level in self.levels],
        }


def judged(name: str, checks: Iterable[Check], metrics: Mapping[str, float] | None = None) -> LevelResult:
    """A level that ran: failures first, then what was not checked, then what passed, each in the given order."""
    rank = {FAIL: 0, SKIP: 1, PASS: 2}
    ordered = tuple(sorted(checks, key=lambda c: rank[c.status]))
    status = FAIL if any(c.status == FAIL for c in ordered) else PASS
    return LevelResult(name, status, checks=ordered, metrics=metrics or {})


def not_runnable(name: str, cause: str) -> LevelResult:
    """The level of a file that no runtime could draft with."""
    return judged(name, [Check(name, FAIL, "the draft", "not runnable", "a draft that runs", cause=cause)])


def show(value: Any) -> str:
    """A value as people write it: None is "absent", floats short, long lists cut, strings quoted only when odd."""
    if value is None:
        return "absent"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, (list, tuple)):
        items = [show(v) for v in value[:12]] + (["…"] if len(value) > 12 else [])
        return f"[{', '.join(items)}]"
    return str(value)


def finite(value: Any) -> Any:
    """NaN and Inf as strings: JSON has no words for them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _level_json(level: LevelResult) -> dict[str, Any]:
    return {
        "name": level.name,
        "status": level.status,
        "reason": level.reason,
        "metrics": {name: finite(value) for name, value in level.metrics.items()},
        "checks": [_check_json(check) for check in level.checks],
    }


def _check_json(check: Check) -> dict[str, Any]:
    names = ("id", "status", "subject", "found", "expected", "basis", "cause", "where")
    data = {name: finite(value) for name, value in check.data.items()}
    return {name: finite(getattr(check, name)) for name in names} | {"message": check.message, "data": data}
