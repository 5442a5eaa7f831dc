"""Which dialects can become mainline's, by what rules; of every other, why not.

Names of keys and tensors, and what taps mean, stand in the dialect's own row; here is what a rewrite needs besides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dflash_convert.dialects.beellama import BEELLAMA

Quirk = Callable[[Collection[str]], Iterator[str]]  # names of keys and tensors → what keeps such a file from migrating


@dataclass(frozen=True)
class Migration:
    """A dialect that can be rewritten without loss.

    says_windows: whether a file without a window has none. features: a key below `{a}.` that must equal fc's width.
    dropped: keys below `{a}.` (patterns) that mainline has no use for. quirks: named functions, each a refusal.
    notes: what stays to be known of the result.
    """

    dialect: str
    says_windows: bool
    features: str = ""
    dropped: tuple[str, ...] = ()
    quirks: tuple[Quirk, ...] = ()
    notes: tuple[str, ...] = ()


def biases(names: Collection[str]) -> Iterator[str]:
    """Drafts of gpt-oss have them."""
    found = [n for n in names if fnmatchcase(n, "blk.*.attn_*.bias")]
    if found:
        yield f"cannot be migrated: mainline's graph has no place for {found[0]}"


def two_norms(names: Collection[str]) -> Iterator[str]:
    """Where a layer has one norm before its feed-forward, the forks call it post_attention_norm."""
    if "blk.0.post_attention_norm.weight" in names:
        for other in ("blk.0.ffn_norm.weight", "blk.0.post_ffw_norm.weight"):
            if other in names:
                yield (
                    f"cannot be known: with {other} beside it, blk.0.post_attention_norm.weight may be the norm before "
                    "the feed-forward or the one behind the attention"
                )


def half_a_vocabulary(names: Collection[str]) -> Iterator[str]:
    """Mainline took the target's head in such a case, and now takes the embeddings."""
    if "token_embd.weight" in names and "output.weight" not in names:
        yield "cannot be known: it has token_embd.weight without output.weight, and mainline would take it for the head"


def mapped_tokens(names: Collection[str]) -> Iterator[str]:
    if "d2t" in names:
        yield "cannot be known: whether its d2t holds offsets or, as mainline takes it, token ids"


def silent_anchor(names: Collection[str]) -> Iterator[str]:
    if "markov_w1.weight" in names and not any(n.endswith(".sample_from_anchor") for n in names):
        yield "cannot be known: a DSpark draft that does not say sample_from_anchor"


COMMON_QUIRKS: tuple[Quirk, ...] = (biases, half_a_vocabulary, mapped_tokens, silent_anchor)

SECTIONS = "for images, a target with M-RoPE also wants rope.dimension_sections, which this format does not have"

MIGRATIONS = (
    Migration("pull-22105-late", says_windows=True, quirks=COMMON_QUIRKS),
    Migration("pull-22105-early", says_windows=False, quirks=COMMON_QUIRKS, notes=(SECTIONS,)),
    Migration(
        "beellama",
        says_windows=True,
        features="dflash.n_target_features",
        dropped=("dflash.n_target_features", "target_checkpoint_sha256"),
        quirks=(*COMMON_QUIRKS, two_norms),
        notes=(*BEELLAMA.notes, SECTIONS),
    ),
)

# dialect → why it is refused
REFUSED = {
    "beellama-rewritten": "cannot be known: whether its taps were shifted: the script that made it copies them",
    "early-converter": "cannot be migrated yet: it has no key_length, and its rope.dimension_count may be wrong",
    "laguna": "cannot be migrated: its graph (gated attention, a norm on each tap) is not mainline's",
    "ik-llama": "cannot be migrated yet: a second rope base and Laguna's graph have no place in mainline",
    "oxidize": "cannot be migrated yet: it carries no tokenizer, and its keys have names of their own",
    "lucebox": "cannot be migrated yet: it carries no tokenizer, and its rope base and taps are not to be trusted",
    "lucebox-gemma": "cannot be migrated yet: it carries no tokenizer",
    "lucebox-deepseek": "cannot be known: which of its two lists of taps is the checkpoint's",
    "buun-gemma": "cannot be migrated yet: its loader knows no sliding layers, so the file may lack a window",
    "prismml": "cannot be migrated yet: log-SNR conditioning and corrections have no place in mainline's graph",
}
