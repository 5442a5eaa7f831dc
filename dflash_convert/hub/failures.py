"""What huggingface_hub raises → what the user reads: one table.

In: an exception out of the Hub client. Out: the row of FAILURES that recognises it, or None for a bug of ours; the row
makes the HubError. Classes are recognised by the names of their bases, because the HTTP library behind huggingface_hub
changes with its version. No text of the client's is quoted but `detail`, and that with anything like a token cut out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_convert.errors import HubError

SECRET = re.compile(r"hf_\w+|(?i:bearer)\s+\S+")


@dataclass(frozen=True)
class Failure:
    """One way to fail: how it is recognised, and what the user reads.

    kinds: class names, one of which is among the exception's bases. statuses: HTTP. token: whether one was sent.
    text: part of the exception's message. cache: whether a complete copy in the cache may stand in for the Hub, and
    whether that is worth a note. message and hint: with the fields of `tell` in braces.
    """

    kinds: tuple[str, ...]
    message: str
    hint: str
    statuses: Collection[int] = ()
    token: bool | None = None
    text: str = ""
    cache: Literal["no", "quiet", "note"] = "no"

    def matches(self, e: BaseException) -> bool:
        return (
            any(base.__name__ in self.kinds for base in type(e).__mro__)
            and (not self.statuses or _status(e) in self.statuses)
            and (self.token is None or self.token == _sent_token(e))
            and self.text in str(e)
        )

    def tell(self, e: BaseException, where: Mapping[str, str]) -> HubError:
        """The error to raise. where: values for {ref}, {repo}, {revision}, {page}, {endpoint} and {cache}."""
        cause = _root(e)
        fields = {**where, "status": _status(cause), "detail": _detail(cause)}
        return HubError(self.message.format(**fields), hint=self.hint.format(**fields))


HTTP = ("HfHubHTTPError",)
# The first row that matches speaks.
FAILURES: tuple[Failure, ...] = (
    Failure(("OfflineModeIsEnabled",), "{ref} is not complete in the cache {cache}, and HF_HUB_OFFLINE is set",
            "unset HF_HUB_OFFLINE, or pass a folder that holds the files", cache="quiet"),
    Failure(("LocalProtocolError", "UnicodeEncodeError"), "the token holds characters that no HTTP header can carry",
            "copy it again into HF_TOKEN, or run `hf auth login`"),
    Failure(("GatedRepoError",), "{repo} is gated: its terms must be accepted first",
            "accept them at {page}, then set HF_TOKEN or run `hf auth login`"),
    Failure(("DisabledRepoError",), "{repo} has been disabled on the Hub", "{page} may say why"),
    Failure(HTTP, "{endpoint} refuses the token (401): it is wrong or has expired",
            "set HF_TOKEN to a valid token, or run `hf auth login`", statuses=(401,), token=True),
    Failure(HTTP, "{endpoint} shows no repo {repo} without a token (401), and there is no folder of that name",
            "check the name; if the repo is private or gated, set HF_TOKEN or run `hf auth login`", statuses=(401,)),
    Failure(("RevisionNotFoundError",), "{repo} has no revision {revision}",
            "{page}/commits/main lists the commits of main, which is the default"),
    Failure(("RemoteEntryNotFoundError",), "{ref}: a file that {endpoint} lists is not there (404)",
            "the repo may be changing: try again in a minute"),
    Failure(("RepositoryNotFoundError",), "there is no repo {repo} at {endpoint}, and no folder of that name",
            "check the spelling; a private repo needs a token that may read it (HF_TOKEN)"),
    Failure(HTTP, "{endpoint} limits the rate of requests (429)",
            "wait a few minutes; with HF_TOKEN set the limit is higher", statuses=(429,), cache="note"),
    Failure(HTTP, "{repo}: access is forbidden (403)",
            "the token may lack the right to read this repo: check its permissions, or set HF_TOKEN to another",
            statuses=(403,)),
    Failure(HTTP, "{endpoint} is in trouble: it answers {status}", "try again later",
            statuses=(408, *range(500, 600)), cache="note"),
    Failure(HTTP, "{ref}: {endpoint} answers {status}", "check the name, and HF_ENDPOINT if it is set"),
    Failure(("FileMetadataError", "JSONDecodeError", "InvalidURL"), "{endpoint} does not answer as a Hub does",
            "check HF_ENDPOINT and the proxy settings"),
    Failure(("RequestError", "ConnectionError", "TimeoutError"), "{endpoint} cannot be reached: {detail}",
            "check the connection and the proxy settings, or pass a folder that holds the files", cache="note"),
    Failure(("XetDownloadError", "XetAuthenticationError", "XetObjectNotFoundError"),
            "{ref}: the download failed: {detail}", "try again, or set HF_HUB_DISABLE_XET=1 to use plain HTTP"),
    Failure(("HFValidationError",), "{repo} is no valid Hub id, and there is no folder of that name",
            "the form is org/name"),
    Failure(("OSError",), "a file of {ref} came with the wrong size", "try again; files that came whole are kept",
            text="Consistency check failed"),
    Failure(("OSError",), "{ref} cannot be stored in {cache}: {detail}",
            "free some space there, or set HF_HOME to another disk"),
)  # fmt: skip


def recognise(e: BaseException) -> Failure | None:
    """The row that speaks for `e`, None if no row does."""
    cause = _root(e)
    return next((row for row in FAILURES if row.matches(cause)), None)


def _root(e: BaseException) -> BaseException:
    """What lies behind "not found in the cache": the client looks there last, and chains why it had to."""
    while type(e).__name__ in ("LocalEntryNotFoundError", "IncompleteSnapshotError") and e.__cause__ is not None:
        e = e.__cause__
    return e


def _status(e: BaseException) -> int | None:
    return getattr(getattr(e, "response", None), "status_code", None)


def _sent_token(e: BaseException) -> bool:
    request: Any = getattr(getattr(e, "response", None), "request", None)
    return "authorization" in getattr(request, "headers", ())


def _detail(e: BaseException) -> str:
    """The exception in a line, without secrets."""
    first = next((line for line in str(e).splitlines() if line.strip()), "no details")
    return f"{type(e).__name__}: {SECRET.sub('***', first.strip())}"
