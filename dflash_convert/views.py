"""What the commands show: plans, results and reports → tables, lines and JSON. And how flags become values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gguf.constants import GGUFValueType

from dflash_convert.console import Column, Console
from dflash_convert.conversion.rows.fields import FLAGS, FULL, SLIDING
from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.layout import Plan
from dflash_convert.gguf_io.reader import KV
from dflash_convert.hub import client as hub

if TYPE_CHECKING:
    from dflash_convert.inspection import CheckpointInspection, Inspection
    from dflash_convert.verification import Report

LONG = 8  # entries of an array shown in a table
LAYER_WORDS = {"S": SLIDING, "F": FULL}


# ── flags → values ────────────────────────────────────────────────────────────────────────────────────────────────────


def read_flags(**given: str | None) -> dict[str, Any]:
    """The flags that supply what a config lacks: field → value. Raises UsageError for text that cannot be read."""
    return {name: _read(name, text) for name, text in given.items() if text is not None}


def _read(name: str, text: str) -> Any:
    flag = FLAG_OF[name]
    try:
        return READERS[name](text)
    except ValueError:
        raise UsageError(f"{flag} {text!r} cannot be read", hint=f"for example: {flag} {EXAMPLES[name]}") from None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _layer_types(text: str) -> tuple[str, ...]:
    words = [part.strip().upper() for part in text.split(",")]
    if not set(words) <= set(LAYER_WORDS):
        raise ValueError(text)
    return tuple(LAYER_WORDS[w] for w in words)


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError(text)
    return word == "true"


READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType({
    "block_size": int, "mask_token_id": int, "target_layer_ids": _numbers, "rope_theta": float,
    "sliding_window": int, "layer_types": _layer_types, "is_causal": _truth, "sample_from_anchor": _truth,
})  # fmt: skip
EXAMPLES: Mapping[str, str] = MappingProxyType({
    "block_size": "16", "mask_token_id": "151669", "target_layer_ids": "1,9,17", "rope_theta": "1000000",
    "sliding_window": "2048", "layer_types": "S,S,F", "is_causal": "false", "sample_from_anchor": "true",
})  # fmt: skip
FLAG_OF: Mapping[str, str] = MappingProxyType({field: flag for flag, field in FLAGS.items()})


@dataclass(frozen=True)
class Located:
    """Where verify's source and target lie on this disk."""

    source: Path | None
    target: Path | None


def locate(source: str | None, target: str | None, levels: Collection[str] | None, progress: hub.Progress) -> Located:
    """Folders of source and target. A Hub target's weights are fetched only if acceptance was asked for by name."""
    from dflash_convert.verification.report import ACCEPTANCE

    found_source = hub.resolve(source, what="draft", progress=progress) if source else None
    found_target = hub.resolve(target, what="target", progress=progress) if target else None
    if found_target and found_target.revision and levels and ACCEPTANCE in levels:
        found_target = hub.with_weights(found_target, progress=progress)
    return Located(found_source.root if found_source else None, found_target.root if found_target else None)


# ── values → text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def show_notes(console: Console, plan: Plan) -> None:
    """What the plan wants the user to know, on stderr."""
    for note in plan.notes:
        (console.warn if note.level == "warning" else console.note)(note.text)


def show_plan(console: Console, plan: Plan, path: Path) -> None:
    """The whole plan: keys with where each came from, tensors with source, shape, type and bytes."""
    keys = [(kv.key, _type(kv), _value(kv), kv.source) for kv in plan.kv]
    tensors = [(t.name, t.type.name, _shape(t.shape), f"{t.nbytes:,}", t.source, t.transform) for t in plan.tensors]
    console.table(["key", "type", "value", "from"], keys, f"{path} (not written)")
    console.table(["tensor", "type", "shape", Column("bytes", right=True), "from", "transform"], tensors)
    console.show(f"{len(plan.tensors)} tensors, {plan.file_size:,} bytes in all")
    console.emit({**_document(plan, path), "written": False, "keys": _keys(plan), "tensors": _tensors(plan)})
    if console.mode == "quiet":
        console.result_path(path)


def show_result(console: Console, plan: Plan, path: Path) -> None:
    """What was written: its path on stdout, the rest on stderr."""
    console.note(f"{len(plan.tensors)} tensors, {plan.file_size:,} bytes")
    console.result_path(path)
    console.emit({**_document(plan, path), "written": True})


def show_report(console: Console, report: Report, *, verbose: bool) -> None:
    """A verify report."""
    from dflash_convert.verification.render import lines

    console.show("\n".join(lines(report, unicode=console.mark(True) == "✓", verbose=verbose)))
    console.emit(report.to_json())
    if console.mode == "quiet":
        console.result_path(report.file)


def show_inspection(console: Console, found: Inspection | CheckpointInspection) -> None:
    """What a file or checkpoint is and says of itself, and what is odd about it."""
    from dflash_convert.inspection import Inspection
    from dflash_convert.inspection.render import checkpoint_rows, remarks, rows

    if isinstance(found, Inspection):
        console.table(["what", "value"], rows(found), str(found.path))
    else:
        console.table(["what", "value", "from"], checkpoint_rows(found), str(found.path))
    weights = [(w.role, w.type, w.tensors, f"{w.bytes:,}") for w in found.weights]
    console.table(["role", "type", Column("tensors", right=True), Column("bytes", right=True)], weights)
    for line in remarks(found):
        console.show(line)
    console.emit(found)
    if console.mode == "quiet":
        console.result_path(found.path)


def _document(plan: Plan, path: Path) -> dict[str, Any]:
    notes = [{"level": n.level, "text": n.text} for n in plan.notes]
    return {"path": str(path), "bytes": plan.file_size, "n_tensors": len(plan.tensors), "notes": notes}


def _keys(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"key": kv.key, "type": _type(kv), "value": list(kv.value) if _is_array(kv) else kv.value, "from": kv.source}
        for kv in plan.kv
    ]


def _tensors(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "type": t.type.name, "shape": list(t.shape), "bytes": t.nbytes, "from": t.source,
         "transform": t.transform}
        for t in plan.tensors
    ]  # fmt: skip


def _is_array(kv: KV) -> bool:
    return kv.type == GGUFValueType.ARRAY


def _type(kv: KV) -> str:
    return f"[{kv.item_type.name.lower()}]" if kv.item_type is not None else kv.type.name.lower()


def _value(kv: KV) -> str:
    if _is_array(kv):
        return str(list(kv.value)) if len(kv.value) <= LONG else f"{len(kv.value):,} entries"
    text = repr(kv.value) if isinstance(kv.value, str) else str(kv.value)
    return text if len(text) <= 60 else text[:57] + "…"


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
