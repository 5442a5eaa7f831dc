"""What a model file is and says of itself: a GGUF → an `Inspection`. Nothing is judged against an original here."""

from dflash_convert.inspection.run import inspect_gguf
from dflash_convert.inspection.values import Inspection

__all__ = ["Inspection", "inspect_gguf"]
