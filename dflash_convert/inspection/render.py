"""An inspection → rows and lines of text for people. Nothing that a file says reaches the terminal unescaped."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_convert.errors import one_line
from dflash_convert.inspection.values import (
    FULL,
    CheckpointInspection,
    Inspection,
    Layers,
    Mask,
    Rope,
    Taps,
    Vocabulary,
)

MANY = 16  # layers that are written out one by one


def rows(found: Inspection) -> list[tuple[str, str]]:
    """(what, value) for everything the file says."""
    return [(what, one_line(value)) for what, value in _rows(found) if value]


def _rows(found: Inspection) -> Iterator[tuple[str, str]]:
    dialect = found.dialect
    if dialect:
        loads = "loads" if dialect.mainline_loads else "does not load"
        yield "dialect", f"{dialect.title}; mainline llama.cpp {loads} it"
        yield "made for", dialect.purpose
    else:
        yield "kind", f"{'a model' if found.kind == 'model' else 'neither a draft nor a model'}; in no draft's format"
    yield "architecture", found.architecture
    yield "family", found.family or ""
    yield "taps", taps(found.taps) if found.taps else ""
    yield "block size", str(found.block_size or "")
    yield "mask token", mask(found.mask) if found.mask else ""
    yield "layers", layers(found.layers)
    yield "sizes", ", ".join(f"{word} {n}" for word, n in found.sizes.items())
    yield "rope", rope(found.rope)
    yield "vocabulary", vocabulary(found.vocabulary)
    yield from found.provenance.items()


def checkpoint_rows(found: CheckpointInspection) -> list[tuple[str, str, str]]:
    """(what, value, place) for everything a checkpoint says."""
    stopped = "; not convertible as it is" if found.stopped else ""
    kind = f"{found.family}{stopped}" if found.family else "not convertible"
    about = [("family", kind, "the tensors"), ("label", found.label, "architectures")]
    about += [("taps", taps(found.taps), "")] if found.taps else []
    about += [("layers", layers(found.layers), "")]
    said = [(v.name, str(list(v.value) if isinstance(v.value, tuple) else v.value), v.place) for v in found.values]
    return [(one_line(what), one_line(value), place) for what, value, place in (*about, *said) if value]


def taps(taps: Taps) -> str:
    return f"checkpoint ids {list(taps.checkpoint)}, target_layers {list(taps.mainline)} (stored in {taps.key})"


def mask(mask: Mask) -> str:
    return str(mask.id) if mask.text is None else f"{mask.id} {mask.text!r}"


def layers(layers: Layers) -> str:
    """`S S S S F window 2048`; a tall model's as its number only."""
    window = f" window {layers.window}" if layers.window else ""
    if not layers.kinds:
        return f"{layers.count}{window}" if layers.count is not None else ""
    if len(layers.kinds) > MANY:
        return f"{len(layers.kinds)}, {layers.kinds.count(FULL)} of them full{window}"
    return " ".join(layers.kinds) + window


def rope(rope: Rope) -> str:
    parts = [f"base {rope.base:.10g}"] if rope.base is not None else []
    if rope.scaling:
        factor = f" × {rope.factor:g}" if rope.factor is not None else ""
        context = f" over {rope.original_context}" if rope.original_context else ""
        parts.append(f"{rope.scaling}{factor}{context}")
    if rope.rotated and rope.head_size and rope.rotated != rope.head_size:
        parts.append(f"{rope.rotated} of {rope.head_size} dimensions")
    if rope.sections:
        parts.append(f"sections {list(rope.sections)}")
    return ", ".join(parts)


def vocabulary(vocab: Vocabulary) -> str:
    parts = [vocab.model, f"pre {vocab.pre}" if vocab.pre else None, f"{vocab.size:,} tokens" if vocab.size else None]
    return ", ".join(part for part in parts if part)


def remarks(found: Inspection | CheckpointInspection) -> Iterator[str]:
    """What is odd, and what to know of the format."""
    yield from (f"odd: {one_line(text)}" for text in found.odd)
    yield from (f"about this format: {text}" for text in _notes(found))


def _notes(found: Inspection | CheckpointInspection) -> tuple[str, ...]:
    return found.dialect.notes if isinstance(found, Inspection) and found.dialect else ()
