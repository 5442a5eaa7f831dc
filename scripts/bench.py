"""Speed and memory, measured side by side in one run and given as ratios.

    python scripts/bench.py [--dir bench-out] [--tokenizer FOLDER] [--ggml LIBGGML_BASE] [--rounds 3]

A synthetic draft of Qwen3-4B-DFlash's real shape (0.54 G weights, bf16) is made once in `--dir`; `--tokenizer` names a
folder with a real tokenizer.json (else a synthetic one of the same size is made). What is measured:

- hf-to-gguf against copying the checkpoint's file (both synced to disk), its peak memory, and that of twice the layers
- the tensors level of verify, of a bf16 and a Q4_K_M file, against reading the two files that it compares
- quantize, whole file, and each kernel in weights per second and thread, against `ggml_quantize_chunk` where
  `--ggml` names a libggml-base
- opening the header of a 152k-token vocabulary, against the gguf package's reader
- start-up: `dflash-convert --help`, and quantize of the bundled tiny draft beside importing what no command can do
  without (numpy, gguf, typer's pydantic) and what only quantizing needs (numba)
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"], "attention_bias": False, "block_size": 16,
    "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
    "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
    "intermediate_size": 9728, "max_position_embeddings": 40960, "model_type": "qwen3", "num_attention_heads": 32,
    "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 36, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
TARGET_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 2560,
    "num_hidden_layers": 36,
    "vocab_size": 151936,
}
PAIR = Path(__file__).parents[1] / "tests/data/tiny-pair"
KERNELS = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
)  # fmt: skip
QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Run:
    """One measured child process."""

    seconds: float
    peak_mb: float


def main() -> None:
    args = _arguments()
    # A pinned BLAS kernel set for other programs on a machine would slow numpy here.
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    args.dir.mkdir(exist_ok=True)
    target = make_target(args.dir / "target", args.tokenizer)
    draft = make_draft(args.dir / "draft", CONFIG["num_hidden_layers"])
    double = make_draft(args.dir / "draft-double", 2 * CONFIG["num_hidden_layers"])
    print(f"machine: {cpu_name()}, {os.cpu_count()} cores; {args.rounds} rounds, best of each\n")
    gguf = bench_convert(args, draft, double, target)
    bench_quantize(args, gguf)
    bench_verify(args, gguf, draft)
    bench_kernels(args)
    bench_header(gguf)
    bench_start(args)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path("bench-out"))
    parser.add_argument("--tokenizer", type=Path, help="folder with a real tokenizer.json and tokenizer_config.json")
    parser.add_argument("--ggml", type=Path, help="a libggml-base shared library to compare the kernels with")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


# ── input ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_draft(folder: Path, layers: int) -> Path:
    """A checkpoint of the real shape with random bf16 weights."""
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
        write_weights(folder / "model.safetensors", shapes(layers))
    return folder


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    n, ff, hd, h, kv = (
        CONFIG[k]
        for k in ("hidden_size", "intermediate_size", "head_dim", "num_attention_heads", "num_key_value_heads")
    )
    taps = len(CONFIG["dflash_config"]["target_layer_ids"])
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (n,), "post_attention_layernorm": (n,), "self_attn.q_norm": (hd,), "self_attn.k_norm": (hd,),
        "self_attn.q_proj": (h * hd, n), "self_attn.k_proj": (kv * hd, n), "self_attn.v_proj": (kv * hd, n),
        "self_attn.o_proj": (n, h * hd), "mlp.gate_proj": (ff, n), "mlp.up_proj": (ff, n), "mlp.down_proj": (n, ff),
    }  # fmt: skip
    named = {f"layers.{i}.{k}.weight": s for i in range(layers) for k, s in layer.items()}
    return {"fc.weight": (n, taps * n), "hidden_norm.weight": (n,), "norm.weight": (n,), **named}


def write_weights(path: Path, wanted: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file, tensor by tensor, from one pool of random numbers read at ever new offsets."""
    pool = np.random.default_rng(0).normal(0, 0.02, 1 << 24).astype(ml_dtypes.bfloat16)
    header, at = {}, 0
    for name, shape in sorted(wanted.items()):
        size = int(np.prod(shape)) * 2
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    data = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(len(data).to_bytes(8, "little") + data)
        for k, (_, shape) in enumerate(sorted(wanted.items())):
            left, start = int(np.prod(shape)), 7919 * k
            while left:
                part = pool[start : start + left]
                out.write(part.tobytes())
                left, start = left - len(part), 0


def make_target(folder: Path, tokenizer: Path | None) -> Path:
    """A target folder with its small files only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(TARGET_CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if tokenizer:
            shutil.copy(tokenizer / name, folder / name)
    if not tokenizer:
        (folder / "tokenizer.json").write_text(json.dumps(synthetic_tokenizer(151643)))
        (folder / "tokenizer_config.json").write_text("{}")
    return folder


def synthetic_tokenizer(n: int) -> dict[str, Any]:
    letters = [chr(c) for c in range(0x100, 0x180)]
    tokens = [a + b + c for a in letters for b in letters for c in letters][:n]
    merges = [[t[:2], t[2]] for t in tokens]
    return {
        "added_tokens": [], "decoder": {"type": "ByteLevel"},
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }  # fmt: skip


# ── measuring ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(*command: str | Path) -> Run:
    """Run a child and take its wall time and its own peak resident memory."""
    started = time.perf_counter()
    child = subprocess.Popen([str(c) for c in command], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed with {child.returncode}")
    return Run(time.perf_counter() - started, usage.ru_maxrss / 1024)


def best(rounds: int, action: Callable[[], float]) -> float:
    return min(action() for _ in range(rounds))


def copy_seconds(source: Path, to: Path) -> float:
    """Copy a file and sync it, as the converter syncs its output."""
    to.unlink(missing_ok=True)
    started = time.perf_counter()
    with source.open("rb") as a, to.open("wb") as b:
        shutil.copyfileobj(a, b, 8 << 20)
        b.flush()
        os.fsync(b.fileno())
    seconds = time.perf_counter() - started
    to.unlink()
    return seconds


def tool(*args: str | Path) -> tuple[str | Path, ...]:
    return (sys.executable, "-m", "dflash_convert", *args)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown CPU")


# ── the benches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def bench_convert(args: argparse.Namespace, draft: Path, double: Path, target: Path) -> Path:
    folder: Path = args.dir
    out, twice = folder / "draft-BF16.gguf", folder / "double-BF16.gguf"

    def convert(source: Path, to: Path) -> Run:
        to.unlink(missing_ok=True)  # as for the copy: deleting a gigabyte is not what is measured
        return measure(*tool("hf-to-gguf", source, "--target", target, "-o", to, "--force", "-q"))

    copies, runs = [], []
    for _ in range(args.rounds):  # alternating, so that both see the same state of disk and cache
        copies.append(copy_seconds(draft / "model.safetensors", args.dir / "copy.bin"))
        runs.append(convert(draft, out))
    seconds, copied = min(r.seconds for r in runs), min(copies)
    size = out.stat().st_size / 1e9
    print(f"hf-to-gguf      {seconds:6.2f} s for {size:.2f} GB; a copy {copied:.2f} s; ratio {seconds / copied:.2f}")
    doubled = convert(double, twice).peak_mb
    twice.unlink()
    print(f"  peak memory   {max(r.peak_mb for r in runs):6.0f} MB; with twice the layers {doubled:.0f} MB")
    return out


def bench_quantize(args: argparse.Namespace, gguf: Path) -> None:
    weights = sum(int(np.prod(s)) for s in shapes(CONFIG["num_hidden_layers"]).values())
    for file_type in ("Q8_0", "Q4_K_M"):
        out = args.dir / f"draft-{file_type}.gguf"
        runs = []
        for _ in range(args.rounds):
            out.unlink(missing_ok=True)
            runs.append(measure(*tool("quantize", gguf, out, file_type, "-q")))
        seconds = min(r.seconds for r in runs)
        rate = weights / seconds / 1e6 / (os.cpu_count() or 1)
        print(
            f"quantize {file_type:7}{seconds:6.2f} s whole file; {rate:5.0f} M weights/s a thread; "
            f"peak {max(r.peak_mb for r in runs):.0f} MB"
        )


def bench_verify(args: argparse.Namespace, gguf: Path, draft: Path) -> None:
    """The tensors level beside reading the two files that it compares."""
    weights = draft / "model.safetensors"
    for file in (gguf, args.dir / "draft-Q4_K_M.gguf"):
        reading = best(args.rounds, lambda: timed(lambda: sum(map(read_through, (file, weights)))))  # noqa: B023
        runs = [
            measure(*tool("verify", file, "--source", draft, "--only", "tensors", "-q")) for _ in range(args.rounds)
        ]
        seconds, peak = min(r.seconds for r in runs), max(r.peak_mb for r in runs)
        print(f"verify tensors  {seconds:6.2f} s {file.stem}; reading both {reading:.2f} s; peak {peak:.0f} MB")


def read_through(path: Path) -> int:
    """Bytes read."""
    with path.open("rb") as f:
        return sum(len(part) for part in iter(lambda: f.read(8 << 20), b""))


def bench_kernels(args: argparse.Namespace) -> None:
    from dflash_convert.quants import TYPES, quantize

    x = np.random.default_rng(1).normal(0, 0.02, (2048, 2560)).astype(np.float32)
    ggml = load_ggml(args.ggml) if args.ggml else None
    for name in KERNELS:
        quantize(x[:64], name, threads=1)  # compile
        ours = best(args.rounds, lambda: timed(partial(quantize, x, name, threads=1)))  # noqa: B023
        line = f"kernel {name:9}{x.size / ours / 1e6:6.0f} M weights/s a thread"
        if ggml is not None:
            theirs = best(args.rounds, lambda: timed(partial(ggml_quantize, ggml, x, TYPES[name])))  # noqa: B023
            line += f"; ggml {x.size / theirs / 1e6:.0f}; ratio {theirs / ours:.1f}"
        print(line)


def timed(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def load_ggml(path: Path) -> ctypes.CDLL:
    lib = ctypes.CDLL(str(path))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    ]  # fmt: skip
    return lib


def ggml_quantize(lib: ctypes.CDLL, x: np.ndarray[Any, Any], kind: Any) -> None:
    out = np.empty(x.size // kind.block * kind.bytes, np.uint8)
    lib.ggml_quantize_chunk(int(kind.id), x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)


def bench_header(gguf: Path) -> None:
    from gguf import GGUFReader

    from dflash_convert.gguf_io.reader import open_gguf

    ours, theirs = best(3, lambda: timed(lambda: open_gguf(gguf))), timed(lambda: GGUFReader(gguf))
    print(f"open header     {ours * 1e3:6.0f} ms; the gguf package {theirs * 1e3:.0f} ms; ratio {theirs / ours:.0f}")


def bench_start(args: argparse.Namespace) -> None:
    """What a command costs before it does anything."""
    tiny, out = args.dir / "tiny.gguf", args.dir / "tiny-quantized.gguf"
    measure(*tool("hf-to-gguf", PAIR / "draft", "--target", PAIR / "target", "-o", tiny, "--force", "-q"))
    commands: dict[str, tuple[str | Path, ...]] = {
        "--help": tool("--help"),
        "tiny to BF16": tool("quantize", tiny, out, "BF16", "--force", "-q"),
        "tiny to Q4_K_M": tool("quantize", tiny, out, "Q4_K_M", "--force", "-q"),
        "imports": (sys.executable, "-c", "import numpy, gguf, pydantic.types, pydantic.fields"),
        "and numba": (sys.executable, "-c", "import numpy, gguf, pydantic.types, pydantic.fields, numba.np.npyimpl"),
    }
    for command in commands.values():
        measure(*command)  # once, so that all is compiled and in the system's cache
    for name, command in commands.items():
        seconds = best(3 * args.rounds, lambda: measure(*command).seconds)  # noqa: B023
        print(f"start {name:15}{seconds * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
