"""`tpspec run`: text from a pre-sharded directory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from secrets import randbits
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

import click

from tpspec.cli.arguments import json_option
from tpspec.cli.ranks import Choice, Ran, loading_options, run_ranks
from tpspec.cli.texts import Texts
from tpspec.errors import TpspecError

if TYPE_CHECKING:
    from tpspec.runtime.complete import Outcome
    from tpspec.runtime.loading import Loading
    from tpspec.runtime.request import Request

EPILOG = """\b
Examples:
  tpspec run ./SmolLM2-tp3 --chat --prompt "Why is the sky blue?"
  tpspec run ./Llama-tp2 --prompt "Once upon a time" --temperature 0.8 --top-p 0.9 --seed 1
  tpspec run ./Llama-tp2 --prompt-file prompts.txt --json
  torchrun --nproc-per-node 2 -m tpspec run ./Llama-tp2 --prompt "Once upon a time"
"""


@click.command("run", epilog=EPILOG)
@loading_options
@click.option("--prompt", "prompts", multiple=True, metavar="TEXT", help="Go on from this; may be repeated.")
@click.option(
    "--prompt-file",
    type=click.File(encoding="utf-8-sig"),
    metavar="FILE",
    help="A prompt per line; - is stdin.",
)
@click.option("--chat", is_flag=True, help="Each prompt is a message, put into the model's chat template.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=128, show_default=True, metavar="N")
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    metavar="T",
    help="0 takes the likeliest token: the default, but for --top-k, --top-p and --seed, where it is 1.",
)
@click.option("--top-k", type=click.IntRange(1), metavar="K", help="Draw from the K likeliest tokens.")
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    metavar="P",
    help="Draw from the likeliest tokens that have the probability P together.",
)
@click.option("--seed", type=int, metavar="N", help="Draw the same again, at any tp; random, if unsaid.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated.")
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, metavar="N")
@click.option("--trace", is_flag=True, help="Show the collectives, counted and predicted.")
@click.option("--check-ranks", is_flag=True, help="Stop where ranks differ: compares every layer's input.")
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Print the new text alone.")
def command(
    loading: Loading,
    choice: Choice,
    prompts: tuple[str, ...],
    prompt_file: TextIO | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float,
    seed: int | None,
    trace: bool,
    check_ranks: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Generate text with the ranks of a directory that convert wrote.

    Each rank is a process that reads its own file alone; they meet over shared memory, or, where torchrun
    started this command, in torchrun's group. The text is the same at every tp, sampled text too.
    """
    from tpspec.runtime.complete import complete
    from tpspec.runtime.request import Request, Sampling

    started = monotonic()
    if not (prompts or prompt_file):
        raise click.UsageError("give --prompt or --prompt-file")
    lines = _lines(prompt_file)
    if temperature is None:
        temperature = float(top_k is not None or top_p < 1 or seed is not None)
    sampling = Sampling(temperature, top_k, top_p, randbits(32) if seed is None else seed)
    request = Request((*prompts, *lines), sampling=sampling, **options)
    texts = Texts(_heads((*prompts, *lines), chat=request.chat, quiet=quiet), silent=as_json)
    ran = run_ranks(loading, choice, complete, (request, check_ranks), texts.add)
    if ran.result is None:
        return
    first = texts.first_at - started
    if as_json:
        click.echo(json.dumps(_as_json((*prompts, *lines), request, ran, first, trace=trace), indent=2))
        return
    if trace:
        _print_trace(ran.result)
    if not quiet:
        _print_speed(request, ran, first)


def _lines(prompt_file: TextIO | None) -> list[str]:
    name = getattr(prompt_file, "name", "the prompt file")
    try:
        lines = [line.rstrip("\n") for line in prompt_file or () if line.strip()]
    except UnicodeDecodeError as error:
        raise TpspecError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if prompt_file and not lines:
        raise TpspecError(f"{name} has no prompt: each of its lines is empty")
    return lines


def _heads(prompts: Sequence[str], *, chat: bool, quiet: bool) -> list[str]:
    """What stands before each text: its prompt, unless a single answer says enough."""
    if quiet or (chat and len(prompts) == 1):
        return [""] * len(prompts)
    heads = [click.style(prompt, dim=True) + "\n" * chat for prompt in prompts]
    return [heads[0], *("\n" + head for head in heads[1:])]


def _as_json(
    prompts: Sequence[str], request: Request, ran: Ran, first: float, *, trace: bool
) -> dict[str, Any]:
    outcome: Outcome = ran.result
    completions = [
        {"prompt": prompt, **asdict(completion)}
        for prompt, completion in zip(prompts, outcome.completions, strict=True)
    ]
    return {
        "completions": completions,
        "tp": ran.size,
        "collectives": ran.kind,
        **({"seed": request.sampling.seed} if request.sampling.temperature else {}),
        "first_token_seconds": round(first, 3),
        "tokens_per_second": round(outcome.rate, 2),
        **({"passes": outcome.passes, "trace": [asdict(row) for row in outcome.trace]} if trace else {}),
    }


def _print_trace(outcome: Outcome) -> None:
    from tpspec.cli.tables import head, print_columns
    from tpspec.quantities import size

    rows = [head("collective", "at", "per pass", "predicted", "gives per token pass", "sends at least")]
    for row in outcome.trace:
        counted, predicted = row.counted / outcome.passes, row.predicted / outcome.passes
        colour = None if row.counted == row.predicted else "red"
        rows.append(
            [
                row.collective,
                row.site,
                click.style(f"{counted:g}", fg=colour),
                f"{predicted:g}",
                size(row.token_bytes),
                size(row.token_wire_bytes),
            ]
        )
    click.echo()
    print_columns(rows)


def _print_speed(request: Request, ran: Ran, first: float) -> None:
    outcome: Outcome = ran.result
    tokens = sum(len(completion.tokens) for completion in outcome.completions)
    seed = f", seed {request.sampling.seed}" if request.sampling.temperature else ""
    ranks = "1 rank" if ran.size == 1 else f"{ran.size} ranks ({ran.kind})"
    first_token = f"{tokens} token{'s' * (tokens > 1)}, the first after {first:.1f} s"
    rate = f", then {outcome.rate:.1f} tok/s" if outcome.rate else ""
    speed = f"{first_token}{rate}, {ranks}{seed}"
    click.echo(click.style(speed, dim=True), err=True)
