"""`make architectures`: proves the specs that changed, and writes docs/architectures.md.

make architectures          proves what is not yet in docs/proofs.json
… make_architectures.py --all     proves everything again: after a change of the runtime
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it finds `scripts` too

from scripts.proofs import DECODERS, ROOT, SIZES, decoders, read_proofs, renew, undone
from tpspec.language.registry import built_in_index, spec_named
from tpspec.language.spec import Spec
from tpspec.language.tags import TAGS

TABLE = ROOT / "docs" / "architectures.md"
HEAD = """\
<!-- written by `make architectures` from the specs, docs/proofs.json and docs/undone_architectures.yaml -->
# Architectures

{total} decoder-only model types are in the causal-LM table of transformers {version} ([how they were
picked](decoders.yaml)); {specs} have a spec, and {proved} of these are proved at tp 2 and 4. transformers
itself has a tensor parallel plan for {planned}.

*Proved*: a tiny random model of the type, converted, run on that many ranks, gives the unsharded model's
logits (fp32, relative error below 1e-5, prefill and 8 cached steps) with the collectives that the tags
imply, and merges back byte for byte; `tpspec prove TYPE` does it again. *Copied above* names the config
value beyond which KV heads are copied onto several ranks; without one, tp ends where the heads do. *Plan*:
whether transformers can cut the type by itself.

"""
NOTE = """\
Their specs convert, verify and merge; model code that transformers lacks has to come from elsewhere."""


def render(proofs: dict[str, Any]) -> str:
    """The table."""
    index, kinds, reasons = built_in_index(), decoders(), undone()
    rows = [row(kind, spec_named(index[kind]), proofs[kind]) for kind in kinds if kind in index]
    counts = {
        "total": len(kinds),
        "version": yaml.safe_load(DECODERS.read_text())["transformers"],
        "specs": len(rows),
        "proved": sum({"2", "4"} <= proved_sizes(proofs[kind]) for kind in kinds if kind in index),
        "planned": f"{sum(proofs[kind]['plan'] for kind in kinds if kind in index)} of them",
    }
    lines = [
        "| model type | spec | tags | proved at tp | copied above | plan |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    left = [f"| {kind} | {reasons.get(kind, 'not written yet')} |" for kind in kinds if kind not in index]
    if left:
        lines += ["", "## Without a spec", "", "| model type | why |", "|---|---|", *left]
    others = [kind for kind in index if kind not in kinds]
    lines += ["", "## Model types outside that table", ""]
    lines += [
        NOTE,
        "",
        ", ".join(f"{kind} ([{index[kind]}](../specs/{index[kind]}.yaml))" for kind in others),
    ]
    return HEAD.format(**counts) + "\n".join(lines) + "\n"


def row(kind: str, spec: Spec, proof: dict[str, Any]) -> str:
    """One model type's line."""
    used = {placed.rule.tag for placed in spec.rules}
    tags = ", ".join(tag for tag in TAGS if tag in used and tag not in ("replicated", "drop", "unused"))
    copied = [str(axis.units) for axis in spec.axes.values() if axis.replicate]
    sizes = proved_sizes(proof)
    proved = ", ".join(str(tp) for tp in SIZES if str(tp) in sizes) or "**not proved**"
    spec_link = f"[{spec.name}](../specs/{spec.name}.yaml)"
    cells = (
        kind,
        spec_link,
        tags,
        proved,
        " ".join(f"`{units}`" for units in copied),
        "yes" if proof["plan"] else "",
    )
    return f"| {' | '.join(cells)} |"


def proved_sizes(proof: dict[str, Any]) -> set[str]:
    return {tp for tp, result in proof["tp"].items() if "failure" not in result}


def main() -> None:
    renew(everything="--all" in sys.argv)
    proofs = read_proofs()
    TABLE.write_text(render(proofs))
    for kind, proof in proofs.items():
        faults = [proof.get("failure")] + [
            f"tp={tp}: {r['failure']}" for tp, r in proof["tp"].items() if "failure" in r
        ]
        for fault in filter(None, faults):
            print(f"{kind} ({proof['spec']}): {fault}")
    for kind in set(decoders()) - built_in_index().keys() - undone().keys():
        print(f"{kind} has neither a spec nor a reason in docs/undone_architectures.yaml")


if __name__ == "__main__":
    main()
