"""Mutated inputs: nothing but a DflashError may come out, and what is accepted must be what the input says.

    scripts/fuzz [--seconds N] [--inputs N] [--seed N] [--keep FOLDER]

In each round one file of a tiny case is changed: a value anywhere in a JSON file (its kind, a number, a key twice or
renamed or gone, bytes of the text), or bytes, numbers and lengths in the front of a safetensors or GGUF file. Then the
part of the program that reads it runs: `plan_conversion`, `open_gguf`, `plan_file`, `verify`, `inspect_path`,
`migrate_file`. Of each new kind of fault the input is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreign_gguf import write

from dflash_convert.conversion.run import convert, plan_conversion, write_conversion
from dflash_convert.errors import DflashError
from dflash_convert.gguf_io.reader import open_gguf
from dflash_convert.inspection.run import inspect_path
from dflash_convert.migration.run import migrate_file
from dflash_convert.quantization.run import plan_file, quantize_file
from dflash_convert.verification import verify

DATA = Path(__file__).parent / "data/convert"
DRAFT, TARGET = DATA / "dflash-flat/draft", DATA / "target-qwen3"
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")

# ── mutations ─────────────────────────────────────────────────────────────────────────────────────────────────────────

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 8, 63, 2**31, 2**32, 2**63, 10**40, 0.5, -1.5, 1e300, "", "a", "x" * 300, "é\n",
    [], [1], [None], ["a"], [[]], [1, 2, 3], {}, {"a": 1}, {"content": "x"}, {"id": 1}, [{"id": 5, "content": "z"}],
    "sliding_attention", "full_attention", "yarn", "BPE", "ByteLevel", "TemplateProcessing", "Sequence",
)  # fmt: skip
TEXTS = (b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"\0", b'"a":1,', b"\\ud800")
NUMBERS = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a JSON value; of long containers some."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, inner in items if len(items) < 60 else items[:5] + items[-5:]:
        yield value, key
        yield from places(inner)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """One to three changes to a JSON file, mostly of values, sometimes of its text."""
    if rng.random() < 0.15:
        return mutate_text(data, rng)
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(places(value))
        if not found:
            break
        container, key = rng.choice(found)
        change = rng.random()
        if change < 0.7:
            container[key] = deepcopy(rng.choice(VALUES))
        elif change < 0.85:
            del container[key]
        elif isinstance(container, dict):
            other, there = rng.choice(found)
            copy = deepcopy(other[there]) if not isinstance(other, list) or there < len(other) else None
            container[str(there) if rng.random() < 0.5 else f"{key}_"] = copy
        else:
            container.append(deepcopy(container[key]))
    return json.dumps(value).encode()


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    kind, at = rng.randrange(7), rng.randrange(len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"<html>", b"[" * 2000)) + data
    if kind == 2:
        return data.decode().encode(rng.choice(("utf-16", "utf-16-le", "utf-32", "utf-7")))
    if kind == 3:
        return data[:at] + rng.choice(TEXTS) + data[at:]
    return mutate_bytes(data, rng, len(data))


def mutate_bytes(data: bytes, rng: random.Random, front: int) -> bytes:
    """Bytes, numbers and lengths within the first `front` bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, kind = rng.randrange(min(front, max(1, len(changed)))), rng.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at : at + 1] = bytes([changed[at] ^ 1 << rng.randrange(8)]) if at < len(changed) else b""
        elif kind == 2:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            changed[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 4:
            del changed[at : at + rng.choice((1, 4, 8, 32))]
        else:
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 4, 8, 32))))
    return bytes(changed)


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """The header as JSON, put back with its length; or raw bytes of the front."""
    (length,) = struct.unpack_from("<Q", data)
    if rng.random() < 0.4:
        return mutate_bytes(data, rng, 8 + length)
    header = mutate_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def mutate_gguf(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return data[: rng.randrange(len(data))] if rng.random() < 0.5 else data + bytes(rng.choice((1, 32, 100)))
    return mutate_bytes(data, rng, GGUF_FRONT)


GGUF_FRONT = 2200  # the keys up to the vocabulary; then some of the rest

# ── what reads them ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Bench:
    """A tiny case in a folder of its own, its files put back after each round."""

    root: Path
    draft: Path = field(init=False)
    target: Path = field(init=False)
    gguf: Path = field(init=False)
    fork: Path = field(init=False)
    good: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.draft, self.target, self.gguf = self.root / "draft", self.root / "target", self.root / "draft.gguf"
        shutil.copytree(DRAFT, self.draft)
        self.target.mkdir()
        for name in SMALL:
            shutil.copyfile(TARGET / name, self.target / name)
        convert(self.draft, self.target, self.gguf)
        self.good = self.gguf.read_bytes()
        self.fork = write(self.root / "fork.gguf", "beellama")

    def convert(self, path: Path) -> str:
        """Plan; now and then write, and hold what is accepted against the unmutated file or the mutated plan."""
        job = plan_conversion(self.draft, self.target, self.root / "out.gguf")
        try:
            write_conversion(job)
            written = open_gguf(self.root / "out.gguf")
            said = {kv.key: kv.value for kv in job.plan.kv}
            for key, kv in written.kv.items():
                assert same(kv.value, said[key]), f"{key}: {kv.value!r} was written for {said[key]!r}"
            same_file = (self.root / "out.gguf").read_bytes() == self.good
            return "accepted, the same file" if same_file else "accepted, shows in the output"
        finally:
            (self.root / "out.gguf").unlink(missing_ok=True)

    def read(self, path: Path) -> str:
        """Open, quantize, verify."""
        file = open_gguf(path)
        for tensor in file.tensors.values():
            file.raw(tensor.name)
        report = verify(path, source=self.draft, target=self.target, only={"structure"})
        try:
            plan_file(path, "Q8_0")
            quantize_file(path, self.root / "out.gguf", "Q8_0", threads=1)
        finally:
            (self.root / "out.gguf").unlink(missing_ok=True)
        return "accepted" if report.ok else "verify: no"

    def inspect(self, path: Path) -> str:
        return "accepted, odd" if inspect_path(path.parent if path.suffix == ".json" else path).odd else "accepted"

    def migrate(self, path: Path) -> str:
        """What is accepted is a file of mainline's architecture that opens, with every tensor's bytes."""
        try:
            plan = migrate_file(path, self.root / "out.gguf")
            written, old = open_gguf(self.root / "out.gguf"), open_gguf(path)
            for tensor in plan.tensors:
                if tensor.type == old.tensors[tensor.source].type:
                    assert written.raw(tensor.name).tobytes() == old.raw(tensor.source).tobytes(), tensor.name
            assert written.architecture == "dflash"
            return "accepted"
        finally:
            (self.root / "out.gguf").unlink(missing_ok=True)

    def verify(self, path: Path) -> str:
        report = verify(self.gguf, source=self.draft, target=self.target, only={"structure"})
        return "accepted" if report.ok else "verify: no"


def same(written: Any, said: Any) -> bool:
    if isinstance(written, float):
        return struct.pack("<f", said) == struct.pack("<f", written)
    return list(written) == list(said) if isinstance(said, (list, tuple)) else bool(written == said)


Mutate = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Kind:
    """A file to mutate, how, and which part of the program is run on it. share: how often, beside the others."""

    name: str
    path: Callable[[Bench], Path]
    mutate: Mutate
    run: Callable[[Bench, Path], str]
    share: int


def _kinds() -> tuple[Kind, ...]:
    converted = [
        Kind("draft config", lambda b: b.draft / "config.json", mutate_json, Bench.convert, 4),
        Kind("safetensors", lambda b: b.draft / "model.safetensors", mutate_safetensors, Bench.convert, 4),
        *(
            Kind(f"target {name}", lambda b, n=name: b.target / n, mutate_json, Bench.convert, share)  # type: ignore[misc]
            for name, share in zip(SMALL, (2, 1, 4, 2), strict=True)
        ),
    ]
    verified = [
        Kind("draft config, verify", lambda b: b.draft / "config.json", mutate_json, Bench.verify, 1),
        Kind("target tokenizer.json, verify", lambda b: b.target / "tokenizer.json", mutate_json, Bench.verify, 1),
        Kind("target config.json, verify", lambda b: b.target / "config.json", mutate_json, Bench.verify, 1),
    ]
    read = [
        Kind("gguf", lambda b: b.gguf, mutate_gguf, Bench.read, 6),
        Kind("gguf, inspect", lambda b: b.gguf, mutate_gguf, Bench.inspect, 2),
        Kind("draft config, inspect", lambda b: b.draft / "config.json", mutate_json, Bench.inspect, 1),
        Kind("fork's gguf, inspect", lambda b: b.fork, mutate_gguf, Bench.inspect, 1),
        Kind("fork's gguf, migrate", lambda b: b.fork, mutate_gguf, Bench.migrate, 3),
    ]
    return (*converted, *verified, *read)


KINDS = _kinds()


@dataclass(frozen=True)
class Fault:
    """Something other than a DflashError came out."""

    kind: str
    data: bytes
    text: str


def rounds(bench: Bench, seed: int) -> Iterator[tuple[str, str | Fault]]:
    """Endless rounds: (kind, what came of it)."""
    rng = random.Random(seed)
    originals = {kind.name: kind.path(bench).read_bytes() for kind in KINDS}
    shares = [kind.share for kind in KINDS]
    while True:
        (kind,) = rng.choices(KINDS, shares)
        path, data = kind.path(bench), kind.mutate(originals[kind.name], rng)
        path.write_bytes(data)
        try:
            yield kind.name, kind.run(bench, path)
        except DflashError as e:
            plain = "\n" not in e.message and 0 < len(e.message) < 3000
            yield kind.name, "refused" if plain else Fault(kind.name, data, f"an odd message: {e.message!r}")
        except Exception:
            yield kind.name, Fault(kind.name, data, traceback.format_exc())
        finally:
            path.write_bytes(originals[kind.name])


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"))
    args = parser.parse_args()
    start, tried, seen = time.monotonic(), Counter[tuple[str, str]](), dict[str, Fault]()
    with tempfile.TemporaryDirectory() as folder:
        for n, (kind, outcome) in enumerate(rounds(Bench(Path(folder)), args.seed), 1):
            tried[kind, outcome if isinstance(outcome, str) else "FAULT"] += 1
            if isinstance(outcome, Fault):
                keep(outcome, seen, args.keep)
            if n >= args.inputs or time.monotonic() - start > args.seconds:
                break
    for (kind, outcome), count in sorted(tried.items()):
        print(f"{kind:32} {outcome:32} {count:8}")
    seconds = time.monotonic() - start
    print(f"{sum(tried.values())} inputs in {seconds:.0f} s, seed {args.seed}: {len(seen)} kinds of fault")
    return 1 if seen else 0


def keep(fault: Fault, seen: dict[str, Fault], folder: Path) -> None:
    """A new fault (by its last lines) is shown and its input kept."""
    where = "\n".join(line for line in fault.text.splitlines() if "dflash_convert" in line)[-600:] + fault.text[-200:]
    name = fault.text.strip().splitlines()[-1][:60] + where[-300:]
    if name in seen:
        return
    seen[name] = fault
    folder.mkdir(exist_ok=True)
    (folder / f"{len(seen):03}-{fault.kind.replace(' ', '-').replace(',', '')}").write_bytes(fault.data)
    print(f"--- fault {len(seen)} in {fault.kind}\n{fault.text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
