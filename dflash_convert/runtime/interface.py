"""What the parts of the runtime promise each other: a target decides, a drafter proposes.

Shapes: T tokens in a call, B positions in a block, n_embd and n_vocab the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dflash_convert.runtime.ops import Array


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """One forward pass. logits: (T, n_vocab). layer_inputs: n_layer + 1 arrays (T, n_embd), what enters layer i at i,
    and last what leaves the last layer, before the final norm."""

    logits: Array
    layer_inputs: tuple[Array, ...]


class Cache(Protocol):
    """What a target remembers of a sequence."""

    def __len__(self) -> int: ...

    def truncate(self, n: int) -> None:
        """Forget every position from `n` on."""
        ...


class Target(Protocol):
    """A language model."""

    @property
    def n_layer(self) -> int: ...

    @property
    def n_embd(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    def embed(self, ids: Sequence[int]) -> Array:
        """Rows of the embedding table, unscaled: (T, n_embd)."""
        ...

    def head(self, hidden: Array) -> Array:
        """Logits (T, n_vocab) of hidden states (T, n_embd) that have passed a final norm."""
        ...

    def new_cache(self) -> Any:
        """An empty `Cache` of the kind this target uses."""
        ...

    def forward(self, ids: Sequence[int], cache: Any) -> TargetOutput:
        """Run `ids` at the positions that follow the cache's, and add them to it."""
        ...


class Drafter(Protocol):
    """A DFlash draft. Its context holds what it knows of the positions the target has accepted."""

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int: ...

    @property
    def mask_token_id(self) -> int: ...

    @property
    def n_taps(self) -> int: ...

    @property
    def embedding_table(self) -> Array | None:
        """The draft's own embeddings (n_vocab, n_embd), or None: the target's are used."""
        ...

    @property
    def output_weight(self) -> Array | None:
        """The draft's own head (n_vocab, n_embd), or None: the target's is used."""
        ...

    def features(self, layer_inputs: Sequence[Array]) -> Array:
        """The tapped states of `TargetOutput.layer_inputs`, side by side: (T, n_taps · n_embd)."""
        ...

    def new_context(self) -> Any:
        """An empty context."""
        ...

    def extend(self, ctx: Any, features: Array) -> None:
        """Append accepted target positions to the context."""
        ...

    def hidden_block(self, ctx: Any, block: Array) -> Array:
        """The block's hidden states after the final norm, (B, n_embd), from its embeddings (B, n_embd): the last
        accepted token's, then the mask token's. Its positions follow the context, which is left as it is."""
        ...
