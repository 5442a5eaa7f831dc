"""Blocks are handed over in order, worked on no further ahead than promised, and end at the first failure."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from gguf.constants import GGMLQuantizationType as G

from dflash_convert.gguf_io.layout import PlannedTensor
from dflash_convert.pipeline import working_ahead


def tensor(name: str) -> PlannedTensor:
    return PlannedTensor(name, (1,), G.F32, name)


BLOCKS = {"a": [0, 1, 2], "b": [], "c": [3, 4, 5, 6, 7, 8, 9]}


@pytest.mark.parametrize("threads", [1, 3])
def test_each_tensor_gets_its_blocks_in_order(threads: int) -> None:
    def work(block: int) -> bytes:
        time.sleep(0.001 * (block % 3))  # later blocks are often done first
        return bytes([block])

    with working_ahead(BLOCKS, work, threads) as chunks:
        assert {name: list(chunks(tensor(name))) for name in BLOCKS} == {
            name: [bytes([b]) for b in blocks] for name, blocks in BLOCKS.items()
        }


def test_it_works_at_most_threads_and_two_ahead() -> None:
    started: list[int] = []
    with working_ahead({"a": list(range(50))}, started.append, threads=2) as chunks:
        stream = iter(chunks(tensor("a")))
        for taken in range(1, 20):
            next(stream)
            settle(started)
            assert len(started) <= taken + 3


def settle(started: list[int]) -> None:
    before = -1
    while before != len(started):
        before = len(started)
        time.sleep(0.002)


def test_a_failure_comes_out_where_its_block_would_and_ends_the_rest() -> None:
    done: list[int] = []
    lock = threading.Lock()

    def work(block: int) -> int:
        if block == 3:
            raise ValueError("block 3")
        with lock:
            done.append(block)
        return block

    taken: list[Any] = []
    with pytest.raises(ValueError, match="block 3"), working_ahead({"a": list(range(50))}, work, threads=1) as chunks:
        taken.extend(chunks(tensor("a")))
    assert max(done) < 10
