"""`tpspec verify`: whether a pre-sharded directory is what it should be."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tpspec.cli.arguments import engine_option, json_option, release_option, spec_option

EPILOG = """\b
Examples:
  tpspec verify ./Llama-3-70B-tp8
  tpspec verify ./Llama-3-70B-tp8 --against ./Llama-3-70B
  tpspec verify ./Llama-3-70B-tp8 --json
  tpspec verify ./Llama-3-70B-vllm --engine vllm --against ./Llama-3-70B
"""


@click.command("verify", epilog=EPILOG)
@click.argument("directory", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--against", metavar="SRC", help="Compare every byte with the checkpoint that was cut.")
@engine_option(required=False)
@release_option
@spec_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing where all is well.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    against: str | None,
    engine: str | None,
    release: str | None,
    spec_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check a directory that convert wrote: names, sizes, headers, and every byte of every rank.

    By itself the directory is compared with its manifest: hashes, whether the ranks together give the
    original tensors, whether copies agree and padding is zeros. --json lists everything that is wrong.
    With --engine it is one that export or the engine's own saver wrote.
    """
    from tpspec.cli.progress import progress
    from tpspec.converters.engines.verify import verify_export
    from tpspec.converters.sources import open_source
    from tpspec.converters.verify import verify
    from tpspec.errors import TpspecError, first_findings
    from tpspec.quantities import size

    reader = open_source(against) if against else None
    with progress(quiet=quiet or as_json) as advance:
        if engine:
            checked = verify_export(directory, engine, reader, spec_file, release, progress=advance)
        else:
            checked = verify(directory, reader, progress=advance)
    if as_json:
        click.echo(json.dumps({"ok": not checked.findings, **asdict(checked)}, indent=2))
        ctx.exit(1 if checked.findings else 0)
    if checked.findings:
        findings = first_findings(checked.findings)
        if against:
            of_engine = f" --engine {engine}" if engine else ""
            remedy = f"to see whether it is sound by itself: tpspec verify {directory}{of_engine}"
            raise TpspecError(f"{directory} is not what {against} gives", findings, remedy)
        writer = "export" if engine else "convert"
        raise TpspecError(
            f"{directory} is not what {writer} wrote", findings, f"remove it and {writer} again"
        )
    if not quiet:
        what = f"{checked.files} files, {checked.tensors} tensors, {size(checked.bytes)}"
        click.echo(f"{directory} is sound: {what}" + (f", the same as {against}" if against else ""))
