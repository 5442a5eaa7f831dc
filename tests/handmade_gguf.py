"""GGUFs made by hand for the runtime's tests: a table of names, and a writer that asks nobody what belongs where."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf.quants
import numpy as np
from gguf.constants import GGMLQuantizationType, GGUFValueType

from dflash_convert.gguf_io.layout import Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV, GGUFFile, open_gguf
from dflash_convert.gguf_io.writer import write
from dflash_convert.runtime.ops import Array

V = GGUFValueType
VALUE_TYPES = {bool: V.BOOL, int: V.UINT32, float: V.FLOAT32, str: V.STRING}
ITEM_TYPES = {bool: V.BOOL, int: V.INT32}
DRAFT_NAMES = {
    "fc.weight": "fc.weight",
    "enc.output_norm.weight": "hidden_norm.weight",
    "output_norm.weight": "norm.weight",
    "token_embd.weight": "embed_tokens.weight",
    "output.weight": "lm_head.weight",
    "d2t": "d2t",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "conf_proj.weight": "confidence_head.proj.weight",
    "conf_proj.bias": "confidence_head.proj.bias",
    "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
}
LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "attn_sinks.weight": "self_attn.attention_sink_bias",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj.weight": "attention_conv.kernel_projection.weight",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj.weight": "mlp_conv.kernel_projection.weight",
}


def draft_names(n_layer: int = 2) -> dict[str, str]:
    """GGUF name → checkpoint name of a draft's tensors."""
    layers = {f"blk.{i}.{g}": f"layers.{i}.{c}" for i in range(n_layer) for g, c in LAYER_NAMES.items()}
    return {**DRAFT_NAMES, **layers}


def without_none(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in mapping.items() if v is not None}


def write_gguf(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Any], matrix: str) -> GGUFFile:
    """Write and open a GGUF: vectors and kernels in F32, matrices in the type `matrix`, integers in I64."""
    stored = {n: np.asarray(t) for n, t in without_none(tensors).items()}
    planned = tuple(PlannedTensor(n, t.shape, _stored_type(t, matrix), n) for n, t in stored.items())
    plan = Plan(tuple(_kv(k, v) for k, v in without_none(keys).items()), planned)
    write(plan, lambda t: [_encoded(stored[t.name], t.type)], path, force=True)
    return open_gguf(path)


def _stored_type(tensor: Array, matrix: str) -> GGMLQuantizationType:
    name = "I64" if tensor.dtype.kind == "i" else matrix if tensor.ndim == 2 else "F32"
    return GGMLQuantizationType[name]


def _encoded(tensor: Array, kind: GGMLQuantizationType) -> bytes:
    if kind.name == "I64":
        return tensor.astype("<i8").tobytes()
    return bytes(gguf.quants.quantize(tensor.astype(np.float32), kind).tobytes())


def _kv(key: str, value: Any) -> KV:
    if isinstance(value, list):
        return KV(key, V.ARRAY, value, ITEM_TYPES[type(value[0])])
    return KV(key, VALUE_TYPES[type(value)], value)
