"""What a rank's weights take to load in vLLM: from an export, and from the checkpoint that it was made of.

    PYTHONPATH=.:tests:tests/engines .venv-engines/bin/python benchmarks/engine_load.py --dir /var/tmp

A random Llama of 2.2 GB in bf16, rank 0 of 8, vLLM's own loaders in one process; what the rest of an engine's
start takes does not depend on the files. Pairs alternate; the page cache has the files (warm), or not (cold).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import vllm_ranks
from convert import BLOCK, CONFIG, RESULTS, TP, write_model

PAIRS = 3


STATES = ("warm", "cold")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to put the model and its export (5 GB)")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    vllm_ranks.start()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        source, out = write_model(Path(folder) / "source", CONFIG), Path(folder) / "out"
        exporting = [
            sys.executable,
            "-m",
            "tpspec",
            "export",
            source,
            out,
            "--engine",
            "vllm",
            "--tp",
            str(TP),
        ]
        subprocess.run(exporting, check=True)
        formats = {"checkpoint": (source, "auto"), "export": (out, "sharded_state")}
        times: dict[str, list[float]] = {f"{kind}, {state}": [] for kind in formats for state in STATES}
        for _ in range(PAIRS):
            for state in STATES:
                for kind, (path, load_format) in formats.items():
                    touch(path, warm=state == "warm")
                    start = time.perf_counter()
                    vllm_ranks.load(path, TP, 0, load_format)
                    times[f"{kind}, {state}"].append(round(time.perf_counter() - start, 2))
    report = {
        "command": shlex.join(["python", "benchmarks/engine_load.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "vllm": vllm_ranks.VERSION,
        "load_before": round(load, 1),
        "seconds": times,
    }
    (RESULTS / "engine_load.json").write_text(json.dumps(report, indent=2) + "\n")
    lines = [
        "| rank 0 of 8, loaded from | seconds, median | |",
        "|---|---|---|",
        *(f"| the {kind} | {median(of_kind):.2f} | {of_kind} |" for kind, of_kind in times.items()),
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
