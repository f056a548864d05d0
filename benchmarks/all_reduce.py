"""How long an all-reduce takes between the ranks of one machine, in each kind of collectives.

    python benchmarks/all_reduce.py

Each round launches every kind in turn, so that a busy machine slows all alike; a figure is the median over
rounds of rank 0's median over calls. 4 KiB is a token of a model of hidden size 2048 in bf16, 2 MiB
a prompt of 512 of them.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from statistics import median
from typing import get_args

import all_reduce_rank
import torch

from tpspec.runtime.launch import Kind, launch

ROUNDS = 5
CALLS = {4: 500, 64: 100, 2048: 20}
"""KiB of a message → how often it is sent in a round; by gloo a tenth as often."""
TP = (2, 8)
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    times: dict[tuple[int, int, str], list[float]] = {}
    for _ in range(ROUNDS):
        for tp in TP:
            for kind in get_args(Kind):
                calls = {kib: count // 10 if kind == "gloo" else count for kib, count in CALLS.items()}
                for kib, took in launch(tp, all_reduce_rank.microseconds, (calls,), kind=kind).items():
                    times.setdefault((tp, kib, kind), []).append(took)
    report = {
        "command": "python benchmarks/all_reduce.py",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "rounds": ROUNDS,
        "microseconds": {
            f"tp {tp}, {kib} KiB, {kind}": {"median": round(median(took)), "all": [round(t) for t in took]}
            for (tp, kib, kind), took in times.items()
        },
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "all_reduce.json").write_text(json.dumps(report, indent=2) + "\n")
    table = markdown(times)
    (RESULTS / "all_reduce.md").write_text(table)
    print(table, end="")


def markdown(times: dict[tuple[int, int, str], list[float]]) -> str:
    kinds = get_args(Kind)
    lines = [f"| bf16 all-reduce, µs | {' | '.join(kinds)} |", f"|---|{'---:|' * len(kinds)}"]
    for tp in TP:
        for kib in CALLS:
            cells = " | ".join(f"{median(times[tp, kib, kind]):.0f}" for kind in kinds)
            lines.append(f"| tp {tp}, {kib} KiB | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
