"""The command line: what goes to stdout, what to stderr, and the exit code, for each command and each way to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dflash_convert import cli
from dflash_convert.conversion.rows.fields import FLAGS
from dflash_convert.gguf_io.reader import open_gguf


class Ran:
    """One run of the program in this process."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def go(*args: str | Path) -> Ran:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(a) for a in args])
        out, err = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return Ran(stop.value.code, out, err)

    return go


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, tiny_pair: Path) -> Path:
    """The trained draft as bf16."""
    out = tmp_path_factory.mktemp("cli") / "dflash-tiny-BF16.gguf"
    with pytest.raises(SystemExit):
        cli.main(["hf-to-gguf", str(tiny_pair / "draft"), "--target", str(tiny_pair / "target"), "-o", str(out), "-q"])
    return out


# ── hf-to-gguf ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_convert_prints_the_path_and_says_the_tap_shift_once(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.gguf"
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", out)
    assert (ran.code, ran.out) == (0, f"{out}\n")
    assert ran.err.count("HF ids [0, 1, 2] → target_layers [1, 2, 3]") == 1
    assert open_gguf(out).get("dflash.target_layers") == [1, 2, 3]


def test_quiet_prints_the_path_and_nothing_else(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.gguf"
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", out, "-q")
    assert (ran.code, ran.out, ran.err) == (0, f"{out}\n", "")


def test_json_is_one_document(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.gguf"
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", out, "--json")
    assert ran.code == 0
    assert ran.json["path"] == str(out)
    assert ran.json["written"] is True
    assert ran.json["bytes"] == out.stat().st_size


def test_the_default_name_is_one_llama_cpp_finds(run: Any, tiny_pair: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "--outtype", "f16")
    assert ran.out == "dflash-target-F16.gguf\n"
    assert (tmp_path / "dflash-target-F16.gguf").is_file()


def test_a_target_is_converted_by_itself(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "t.gguf"
    assert run("hf-to-gguf", tiny_pair / "target", "-o", out).code == 0
    assert open_gguf(out).architecture == "qwen3"


def test_dry_run_shows_everything_and_touches_nothing(
    run: Any, tiny_pair: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "--dry-run")
    assert ran.code == 0
    lines = [line.split() for line in ran.out.splitlines()]
    assert ["dflash.block_size", "uint32", "8", "block_size"] in lines
    assert ["fc.weight", "BF16", "256", "×", "768", "393,216", "fc.weight"] in lines
    assert list(tmp_path.iterdir()) == []


def test_dry_run_as_json_has_every_key_and_tensor(run: Any, tiny_pair: Path, converted: Path) -> None:
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "--dry-run", "--json")
    file = open_gguf(converted)
    assert [k["key"] for k in ran.json["keys"]] == list(file.kv)
    assert [t["name"] for t in ran.json["tensors"]] == list(file.tensors)
    assert ran.json["bytes"] == converted.stat().st_size
    assert ran.json["written"] is False


def test_an_existing_output_is_left_alone(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    out = tmp_path / "d.gguf"
    out.write_bytes(b"precious")
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", out)
    assert ran.code == 2
    assert f"error: {out} exists" in ran.err
    assert "hint: pass --force" in ran.err
    assert out.read_bytes() == b"precious"
    assert run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", out, "--force").code == 0
    assert out.read_bytes()[:4] == b"GGUF"


def test_a_flag_supplies_what_the_config_lacks(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    config = json.loads((tiny_pair / "draft/config.json").read_text())
    del config["dflash_config"]["target_layer_ids"], config["block_size"]
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(config))
    (draft / "model.safetensors").symlink_to(tiny_pair / "draft/model.safetensors")
    command = ("hf-to-gguf", draft, "--target", tiny_pair / "target", "-o", tmp_path / "d.gguf")
    assert "pass --block-size" in run(*command).err
    ran = run(*command, "--block-size", "8")
    assert ran.code == 2
    assert "fc.weight is 256×768, so 3 taps of width 256" in ran.err
    assert "--target-layer-ids" in ran.err
    assert run(*command, "--block-size", "8", "--target-layer-ids", "0,1,2").code == 0
    file = open_gguf(tmp_path / "d.gguf")
    assert (file.get("dflash.block_size"), file.get("dflash.target_layers")) == (8, [1, 2, 3])


def test_every_flag_of_the_field_table_is_an_option() -> None:
    help_text = subprocess.run(
        [sys.executable, "-m", "dflash_convert", "hf-to-gguf", "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert [flag for flag in FLAGS if flag not in help_text] == []


@pytest.mark.parametrize(
    ("flag", "text", "example"),
    [
        ("--block-size", "eight", "--block-size 16"),
        ("--mask-token-id", "x", "--mask-token-id 151669"),
        ("--target-layer-ids", "1;2", "--target-layer-ids 1,9,17"),
        ("--rope-theta", "1e", "--rope-theta 1000000"),
        ("--sliding-window", "-", "--sliding-window 2048"),
        ("--layer-types", "S,X", "--layer-types S,S,F"),
        ("--causal", "yes", "--causal false"),
        ("--sample-from-anchor", "1", "--sample-from-anchor true"),
    ],
)
def test_a_flag_that_cannot_be_read(run: Any, tiny_pair: Path, flag: str, text: str, example: str) -> None:
    ran = run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "--dry-run", flag, text)
    assert ran.code == 2
    assert f"error: {flag} {text!r} cannot be read" in ran.err
    assert f"hint: for example: {example}" in ran.err


# ── quantize ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_quantize_writes_and_prints_the_path(run: Any, converted: Path, tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    ran = run("quantize", converted, out, "Q4_K_M")
    assert (ran.code, ran.out) == (0, f"{out}\n")
    assert open_gguf(out).tensors["fc.weight"].type.name == "Q4_K"


def test_quantize_dry_run_shows_the_new_types(run: Any, converted: Path, tmp_path: Path) -> None:
    ran = run("quantize", converted, tmp_path / "q.gguf", "Q6_K", "--dry-run")
    assert ["fc.weight", "Q6_K", "256", "×", "768", "161,280", "fc.weight", "BF16", "→", "Q6_K"] in [
        line.split() for line in ran.out.splitlines()
    ]
    assert list(tmp_path.iterdir()) == []


def test_quantize_takes_an_importance_matrix(run: Any, converted: Path, tiny_pair: Path, tmp_path: Path) -> None:
    given = str(tiny_pair / "imatrix.gguf")[:127]
    ran = run("quantize", converted, tmp_path / "q.gguf", "Q4_0", "--imatrix", tiny_pair / "imatrix.gguf")
    assert ran.code == 0
    assert "imatrix.gguf has no importances for fc.weight: quantized without" in ran.err
    assert open_gguf(tmp_path / "q.gguf").get("quantize.imatrix.file") == given
    ran = run("quantize", converted, tmp_path / "r.gguf", "Q4_0", "--imatrix", tmp_path / "none.gguf")
    assert (ran.code, "none.gguf: No such file" in ran.err) == (2, True)


def test_quantize_refuses_an_unknown_type(run: Any, converted: Path, tmp_path: Path) -> None:
    ran = run("quantize", converted, tmp_path / "q.gguf", "Q9_Z", "--json")
    assert ran.code == 2
    assert ran.json["error"]["exit_code"] == 2
    assert "Q9_Z" in ran.json["error"]["message"]
    assert not (tmp_path / "q.gguf").exists()


# ── verify ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_verify_says_yes(run: Any, converted: Path, tiny_pair: Path) -> None:
    ran = run(
        "verify",
        converted,
        "--source",
        tiny_pair / "draft",
        "--target",
        tiny_pair / "target",
        "--only",
        "structure,tensors",
    )
    assert ran.code == 0
    assert "structure" in ran.out
    assert "verified" in ran.out


def test_verify_says_no_with_exit_code_1(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    assert (
        run("hf-to-gguf", tiny_pair / "draft", "--target", tiny_pair / "target", "-o", wrong, "--block-size", "16").code
        == 0
    )
    ran = run("verify", wrong, "--source", tiny_pair / "draft", "--only", "structure")
    assert ran.code == 1
    assert "dflash.block_size" in ran.out
    assert "not verified" in ran.out
    told = run("verify", wrong, "--source", tiny_pair / "draft", "--only", "structure", "--json")
    assert (told.code, told.json["ok"]) == (1, False)


def test_verify_of_nothing_could_not_run(run: Any, tiny_pair: Path, tmp_path: Path) -> None:
    ran = run("verify", tmp_path / "none.gguf", "--source", tiny_pair / "draft")
    assert ran.code == 2
    assert "no such file" in ran.err


# ── the program ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version(run: Any) -> None:
    assert run("--version").out.startswith("dflash-convert ")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["no-such-command"], "No such command 'no-such-command'"),
        (["quantize"], "Missing argument"),
        (["verify", "x.gguf", "--nope"], "No such option: --nope"),
        (["verify", "x.gguf", "--json", "-q"], "--json and --quiet exclude each other"),
    ],
)
def test_usage_errors(run: Any, args: list[str], message: str) -> None:
    ran = run(*args)
    assert ran.code == 2
    assert message in (ran.json["error"]["message"] if "--json" in args else ran.err)


def test_a_bug_of_ours_is_70_without_a_traceback(run: Any, converted: Path, monkeypatch: Any) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr("dflash_convert.quantization.run.plan_file", broken)
    ran = run("quantize", converted, "out.gguf", "Q8_0")
    assert ran.code == 70
    assert "internal error: ZeroDivisionError: boom" in ran.err
    assert "Traceback" not in ran.err
    monkeypatch.setenv("DFLASH_DEBUG", "1")
    assert "Traceback" in run("quantize", converted, "out.gguf", "Q8_0").err


def test_ctrl_c_is_130_and_leaves_nothing(run: Any, converted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dflash_convert.quantization.run.write", interrupted)
    ran = run("quantize", converted, tmp_path / "q.gguf", "Q8_0")
    assert ran.code == 130
    assert "interrupted" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "numba", "gguf", "huggingface_hub", "rich"}
    code = f"import sys, dflash_convert.cli; print(*sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""


def test_a_killed_conversion_leaves_no_file_under_the_final_name(tiny_pair: Path, tmp_path: Path) -> None:
    """kill -9 once the temporary file is there, which is while the tensors are being written."""
    slow = (
        "import sys, time, dflash_convert.conversion.run as c; from dflash_convert import cli\n"
        "real = c.block_bytes\n"
        "def slowly(*a):\n    time.sleep(0.2)\n    return real(*a)\n"
        "c.block_bytes = slowly; cli.main(sys.argv[1:])"
    )
    out = tmp_path / "d.gguf"
    args = ["hf-to-gguf", str(tiny_pair / "draft"), "--target", str(tiny_pair / "target"), "-o", str(out)]
    with subprocess.Popen([sys.executable, "-c", slow, *args], stderr=subprocess.DEVNULL) as child:
        while not list(tmp_path.iterdir()):
            assert child.poll() is None
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    assert not out.exists()
