"""A `Report` for people: rows for a table, or plain lines. Returns text; printing is the console's business."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_convert.verification.report import (
    ACCEPTANCE,
    FAIL,
    FORWARD,
    PASS,
    SKIP,
    TENSORS,
    Check,
    LevelResult,
    Report,
)

MARKS = {PASS: "✓", FAIL: "✗", SKIP: "–"}
ASCII = {PASS: "ok", FAIL: "FAIL", SKIP: "-"}
WORST = 3  # tensors shown though they passed
MOST = 20  # failures shown a level


def lines(report: Report, *, unicode: bool = True, verbose: bool = False) -> list[str]:
    """The report as plain lines, worst first within each level. verbose: every check, not only what matters."""
    marks = MARKS if unicode else ASCII
    width = max(len(mark) for mark in marks.values())
    head = [f"{name:8}{value}" for name, value in _heading(report) if value]
    body = []
    for level in report.levels:
        body.append(f"{marks[level.status]:{width}} {level.name:11} {summary(level)}")
        body += [f"{'':{width}}   {marks[mark]} {text}" for mark, text in rows(level, verbose=verbose)]
    return [*head, *body, verdict(report)]


def rows(level: LevelResult, *, verbose: bool = False) -> list[tuple[str, str]]:
    """(status, text) of the checks of a level worth showing: failures, what was not checked, the worst tensors."""
    if verbose:
        return [(c.status, c.message) for c in level.checks]
    return [(status, text) for status, text in _picked(level)]


def _picked(level: LevelResult) -> Iterator[tuple[str, str]]:
    failed = level.failed
    yield from ((c.status, c.message) for c in failed[:MOST])
    if len(failed) > MOST:
        yield FAIL, f"and {len(failed) - MOST} more"
    yield from ((c.status, c.message) for c in level.checks if c.status == SKIP)
    if level.name == TENSORS:
        yield from ((c.status, c.message) for c in _passed(level)[:WORST] if c.data.get("relative_rms"))


def _passed(level: LevelResult) -> list[Check]:
    return [c for c in level.checks if c.status == PASS]


def summary(level: LevelResult) -> str:
    """A level in a few words."""
    if level.status == SKIP:
        return f"skipped: {level.reason}"
    m = level.metrics
    if level.status == PASS and level.name == FORWARD:
        top = f", first choices equal: {_with_interval(m, 'top1_agreement', '.1%')}" if "top1_agreement" in m else ""
        graph = f"the same graph (to {m['worst_difference']:.1e})"
        return f"{graph}; cosine to the original {m['cosine']:.7f} over {m['positions']:.0f} positions{top}"
    if level.name == ACCEPTANCE and "mean_length" in m:
        beside = f", the original {m['reference_mean_length']:.3f}" if "reference_mean_length" in m else ""
        ratio = f", ratio {_with_interval(m, 'ratio', '.3f')}" if "ratio" in m else ""
        return f"{m['mean_length']:.3f} tokens a step{beside}{ratio}, over {m['prompts']:.0f} prompts"
    return f"{len(_passed(level))} of {len(level.checks)} checks passed"


def _with_interval(metrics: Mapping[str, float], name: str, form: str) -> str:
    """A figure and its 95 % interval."""
    low, high = (format(metrics[f"{name}_{end}"], form) for end in ("low", "high"))
    return f"{metrics[name]:{form}} ({low} to {high})"


def verdict(report: Report) -> str:
    """The last line: verified or not, and what was left out."""
    failed = sum(len(level.failed) for level in report.levels)
    if failed:
        return f"not verified: {failed} check{'s' if failed > 1 else ''} failed"
    skipped = [level.name for level in report.levels if level.status == SKIP]
    if report.source is None:
        return f"no fault found, but nothing was compared with a source (without {', '.join(skipped)})"
    return "verified" + (f" (without {', '.join(skipped)})" if skipped else "")


def _heading(report: Report) -> tuple[tuple[str, str | None], ...]:
    return ("file", report.file), ("source", report.source), ("target", report.target)
