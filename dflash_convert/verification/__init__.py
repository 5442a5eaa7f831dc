"""Prove a draft GGUF against the checkpoint it was made from, offline, on a CPU.

    run.verify ─► structure ─► tensors ─► forward ─► acceptance ─► report.Report ─► render.lines
                  expect.py    names.py   models.py  prompts.py
                  tokens.py    bounds.py

The converter's tables are not used here, on purpose: what the file must say is derived again from the raw config.json
and tokenizer.json, so that a mistake in the mapping shows as a difference instead of being confirmed by itself.
"""

from dflash_convert.verification.report import LEVELS, Check, LevelResult, Report
from dflash_convert.verification.run import verify

__all__ = ["LEVELS", "Check", "LevelResult", "Report", "verify"]
