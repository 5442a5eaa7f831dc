"""`convert()` = `hf-to-gguf`: a checkpoint (and what is known of its target) → a GGUF that mainline llama.cpp loads.

    refs ─ hub ─► folders ─ checkpoint, config, vocab ─► Plan ─ writer ─► file

`plan_conversion` stops at the plan (`--dry-run`); `convert` writes it, streaming row blocks out of the mapped shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as G

from dflash_convert import hub
from dflash_convert.checkpoint import DTYPES, Array, Checkpoint, open_checkpoint, read_config
from dflash_convert.config import read_draft_config, read_model_config, read_target_config
from dflash_convert.errors import CheckpointError, UsageError
from dflash_convert.families import Family
from dflash_convert.gguf_file import KV
from dflash_convert.layout import Note, Plan, PlannedTensor
from dflash_convert.metadata import general_rows
from dflash_convert.plan import DEINTERLEAVE, bare, choose_outtype, classify, plan_draft, plan_target, weights_in
from dflash_convert.quants import quantize
from dflash_convert.targets import Target
from dflash_convert.vocab import read_tokenizer, tokens_named_mask, vocab_rows
from dflash_convert.writer import check_output, write

F16_MAX = 65504.0


@dataclass(frozen=True)
class Conversion:
    """A planned conversion: what will be written where, and the checkpoint its bytes come from."""

    plan: Plan
    path: Path
    checkpoint: Checkpoint
    head_dim: int
    family: str


def convert(
    draft: str | Path,
    target: str | Path | None = None,
    out: str | Path | None = None,
    *,
    outtype: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    pre: str | None = None,
    force: bool = False,
    progress: hub.Progress = hub.silent,
) -> Path:
    """Convert a draft (or, without `target`, a target model) and return the path of the GGUF.

    draft, target: a folder, or a Hub id `org/name[@revision]`. out: the output file; by default a name that llama.cpp
    discovers beside the target. outtype: f32, f16, bf16, q8_0, or auto (as stored). overrides: field → value, for what
    the config lacks (`block_size`, `mask_token_id`, `target_layer_ids`, …). pre: llama.cpp's pre-tokenizer name.
    progress: (bytes in all, label) → a context manager giving a function that is called with each number of bytes.
    Raises a DflashError; nothing is left behind then.
    """
    job = plan_conversion(
        draft, target, out, outtype=outtype, overrides=overrides, pre=pre, force=force, progress=progress
    )
    return write_conversion(job, force=force, progress=progress)


def plan_conversion(
    draft: str | Path,
    target: str | Path | None = None,
    out: str | Path | None = None,
    *,
    outtype: str = "auto",
    overrides: Mapping[str, Any] | None = None,
    pre: str | None = None,
    force: bool = False,
    progress: hub.Progress = hub.silent,
) -> Conversion:
    """Everything `convert` decides and checks, without writing. Same arguments and errors."""
    source = hub.resolve(str(draft), what="draft", progress=progress)
    checkpoint = open_checkpoint(source.root)
    kind, outtype = classify(checkpoint), choose_outtype(checkpoint, outtype)
    request = Request(source, checkpoint, outtype, dict(overrides or {}), pre)
    if isinstance(kind, Family):
        job = _plan_draft(request, kind, _donor(request, target, progress))
    else:
        job = _plan_target(request, kind, target)
    job = replace(job, path=Path(out)) if out else job
    check_output(job.path, force=force, inputs={t.file for t in checkpoint.tensors.values()})
    return job


def write_conversion(job: Conversion, *, force: bool = False, progress: hub.Progress = hub.silent) -> Path:
    """Write a planned conversion."""
    with progress(job.plan.file_size, job.path.name) as advance:
        return write(
            job.plan, lambda t: tensor_bytes(job.checkpoint, t, job.head_dim), job.path, force=force, progress=advance
        )


# ── planning ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Request:
    """What was asked for, with the checkpoint opened and the outtype settled."""

    source: hub.Source
    checkpoint: Checkpoint
    outtype: str
    overrides: Mapping[str, Any]
    pre: str | None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {bare(n): t.shape for n, t in self.checkpoint.tensors.items()}

    def general(self, arch: str) -> tuple[KV, ...]:
        return general_rows(
            self.source.root, arch, weights_in(self.checkpoint), self.source.repo, self.source.commit
        )


def _donor(request: Request, target: str | Path | None, progress: hub.Progress) -> hub.Source:
    """The target's small files."""
    if target is None:
        raise UsageError(
            f"{name_of(request.source)} is a draft: it has no tokenizer of its own and needs its target's",
            hint="pass --target with the target's Hub id or folder (only its small files are needed, no weights)",
        )
    donor = hub.resolve(str(target), what="target", progress=progress)
    if donor.is_gguf:
        raise UsageError(
            f"{donor.root.name}: a target GGUF as the source of the vocabulary is not supported yet",
            hint="pass the target's Hub id or a folder with config.json, tokenizer.json and tokenizer_config.json",
        )
    return donor


def _plan_draft(request: Request, family: Family, donor: hub.Source) -> Conversion:
    files = read_tokenizer(donor.root)
    facts = read_target_config(read_config(donor.root), name_of(donor))
    masks = ", ".join(f"{token} (id {number})" for token, number in tokens_named_mask(files).items())
    hints = {"mask_token_id": f"the target's tokenizer has {masks}"} if masks else {}
    config = read_draft_config(request.checkpoint.config, request.shapes, request.overrides, hints)
    vocab = vocab_rows(files, config.vocab_size, request.pre)
    plan = plan_draft(request.checkpoint, family, config, facts, request.general(family.arch), vocab, request.outtype)
    notes = [Note("info", text) for text in (*request.source.notes, *donor.notes)]
    path = Path(f"{family.prefix}-{name_of(donor)}-{request.outtype.upper()}.gguf")
    return Conversion(replace(plan, notes=(*notes, *plan.notes)), path, request.checkpoint, config.head_dim, family.name)


def _plan_target(request: Request, kind: Target, target: str | Path | None) -> Conversion:
    name = name_of(request.source)
    if target is not None:
        raise UsageError(
            f"{name} is a {kind.name} model, not a draft: --target makes no sense with it",
            hint="name the draft first: hf-to-gguf DRAFT --target TARGET",
        )
    if request.overrides:
        raise UsageError(f"{', '.join(sorted(request.overrides))} can only be given for a draft")
    config = read_model_config(request.checkpoint.config, request.shapes)
    vocab = vocab_rows(read_tokenizer(request.source.root), config.vocab_size, request.pre)
    plan = plan_target(request.checkpoint, kind, config, request.general(kind.arch), vocab, request.outtype)
    path = Path(f"{name}-{request.outtype.upper()}.gguf")
    return Conversion(plan, path, request.checkpoint, config.head_dim, kind.name)


def name_of(source: hub.Source) -> str:
    """The model's name as a user knows it: the repo's last part, or the folder's name."""
    return source.repo.split("/")[-1] if source.repo else source.root.resolve().name


# ── bytes ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tensor_bytes(checkpoint: Checkpoint, tensor: PlannedTensor, head_dim: int) -> Iterator[memoryview]:
    """The bytes of one planned tensor, block by block. Raises CheckpointError for NaN, Inf or an F16 overflow."""
    multiple = head_dim if tensor.transform == DEINTERLEAVE and len(tensor.shape) > 1 else 1
    for first, rows in checkpoint.blocks(tensor.source, multiple=multiple):
        check_finite(rows, tensor.source, first)
        if tensor.transform == DEINTERLEAVE:
            rows = deinterleave(rows, head_dim)
        yield encode(rows, tensor, first)


def check_finite(rows: Array, name: str, first: int) -> None:
    """Refuse NaN and Inf by name, row and column. rows: (n, row length), of any float dtype."""
    if rows.dtype.itemsize == 2:  # bf16 and f16: all exponent bits set; compared as integers, at memory speed
        exponent = np.uint16(0x7C00 if rows.dtype == np.float16 else 0x7F80)
        finite = not rows.size or bool((rows.view(np.uint16) & np.uint16(0x7FFF)).max() < exponent)
    else:
        finite = bool(np.isfinite(rows).all())
    if not finite:
        row, column = np.argwhere(~np.isfinite(rows.astype(np.float32)))[0]
        raise CheckpointError(
            f"{name} has {rows[row, column]} at [{first + row}, {column}]: the weights are damaged",
            hint="download the checkpoint again; if it is published like this, tell its author",
        )


def deinterleave(rows: Array, head_dim: int) -> Array:
    """Interleaved rotary pairs (0,1)(2,3)… → llama.cpp's halves: per head the even dimensions first, then the odd.

    rows: (heads · head_dim, row length), or (1, head_dim) for a norm.
    """
    if rows.shape[0] == 1:
        return rows.reshape(-1, head_dim // 2, 2).swapaxes(1, 2).reshape(rows.shape)
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])  # (head, pair, even/odd, row length)
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def encode(rows: Array, tensor: PlannedTensor, first: int) -> memoryview:
    """Rows in the tensor's GGUF type; the same type is copied bit for bit."""
    if DTYPES_OF.get(tensor.type) == rows.dtype:
        return memoryview(np.ascontiguousarray(rows).view(np.uint8).reshape(-1))
    values = np.ascontiguousarray(rows, dtype=np.float32)
    if tensor.type == G.F16:
        _check_overflow(values, tensor.source, first)
    return memoryview(quantize(values, tensor.type.name).reshape(-1))


DTYPES_OF: Mapping[G, np.dtype[Any]] = {G.F32: DTYPES["F32"], G.F16: DTYPES["F16"], G.BF16: DTYPES["BF16"]}


def _check_overflow(values: np.ndarray[Any, np.dtype[np.float32]], name: str, first: int) -> None:
    if values.size and np.abs(values).max() > F16_MAX:
        row, column = np.argwhere(np.abs(values) > F16_MAX)[0]
        raise CheckpointError(
            f"{name} has {values[row, column]:g} at [{first + row}, {column}]; F16 ends at {F16_MAX:g} and would overflow",
            hint="use --outtype bf16",
        )
