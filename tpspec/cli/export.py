"""`tpspec export`: a checkpoint becomes the files that vLLM's or SGLang's sharded_state loader reads."""

from __future__ import annotations

import json
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import engine_option, json_option, release_option, spec_option, tp_option

if TYPE_CHECKING:
    from tpspec.checkpoint import Checkpoint
    from tpspec.engines.layout import EngineLayout

EPILOG = """\b
Examples:
  tpspec export ./Llama-3-70B ./Llama-3-70B-vllm --engine vllm --tp 8
  tpspec export ./Llama-3-70B-tp8 ./Llama-3-70B-vllm --engine vllm --tp 4   from a pre-sharded directory
  tpspec export ./Mixtral ./Mixtral-sglang --engine sglang --tp 8 --max-file-size 5GB
  tpspec verify ./Llama-3-70B-vllm --engine vllm --against ./Llama-3-70B
"""

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def file_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    """Parses `5GB`, `5.5MB`, `512MiB` or a number of bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)", value, re.ASCII)
    size = int(Fraction(match[1]) * UNITS.get(match[2].upper(), 0)) if match else 0
    if not size:
        raise click.BadParameter(f"'{value}' is not a size such as 5GB or 512MiB")
    return size


@click.command("export", epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@engine_option(required=True)
@release_option
@tp_option(required=True)
@click.option(
    "--max-file-size", callback=file_size, metavar="SIZE", help="Part each rank's file: 5GB, 512MiB."
)
@spec_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
def command(
    source: str,
    out: Path,
    engine: str,
    release: str | None,
    tp: int,
    max_file_size: int | None,
    spec_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Write the ranks of a checkpoint as an engine keeps them, for its sharded_state loader.

    SRC is a checkpoint directory, a Hugging Face model id, or a directory that convert wrote. An
    interrupted run goes on where it stopped when the same command is given again. OUT is complete when
    it holds tpspec-export.json.
    """
    from tpspec.cli.progress import resumable
    from tpspec.converters.engines.export import export
    from tpspec.converters.sources import open_source
    from tpspec.engines.engine import is_untold, read_engine
    from tpspec.engines.resolve import engine_layout
    from tpspec.quantities import size
    from tpspec.resolve import choose_spec, resolve

    start = time.monotonic()
    document = read_engine(engine)

    def layout(checkpoint: Checkpoint) -> EngineLayout:
        spec = choose_spec(checkpoint.config, spec_file)
        resolution = resolve(spec, checkpoint.config, checkpoint.tensors)
        return engine_layout(resolution, document, tp, release)

    if release and is_untold(document, release) and not quiet:
        told = f"{document.title} {document.compared_with}"
        click.echo(f"note: nothing was compared with {release}; the names are those of {told}", err=True)
    reader = open_source(source, layout)
    with resumable(quiet=quiet or as_json) as advance:
        done = export(reader, out, layout(reader.checkpoint), max_file_size=max_file_size, progress=advance)
    seconds = time.monotonic() - start
    if as_json:
        report = {"out": str(out), "engine": engine, "tp": tp, "seconds": round(seconds, 3)}
        click.echo(json.dumps({**report, **done.as_json()}, indent=2))
    elif not quiet:
        for name in done.present:
            click.echo(f"{name} was there already")
        if done.written:
            written = f"{len(done.written)} files, {size(done.bytes)}"
            click.echo(f"wrote {written} in {seconds:.1f} s ({size(done.bytes / seconds)}/s)")
        click.echo(f"{out} is complete; to serve it: {done.serve}")
