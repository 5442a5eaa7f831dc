"""`convert()` = `hf-to-gguf`: a checkpoint (and what is known of its target) → a GGUF that mainline llama.cpp loads.

    refs ─ hub ─► folders ─ checkpoint, config, vocab ─► Plan ─ writer ─► file

`plan_conversion` stops at the plan (`--dry-run`: no file is made, no tensor data read); `write_conversion` writes it,
streaming row blocks out of the mapped shards (stream.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dflash_convert.checkpoints.checkpoint import Checkpoint, open_checkpoint
from dflash_convert.checkpoints.mask_embedding import MaskEmbedding, read_mask_embedding
from dflash_convert.checkpoints.tokenizer_files import read_tokenizer
from dflash_convert.conversion.config import read_draft_config, read_model_config
from dflash_convert.conversion.donors import Donor, name_of, open_donor
from dflash_convert.conversion.match import bare, classify
from dflash_convert.conversion.metadata import base_model, general_rows
from dflash_convert.conversion.own_tables import Beside
from dflash_convert.conversion.plan import choose_outtype, plan_draft, plan_target, weights_in
from dflash_convert.conversion.quantized_source import refuse_quantized
from dflash_convert.conversion.rows.families import Family
from dflash_convert.conversion.rows.targets import Target
from dflash_convert.conversion.stream import block_bytes, row_blocks
from dflash_convert.conversion.target_tables import TargetTables
from dflash_convert.conversion.transforms import DRAFT, TARGET, Material, layouts_of, unpacked
from dflash_convert.conversion.vocab import vocab_rows
from dflash_convert.errors import UsageError
from dflash_convert.gguf_io.layout import Note, Plan
from dflash_convert.gguf_io.reader import KV
from dflash_convert.gguf_io.writer import check_output, write
from dflash_convert.hub import client as hub
from dflash_convert.pipeline import working_ahead

READERS = 2  # threads that read and check ahead of the writing; a disk needs no more


@dataclass(frozen=True)
class Conversion:
    """A planned conversion: what will be written where, and what its bytes are made from."""

    plan: Plan
    path: Path
    material: Material
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
    if out is not None:
        check_output(Path(out), force=force)
    source = _draft_source(str(draft), progress)
    stored = open_checkpoint(source.root)
    checkpoint = unpacked(stored)
    refuse_quantized(checkpoint.config, checkpoint.tensors.values(), partial(base_model, source.root))
    kind, outtype = classify(checkpoint), choose_outtype(checkpoint, outtype)
    request = Request(source, checkpoint, stored, outtype, dict(overrides or {}), pre, progress)
    if isinstance(kind, Family):
        donor = _donor(request, target)
        job, folders = _plan_draft(request, kind, donor), [source.root, donor.source.root]
    else:
        job, folders = _plan_target(request, kind, target), [source.root]
    job = replace(job, path=Path(out)) if out is not None else job
    check_output(job.path, force=force, inputs=[file for folder in folders for file in _files(folder)])
    return job


def _files(place: Path) -> list[Path]:
    return list(place.iterdir()) if place.is_dir() else [place]


def write_conversion(job: Conversion, *, force: bool = False, progress: hub.Progress = hub.silent) -> Path:
    """Write a planned conversion."""
    blocks = {t.name: row_blocks(job.material, t) for t in job.plan.tensors}
    work = partial(block_bytes, job.material)
    with (
        working_ahead(blocks, work, READERS) as chunks,
        progress(job.plan.file_size, job.path.name) as advance,
    ):
        return write(job.plan, chunks, job.path, force=force, progress=advance)


# ── planning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Request:
    """What was asked for, with the checkpoint opened and the outtype settled.

    checkpoint: its tensors as the mapping sees them; stored: as they lie, packed weights in several parts.
    """

    source: hub.Source
    checkpoint: Checkpoint
    stored: Checkpoint
    outtype: str
    overrides: Mapping[str, Any]
    pre: str | None
    progress: hub.Progress

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {bare(n): t.shape for n, t in self.checkpoint.tensors.items()}

    def general(self, arch: str) -> tuple[KV, ...]:
        return general_rows(
            self.source.root,
            arch,
            weights_in(self.checkpoint),
            self.source.repo,
            self.source.commit,
            self.source.folder,
        )


def _draft_source(ref: str, progress: hub.Progress) -> hub.Source:
    source = hub.resolve(ref, what="draft", progress=progress)
    if source.is_gguf:
        raise UsageError(
            f"{source.root.name} is a GGUF already; hf-to-gguf starts from a checkpoint (config.json and safetensors)",
            hint="to change its type, use `dflash-convert quantize`",
        )
    return source


def _donor(request: Request, target: str | Path | None) -> Donor:
    """The target: its small files, or the header of its GGUF."""
    if target is None:
        raise UsageError(
            f"{name_of(request.source)} is a draft: it has no tokenizer of its own and needs its target's",
            hint="pass --target with the target's Hub id or folder (only its small files are needed), or its GGUF",
        )
    source = hub.resolve(str(target), what="target", progress=request.progress)
    return open_donor(source, request.pre, request.progress)


def _plan_draft(request: Request, family: Family, donor: Donor) -> Conversion:
    masks = ", ".join(f"{token} (id {number})" for token, number in donor.masks.items())
    hints = {"mask_token_id": f"the target's tokenizer has {masks}"} if masks else {}
    config = read_draft_config(request.checkpoint.config, request.shapes, request.overrides, hints, family.fields)
    beside = Beside(donor.tables.find, _mask_embedding(request.source.root))
    plan = plan_draft(
        request.checkpoint,
        family,
        config,
        donor.facts,
        request.general(family.arch),
        donor.vocab,
        request.outtype,
        beside,
    )
    notes = [Note("info", text) for text in (*request.source.notes, *donor.source.notes)]
    path = Path(f"{family.prefix}-{name_of(donor.source)}-{request.outtype.upper()}.gguf")
    mask = (config.mask_token_id, beside.mask) if beside.mask else None
    material = _material(request, config.head_dim, plan, donor.tables, mask)
    return Conversion(replace(plan, notes=(*notes, *plan.notes)), path, material, family.name)


def _mask_embedding(root: Path) -> MaskEmbedding | None:
    """The mask token's own embedding, where a draft keeps one beside its weights."""
    path = root / "mask_embedding.pt"
    return read_mask_embedding(path) if path.is_file() else None


def _material(
    request: Request,
    head_dim: int,
    plan: Plan,
    tables: TargetTables | None = None,
    mask: tuple[int, MaskEmbedding] | None = None,
) -> Material:
    """What the planned tensors are made from; the target's weights only if any is."""
    origins = {DRAFT: request.stored}
    if tables and any(t.origin == TARGET for t in plan.tensors):
        origins[TARGET] = tables.checkpoint
    return Material(origins, head_dim, mask, layouts_of(request.stored))


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
    vocab = partial(vocab_rows, read_tokenizer(request.source.root), pre=request.pre)
    plan = plan_target(request.checkpoint, kind, config, request.general(kind.arch), vocab, request.outtype)
    plan = replace(plan, notes=(*(Note("info", text) for text in request.source.notes), *plan.notes))
    path = Path(f"{name}-{request.outtype.upper()}.gguf")
    return Conversion(plan, path, _material(request, config.head_dim, plan), kind.name)
