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


class DflashError(Exception):
    """A failure that is the input's or the environment's, told in a line a user can act on."""

    exit_code = EXIT_ERROR

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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
