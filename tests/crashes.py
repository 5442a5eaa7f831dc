"""What a crash leaves behind: kill -9 at random moments, a size limit, several writers at once, Ctrl-C.

    scripts/fuzz --faults [--rounds N] [--seed N]

hf-to-gguf and quantize run as child processes on the trained pair, with and without an older file at the output. After
each fault the final name must hold the older bytes or the whole new ones, and a rerun must succeed. What a killed
process leaves beside it is a temporary file, which a rerun does not mind.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PAIR = Path(__file__).parent / "data/tiny-pair"
OLDER = b"the older file, which is good"


@dataclass(frozen=True)
class Job:
    """A command that writes `out`, and what it writes when nothing goes wrong."""

    name: str
    args: tuple[str, ...]
    whole: bytes
    seconds: float

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "dflash_convert", *(a.replace("OUT", str(out)) for a in self.args), "--force"]


def jobs(folder: Path) -> list[Job]:
    """Both commands, each run once undisturbed."""
    draft = folder / "draft.gguf"
    convert = ("hf-to-gguf", str(PAIR / "draft"), "--target", str(PAIR / "target"), "-o", "OUT")
    made = [_job("hf-to-gguf", convert, draft)]
    return [*made, _job("quantize", ("quantize", str(draft), "OUT", "Q8_0"), folder / "q8.gguf")]


def _job(name: str, args: tuple[str, ...], out: Path) -> Job:
    start = time.monotonic()
    subprocess.run(Job(name, args, b"", 0).command(out), check=True, capture_output=True)
    return Job(name, args, out.read_bytes(), time.monotonic() - start)


Fault = Callable[[Job, Path, random.Random], str]


def killed(job: Job, out: Path, rng: random.Random) -> str:
    """kill -9 at a random moment."""
    return _signalled(job, out, rng, signal.SIGKILL)


def interrupted(job: Job, out: Path, rng: random.Random) -> str:
    """Ctrl-C: the program ends by itself, with nothing left behind."""
    said = _signalled(job, out, rng, signal.SIGINT)
    left = [p.name for p in out.parent.iterdir() if p != out]
    assert not left, f"Ctrl-C left {left}"
    return said


def _signalled(job: Job, out: Path, rng: random.Random, number: signal.Signals) -> str:
    child = subprocess.Popen(job.command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        child.wait(rng.uniform(0.5 * job.seconds, 1.05 * job.seconds))
    except subprocess.TimeoutExpired:
        child.send_signal(number)
    code = child.wait(60)
    return "ended before" if code == 0 else "stopped"


def limited(job: Job, out: Path, rng: random.Random) -> str:
    """A file size limit below what is needed: an error, and nothing left behind."""
    limit = rng.randrange(len(job.whole))

    def shrink() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    ran = subprocess.run(job.command(out), preexec_fn=shrink, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2, f"exit {ran.returncode}: {ran.stderr}"
    assert "Traceback" not in ran.stderr
    left = [p.name for p in out.parent.iterdir() if p != out]
    assert not left, f"a full disk left {left}"
    return "refused"


def crowded(job: Job, out: Path, _: random.Random) -> str:
    """Three at once."""
    children = [subprocess.Popen(job.command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in "abc"]
    codes = [child.wait(120) for child in children]
    assert 0 in codes, f"none of three succeeded: {codes}"
    return f"{codes.count(0)} of 3 succeeded"


FAULTS: dict[str, tuple[Fault, int]] = {  # and how often, beside the others
    "kill -9": (killed, 6),
    "Ctrl-C": (interrupted, 2),
    "size limit": (limited, 2),
    "three writers": (crowded, 1),
}


def rounds(seed: int) -> Iterator[tuple[str, str]]:
    """Endless rounds: (what was done, what came of it). AssertionError: something wrong was left."""
    rng, names = random.Random(seed), [n for n, (_, share) in FAULTS.items() for _ in range(share)]
    with tempfile.TemporaryDirectory() as folder:
        made = jobs(Path(folder))
        for n in range(10**9):
            job, name, older = rng.choice(made), names[n % len(names)], rng.random() < 0.5
            place = Path(folder) / f"round{n}"
            place.mkdir()
            out = place / "out.gguf"
            if older:
                out.write_bytes(OLDER)
            said = FAULTS[name][0](job, out, rng)
            found = out.read_bytes() if out.exists() else None
            assert found in (OLDER if older else None, job.whole), f"{job.name}, {name}: the final name holds a part"
            subprocess.run(job.command(out), check=True, capture_output=True)
            assert out.read_bytes() == job.whole, f"{job.name}, {name}: a rerun gave another file"
            yield f"{job.name}, {name}{', over an older file' if older else ''}", said


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/fuzz --faults")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tried: Counter[tuple[str, str]] = Counter()
    for n, outcome in enumerate(rounds(args.seed), 1):
        tried[outcome] += 1
        if n >= args.rounds:
            break
    for (what, said), count in sorted(tried.items()):
        print(f"{what:45} {said:20} {count:5}")
    print(f"{args.rounds} rounds, seed {args.seed}: the final name always held the older bytes or the whole new ones")
    return 0


if __name__ == "__main__":
    sys.exit(main())
