"""`tpspec init`: a draft of the spec of an architecture that has none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import code_option

if TYPE_CHECKING:
    from tpspec.drafting.evidence import Evidence

EPILOG = """\b
Examples:
  tpspec init ./my-model --out my-model.yaml
  tpspec init ./my-model --code modeling_mine.py --out my-model.yaml
  tpspec init starcoder2
"""


@click.command("init", epilog=EPILOG)
@click.argument("what", metavar="PATH|MODEL_TYPE")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write here, not to stdout.")
@code_option
def command(what: str, out: Path | None, code: Path | None) -> None:
    """Draft a spec for an architecture, from names, shapes and how they move with the config.

    PATH is a checkpoint directory (its headers are read). Where transformers has the architecture, or
    FILE of --code registers it, small models are built: what changes size with the number of heads is cut
    by heads. What shapes do not tell, such as the order within a fused matrix, is marked `# guessed`.
    """
    from tpspec.drafting.document import draft
    from tpspec.drafting.relatives import nearest
    from tpspec.errors import TpspecError

    if out and out.exists():
        raise TpspecError(f"{out} is there already", remedy="name another file, or move this one away")
    evidence = _evidence(what, code)
    text = draft(evidence, out.stem if out else evidence.model_type.replace("/", "-"))
    if out is None:
        click.echo(text, nl=False)
        return
    out.write_text(text)
    guesses, relative = text.count("# guessed"), nearest(out)
    click.echo(f"wrote {out}: {guesses} {'guess' if guesses == 1 else 'guesses'} to look at")
    if relative:
        alike = f"has {relative.alike} of its rules, and {relative.different} differ"
        click.echo(f"specs/{relative.name}.yaml {alike}")
    prove = f"tpspec prove {out}" + (f" --code {code}" if code else "")
    click.echo(f"then: {prove if evidence.ran else f'tpspec validate {what} --spec {out} --tp 2'}")


def _evidence(what: str, code: Path | None) -> Evidence:
    from tpspec.config import model_types
    from tpspec.drafting.from_checkpoint import seen_on_disk
    from tpspec.errors import TpspecError
    from tpspec.hub import locate

    located = locate(what) if Path(what).exists() or "/" in what else None
    try:
        from tpspec.runtime.drafting import observe
    except ModuleNotFoundError:
        if located is None:
            raise
        return seen_on_disk(located)
    from tpspec.runtime.model_code import register_code

    register_code(code)
    if located is None:
        return observe(what)
    try:
        return observe(model_types(located.config)[0], located.config)
    except TpspecError as error:
        click.echo(f"{error.message}: names and shapes have to do", err=True)
        return seen_on_disk(located)
