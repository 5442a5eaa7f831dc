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


@dataclass(frozen=True, eq=False)
class Proposal:
    """What a draft proposes. tokens: ids of the target's vocabulary. confidence: for each, how sure a DSpark draft's
    confidence head is that it will be accepted, None where there is no such head. Nothing is cut by it here."""

    tokens: tuple[int, ...]
    confidence: Array | None = None


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
        """The head's weight on hidden states (T, n_embd) that have passed a final norm: (T, n_vocab). No scale and no
        softcap: those are part of `forward`, and a draft that borrows the weight brings its own."""
        ...

    def new_cache(self) -> Any:
        """An empty `Cache` of the kind this target uses."""
        ...

    def forward(self, ids: Sequence[int], cache: Any) -> TargetOutput:
        """Run `ids` at the positions that follow the cache's, and add them to it."""
        ...


class Drafter(Protocol):
    """A draft of the DFlash family. Its context holds what it knows of the positions the target has accepted.

    A step is `hidden_block` on the embeddings of a block (accept.py: draft_block), then `propose` on what comes out.
    Both run on their own as well: level 3 of the verification feeds `hidden_block` embeddings of its choice.
    """

    @property
    def name(self) -> str: ...

    @property
    def block_size(self) -> int:
        """Positions of a block, at most."""
        ...

    @property
    def first_slot(self) -> int:
        """The first position of a block that proposes a token: 0 where the last accepted token's own position does
        (DSpark that samples from its anchor), 1 where only the masks' do. A block of B positions proposes
        B - first_slot tokens."""
        ...

    @property
    def mask_token_id(self) -> int: ...

    @property
    def n_taps(self) -> int: ...

    @property
    def embedding_table(self) -> Array | None:
        """The draft's own embeddings (n_vocab, n_embd), or None: the target's are used."""
        ...

    @property
    def mask_embedding(self) -> Array | None:
        """The mask token's embedding (n_embd) where the draft keeps it apart from its table, else None."""
        ...

    @property
    def output_weight(self) -> Array | None:
        """The draft's own head, (n_vocab, n_embd) or a row for each token it knows, or None: the target's is used."""
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

    def logits(self, hidden: Array, target: Target) -> Array:
        """Logits (B, target.n_vocab) of hidden states (B, n_embd), before what selects among them (Markov head,
        candidate selector); -inf for tokens that the draft does not know. target: whose head is borrowed."""
        ...

    def propose(self, hidden: Array, last: int, target: Target) -> Proposal:
        """The tokens that follow `last`, one for each position of a block's hidden states (B, n_embd) from
        `first_slot` on. The one way from hidden states to tokens, for every kind of draft."""
        ...
