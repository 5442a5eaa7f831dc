"""How Hub failures are told, and when the cache stands in: the real huggingface_hub client, a Hub on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from huggingface_hub import constants
from stub_hub import COMMIT, Fault, StubHub, lead_client_to, sha256

from dflash_convert.errors import EXIT_ERROR, HubError
from dflash_convert.hub.client import Source, resolve, with_weights
from dflash_convert.hub.failures import FAILURES, recognise

TOKEN = "hf_" + "s3cret" * 5
WEIGHTS = bytes(range(256))
DRAFT = {
    "config.json": b'{"block_size": 8}',
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": WEIGHTS,
    "more.safetensors": WEIGHTS[::-1],
    "model.safetensors.index.json": b'{"weight_map": {"fc": "model.safetensors", "norm": "more.safetensors"}}',
}


@pytest.fixture
def hub() -> Iterator[StubHub]:
    """A stub with one draft."""
    with StubHub() as stub:
        stub.add_repo("org/draft", DRAFT)
        yield stub


@pytest.fixture(autouse=True)
def sleeps(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client knows only the stub and an empty cache; its waits are noted here, and not kept."""
    monkeypatch.chdir(tmp_path)
    return lead_client_to(hub, tmp_path, monkeypatch)


def failure(call: Callable[[], object]) -> tuple[str, str]:
    """Message and hint of the HubError that `call` must raise."""
    with pytest.raises(HubError) as caught:
        call()
    assert caught.value.exit_code == EXIT_ERROR
    assert caught.value.hint
    assert TOKEN not in f"{caught.value} {caught.value.hint}"
    return caught.value.message, caught.value.hint


def draft() -> Source:
    return resolve("org/draft", what="draft")


# ---- what a repo lacks


def test_a_repo_without_weights_is_refused_before_any_download(hub: StubHub) -> None:
    hub.add_repo("org/gguf-only", {"config.json": b"{}", "consolidated.safetensors": b"x", "old/m.safetensors": b"x"})
    message, hint = failure(lambda: resolve("org/gguf-only", what="draft"))
    assert message == "org/gguf-only has no weights (*.safetensors)"
    assert hint == f"{hub.url}/org/gguf-only/tree/main shows what it has"
    assert [path for path in hub.paths("GET") if "/resolve/" in path] == []


def test_a_target_without_tokenizer_is_refused(hub: StubHub) -> None:
    hub.add_repo("org/target", {"config.json": b"{}"})
    message, _ = failure(lambda: resolve("org/target", what="target"))
    assert message == "org/target has no tokenizer (tokenizer.json, tokenizer.model, tiktoken.model, vocab.json)"


# ---- downloads


def test_a_rate_limit_while_downloading_is_waited_out(hub: StubHub, sleeps: list[float]) -> None:
    limited = Fault("/org/draft/resolve/*/config.json", method="GET", status=429, headers={"Retry-After": "3"}, times=1)
    hub.add_fault(limited)
    assert (draft().root / "config.json").read_bytes() == DRAFT["config.json"]
    assert sleeps == [4.0]


def test_a_file_of_the_wrong_size(hub: StubHub) -> None:
    hub.add_fault(Fault("/cdn/*/model.safetensors", method="GET", body=WEIGHTS[:-1]))
    message, hint = failure(draft)
    assert message == "a file of org/draft came with the wrong size"
    assert hint == "try again; files that came whole are kept"


def test_a_damaged_file_is_removed_and_fetched_again(hub: StubHub) -> None:
    damaged = b"\0" + WEIGHTS[1:-1] + b"\0"
    hub.add_fault(Fault("/cdn/*/model.safetensors", method="GET", body=damaged, times=1))
    message, hint = failure(draft)
    want, got = sha256(WEIGHTS)[:12], sha256(damaged)[:12]
    assert message == f"org/draft: model.safetensors came damaged: sha256 {got}…, not {want}…"
    assert hint == "it was removed: run the command again to fetch it afresh"
    assert (draft().root / "model.safetensors").read_bytes() == WEIGHTS


# ---- failures


def test_401_without_a_token(hub: StubHub) -> None:
    hub.add_repo("org/private", DRAFT, private=True)
    message, hint = failure(lambda: resolve("org/private", what="draft"))
    assert message == (
        f"{hub.url} shows no repo org/private without a token (401), and there is no folder of that name"
    )
    assert hint == "check the name; if the repo is private or gated, set HF_TOKEN or run `hf auth login`"


def test_401_with_a_token(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add_fault(Fault("*", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}))
    message, hint = failure(draft)
    assert message == f"{hub.url} refuses the token (401): it is wrong or has expired"
    assert hint == "set HF_TOKEN to a valid token, or run `hf auth login`"


@pytest.mark.parametrize("odd", ["é", "\x0b"])
def test_a_token_that_no_header_can_carry(hub: StubHub, monkeypatch: pytest.MonkeyPatch, odd: str) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}{odd}x")
    message, hint = failure(draft)
    assert message == "the token holds characters that no HTTP header can carry"
    assert hint == "copy it again into HF_TOKEN, or run `hf auth login`"


def test_403_gated(hub: StubHub) -> None:
    hub.add_repo("org/gated", DRAFT, gated=True)
    message, hint = failure(lambda: resolve("org/gated", what="draft"))
    assert message == "org/gated is gated: its terms must be accepted first"
    assert hint == f"accept them at {hub.url}/org/gated, then set HF_TOKEN or run `hf auth login`"


@pytest.mark.parametrize(("fault", "message", "hint"), [
    (Fault("*", status=403), "org/draft: access is forbidden (403)",
     "the token may lack the right to read this repo: check its permissions, or set HF_TOKEN to another"),
    (Fault("*", status=403, headers={"X-Error-Message": "Access to this resource is disabled."}),
     "org/draft has been disabled on the Hub", "{url}/org/draft may say why"),
    (Fault("*", status=429, headers={"Retry-After": "1"}), "{url} limits the rate of requests (429)",
     "wait a few minutes; with HF_TOKEN set the limit is higher"),
    (Fault("*", status=503), "{url} is in trouble: it answers 503", "try again later"),
    (Fault("*/resolve/*", status=500), "{url} is in trouble: it answers 500", "try again later"),
    (Fault("*", status=418), "org/draft: {url} answers 418", "check the name, and HF_ENDPOINT if it is set"),
    (Fault("*/resolve/*/config.json", status=404, headers={"X-Error-Code": "EntryNotFound"}),
     "org/draft: a file that {url} lists is not there (404)", "the repo may be changing: try again in a minute"),
    (Fault("/api/*", body=b"<html>welcome</html>"), "{url} does not answer as a Hub does",
     "check HF_ENDPOINT and the proxy settings"),
])  # fmt: skip
def test_http_errors(hub: StubHub, fault: Fault, message: str, hint: str) -> None:
    hub.add_fault(fault)
    assert failure(draft) == (message.format(url=hub.url), hint.format(url=hub.url))


def test_404_repo(hub: StubHub) -> None:
    message, hint = failure(lambda: resolve("org/nothing", what="draft"))
    assert message == f"there is no repo org/nothing at {hub.url}, and no folder of that name"
    assert hint == "check the spelling; a private repo needs a token that may read it (HF_TOKEN)"


def test_404_revision(hub: StubHub) -> None:
    message, hint = failure(lambda: resolve("org/draft@v9", what="draft"))
    assert message == "org/draft has no revision v9"
    assert hint == f"{hub.url}/org/draft/commits/main lists the commits of main, which is the default"


def test_an_impossible_name(hub: StubHub) -> None:
    message, hint = failure(lambda: resolve("org/na--me", what="draft"))
    assert message == "org/na--me is no valid Hub id, and there is no folder of that name"
    assert hint == "the form is org/name"


def test_nobody_listens(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message, hint = failure(draft)
    assert message.startswith("http://127.0.0.1:9 cannot be reached: ConnectError: ")
    assert hint == "check the connection and the proxy settings, or pass a folder that holds the files"


def test_a_cache_that_cannot_be_written(hub: StubHub, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    message, hint = failure(draft)
    assert message.startswith(f"org/draft cannot be stored in {tmp_path / 'cache'}: ")
    assert hint == "free some space there, or set HF_HOME to another disk"


def test_a_bug_is_no_hub_error(hub: StubHub) -> None:
    def progress(total: int, label: str) -> AbstractContextManager[Callable[[int], None]]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        resolve("org/draft", what="draft", progress=progress)
    assert recognise(ZeroDivisionError()) is None


def test_every_row_formats() -> None:
    where = dict.fromkeys(("ref", "repo", "revision", "page", "endpoint", "cache"), "x")
    for row in FAILURES:
        told = row.tell(OSError(f"Bearer {TOKEN} and {TOKEN}\nsecond line"), where)
        assert not set("{}") & set(f"{told}{told.hint}")
        assert TOKEN not in told.message
        assert "\n" not in told.message


# ---- the cache stands in


@pytest.mark.parametrize(("fault", "why"), [
    (Fault("*", status=429), "limits the rate of requests (429)"),
    (Fault("*", status=500), "is in trouble: it answers 500"),
])  # fmt: skip
def test_a_complete_cache_stands_in_for_a_failing_hub(hub: StubHub, fault: Fault, why: str) -> None:
    first = draft()
    hub.add_fault(fault)
    again = draft()
    assert (again.root, again.commit) == (first.root, COMMIT)
    assert again.notes == (f"{hub.url} {why}; using the copy of org/draft in the cache (commit {COMMIT[:12]})",)


def test_a_complete_cache_stands_in_for_a_lost_connection(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = draft()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (note,) = draft().notes
    assert note.startswith("http://127.0.0.1:9 cannot be reached: ConnectError")
    assert draft().root == first.root


@pytest.mark.parametrize("listing_known", [True, False])
@pytest.mark.parametrize("lost", ["more.safetensors", "config.json"])
def test_an_incomplete_cache_does_not_stand_in(
    hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, listing_known: bool
) -> None:
    """Older clients and other programs leave no listing of the repo: the weight index and the table then decide."""
    (draft().root / lost).unlink()
    if not listing_known:
        monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
        for listing in (tmp_path / "cache").rglob("trees/*.json"):
            listing.unlink()
    hub.add_fault(Fault("*", status=500))
    assert failure(draft)[0] == f"{hub.url} is in trouble: it answers 500"


def test_the_cache_needs_only_what_is_asked_for(hub: StubHub) -> None:
    """A target needs no weights; one of its tensors needs one shard, though the index names two."""
    first = with_weights(resolve("org/draft", what="target"), ["fc"])
    hub.add_fault(Fault("*", status=500))
    again = resolve("org/draft", what="target")
    assert again.root == first.root
    assert with_weights(again, ["fc"]) == again  # and one note is enough
    (note,) = with_weights(first, ["fc"]).notes
    assert "answers 500; using the copy of" in note
    assert "answers 500" in failure(lambda: with_weights(again))[0]


def test_offline_with_a_warm_cache(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = draft()
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert draft() == first  # and no note: offline is what was asked for
    assert hub.requests == []


def test_offline_with_a_cold_cache(hub: StubHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message, hint = failure(draft)
    assert message == f"org/draft is not complete in the cache {tmp_path / 'cache'}, and HF_HUB_OFFLINE is set"
    assert hint == "unset HF_HUB_OFFLINE, or pass a folder that holds the files"
    assert hub.requests == []


def test_offline_weights_that_were_never_fetched(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    source = resolve("org/draft", what="target")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in failure(lambda: with_weights(source))[0]
