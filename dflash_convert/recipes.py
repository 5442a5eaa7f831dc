"""Which type each tensor of a quantized file gets, as tables.

In: a file type's name (`Q4_K_M`), the tensors of a model (name, shape, type) and a few of its hyper-parameters. Out: a
`Choice` per tensor: the nominal type, the actual one, and why. Promised: the decisions of llama.cpp's quantizer
(`src/llama-quant.cpp`) without importance matrix and without overrides, tensor for tensor, in its order.

A file type is a default type and rules; a rule gives the tensors of a role a better type where they lie in the right
layers. The first rule that applies wins. What is never quantized, and what replaces a type whose blocks do not divide a
row, are tables too. Supporting another file type means adding rows.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from dflash_convert.errors import UsageError

T = GGMLQuantizationType


class Role(Enum):
    """What a tensor does, as far as recipes care."""

    OUTPUT = "output"
    TOKEN_EMBD = "token_embd"
    ATTN_V = "attn_v"
    ATTN_K = "attn_k"
    ATTN_Q = "attn_q"
    ATTN_OUTPUT = "attn_output"
    FFN_UP = "ffn_up"
    FFN_GATE = "ffn_gate"
    FFN_DOWN = "ffn_down"
    OTHER = "other"


# whole names first, then the first fragment that the name holds
ROLE_OF_NAME: Mapping[str, Role] = MappingProxyType({
    "output.weight": Role.OUTPUT,
    "token_embd.weight": Role.TOKEN_EMBD,
    "per_layer_token_embd.weight": Role.TOKEN_EMBD,
})  # fmt: skip
ROLE_OF_FRAGMENT: Mapping[str, Role] = MappingProxyType({
    "attn_qkv.weight": Role.ATTN_V,  # a fused projection is treated as its most sensitive part
    "attn_kv_b.weight": Role.ATTN_V,
    "attn_v.weight": Role.ATTN_V,
    "attn_k.weight": Role.ATTN_K,
    "attn_q.weight": Role.ATTN_Q,
    "attn_output.weight": Role.ATTN_OUTPUT,
    "ffn_up": Role.FFN_UP,
    "ffn_gate": Role.FFN_GATE,
    "ffn_down": Role.FFN_DOWN,
})  # fmt: skip
PER_LAYER = frozenset({Role.FFN_UP, Role.FFN_GATE, Role.FFN_DOWN})


@dataclass(frozen=True)
class Model:
    """The hyper-parameters that rules look at (GGUF keys `<arch>.…`)."""

    arch: str
    n_layer: int
    n_expert: int = 0
    n_head: int = 0
    n_head_kv: int = 0


@dataclass(frozen=True)
class Tensor:
    """A tensor of the input; shape as numpy sees it, slowest axis first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType


@dataclass(frozen=True)
class Place:
    """Where a tensor stands among those of its role: `index` of `count`, in file order or, with experts, by layer."""

    role: Role
    index: int
    count: int
    model: Model


When = Callable[[Place], bool]


def always(place: Place) -> bool:  # noqa: ARG001
    return True


def first_four(place: Place) -> bool:
    return place.index < 4


def first_eighth(place: Place) -> bool:
    return place.index < place.count // 8


def use_more_bits(place: Place) -> bool:
    """The first and last eighth of the layers, and every third between them."""
    i, eighth = place.index, place.count // 8
    return i < eighth or i >= 7 * place.count // 8 or (i - eighth) % 3 == 2


def eight_experts(place: Place) -> bool:
    """Mixtral's shape: attention is small beside the experts, so better types cost next to nothing."""
    return place.model.n_expert == 8


def like_llama_70b(place: Place) -> bool:
    """Models llama.cpp calls 70B: their attn_v is shared by so many heads that it is small and matters much."""
    model = place.model
    if model.arch == "llama" and model.n_head == model.n_head_kv:
        return False
    return LAYERS_OF_70B.get(model.arch) == model.n_layer


LAYERS_OF_70B: Mapping[str, int] = MappingProxyType({"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68})


@dataclass(frozen=True)
class Rule:
    """Tensors of `role` get `type` where `when` holds."""

    role: Role
    type: GGMLQuantizationType
    when: When = always


@dataclass(frozen=True)
class FileType:
    """A recipe: `default` for every tensor that may be quantized and that no rule names."""

    name: str
    number: LlamaFileType
    default: GGMLQuantizationType
    rules: tuple[Rule, ...] = ()


K_COMMON = (
    Rule(Role.OUTPUT, T.Q6_K),
    Rule(Role.ATTN_V, T.Q8_0, eight_experts),
    Rule(Role.ATTN_K, T.Q8_0, eight_experts),
)
Q4_K_COMMON = (*K_COMMON, Rule(Role.ATTN_OUTPUT, T.Q5_K, eight_experts))

FILE_TYPES: Mapping[str, FileType] = MappingProxyType({
    row.name: row
    for row in (
        FileType("F32", LlamaFileType.ALL_F32, T.F32),
        FileType("F16", LlamaFileType.MOSTLY_F16, T.F16),
        FileType("BF16", LlamaFileType.MOSTLY_BF16, T.BF16),
        FileType("Q8_0", LlamaFileType.MOSTLY_Q8_0, T.Q8_0),
        FileType("Q6_K", LlamaFileType.MOSTLY_Q6_K, T.Q6_K, K_COMMON),
        FileType("Q4_K_S", LlamaFileType.MOSTLY_Q4_K_S, T.Q4_K, (
            *Q4_K_COMMON,
            Rule(Role.ATTN_V, T.Q5_K, first_four),
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.FFN_DOWN, T.Q5_K, first_eighth),
        )),
        FileType("Q4_K_M", LlamaFileType.MOSTLY_Q4_K_M, T.Q4_K, (
            *Q4_K_COMMON,
            Rule(Role.ATTN_V, T.Q6_K, use_more_bits),
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.FFN_DOWN, T.Q6_K, use_more_bits),
        )),
    )
})  # fmt: skip
ALIASES: Mapping[str, str] = MappingProxyType({"Q4_K": "Q4_K_M"})

# type → what takes its place where its blocks do not divide a row; where that does not divide either: F16
FALLBACK: Mapping[GGMLQuantizationType, GGMLQuantizationType] = MappingProxyType({
    T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0,
})  # fmt: skip
LAST_RESORT = T.F16


@dataclass(frozen=True)
class Exclusion:
    """Tensors whose name holds `fragment` (or is it, if `whole`) keep their type, because of `reason`."""

    fragment: str
    reason: str
    whole: bool = False


def _exclude(reason: str, *fragments: str, whole: bool = False) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(f, reason, whole) for f in fragments)


EXCLUSIONS: tuple[Exclusion, ...] = (
    *_exclude("a norm", "_norm.weight"),
    *_exclude("routes tokens to experts", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight"),
    *_exclude("tiny", "altup", "laurel", "indexer.k_proj.weight", "indexer.q_proj.weight"),
    *_exclude("small", "per_layer_model_proj"),
    *_exclude("positions", "position_embd.weight", "token_types.weight", whole=True),
    *_exclude("positions", ".position_embd", "attn_rel_b.weight", "sam.pos_embd", ".rel_pos"),
    *_exclude("a short convolution", "ssm_conv1d", "shortconv.conv.weight"),
    *_exclude("small matrices of RWKV", *(f"time_mix_{part}.weight" for part in (
        "first", "w0", "w1", "w2", "v0", "v1", "v2", "a0", "a1", "a2", "g1", "g2",
        "decay_w1", "decay_w2", "lerp_fused",
    ))),
    *_exclude("part of an image encoder", "sam.neck.", "sam.net_", ".patch_embd", ".patch_merger"),
    *_exclude("an audio codebook", "a.rvq.codebook", "mm.a.code_embd"),
)  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """The type of one tensor of the output.

    type: what is written. nominal: what the recipe asks for; another one only where rows do not divide. reason: why
    `type` is what it is, for people.
    """

    tensor: Tensor
    type: GGMLQuantizationType
    nominal: GGMLQuantizationType
    reason: str

    @property
    def is_fallback(self) -> bool:
        return self.type != self.nominal


def file_type(name: str) -> FileType:
    """The recipe called `name`, in any case. Raises UsageError: an unknown name."""
    wanted = name.upper().replace("-", "_")
    wanted = ALIASES.get(wanted, wanted)
    if wanted in FILE_TYPES:
        return FILE_TYPES[wanted]
    near = difflib.get_close_matches(wanted, FILE_TYPES, n=1, cutoff=0.0)[0]
    raise UsageError(
        f"{name!r} is not a file type that can be written; these are: {', '.join(FILE_TYPES)}",
        hint=f"the nearest is {near}",
    )


def role_of(name: str) -> Role:
    """What the tensor called `name` does."""
    fragments = (role for fragment, role in ROLE_OF_FRAGMENT.items() if fragment in name)
    return ROLE_OF_NAME.get(name) or next(fragments, Role.OTHER)


def layer_of(name: str) -> int:
    """The layer in a tensor's name, -1 where there is none."""
    found = re.match(r"blk\.(\d+)", name)
    return int(found[1]) if found else -1


def in_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The order of a quantized file: by layer (those outside the layers first), then by name."""
    return sorted(tensors, key=lambda t: (layer_of(t.name), t.name))


def kept_because(tensor: Tensor) -> str:
    """Why the tensor must keep its type; "" if it may be quantized."""
    if math.prod(tensor.shape[:-1]) == 1:
        return "one-dimensional"
    if not tensor.name.endswith("weight"):
        return "not a weight"
    return next((e.reason for e in EXCLUSIONS if _matches(e, tensor.name)), "")


def _matches(exclusion: Exclusion, name: str) -> bool:
    return name == exclusion.fragment if exclusion.whole else exclusion.fragment in name


def choose(recipe: FileType, tensors: Sequence[Tensor], model: Model) -> tuple[Choice, ...]:
    """The type of every tensor, in the order of the output."""
    ordered = in_order(tensors)
    places = _places(ordered, model)
    return tuple(_choose(recipe, t, places.get(t.name)) for t in ordered)


def _choose(recipe: FileType, tensor: Tensor, place: Place | None) -> Choice:
    if place is None:
        return Choice(tensor, tensor.type, tensor.type, f"kept: {kept_because(tensor)}")
    if GGML_QUANT_SIZES[recipe.default][0] == 1:
        return Choice(tensor, recipe.default, recipe.default, recipe.name)
    row = tensor.shape[-1]
    rule = next((r for r in recipe.rules if r.role == place.role and r.when(place)), None)
    nominal = rule.type if rule else recipe.default
    actual = fit_to_row(nominal, row)
    if actual != nominal:
        return Choice(tensor, actual, nominal, f"rows of {row} do not divide into blocks of {nominal.name}")
    return Choice(tensor, actual, nominal, f"{recipe.name}: {place.role.value}" if rule else recipe.name)


def fit_to_row(nominal: GGMLQuantizationType, row_length: int) -> GGMLQuantizationType:
    """`nominal`, or the next best type whose blocks divide a row of `row_length` weights."""
    for candidate in (nominal, FALLBACK.get(nominal, nominal)):
        if row_length % GGML_QUANT_SIZES[candidate][0] == 0:
            return candidate
    return LAST_RESORT


def _places(ordered: Sequence[Tensor], model: Model) -> dict[str, Place]:
    """A place for each tensor that may be quantized.

    attn_v tensors are counted as they come; ffn_* by layer, where a model with experts has several to a layer, so there
    the layer is read from the name. Without an output tensor, the token embeddings serve as one.
    """
    roles = {t.name: role_of(t.name) for t in ordered}
    tied = Role.OUTPUT not in roles.values()
    n_attn_v = sum(role == Role.ATTN_V for role in roles.values())
    seen: dict[Role, int] = {}
    places = {}
    for t in ordered:
        if kept_because(t):
            continue
        role = Role.OUTPUT if tied and roles[t.name] == Role.TOKEN_EMBD else roles[t.name]
        index = seen.get(role, 0)
        seen[role] = index + 1
        if model.n_expert > 1 and role in PER_LAYER:
            index = layer_of(t.name)
        places[t.name] = Place(role, index, n_attn_v if role == Role.ATTN_V else model.n_layer, model)
    return places
