"""What a model is and says of itself: a GGUF → an `Inspection`, a checkpoint → a `CheckpointInspection`.

Nothing is judged against an original here.
"""

from dflash_convert.inspection.checkpoint import inspect_checkpoint
from dflash_convert.inspection.run import inspect_gguf, inspect_path
from dflash_convert.inspection.values import CheckpointInspection, Inspection

__all__ = ["CheckpointInspection", "Inspection", "inspect_checkpoint", "inspect_gguf", "inspect_path"]
