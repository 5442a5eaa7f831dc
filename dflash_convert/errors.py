"""Every failure a user can meet, as one small tree.

    DflashError                 could not run: exit code 2
    ├── UsageError              flags that contradict each other or name nothing
    ├── HubError                a repo or file that cannot be had: gated, missing, offline, rate-limited
    ├── CheckpointError         safetensors, shards, index, shapes, NaN
    ├── ConfigError             config.json: missing, contradictory or unsupported values
    ├── VocabError              tokenizer files that cannot become `tokenizer.ggml.*`
    ├── GGUFError               a GGUF that is damaged, or not what the command needs
    └── OutputError             an output that exists, or a disk that is full

A message is one line: what, where, which values. `hint` is one more line: something to do. "The file is wrong" as the
*result* of a check is no exception (that is exit code 1, a value in the report), and a bug of ours is any other
exception (exit code 70).
"""

from __future__ import annotations

EXIT_OK, EXIT_NO, EXIT_ERROR, EXIT_BUG, EXIT_INTERRUPTED = 0, 1, 2, 70, 130


LONGEST = 2000  # characters of a message


def one_line(text: str) -> str:
    """A message that any terminal can show, whatever a damaged file's names hold: escapes for what is not printable."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: LONGEST + 1])
    return shown if len(text) <= LONGEST else shown[:LONGEST] + "…"


class DflashError(Exception):
    """A failure that is the input's or the environment's, told in a line a user can act on."""

    exit_code = EXIT_ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(one_line(message))
        self.message = one_line(message)
        self.hint = None if hint is None else one_line(hint)


class UsageError(DflashError):
    """Options that contradict each other, or an argument that names nothing."""


class HubError(DflashError):
    """A Hub repo or file that cannot be had."""


class CheckpointError(DflashError):
    """A checkpoint whose files, tensors or shapes are not what they must be."""


class ConfigError(DflashError):
    """A config.json with missing, contradictory or unsupported values."""


class VocabError(DflashError):
    """Tokenizer files that cannot become `tokenizer.ggml.*` keys."""


class GGUFError(DflashError):
    """A GGUF file that is damaged, or not what the command needs."""


class OutputError(DflashError):
    """An output that exists already, or cannot be written."""
