"""Row blocks worked on by threads, ahead of the writing and handed over in order.

In: for each tensor its blocks, and the work that turns a block into bytes. Out: the writer's `chunks`. Reading,
computing and writing overlap; at most `ahead` blocks are finished or under way beyond the one being written, so memory
stays the same whatever the size of the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

from dflash_convert.gguf_io.layout import PlannedTensor
from dflash_convert.gguf_io.writer import Chunks

Block = TypeVar("Block")


@contextmanager
def working_ahead(
    blocks: Mapping[str, Sequence[Block]], work: Callable[[Block], Any], threads: int
) -> Iterator[Chunks]:
    """`chunks` for `writer.write`. blocks: by tensor name, in the order in which the tensors are written.

    What `work` raises comes out where its block would have been written, and ends the work on later ones.
    """
    with ThreadPoolExecutor(threads) as pool:
        stream = _in_order(pool, work, chain.from_iterable(blocks.values()), ahead=threads + 1)

        def chunks(tensor: PlannedTensor) -> Iterator[Any]:
            return islice(stream, len(blocks[tensor.name]))

        try:
            yield chunks
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ThreadPoolExecutor, work: Callable[[Block], Any], blocks: Iterable[Block], ahead: int
) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    for block in blocks:
        waiting.append(pool.submit(work, block))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
