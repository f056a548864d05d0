"""`tpspec pad`: a padded model as an ordinary checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import ENGINES, json_option, spec_option, tp_option
from tpspec.padding import ORDERS

if TYPE_CHECKING:
    from tpspec.checkpoint import Checkpoint
    from tpspec.padding import Order
    from tpspec.resolution import Resolution

EPILOG = """\b
Examples:
  tpspec pad ./Qwen2.5-7B ./Qwen2.5-7B-tp8 --tp 8       28 heads become 32
  vllm serve ./Qwen2.5-7B-tp8 --tensor-parallel-size 8
"""


@click.command("pad", epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@tp_option(required=True)
@click.option(
    "--first",
    "order",
    type=click.Choice(ORDERS),
    default="kv",
    help="What is kept small first: the cache (kv), or the weights.",
)
@spec_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no summary.")
def command(
    source: str, out: Path, tp: int, order: Order, spec_file: Path | None, as_json: bool, quiet: bool
) -> None:
    """Write a model with zero heads and columns, so that tp divides it, as an ordinary checkpoint.

    SRC is a checkpoint directory, a Hugging Face model id, or a directory that convert wrote. Any
    engine loads OUT at --tp (and at divisors of it), and computes what it would with SRC. The
    vocabulary stays as it is: vLLM and SGLang fill it up to a multiple of 64, which --tp must divide.
    An interrupted run goes on where it stopped when the same command is given again.
    """
    from tpspec.cli.padding import print_padding
    from tpspec.cli.progress import resumable
    from tpspec.converters.group_indexes import check_groups
    from tpspec.converters.pad import pad
    from tpspec.converters.sources import open_source
    from tpspec.engines.engine import read_engine
    from tpspec.engines.fit import refusal
    from tpspec.padded_model import ALIGN, padded_model
    from tpspec.padding_report import padding_of
    from tpspec.quantities import size
    from tpspec.resolve import resolve_checked

    def resolved(checkpoint: Checkpoint) -> Resolution:
        return resolve_checked(checkpoint, tp, spec_file, order, ALIGN)

    reader = open_source(source, resolved)
    resolution = resolved(reader.checkpoint)
    padding = padding_of(resolution, tp)
    model = padded_model(reader.checkpoint, resolution, tp)
    check_groups(reader, resolution)
    with resumable(quiet=quiet or as_json) as advance:
        padded = pad(reader, out, model, padding.as_json(), progress=advance)
    engines = [read_engine(name) for name in ENGINES]
    problems = {e.title: problem for e in engines if (problem := refusal(model.resolution, e, tp))}
    if as_json:
        report = {"out": str(out), "tp": tp, "model_type": model.kind, **asdict(padded)}
        click.echo(json.dumps({**report, "padding": padding.as_json(), "refused_by": problems}, indent=2))
    elif not quiet:
        count = f"{len(padded.files)} file{'s' * (len(padded.files) > 1)}"
        click.echo(f"wrote {count}, {size(padded.bytes)}, to {out}: a '{model.kind}' model")
        print_padding(padding, tp)
        for title, problem in problems.items():
            click.echo(f"  {title} does not load it at tp={tp}: {problem}")
