"""The target's embeddings and head, for drafts whose file has to carry them: found when they are asked for, not before.

Of a Hub target only the shards that hold them are fetched; of a folder only those need to be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dflash_convert.checkpoints.checkpoint import Checkpoint, SourceTensor, open_tensors
from dflash_convert.conversion.rows.schema import OUTPUT, TARGET_EMBD, TARGET_OUTPUT, TensorRow
from dflash_convert.errors import CheckpointError
from dflash_convert.hub import client as hub


@dataclass(frozen=True)
class TargetTables:
    """The tables of one target. tied: its head is its embeddings."""

    source: hub.Source
    tied: bool
    progress: hub.Progress = hub.silent

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """Its weights, as far as they hold the tables. Raises CheckpointError: they are not there. HubError."""
        names = (*TARGET_EMBD, *TARGET_OUTPUT)
        source = hub.with_weights(self.source, names, progress=self.progress)
        try:
            return open_tensors(source.root, names)
        except CheckpointError as e:
            raise CheckpointError(
                f"the draft's file has to carry the target's embeddings or head, and they cannot be read: {e.message}",
                hint="pass the target's Hub id, or a folder that also has the shard(s) with embed_tokens and lm_head",
            ) from None

    def find(self, row: TensorRow) -> SourceTensor:
        """The target's tensor for TOKEN_EMBD or OUTPUT. Raises CheckpointError: it has none."""
        names = TARGET_OUTPUT if row == OUTPUT and not self.tied else TARGET_EMBD
        found = next((self.checkpoint.tensors[name] for name in names if name in self.checkpoint.tensors), None)
        if found is None:
            raise CheckpointError(
                f"the target's weights have no {row.source.removesuffix('.weight')}: looked for {', '.join(names)}",
                hint="is this the target the draft was trained for?",
            )
        return found
