"""`tpspec prove`: the test of a spec."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpspec.cli.arguments import code_option, json_option, pad_option, spec_option, tp_list
from tpspec.errors import TpspecError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tpspec.language.spec import Spec
    from tpspec.layout import Layout
    from tpspec.padding import Order
    from tpspec.runtime.proof import Proof
    from tpspec.runtime.prove import Subject

USUAL = (2, 4, 8)
MUCH = 0.2
"""Fraction of a model that is worth a note where no rank's share of it is smaller."""
EPILOG = """\b
Examples:
  tpspec prove mixtral
  tpspec prove ./my-model.yaml --tp 2,4,8
  tpspec prove ./SmolLM2 --tp 3
  tpspec prove llama --tp 3,5 --pad
"""


@click.command("prove", epilog=EPILOG)
@click.argument("what", metavar="ARCH|SPEC|PATH")
@click.option(
    "--tp", callback=tp_list, metavar="N[,N...]", help="Sizes to prove; 2, 4 and 8 where they fit, if unsaid."
)
@pad_option
@spec_option
@code_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    what: str,
    tp: tuple[int, ...],
    pad: Order | None,
    spec_file: Path | None,
    code: Path | None,
    as_json: bool,
) -> None:
    """Prove that a spec cuts its architecture rightly.

    For an architecture or a spec file, a tiny random model is made from its config class; for a
    checkpoint directory, the model itself is taken. At each tp it is converted and merged again byte
    for byte, and every rank is run: the logits of a prompt and of 8 cached steps have to be those of
    the unsharded model (fp32, relative error below 1e-5), and the collectives those that the tags
    imply. A failure names the first module whose output differs.
    """
    from tpspec.runtime.model_code import register_code
    from tpspec.runtime.prove import prove

    register_code(code)
    spec, path = _spec_of(what, spec_file)
    proofs = []
    with _subject(what, spec, path, pad) as subject:
        for size in tp or [size for size in USUAL if subject.resolution.fits(size)]:
            proofs.append(prove(subject, size))
            if not as_json:
                _print(spec.name, proofs[-1])
        if proofs and not as_json and all(proof.holds for proof in proofs):
            _note_whole(subject.resolution.layout(proofs[-1].tp))
    if as_json:
        click.echo(json.dumps({"spec": spec.name, "proofs": [proof.as_json() for proof in proofs]}, indent=2))
    ctx.exit(0 if all(proof.holds for proof in proofs) else 1)


def _spec_of(what: str, spec_file: Path | None) -> tuple[Spec, Path | None]:
    from tpspec.checkpoint import is_presharded
    from tpspec.hub import locate
    from tpspec.language import registry
    from tpspec.resolve import choose_spec

    if Path(what).is_dir():
        if is_presharded(Path(what)):
            remedy = f"give the checkpoint itself; tpspec merge {what} DIR rebuilds it"
            raise TpspecError(f"{what} is cut already, and a proof begins with a whole model", remedy=remedy)
        return choose_spec(locate(what).config, spec_file), spec_file
    if Path(what).suffix in (".yaml", ".yml"):
        return registry.spec_from_file(Path(what)), Path(what)
    return registry.spec_named(registry.built_in_index().get(what, what)), None


def _subject(what: str, spec: Spec, path: Path | None, pad: Order | None) -> AbstractContextManager[Subject]:
    from tpspec.runtime.prove import checkpoint_subject, tiny_subject

    if Path(what).is_dir():
        return nullcontext(checkpoint_subject(Path(what), spec, path, pad))
    return tiny_subject(spec, path, pad=pad)


def _note_whole(layout: Layout) -> None:
    """Says so where a proof holds because much of the model is on every rank."""
    from tpspec.runtime.proof import held_whole

    share, names = held_whole(layout)
    if share > MUCH:
        click.echo(f"note: {share:.0%} of the weights are whole on every rank: {', '.join(names)}")


def _print(name: str, proof: Proof) -> None:
    size = f"{name} tp={proof.tp}"
    if proof.holds:
        counts = ", ".join(f"{n} {kind.replace('_', '-')}" for kind, n in proof.counted.items())
        proved = click.style("proved", fg="green", bold=True)
        within = f"logits within {proof.error:.1e}{_rounding(proof)}"
        click.echo(f"{proved} {size}: {within}, {counts} per pass, merged byte for byte")
    else:
        click.echo(f"{click.style('not proved', fg='red', bold=True)} {size}: {proof.failure}")


def _rounding(proof: Proof) -> str:
    """Said where more than the usual error is let pass."""
    from tpspec.runtime.proof import BOUND

    return f" (up to {proof.bound:.1e}, for rounding alone moves them)" if proof.bound > BOUND else ""
