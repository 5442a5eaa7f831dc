"""The command line: parse, call the library, render. Nothing is decided here.

`main` is the only place where exceptions become exit codes: 0 done or verified, 1 the answer is no, 2 could not run,
70 a bug of ours, 130 interrupted. Everything heavy is imported inside the commands, so that --help answers at once.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer
from typer.exceptions import TyperException

from dflash_convert.console import Console, Mode
from dflash_convert.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_NO, EXIT_OK, DflashError, UsageError

app = typer.Typer(
    name="dflash-convert",
    help="DFlash drafts for llama.cpp: convert a checkpoint, quantize it, prove the result against the original.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# ── options that commands share ───────────────────────────────────────────────────────────────────────────────────────

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, errors included.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the result.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing output.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and touch nothing.")]
Given = Optional[str]  # noqa: UP045  (typer reads the annotation)


def console_of(json: bool, quiet: bool) -> Console:
    """The console in the mode that was asked for."""
    if json and quiet:
        raise UsageError("--json and --quiet exclude each other", hint="--json prints the path too")
    return Console("json" if json else "quiet" if quiet else "human")


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command("hf-to-gguf")
def hf_to_gguf(
    draft: Annotated[str, typer.Argument(help="The draft (or, without --target, a target): a folder or a Hub id.")],
    target: Annotated[
        Given, typer.Option("--target", help="The draft's target: a folder or a Hub id org/name[@rev].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The output file. [default: a name llama.cpp finds]")
    ] = None,
    outtype: Annotated[str, typer.Option(help="f32, f16, bf16, q8_0, or auto: as stored.")] = "auto",
    block_size: Annotated[
        Given, typer.Option(help="Where the config lacks it: block size the draft was trained with.")
    ] = None,
    mask_token_id: Annotated[Given, typer.Option(help="Where the config lacks it: id of the mask token.")] = None,
    target_layer_ids: Annotated[
        Given, typer.Option(help="Where the config lacks them: tapped layers, e.g. 1,9,17,25,33.")
    ] = None,
    rope_theta: Annotated[Given, typer.Option(help="Where the config lacks it: base of the rotary embedding.")] = None,
    sliding_window: Annotated[
        Given, typer.Option(help="Where the config lacks it: window of the sliding layers.")
    ] = None,
    layer_types: Annotated[
        Given, typer.Option(help="Where the config lacks them: S,S,F (sliding, full), or one for all.")
    ] = None,
    causal: Annotated[
        Given, typer.Option(help="Where the config lacks it: true or false, whether later positions are hidden.")
    ] = None,
    sample_from_anchor: Annotated[
        Given, typer.Option(help="DSpark, where the config lacks it: true if the anchor's position drafts too.")
    ] = None,
    pre: Annotated[
        Given, typer.Option(help="llama.cpp's name of the pre-tokenizer, where it is not recognised.")
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Convert a draft checkpoint (or a target model) to a GGUF that mainline llama.cpp loads."""
    from dflash_convert import views
    from dflash_convert.conversion.run import plan_conversion, write_conversion

    console = console_of(json, quiet)
    overrides = views.read_flags(
        block_size=block_size,
        mask_token_id=mask_token_id,
        target_layer_ids=target_layer_ids,
        rope_theta=rope_theta,
        sliding_window=sliding_window,
        layer_types=layer_types,
        is_causal=causal,
        sample_from_anchor=sample_from_anchor,
    )
    job = plan_conversion(
        draft,
        target,
        out,
        outtype=outtype,
        overrides=overrides,
        pre=pre,
        force=force or dry_run,
        progress=console.progress,
    )
    views.show_notes(console, job.plan)
    if dry_run:
        return views.show_plan(console, job.plan, job.path)
    write_conversion(job, force=force, progress=console.progress)
    return views.show_result(console, job.plan, job.path)


@app.command()
def quantize(
    src: Annotated[Path, typer.Argument(metavar="IN", help="A GGUF in F32, F16 or BF16.")],
    dst: Annotated[Path, typer.Argument(metavar="OUT", help="The output file.")],
    file_type: Annotated[str, typer.Argument(metavar="TYPE", help="A file type, e.g. Q8_0, Q4_K_M or COPY.")],
    threads: Annotated[Optional[int], typer.Option(min=1, help="Threads. [default: one a core]")] = None,  # noqa: UP045
    allow_requantize: Annotated[
        bool, typer.Option("--allow-requantize", help="Quantize what is quantized already, at a loss.")
    ] = False,
    imatrix: Annotated[
        Given, typer.Option(metavar="FILE", help="An importance matrix of the model, by llama-imatrix.")
    ] = None,
    tensor_type: Annotated[
        Optional[list[str]], typer.Option(metavar="REGEX=TYPE", help="A type for tensors by name. Repeatable.")  # noqa: UP045
    ] = None,
    tensor_type_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same from a file, one REGEX=TYPE a line.")
    ] = None,
    output_tensor_type: Annotated[Given, typer.Option(metavar="TYPE", help="A type for output.weight.")] = None,
    token_embedding_type: Annotated[Given, typer.Option(metavar="TYPE", help="A type for the embeddings.")] = None,
    leave_output_tensor: Annotated[
        bool, typer.Option("--leave-output-tensor", help="Leave output.weight as it is.")
    ] = False,
    pure: Annotated[bool, typer.Option("--pure", help="No mix: one type for all.")] = False,
    no_fallback: Annotated[
        bool, typer.Option("--no-fallback", help="A row that does not divide is an error, not a bigger type.")
    ] = False,
    recipe: Annotated[
        Given, typer.Option(metavar="safe", help="safe: a draft's small special tensors stay at Q8_0.")
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize a GGUF, byte for byte as llama.cpp's own quantizer does."""
    from dflash_convert import views
    from dflash_convert.quantization.overrides import read_overrides
    from dflash_convert.quantization.run import plan_file, quantize_file

    console = console_of(json, quiet)
    overrides = read_overrides(
        tensor_type or (), tensor_type_file, output_tensor_type, token_embedding_type, recipe,
        leave_output_tensor=leave_output_tensor, pure=pure, no_fallback=no_fallback,
    )  # fmt: skip
    options: dict[str, Any] = {"allow_requantize": allow_requantize, "imatrix": imatrix, "overrides": overrides}
    plan = plan_file(src, file_type, **options)
    views.show_notes(console, plan)
    if dry_run:
        return views.show_plan(console, plan, dst)
    with console.progress(plan.file_size, dst.name) as advance:
        quantize_file(src, dst, file_type, threads=threads, force=force, progress=advance, **options)
    return views.show_result(console, plan, dst)


@app.command()
def verify(
    gguf: Annotated[Path, typer.Argument(help="The draft's GGUF.")],
    source: Annotated[
        Given, typer.Option("--source", help="The checkpoint it was made from: a folder or a Hub id.")
    ] = None,
    target: Annotated[Given, typer.Option("--target", help="The target: a folder, a Hub id, or a GGUF.")] = None,
    only: Annotated[
        Given, typer.Option(help="Levels: structure,tensors,forward,acceptance. [default: all that can run]")
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="A file of prompts, one a line. [default: bundled ones]")] = None,
    tokens: Annotated[Optional[int], typer.Option(min=1, help="Tokens to generate for each prompt.")] = None,  # noqa: UP045
    n_max: Annotated[
        int | None, typer.Option(min=1, help="Tokens drafted a step, at most. [default: block size - 1]")
    ] = None,
    min_accept_ratio: Annotated[
        float | None, typer.Option(help="Least ratio of accepted length to the original's. [default: none]")
    ] = None,
    min_top1: Annotated[
        float | None, typer.Option(help="Least share of first choices equal to the original's. [default: none]")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Every check, not only what matters.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Prove a draft's GGUF against the checkpoint it was made from: exit 0 verified, 1 the answer is no."""
    from dflash_convert import views
    from dflash_convert.verification import verify as run

    console = console_of(json, quiet)
    levels = [name.strip() for name in only.split(",")] if only else None
    least = {"min_accept_ratio": min_accept_ratio, "min_top1": min_top1}
    given = {"n_tokens": tokens, "n_max": n_max, "prompts": prompts, **least}
    options: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    where = views.locate(source, target, levels, console.progress)
    with console.progress(gguf.stat().st_size if gguf.is_file() else 0, gguf.name) as advance:
        report = run(gguf, source=where.source, target=where.target, only=levels, progress=advance, **options)
    views.show_report(console, report, verbose=verbose)
    return EXIT_OK if report.ok else EXIT_NO


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A GGUF, or the folder of a checkpoint.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Tell what a GGUF or checkpoint is: its format, whether mainline loads it, its values, and what is odd."""
    from dflash_convert import views
    from dflash_convert.inspection import inspect_path

    console = console_of(json, quiet)
    return views.show_inspection(console, inspect_path(file))


@app.command()
def migrate(
    src: Annotated[Path, typer.Argument(metavar="IN", help="A draft's GGUF in a fork's or an early format.")],
    dst: Annotated[Path, typer.Argument(metavar="OUT", help="The output file.")],
    window: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=0, help="Where the file lacks it: window of the sliding layers, 0 for none."),
    ] = None,
    layer_types: Annotated[
        Given, typer.Option(help="Where the file lacks them: S,S,F (sliding, full), or one for all.")
    ] = None,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rewrite a draft's GGUF for mainline llama.cpp: the same weights, under mainline's keys and names."""
    from dflash_convert import views
    from dflash_convert.migration.run import migrate_file, plan_file

    console = console_of(json, quiet)
    plan = plan_file(src, window=window, layer_types=layer_types)
    views.show_notes(console, plan)
    if dry_run:
        return views.show_plan(console, plan, dst)
    with console.progress(plan.file_size, dst.name) as advance:
        migrate_file(src, dst, window=window, layer_types=layer_types, force=force, progress=advance)
    return views.show_result(console, plan, dst)


def show_version(value: bool) -> None:
    """Print the version and stop."""
    if value:
        from dflash_convert import __version__

        Console().show(f"dflash-convert {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


# ── from exceptions to exit codes ─────────────────────────────────────────────────────────────────────────────────────


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit."""
    args = list(sys.argv[1:] if argv is None else argv)
    sys.exit(run(args, Console(mode_of(args))))


def mode_of(args: Sequence[str]) -> Mode:
    """The mode in which errors are told, even those of parsing."""
    return "json" if "--json" in args else "quiet" if {"-q", "--quiet"} & set(args) else "human"


def run(args: Sequence[str], console: Console) -> int:
    """Run the program; every exception ends here as an exit code."""
    try:
        code = int(app(args=list(args), standalone_mode=False, prog_name="dflash-convert") or EXIT_OK)
        if code == EXIT_INTERRUPTED:  # typer's own way of telling of Ctrl-C
            console.warn("interrupted; nothing unfinished was left behind")
        return code
    except TyperException as e:
        wrong = UsageError(e.format_message(), hint="dflash-convert --help, or dflash-convert COMMAND --help")
        console.error(wrong)
        return wrong.exit_code
    except DflashError as e:
        console.error(e)
        return e.exit_code
    except Exception as e:
        if os.environ.get("DFLASH_DEBUG"):
            traceback.print_exc()
        console.error(e)
        return EXIT_BUG
