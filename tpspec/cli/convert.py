"""`tpspec convert`: a checkpoint becomes one file per rank."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import json_option, pad_option, spec_option, tp_option

if TYPE_CHECKING:
    from tpspec.padding import Order

EPILOG = """\b
Examples:
  tpspec convert ./Llama-3-70B ./Llama-3-70B-tp8 --tp 8
  tpspec convert meta-llama/Llama-3.1-8B ./llama-tp4 --tp 4
  tpspec convert ./Llama-3-70B-tp8 ./Llama-3-70B-tp4 --tp 4     cut again, without the original
  tpspec convert ./model /shared/out --tp 8 --ranks 0-3         one host of two
  tpspec convert ./Qwen2.5-7B ./qwen-tp8 --tp 8 --pad           28 heads become 32
"""


def rank_list(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parses `0-3` or `0,2,5-7`."""
    if value is None:
        return None
    ranks: set[int] = set()
    for part in value.split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise click.BadParameter(f"'{value}' is not a list of ranks such as 0-3 or 0,2,5-7")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


@click.command("convert", epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@tp_option(required=True)
@click.option("--ranks", callback=rank_list, metavar="RANKS", help="Write these ranks only: 0-3, or 0,2,5-7.")
@click.option("--drop", is_flag=True, help="Leave out the tensors that no rank reads.")
@pad_option
@spec_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
def command(
    source: str,
    out: Path,
    tp: int,
    ranks: tuple[int, ...] | None,
    drop: bool,
    pad: Order | None,
    spec_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Cut a checkpoint into one safetensors file per rank.

    SRC is a checkpoint directory, a Hugging Face model id, or a directory that convert wrote (to
    change its tp). An interrupted run goes on where it stopped when the same command is given again.
    OUT is complete when it holds tpspec.json. Tensors that no rank reads go to extras.safetensors.
    """
    from tpspec.cli.padding import print_padding
    from tpspec.cli.progress import resumable
    from tpspec.converters.convert import convert
    from tpspec.converters.group_indexes import check_groups
    from tpspec.converters.sources import open_source
    from tpspec.padding_report import padded
    from tpspec.quantities import size
    from tpspec.resolve import resolve_checked

    start = time.monotonic()
    reader = open_source(source, lambda checkpoint: resolve_checked(checkpoint, tp, spec_file, pad))
    resolution = resolve_checked(reader.checkpoint, tp, spec_file, pad)
    layout, padding = resolution.layout(tp), padded(resolution, tp)
    check_groups(reader, resolution)
    with resumable(quiet=quiet or as_json) as advance:
        outcome = convert(reader, out, layout, ranks=ranks, drop=drop, progress=advance)
    seconds = time.monotonic() - start
    if as_json:
        report = {"out": str(out), "tp": tp, "spec": layout.spec, "seconds": round(seconds, 3)}
        zeros = {"padding": padding.as_json()} if padding else {}
        click.echo(json.dumps({**report, **outcome.as_json(), **zeros}, indent=2))
    elif not quiet:
        for name in outcome.present:
            click.echo(f"{name} was there already")
        if outcome.written:
            written = f"{len(outcome.written)} files, {size(outcome.bytes)}"
            click.echo(f"wrote {written} in {seconds:.1f} s ({size(outcome.bytes / seconds)}/s)")
        if padding:
            print_padding(padding, tp)
        if outcome.missing:
            click.echo(f"{out} is complete when these are there: {', '.join(outcome.missing)}")
        else:
            click.echo(f"{out} is complete; to check it: tpspec verify {out}")
