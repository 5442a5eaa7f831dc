"""GGUF in a dialect → mainline's GGUF: a plan, and its tensors copied from the mapped file piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_convert import quants
from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import GGUFFile, open_gguf
from dflash_convert.gguf_io.writer import Progress, check_output, write
from dflash_convert.mapped_file import give_back
from dflash_convert.migration.plan import plan_migration

__all__ = ["migrate_file", "plan_file"]

CHUNK = 1 << 23  # bytes


def plan_file(src: str | os.PathLike[str], *, window: int | None = None, layer_types: str | None = None) -> Plan:
    """`plan_migration` for the file at `src`. Raises GGUFError also where it cannot be opened."""
    return plan_migration(open_gguf(src), window=window, layer_types=layer_types)


def migrate_file(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    window: int | None = None,
    layer_types: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Write the draft at `src` to `dst` in mainline's format; returns what was written.

    window, layer_types: see `plan_migration`. Raises UsageError, GGUFError and OutputError; on any of them nothing is
    left at `dst`.
    """
    src, dst = Path(src), Path(dst)
    check_output(dst, force=force, inputs=[src])
    gguf = open_gguf(src)
    plan = plan_migration(gguf, window=window, layer_types=layer_types)
    write(plan, lambda tensor: _chunks(gguf, tensor), dst, force=force, progress=progress)
    return plan


def _chunks(gguf: GGUFFile, tensor: PlannedTensor) -> Iterator[Any]:
    """The tensor's bytes: those of the file, or a norm's widened to F32."""
    info = gguf.tensors[tensor.source]
    if tensor.type != info.type:
        yield quants.dequantize(gguf.raw(info.name), info.type.name).tobytes()
        return
    end = info.offset + info.nbytes
    for start in range(info.offset, end, CHUNK):
        stop = min(start + CHUNK, end)
        yield gguf.data[start:stop]
        give_back(gguf.data.obj, start, stop)
