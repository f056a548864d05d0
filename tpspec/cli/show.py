"""`tpspec show`: the shard map."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import json_option, pad_option, spec_option, tp_option
from tpspec.cli.pictures import picture_options

if TYPE_CHECKING:
    from tpspec.padding import Order
    from tpspec.shard_map import MapRow

EPILOG = """\b
Examples:
  tpspec show ./Llama-3-70B --tp 16 --rank 9
  tpspec show config.json --tp 8 --module '*.self_attn.*'
  tpspec show ./SmolLM2 --tp 3 --json
  tpspec show config.json --tp 16 --html map.html --svg map.svg
"""


@click.command("show", epilog=EPILOG)
@click.argument("path")
@tp_option(required=True)
@click.option("--rank", type=click.IntRange(0), metavar="R", help="What this rank holds, index by index.")
@click.option("--module", "modules", metavar="GLOB", help="Only names that match this shell pattern.")
@picture_options
@pad_option
@spec_option
@json_option
def command(
    path: str,
    tp: int,
    rank: int | None,
    modules: str | None,
    html: Path | None,
    svg: Path | None,
    png: Path | None,
    pad: Order | None,
    spec_file: Path | None,
    as_json: bool,
) -> None:
    """Print, or draw, which part of each tensor each rank holds.

    PATH is what `tpspec validate` takes. Layers that are cut alike share a line. With a picture, the
    table is not printed.
    """
    from tpspec.hub import locate
    from tpspec.resolve import choose_spec, resolve_fitting
    from tpspec.shard_map import shard_map

    if rank is not None and rank >= tp:
        raise click.BadParameter(f"tp={tp} has ranks 0 to {tp - 1}", param_hint="--rank")
    located = locate(path)
    tensors = located.checkpoint.tensors if located.checkpoint and located.checkpoint.files else None
    resolution = resolve_fitting(choose_spec(located.config, spec_file), located.config, tensors, tp, pad)
    rows = shard_map(resolution, tp, modules)
    if html or svg or png:
        from tpspec.cli.pictures import say_written
        from tpspec.pictures.write import write_map

        write_map(path, resolution.spec.name, rows, tp, html=html, svg=svg, png=png)
        say_written(html, svg, png)
        if not as_json:
            return
    if as_json:
        click.echo(json.dumps({"tp": tp, "spec": resolution.spec.name, "rows": [r.as_json() for r in rows]}))
    else:
        _print(rows, tp, rank)


def _print(rows: list[MapRow], tp: int, rank: int | None) -> None:
    from tpspec.cli.tables import head, print_columns

    lines = [head("tensor", "tag", "stored", "per rank" if rank is None else f"rank {rank} of {tp}", "holds")]
    for row in rows:
        stored = f"{row.tensor.dtype} {list(row.tensor.shape)}" if row.tensor else ""
        local = str(list(row.tensor.local_shape(rank or 0))) if row.tensor else _local(row, rank or 0)
        holds = _copies(row) if rank is None else ", ".join(row.held(rank))
        lines.append([row.name, click.style(row.tag, fg="cyan"), stored, local, holds])
    print_columns(lines, indent=0)


def _local(row: MapRow, rank: int) -> str:
    return f"{row.cut.length(rank)} of {row.cut.size}" if row.cut and row.cut.dim is not None else ""


def _copies(row: MapRow) -> str:
    """How many ranks hold each part of the tensor."""
    cut = row.cut
    if cut is None:
        return "no rank (kept for merging)"
    if cut.dim is None:
        held = [row.held(rank)[0] for rank in range(cut.tp)]
        ranks = [rank for rank, text in enumerate(held) if text == "whole"]
        return (
            "whole on every rank" if len(ranks) == cut.tp else f"whole on rank {', '.join(map(str, ranks))}"
        )
    counts = sorted({count for _, _, count in cut.copies()})
    copies = "" if counts == [1] else " and ".join(f"×{count}" for count in counts)
    zeros = sum(cut.zeros(rank) for rank in range(cut.tp))
    return ", ".join(filter(None, (f"copied {copies}" if copies else "", f"{zeros} zeros" if zeros else "")))
