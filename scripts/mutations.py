"""`make mutations`: changes one thing of each spec at a time; docs/mutations.md says what nobody notices.

make mutations                              all specs that cut otherwise than docs/mutations.json says
… scripts/mutations.py --specs llama,phi3   these
… scripts/mutations.py --all                everything again: after a change of the checks or the runtime
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it finds `scripts` too

from scripts.proofs import provable
from scripts.spec_keys import mutation_key
from tpspec.language.registry import spec_named

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "mutations.json"
TABLE = ROOT / "docs" / "mutations.md"
EQUIVALENT = ROOT / "docs" / "equivalent_mutants.yaml"
AT_ONCE = 4
SHOWN = 12
"""Of more specs than this the table gives but their number."""
UNEXPLAINED = "**not explained**"
KINDS = ("tag", "part", "width", "bias", "reduce")
HEAD = """\
<!-- written by `make mutations` from docs/mutations.json and docs/equivalent_mutants.yaml -->
# Mutations

Each rule of a spec is changed in one way at a time: its tag, a part of it or their order, a width, whether
there is a bias, where its sum is reduced. A wrong spec has to be noticed: by the checks of the spec itself,
by those against a checkpoint, or by the proof at tp 2, 4 and 8. Of {total} mutants of {specs} specs, {caught}
were.

| change | mutants | survive |
|---|---|---|
{kinds}

## Survivors

One that is not explained is a gap in the proof: most often a tiny model that has as many units of two
axes, so that nothing tells them apart.

{survivors}
"""


def why(spec: str, rule: str, change: str) -> str:
    """Why a mutant is no fault; empty where nobody has said so."""
    return next((entry["why"] for entry in read_reasons() if fits(entry, spec, rule, change)), "")


@cache
def read_reasons() -> list[dict[str, str]]:
    """Which mutants are right all the same, and why."""
    reasons: list[dict[str, str]] = yaml.safe_load(EQUIVALENT.read_text())
    return reasons


def fits(entry: dict[str, str], spec: str, rule: str, change: str) -> bool:
    """Whether a reason is for this mutant."""
    said = (("spec", spec), ("rule", rule), ("change", change))
    return all(re.fullmatch(entry.get(key, ".*"), text) for key, text in said)


def try_all(names: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each spec, how many mutants of each kind there are, and which survive."""
    import torch

    from scripts.mutants import caught, mutants
    from tpspec.runtime.model_code import register_code
    from tpspec.runtime.prove import tiny_subject

    register_code(None)
    torch.set_num_threads(1)
    for name in names:
        spec = spec_named(name)
        tried: Counter[str] = Counter()
        survivors = []
        with tiny_subject(spec) as subject:
            for mutant in mutants(subject):
                tried[mutant.kind] += 1
                if not caught(subject, mutant.spec):
                    survivors.append([mutant.kind, mutant.rule, mutant.change])
        yield name, {"key": mutation_key(spec), "mutants": dict(tried), "survivors": survivors}


def render(results: dict[str, Any]) -> str:
    """The report: counts, and every survivor with the reason why it is none."""
    tried: Counter[str] = sum((Counter(result["mutants"]) for result in results.values()), Counter())
    alive = [(name, *each) for name, result in results.items() for each in result["survivors"]]
    lost = Counter(kind for _, kind, _, _ in alive)
    kinds = "\n".join(f"| {kind} | {tried[kind]} | {lost[kind]} |" for kind in KINDS)
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, _, rule, change in alive:
        reason = why(name, rule, change) or UNEXPLAINED
        groups.setdefault((change, reason), {}).setdefault(name, []).append(f"`{rule}`")
    rows = [
        f"| {change} | {reason} | {places(where)} |" for (change, reason), where in sorted(groups.items())
    ]
    table = "\n".join(["| change | why it is no fault | where |", "|---|---|---|", *rows])
    caught = tried.total() - len(alive)
    return HEAD.format(
        total=tried.total(),
        specs=len(results),
        caught=caught,
        kinds=kinds,
        survivors=table if rows else "None.",
    )


def places(where: dict[str, list[str]]) -> str:
    """The rules by spec; of many specs only how many there are."""
    if len(where) > SHOWN:
        return f"{sum(map(len, where.values()))} rules of {len(where)} specs"
    return "; ".join(f"{name} {', '.join(rules)}" for name, rules in where.items())


def read_results() -> dict[str, Any]:
    """Spec → the key of what was changed, how many mutants of each kind it has, and which survive."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def stale(results: dict[str, Any]) -> list[str]:
    """The specs that were not changed yet as they are."""
    keys = {name: mutation_key(spec_named(name)) for name in provable()}
    return [name for name, key in keys.items() if results.get(name, {}).get("key") != key]


def main() -> None:
    known = provable()
    results = {name: result for name, result in read_results().items() if name in known}
    asked = known if "--all" in sys.argv else stale(results)
    if "--specs" in sys.argv:
        asked = sys.argv[sys.argv.index("--specs") + 1].split(",")
    for start in range(0, len(asked), AT_ONCE):
        command = [sys.executable, __file__, "--one-process", *asked[start : start + AT_ONCE]]
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        results |= dict(map(json.loads, result.stdout.splitlines()))
        lines = (f" {json.dumps(name)}: {json.dumps(results[name])}" for name in sorted(results))
        RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    table = render(dict(sorted(results.items())))
    TABLE.write_text(table)
    faults = ["docs/mutations.md has survivors without a reason"] if UNEXPLAINED in table else []
    faults += [f"{name} was not tried to the end" for name in stale(results) if name in asked]
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    if "--one-process" in sys.argv:
        for pair in try_all(sys.argv[2:]):
            print(json.dumps(pair), flush=True)
    else:
        main()
