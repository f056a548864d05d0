"""Proofs of the specs, kept in docs/proofs.json, so that only specs that changed are proved again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tpspec.language.registry import built_in_index, spec_named

ROOT = Path(__file__).parent.parent
PROOFS = ROOT / "docs" / "proofs.json"
DECODERS = ROOT / "docs" / "decoders.yaml"
UNDONE = ROOT / "docs" / "undone_architectures.yaml"
SIZES = (2, 4, 8)
AT_ONCE = 12
"""Model types that one process proves: importing torch takes longer than a proof, and memory grows."""


def decoders() -> list[str]:
    """The decoder types of transformers' causal-LM mapping."""
    return sorted(yaml.safe_load(DECODERS.read_text())["decoders"])


def provable() -> list[str]:
    """The specs of these types; for the others transformers has no model."""
    index = built_in_index()
    return sorted({index[kind] for kind in decoders() if kind in index})


def undone() -> dict[str, str]:
    """Model type → why it has no spec."""
    return yaml.safe_load(UNDONE.read_text()) or {}


def read_proofs() -> dict[str, Any]:
    """Model type → its spec's sha256 when it was proved, and what each tp gave."""
    return json.loads(PROOFS.read_text()) if PROOFS.exists() else {}


def stale(proofs: dict[str, Any]) -> list[str]:
    """The decoder types whose spec is another than the one that was proved."""
    index = built_in_index()
    return [
        kind
        for kind in decoders()
        if kind in index and proofs.get(kind, {}).get("sha256") != spec_named(index[kind]).sha256
    ]


def renew(*, everything: bool = False) -> dict[str, Any]:
    """Proves what is stale, in one process after another, and writes docs/proofs.json after each."""
    index = built_in_index()
    proofs = {kind: proof for kind, proof in read_proofs().items() if kind in index and kind in decoders()}
    todo = [kind for kind in decoders() if kind in index] if everything else stale(proofs)
    for start in range(0, len(todo), AT_ONCE):
        command = [sys.executable, __file__, *todo[start : start + AT_ONCE]]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        proofs |= dict(map(json.loads, result.stdout.splitlines()))
        PROOFS.write_text(as_text(proofs))
    return proofs


def as_text(proofs: dict[str, Any]) -> str:
    """One line for each model type."""
    lines = (f" {json.dumps(kind)}: {json.dumps(proofs[kind])}" for kind in sorted(proofs))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def prove_types(kinds: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each model type's tiny model gives at 2, 4 and 8, where these fit."""
    from dataclasses import replace

    import torch

    from tpspec.errors import TpspecError
    from tpspec.runtime.model_code import register_code
    from tpspec.runtime.prove import prove, tiny_subject

    register_code(None)
    torch.set_num_threads(1)
    for kind in kinds:
        spec = spec_named(built_in_index()[kind])
        proved: dict[str, Any] = {"spec": spec.name, "sha256": spec.sha256, "plan": has_plan(kind), "tp": {}}
        try:
            with tiny_subject(replace(spec, model_types=(kind,))) as subject:
                for tp in filter(subject.resolution.fits, SIZES):
                    proof = prove(subject, tp)
                    proved["tp"][str(tp)] = (
                        {"error": float(f"{proof.error:.1e}"), **proof.counted}
                        if proof.holds
                        else {"failure": proof.failure.splitlines()[0]}
                    )
        except (TpspecError, RuntimeError) as error:
            proved["failure"] = str(error).splitlines()[0]
        yield kind, proved


def has_plan(kind: str) -> bool:
    """Whether transformers has a tensor parallel plan of its own for a model type or its text model."""
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]
    text = config.sub_configs.get("text_config")
    return any(getattr(each, "base_model_tp_plan", None) for each in (config, text) if each)


if __name__ == "__main__":
    for pair in prove_types(sys.argv[1:]):
        print(json.dumps(pair), flush=True)
