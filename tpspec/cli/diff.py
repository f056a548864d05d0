"""`tpspec diff`: a tensor-parallel plan of transformers beside a spec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpspec.cli.arguments import json_option, spec_option, tp_option

if TYPE_CHECKING:
    from tpspec.plan_diff import PlanDiff

EPILOG = """\b
Examples:
  tpspec diff ./Llama-3-70B --tp 8
  tpspec diff cohere --tp 4
  tpspec diff plan.json --config ./Llama-3-70B --tp 16 --json
"""


@click.command("diff", epilog=EPILOG)
@click.argument("plan")
@tp_option(required=True)
@click.option("--config", metavar="PATH", help="The model that a plan file is for, as validate takes it.")
@spec_option
@json_option
def command(plan: str, tp: int, config: str | None, spec_file: Path | None, as_json: bool) -> None:
    """Compare a tensor-parallel plan of transformers with the spec, and say what each difference costs.

    PLAN is a model, as `tpspec validate` takes it, or a model type: then the plan is the one that
    transformers has for it. Or it is a JSON or YAML file of patterns and styles, and --config says
    for which model. Costs are in bytes that a rank holds, and bytes that a token's pass exchanges.
    """
    from tpspec.plan_diff import as_json as to_json
    from tpspec.plan_diff import diff_plan
    from tpspec.resolve import choose_spec, resolve

    values, styles = _read(plan, config)
    diff = diff_plan(resolve(choose_spec(values, spec_file), values), styles, tp)
    if as_json:
        click.echo(json.dumps(to_json(diff), indent=2))
    else:
        _print(plan, diff)


def _read(plan: str, config: str | None) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The model's config and the plan."""
    from tpspec.config import model_types
    from tpspec.hub import locate

    styles = _plan_file(Path(plan))
    if styles is not None:
        if config is None:
            raise click.UsageError(f"{plan} is a plan: say for which model with --config PATH")
        return locate(config).config, styles
    if config is not None:
        raise click.UsageError("--config goes with a plan file")
    from tpspec.runtime.tp_plans import default_config, plan_of

    if not Path(plan).exists() and "/" not in plan:
        return default_config(plan), plan_of(plan)
    values = locate(plan).config
    return values, plan_of(model_types(dict(values))[0])


def _plan_file(path: Path) -> dict[str, str] | None:
    """The plan in a file; None for what is no plan file, such as a config.json."""
    from tpspec.errors import TpspecError
    from tpspec.language.yaml_source import read_document

    if path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return None
    data = read_document(path, str(path), "plan").data
    if isinstance(data, dict) and "model_type" in data:
        return None
    if not isinstance(data, dict) or not data or not all(isinstance(style, str) for style in data.values()):
        raise TpspecError(
            f"{path} is no plan", remedy='write {"layers.*.self_attn.q_proj": "colwise", …}: patterns, styles'
        )
    return {str(pattern): style for pattern, style in data.items()}


def _print(plan: str, diff: PlanDiff) -> None:
    from tpspec.cli.tables import head, print_columns, print_wrapped
    from tpspec.quantities import size

    if diff.differences:
        lines = [head("module", "spec", "plan", "difference", "rank", "token")]
        lines += [
            [
                found.module,
                click.style(found.ours, fg="cyan"),
                click.style(found.theirs, fg="yellow"),
                found.says,
                _more(found.rank_bytes),
                _more(found.token_bytes),
            ]
            for found in diff.differences
        ]
        print_columns(lines, indent=0, flexible=3)
    more = _more(diff.more_per_rank) or "as much"
    held = f"a rank holds {size(diff.rank_bytes)} by the spec, {more} by the plan"
    exchanged = f"; {_more(diff.more_per_token)} exchanged per token" if diff.more_per_token else ""
    print_wrapped(f"{plan} at tp={diff.tp}: {diff.alike} tensors alike; {held}{exchanged}", below="  ")
    for pattern in diff.unmatched:
        numbered = any(piece.isdecimal() for piece in pattern.split("."))
        hint = ": plans write * in the place of numbers" if numbered else ""
        click.echo(click.style(f"the plan's {pattern} is no tensor that the spec names{hint}", dim=True))


def _more(count: int) -> str:
    from tpspec.quantities import size

    return f"{'+' if count > 0 else '−'}{size(abs(count))}" if count else ""
