"""A Hub on loopback, for tests with the real huggingface_hub client.

It serves what the client asks when it reads a model repo: the info and tree endpoints, and HEAD/GET of `resolve` URLs
with ETag, X-Repo-Commit, X-Linked-* headers and byte ranges. Files that end in `.safetensors` are large files: they are
served by a redirect to another host name (localhost, where the Hub's own is 127.0.0.1), as a CDN would.

    with StubHub() as hub:
        sleeps = lead_client_to(hub, tmp_path, monkeypatch)
        hub.add_repo("org/name", {"config.json": b"{}"})
        hub.add_fault(Fault("*/config.json", status=500, times=1))
        ...
        assert hub.paths("GET") == [...]
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Repo:
    """A repo at one commit. revisions: the names under which that commit is found. tokens: who may enter, () = all."""

    name: str
    files: Mapping[str, bytes]
    commit: str
    revisions: tuple[str, ...]
    gated: bool
    private: bool


@dataclass(frozen=True)
class Fault:
    """What to do instead of a right answer, for requests whose path matches `path`.

    method: "" for any. status: an HTTP error with `headers`. cut: the answer is right, but the connection is closed
    after that many bytes. body: these bytes instead of the right ones. times: how often, then never again.
    """

    path: str
    method: str = ""
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    body: bytes | None = None
    times: int = 1_000_000


@dataclass(frozen=True)
class Request:
    """A request as it came in. headers: names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    host: str


class StubHub:
    """The server; a context manager. `requests` is the log of everything that was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._repos: dict[str, Repo] = {}
        self._faults: list[list[Any]] = []  # [Fault, times left]
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = False  # join them: no socket outlives the test
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> StubHub:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        close_session()  # the client's open connections end before the server does
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add_repo(
        self,
        repo: str,
        files: Mapping[str, bytes],
        *,
        commit: str = COMMIT,
        revisions: tuple[str, ...] = ("main",),
        gated: bool = False,
        private: bool = False,
    ) -> None:
        """Serve `files` (path → content) as `repo`. gated: all may list, none may read. private: a token is needed."""
        self._repos[repo] = Repo(repo, files, commit, revisions, gated, private)

    def add_fault(self, fault: Fault) -> None:
        """Misbehave from now on; of several faults that match a request the oldest acts."""
        self._faults.append([fault, fault.times])

    def paths(self, method: str) -> list[str]:
        """The paths asked for with `method`, in order."""
        return [r.path for r in self.requests if r.method == method]

    def fault(self, request: Request) -> Fault | None:
        """Log `request`, and take the fault that is due for it."""
        with self._lock:
            self.requests.append(request)
            for entry in self._faults:
                fault, left = entry
                if left and fault.method in ("", request.method) and fnmatchcase(request.path, fault.path):
                    entry[1] -= 1
                    return fault if isinstance(fault, Fault) else None
        return None

    def find(self, path: str) -> tuple[Repo, str] | None:
        """The repo that a path begins with, and the rest of the path."""
        for name, repo in self._repos.items():
            if path == name or path.startswith(name + "/"):
                return repo, path[len(name) + 1 :]
        return None


def lead_client_to(hub: StubHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let huggingface_hub know nothing but `hub` and an empty cache in `folder`.

    Returns the waits (in seconds) that are asked for from now on, none of which is kept. The client reads its
    environment when it is imported, hence the constants.
    """
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    sleeps: list[float] = []
    monkeypatch.setattr(time, "sleep", sleeps.append)
    return sleeps


class _Handler(BaseHTTPRequestHandler):
    hub: StubHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """The log is `StubHub.requests`."""

    def _answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        path = unquote(urlsplit(self.path).path)
        fault = self.hub.fault(Request(self.command, path, headers, headers.get("host", "").partition(":")[0]))
        if fault and fault.status:
            self._send(fault.status, b"", fault.headers)
        else:
            self._route(path.lstrip("/"), fault)

    def _route(self, path: str, fault: Fault | None) -> None:
        kind, _, rest = path.partition("/")
        if kind == "cdn":
            return self._cdn(rest, fault)
        found = self.hub.find(rest.removeprefix("models/") if kind == "api" else path)
        if found is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        repo, rest = found
        if repo.private and "Authorization" not in self.headers:
            return self._send(401, b"", {"X-Error-Message": "Invalid username or password."})
        verb, _, rest = rest.partition("/")
        revision = next((r for r in (*repo.revisions, repo.commit) if rest == r or rest.startswith(r + "/")), None)
        if revision is None:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if verb == "resolve":
            return self._resolve(repo, rest[len(revision) + 1 :], fault)
        return self._json(info(repo) if verb == "revision" else tree(repo), fault)

    def _resolve(self, repo: Repo, name: str, fault: Fault | None) -> None:
        if repo.gated:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {repo.name}"})
        if name not in repo.files:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repo.commit})
        data = repo.files[name]
        headers = {"X-Repo-Commit": repo.commit, "ETag": f'"{blob_id(data)}"', "Accept-Ranges": "bytes"}
        if not is_large(name):
            return self._bytes(data, headers, fault)
        linked = {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        location = f"http://localhost:{self.hub.port}/cdn/{repo.name}/{name}"
        return self._send(302, b"", {**headers, **linked, "Location": location})

    def _cdn(self, path: str, fault: Fault | None) -> None:
        found = self.hub.find(path)
        assert found is not None
        repo, name = found
        self._bytes(repo.files[name], {"Accept-Ranges": "bytes"}, fault)

    def _bytes(self, data: bytes, headers: Mapping[str, str], fault: Fault | None) -> None:
        data = data if fault is None or fault.body is None else fault.body
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        ranged = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        self._send(206 if start else 200, data[start:], {**headers, **ranged}, fault.cut if fault else None)

    def _json(self, value: object, fault: Fault | None) -> None:
        body = json.dumps(value).encode() if fault is None or fault.body is None else fault.body
        self._send(200, body, {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:cut])


def is_large(name: str) -> bool:
    return name.endswith(".safetensors")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob_id(data: bytes) -> str:
    """Git's id of a blob with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def info(repo: Repo) -> dict[str, Any]:
    """The answer of `/api/models/{repo}/revision/{revision}?blobs=True`."""
    large = {name: {"sha256": sha256(d), "size": len(d), "pointerSize": 134} for name, d in repo.files.items()}
    siblings = [
        {
            "rfilename": name,
            "size": len(data),
            "blobId": blob_id(data),
            **({"lfs": large[name]} if is_large(name) else {}),
        }
        for name, data in repo.files.items()
    ]
    return {"id": repo.name, "sha": repo.commit, "private": repo.private, "gated": repo.gated, "siblings": siblings}


def tree(repo: Repo) -> list[dict[str, Any]]:
    """The answer of `/api/models/{repo}/tree/{revision}?recursive=True`."""
    large = {name: {"oid": sha256(d), "size": len(d), "pointerSize": 134} for name, d in repo.files.items()}
    return [
        {"type": "file", "path": name, "size": len(data), "oid": blob_id(data),
         **({"lfs": large[name]} if is_large(name) else {})}
        for name, data in repo.files.items()
    ]  # fmt: skip
