"""What a user types → a folder on this disk. The only module that talks to a network.

In: a folder, a `.gguf` file, `org/name[@revision]` or `hf://org/name[@revision][/folder]`. Out: a `Source`: where the
files lie, and the repo and commit they come from where these are known.

Promised: only the files in the table of `files` are fetched, so a target's weights never are, unless `with_weights`
asks. Cache, resume, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and HF_ENDPOINT are huggingface_hub's. When the Hub fails and the
cache holds every file wanted, the cache is used and `Source.notes` says so. Every other failure is a HubError, worded
in the table of `failures`.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dflash_convert.errors import ConfigError, HubError, UsageError
from dflash_convert.hub.failures import recognise
from dflash_convert.hub.files import FILES, INDEX, WEIGHT_INDEX, WEIGHTS, FileSet, What, lacking, patterns, wanted
from dflash_convert.json_file import Node, read_json

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

Advance = Callable[[int], object]  # called with the number of bytes that just came
Progress = Callable[[int, str], AbstractContextManager[Advance]]  # (bytes in all, label) → a running display
CLIENT = "dflash-convert"  # how the Hub hears of us


@dataclass(frozen=True)
class Source:
    """Files on this disk, and what is known of where they come from.

    root: the folder, or the `.gguf` file itself. repo: `org/name`. revision: what the Hub was asked for, None for a
    path. commit: 40 hex digits. folder: inside the repo, "" for its top. notes: what the user should hear.
    """

    root: Path
    repo: str | None = None
    revision: str | None = None
    commit: str | None = None
    folder: str = ""
    notes: tuple[str, ...] = ()

    @property
    def is_gguf(self) -> bool:
        return self.root.suffix.lower() == ".gguf"


@dataclass(frozen=True)
class HubRef:
    """A folder of a repo at a revision."""

    repo: str
    revision: str = "main"
    folder: str = ""

    def __str__(self) -> str:
        return f"{self.repo}{'' if self.revision == 'main' else '@' + self.revision}{self.folder and '/' + self.folder}"


NAME = r"\w[\w.-]*/\w[\w.-]*"
HUB_ID = re.compile(rf"(?P<repo>{NAME})(?:@(?P<revision>[^@\s]+))?")
HUB_URI = re.compile(
    rf"hf://(?!datasets/|spaces/|buckets/|kernels/)(?:models/)?(?P<repo>{NAME})"
    r"(?:@(?P<revision>refs/pr/\d+|[^@/\s]+))?(?:/(?P<folder>(?!.*\.\.)[^@]+?))?/?"
)
SNAPSHOT = re.compile(r".*/models--(?P<repo>[^/]+)/snapshots/(?P<commit>[0-9a-f]{40})(?:/(?P<folder>.+))?")


def silent(_total: int, _label: str) -> AbstractContextManager[Advance]:
    """The progress that shows nothing."""
    return nullcontext(lambda _n: None)


def resolve(ref: str, *, what: What, progress: Progress = silent) -> Source:
    """Find or fetch a draft or a target; FILES[what] says which of its files.

    A path that exists wins: `org/name` means the folder of that name where there is one; `hf://org/name` is always the
    Hub's. A folder is taken as it is; if it lies in a Hub cache, its repo and commit are read off the path.

    Raises UsageError: `ref` is neither a path nor a Hub id. HubError: the Hub cannot or will not give what is needed.
    """
    path = Path(ref)
    gguf = path.suffix.lower() == ".gguf"
    if path.is_dir() or (gguf and path.is_file()):
        return _local(path)
    if path.is_file():
        raise UsageError(f"{ref} is a file", hint=f"pass the folder that holds it ({path.parent}), or a .gguf file")
    found = HUB_URI.fullmatch(ref) or (None if gguf else HUB_ID.fullmatch(ref))
    if not found:
        raise UsageError(
            f"{ref}: there is no folder or .gguf file of that name, and it is not a Hub id",
            hint="a Hub id is org/name, org/name@revision or hf://org/name@revision/folder",
        )
    return _fetch(HubRef(**{k: v for k, v in found.groupdict().items() if v}), FILES[what], progress)


def with_weights(source: Source, tensors: Collection[str] = (), *, progress: Progress = silent) -> Source:
    """`source` with weights fetched too, from the same commit: all of them, or the shards that hold any of `tensors`.

    A source that was given as a path is returned as it is. A tensor that no index names is no error here: whether the
    checkpoint has it is for its reader to say.
    """
    if source.repo is None or source.revision is None:
        return source
    ref = HubRef(source.repo, source.commit or source.revision, source.folder)
    fetched = _fetch(ref, _shards(ref, tensors) or WEIGHTS, progress)
    return replace(source, root=fetched.root, notes=source.notes or fetched.notes)


def _shards(ref: HubRef, tensors: Collection[str]) -> tuple[FileSet, ...]:
    """A row for each shard that holds one of `tensors`; none if nothing was asked for or no index names any."""
    if not tensors:
        return ()
    where = _weight_map(_fetch(ref, (WEIGHT_INDEX,), silent).root)
    names = sorted({where[name] for name in tensors if name in where})
    return tuple(FileSet(name, (glob.escape(name),), "required", "holds a tensor asked for") for name in names)


def _local(path: Path) -> Source:
    found = SNAPSHOT.fullmatch(path.resolve().as_posix()) if path.is_dir() else None
    if not found:
        return Source(path)
    return Source(path, found["repo"].replace("--", "/"), None, found["commit"], found["folder"] or "")


def _fetch(ref: HubRef, files: tuple[FileSet, ...], progress: Progress) -> Source:
    """Download what is missing of `files`, or find them in the cache if the Hub fails."""
    notes: tuple[str, ...] = ()
    try:
        snapshot = _download(ref, files, progress)
    except HubError:
        raise
    except Exception as e:
        snapshot, notes = _stand_in(ref, files, e)
    return Source(snapshot / ref.folder, ref.repo, ref.revision, snapshot.name, ref.folder, notes)


def _stand_in(ref: HubRef, files: tuple[FileSet, ...], e: Exception) -> tuple[Path, tuple[str, ...]]:
    """The complete copy in the cache and a note on it, if `e` is a failure that such a copy may stand in for."""
    failure = recognise(e)
    if failure is None:
        raise e
    told = failure.tell(e, _where(ref))
    snapshot = None if failure.cache == "no" else _cached(ref, files)
    if snapshot is None:
        raise told from None  # the client's own text may quote a header, and with it the token
    note = f"{told.message}; using the copy of {ref} in the cache (commit {snapshot.name[:12]})"
    return snapshot, (note,) if failure.cache == "note" else ()


def _download(ref: HubRef, files: tuple[FileSet, ...], progress: Progress) -> Path:
    """The snapshot folder, with all of `files` in it. Nothing is fetched if the listing lacks a required one."""
    from huggingface_hub import HfApi, constants, snapshot_download, try_to_load_from_cache

    where, timeout = _where(ref), constants.HF_HUB_ETAG_TIMEOUT
    api = HfApi(endpoint=where["endpoint"], library_name=CLIENT)
    info = api.model_info(ref.repo, revision=ref.revision, files_metadata=True, timeout=timeout)
    listed = {s.rfilename: s for s in info.siblings or ()}
    if missing := lacking(listed, ref.folder, files):
        raise HubError(f"{ref} has no {missing}", hint=f"{where['page']}/tree/{ref.revision} shows what it has")
    fresh = [
        listed[name]
        for name in wanted(listed, ref.folder, files)
        if not isinstance(try_to_load_from_cache(ref.repo, name, revision=info.sha), str)
    ]
    with progress(sum(s.size or 0 for s in fresh), f"downloading {ref}") as advance:
        options: dict[str, Any] = {
            "tqdm_class": _counter(advance),
            "library_name": CLIENT,
            **patterns(ref.folder, files),
        }
        snapshot = snapshot_download(ref.repo, revision=ref.revision, endpoint=where["endpoint"], **options)
    _check_digests(ref, Path(snapshot), fresh)
    return Path(snapshot)


def _cached(ref: HubRef, files: tuple[FileSet, ...]) -> Path | None:
    """The snapshot folder in the cache, if it holds all of `files` and every shard that its index names."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        options = patterns(ref.folder, files)
        snapshot = Path(snapshot_download(ref.repo, revision=ref.revision, local_files_only=True, **options))
    except LocalEntryNotFoundError:
        return None
    present = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]
    shards = {str(PurePosixPath(ref.folder, name)) for name in _weight_map(snapshot / ref.folder).values()}
    whole = not set(WEIGHTS) <= set(files) or shards <= set(present)
    return snapshot if whole and not lacking(present, ref.folder, files) else None


def _weight_map(root: Path) -> dict[str, str]:
    """Tensor → shard, by every index in `root`. An unreadable index says nothing here; its reader will complain."""
    found: dict[str, str] = {}
    for path in sorted(root.glob(INDEX)):
        try:
            weight_map = Node(read_json(path), f"{path.name}:").get("weight_map").object()
        except ConfigError:
            continue
        found |= {name: file for name, file in weight_map.items() if isinstance(file, str)}
    return found


def _counter(advance: Advance) -> type[Any]:
    """The client's progress bar, drawing nothing: its count of bytes written goes to `advance`."""
    from huggingface_hub.utils.tqdm import tqdm

    class Counter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts_bytes = kwargs.get("name") == "huggingface_hub.snapshot_download"
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self.counts_bytes and n:
                advance(int(n))

    return Counter


def _check_digests(ref: HubRef, snapshot: Path, fresh: Iterable[RepoSibling]) -> None:
    """Compare large files that just came with the sha256 the Hub lists; a damaged one is removed."""
    for sibling in fresh:
        path = snapshot / sibling.rfilename
        if sibling.lfs is None or not path.is_file():
            continue
        with path.open("rb") as f:
            digest = hashlib.file_digest(f, "sha256").hexdigest()
        if digest != sibling.lfs.sha256:
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise HubError(
                f"{ref}: {sibling.rfilename} came damaged: sha256 {digest[:12]}…, not {sibling.lfs.sha256[:12]}…",
                hint="it was removed: run the command again to fetch it afresh",
            )


def _where(ref: HubRef) -> dict[str, str]:
    """What messages say of a place. HF_ENDPOINT is read when it is needed, not when the client is imported."""
    from huggingface_hub import constants

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
    page = f"{endpoint}/{ref.repo}"
    return {"ref": str(ref), "repo": ref.repo, "revision": ref.revision, "page": page, "endpoint": endpoint,
            "cache": str(constants.HF_HUB_CACHE)}  # fmt: skip
