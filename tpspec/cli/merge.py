"""`tpspec merge`: a pre-sharded directory becomes the original checkpoint again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from tpspec.cli.arguments import json_option

EPILOG = """\b
Examples:
  tpspec merge ./Llama-3-70B-tp8 ./Llama-3-70B
  tpspec merge ./llama-tp4 ./llama --json
"""


@click.command("merge", epilog=EPILOG)
@click.argument("directory", metavar="OUT", type=click.Path(path_type=Path))
@click.argument("destination", metavar="HF", type=click.Path(path_type=Path))
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
def command(directory: Path, destination: Path, as_json: bool, quiet: bool) -> None:
    """Put the ranks of OUT together into HF: the original files, byte for byte.

    Where the original bytes are not to be had (tensors were dropped, or the source was .bin
    files), the values are the same and the command says so. An interrupted merge is simply run again.
    """
    from tpspec.cli.progress import progress
    from tpspec.converters.merge import merge
    from tpspec.converters.readers import PreshardedReader
    from tpspec.presharded import Presharded
    from tpspec.quantities import size

    reader = PreshardedReader(Presharded.open(directory))
    with progress(quiet=quiet or as_json) as advance:
        merged = merge(reader, destination, progress=advance)
    if as_json:
        click.echo(json.dumps({"ok": True, "out": str(destination), **asdict(merged)}, indent=2))
    elif not quiet:
        click.echo(f"wrote {len(merged.files)} files, {size(merged.bytes)}, to {destination}")
        if merged.losses:
            click.echo(f"the values are the original's, the files are not: {'; '.join(merged.losses)}")
        else:
            click.echo("each has the same bytes as the original")
