"""The arithmetic that every model here is made of: norms, rotary positions, attention, activations.

In and out: float32 arrays, one row a token. Nothing here knows a model, a file, a config or a mask convention; angles
and frequencies are float64 until their cosine is taken, the rest is float32 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
RopeTable: TypeAlias = tuple[Array, Array]  # cosines and sines, (T, n_rot / 2) each


def linear(x: Array, weight: Array) -> Array:
    """x (T, n_in) through a weight stored (n_out, n_in), as both formats do: (T, n_out)."""
    out: Array = x @ weight.T
    return out


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    normed: Array = x / np.sqrt(mean + np.float32(eps)) * weight
    return normed


def rms_unit(x: Array, eps: float) -> Array:
    """x / sqrt(mean(x²) + eps) over the last axis: `rms_norm` without a weight."""
    return rms_norm(x, np.ones(1, np.float32), eps)


def heads(x: Array, n_head: int) -> Array:
    """(T, n_head · d) → (T, n_head, d)."""
    return x.reshape(len(x), n_head, -1)


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary positions. freqs: radians a position, (n_rot / 2,) float64; magnitude: factor on cosine and sine."""

    freqs: Array
    magnitude: float = 1.0


def rope_frequencies(n_rot: int, base: float) -> Array:
    """base^(-2i / n_rot) for i < n_rot / 2: radians a position, float64."""
    return float(base) ** (-np.arange(0, n_rot, 2, dtype=np.float64) / n_rot)


def yarn_frequencies(
    freqs: Array,
    base: float,
    factor: float,
    n_ctx_orig: float,
    beta_fast: float,
    beta_slow: float,
    *,
    truncate: bool = True,
) -> Array:
    """YaRN's "NTK by parts" (arXiv 2309.00071, section 3.2): slow frequencies divided by `factor`, fast ones kept.

    The dimension that turns `beta` times within `n_ctx_orig` positions is n_rot · ln(n_ctx_orig / 2πβ) / 2 ln(base).
    Between those of beta_fast and beta_slow (rounded outward if `truncate`) the mix is linear in the dimension.
    """
    n_rot = 2 * len(freqs)
    low, high = (
        n_rot * math.log(n_ctx_orig / (2 * math.pi * beta)) / (2 * math.log(base)) for beta in (beta_fast, beta_slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, n_rot - 1)
    ramp = np.clip((np.arange(len(freqs)) - low) / max(0.001, high - low), 0, 1)
    mixed: Array = freqs * (1 - ramp) + freqs / factor * ramp
    return mixed


def rope_table(rope: Rope, positions: Array) -> RopeTable:
    """Cosines and sines of the angles at `positions` (T,), magnitude included: (T, n_rot / 2) float32 each."""
    angles = np.multiply.outer(positions.astype(np.float64), rope.freqs)
    cos, sin = np.cos(angles) * rope.magnitude, np.sin(angles) * rope.magnitude
    return cos.astype(np.float32), sin.astype(np.float32)


def rotate_half(x: Array, table: RopeTable) -> Array:
    """Rope in the NeoX layout: dimension i turns with i + n_rot / 2; those from n_rot on stay. x: (T, n_head, d)."""
    cos, sin = (t[:, None, :] for t in table)  # (T, 1, n_rot / 2)
    half = cos.shape[-1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)


def rotate_pairs(x: Array, table: RopeTable) -> Array:
    """Rope in the interleaved layout: dimension 2i turns with 2i + 1; those from n_rot on stay. x: (T, n_head, d)."""
    cos, sin = (t[:, None, :] for t in table)  # (T, 1, n_rot / 2)
    n_rot = 2 * cos.shape[-1]
    a, b = x[..., 0:n_rot:2], x[..., 1:n_rot:2]
    out = x.copy()
    out[..., 0:n_rot:2], out[..., 1:n_rot:2] = a * cos - b * sin, b * cos + a * sin
    return out


def softmax(scores: Array, sinks: Array | None = None) -> Array:
    """Softmax over the last axis. `sinks` (broadcast against it) are one more score a row that takes its share of the
    sum and has no value, so that a row may add up to less than 1."""
    top = np.max(scores, axis=-1, keepdims=True)
    top = top if sinks is None else np.maximum(top, sinks)
    weights: Array = np.exp(scores - top)
    total = np.sum(weights, axis=-1, keepdims=True)
    weights /= total if sinks is None else total + np.exp(sinks - top)
    return weights


def attention(q: Array, k: Array, v: Array, visible: Array, scale: float, sinks: Array | None = None) -> Array:
    """Grouped-query attention.

    q: (T, n_head, d); k, v: (S, n_head_kv, d), head h reading kv head h // (n_head / n_head_kv); visible: (T, S) bool,
    at least one true a row; sinks: (n_head,) or None. Returns (T, n_head · d).
    """
    n_tokens, n_head, d = q.shape
    n_kv = k.shape[1]
    q = q.reshape(n_tokens, n_kv, n_head // n_kv, d).transpose(1, 2, 0, 3)  # (n_kv, group, T, d)
    k, v = k.transpose(1, 2, 0)[:, None], v.transpose(1, 0, 2)[:, None]  # (n_kv, 1, d, S), (n_kv, 1, S, d)
    scores = np.where(visible, q @ k * np.float32(scale), np.float32(-np.inf))  # (n_kv, group, T, S)
    columns = None if sinks is None else sinks.reshape(n_kv, -1, 1, 1)
    out = softmax(scores, columns) @ v  # (n_kv, group, T, d)
    return out.transpose(2, 0, 1, 3).reshape(n_tokens, n_head * d)


def gated_mlp(x: Array, gate: Array, up: Array, down: Array, activation: Callable[[Array], Array]) -> Array:
    """down(activation(gate(x)) · up(x)): (T, n_embd) → (T, n_embd)."""
    return linear(activation(linear(x, gate)) * linear(x, up), down)


def silu(x: Array) -> Array:
    """x / (1 + e^-x); e^-x may overflow to inf, which gives the right zero."""
    with np.errstate(over="ignore"):
        out: Array = x / (1 + np.exp(-x))
    return out


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x); e^-x may overflow to inf, which gives the right zero."""
    with np.errstate(over="ignore"):
        out: Array = 1 / (1 + np.exp(-x))
    return out


def softcapped(x: Array, cap: float) -> Array:
    """cap · tanh(x / cap): x where it is small, never beyond ±cap."""
    out: Array = np.tanh(x / np.float32(cap)) * np.float32(cap)
    return out


def gelu_tanh(x: Array) -> Array:
    """GELU by its tanh approximation."""
    inner = np.float32(math.sqrt(2 / math.pi)) * x * (1 + np.float32(0.044715) * x * x)
    out: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return out


def gelu_erf(x: Array) -> Array:
    """GELU as defined: x · Φ(x)."""
    erf = np.vectorize(math.erf, otypes=[np.float32])(x * np.float32(math.sqrt(0.5)))
    out: Array = np.float32(0.5) * x * (1 + erf)
    return out
