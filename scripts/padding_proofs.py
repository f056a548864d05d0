"""`make padding-proofs`: proves every spec with padding, and writes docs/padding_proofs.json.

Opt-in, about ten minutes. Each decoder type's tiny model at tp 3 and 5, which divide hardly anything, in
both orders of cost. What is not proved is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it finds `scripts` too

from scripts.proofs import ROOT, as_text, decoders, of_type
from tpspec.errors import TpspecError
from tpspec.language.registry import built_in_index
from tpspec.padding import ORDERS, Order

PROOFS = ROOT / "docs" / "padding_proofs.json"
SIZES = (3, 5)


def prove_padded(kind: str, order: Order) -> dict[str, Any]:
    """What a type's tiny model gives at each size: the error and the collectives, or the failure."""
    from tpspec.runtime.prove import prove, tiny_subject

    found: dict[str, Any] = {}
    try:
        with tiny_subject(of_type(kind), pad=order) as subject:
            for tp in SIZES:
                proof = prove(subject, tp)
                result = {"error": float(f"{proof.error:.1e}"), **proof.counted}
                found[str(tp)] = result if proof.holds else {"failure": proof.failure.splitlines()[0]}
    except (TpspecError, RuntimeError) as error:
        found["failure"] = str(error).splitlines()[0]
    return found


def failures(proofs: dict[str, Any]) -> list[str]:
    """Every type, order and size that is not proved."""
    return [
        f"{kind} {order}: {json.dumps(found)}"
        for kind, orders in proofs.items()
        for order, found in orders.items()
        if any("failure" in result for result in (found, *found.values())) or len(found) < len(SIZES)
    ]


def main() -> None:
    import torch

    from tpspec.runtime.model_code import register_code

    register_code(None)
    torch.set_num_threads(1)
    kinds = sys.argv[1:] or [kind for kind in decoders() if kind in built_in_index()]
    proofs = json.loads(PROOFS.read_text()) if sys.argv[1:] and PROOFS.exists() else {}
    for kind in kinds:
        proofs[kind] = {order: prove_padded(kind, order) for order in ORDERS}
        PROOFS.write_text(as_text(proofs))
    print(*failures(proofs), f"{len(proofs)} model types", sep="\n")


if __name__ == "__main__":
    main()
