"""Proofs of the specs, kept in docs/proofs.json, so that only specs that changed are proved again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it finds `scripts` too

from scripts.spec_keys import proof_key
from tpspec.errors import TpspecError
from tpspec.language.registry import built_in_index, spec_named
from tpspec.language.spec import Spec

ROOT = Path(__file__).parent.parent
PROOFS = ROOT / "docs" / "proofs.json"
DECODERS = ROOT / "docs" / "decoders.yaml"
UNDONE = ROOT / "docs" / "undone_architectures.yaml"
SIZES = (2, 4, 8)
AT_ONCE = 8
"""Model types that one process proves: importing torch takes longer than a proof, and memory grows."""
PROCESSES = os.cpu_count() or 1


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
    """Model type → the key of what was proved, and what each tp gave."""
    return json.loads(PROOFS.read_text()) if PROOFS.exists() else {}


def stale(proofs: dict[str, Any]) -> list[str]:
    """The decoder types whose spec is another than the one that was proved."""
    index = built_in_index()
    return [
        kind
        for kind in decoders()
        if kind in index and proofs.get(kind, {}).get("key") != proof_key(of_type(kind))
    ]


def of_type(kind: str) -> Spec:
    """The spec of a model type, for that type alone. Raises TpspecError where it is not valid."""
    return replace(spec_named(built_in_index()[kind]), model_types=(kind,))


def renew(*, everything: bool = False) -> dict[str, Any]:
    """Proves what is stale, some types in each process, and writes docs/proofs.json after each.

    A type whose process dies is a failure like others, and is tried again the next time.
    """
    index = built_in_index()
    proofs = {kind: proof for kind, proof in read_proofs().items() if kind in index and kind in decoders()}
    todo = [kind for kind in decoders() if kind in index] if everything else stale(proofs)
    batches = [todo[start : start + AT_ONCE] for start in range(0, len(todo), AT_ONCE)]
    with ThreadPoolExecutor(PROCESSES) as pool:
        for done in as_completed([pool.submit(_in_a_process, batch) for batch in batches]):
            proofs |= done.result()
            PROOFS.write_text(as_text(proofs))
    return proofs


def _in_a_process(kinds: list[str]) -> dict[str, dict[str, Any]]:
    command = [sys.executable, __file__, *kinds]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    proved = dict(map(json.loads, result.stdout.splitlines()))
    for kind in kinds:
        lost = {"spec": built_in_index()[kind], "plan": False, "tp": {}}
        proved.setdefault(kind, lost | {"failure": f"its process ended with {result.returncode}"})
    return proved


def as_text(proofs: dict[str, Any]) -> str:
    """One line for each model type."""
    lines = (f" {json.dumps(kind)}: {json.dumps(proofs[kind])}" for kind in sorted(proofs))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def prove_types(kinds: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each model type's tiny model gives at 2, 4 and 8, where these fit."""
    import torch

    from tpspec.runtime.model_code import register_code
    from tpspec.runtime.prove import prove, tiny_subject

    register_code(None)
    torch.set_num_threads(1)
    for kind in kinds:
        spec = of_type(kind)
        proved: dict[str, Any] = {"spec": spec.name, "key": proof_key(spec), "plan": has_plan(kind), "tp": {}}
        try:
            with tiny_subject(spec) as subject:
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
