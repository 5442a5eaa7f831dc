"""The texts that drafts are tried on: our own, short, and of several kinds, because acceptance depends on the kind.

Out: `PROMPTS`, or the prompts of a file: one a line, or, where one of the lines is `---`, what lies between such lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from dflash_convert.errors import UsageError
from dflash_convert.json_file import read_text

SEPARATOR = "---"

PROMPTS = (
    # code that goes on as it began: long accepted runs
    "def read_rows(path):\n"
    '    """Read a file of comma-separated rows into a list of lists."""\n'
    "    rows = []\n"
    "    with open(path) as f:\n"
    "        for line in f:\n",
    # prose
    "The lighthouse keeper wrote down the weather every evening. On the first day of October the wind came from the "
    "north, and he noted that",
    # a question with a worked answer
    "Question: A train leaves at 9:40 and arrives at 12:15. How long is the journey?\nAnswer: Let us count. From",
    # a list
    "Things to pack for a week in the mountains:\n1. A warm jacket\n2. Two pairs of wool socks\n3.",
    # structured data
    '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\n{"name": "Emmy", "born": 1882, "fields": [',
    # instructions
    "To make bread you need flour, water, salt and yeast. First, mix the flour and the salt in a large bowl. Then",
)


def read_prompts(path: Path) -> tuple[str, ...]:
    """The prompts of a text file.

    Raises UsageError: a file that cannot be read, or without a prompt.
    """
    lines = read_text(path, UsageError).splitlines()
    texts = ["\n".join(part) for part in _between(lines)] if SEPARATOR in lines else lines
    prompts = tuple(text for text in texts if text.strip())
    if not prompts:
        raise UsageError(f"{path}: there is no prompt in it", hint=f"one a line, or between lines that are {SEPARATOR}")
    return prompts


def _between(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The runs of lines between separators."""
    at = [-1, *(i for i, line in enumerate(lines) if line == SEPARATOR), len(lines)]
    yield from (lines[a + 1 : b] for a, b in pairwise(at))
