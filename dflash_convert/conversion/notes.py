"""What a user should know of a plan that is otherwise fine: notes and warnings, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.checkpoints.checkpoint import Checkpoint
from dflash_convert.conversion.checks import pair_values
from dflash_convert.conversion.config import DraftConfig, TargetConfig, unread_keys
from dflash_convert.conversion.match import LeftOut
from dflash_convert.conversion.rows.fields import Field
from dflash_convert.conversion.rows.schema import causal, sample_from_anchor, target_layers
from dflash_convert.conversion.transforms import MASK_ROW, PAD_COLUMNS, TARGET
from dflash_convert.conversion.vocab import UNUSED
from dflash_convert.gguf_io.layout import Note, PlannedTensor
from dflash_convert.gguf_io.reader import KV


def draft_notes(
    raw: Mapping[str, Any],
    config: DraftConfig,
    target: TargetConfig,
    vocab: Sequence[KV],
    fields: Sequence[Field],
) -> Iterator[Note]:
    """What a user should know of a draft. raw: its config.json. fields: what was read of it."""
    ids = list(config.target_layer_ids)
    yield Note("info", f"taps: HF ids {ids} → target_layers {target_layers(config)}")
    if ids != sorted(ids):
        yield Note("warning", f"the taps are not in ascending order: {ids}; their order is kept, fc depends on it")
    if target.num_hidden_layers and max(ids) == target.num_hidden_layers - 1:
        yield Note("info", f"the last layer of the target ({max(ids)}) is tapped; older engines refuse that")
    for word in _same_as_mask(config.mask_token_id, target, vocab):
        yield Note("warning", f"the mask token {config.mask_token_id} is also the target's {word} token")
    for path, value in unread_keys(raw, fields).items():
        yield Note("warning", f"{path} = {value!r} is not known and was not used; the draft may need it")
    for what, _, key, theirs in pair_values(config, target):
        if theirs is None:
            yield Note("warning", f"the target's config has no {key}: the {what} could not be compared")
    if target.rope_theta and target.rope_theta != config.rope_theta:
        yield Note("info", f"the draft's rope_theta is {config.rope_theta:g}, the target's {target.rope_theta:g}")
    if causal(config) is None:
        yield Note("info", "no causal flag in config.json: llama.cpp runs the block bidirectionally")
    elif config.is_causal is None and causal(config):
        yield Note("info", "speculators runs sliding layers causally: attention.causal is set")
    yield from _family_notes(raw, config)


def _family_notes(raw: Mapping[str, Any], config: DraftConfig) -> Iterator[Note]:
    """What concerns some families only."""
    if config.selector_vocab_size not in (None, config.vocab_size):
        yield Note(
            "warning",
            f"selector_vocab_size is {config.selector_vocab_size} of {config.vocab_size}: llama.cpp's selector "
            "considers every token",
        )
    if config.markov_rank:
        yield from _anchor_notes(raw, config)
        if config.enable_confidence_head and config.confidence_size is None:
            yield Note("warning", f"{config.where['enable_confidence_head']} is true, but there is no confidence head")
    if config.final_logit_softcapping and not config.selector_top_k:
        yield Note(
            "info",
            f"{config.where['final_logit_softcapping']} is {config.final_logit_softcapping:g}: llama.cpp applies a "
            "softcap to DFlash2 drafts only; it does not change which token is best",
        )
    inherited = [place for place in ("rope_parameters", "rope_scaling") if _is_inherited(raw.get(place))]
    if inherited and config.partial_rotary_factor is not None:
        yield Note(
            "warning",
            f"{config.where['partial_rotary_factor']} = {config.partial_rotary_factor:g} stands beside an "
            "mrope_section, as if copied from the target: measure the acceptance with and without it",
        )


def _is_inherited(rope: Any) -> bool:
    return isinstance(rope, Mapping) and "mrope_section" in rope


def _anchor_notes(raw: Mapping[str, Any], config: DraftConfig) -> Iterator[Note]:
    """Whether the anchor's position proposes a token, and whether what the trainer says of its proposals agrees."""
    said, from_anchor = config.where.get("sample_from_anchor"), sample_from_anchor(config)
    first = "at the anchor itself" if from_anchor else "behind the anchor"
    why = f"{said} says so" if said else "the default of its schema"
    yield Note("info", f"sample_from_anchor is {str(from_anchor).lower()} ({why}): the first draft is read {first}")
    methods = (raw.get("speculators_config") or {}).get("proposal_methods") or [{}]
    tokens = methods[0].get("speculative_tokens")
    if tokens in (config.block_size, config.block_size - 1) and (tokens == config.block_size) != from_anchor:
        yield Note(
            "warning",
            f"speculators_config proposes {tokens} tokens for a block of {config.block_size}, which goes with "
            f"sample_from_anchor {str(not from_anchor).lower()}: if drafts are accepted one position late, pass "
            f"--sample-from-anchor {str(not from_anchor).lower()}",
        )


def _same_as_mask(mask: int, target: TargetConfig, vocab: Sequence[KV]) -> list[str]:
    """Which of EOS, BOS and PAD the mask token also is, by the target's config or its tokenizer."""
    keys = {kv.key: kv.value for kv in vocab}
    words = {"eos": "eos", "bos": "bos", "pad": "padding"}
    ids = {w: {*target.special_ids.get(w, ()), keys.get(f"tokenizer.ggml.{k}_token_id")} for w, k in words.items()}
    return [word.upper() for word, found in ids.items() if mask in found]


def common_notes(
    checkpoint: Checkpoint,
    vocab: Sequence[KV],
    tensors: Sequence[PlannedTensor],
    outtype: str,
    left_out: Sequence[LeftOut],
) -> tuple[Note, ...]:
    """What a user should know of any conversion."""
    return (
        *(Note("info", text) for text in checkpoint.notes),
        *_padding_notes(vocab),
        *_tensor_notes(tensors, outtype),
        *_unpacked_notes(checkpoint, tensors),
        *(
            Note("info", f"{n} tensor(s) left out: {reason}")
            for reason, n in Counter(t.reason for t in left_out).items()
        ),
    )


def _padding_notes(vocab: Sequence[KV]) -> Iterator[Note]:
    kinds: Sequence[int] = next((kv.value for kv in vocab if kv.key == "tokenizer.ggml.token_type"), [])
    padded = np.flatnonzero(np.asarray(kinds) == UNUSED)
    if padded.size:
        span = f"[PAD{padded[0]}] … [PAD{padded[-1]}]"
        yield Note("info", f"{padded.size} rows of the embedding table have no token: {span}")


def _unpacked_notes(checkpoint: Checkpoint, tensors: Sequence[PlannedTensor]) -> Iterator[Note]:
    packed = {name for name, t in checkpoint.tensors.items() if t.dtype == "NVFP4"}
    unpacked = [t for t in tensors if t.source in packed and t.origin != TARGET]
    if unpacked:
        kinds = "/".join(sorted({t.type.name for t in unpacked}))
        why = ": their values do not fit BF16" if kinds == "F32" else ""
        yield Note("info", f"{len(unpacked)} NVFP4 weight(s) are dequantized to {kinds}{why}")


def _tensor_notes(tensors: Sequence[PlannedTensor], outtype: str) -> Iterator[Note]:
    """What was done to tensors, by kind."""
    fallbacks = [t.name for t in tensors if t.type == G.F16 and outtype == "q8_0"]
    if fallbacks:
        yield Note("warning", f"{len(fallbacks)} tensor(s) stay F16, their rows do not divide by 32: {fallbacks[0]}, …")
    for t in tensors:
        if t.origin == TARGET:
            yield Note("info", f"{t.name} is the target's {t.source}: the draft needs a table of its own")
        if t.transform == MASK_ROW:
            yield Note("info", f"{t.name} has the mask token's row from mask_embedding.pt")
        if t.transform == PAD_COLUMNS:
            yield Note("info", f"{t.name} has zeros where the Markov features are read: this head does not use them")
