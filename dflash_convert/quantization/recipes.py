"""Which type each tensor of a quantized file gets.

In: a `FileType`, the tensors of a model (name, shape, type) and a few of its hyper-parameters. Out: a `Choice` per
tensor: the nominal type, the actual one, and why. Promised: the decisions of llama.cpp's quantizer
(`src/llama-quant.cpp`), tensor for tensor, in its order.

The mixes are rows of `file_types`. Here: what a tensor's name says of its role, what is never quantized, and what
replaces a type whose blocks do not divide a row. These are tables too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from dflash_convert.errors import UsageError
from dflash_convert.quantization.file_types import PER_LAYER, FileType, Model, Place, Role
from dflash_convert.quantization.overrides import NONE, Overrides

T = GGMLQuantizationType

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
# architecture → names that hold one of these are never quantized below Q8_0
DELICATE: Mapping[str, tuple[str, ...]] = MappingProxyType({"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")})


@dataclass(frozen=True)
class Tensor:
    """A tensor of the input; shape as numpy sees it, slowest axis first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType

    @property
    def n_matrices(self) -> int:
        """How many matrices it stacks (ggml's ne[2])."""
        return self.shape[-3] if len(self.shape) > 2 else 1


# type → what takes its place where its blocks do not divide a row; where that does not divide either: F16
FALLBACK: Mapping[GGMLQuantizationType, GGMLQuantizationType] = MappingProxyType({
    T.IQ4_XS: T.IQ4_NL, T.Q2_K: T.Q4_0, T.Q3_K: T.Q4_0, T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0,
})  # fmt: skip
LAST_RESORT = T.F16


@dataclass(frozen=True)
class Exclusion:
    """Tensors whose name holds `fragment` (or is it, if `whole`) keep their type, because of `reason`.

    arch: the only architecture it holds for, "" for all.
    """

    fragment: str
    reason: str
    whole: bool = False
    arch: str = ""

    def matches(self, name: str, arch: str) -> bool:
        if self.arch not in ("", arch):
            return False
        return name == self.fragment if self.whole else self.fragment in name


def _exclude(reason: str, *fragments: str, whole: bool = False, arch: str = "") -> tuple[Exclusion, ...]:
    return tuple(Exclusion(f, reason, whole, arch) for f in fragments)


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
    *_exclude("delicate in GLM-5", "hc_", "indexer.attn_q_b", "indexer.attn_k", "indexer.proj",
        "indexer_compressor_gate", "indexer_compressor_ape", "ssm_f_a.weight", "ssm_f_b.weight", "ssm_g_a.weight",
        "ssm_g_b.weight", "ssm_beta.weight", "attn_kv_a_mqa.weight", "attn_k_b.weight", "attn_v_b.weight",
        arch="glm5-next"),
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


def role_of(name: str, arch: str = "") -> Role:
    """What the tensor called `name` does in a model of the architecture."""
    if any(fragment in name for fragment in DELICATE.get(arch, ())):
        return Role.DELICATE
    fragments = (role for fragment, role in ROLE_OF_FRAGMENT.items() if fragment in name)
    return ROLE_OF_NAME.get(name) or next(fragments, Role.OTHER)


def layer_of(name: str) -> int:
    """The layer in a tensor's name, -1 where there is none."""
    found = re.match(r"blk\.(\d+)", name)
    return int(found[1]) if found else -1


def in_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The order of a quantized file: by layer (those outside the layers first), then by name."""
    return sorted(tensors, key=lambda t: (layer_of(t.name), t.name))


def kept_because(tensor: Tensor, arch: str = "") -> str:
    """Why the tensor must keep its type; "" if it may be quantized."""
    if math.prod(tensor.shape[:-1]) == 1:
        return "one-dimensional"
    if not tensor.name.endswith("weight"):
        return "not a weight"
    return next((e.reason for e in EXCLUSIONS if e.matches(tensor.name, arch)), "")


def choose(
    recipe: FileType, tensors: Sequence[Tensor], model: Model, overrides: Overrides = NONE
) -> tuple[Choice, ...]:
    """The type of every tensor, in the order of the output. Raises UsageError: a type that an override demands and
    that does not fit."""
    ordered = in_order(tensors)
    if recipe.number is None:
        return tuple(_kept(t, recipe.name) for t in ordered)
    kept = {t.name: kept_because(t, model.arch) for t in ordered}
    if overrides.leave_output and "output.weight" in kept:
        kept["output.weight"] = "--leave-output-tensor"
    demanded = {} if overrides is NONE else _demands(recipe, ordered, kept, model, overrides)
    places = _places(ordered, kept, model, demanded)
    return tuple(
        _kept(t, f"kept: {kept[t.name]}")
        if kept[t.name]
        else demanded.get(t.name) or _choose(recipe, t, places[t.name], fallback=overrides.fallback)
        for t in ordered
    )


def _demands(
    recipe: FileType, ordered: Sequence[Tensor], kept: Mapping[str, str], model: Model, overrides: Overrides
) -> dict[str, Choice]:
    """The tensors whose type an override settles, in llama.cpp's order of precedence."""
    roles = {t.name: role_of(t.name, model.arch) for t in ordered}
    tied = Role.OUTPUT not in roles.values()
    found = {}
    for t in (t for t in ordered if not kept[t.name]):
        role, named = roles[t.name], overrides.named(t.name)
        own_table = t.name == "per_layer_token_embd.weight" and named is not None
        if role == Role.TOKEN_EMBD and overrides.token_embd is not None and not own_table:
            found[t.name] = _exactly(t, overrides.token_embd, "--token-embedding-type")
        elif role == Role.OUTPUT and overrides.output is not None:
            found[t.name] = _exactly(t, overrides.output, "--output-tensor-type")
        elif GGML_QUANT_SIZES[recipe.default][0] == 1:
            continue
        elif named is not None:
            found[t.name] = _fitted(t, named, "--tensor-type", fallback=overrides.fallback)
        elif overrides.pure:
            found[t.name] = _fitted(t, recipe.default, "--pure", fallback=overrides.fallback)
        elif tied and role == Role.TOKEN_EMBD and overrides.output is not None:
            found[t.name] = _fitted(t, overrides.output, "--output-tensor-type", fallback=overrides.fallback)
    return found


def _exactly(tensor: Tensor, kind: GGMLQuantizationType, why: str) -> Choice:
    if tensor.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        raise UsageError(
            f"{why} {kind.name}: {tensor.name} has rows of {tensor.shape[-1]}, which do not divide into its blocks of "
            f"{GGML_QUANT_SIZES[kind][0]}",
            hint="demand a type with smaller blocks, e.g. Q8_0",
        )
    return Choice(tensor, kind, kind, why)


def _kept(tensor: Tensor, reason: str) -> Choice:
    return Choice(tensor, tensor.type, tensor.type, reason)


def _choose(recipe: FileType, tensor: Tensor, place: Place, *, fallback: bool = True) -> Choice:
    if GGML_QUANT_SIZES[recipe.default][0] == 1:
        return Choice(tensor, recipe.default, recipe.default, recipe.name)
    rule = next((r for r in recipe.rules if r.applies(place)), None)
    why = f"{recipe.name}: {place.role.value}" if rule else recipe.name
    return _fitted(tensor, rule.type if rule else recipe.default, why, fallback=fallback)


def _fitted(tensor: Tensor, nominal: GGMLQuantizationType, why: str, *, fallback: bool) -> Choice:
    """The nominal type, or what takes its place where a row does not divide into its blocks."""
    row = tensor.shape[-1]
    actual = fit_to_row(nominal, row)
    if actual == nominal:
        return Choice(tensor, actual, nominal, why)
    reason = f"rows of {row} do not divide into blocks of {nominal.name}"
    if not fallback:
        raise UsageError(
            f"{tensor.name}: {reason}, and --no-fallback is given",
            hint=f"without it the tensor becomes {actual.name}; or demand a type for it with --tensor-type",
        )
    return Choice(tensor, actual, nominal, reason)


def without_imatrix(recipe: FileType, choices: Iterable[Choice], known: Container[str] = ()) -> Choice | None:
    """The first tensor that would be garbage, for its importances are not `known`; embeddings and output stand it."""
    stand_it = (Role.TOKEN_EMBD, Role.OUTPUT)
    wanting = (c for c in choices if c.type in recipe.needs_imatrix and c.type != c.tensor.type)
    return next((c for c in wanting if c.tensor.name not in known and role_of(c.tensor.name) not in stand_it), None)


def fit_to_row(nominal: GGMLQuantizationType, row_length: int) -> GGMLQuantizationType:
    """`nominal`, or the next best type whose blocks divide a row of `row_length` weights."""
    for candidate in (nominal, FALLBACK.get(nominal, nominal)):
        if row_length % GGML_QUANT_SIZES[candidate][0] == 0:
            return candidate
    return LAST_RESORT


def _places(
    ordered: Sequence[Tensor], kept: Mapping[str, str], model: Model, demanded: Container[str] = ()
) -> dict[str, Place]:
    """A place for each tensor that may be quantized; those whose type is `demanded` are not counted.

    attn_v tensors are counted as they come; ffn_* by layer, where a model with experts has several to a layer, so there
    the layer is read from the name. Without an output tensor, the token embeddings serve as one.
    """
    roles = {t.name: role_of(t.name, model.arch) for t in ordered}
    tied = Role.OUTPUT not in roles.values()
    n_attn_v = sum(role == Role.ATTN_V for role in roles.values())
    seen: dict[Role, int] = {}
    places = {}
    for t in ordered:
        if kept[t.name] or t.name in demanded:
            continue
        role = Role.OUTPUT if tied and roles[t.name] == Role.TOKEN_EMBD else roles[t.name]
        index = seen.get(role, 0)
        seen[role] = index + 1
        if model.n_expert > 1 and role in PER_LAYER:
            index = layer_of(t.name)
        count = n_attn_v if role == Role.ATTN_V else model.n_layer
        places[t.name] = Place(role, index, count, model, t.n_matrices)
    return places
