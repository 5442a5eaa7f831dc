"""An opened GGUF in a dialect → the plan of mainline's file. What the file does not say is asked for, never guessed.

Promised: the same draft. Keys are renamed and retyped, taps counted as mainline counts them, tensors renamed; norms
become F32, every other tensor keeps its type and its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gguf.constants import GGMLQuantizationType, GGUFValueType

from dflash_convert.dialects.dialect import MASK_KEY, REQUIRED, Dialect
from dflash_convert.dialects.mainline import MAINLINE, NEEDED, TENSORS, TYPES
from dflash_convert.dialects.migrations import MIGRATIONS, REFUSED
from dflash_convert.dialects.spacing import evenly_spaced
from dflash_convert.dialects.table import recognise
from dflash_convert.errors import GGUFError
from dflash_convert.gguf_io.layout import Note, Plan, PlannedTensor
from dflash_convert.gguf_io.reader import KV, GGUFFile, TensorInfo, odd_bytes
from dflash_convert.migration.source import CONVERT, Source
from dflash_convert.migration.values import is_i32, is_u32, key_value, whole
from dflash_convert.migration.windows import Windows, windows_of

PREFIX = "dflash."
WIDENED = ("F16", "BF16")
MOST_LAYERS = 1 << 16
NO_VOCAB = (None, "none", "no_vocab")


def plan_migration(gguf: GGUFFile, *, window: int | None = None, layer_types: str | None = None) -> Plan:
    """What migrating `gguf` will write; no tensor data is read.

    window, layer_types ("S,S,F", or one letter for all): what the file does not say of its sliding layers. Raises
    GGUFError: mainline's already, no draft, a dialect that is not migrated, a file that does not say what is needed.
    """
    source = _source(gguf)
    tensors = tuple(_tensors(source))
    _check_tensors(source, tensors)
    _check_tokenizer(source)
    windows = windows_of(source, window, layer_types)
    keys = tuple(_keys(source, windows))
    _check_keys(source, keys)
    return Plan(keys, tensors, tuple(_notes(source, keys, tensors)))


def _source(gguf: GGUFFile) -> Source:
    dialect = recognise(gguf.architecture, {*gguf.kv, *gguf.tensors})
    name = gguf.path.name
    if dialect is None:
        raise GGUFError(f"{name} is no draft in a known format (architecture {gguf.architecture or 'missing'})")
    if dialect == MAINLINE:
        raise GGUFError(f"{name} is in mainline format already", hint="dflash-convert inspect shows what it says")
    rules = next((m for m in MIGRATIONS if m.dialect == dialect.name), None)
    if rules is None:
        raise GGUFError(f"{name} ({dialect.title}): {REFUSED[dialect.name]}", hint=CONVERT)
    source = Source(gguf, dialect, rules)
    _check_whole(source)
    for quirk in rules.quirks:
        for reason in quirk({*gguf.kv, *gguf.tensors}):
            source.refuse(reason)
    return source


def _check_whole(source: Source) -> None:
    if (whole(source.gguf.get("split.count")) or 1) > 1:
        source.refuse("it is a part of a split model", "join them first: llama-gguf-split --merge FIRST_PART OUT.gguf")
    for what in odd_bytes(source.gguf):
        source.refuse(what, "download or write it again")


# -- tensors -------------------------------------------------------------------------------------------------------


def _tensors(source: Source) -> Iterator[PlannedTensor]:
    seen: dict[str, str] = {}
    for info in source.gguf.tensors.values():
        name = _renamed(source.dialect, info.name)
        if name in seen:
            source.refuse(f"{seen[name]} and {info.name} would both become {name}")
        seen[name] = info.name
        ggml_type = _type(source, name, info)
        change = "" if ggml_type == info.type else f"{info.type.name} → F32"
        yield PlannedTensor(name, info.shape, ggml_type, source=info.name, transform=change)


def _renamed(dialect: Dialect, name: str) -> str:
    """Mainline's name. A pattern's `*` stands for the same text on both sides."""
    for old, new in dialect.renamed:
        if fnmatchcase(name, old):
            head, _, tail = old.partition("*")
            return new.replace("*", name[len(head) : len(name) - len(tail)]) if "*" in old else new
    return name


def _type(source: Source, name: str, info: TensorInfo) -> GGMLQuantizationType:
    if not name.endswith("norm.weight") or info.type.name == "F32":
        return info.type
    if info.type.name not in WIDENED:
        source.refuse(f"cannot be migrated: the norm {info.name} holds {info.type.name}, mainline takes F32")
    return GGMLQuantizationType.F32


def _check_tensors(source: Source, tensors: Sequence[PlannedTensor]) -> None:
    names = {t.name: None for t in tensors}
    layers = range(min(source.layer_count(), len(tensors)))
    for name in names:
        if not any(fnmatchcase(name, pattern) for pattern in TENSORS):
            source.refuse(f"cannot be migrated: mainline's graph has no place for {name}")
        if name.startswith("blk.") and name.split(".")[1] not in map(str, layers):
            source.refuse(f"the tensor {name} is of none of its {source.layer_count()} layers")
    needed = {n.replace("blk.0.", f"blk.{i}.") for n in NEEDED for i in layers}
    if missing := sorted(needed - names.keys()):
        source.refuse(f"the tensor {missing[0]} is missing")


# -- keys ----------------------------------------------------------------------------------------------------------


def _keys(source: Source, windows: Windows) -> Iterator[KV]:
    """In the file's order, the mask token last; what is asked of the user stands behind the taps."""
    gguf, prefix = source.gguf, source.gguf.architecture + "."
    _check_required(source)
    placed: dict[str, Sequence[KV]] = {
        **dict.fromkeys(map(source.full, _masks(source)), ()),
        **dict.fromkeys((source.full("{a}." + key) for key in windows.replaced), ()),
        **_once(source, [t.key for t in source.dialect.taps], (_taps(source), *windows.added)),
        **_once(source, source.dialect.block_size, (_block_size(source),)),
        "general.architecture": (KV("general.architecture", GGUFValueType.STRING, "dflash", source="mainline"),),
    }
    for kv in gguf.kv.values():
        below = kv.key.removeprefix(prefix)
        if kv.key in placed:
            yield from placed[kv.key]
        elif below == kv.key:
            yield replace(kv, source=gguf.path.name)
        elif not any(fnmatchcase(below, pattern) for pattern in source.rules.dropped):
            yield key_value(kv, below.removeprefix(PREFIX))
    yield _mask(source)


def _once(source: Source, patterns: Sequence[str], rows: Sequence[KV]) -> dict[str, Sequence[KV]]:
    """Which rows take the place of each of the keys: the first that is there is replaced, the others go."""
    there = [key for key, _ in source.given(patterns)]
    return {key: rows if i == 0 else () for i, key in enumerate(there)}


def _check_keys(source: Source, keys: Sequence[KV]) -> None:
    count = Counter(kv.key for kv in keys)
    for key in (key for key, n in count.items() if n > 1):
        both = " and ".join(kv.source for kv in keys if kv.key == key)
        source.refuse(f"cannot be known: {both} would both become {key}")


def _check_required(source: Source) -> None:
    for key in (*REQUIRED, "rope.freq_base"):
        if source.full("{a}." + key) not in source.gguf.kv:
            source.refuse(f"cannot be known: {source.full('{a}.' + key)} is missing")
    features = source.full("{a}." + source.rules.features)
    if features in source.gguf.kv and source.gguf.get(features) != _fusion_width(source):
        source.refuse(
            f"{features} is {source.gguf.get(features)}, but fc.weight takes {_fusion_width(source)} features"
        )


def _fusion_width(source: Source) -> int:
    names = [n for n in source.gguf.tensors if _renamed(source.dialect, n) == "fc.weight"]
    return source.gguf.tensors[names[0]].row_length


def _taps(source: Source) -> KV:
    found = [(source.full(row.key), row) for row in source.dialect.taps if source.full(row.key) in source.gguf.kv]
    if not found:
        source.refuse(f"cannot be known: no taps ({source.full(source.dialect.taps[0].key)})")
    key, row = found[0]
    ids = source.gguf.get(key)
    if not isinstance(ids, Sequence) or not ids or not all(is_i32(i) and 0 <= i < MOST_LAYERS for i in ids):
        source.refuse(f"{key} is {ids!r}, not a list of layers")
    n_embd = whole(source.gguf.get(source.full("{a}.embedding_length"))) or 0
    if len(ids) * n_embd != _fusion_width(source):
        source.refuse(f"{key} has {len(ids)} taps of width {n_embd}, fc.weight takes {_fusion_width(source)} features")
    _check_spacing(source, key, list(ids), row.shift)
    shifted = [i + row.shift for i in ids]
    text = f"{key} + 1" if row.shift else key
    return KV(PREFIX + "target_layers", GGUFValueType.ARRAY, shifted, GGUFValueType.INT32, text)


def _check_spacing(source: Source, key: str, ids: list[int], shift: int) -> None:
    """Refuse taps whose even spacing says that they are counted the other way than the dialect counts them."""
    if not shift and evenly_spaced(ids):
        source.refuse(
            f"cannot be known: {key} {ids} is evenly spaced, as checkpoint ids are; here they should be 1 more"
        )
    if shift and "markov_w1.weight" not in source.gguf.tensors and evenly_spaced([i - 1 for i in ids]):
        source.refuse(f"cannot be known: {key} {ids} is evenly spaced but for 1 too many, as if shifted already")


def _block_size(source: Source) -> KV:
    key, size = _agreed(source, "block size", source.dialect.block_size)
    return KV(PREFIX + "block_size", GGUFValueType.UINT32, size, source=key)


def _masks(source: Source) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*source.dialect.mask, MASK_KEY)))


def _mask(source: Source) -> KV:
    key, token = _agreed(source, "mask token", _masks(source))
    if token >= len(source.gguf.get("tokenizer.ggml.tokens")):
        source.refuse(f"the mask token {token} lies outside the vocabulary")
    return KV(MASK_KEY, GGUFValueType.UINT32, token, source=key)


def _agreed(source: Source, what: str, keys: Sequence[str]) -> tuple[str, int]:
    """The one number that all of the keys hold."""
    found = source.given(keys)
    if not found:
        source.refuse(f"cannot be known: no {what} ({' or '.join(map(source.full, keys))})")
    key, value = found[0]
    if not is_u32(value):
        source.refuse(f"{key} is {value!r}, not a {what}")
    if any(other != value for _, other in found):
        source.refuse(f"cannot be known: two values for the {what}: " + ", ".join(f"{k} = {v}" for k, v in found))
    return key, value


def _check_tokenizer(source: Source) -> None:
    tokens = source.gguf.get("tokenizer.ggml.tokens")
    missing = not isinstance(tokens, Sequence) or isinstance(tokens, str)
    if missing or source.gguf.get("tokenizer.ggml.model") in NO_VOCAB:
        source.refuse("cannot be migrated yet: it carries no tokenizer (tokenizer.ggml.*), mainline needs the target's")


# -- notes ---------------------------------------------------------------------------------------------------------


def _notes(source: Source, keys: Sequence[KV], tensors: Sequence[PlannedTensor]) -> Iterator[Note]:
    yield Note("info", f"{source.dialect.title} → mainline")
    taps = _taps(source)
    yield Note("info", f"taps: {taps.source} → dflash.target_layers {taps.value}")
    if taps.value != sorted(set(taps.value)):
        yield Note("warning", "the taps are not in ascending order; they are kept in theirs, on which fc depends")
    if widened := [t.name for t in tensors if t.transform]:
        yield Note("info", f"{len(widened)} norms widened to F32")
    if dropped := [key for key in map(source.full, source.dropped) if key in source.gguf.kv]:
        yield Note("info", f"dropped, as mainline has no use for it: {', '.join(dropped)}")
    if unknown := [k.key for k in keys if k.key.startswith(PREFIX) and k.key.removeprefix(PREFIX) not in TYPES]:
        yield Note("warning", f"kept, though mainline does not know it: {', '.join(unknown)}")
    for text in source.rules.notes:
        yield Note("warning", text)
