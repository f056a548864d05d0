"""`tpspec export --engine vllm --tp 8` beside `tpspec convert --tp 8`, on a random Llama of 2.2 GB in bf16.

    python benchmarks/export.py --dir /var/tmp

As benchmarks/convert.py measures: the source is warm in the page cache, pairs alternate, the ratio is that of
the medians, and memory is the most private memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from convert import CONFIG, PAIRS, RESULTS, TP, TPSPEC, convert, peak_private, write_model

TARGET_RATIO = 1.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to put the model and its copies (7 GB)")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        source, out = write_model(Path(name) / "source", CONFIG), Path(name) / "out"
        commands = {"convert": convert(source, out), "export": export(source, out)}
        times: dict[str, list[float]] = {kind: [] for kind in commands}
        for pair in range(PAIRS + 1):
            for kind, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                if pair:  # the first pair warms the page cache
                    times[kind].append(round(time.perf_counter() - start, 2))
                shutil.rmtree(out)
                os.sync()
        memory = {}
        for kind, command in commands.items():
            memory[kind] = peak_private(command)
            shutil.rmtree(out)
    report = {
        "command": shlex.join(["python", "benchmarks/export.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}",
        "load_before": round(load, 1),
        "seconds": times,
        "ratio_of_medians": round(median(times["export"]) / median(times["convert"]), 3),
        "private_mib": memory,
    }
    (RESULTS / "export.json").write_text(json.dumps(report, indent=2) + "\n")
    table = markdown(report)
    (RESULTS / "export.md").write_text(table)
    print(table, end="")


def export(source: Path, out: Path) -> list[str]:
    command = [str(TPSPEC), "export", str(source), str(out), "--engine", "vllm", "--tp", str(TP)]
    return [*command, "--quiet"]


def markdown(report: dict[str, object]) -> str:
    """The report as a table."""
    times, memory = report["seconds"], report["private_mib"]
    assert isinstance(times, dict)
    assert isinstance(memory, dict)
    seconds = {kind: f"{median(of_kind):.2f} s {of_kind}" for kind, of_kind in times.items()}
    ratios = report["ratio_of_medians"], round(memory["export"] / memory["convert"], 2)
    target = f"at most {TARGET_RATIO}"
    lines = [
        "| | convert | export | ratio | target |",
        "|---|---|---|---|---|",
        f"| time, median | {seconds['convert']} | {seconds['export']} | {ratios[0]} | {target} |",
        f"| private memory | {memory['convert']} MiB | {memory['export']} MiB | {ratios[1]} | {target} |",
    ]
    where = f"{report['machine']}; load average before: {report['load_before']}"
    return f"`{report['command']}`\n\n{where}\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
