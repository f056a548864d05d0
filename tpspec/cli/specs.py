"""`tpspec specs`: what is known, and how one architecture is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpspec.cli.arguments import json_option

if TYPE_CHECKING:
    from tpspec.language.schema import Axis, Rule
    from tpspec.language.spec import Spec

EPILOG = """\b
Examples:
  tpspec specs
  tpspec specs mixtral
  tpspec specs ./my-model.yaml
  TPSPEC_PATH=~/specs tpspec specs
"""


@click.command("specs", epilog=EPILOG)
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the specs, or show one with everything that it inherits.

    NAME is an architecture, a model type or a spec file. Specs of your own in the folders that
    TPSPEC_PATH lists stand beside the built-in ones and come first.
    """
    from tpspec.language import registry

    if name is None:
        specs = [registry.spec_named(each) for each in registry.spec_names()]
        _print_list(specs, as_json)
        return
    if Path(name).suffix in (".yaml", ".yml"):
        spec = registry.spec_from_file(Path(name))
    else:
        spec = registry.spec_named(registry.built_in_index().get(name, name))
    click.echo(json.dumps(_as_json(spec), indent=2)) if as_json else _print_spec(spec)


def _print_list(specs: list[Spec], as_json: bool) -> None:
    from tpspec.cli.tables import head, print_columns

    if as_json:
        click.echo(json.dumps([_as_json(spec) for spec in specs], indent=2))
        return
    rows = [head("spec", "extends", "model types")]
    rows += [[spec.name, ", ".join(spec.extends), ", ".join(spec.model_types)] for spec in specs]
    print_columns(rows, indent=0)


def _print_spec(spec: Spec) -> None:
    from tpspec.cli.tables import print_columns

    extends = f", extends {', '.join(spec.extends)}" if spec.extends else ""
    click.echo(f"{click.style(spec.name, bold=True)} ({spec.where}{extends})")
    click.echo(f"model types: {', '.join(spec.model_types)}")
    sections: dict[str, dict[str, str]] = {
        "let": {name: str(e) for name, e in spec.definitions.items()},
        "ranges": {name: " to ".join(map(str, bounds)) for name, bounds in spec.ranges.items()},
        "axes": {name: _axis(axis) for name, axis in spec.axes.items()},
    }
    for title, entries in sections.items():
        if entries:
            click.echo(click.style(title, dim=True))
            print_columns([name, text] for name, text in entries.items())
    click.echo(click.style("modules", dim=True))
    print_columns(
        [
            p.template,
            click.style(p.rule.described(), fg="cyan"),
            _modifiers(p.rule),
            click.style(p.place, dim=True),
        ]
        for p in spec.rules
    )
    if spec.ignore:
        click.echo(f"{click.style('ignore', dim=True)}  {', '.join(spec.ignore)}")


def _axis(axis: Axis) -> str:
    text = f"{axis.units} units" + (f" of {axis.width}" if axis.width else "")
    text += ", copied beyond" if axis.replicate else ""
    return text + (f", each for a group of {axis.groups}" if axis.groups else "")


def _modifiers(rule: Rule) -> str:
    from tpspec.language.tags import TAGS

    fields = type(rule).model_fields
    given = [
        name for name in fields if name in rule.model_fields_set and (fields[name].alias or name) not in TAGS
    ]
    return ", ".join(f"{fields[name].alias or name}: {_plain(getattr(rule, name))}" for name in given)


def _plain(value: Any) -> str:
    from tpspec.language.schema import Norm

    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, Norm):
        return " ".join(filter(None, (value.kind, value.groups, value.gate)))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_json(spec: Spec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "where": spec.where,
        "model_types": list(spec.model_types),
        "extends": list(spec.extends),
        "let": {name: str(e) for name, e in spec.definitions.items()},
        "ranges": {name: [str(e) for e in bounds] for name, bounds in spec.ranges.items()},
        "axes": {name: _axis(axis) for name, axis in spec.axes.items()},
        "rules": [
            {"name": p.template, "tag": p.rule.described(), "modifiers": _modifiers(p.rule), "place": p.place}
            for p in spec.rules
        ],
        "ignore": list(spec.ignore),
    }
