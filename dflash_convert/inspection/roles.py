"""What a tensor is for and which family a draft is of, by tensor names in every dialect: the first row that fits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from dflash_convert.gguf_io.reader import TensorInfo
from dflash_convert.inspection.values import Weights

# role → names; norms first, since every other role has some
ROLES = (
    ("norms", ("*norm*",)),
    ("fusion of the taps", ("fc.*", "dflash_fc.*", "dflash.fc.*", "dspark.fc.*")),
    ("convolutions", ("blk.*.attn_conv_*", "blk.*.ffn_conv_*")),
    ("selector", ("selector_*",)),
    ("Markov head", ("markov_*", "dflash.dspark.markov.*", "dspark.markov_*")),
    ("confidence head", ("conf_proj.*", "dflash.dspark.confidence.*", "dspark.confidence_head.*")),
    ("attention", ("blk.*.attn_*", "blk.*.ssm_*")),
    ("experts", ("blk.*_exps.*", "blk.*_shexp.*", "blk.*.ffn_gate_inp*")),
    ("feed-forward", ("blk.*.ffn_*",)),
    ("embeddings", ("token_embd.*", "per_layer_token_embd.*")),
    ("output head", ("output.weight", "d2t")),
    ("rope", ("rope_freqs.*", "rope_factors_*")),
)

# family → names only it has; what has none of them is a plain DFlash
FAMILIES = (
    ("Domino", ("dflash.domino.*",)),
    ("Laguna", ("enc.aux_norm.weight", "dflash.aux_hidden_norm.*")),
    ("DSpark", ("markov_*", "dflash.dspark.*", "dspark.markov_*")),
    ("DFlash2", ("selector_*", "blk.*.attn_conv_*")),
)


def role(name: str) -> str:
    """What the tensor of that name is for."""
    return next((word for word, patterns in ROLES if _fits(name, patterns)), "other")


def family(names: Collection[str]) -> str:
    """Which family the tensors of a draft are of."""
    return next((word for word, patterns in FAMILIES if any(_fits(n, patterns) for n in names)), "DFlash")


def by_role(tensors: Iterable[TensorInfo]) -> tuple[Weights, ...]:
    """Tensors and bytes of each role and type, the largest first."""
    found: dict[tuple[str, str], list[int]] = {}
    for tensor in tensors:
        found.setdefault((role(tensor.name), tensor.type.name), []).append(tensor.nbytes)
    rows = (Weights(word, kind, len(sizes), sum(sizes)) for (word, kind), sizes in found.items())
    return tuple(sorted(rows, key=lambda w: (-w.bytes, w.role, w.type)))


def _fits(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)
