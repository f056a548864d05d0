"""`tpspec schema`: the spec language as a JSON schema."""

from __future__ import annotations

import json

import click

EPILOG = """\b
Example:
  tpspec schema > tpspec.schema.json
  # first line of your YAML, for editors with a YAML language server:
  # yaml-language-server: $schema=tpspec.schema.json
"""


@click.command("schema", epilog=EPILOG)
def command() -> None:
    """Print the JSON schema of spec files, so that an editor completes and checks them."""
    from tpspec.language.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))
