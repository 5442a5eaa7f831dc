"""A draft's own embeddings and head: which of them its file carries, and which are taken from the target.

llama.cpp lends a draft the target's tables, but takes a `token_embd` without `output` for the head too. So a file has
both or neither, unless the draft ties them; where one is missing, the target's is written out. A mask token whose
embedding was trained apart needs the table written out as well, with that row in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gguf.constants import GGMLQuantizationType

from dflash_convert.checkpoints.checkpoint import SourceTensor
from dflash_convert.checkpoints.mask_embedding import MaskEmbedding
from dflash_convert.conversion.config import DraftConfig
from dflash_convert.conversion.rows.schema import OUTPUT, TOKEN_EMBD, TensorRow
from dflash_convert.conversion.transforms import MASK_ROW, TARGET
from dflash_convert.errors import CheckpointError
from dflash_convert.gguf_io.layout import PlannedTensor

Table = Callable[[TensorRow], SourceTensor]  # TOKEN_EMBD or OUTPUT → the target's; raises if it cannot be had
Stored = Callable[[tuple[int, ...]], GGMLQuantizationType]  # shape → type in the file


def no_target(_: TensorRow) -> SourceTensor:
    """The target's table where there is no target."""
    raise CheckpointError("the target's tables are needed, but no target was given")


@dataclass(frozen=True)
class Beside:
    """What else a draft's weights may need: the target's tables, and the mask token's own embedding."""

    table: Table = no_target
    mask: MaskEmbedding | None = None


ALONE = Beside()


def with_tables(
    own: Sequence[PlannedTensor], config: DraftConfig, beside: Beside, stored: Stored
) -> tuple[PlannedTensor, ...]:
    """The draft's tensors with the tables it needs, in llama.cpp's order: what is written out for it comes first."""
    names = {t.name for t in own}
    has_embd, has_head = TOKEN_EMBD.name in names, OUTPUT.name in names
    needs_embd = has_embd or beside.mask is not None
    tied = config.tie_word_embeddings and beside.mask is None
    first = [] if has_head or tied or not needs_embd else [_borrowed(OUTPUT, config, beside, stored)]
    if beside.mask is None:
        return (*first, *own)
    _check_mask(beside.mask, config)
    embd = next((t for t in own if t.name == TOKEN_EMBD.name), None) or _borrowed(TOKEN_EMBD, config, beside, stored)
    return (*first, replace(embd, transform=MASK_ROW), *(t for t in own if t.name != TOKEN_EMBD.name))


def _borrowed(row: TensorRow, config: DraftConfig, beside: Beside, stored: Stored) -> PlannedTensor:
    tensor = beside.table(row)
    expected = (config.vocab_size, config.hidden_size)
    if tensor.shape != expected:
        raise CheckpointError(
            f"the target's {tensor.name} has shape {list(tensor.shape)}; the draft needs {list(expected)} "
            "(vocab_size × hidden_size)",
            hint="is this the target the draft was trained for?",
        )
    return PlannedTensor(row.name, tensor.shape, stored(tensor.shape), tensor.name, origin=TARGET)


def _check_mask(mask: MaskEmbedding, config: DraftConfig) -> None:
    if mask.token_id is not None and mask.token_id != config.mask_token_id:
        raise CheckpointError(
            f"mask_embedding.pt is for the token {mask.token_id}, but {config.where['mask_token_id']} is "
            f"{config.mask_token_id}",
            hint="config.json and mask_embedding.pt are of different revisions",
        )
    if mask.values.shape != (config.hidden_size,):
        raise CheckpointError(
            f"mask_embedding.pt holds an embedding of shape {list(mask.values.shape)}; the draft's hidden_size is "
            f"{config.hidden_size}",
            hint="config.json and mask_embedding.pt are of different revisions",
        )
