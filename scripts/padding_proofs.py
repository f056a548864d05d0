"""`make padding-proofs`: proves each spec that changed with padding, and writes docs/padding_proofs.json.

make padding-proofs          proves what is not yet in docs/padding_proofs.json
… padding_proofs.py --all     proves everything again, about ten minutes: after a change of padding

Each decoder type's tiny model at tp 3 and 5, which divide hardly anything, in both orders of cost. What is
not proved is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it finds `scripts` too

from scripts.proofs import ROOT, as_text, decoders, of_type
from scripts.spec_keys import proof_key
from tpspec.errors import TpspecError
from tpspec.language.registry import built_in_index
from tpspec.language.spec import Spec
from tpspec.padding import ORDERS, Order

PROOFS = ROOT / "docs" / "padding_proofs.json"
SIZES = (3, 5)


def read_proofs() -> dict[str, Any]:
    """Model type → the key of what was proved, and for each order what each tp gave."""
    return json.loads(PROOFS.read_text()) if PROOFS.exists() else {}


def kinds() -> list[str]:
    """The decoder types that have a spec."""
    return [kind for kind in decoders() if kind in built_in_index()]


def prove_padded(spec: Spec, order: Order) -> dict[str, Any]:
    """What a type's tiny model gives at each size: the error and the collectives, or the failure."""
    from tpspec.runtime.prove import prove, tiny_subject

    found: dict[str, Any] = {}
    try:
        with tiny_subject(spec, pad=order) as subject:
            for tp in SIZES:
                proof = prove(subject, tp)
                result = {"error": float(f"{proof.error:.1e}"), **proof.counted}
                found[str(tp)] = result if proof.holds else {"failure": proof.failure.splitlines()[0]}
    except (TpspecError, RuntimeError) as error:
        found["failure"] = str(error).splitlines()[0]
    return found


def failures(proofs: Mapping[str, Any]) -> list[str]:
    """Every type and order that is not proved at every size."""
    return [
        f"{kind} {order}: {json.dumps(found)}"
        for kind, proof in proofs.items()
        for order, found in proof.items()
        if order in ORDERS and any("error" not in found.get(str(tp), ()) for tp in SIZES)
    ]


def main() -> None:
    import torch

    from tpspec.runtime.model_code import register_code

    register_code(None)
    torch.set_num_threads(1)
    known = {} if "--all" in sys.argv else read_proofs()
    proofs = {kind: known[kind] for kind in kinds() if kind in known}
    for kind in kinds():
        spec = of_type(kind)
        if proofs.get(kind, {}).get("key") != proof_key(spec):
            proofs[kind] = {"key": proof_key(spec), **{order: prove_padded(spec, order) for order in ORDERS}}
            PROOFS.write_text(as_text(proofs))
    print(*failures(proofs), f"{len(proofs)} model types", sep="\n")


if __name__ == "__main__":
    main()
