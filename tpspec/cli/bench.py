"""`tpspec bench`: how fast a pre-sharded directory runs, and where the time goes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import json_option
from tpspec.cli.ranks import Choice, Ran, loading_options, run_ranks

if TYPE_CHECKING:
    from tpspec.runtime.loading import Loading
    from tpspec.runtime.measure import Measured

EPILOG = """\b
Examples:
  tpspec bench ./SmolLM2-tp3
  tpspec bench ./Llama-tp2 --prompt-tokens 16 --new-tokens 64 --runs 5 --json
  tpspec bench ./Llama-tp2 --collectives gloo
"""


@click.command("bench", epilog=EPILOG)
@loading_options
@click.option("--prompt-tokens", type=click.IntRange(1), default=16, show_default=True, metavar="N")
@click.option("--new-tokens", type=click.IntRange(2), default=64, show_default=True, metavar="N")
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, metavar="N")
@json_option
def command(
    loading: Loading, choice: Choice, prompt_tokens: int, new_tokens: int, runs: int, as_json: bool
) -> None:
    """Measure the ranks of a directory that convert wrote: start, first token, decoding.

    One prompt of random tokens is decoded greedily, a few times over. What a step spends in collectives is
    told by the kind of site: the exchange itself, which the last rank to come sees, and the wait of the
    others for it.
    """
    from tpspec.runtime.measure import measure

    begun = monotonic()
    ready = begun

    def loaded(_: object) -> None:
        nonlocal ready
        ready = monotonic()

    ran = run_ranks(loading, choice, measure, (prompt_tokens, new_tokens, runs), loaded)
    if ran.result is None:
        return
    if as_json:
        options = {"prompt_tokens": prompt_tokens, "new_tokens": new_tokens, "runs": runs}
        measured = options | _as_json(ran, ready - begun) | _work(loading, ran.size)
        click.echo(json.dumps(measured, indent=2))
    else:
        click.echo(
            f"{loading.directory}: tp={ran.size}, {ran.kind}, {prompt_tokens} tokens of prompt, "
            f"{new_tokens} new ones, median of {runs}"
        )
        _print(ran.result, ready - begun)


def bench_as_json(directory: Path) -> dict[str, object]:
    """What the command prints as JSON for a directory with its usual options."""
    from tpspec.runtime.loading import Loading
    from tpspec.runtime.measure import measure

    loading, options = Loading(directory), {"prompt_tokens": 16, "new_tokens": 64, "runs": 5}
    begun = monotonic()
    ran = run_ranks(loading, "auto", measure, tuple(options.values()), lambda _: None)
    return options | _as_json(ran, monotonic() - begun) | _work(loading, ran.size)


def _as_json(ran: Ran, start: float) -> dict[str, object]:
    measured: Measured = ran.result
    return {
        "tp": ran.size,
        "collectives": ran.kind,
        "start_seconds": start,
        "load_seconds": measured.load,
        "first_token_seconds": measured.first_token,
        "tokens_per_second": 1 / measured.step,
        "step_seconds": measured.step,
        "compute_seconds": measured.compute,
        "shares": [asdict(share) for share in measured.shares],
        "all_reduces": [{"bytes": size, "seconds": seconds} for size, seconds in measured.all_reduces],
    }


def _work(loading: Loading, tp: int) -> dict[str, object]:
    """What a rank has to do in a step, which turns seconds into rates."""
    from tpspec.planning.weights import inventory
    from tpspec.resolve import choose_spec, resolve

    presharded = loading.open()
    spec = choose_spec(presharded.config, loading.spec_file)
    resolution = resolve(spec, presharded.config, presharded.stored, presharded.layout.pad)
    pieces = inventory(resolution).at(tp)
    return {
        "directory": str(loading.directory),
        "read_bytes": pieces.read(1),
        "elements": pieces.multiplied(),
    }


def _print(measured: Measured, start: float) -> None:
    from tpspec.cli.tables import head, print_columns
    from tpspec.quantities import size

    step = measured.step
    print_columns(
        [
            ("start to loaded", _seconds(start), f"of which a rank loads {_seconds(measured.load)}"),
            ("first token", _seconds(measured.first_token), "prompt read and token chosen"),
            ("decode", f"{1 / step:.1f} tok/s", f"{_seconds(step)} a step"),
        ]
    )
    click.echo()
    rows = [head("a step", "calls", "bytes", "exchange", "wait", "share")]
    rows.append(["compute", "", "", _seconds(measured.compute), "", f"{measured.compute / step:.1%}"])
    rows += [
        [
            f"{share.collective} at {share.site}",
            str(share.calls),
            size(share.bytes),
            _seconds(share.exchange),
            _seconds(share.wait),
            f"{(share.exchange + share.wait) / step:.1%}",
        ]
        for share in measured.shares
    ]
    print_columns(rows)


def _seconds(seconds: float) -> str:
    """A duration with three digits."""
    unit = "s"
    for smaller in ("ms", "µs"):
        if seconds >= 1:
            break
        seconds, unit = seconds * 1000, smaller
    return f"{seconds:.3g} {unit}"
