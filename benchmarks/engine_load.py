"""What vLLM takes to start from an export, and from the checkpoint that it was made of.

    PYTHONPATH=.:tests:tests/engines .venv-engines/bin/python benchmarks/engine_load.py --dir /var/tmp

A random Llama of 2.2 GB in bf16. First the weights alone: rank 0 of 8, vLLM's own loaders in one process,
with the files in the page cache (warm) and not (cold). Then the whole engine at tp 2, from the command to the
first prompt taken, warm. Pairs alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import vllm_ranks
from convert import BLOCK, RESULTS
from random_llama import write_llama
from vllm_tokens import export, generate

PAIRS = 3
FORMATS = {"checkpoint": "auto", "export": "sharded_state"}
OF_WEIGHTS, OF_ENGINE = 8, 2
"""The tp of each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to put the model and its exports (7 GB)")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        folder = Path(name)
        source = write_llama(folder / "source")
        exports = {tp: export(source, folder / f"tp{tp}", tp) for tp in (OF_WEIGHTS, OF_ENGINE)}
        vllm_ranks.start()
        for _ in range(PAIRS):
            for state in ("warm", "cold"):
                for kind, load_format in FORMATS.items():
                    path = source if kind == "checkpoint" else exports[OF_WEIGHTS]
                    touch(path, warm=state == "warm")
                    start = time.perf_counter()
                    vllm_ranks.load(path, OF_WEIGHTS, 0, load_format)
                    seconds = time.perf_counter() - start
                    times[f"weights of rank 0 of {OF_WEIGHTS}, {state}, {kind}"].append(round(seconds, 2))
        for _ in range(PAIRS):
            for kind, load_format in FORMATS.items():
                path = source if kind == "checkpoint" else exports[OF_ENGINE]
                touch(path, warm=True)
                seconds = generate(path, OF_ENGINE, load_format=load_format).start
                times[f"the engine at tp {OF_ENGINE}, warm, {kind}"].append(round(seconds, 1))
    report = {
        "command": shlex.join(["python", "benchmarks/engine_load.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "vllm": vllm_ranks.VERSION,
        "load_before": round(load, 1),
        "seconds": times,
    }
    (RESULTS / "engine_load.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = [
        "| what starts, from what | seconds, median | |",
        "|---|---|---|",
        *(f"| {of_kind} | {median(seconds)} | {seconds} |" for of_kind, seconds in times.items()),
    ]
    where = f"vLLM {report['vllm']}; {report['machine']}; load average before: {report['load_before']}"
    table = f"`{report['command']}`\n\n{where}\n\n" + "\n".join(lines) + "\n"
    (RESULTS / "engine_load.md").write_text(table)
    print(table, end="")


def touch(folder: Path, *, warm: bool) -> None:
    """Has a folder's files in the page cache, or takes them out of it."""
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            if warm:
                while file.read(BLOCK):
                    pass
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
