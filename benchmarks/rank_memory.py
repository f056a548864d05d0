"""What a rank at tp 8 opens and how much memory it takes, for a Llama and a Mixtral of some 2 GB in bf16.

    python benchmarks/rank_memory.py --dir /var/tmp

Memory is what resident memory, program code left out, grows by from before loading to after 16 tokens of
prompt and 8 new ones, of the rank that takes most, as a ratio to its file. Where strace is installed,
`tpspec run` is traced: which rank files each process opens, and how many bytes of them it reads by system
calls (to hash them; weights are mapped).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

import rank_memory_rank
from convert import TPSPEC
from random_llama import write_llama, write_mixtral

from tpspec.runtime.launch import launch

TP = 8
TARGET = 1.1
RESULTS = Path(__file__).parent / "results"
OPENED = re.compile(r"open(?:at)?\(.*?model-rank-(\d+)-of-\d+\.safetensors.* = \d+")
READ = re.compile(r"p?read(?:64)?\(\d+<[^>]*model-rank-(\d+)-of-\d+\.safetensors>.* = (\d+)$")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to put the models and their shards (10 GB)")
    report: dict[str, object] = {"command": "python benchmarks/rank_memory.py"}
    lines = [
        "| tp 8 | largest rank file | memory beyond imports | ratio | target |",
        "|---|---:|---:|---:|---|",
    ]
    opened = []
    with tempfile.TemporaryDirectory(dir=parser.parse_args().dir) as name:
        for model, write in (("Llama", write_llama), ("Mixtral", write_mixtral)):
            source, out = write(Path(name) / model), Path(name) / f"{model}-tp{TP}"
            subprocess.run([TPSPEC, "convert", source, out, "--tp", str(TP), "--quiet"], check=True)
            shutil.rmtree(source)
            shard = max(path.stat().st_size for path in out.glob("model-rank-*"))
            grown = launch(TP, rank_memory_rank.bytes_beyond_imports, (str(out),))
            ratio = max(grown) / shard
            report[model] = {"shard": shard, "grown": grown, "ratio": round(ratio, 3)}
            mib = f"{shard / 2**20:.0f} MiB | {max(grown) / 2**20:.0f} MiB"
            lines.append(f"| {model} | {mib} | {ratio:.3f} | at most {TARGET} |")
            if shutil.which("strace"):
                report[f"{model} opened"] = files = opened_files(out, Path(name) / "trace")
                opened.append(f"{model}: {sentence(files, shard)}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "rank_memory.json").write_text(json.dumps(report, indent=2) + "\n")
    table = "\n".join(lines) + "\n\n" + "".join(f"{line}\n" for line in opened)
    (RESULTS / "rank_memory.md").write_text(table)
    print(table, end="")


def opened_files(out: Path, trace: Path) -> dict[str, list[dict[str, int]]]:
    """Of each process that opened rank files: how often each, and the bytes that it read of it."""
    run = [TPSPEC, "run", out, "--prompt", "w1 w2 w3", "--max-new-tokens", "2", "--quiet"]
    calls = "trace=open,openat,read,pread64"
    trace.mkdir()
    to_a_file_each = ["strace", "-ff", "-y", "-qq", "-e", calls, "-o", trace / "process"]
    subprocess.run([*to_a_file_each, *run], check=True, stdout=subprocess.DEVNULL)
    times: defaultdict[str, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
    read: defaultdict[tuple[str, int], int] = defaultdict(int)
    for file in trace.iterdir():
        process = file.suffix
        for line in file.read_text(errors="replace").splitlines():
            if match := OPENED.match(line):
                times[process][int(match[1])] += 1
            elif match := READ.match(line):
                read[process, int(match[1])] += int(match[2])
    shutil.rmtree(trace)
    return {
        process: [{"rank": rank, "opened": n, "read": read[process, rank]} for rank, n in of.items()]
        for process, of in times.items()
    }


def sentence(files: dict[str, list[dict[str, int]]], shard: int) -> str:
    """Who opened what, in words."""
    alone = [of[0] for of in files.values() if len(of) == 1]
    ranks = ", ".join(str(of["rank"]) for of in sorted(alone, key=lambda of: of["rank"]))
    most = max((of["read"] for of in alone), default=0) / shard
    others = [
        f"one process opened {len(of)}, and read {sum(f['read'] for f in of)} bytes of headers"
        for of in files.values()
        if len(of) > 1
    ]  # the launcher
    own = f"files of ranks {ranks} were each opened by a process of its own, which read {most:.3f} of it"
    return "; ".join([own, *others])


if __name__ == "__main__":
    main()
