"""A checkpoint's folder, model card and origin → the `general.*` keys.

Name, licence, authors, base models and sampling defaults are gathered by the gguf package, by llama.cpp's own rules.
Where the origin is known it is written too: `general.source.repo_url`, `.url` (folder, at the commit) and `.commit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gguf import GGUFWriter
from gguf.constants import GGUFValueType as V
from gguf.metadata import Metadata
from gguf.utility import size_label

from dflash_convert.gguf_io.reader import KV
from dflash_convert.json_file import read_json

# generation_config.json → general.sampling.*
SAMPLING: Mapping[str, tuple[str, V]] = MappingProxyType({
    "top_k": ("top_k", V.INT32), "top_p": ("top_p", V.FLOAT32), "min_p": ("min_p", V.FLOAT32),
    "temperature": ("temp", V.FLOAT32), "repetition_penalty": ("penalty_repeat", V.FLOAT32),
})  # fmt: skip
READ: Mapping[V, type] = MappingProxyType({V.INT32: int, V.FLOAT32: float})


def general_rows(
    root: Path, arch: str, n_weights: int, repo: str | None, commit: str | None, folder: str = ""
) -> tuple[KV, ...]:
    """The `general.*` keys of a model, in llama.cpp's order. n_weights: number of weights, for the size label."""
    card, generation = _model_card(root), _json(root, "generation_config.json")
    name = Path((repo or str(root.resolve())).rstrip("/")).name
    meta = Metadata.apply_metadata_heuristic(Metadata(), card, _json(root, "config.json"), Path(name), n_weights)
    meta.name = meta.name or name
    meta.size_label = meta.size_label or size_label(n_weights, n_weights, 0, 0)
    gathered = GGUFWriter(path=None, arch=arch)
    meta.set_gguf_meta_model(gathered)
    head = [
        KV("general.architecture", V.STRING, arch, source="the family"),
        KV("general.type", V.STRING, "model", source="constant"),
        *_sampling_rows(generation),
    ]
    rest = [
        KV(key, v.type, v.value, v.sub_type, "model card, folder name")
        for key, v in gathered.kv_data[0].items()
        if key != "general.architecture"
    ]
    return (*head, *rest, *source_rows(repo, commit, folder))


def source_rows(repo: str | None, commit: str | None, folder: str = "") -> tuple[KV, ...]:
    """Where the checkpoint came from, as far as it is known."""
    if repo is None:
        return ()
    url = f"https://huggingface.co/{repo}"
    rows = [KV("general.source.repo_url", V.STRING, url, source="Hub")]
    if commit:
        rows.append(
            KV("general.source.url", V.STRING, "/".join(filter(None, (url, "tree", commit, folder))), source="Hub")
        )
        rows.append(KV("general.source.commit", V.STRING, commit, source="Hub"))
    return tuple(rows)


def base_model(root: Path) -> str | None:
    """What the model card says the checkpoint was made from."""
    found = _model_card(root).get("base_model")
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, str) else None


def _model_card(root: Path) -> dict[str, Any]:
    """The front matter of README.md. It is written by hand; where it is broken the weights are none the worse."""
    try:
        card: dict[str, Any] = Metadata.load_model_card(root)
    except Exception:
        return {}
    return card


def _json(root: Path, name: str) -> dict[str, Any]:
    return read_json(root / name) if (root / name).is_file() else {}


def _sampling_rows(generation: Mapping[str, Any]) -> list[KV]:
    numbers = {k: v for k, v in generation.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return [
        KV(f"general.sampling.{key}", vtype, READ[vtype](numbers[name]), source="generation_config.json")
        for name, (key, vtype) in SAMPLING.items()
        if name in numbers
    ]
