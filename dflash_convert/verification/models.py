"""The running models of a verification: the reference, the file's draft and the target, each loaded when first needed.

In: what is being compared. Out: the runtime's drafters and target. The reference reads the checkpoint's tensors under
the checkpoint's names; the file's draft reads the GGUF's. Nothing translates between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dflash_convert.checkpoints.checkpoint import open_checkpoint
from dflash_convert.errors import CheckpointError, GGUFError, UsageError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.draft import load_draft
from dflash_convert.runtime.interface import Drafter
from dflash_convert.runtime.interface import Target as TargetModel
from dflash_convert.runtime.reference import load_reference
from dflash_convert.runtime.target import load_target_checkpoint, load_target_gguf
from dflash_convert.verification.equal import FileWeights
from dflash_convert.verification.sources import CheckpointWeights, Source
from dflash_convert.verification.targets import Target
from dflash_convert.verification.tokens import encoder_of


@dataclass(frozen=True)
class Models:
    """What levels 3 and 4 run. Loading raises the error of the side that cannot be loaded: GGUFError for the file,
    CheckpointError or ConfigError for the source and the target."""

    gguf: GGUFFile
    source: Source | None
    target: Target | None

    @cached_property
    def drafter(self) -> Drafter:
        return load_draft(self.gguf)

    @cached_property
    def reference(self) -> Drafter:
        if self.source is None:
            raise UsageError("no source was given", hint="pass --source with the draft's checkpoint")
        return load_reference(self.source.config, self.source.weights, self._target_model_type)

    @cached_property
    def reference_on_the_files_weights(self) -> Drafter:
        """The same config and code; the numbers are the file's. GGUFError: they do not fit."""
        assert self.source is not None
        try:
            return load_reference(self.source.config, FileWeights(self.gguf, self.source), self._target_model_type)
        except CheckpointError as e:
            raise GGUFError(e.message) from e

    @property
    def _target_model_type(self) -> str:
        """What kind of model the target is, "" if that is not known."""
        if self.target is None:
            return ""
        return str(self.target.gguf.architecture if self.target.gguf else self.target.config.get("model_type", ""))

    @cached_property
    def target_model(self) -> TargetModel:
        if self.target is None:
            raise UsageError("no target was given", hint="pass --target with the target's weights")
        if self.target.gguf is not None:
            return load_target_gguf(self.target.gguf)
        checkpoint = open_checkpoint(self.target.path)
        return load_target_checkpoint(checkpoint.config, CheckpointWeights(checkpoint))

    def misfit(self, target: TargetModel) -> str:
        """Why the file's draft cannot ask this target, "" if it can: llama.cpp would crash on such a mask token."""
        mask = self.drafter.mask_token_id
        if mask < target.n_vocab:
            return ""
        return f"tokenizer.ggml.mask_token_id is {mask}, but the target has {target.n_vocab} tokens"

    @cached_property
    def encoder(self) -> Any:
        """The target's tokenizer; VocabError if it is of a kind that cannot be built."""
        assert self.target is not None
        return encoder_of(self.target)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, no special tokens added."""
        return [self.encoder.encode(text, add_special_tokens=False).ids for text in texts]
