"""No good file is refused: random drafts of every family in every file type. And no header fault is forgiven."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from random_drafts import FAMILIES, make
from verify_cases import messages, planted

from dflash_convert.conversion.run import convert
from dflash_convert.gguf_io.reader import open_gguf
from dflash_convert.quantization.file_types import FILE_TYPES
from dflash_convert.quantization.run import quantize_file
from dflash_convert.verification import verify
from dflash_convert.verification.forward import TOLERANCE
from dflash_convert.verification.report import FORWARD, STRUCTURE, TENSORS

TYPES = [name for name in FILE_TYPES if name != "Q2_K_S"]  # which needs an importance matrix
ROUNDING = 5e-5  # the largest worst difference of a good file: 3.9e-5, of a DFlash2 draft


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("family", FAMILIES)
def test_a_random_draft_is_verified_in_every_type(tmp_path: Path, family: str, seed: int) -> None:
    draft, target = make(tmp_path, family, seed)
    plain = convert(draft, target, tmp_path / "plain.gguf")
    for name in TYPES:
        path = tmp_path / "quantized.gguf"
        quantize_file(plain, path, name, force=True, threads=1)
        report = verify(path, source=draft, target=target, only={STRUCTURE, TENSORS, FORWARD})
        assert report.ok, (name, messages(report))
        assert report.metrics["forward.worst_difference"] < ROUNDING < TOLERANCE


# header faults that change the graph of (almost) every draft
KEYS: dict[str, Any] = {
    "dflash.rope.freq_base": lambda base: base * 10 if base < 1e7 else 10000.0,
    "dflash.attention.layer_norm_rms_epsilon": lambda eps: eps * 1000,
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_header_fault_shows_by_the_forward_pass_alone(tmp_path: Path, family: str, name: str) -> None:
    draft, target = make(tmp_path, family, 3)
    good = tmp_path / "good.gguf"
    quantize_file(convert(draft, target, tmp_path / "plain.gguf"), good, name, threads=1)
    rng = random.Random(0)
    for key in KEYS:
        if key not in open_gguf(good).kv:
            continue
        bad = planted(good, tmp_path / "bad.gguf", {key: KEYS[key]})
        report = verify(bad, source=draft, only={FORWARD}, seed=rng.randrange(100))
        assert not report.ok, key
        assert report.metrics["forward.worst_difference"] > 3 * TOLERANCE
