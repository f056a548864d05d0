"""`tpspec validate`: what breaks at a tp size, before any weight moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import json_option, pad_option, spec_option, tp_list

if TYPE_CHECKING:
    from tpspec.assess import Assessment, Size
    from tpspec.padding import Order

EPILOG = """\b
Examples:
  tpspec validate ./Llama-3-70B --tp 8
  tpspec validate config.json --tp 2,4,6,8
  tpspec validate meta-llama/Llama-3.1-8B --tp 4 --json
  tpspec validate ./Qwen2.5-7B --tp 8 --pad
"""


@click.command("validate", epilog=EPILOG)
@click.argument("path")
@click.option("--tp", callback=tp_list, metavar="N[,N...]", help="Tensor parallel sizes to check.")
@pad_option
@spec_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing where everything fits.")
@click.pass_context
def command(
    ctx: click.Context,
    path: str,
    tp: tuple[int, ...],
    pad: Order | None,
    spec_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Say which layers of a model break at a tensor parallel size, why, and which sizes work.

    PATH is a checkpoint directory (headers are read, no weights), a config.json, or a Hugging Face
    model id. With a config alone, head counts and widths are checked; with headers, also that every
    tensor has its rule, every rule its tensors, and every shape is what the config says.
    """
    from tpspec.assess import assess

    assessment = assess(path, tp, spec_file, pad)
    if as_json:
        click.echo(json.dumps(assessment.as_json(), indent=2))
    elif not (quiet and assessment.ok):
        _print(assessment)
    ctx.exit(0 if assessment.ok else 1)


def _print(assessment: Assessment) -> None:
    from tpspec.cli.padding import print_padding
    from tpspec.cli.tables import print_columns

    if assessment.findings:
        click.echo(f"{_bad('the checkpoint does not match')} {assessment.spec.where}: {assessment.name}")
        rows = [(f.subject, f.problem, click.style(f.place, dim=True)) for f in assessment.findings]
        print_columns(rows)
        for remedy in dict.fromkeys(f.remedy for f in assessment.findings if f.remedy):
            click.echo(click.style(f"  → {remedy}", fg="cyan"))
    for at in assessment.sizes:
        if at.misfits:
            click.echo(f"{_bad(f'tp={at.tp} does not fit')} {assessment.name}")
            print_columns(
                (m.module, m.tag, f"{m.source} = {m.units}", _bad(m.numbers), click.style(m.place, dim=True))
                for m in at.misfits
            )
    if assessment.findings:
        return
    fitting = [_fitting(at) for at in assessment.sizes if not at.misfits]
    if fitting:
        fits = click.style("fits" if assessment.headers else "fits by its config", fg="green", bold=True)
        click.echo(f"{fits} {assessment.name} ({assessment.spec.where})")
        print_columns(fitting)
    for at in assessment.sizes:
        if at.padding:
            print_padding(at.padding, at.tp)
    _print_valid(assessment)


def _fitting(at: Size) -> tuple[str, ...]:
    from tpspec.quantities import size

    weights = f"weights per rank: {size(at.weight_bytes)}" if at.weight_bytes is not None else ""
    held = []
    if at.cache:
        held = [f"{size(at.cache.per_token)} per token"] if at.cache.per_token else []
        held += [f"{size(n)} per token up to {window} tokens" for window, n in at.cache.windows.items() if n]
        held += [f"{size(at.cache.per_sequence)} per sequence"] if at.cache.per_sequence else []
    cache = f"cache per rank: {' + '.join(held)}" if held else ""
    copies = ", ".join(f"{_units(axis)} copied ×{n}" for axis, n in (at.copies or {}).items())
    return f"tp={at.tp}", weights, cache, copies and click.style(copies, fg="yellow")


def _units(axis: str) -> str:
    return "KV heads" if axis == "kv" else f"units of '{axis}'"


def _print_valid(assessment: Assessment) -> None:
    sizes = ", ".join(map(str, assessment.valid_tp))
    copied = "".join(f"   ({_units(axis)} are copied above {n})" for axis, n in assessment.copied_above)
    pad = "   or: --pad" if any(at.misfits and at.pad_fits for at in assessment.sizes) else ""
    click.echo(f"  valid tp: {sizes}{click.style(copied, dim=True)}{pad}")
    for note in assessment.notes:
        click.echo(click.style(f"  {note}", dim=True))


def _bad(text: str) -> str:
    return click.style(text, fg="red", bold=True)
