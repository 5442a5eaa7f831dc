"""What is fetched for what a user types, by the real huggingface_hub client from a Hub on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants
from stub_hub import COMMIT, Fault, StubHub, lead_client_to

from dflash_convert.errors import UsageError
from dflash_convert.hub.client import Source, resolve, with_weights

TOKEN = "hf_" + "s3cret" * 5
WEIGHTS = bytes(range(256)) * 40  # 10240 bytes
DRAFT = {
    "config.json": b'{"block_size": 8}',
    "model.safetensors": WEIGHTS,
    "README.md": b"---\nlicense: mit\n---\n",
    "generation_config.json": b"{}",
    "mask_embedding.pt": b"\x80\x02",
    "training_state.pt": b"optimizer",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"copy",
    "original/model.safetensors": b"older",
}
TARGET = {
    "config.json": b'{"vocab_size": 4}',
    "tokenizer.json": b'{"model": {}}',
    "tokenizer_config.json": b'{"add_bos_token": false}',
    "chat_template.jinja": b"{{ x }}",
    "model-00001-of-00002.safetensors": b"first shard",
    "model-00002-of-00002.safetensors": b"second shard",
    "model.safetensors.index.json": json.dumps({
        "weight_map": {
            "model.embed_tokens.weight": "model-00001-of-00002.safetensors",
            "lm_head.weight": "model-00002-of-00002.safetensors",
        }
    }).encode(),
    "README.md": b"# target",
    "dflash/config.json": b'{"block_size": 16}',
    "dflash/model.safetensors": b"a draft in a folder",
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    """A stub with a draft and a target, an empty cache, and a client that knows nothing but these."""
    monkeypatch.chdir(tmp_path)
    with StubHub() as stub:
        lead_client_to(stub, tmp_path, monkeypatch)
        stub.add_repo("org/draft", DRAFT)
        stub.add_repo("org/target", TARGET, revisions=("main", "v1", "refs/pr/3"))
        yield stub


def fetched(hub: StubHub) -> list[str]:
    """The files whose content was asked for."""
    gets = [path for path in hub.paths("GET") if "/resolve/" in path or path.startswith("/cdn/")]
    return sorted(path.split(f"{COMMIT}/")[-1] if "/resolve/" in path else path.split("/", 4)[-1] for path in gets)


def files(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def draft() -> Source:
    return resolve("org/draft", what="draft")


# ---- which files


def test_a_draft_comes_with_weights_and_companions_only(hub: StubHub) -> None:
    source = draft()
    expected = ["README.md", "config.json", "generation_config.json", "mask_embedding.pt", "model.safetensors"]
    assert files(source.root) == fetched(hub) == expected
    assert (source.root / "model.safetensors").read_bytes() == WEIGHTS
    assert (source.repo, source.revision, source.commit, source.notes) == ("org/draft", "main", COMMIT, ())


def test_of_a_target_no_weights_are_requested(hub: StubHub) -> None:
    source = resolve("org/target", what="target")
    expected = ["chat_template.jinja", "config.json", "tokenizer.json", "tokenizer_config.json"]
    assert files(source.root) == fetched(hub) == expected
    assert [r for r in hub.requests if "safetensors" in r.path] == []


def test_with_weights_fetches_all_shards_and_the_index(hub: StubHub) -> None:
    source = with_weights(resolve("org/target", what="target"))
    assert (source.root / "model-00001-of-00002.safetensors").read_bytes() == b"first shard"
    assert (source.root / "model-00002-of-00002.safetensors").read_bytes() == b"second shard"
    assert (source.root / "model.safetensors.index.json").is_file()
    assert (source.root / "tokenizer.json").is_file()
    assert not (source.root / "dflash").exists()
    assert (source.revision, source.commit) == ("main", COMMIT)


def test_with_weights_fetches_only_the_shard_that_holds_a_tensor(hub: StubHub) -> None:
    source = with_weights(resolve("org/target", what="target"), ["lm_head.weight"])
    assert (source.root / "model-00002-of-00002.safetensors").read_bytes() == b"second shard"
    assert not (source.root / "model-00001-of-00002.safetensors").exists()


def test_with_weights_fetches_everything_when_no_index_names_the_tensor(hub: StubHub) -> None:
    source = with_weights(resolve("org/target", what="target"), ["no.such.tensor"])
    assert (source.root / "model-00001-of-00002.safetensors").is_file()


def test_weights_come_from_the_commit_of_the_config(hub: StubHub) -> None:
    source = resolve("org/target", what="target")
    hub.requests.clear()
    with_weights(source)
    assert hub.paths("GET")[0] == f"/api/models/org/target/revision/{COMMIT}"


def test_a_folder_of_a_repo(hub: StubHub) -> None:
    source = resolve("hf://org/target@v1/dflash", what="draft")
    assert files(source.root) == ["config.json", "model.safetensors"]
    assert (source.root / "config.json").read_bytes() == b'{"block_size": 16}'
    assert (source.folder, source.revision, source.commit) == ("dflash", "v1", COMMIT)
    assert fetched(hub) == ["dflash/config.json", "dflash/model.safetensors"]


@pytest.mark.parametrize("ref", [
    "org/target@v1", "hf://org/target@v1", "hf://models/org/target@v1/", "org/target@refs/pr/3", "hf://org/target@refs/pr/3",
])  # fmt: skip
def test_revisions(hub: StubHub, ref: str) -> None:
    source = resolve(ref, what="target")
    assert source.revision == ("refs/pr/3" if "pr" in ref else "v1")
    assert hub.paths("GET")[0] == f"/api/models/org/target/revision/{source.revision}"


def test_a_second_run_fetches_nothing(hub: StubHub) -> None:
    first = draft()
    hub.requests.clear()
    assert draft() == first
    assert fetched(hub) == []
    assert hub.paths("HEAD") == []


# ---- paths


def test_a_folder_is_taken_as_it_is_and_wins_over_a_repo_of_that_name(hub: StubHub) -> None:
    Path("org/draft").mkdir(parents=True)
    assert draft() == Source(Path("org/draft"))
    assert with_weights(draft()) == draft()
    assert hub.requests == []


def test_the_uri_form_is_always_the_hub(hub: StubHub) -> None:
    Path("org/draft").mkdir(parents=True)
    assert resolve("hf://org/draft", what="draft").commit == COMMIT


def test_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "draft.GGUF"
    path.write_bytes(b"GGUF")
    assert resolve(str(path), what="target") == Source(path)
    assert resolve(str(path), what="target").is_gguf
    assert not Source(tmp_path).is_gguf


def test_a_snapshot_in_a_cache_tells_repo_and_commit(hub: StubHub) -> None:
    root = resolve("hf://org/target/dflash", what="draft").root
    hub.requests.clear()
    assert resolve(str(root), what="draft") == Source(root, "org/target", None, COMMIT, "dflash")
    assert resolve(str(root.parent), what="draft").folder == ""
    assert hub.requests == []


@pytest.mark.parametrize("ref", [
    "./nowhere", "a/b/c", "name", "org/name.gguf", "hf://org", "hf://org/name/../x", "hf://datasets/a/b",
])  # fmt: skip
def test_neither_a_path_nor_a_hub_id(ref: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(ref, what="draft")
    assert caught.value.message == f"{ref}: there is no folder or .gguf file of that name, and it is not a Hub id"
    assert caught.value.hint == "a Hub id is org/name, org/name@revision or hf://org/name@revision/folder"


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(UsageError, match="is a file") as caught:
        resolve(str(path), what="draft")
    assert caught.value.hint == f"pass the folder that holds it ({tmp_path}), or a .gguf file"


# ---- downloads


def test_a_cut_connection_is_resumed_where_it_broke(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.add_fault(Fault("/cdn/*/model.safetensors", method="GET", cut=5000, times=1))
    source = draft()
    assert (source.root / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [r.headers.get("range") for r in hub.requests if r.path.startswith("/cdn/")]
    assert ranges == [None, "bytes=4096-"]


def test_progress_counts_every_byte_once(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    hub.add_fault(Fault("/cdn/*/model.safetensors", method="GET", cut=5000, times=1))
    opened: list[tuple[int, str]] = []
    counted: list[int] = []

    @contextmanager
    def progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
        opened.append((total, label))
        yield counted.append

    resolve("org/draft", what="draft", progress=progress)
    fresh = sum(len(DRAFT[name]) for name in fetched(hub) if name != "model.safetensors") + len(WEIGHTS)
    assert opened == [(fresh, "downloading org/draft")]
    assert sum(counted) == fresh
    resolve("org/draft", what="draft", progress=progress)
    assert opened[1] == (0, "downloading org/draft")


def test_the_clients_own_progress_bars_stay_off(hub: StubHub, capfd: pytest.CaptureFixture[str]) -> None:
    draft()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_the_token_goes_to_the_hub_and_not_to_the_cdn(hub: StubHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    draft()
    to_hub = {r.headers.get("authorization") for r in hub.requests if r.host == "127.0.0.1"}
    to_cdn = {r.headers.get("authorization") for r in hub.requests if r.host == "localhost"}
    assert (to_hub, to_cdn) == ({f"Bearer {TOKEN}"}, {None})


# ---- the environment alone


def test_the_environment_configures_a_fresh_process(hub: StubHub, tmp_path: Path) -> None:
    """HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE reach the client with no help from the tests."""
    code = "from dflash_convert.hub.client import resolve; print(resolve('org/target', what='target').root)"
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("HF_")},
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    online = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert online.stdout.startswith(str(tmp_path / "home" / "hub"))
    assert {r.headers.get("authorization") for r in hub.requests} == {f"Bearer {TOKEN}"}
    hub.requests.clear()
    offline = subprocess.run(
        [sys.executable, "-c", code], env={**env, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=True
    )
    assert offline.stdout == online.stdout
    assert hub.requests == []


def test_importing_the_module_does_not_import_the_client() -> None:
    code = "import sys, dflash_convert.hub.client; print('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
