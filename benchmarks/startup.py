"""How long a command takes to start, above a bare interpreter.

    python benchmarks/startup.py

Each round runs a bare interpreter and then each command, so that a busy machine slows all alike; the
result is the median over rounds of (command - bare interpreter in the same round).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROUNDS = 21
RESULTS = Path(__file__).parent / "results"
TPSPEC = str(Path(sys.executable).with_name("tpspec"))
CONFIG = "tests/models/Meta-Llama-3-70B/config.json"
BARE = [sys.executable, "-c", "pass"]
TARGETS = {
    "tpspec --help": 0.2,
    f"tpspec validate {CONFIG} --tp 8": 0.4,
    f"tpspec plan {CONFIG} --tp 1,2,4,8,16": 0.5,
}
"""Command → the most seconds that it should take above a bare interpreter."""


def main() -> None:
    commands = {line: [TPSPEC, *line.split()[1:]] for line in TARGETS}
    for command in (BARE, *commands.values()):
        seconds(command)  # warms the page cache and the bytecode cache
    bare: list[float] = []
    above: dict[str, list[float]] = {line: [] for line in commands}
    for _ in range(ROUNDS):
        bare.append(seconds(BARE))
        for line, command in commands.items():
            above[line].append(seconds(command) - bare[-1])
    report = {
        "command": "python benchmarks/startup.py",
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        "rounds": ROUNDS,
        "bare_interpreter_s": round(median(bare), 4),
        "above_it_s": {
            line: {"median": round(median(times), 4), "max": round(max(times), 4), "target": TARGETS[line]}
            for line, times in above.items()
        },
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "startup.json").write_text(json.dumps(report, indent=2) + "\n")
    table = markdown(report)
    (RESULTS / "startup.md").write_text(table)
    print(table, end="")


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def markdown(report: dict) -> str:
    lines = [
        f"Start-up above a bare interpreter ({ms(report['bare_interpreter_s'])}): {report['rounds']} rounds.",
        f"{report['machine']}; `{report['command']}`",
        "",
        "| command | median | worst | target |",
        "|---|---|---|---|",
    ]
    for line, row in report["above_it_s"].items():
        lines.append(f"| `{line}` | {ms(row['median'])} | {ms(row['max'])} | {ms(row['target'])} |")
    return "\n".join(lines) + "\n"


def ms(time_s: float) -> str:
    return f"{1000 * time_s:.0f} ms"


if __name__ == "__main__":
    main()
