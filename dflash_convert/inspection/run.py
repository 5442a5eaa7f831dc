"""A path → its inspection: a GGUF's, or a checkpoint folder's. No weights are read."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_convert.dialects.dialect import Dialect
from dflash_convert.dialects.table import recognise
from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.reader import GGUFFile, open_gguf
from dflash_convert.inspection import facts as read
from dflash_convert.inspection.checkpoint import inspect_checkpoint
from dflash_convert.inspection.facts import Facts
from dflash_convert.inspection.odd import odd
from dflash_convert.inspection.roles import by_role, family
from dflash_convert.inspection.values import DRAFT, MODEL, OTHER, CheckpointInspection, Format, Inspection


def inspect_path(path: str | os.PathLike[str]) -> Inspection | CheckpointInspection:
    """What a GGUF, or a folder with a checkpoint, is and says of itself.

    Raises ConfigError, CheckpointError, GGUFError: what is there cannot be opened.
    """
    return inspect_checkpoint(Path(path)) if Path(path).is_dir() else inspect_gguf(path)


def inspect_gguf(path: str | os.PathLike[str]) -> Inspection:
    """What a GGUF is and says of itself: a draft in any known dialect in full, of any other file what it has.

    Raises UsageError: a folder. GGUFError: no such file, not a GGUF, or a damaged one.
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a GGUF", hint="give the file in it")
    gguf = open_gguf(path)
    dialect = recognise(gguf.architecture, {*gguf.kv, *gguf.tensors})
    facts = Facts(gguf, dialect)
    taps = read.all_taps(facts)
    return Inspection(
        path=path,
        bytes=len(gguf.data),
        kind=_kind(gguf, dialect),
        architecture=gguf.architecture,
        dialect=_format(dialect) if dialect else None,
        family=family(gguf.tensors) if dialect else None,
        taps=taps[0] if taps else None,
        block_size=read.block_size(facts),
        mask=read.mask(facts),
        layers=read.layers(facts),
        sizes=read.sizes(facts),
        rope=read.rope(facts),
        vocabulary=read.vocabulary(facts),
        weights=by_role(gguf.tensors.values()),
        provenance=read.provenance(facts),
        odd=odd(facts),
    )


def _kind(gguf: GGUFFile, dialect: Dialect | None) -> str:
    """A model is what has layers; an importance matrix, an adapter or a projector is something else."""
    if dialect:
        return DRAFT
    return (
        MODEL
        if f"{gguf.architecture}.block_count" in gguf.kv and gguf.get("general.type", "model") == "model"
        else OTHER
    )


def _format(d: Dialect) -> Format:
    return Format(d.name, d.title, d.purpose, d.mainline_loads, d.taps[0].convention, d.notes)
