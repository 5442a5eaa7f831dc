"""A dense Qwen3 target from a GGUF: llama.cpp's tensor names and keys (src/models/qwen3.cpp)."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.reader import GGUFFile
from dflash_convert.runtime.hparams import Hparams, read_hparams
from dflash_convert.runtime.targets.qwen3 import Qwen3
from dflash_convert.runtime.weights import GGUFWeights, Module, OptionalTensor, Resident, Tensor, check


@dataclass(frozen=True)
class TargetHparams(Hparams):
    """Sizes of the target and its vocabulary."""

    n_vocab: int


class Layer(Module):
    input_norm = Tensor("blk.{i}.attn_norm.weight", "n_embd")
    q = Tensor("blk.{i}.attn_q.weight", "n_embd_q", "n_embd")
    k = Tensor("blk.{i}.attn_k.weight", "n_embd_kv", "n_embd")
    v = Tensor("blk.{i}.attn_v.weight", "n_embd_kv", "n_embd")
    o = Tensor("blk.{i}.attn_output.weight", "n_embd", "n_embd_q")
    q_norm = Tensor("blk.{i}.attn_q_norm.weight", "n_embd_head")
    k_norm = Tensor("blk.{i}.attn_k_norm.weight", "n_embd_head")
    mlp_norm = Tensor("blk.{i}.ffn_norm.weight", "n_embd")
    gate = Tensor("blk.{i}.ffn_gate.weight", "n_ff", "n_embd")
    up = Tensor("blk.{i}.ffn_up.weight", "n_ff", "n_embd")
    down = Tensor("blk.{i}.ffn_down.weight", "n_embd", "n_ff")


class Ends(Module):
    embeddings = Tensor("token_embd.weight", "n_vocab", "n_embd")
    norm = Tensor("output_norm.weight", "n_embd")
    output = OptionalTensor("output.weight", "n_vocab", "n_embd")


def load(gguf: GGUFFile) -> Qwen3:
    """The target in an opened GGUF. Raises GGUFError: a missing key, a tensor that is missing, extra or misshapen."""
    weights, h = Resident(GGUFWeights(gguf)), read_hparams(gguf)
    if 2 * len(h.rope.freqs) != h.n_embd_head:
        raise GGUFError(
            f"{gguf.path.name}: {2 * len(h.rope.freqs)} rotary dimensions in heads of {h.n_embd_head}; qwen3 turns all"
        )
    n_vocab = weights.shape("token_embd.weight")[0] if "token_embd.weight" in weights else 0
    sizes = TargetHparams(**vars(h), n_vocab=n_vocab)
    ends, layers = Ends(weights, sizes), [Layer(weights, sizes, i) for i in range(h.n_layer)]
    check([ends, *layers], gguf.path.name, GGUFError)
    return Qwen3(h.n_embd, n_vocab, h.n_head, h.n_head_kv, h.n_embd_head, h.norm_rms_eps, h.rope, ends, layers)
