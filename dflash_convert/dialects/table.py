"""All dialects, and which of them a file is in.

In: the names of a file's keys and tensors, and its architecture. Out: a row, or None. The first row that fits counts:
within an architecture the rows with clues stand before the one without.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from dflash_convert.dialects.beellama import BEELLAMA
from dflash_convert.dialects.beellama_rewritten import BEELLAMA_REWRITTEN
from dflash_convert.dialects.buun_gemma import BUUN_GEMMA
from dflash_convert.dialects.dialect import Dialect
from dflash_convert.dialects.early_converter import EARLY_CONVERTER
from dflash_convert.dialects.ik_llama import IK_LLAMA
from dflash_convert.dialects.laguna import LAGUNA
from dflash_convert.dialects.lucebox import LUCEBOX
from dflash_convert.dialects.lucebox_deepseek import LUCEBOX_DEEPSEEK, LUCEBOX_DEEPSEEK_41
from dflash_convert.dialects.lucebox_gemma import LUCEBOX_GEMMA
from dflash_convert.dialects.mainline import MAINLINE
from dflash_convert.dialects.oxidize import OXIDIZE
from dflash_convert.dialects.prismml import PRISMML
from dflash_convert.dialects.pull_22105_early import PULL_22105_EARLY
from dflash_convert.dialects.pull_22105_late import PULL_22105_LATE

DIALECTS = (
    EARLY_CONVERTER, LAGUNA, BEELLAMA_REWRITTEN, PULL_22105_EARLY, PULL_22105_LATE, MAINLINE,
    OXIDIZE, IK_LLAMA, BEELLAMA,
    LUCEBOX,
    BUUN_GEMMA, LUCEBOX_GEMMA,
    LUCEBOX_DEEPSEEK, LUCEBOX_DEEPSEEK_41,
    PRISMML,
)  # fmt: skip


def recognise(architecture: str, names: Collection[str]) -> Dialect | None:
    """The dialect of a file with these keys and tensors, None for what is no draft."""
    return next((d for d in DIALECTS if d.architecture == architecture and _fits(d, names)), None)


def _fits(dialect: Dialect, names: Collection[str]) -> bool:
    def there(pattern: str) -> bool:
        wanted = pattern.replace("{a}", dialect.architecture)
        return any(fnmatchcase(name, wanted) for name in names)

    return (
        all(map(there, dialect.has))
        and (not dialect.any_of or any(map(there, dialect.any_of)))
        and not any(map(there, dialect.lacks))
    )
