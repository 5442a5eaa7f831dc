"""mask_embedding.pt: files of torch itself (2.13) read without torch, damage and malice refused, MiMo drafts converted.

tests/data/mask-embedding was written by torch.save, its values being a ramp of 1/8 from -4; `names-os-system.pt` is
such a file whose pickle was replaced.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as G
from make import BF16, Array, make_checkpoint, weights
from safetensors.numpy import load_file
from toys import CASES, DATA, TARGET, edited, notes, read_json, toy_target

from dflash_convert.checkpoints import mask_embedding
from dflash_convert.checkpoints.checkpoint import open_checkpoint
from dflash_convert.checkpoints.mask_embedding import HINT, MaskEmbedding, read_mask_embedding
from dflash_convert.conversion.run import Conversion, plan_conversion, write_conversion
from dflash_convert.conversion.transforms import DRAFT, MASK_ROW, Material, with_mask_row
from dflash_convert.errors import CheckpointError
from dflash_convert.gguf_io.layout import PlannedTensor
from dflash_convert.gguf_io.reader import open_gguf

FILES = DATA / "mask-embedding"
GOOD = FILES / "dict-bf16.pt"
RAMP = np.arange(192) / 8 - 4
DISTRUST = "do not open this file with torch.load either, unless you trust who made it"


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as e:
        read_mask_embedding(path)
    assert e.value.message.startswith(f"{path}: ")
    assert e.value.hint
    assert "\n" not in e.value.message
    return e.value


def said(path: Path) -> str:
    return refused(path).message.removeprefix(f"{path}: ")


# ── pickles by hand ───────────────────────────────────────────────────────────────────────────────────────────────────


def put(value: Any) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def tensor(
    kind: str = "BFloat16Storage",
    offset: Any = 0,
    shape: Any = (64,),
    stride: Any = (1,),
    count: Any = 64,
    key: Any = "0",
    word: str = "storage",
) -> bytes:
    """What torch pickles for a tensor."""
    storage = b"(" + put(word) + f"ctorch\n{kind}\n".encode() + put(key) + put("cpu") + put(count) + b"tQ"
    place = put(offset) + put(shape) + put(stride) + b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + place + b"tR"


def saved(token: Any, embedding: bytes) -> bytes:
    return b"}(" + put("mask_token_id") + put(token) + put("embedding") + embedding + b"u"


def archive(
    path: Path,
    program: bytes,
    data: bytes = RAMP[:64].astype(BF16).tobytes(),
    folder: str = "archive/",
    compression: int = zipfile.ZIP_STORED,
    entries: Mapping[str, bytes] | None = None,
) -> Path:
    """A torch file of a pickle and one storage. entries: what else is in the folder."""
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in {"data.pkl": b"\x80\x02" + program + b".", "data/0": data, **(entries or {})}.items():
            out.writestr(folder + name, content)
    return path


# ── what torch writes ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "token", "dtype", "first"),
    [
        ("dict-bf16", 319, BF16, 0),
        ("bare-f32", None, np.float32, 0),
        ("parameter", None, BF16, 0),
        ("slice", 319, BF16, 64),
        ("row-of-wider", None, np.float16, 0),
        ("double", None, np.float64, 0),
    ],
)
def test_files_of_torch(name: str, token: int | None, dtype: Any, first: int) -> None:
    found = read_mask_embedding(FILES / f"{name}.pt")
    assert (found.token_id, found.values.dtype, found.values.shape) == (token, np.dtype(dtype), (64,))
    assert found.values.astype(np.float64).tolist() == RAMP[first : first + 64].tolist()


def test_a_slice_begins_at_its_offset() -> None:
    assert [float(v) for v in read_mask_embedding(FILES / "slice.pt").values[[0, 1, 63]]] == [4.0, 4.125, 11.875]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "strided", "a tensor of shape (64,) and stride (2,) at 0 of 128 values was not expected",
            f"{HINT}; make it contiguous() before",
        ),
        ("legacy", "this is no torch file (a zip archive, as torch writes since 1.6)", HINT),
        (
            "names-os-system", "it asks for 'os.system', which is nothing that a tensor of floats needs: it was not "
            "loaded", DISTRUST,
        ),
        (
            "float8", "it asks for 'torch._utils._rebuild_tensor_v3', which is nothing that a tensor of floats needs: "
            "it was not loaded", HINT,
        ),
    ],
)  # fmt: skip
def test_files_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str, hint: str
) -> None:
    ran: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", ran.append)
    error = refused(FILES / f"{name}.pt")
    assert (error.message, error.hint) == (f"{FILES / name}.pt: {message}", hint)
    assert not ran
    assert not list(tmp_path.iterdir())


# ── by hand: what is read ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_pickles_by_hand_are_like_those_of_torch(tmp_path: Path) -> None:
    by_hand = read_mask_embedding(archive(tmp_path / "m.pt", saved(319, tensor())))
    assert by_hand.token_id == 319
    assert by_hand.values.tobytes() == read_mask_embedding(GOOD).values.tobytes()


@pytest.mark.parametrize("folder", ["", "a/", "a/b/"])
@pytest.mark.parametrize("entries", [{}, {"byteorder": b"little", "version": b"3\n", ".data/serialization_id": b"1"}])
def test_the_folder_has_any_name_and_other_entries_say_nothing(
    tmp_path: Path, folder: str, entries: dict[str, bytes]
) -> None:
    assert read_mask_embedding(archive(tmp_path / "m.pt", tensor(), folder=folder, entries=entries)).values.size == 64


@pytest.mark.parametrize(("shape", "stride"), [((1, 64), (64, 1)), ((1, 64), (7, 1)), ((64,), (1,))])
def test_one_row_is_the_embedding(tmp_path: Path, shape: Any, stride: Any) -> None:
    assert read_mask_embedding(archive(tmp_path / "m.pt", tensor(shape=shape, stride=stride))).values.shape == (64,)


def test_a_large_memo_is_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.pt", saved(2**40, tensor() + b"r\x09\x00\x00\x00"))
    assert read_mask_embedding(path).token_id == 2**40


# ── by hand: what is refused ──────────────────────────────────────────────────────────────────────────────────────────

PROGRAMS = {
    "no embedding": (b"}", "there is no embedding in it"),
    "nothing": (b"N", "there is no embedding in it"),
    "a number": (put({"embedding": 5}), "there is no embedding in it"),
    "integers": (tensor("LongStorage", shape=(16,), count=16), "there is no embedding in it"),
    "empty": (tensor(shape=(0,)), "there is no embedding in it"),
    "token is text": (saved("319", tensor()), "mask_token_id is '319', which is no token id"),
    "token is a flag": (saved(True, tensor()), "mask_token_id is True, which is no token id"),
    "token is a float": (saved(319.0, tensor()), "mask_token_id is 319.0, which is no token id"),
    "token is a tensor of floats": (
        b"}(" + put("mask_token_id") + tensor(shape=(1,)) + put("embedding") + tensor() + b"u",
        "mask_token_id is array([-4], dtype=dtype(bfloat16)), which is no token id",
    ),
    "behind the storage": (
        tensor(offset=1),
        "a tensor of shape (64,) and stride (1,) at 1 of 64 values was not expected",
    ),
    "before the storage": (
        tensor(offset=-1),
        "a tensor of shape (64,) and stride (1,) at -1 of 64 values was not expected",
    ),
    "by columns": (
        tensor(shape=(8, 8), stride=(1, 8)),
        "a tensor of shape (8, 8) and stride (1, 8) at 0 of 64 values was not expected",
    ),
    "strides are missing": (
        tensor(shape=(8, 8)),
        "a tensor of shape (8, 8) and stride (1,) at 0 of 64 values was not expected",
    ),
    "too few strides for ones": (
        tensor(shape=(1, 64), stride=(64,)),
        "cannot be read as a torch file: ValueError: zip() argument 2 is shorter than argument 1",
    ),
    "another word": (tensor(word="module"), "a storage is described as ('module', dtype(bfloat16), '0', 'cpu', 64)"),
    "a path": (tensor(key="../0"), "a storage is described as ('storage', dtype(bfloat16), '../0', 'cpu', 64)"),
    "a number for a key": (tensor(key=0), "a storage is described as ('storage', dtype(bfloat16), 0, 'cpu', 64)"),
    "a storage that is a function": (
        b"(" + put("storage") + b"ccollections\nOrderedDict\n" + put("0") + put("cpu") + put(64) + b"tQ",
        "a storage is described as ('storage', <class 'collections.OrderedDict'>, '0', 'cpu', 64)",
    ),
    "a storage that is not there": (
        tensor(key="1"),
        "cannot be read as a torch file: KeyError: \"There is no item named 'archive/data/1' in the archive\"",
    ),
    "a storage that is short": (
        tensor(count=65),
        "cannot be read as a torch file: ValueError: buffer is smaller than requested size",
    ),
    "an instruction of no pickle": (
        b"\xff",
        "cannot be read as a torch file: ValueError: at position 2, opcode b'\\xff' unknown",
    ),
    "a storage of no kind": (
        tensor("QInt8Storage"),
        "it asks for 'torch.QInt8Storage', which is nothing that a tensor of floats needs: it was not loaded",
    ),
    "a function of python": (
        b"cbuiltins\neval\n" + put("1") + b"\x85R",
        "it asks for 'builtins.eval', which is nothing that a tensor of floats needs: it was not loaded",
    ),
    "a function of a function": (
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",
        "it asks for 'torch._utils._rebuild_tensor_v2.__globals__', which is nothing that a tensor of floats needs: "
        "it was not loaded",
    ),
}
OPCODES = {
    "BUILD": b"ccollections\nOrderedDict\n)R}b",
    "STACK_GLOBAL": put("os") + put("system") + b"\x93",
    "INST": b"(ios\nsystem\n",
    "OBJ": b"(cos\nsystem\no",
    "NEWOBJ": b"ccollections\nOrderedDict\n)\x81",
    "EXT1": b"\x82\x01",
    "PERSID": b"P1\n",
    "LONG_BINPUT": b"Nr\xff\xff\xff\x0f",
    "BYTEARRAY8": b"\x96\x00\x00\x00\x00\x00\x00\x00\x00",
    "BINSTRING": b"T\x00\x00\x00\x00",
}


@pytest.mark.parametrize(("program", "message"), PROGRAMS.values(), ids=PROGRAMS)
def test_pickles_that_are_refused(tmp_path: Path, program: bytes, message: str) -> None:
    assert said(archive(tmp_path / "m.pt", program)) == message


@pytest.mark.parametrize(("opcode", "program"), OPCODES.items(), ids=OPCODES)
def test_instructions_that_torch_does_not_write_are_not_run(tmp_path: Path, opcode: str, program: bytes) -> None:
    error = refused(archive(tmp_path / "m.pt", program))
    assert error.message.endswith(
        f": its pickle uses {opcode}, which is nothing that a tensor needs: it was not loaded"
    )
    assert error.hint == DISTRUST


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(tmp_path: Path, bad: float) -> None:
    values = RAMP[:64].astype("<f4")
    values[63] = bad
    path = archive(tmp_path / "m.pt", tensor("FloatStorage"), values.tobytes())
    assert said(path) == "the embedding has values that are no numbers"


def test_a_double_that_is_no_float32(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.pt", tensor("DoubleStorage"), np.full(64, 1e300).tobytes())
    assert said(path) == "the embedding has values that are no numbers"


def test_big_endian(tmp_path: Path) -> None:
    error = refused(archive(tmp_path / "m.pt", tensor(), entries={"byteorder": b"big"}))
    assert error.message.endswith(": the byte order is 'big'; only little endian is read")
    assert error.hint == "save it again on a little-endian machine"


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "none.pt", "w") as out:
        out.writestr("a/constants.pkl", b"N.")
    assert said(tmp_path / "none.pt") == "this is no torch file of one embedding (0 pickles, 2 bytes unpacked)"
    two = archive(tmp_path / "two.pt", tensor(), entries={"b/data.pkl": b"N."})
    assert "this is no torch file of one embedding (2 pickles, " in said(two)


def test_a_model_is_no_embedding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "m.pt", tensor())
    size = sum(entry.file_size for entry in zipfile.ZipFile(path).infolist())
    monkeypatch.setattr(mask_embedding, "MAX_BYTES", size)
    assert read_mask_embedding(path).values.size == 64
    monkeypatch.setattr(mask_embedding, "MAX_BYTES", size - 1)
    assert said(path) == f"this is no torch file of one embedding (1 pickles, {size} bytes unpacked)"
    monkeypatch.setattr(mask_embedding, "MAX_BYTES", size)
    monkeypatch.setattr(mask_embedding, "MAX_PICKLE", 100)
    assert said(path) == f"this is no torch file of one embedding (1 pickles, {size} bytes unpacked)"


def test_a_compressed_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "m.pt", tensor(), compression=zipfile.ZIP_DEFLATED)
    assert said(path) == "this is no torch file: its archive is compressed"


@pytest.mark.parametrize("content", [b"", b"\x80\x02", b"version https://git-lfs.github.com/spec/v1\n"])
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.pt"
    path.write_bytes(content)
    assert said(path) == "this is no torch file (a zip archive, as torch writes since 1.6)"


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that a pickle asked for and was given."""
    given: list[Any] = []
    find = mask_embedding._Tensors.find_class

    def record(self: Any, module: str, name: str) -> Any:
        given.append(found := find(self, module, name))
        return found

    monkeypatch.setattr(mask_embedding._Tensors, "find_class", record)
    return given


def survives(path: Path, content: bytes) -> bool:
    """Whether damaged content is read; if not, it is refused."""
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        read_mask_embedding(path)
        return True
    return False


def only_ours(named: list[Any]) -> bool:
    ours = [*mask_embedding.STORAGES.values(), mask_embedding._rebuild, mask_embedding._parameter, OrderedDict]
    return all(any(one is found for one in ours) for found in named)


def test_every_truncation_is_refused(tmp_path: Path, named: list[Any]) -> None:
    good = GOOD.read_bytes()
    assert not [n for n in range(len(good)) if survives(tmp_path / "m.pt", good[:n])]
    assert only_ours(named)


def test_flipped_bytes(tmp_path: Path, named: list[Any]) -> None:
    good, dice = GOOD.read_bytes(), random.Random(1)
    read = 0
    for _ in range(2000):
        damaged = bytearray(good)
        for _ in range(dice.choice([1, 1, 2, 8])):
            damaged[dice.randrange(len(damaged))] ^= dice.randrange(1, 256)
        read += survives(tmp_path / "m.pt", bytes(damaged))
    assert 0 < read < 2000
    assert only_ours(named)


@pytest.mark.parametrize("name", ["dict-bf16", "slice", "parameter"])
def test_flipped_bytes_of_a_pickle_whose_checksum_is_right(tmp_path: Path, named: list[Any], name: str) -> None:
    with zipfile.ZipFile(FILES / f"{name}.pt") as good:
        entries = {entry.removeprefix(f"{name}/"): good.read(entry) for entry in good.namelist()}
    program, dice = entries["data.pkl"], random.Random(2)
    for _ in range(2000):
        damaged = bytearray(program)
        for _ in range(dice.choice([1, 1, 2, 4])):
            damaged[dice.randrange(len(damaged))] = dice.choice([dice.randrange(256), dice.choice(program)])
        with zipfile.ZipFile(tmp_path / "made.pt", "w") as out:
            for entry, content in {**entries, "data.pkl": bytes(damaged)}.items():
                out.writestr(f"a/{entry}", content)
        survives(tmp_path / "m.pt", (tmp_path / "made.pt").read_bytes())
    assert named
    assert only_ours(named)


# ── conversions ───────────────────────────────────────────────────────────────────────────────────────────────────────

TABLE = weights(320, 64, dtype=BF16, seed=5)
HEAD = weights(320, 64, dtype=BF16, seed=6)
MASK = RAMP[:64].astype(BF16)
MASKED = np.concatenate([TABLE[:319], MASK[None]])


def mimo(
    folder: Path,
    file: Path = GOOD,
    target: Path = TARGET,
    tensors: Mapping[str, Array] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Conversion:
    """Plan the golden MiMo draft with a mask embedding beside its weights."""
    draft = folder / "draft"
    merged = {**load_file(CASES / "dflash-mimo/draft/model.safetensors"), **(tensors or {})}
    make_checkpoint(draft, merged, edited(read_json(CASES / "dflash-mimo/draft/config.json"), changes or {}))
    shutil.copyfile(file, draft / "mask_embedding.pt")
    return plan_conversion(draft, target, folder / "out.gguf")


def untied_target(folder: Path, tensors: Mapping[str, Array], tied: bool = False) -> Path:
    root = toy_target(folder / "Target", config={"tie_word_embeddings": tied})
    return make_checkpoint(root, tensors, read_json(root / "config.json"))


def tables(job: Conversion) -> dict[str, Array]:
    file = open_gguf(write_conversion(job, force=True))
    dtypes = {G.F32: np.dtype(np.float32), G.BF16: BF16, G.F16: np.dtype(np.float16)}
    return {
        name: np.frombuffer(file.raw(name).tobytes(), dtypes[file.tensors[name].type]).reshape(320, 64)
        for name in ("token_embd.weight", "output.weight")
    }


def test_the_table_is_the_targets_with_one_row_replaced(tmp_path: Path) -> None:
    target = untied_target(tmp_path, {"model.embed_tokens.weight": TABLE, "lm_head.weight": HEAD})
    job = mimo(tmp_path, target=target)
    found = tables(job)
    assert found["token_embd.weight"].tobytes() == MASKED.tobytes()
    assert found["output.weight"].tobytes() == HEAD.tobytes()
    assert [t.name for t in job.plan.tensors][:2] == ["output.weight", "token_embd.weight"]
    told = notes(job, "info")
    assert "token_embd.weight has the mask token's row from mask_embedding.pt" in told
    assert "token_embd.weight is the target's model.embed_tokens.weight: the draft needs a table of its own" in told
    assert "output.weight is the target's lm_head.weight: the draft needs a table of its own" in told


def test_the_head_of_a_tied_target_keeps_its_row(tmp_path: Path) -> None:
    table = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    assert table[319].tobytes() != MASK.tobytes()
    found = tables(mimo(tmp_path))
    assert found["token_embd.weight"].tobytes() == np.concatenate([table[:319], MASK[None]]).tobytes()
    assert found["output.weight"].tobytes() == table.tobytes()


def test_a_draft_that_ties_its_table_keeps_the_mask_row_out_of_its_head(tmp_path: Path) -> None:
    target = untied_target(tmp_path, {"model.embed_tokens.weight": TABLE}, tied=True)
    found = tables(mimo(tmp_path, target=target, changes={"tie_word_embeddings": True}))
    assert found["token_embd.weight"].tobytes() == MASKED.tobytes()
    assert found["output.weight"].tobytes() == TABLE.tobytes()


def test_a_draft_with_tables_of_its_own(tmp_path: Path) -> None:
    own = {"embed_tokens.weight": TABLE, "lm_head.weight": HEAD}
    found = tables(mimo(tmp_path, target=toy_target(tmp_path / "Target"), tensors=own))
    assert found["token_embd.weight"].tobytes() == MASKED.tobytes()
    assert found["output.weight"].tobytes() == HEAD.tobytes()


@pytest.mark.parametrize("name", ["bare-f32", "parameter", "row-of-wider"])
def test_an_embedding_of_no_token_is_the_mask_tokens(tmp_path: Path, name: str) -> None:
    target = untied_target(tmp_path, {"model.embed_tokens.weight": TABLE, "lm_head.weight": HEAD})
    job = mimo(tmp_path, FILES / f"{name}.pt", target, changes={"dflash_config.mask_token_id": 7})
    expected = TABLE.copy()
    expected[7] = MASK
    assert tables(job)["token_embd.weight"].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("start", "stop"), [(0, 150), (150, 151), (100, 200), (0, 320), (151, 320)])
def test_a_block_has_the_row_or_has_not(tmp_path: Path, start: int, stop: int) -> None:
    checkpoint = open_checkpoint(make_checkpoint(tmp_path / "d", {"embed": TABLE}))
    material = Material({DRAFT: checkpoint}, 32, (150, MaskEmbedding(None, MASK)))
    expected = np.concatenate([TABLE[:150], MASK[None], TABLE[151:]])
    planned = PlannedTensor("token_embd.weight", (320, 64), G.BF16, "embed", MASK_ROW)
    assert with_mask_row(material, planned, start, stop).tobytes() == expected[start:stop].tobytes()


def mimo_refused(folder: Path, *args: Any, **options: Any) -> CheckpointError:
    with pytest.raises(CheckpointError) as e:
        mimo(folder, *args, **options)
    return e.value


def test_an_embedding_for_another_token(tmp_path: Path) -> None:
    error = mimo_refused(tmp_path, changes={"dflash_config.mask_token_id": 318})
    assert error.message == "mask_embedding.pt is for the token 319, but dflash_config.mask_token_id is 318"
    assert error.hint == "config.json and mask_embedding.pt are of different revisions"


@pytest.mark.parametrize(
    ("shape", "stride"), [((63,), (1,)), ((8, 8), (8, 1)), ((2, 32), (32, 1)), ((), ())]
)  # fmt: skip
def test_an_embedding_of_another_shape(tmp_path: Path, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    error = mimo_refused(tmp_path, archive(tmp_path / "m.pt", saved(319, tensor(shape=shape, stride=stride))))
    assert error.message == (
        f"mask_embedding.pt holds an embedding of shape {list(shape)}; the draft's hidden_size is 64"
    )
    assert error.hint == "config.json and mask_embedding.pt are of different revisions"


def test_a_target_without_weights(tmp_path: Path) -> None:
    error = mimo_refused(tmp_path, target=toy_target(tmp_path / "Target"))
    assert error.message.startswith(
        "the draft's file has to carry the target's embeddings or head, and they cannot be read: no weights found in "
    )
    assert error.hint == (
        "pass the target's Hub id, or a folder that also has the shard(s) with embed_tokens and lm_head"
    )


def test_a_target_without_embeddings(tmp_path: Path) -> None:
    error = mimo_refused(tmp_path, target=untied_target(tmp_path, {"lm_head.weight": HEAD}))
    assert error.message.startswith("the target's weights have no embed_tokens: looked for ")


def test_a_damaged_file_stops_the_plan(tmp_path: Path) -> None:
    error = mimo_refused(tmp_path, FILES / "names-os-system.pt")
    assert "mask_embedding.pt: it asks for 'os.system'" in error.message


def test_a_value_that_the_tables_type_cannot_hold(tmp_path: Path) -> None:
    own = {"embed_tokens.weight": TABLE.astype(np.float16), "lm_head.weight": HEAD}
    large = archive(tmp_path / "m.pt", tensor("FloatStorage"), np.full(64, 1e6, "<f4").tobytes())
    job = mimo(tmp_path, large, tensors=own)
    with pytest.raises(CheckpointError) as e:
        write_conversion(job)
    assert e.value.message == "embed_tokens.weight has inf at [319, 0]: the weights are damaged"
