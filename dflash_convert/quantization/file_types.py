"""The file types that can be asked for: a default type and rules for each, as tables.

In: a file type's name (`Q4_K_M`). Out: its `FileType`. Promised: the mixes of llama.cpp's quantizer
(`src/llama-quant.cpp`), without overrides. Supporting another file type means adding a row.

A rule gives the tensors of a role a better type where they lie in the right place. The first rule that applies wins.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from gguf.constants import GGMLQuantizationType, LlamaFileType

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
    DELICATE = "never below Q8_0"
    OTHER = "other"


PER_LAYER = frozenset({Role.FFN_UP, Role.FFN_GATE, Role.FFN_DOWN})
ANY = None  # in a rule: whatever the role


@dataclass(frozen=True)
class Model:
    """What rules look at besides the tensor: keys `<arch>.…`, and whether there is an importance matrix."""

    arch: str
    n_layer: int
    n_expert: int = 0
    n_head: int = 0
    n_head_kv: int = 0
    has_imatrix: bool = False


@dataclass(frozen=True)
class Place:
    """Where a tensor stands among those of its role.

    index of count: in file order or, with experts, by layer. n_matrices: how many matrices it stacks (its experts).
    """

    role: Role
    index: int
    count: int
    model: Model
    n_matrices: int = 1


When = Callable[[Place], bool]

# -- where a rule applies ----------------------------------------------------------------------------------------------


def always(place: Place) -> bool:  # noqa: ARG001
    return True


def first_two(place: Place) -> bool:
    return place.index < 2


def first_four(place: Place) -> bool:
    return place.index < 4


def first_eighth(place: Place) -> bool:
    return place.index < place.count // 8


def first_sixteenth(place: Place) -> bool:
    return place.index < place.count // 16


def use_more_bits(place: Place) -> bool:
    """The first and last eighth of the layers, and every third between them."""
    i, eighth = place.index, place.count // 8
    return i < eighth or i >= 7 * place.count // 8 or (i - eighth) % 3 == 2


def eight_experts(place: Place) -> bool:
    """Mixtral's shape: attention is small beside the experts, so better types cost next to nothing."""
    return place.model.n_expert == 8


def four_queries_a_key(place: Place) -> bool:
    """Each head of keys serves four of queries or more, so attn_v is small, and an error in it is shared by many."""
    model = place.model
    return model.n_head_kv > 0 and model.n_head // model.n_head_kv >= 4


LAYERS_OF_70B: Mapping[str, int] = MappingProxyType({"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68})


def like_llama_70b(place: Place) -> bool:
    """Models llama.cpp calls 70B: their attn_v is shared by so many heads that it is small and matters much."""
    model = place.model
    if model.arch == "llama" and model.n_head == model.n_head_kv:
        return False
    return LAYERS_OF_70B.get(model.arch) == model.n_layer


def falcon(place: Place) -> bool:
    """Falcon's mixes were tuned before the others, and on their own."""
    return place.model.arch == "falcon"


def of_experts(place: Place) -> bool:
    """A stack of matrices. Ling's attention stacks some too, one a head: those are no experts."""
    return place.n_matrices > 1 and (place.model.arch != "bailingmoe3" or place.role in PER_LAYER)


def has_imatrix(place: Place) -> bool:
    return place.model.has_imatrix


def both(one: When, other: When) -> When:
    return lambda place: one(place) and other(place)


def no(one: When) -> When:
    return lambda place: not one(place)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """Tensors of `role` get `type` where `when` holds."""

    role: Role | None
    type: GGMLQuantizationType
    when: When = always

    def applies(self, place: Place) -> bool:
        return self.role in (ANY, place.role) and self.when(place)


@dataclass(frozen=True)
class FileType:
    """A recipe: `default` for every tensor that may be quantized and that no rule names.

    number: what `general.file_type` says; None keeps every tensor and the number as they are. needs_imatrix: types that
    are garbage in this mix without an importance matrix.
    """

    name: str
    number: LlamaFileType | None
    default: GGMLQuantizationType
    rules: tuple[Rule, ...] = ()
    needs_imatrix: frozenset[GGMLQuantizationType] = frozenset()


COMMON = (
    Rule(Role.DELICATE, T.Q8_0),
    Rule(Role.OUTPUT, T.Q8_0, falcon),
    Rule(Role.OUTPUT, T.Q6_K),
    Rule(Role.ATTN_V, T.Q8_0, eight_experts),
    Rule(Role.ATTN_K, T.Q8_0, eight_experts),
)
EIGHT_EXPERTS_OUTPUT = Rule(Role.ATTN_OUTPUT, T.Q5_K, both(eight_experts, no(falcon)))
IQ4_RULES = (
    *COMMON,
    EIGHT_EXPERTS_OUTPUT,
    Rule(Role.ATTN_V, T.Q5_K, four_queries_a_key),
    Rule(Role.FFN_DOWN, T.Q5_K, both(first_eighth, no(has_imatrix))),
)

FILE_TYPES: Mapping[str, FileType] = MappingProxyType({
    row.name: row
    for row in (
        FileType("F32", LlamaFileType.ALL_F32, T.F32),
        FileType("F16", LlamaFileType.MOSTLY_F16, T.F16),
        FileType("BF16", LlamaFileType.MOSTLY_BF16, T.BF16),
        FileType("COPY", None, T.F32),
        FileType("Q8_0", LlamaFileType.MOSTLY_Q8_0, T.Q8_0),
        FileType("Q4_0", LlamaFileType.MOSTLY_Q4_0, T.Q4_0, (
            *COMMON,
            Rule(Role.FFN_DOWN, T.Q4_1, both(first_eighth, has_imatrix)),
        )),
        FileType("Q4_1", LlamaFileType.MOSTLY_Q4_1, T.Q4_1, COMMON),
        FileType("Q5_0", LlamaFileType.MOSTLY_Q5_0, T.Q5_0, (
            *COMMON,
            Rule(Role.FFN_DOWN, T.Q5_1, both(first_eighth, has_imatrix)),
        )),
        FileType("Q5_1", LlamaFileType.MOSTLY_Q5_1, T.Q5_1, COMMON),
        FileType("Q2_K", LlamaFileType.MOSTLY_Q2_K, T.Q2_K, (
            *COMMON,
            EIGHT_EXPERTS_OUTPUT,
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.ATTN_V, T.Q4_K, four_queries_a_key),
            Rule(Role.ATTN_V, T.Q3_K),
            Rule(Role.FFN_DOWN, T.Q3_K),
            Rule(Role.ATTN_OUTPUT, T.Q3_K, no(falcon)),
        )),
        FileType("Q2_K_S", LlamaFileType.MOSTLY_Q2_K_S, T.Q2_K, (
            *COMMON,
            Rule(Role.ATTN_V, T.Q5_K, both(four_queries_a_key, like_llama_70b)),
            Rule(Role.ATTN_V, T.Q4_K, four_queries_a_key),
            Rule(Role.FFN_DOWN, T.Q4_K, first_eighth),
        ), needs_imatrix=frozenset({T.Q2_K})),
        FileType("Q3_K_S", LlamaFileType.MOSTLY_Q3_K_S, T.Q3_K, (
            *COMMON,
            EIGHT_EXPERTS_OUTPUT,
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
        )),
        FileType("Q3_K_M", LlamaFileType.MOSTLY_Q3_K_M, T.Q3_K, (
            *COMMON,
            EIGHT_EXPERTS_OUTPUT,
            Rule(Role.ATTN_V, T.Q5_K, first_two),
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.ATTN_V, T.Q4_K),
            Rule(Role.FFN_DOWN, T.Q5_K, first_sixteenth),
            Rule(Role.FFN_DOWN, T.Q3_K, both(falcon, no(use_more_bits))),
            Rule(Role.FFN_DOWN, T.Q4_K),
            Rule(Role.ATTN_OUTPUT, T.Q4_K, no(falcon)),
        )),
        FileType("Q3_K_L", LlamaFileType.MOSTLY_Q3_K_L, T.Q3_K, (
            *COMMON,
            Rule(Role.ATTN_V, T.Q5_K),
            Rule(Role.FFN_DOWN, T.Q4_K, falcon),
            Rule(Role.FFN_DOWN, T.Q5_K),
            Rule(Role.ATTN_OUTPUT, T.Q4_K, falcon),
            Rule(Role.ATTN_OUTPUT, T.Q5_K, no(eight_experts)),
        )),
        FileType("Q4_K_S", LlamaFileType.MOSTLY_Q4_K_S, T.Q4_K, (
            *COMMON,
            EIGHT_EXPERTS_OUTPUT,
            Rule(Role.ATTN_V, T.Q5_K, first_four),
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.FFN_DOWN, T.Q5_K, both(first_eighth, no(falcon))),
        )),
        FileType("Q4_K_M", LlamaFileType.MOSTLY_Q4_K_M, T.Q4_K, (
            *COMMON,
            EIGHT_EXPERTS_OUTPUT,
            Rule(Role.ATTN_V, T.Q6_K, use_more_bits),
            Rule(Role.ATTN_V, T.Q5_K, like_llama_70b),
            Rule(Role.FFN_DOWN, T.Q6_K, both(falcon, first_sixteenth)),
            Rule(Role.FFN_DOWN, T.Q5_K, both(falcon, use_more_bits)),
            Rule(Role.FFN_DOWN, T.Q6_K, both(use_more_bits, no(falcon))),
        )),
        FileType("Q5_K_S", LlamaFileType.MOSTLY_Q5_K_S, T.Q5_K, COMMON),
        FileType("Q5_K_M", LlamaFileType.MOSTLY_Q5_K_M, T.Q5_K, (
            *COMMON,
            Rule(Role.ATTN_V, T.Q6_K, use_more_bits),
            Rule(Role.FFN_DOWN, T.Q6_K, use_more_bits),
        )),
        FileType("Q6_K", LlamaFileType.MOSTLY_Q6_K, T.Q6_K, COMMON),
        FileType("IQ4_NL", LlamaFileType.MOSTLY_IQ4_NL, T.IQ4_NL, IQ4_RULES),
        FileType("IQ4_XS", LlamaFileType.MOSTLY_IQ4_XS, T.IQ4_XS, IQ4_RULES),
        FileType("MXFP4_MOE", LlamaFileType.MOSTLY_MXFP4_MOE, T.Q8_0, (
            Rule(Role.DELICATE, T.Q8_0),
            Rule(Role.OUTPUT, T.Q8_0),
            Rule(ANY, T.MXFP4, of_experts),
        )),
    )
})  # fmt: skip
ALIASES: Mapping[str, str] = MappingProxyType({"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"})


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


def guessed_number(types: Iterable[GGMLQuantizationType]) -> int:
    """What llama.cpp takes for the file type's number where a file has none: that of the type most tensors have.

    types: of the tensors, in the order of a quantized file; of two types as frequent, the one that was so first wins.
    """
    counts: Counter[GGMLQuantizationType] = Counter()
    most = T.F32
    for t in types:
        counts[t] += 1
        most = max(most, t, key=counts.__getitem__)
    names = (f"MOSTLY_{most.name}", f"MOSTLY_{most.name}_M")
    name = next((n for n in names if n in LlamaFileType.__members__), "ALL_F32")
    return LlamaFileType[name] | LlamaFileType.GUESSED
